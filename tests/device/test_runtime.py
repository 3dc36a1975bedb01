# SPDX-License-Identifier: Apache-2.0
"""`apply` and its gradient; operations that are hard to differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from binary_trees import binary, binary_tree
from functions import KINDS
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
    def init(key: Any, x: Any) -> Any:
        return jax.random.normal(key, (size, *x.shape))

    return jf.Function(lambda weight, x: weight @ x, init, name=name)


# ---- rows that stand for no node -----------------------------------------------------


def init_square(key: jax.Array, *specs: Any) -> jax.Array:
    return jax.random.normal(key, (3, 3))


def normalized(p: Any, x: Any) -> Any:
    """Not a number at zero, like its derivative."""
    return p @ (x / jnp.linalg.norm(x))


UNDEFINED_AT_ZERO: dict[str, Callable[..., Any]] = {
    'softmax': lambda p, x: p @ jax.nn.softmax(x),
    'norm': normalized,
    'norm in a loop': lambda p, x: lax.scan(
        lambda x, _: (normalized(p, x), None), x, length=2
    )[0],
    'root': lambda p, x: p.sum() / jnp.sqrt(x @ x) * x,
    'quotient': lambda p, x: p @ (jnp.exp(x) / jnp.exp(x).sum()),
    'inverse': lambda p, x: p[0] / x,
    'log': lambda p, x: p @ jnp.log(jnp.abs(x)),
    'log of sum': lambda p, x: p @ jnp.log(jnp.exp(x) + jnp.exp(2 * x)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize('name', UNDEFINED_AT_ZERO)
@pytest.mark.parametrize(
    ('size', 'compiles'), [(1, in_loops), (2, jf.compile), (65, in_loops)]
)
def test_values_that_cross_into_the_deferred_pass(
    name: str, size: int, compiles: Any
) -> None:
    """They are not only cotangents, so zeros will not do for spare rows.

    In double precision, since a logarithm near zero makes much of a rounding.
    """
    before = jf.Function(lambda p, x: jnp.tanh(p @ x), init_square, name='before')
    behind = jf.Function(UNDEFINED_AT_ZERO[name], init_square)
    rows = np.random.default_rng(0).uniform(0.5, 2, (size, 3)).tolist()
    with jax.enable_x64(True):
        model = compiles(jf.Vector(3, 'float64') >> before >> behind)
        agree(model, model.init(jax.random.key(0)), rows, 1e-9)


@pytest.mark.parametrize('compiles', [in_loops, jf.compile])
def test_spare_rows_repeat_one_row_whole(compiles: Any) -> None:
    """A product of one row beside an input of another gives the root of -7 here."""

    def variance(p: Any, x: Any) -> Any:
        return p[0] * jnp.sqrt(1 + jnp.dot(x, x) - jnp.sum(x * x))

    model = compiles(jf.Vector(4) >> jf.Function(variance, init_square))
    batch = [[1.0, 2, 3, 0], [3, 0.0, 0, 0], [4.0, 4, 4, 4]]
    agree(model, model.init(jax.random.key(0)), batch, 1e-4)


def test_spare_rows_of_what_gradients_divide_by() -> None:
    """Running sums are stored for gradients of weights, but are no cotangents."""

    def step(p: Any, state: Any, x: Any) -> Any:
        return jnp.tanh(state + p[0] / jnp.cumsum(x))

    fold = jf.Fold(jf.Function(step, init_square), jf.Zeros([3]))
    model = in_loops(jf.Map(jf.Vector(3)) >> fold)
    lists = [[[1.0, 2, 3]] * n for n in (1, 3)]
    agree(model, model.init(jax.random.key(0)), lists, 1e-5)


def test_loops_that_zeros_would_not_end() -> None:
    """Past the end of a level a tile repeats a real row: inputs there are not ready."""

    def doubled(x: jax.Array) -> jax.Array:
        small = lambda s: jnp.abs(s).sum() < 10  # noqa: E731
        return jax.lax.while_loop(small, lambda s: s * 2, x)

    nest = jf.ForwardDeclaration()
    step = jf.Record((nest(),)) >> jnp.sin >> jf.Function(doubled)
    nest.resolve_to(jf.OneOf(type, {list: jf.Vector(3), tuple: step}))
    model = jf.compile(nest())
    example = ((([1.0, 2, 3],),),)
    values = model.apply({}, model.schedule([example] * 3))
    np.testing.assert_allclose(values[1], model.eval(example), rtol=1e-6)


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
    agree(mixed, weights, examples)
    batch = mixed.schedule(examples)
    grads = jax.grad(lambda p: mixed.apply(p, batch).sum(), allow_int=True)(weights)
    assert grads['permute']['order'].dtype == jax.dtypes.float0


def test_one_layer_at_two_types() -> None:
    """Operations share its parameters; their gradients add."""
    scale = jf.Function(
        lambda p, x: jnp.tanh(p * x), lambda key, _: jnp.array(0.7), name='scale'
    )
    block = jf.Record((jf.Scalar() >> scale, jf.Vector(3) >> scale >> scale))
    shared = jf.compile(block)
    assert list(map(repr, shared.program.operations)) == [
        'scale(float32[]) -> float32[]',
        *['scale(float32[3]) -> float32[3]'] * 2,
    ]
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
    agree(several, weights, [example, example])
    batch = several.schedule([example, example])
    grads = jax.grad(lambda p: several.apply(p, batch)[0].sum())(weights)
    assert jax.tree.structure(grads) == jax.tree.structure(weights)
    zeros = [grads['partly']['unused'], grads['lost'], grads['absent']]
    assert not any(x.any() for x in zeros)


# ---- what a function may contain -----------------------------------------------------

OPTIONS = list(zip(RESIDUALS, STRATEGIES, strict=True))
ALONE = {  # of the kinds that `test_functions` has together: those whose reverse is cut
    'relu': OPTIONS[0],
    'matrix of x and w': OPTIONS[1],
    'batched product': OPTIONS[0],
    'custom_vjp of a product': OPTIONS[1],
    'jit': OPTIONS[0],
    'checkpoint over parameters': OPTIONS[1],
    'cond': OPTIONS[0],
    'scan': OPTIONS[1],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize('name', ALONE)
def test_anything_that_jax_differentiates(name: str) -> None:
    """In a recurrence, so that the operation's input has a gradient too."""
    kind, (residuals, strategy) = KINDS[name], ALONE[name]

    def init(key: Any, spec: Any) -> Any:
        return kind.init(np.random.default_rng(0), spec)

    step = jf.Function(jnp.add) >> jf.Function(kind, init)
    block = jf.Map(jf.Vector(4)) >> jf.Fold(step, jf.Zeros([4]))
    model = jf.compile(block, residuals=residuals, strategy=strategy)
    rng = np.random.default_rng(0)
    examples = [list(rng.normal(size=(n, 4))) for n in (0, 1, 2, 5)]
    agree(model, model.init(jax.random.key(0)), examples)


# ---- types ---------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_narrow_floats(dtype: str) -> None:
    """Values and gradients stay what they are, and agree to their precision."""

    def init(key: Any, *_: Any) -> Any:
        return jax.random.normal(key, (3, 6), dtype) / 2

    def cell(weight: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(weight @ jnp.concatenate([left, right]))

    leaf = jf.InputTransform(lambda n: [n / 16, 1, -1]) >> jf.Vector(3, dtype)
    narrow = jf.compile(binary(leaf, jf.Function(cell, init)))
    rng = np.random.default_rng(0)
    trees = [binary_tree(rng, n) for n in (1, 2, 6)]
    agree(narrow, narrow.init(jax.random.key(0)), trees, 0.05)


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
