# SPDX-License-Identifier: Apache-2.0
"""`apply` and its gradient; operations that are hard to differentiate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from binary_trees import binary, binary_tree
from jax import lax
from looped import in_loops

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES


def test_gradients_do_not_flow_to_the_schedule() -> None:
    """It is data: constants of it have a gradient of zero."""
    reader = jf.compile(jf.Vector(2) >> dense_layer(2))
    weights = reader.init(jax.random.key(0))
    batch = reader.schedule([[1.0, 2.0]])

    def of_data(constants: Any) -> Any:
        changed = jf.Schedule(batch.indices, constants, batch.spec)
        return reader.apply(weights, changed).sum()

    grads = jax.grad(of_data)(tuple(map(jnp.asarray, batch.constants)))
    assert not any(x.any() for x in grads)


def dense_layer(size: int, name: str = 'dense') -> jf.Function:
    """`W @ x`."""

    def init(key: Any, x: Any) -> Any:
        return jax.random.normal(key, (size, *x.shape))

    return jf.Function(lambda weight, x: weight @ x, init, name=name)


# ---- rows that stand for no node -----------------------------------------------------


def normalized(params: Any, x: Any) -> Any:
    """Not a number at zero, like its derivative."""
    y = params @ x
    return y / jnp.linalg.norm(y)


def logarithm(params: Any, x: Any) -> Any:
    """Minus infinity at zero."""
    return jnp.log((params @ x) ** 2)


def inverse(params: Any, x: Any) -> Any:
    """Infinite at zero."""
    return params / x


def normalized_in_a_loop(params: Any, x: Any) -> Any:
    """The same, where parameters and inputs meet in a loop."""

    def step(x: Any, _: Any) -> Any:
        return normalized(params, x), None

    return lax.scan(step, x, length=2)[0]


@pytest.mark.parametrize('fn', [normalized, normalized_in_a_loop, logarithm, inverse])
def test_operations_that_are_not_defined_at_zero(fn: Any) -> None:
    """Values and gradients stay numbers at every size of a tile's remainder."""
    shape = (2,) if fn is inverse else (2, 2)

    def init(key: Any, _: Any) -> Any:
        return jax.random.uniform(key, shape, minval=0.5, maxval=1)

    layer = jf.Function(fn, init)
    trap = jf.compile(jf.Map(jf.Vector(2) >> layer >> jnp.tanh) >> jf.Sum() >> layer)
    weights = trap.init(jax.random.key(0))
    items = np.random.default_rng(0).uniform(0.5, 2, size=(130, 2))
    for size in (33, 3, 1) if fn is normalized_in_a_loop else (130, 65, 3, 1):
        agree(trap, weights, [list(items[:size])])


# ---- parameters ----------------------------------------------------------------------


def test_integer_parameters_stay_out_of_gradients() -> None:
    """They are used, and their gradient is `float0`, as everywhere in JAX."""

    def init(key: Any, _: Any) -> Any:
        order = jnp.array([2, 0, 1])
        return {'order': order, 'scale': jax.random.normal(key, (3,))}

    layer = jf.Function(lambda p, x: p['scale'] * x[p['order']], init, name='permute')
    mixed = jf.compile(jf.Map(jf.Vector(3) >> layer >> layer) >> jf.Sum())
    weights = mixed.init(jax.random.key(0))
    examples = [[[1.0, 2.0, 3.0]] * 3, []]
    batch = mixed.schedule(examples)
    grads = jax.grad(lambda p: mixed.apply(p, batch).sum(), allow_int=True)(weights)
    assert grads['permute']['order'].dtype == jax.dtypes.float0

    def eager(weights: Any) -> Any:
        return sum(mixed.eval(e, weights).sum() for e in examples)

    expected = jax.grad(eager, allow_int=True)(weights)
    close(grads['permute']['scale'], expected['permute']['scale'], 1e-5)


