# SPDX-License-Identifier: Apache-2.0
"""Functions that are defined everywhere, and what programs without loops make of them:
nothing is masked, and rows that stand for nothing change nothing all the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from looped import in_loops
from meshes import over_devices

import jfold as jf
from jfold.base import jaxprs
from jfold.device.analyses import is_defined
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

pytestmark = pytest.mark.usefixtures('wide')

KEY = jax.random.key(0)
MATRIX = np.arange(9.0, dtype='float32').reshape(3, 3)
Function = Callable[[Any], Any]


# ---- which functions are -------------------------------------------------------------


@jax.custom_jvp
def with_rule(x: Any) -> Any:
    return x


with_rule.defjvp(lambda x, t: (with_rule(*x), t[0] * jnp.maximum(x[0], 1)))


@jax.custom_jvp
def with_poor_rule(x: Any) -> Any:
    """The same, whose derivative is not defined everywhere."""
    return x


with_poor_rule.defjvp(lambda x, t: (with_poor_rule(*x), t[0] / x[0]))


@jax.custom_vjp
def reversed_by_rule(x: Any) -> Any:
    """A function with a reverse of its own, which need not give zero for zero."""
    return x


reversed_by_rule.defvjp(lambda x: (x, None), lambda _, t: (t + 1,))

DEFINED: dict[str, Function] = {
    'product': lambda x: MATRIX @ x,
    'tanh': jnp.tanh,
    'relu': jax.nn.relu,
    'silu': jax.nn.silu,
    'gelu': jax.nn.gelu,
    'exact gelu': lambda x: jax.nn.gelu(x, approximate=False),
    'leaky relu': jax.nn.leaky_relu,
    'gates': lambda x: jax.nn.sigmoid(x[0]) * jnp.tanh(x[1]) + x[2],
    'mean': jnp.mean,
    'cube': lambda x: x**3,
    'parts': lambda x: jnp.concatenate([x[1:], x[:1]]),
    'a stack': lambda x: jnp.unstack(jnp.stack([x, x]))[1],
    'a row': lambda x: jnp.asarray(MATRIX)[jnp.argmax(x)],
    'one of two': lambda x: jnp.where(x > 1, x, -x),
    'kinds of numbers': lambda x: x.astype('bfloat16') * jnp.bfloat16(2),
    'with a rule': with_rule,
}
UNDEFINED: dict[str, Function] = {
    'log': jnp.log,
    'root': lambda x: jnp.sqrt(1 + x),
    'norm': jnp.linalg.norm,
    'quotient': lambda x: x / x.sum(),
    'by nothing': lambda x: x / 0,
    'inverse': lambda x: x**-1,
    'softmax': jax.nn.softmax,
    'infinite': lambda x: jnp.where(x > 1, x, -jnp.inf),
    'infinite array': lambda x: x + np.array([1, np.inf, 2]),
    'outside': lambda x: jnp.take(MATRIX, x.astype(int), 0, mode='fill'),
    'loop': lambda x: jax.lax.fori_loop(0, 3, lambda _, s: s * 2, x),
    'with a poor rule': with_poor_rule,
    'with a reverse': reversed_by_rule,
}


def traced(function: Function) -> Any:
    return jaxprs.trace(lambda x: [function(x)], [jax.ShapeDtypeStruct((3,), 'float')])


@pytest.mark.parametrize('name', DEFINED)
def test_what_is_defined_everywhere(name: str) -> None:
    """It gives finite numbers and gradients."""
    function = DEFINED[name]
    assert is_defined(traced(function))

    @jax.jit
    def both(x: Any) -> Any:
        value, pull = jax.vjp(function, x)
        return value, pull(jnp.ones_like(value))

    for x in (0, 0, 0), (-1, 0, 1), (1e4, -1e4, 3):
        for each in jax.tree.leaves(both(np.array(x, float))):
            assert np.isfinite(each).all()


@pytest.mark.parametrize('name', UNDEFINED)
def test_what_is_not_known_to_be(name: str) -> None:
    assert not is_defined(traced(UNDEFINED[name]))


def test_constants_that_are_traced_are_not_known() -> None:
    def defined(y: Any) -> Any:
        found.append(is_defined(jax.make_jaxpr(lambda x: x * y)(1.0)))
        return y

    found: list[bool] = []
    jax.jit(defined)(1.0)
    assert found == [False]


# ---- rows that stand for nothing -----------------------------------------------------


def scalar(fn: Callable[[Any, Any], Any], name: str) -> jf.Function:
    return jf.Function(fn, lambda key, *_: jnp.float64(0.5), name=name)


number = jf.Scalar('float64')
log = scalar(lambda w, x: jnp.log(x - w), 'log')
square = scalar(lambda w, x: w * x * x, 'square')
tanh = scalar(lambda w, x: jnp.tanh(w + x), 'tanh')
root = scalar(lambda w, x: jnp.sqrt(w * x), 'root')
plus = jf.Function(jnp.add, name='plus')


def both(first: jf.Function, second: jf.Function) -> jf.Block:
    """One function of a number, and another of what it gives, added up."""

    def wired(x: Any) -> Any:
        made = first(x)
        return plus(made, second(made))

    return jf.compose(wired)


def items(a: jf.Block, b: jf.Block) -> jf.Block:
    cases = {'a': jf.GetItem(1) >> number >> a, 'b': jf.GetItem(1) >> number >> b}
    return jf.Map(jf.OneOf(jf.GetItem(0), cases))


BLOCKS: dict[str, jf.Block] = {
    'either': items(log, square) >> jf.Sum(),
    'defined upon undefined': items(both(log, square), tanh) >> jf.Sum(),
    'undefined upon defined': items(both(square, root), tanh) >> jf.Sum(),
    'defined upon defined': items(both(square, tanh), log) >> jf.Sum(),
    'of sums': items(log, square) >> jf.Sum() >> both(tanh, square),
    'undefined of sums': items(log, square) >> jf.Sum() >> both(square, log),
    'by index': items(log, square) >> jf.Map(both(tanh, square)) >> jf.Sum(),
    'items': items(square, tanh),
}
BATCHES: list[list[Any]] = [
    [[('a', 2.0), ('b', 4.0)], [('a', 1.75)] * 5, [('b', 3.0)]],
    [[('b', 4.0)], [('b', 3.0), ('b', 2.0)]],
    [[('a', 5.0)], [('a', 4.0)] * 3],
]


@pytest.mark.parametrize(
    ('name', 'residuals'), [*zip(BLOCKS, itertools.cycle(RESIDUALS))]
)
def test_operations_of_either_kind_with_few_rows_or_none(
    name: str, residuals: str
) -> None:
    """To twelve digits, whichever reads the results of which; residuals take turns."""
    model = jf.compile(BLOCKS[name], residuals=residuals)
    params = model.init(KEY)
    for i, batch in enumerate(BATCHES):
        agree(model, params, batch, 1e-12, forward=not i, size=4)


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_loops_of_an_operation_that_a_batch_lacks(strategy: str) -> None:
    """Its room is not empty, and its parameter has a gradient of zero."""
    length = scalar(lambda w, x: jnp.sqrt(w * (x @ x)), 'length')
    cases = {list: jf.Vector(2, 'float64') >> length, float: number >> square}
    model = in_loops(jf.OneOf(type, cases), strategy=strategy)
    params = model.init(KEY)
    for batch in ([[1.0, 2.0], 3.0], [3.0, 4.0]):
        agree(model, params, batch, 1e-12)


def test_shards_of_which_some_lack_an_operation() -> None:
    model = jf.compile(BLOCKS['by index'])
    examples = [[('a', 3.0)], [('b', 2.0)]]
    agree(model, model.init(KEY), examples, sharding=over_devices())


@pytest.mark.parametrize('examples', [[[('a', np.inf)]], [[]], []])
def test_what_is_absent_does_not_read_what_is_infinite(examples: Any) -> None:
    """Though its spare rows might."""
    model = jf.compile(items(log, square))
    model.schedule(BATCHES[0][:1])  # there is room for both
    schedule = model.schedule(examples, size=1)
    loss = lambda params: model.apply(params, schedule).values[0]  # noqa: E731
    assert jax.grad(loss)(model.init(KEY)) == {'log': 0, 'square': 0}


def masks(block: jf.Block) -> int:
    """How many there are in the gradient of the results of a batch."""
    model = jf.compile(block)
    schedule = model.schedule([[2.0, 3.0], [4.0]])
    grads = jax.grad(lambda params: model.apply(params, schedule).sum())
    return str(jax.make_jaxpr(grads)(model.init(KEY))).count('select_n')


def test_nothing_is_masked_where_all_is_defined() -> None:
    """But results, both ways, since their spare rows repeat the last, and no sum."""
    total = jf.Map(number >> square) >> jf.Sum()
    assert masks(total >> tanh) == 2 + 1
    assert masks(total >> log) > 2 + 1