def test_one_layer_at_two_types() -> None:
    """Operations share its parameters; their gradients add."""
    scale = jf.Function(
        lambda p, x: jnp.tanh(p * x), lambda key, _: jnp.array(0.7), name='scale'
    )
    block = jf.Record((jf.Scalar() >> scale, jf.Vector(3) >> scale >> scale))
    shared = jf.compile(block)
    assert len(shared.program.operations) == 3
    assert list(shared.init(jax.random.key(0))) == ['scale']
    examples = [(0.5, [1.0, 2.0, 3.0]), (-1.5, [0.1, 0.2, 0.3])]
    agree(shared, shared.init(jax.random.key(0)), examples)


def test_parameters_that_no_result_depends_on() -> None:
    """Their gradient is zero, be it a part, an operation, or one that never runs."""

    def init(key: Any, _: Any) -> Any:
        return {'used': jnp.ones(2), 'unused': jnp.ones((3, 3))}

    partly = jf.Function(lambda p, x: p['used'] * x, init, name='partly')
    lost = jf.Vector(2) >> dense_layer(2, 'lost') >> jf.Void()
    absent = jf.Optional(jf.Vector(2) >> dense_layer(2, 'absent'))
    block = jf.Record({'a': jf.Vector(2) >> partly, 'b': lost, 'c': absent})
    several = jf.compile(block >> jf.AllOf(jf.GetItem(0), jf.GetItem(2)))
    weights = several.init(jax.random.key(0))
    example = {'a': [1.0, 2.0], 'b': [3.0, 4.0], 'c': None}
    batch = several.schedule([example, example])

    def total(weights: Any) -> Any:
        return sum(x.sum() for x in several.apply(weights, batch))

    grads = jax.grad(total)(weights)
    assert jax.tree.structure(grads) == jax.tree.structure(weights)
    assert grads['partly']['used'].tolist() == [2.0, 4.0]
    zeros = [grads['partly']['unused'], grads['lost'], grads['absent']]
    assert not any(x.any() for x in zeros)


def recurrence(layer: Any, size: int) -> Any:
    """A state that is the layer of the sum of state and item."""
    combine = jf.Function(jnp.add) >> layer
    return jf.Map(jf.Vector(size)) >> jf.Fold(combine, jf.Zeros([size]))


# ---- what a function may contain -----------------------------------------------------


def choose(params: Any, x: Any) -> Any:
    """A conditional, which `vmap` makes a selection."""
    return lax.cond(x[0] > 0, lambda: jnp.sin(params @ x), lambda: params.T @ x)


def recur(params: Any, x: Any) -> Any:
    """A loop with products in it."""
    return lax.scan(lambda h, _: (jnp.tanh(params @ h + x), h.sum()), x, length=3)[0]


def rectify(params: Any, x: Any) -> Any:
    """A `custom_jvp` and a selection."""
    y = jax.nn.relu(params @ x)
    return jnp.where(y > 0.1, jnp.log(jnp.where(y > 0.1, y, 1)), jax.nn.silu(x))


def between_inputs(params: Any, x: Any) -> Any:
    """Products without parameters, and a batched one."""
    outer = jnp.outer(x, x)
    return jnp.tanh(outer @ outer @ (params @ x) / 4)


def by_einsum(params: Any, x: Any) -> Any:
    """A product with a batch dimension and a transposed result."""
    heads = jnp.einsum('hij,j->ih', params.reshape(2, 2, 4), x)
    return jnp.tanh(heads).ravel()


@jax.custom_vjp
def halved(x: Any) -> Any:
    """Half, with half of half as its derivative."""
    return x / 2


halved.defvjp(lambda x: (x / 2, x), lambda x, g: (g / 4,))


def with_custom_vjp(params: Any, x: Any) -> Any:
    """A `custom_vjp` after a product."""
    return halved(params @ x)


def in_jit(params: Any, x: Any) -> Any:
    """Nested `jit`s with a product inside."""
    return jax.jit(lambda p, x: jnp.sin(jax.jit(jnp.matmul)(p, x)))(params, x)


def recomputed(params: Any, x: Any) -> Any:
    """A `checkpoint` of its own."""
    return jax.checkpoint(lambda x: jnp.tanh(params @ jnp.sin(params @ x)))(x)


@pytest.mark.parametrize(
    'fn',
    [
        choose,
        recur,
        rectify,
        between_inputs,
        by_einsum,
        with_custom_vjp,
        in_jit,
        recomputed,
    ],
)
@pytest.mark.parametrize(
    ('residuals', 'strategy'), list(zip(RESIDUALS, STRATEGIES, strict=True))
)
def test_anything_that_jax_differentiates(
    fn: Any, residuals: str, strategy: str
) -> None:
    """In a recurrence, so that the operation's input has a gradient too."""

    def init(key: Any, _: Any) -> Any:
        return jax.random.normal(key, (4, 4)) / 2

    layer = jf.Function(fn, init)
    block = recurrence(layer, 4)
    recurrent = jf.compile(block, residuals=residuals, strategy=strategy)
    rng = np.random.default_rng(0)
    examples = [list(rng.normal(size=(n, 4))) for n in (0, 1, 2, 5)]
    agree(recurrent, recurrent.init(jax.random.key(0)), examples)


# ---- types ---------------------------------------------------------------------------


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_narrow_floats(dtype: str) -> None:
    """They stay what they are, and agree to their precision."""

    def init(key: Any, *_: Any) -> Any:
        return jax.random.normal(key, (3, 6), dtype) / 2

    def cell(weight: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(weight @ jnp.concatenate([left, right]))

    leaf = jf.InputTransform(lambda n: [n / 16, 1, -1]) >> jf.Vector(3, dtype)
    narrow = jf.compile(binary(leaf, jf.Function(cell, init)))
    weights = narrow.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    trees = [binary_tree(rng, n) for n in (1, 2, 6)]
    batch = narrow.schedule(trees)
    values = narrow.apply(weights, batch)
    assert values.dtype == dtype
    alone = jnp.stack([narrow.eval(tree, weights) for tree in trees])
    close(values, alone, 0.05)

    def square(values: Any) -> Any:
        return (values.astype('float32') ** 2).sum()

    def eager(weights: Any) -> Any:
        return square(jnp.stack([narrow.eval(tree, weights) for tree in trees]))

    grads = jax.grad(lambda p: square(narrow.apply(p, batch)))(weights)
    close(grads, jax.grad(eager)(weights), 0.05)


def test_complex_numbers_and_bools() -> None:
    """Types that are neither ints nor real."""
    rotate = jf.Function(
        lambda p, x, on: jnp.where(on, p * x, x),
        lambda key, *_: jnp.array(0.6 + 0.8j, 'complex64'),
        name='rotate',
    )
    fields = jf.Record((jf.Scalar('complex64'), jf.Scalar('bool')))
    turning = jf.compile(fields >> rotate >> jf.Function(lambda z: (z.real, z.imag)))
    weights = turning.init(jax.random.key(0))
    agree(turning, weights, [(1 + 1j, True), (2j, False), (-1, True)])


# ---- strategies ----------------------------------------------------------------------


@pytest.mark.parametrize('residuals', RESIDUALS)
def test_wide_uses_of_more_rows_than_a_step(residuals: str) -> None:
    """Sums over the uses of what an operation makes that runs once, in two steps."""
    layer = jf.Function(lambda p, i: p[i], lambda *_: jnp.ones(2), name='layer')
    several = jf.AllOf(*[jf.Identity()] * 5) >> jf.Function(lambda *x: sum(x))
    fixed = in_loops(jf.Scalar('int32') >> layer >> several, residuals, 'fixed')
    schedule = fixed.schedule([0, 0, 1] * 400)  # a step takes 1,024 rows at most
    grad = jax.grad(lambda p: fixed.apply(p, schedule).sum())
    got = grad(fixed.init(jax.random.key(0)))['layer']
    assert got.tolist() == [5 * 800, 5 * 400]
