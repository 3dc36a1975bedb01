# SPDX-License-Identifier: Apache-2.0
"""Products of inputs from outside of a recurrence alone are taken before its loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from expressions import Expression, expressions
from extent import drawn
from flax import nnx
from hlo import Module, body_of, compiled_text, large, parse, scatters
from hypothesis import given, settings
from jax.sharding import AxisType
from meshes import over_devices

import jfold as jf
from jfold import layers
from jfold.device import hoisting
from jfold.device.execution import Execution, make_execution
from jfold.device.hoisting import WORTH, hoisted_products
from jfold.device.kernel import Kernel
from jfold.scheduling.spec import FIXED, RECOMPUTE_ALL

SIZE = WORTH  # of items and states
item = jf.Vector(SIZE)
start = jf.Zeros([SIZE])
embed = jf.Function(nn.Dense(SIZE), name='embed')
shift = jf.Function(nn.Dense(SIZE), name='shift')


def weights(*names: str) -> Callable[[Any], Any]:
    def init(key: Any, *_: Any) -> Any:
        made = jax.random.normal(key, (len(names), SIZE, SIZE)) / SIZE
        return dict(zip(names, made, strict=True))

    return init


def simple(p: Any, state: Any, x: Any) -> Any:
    """Both products of an Elman network."""
    return jnp.tanh(x @ p['x'] + state @ p['h'])


def deep(p: Any, state: Any, x: Any) -> Any:
    """Two products of the item, one of the other."""
    return jnp.tanh(jnp.sin(x @ p['x']) @ p['y'] + state @ p['h'])


def of_two(p: Any, state: Any, pair: Any) -> Any:
    """Two items: products of each and of both, and one beside the products."""
    x, y = pair
    made = x @ p['x'] + (y * x) @ p['y'] + state @ p['h']
    return jnp.tanh(made) * y


def gated(p: Any, state: Any, x: Any) -> Any:
    """The state's own product meets that of the item in another one."""
    gate = jax.nn.sigmoid(p['x'] @ x + state @ p['h'])
    return (gate * state) @ p['y'] + x


def added(p: Any, state: Any, x: Any) -> Any:
    """The item as it is."""
    return jnp.tanh(x + state @ p['h'])


def beside(p: Any, state: Any, x: Any) -> Any:
    """One product of what is inside and outside."""
    return jnp.tanh((x + state) @ p['h'])


def linear(p: Any, state: Any, x: Any) -> Any:
    """No reverse reads the product of the item."""
    return state / 2 + x @ p['x']


FROZEN = np.cos(np.arange(SIZE * SIZE)).reshape(SIZE, SIZE).astype('float32')


def frozen(state: Any, x: Any) -> Any:
    """No weights are trained."""
    return jnp.tanh(x @ FROZEN + state @ FROZEN.T)


def dropped(p: Any, state: Any, x: Any, *, dropout: Any) -> Any:
    """The item's product is drawn."""
    if dropout is not None:
        x = x * jax.random.bernoulli(dropout, 0.5, x.shape) * 2
    return simple(p, state, x)


def looped(p: Any, state: Any, x: Any) -> Any:
    """A function with a loop, which stays as it is."""
    return jax.lax.fori_loop(0, 2, lambda _, h: simple(p, h, x), state)


def narrow() -> jf.Block:
    """A product of an item that costs less than to be read."""
    return jf.Map(jf.Vector(WORTH - 1)) >> layers.LSTM(SIZE, name='cell')


def nnx_cell() -> jf.Block:
    inner = jf.Function(nnx.GRUCell(SIZE, SIZE, rngs=nnx.Rngs(0)), name='cell')
    return jf.Map(item) >> jf.Fold(jf.compose(lambda h, x: inner(h, x)[0]), start)


def folded(cell: Any, init: Any = None, **more: Any) -> jf.Block:
    return jf.Map(item >> embed) >> jf.Fold(
        jf.Function(cell, init, name='cell', **more), start
    )


def score(p: Any, state: Any, key: Any) -> Any:
    """A key, weighed by how well it fits a state."""
    return jax.nn.sigmoid(state @ (key @ p['x'])) * key


def decoder() -> jf.Block:
    """A state at each word, made of the word, the one before, and what of all encodings
    of an input fits that."""
    encoded = jf.RNN(
        jf.Function(lambda p, x, h: (simple(p, h, x),) * 2, weights('x', 'h')), start
    )
    step = jf.Function(lambda p, h, x, s: of_two(p, h, (x, s)), weights('x', 'y', 'h'))
    weighed = jf.Function(score, weights('x'), name='cell')

    @jf.compose
    def cell(state: Any, given: Any) -> Any:
        seen = jf.Sum()(jf.ZipWith(weighed)(jf.Broadcast()(state), given[1]))
        return step(state, given[0], seen)

    @jf.compose
    def block(pair: Any) -> Any:
        keys = (jf.Map(item >> embed) >> encoded >> jf.GetItem(0))(pair[0])
        items = jf.Map(item >> embed)(pair[1])
        given = jf.ZipWith(jf.Identity())(items, jf.Broadcast()(keys))
        return jf.Fold(cell, start)(given)

    return block


def trees() -> jf.Block:
    """Nodes with a vector of their own, and children."""
    tree = jf.ForwardDeclaration(name='tree')

    def join(p: Any, own: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(own @ p['x'] + left @ p['h'] + right @ p['y'])

    cell = jf.Function(join, weights('x', 'h', 'y'), name='cell')
    node = jf.Record((item >> embed, tree(), tree())) >> cell
    tree.resolve_to(jf.OneOf(len, {SIZE: item >> embed, 3: node}))
    return tree()


def mixed() -> jf.Block:
    """What a cell is given next may be of either side."""
    step = jf.ForwardDeclaration(name='step')
    cell = jf.Function(simple, weights('x', 'h'), name='cell')
    left = jf.OneOf(len, {SIZE: item >> embed, 2: step()})
    step.resolve_to(jf.Record((left, left)) >> cell)
    return step()


def vectors(*lengths: int) -> list[list[Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, SIZE)).astype('float32').tolist() for n in lengths]


LISTS = vectors(3, 0, 7, 1, 20)
PAIRS = list(zip(LISTS, vectors(2, 4, 0, 9, 1), strict=True))
TWO = [list(zip(x, x[::-1], strict=True)) for x in LISTS]
(A, B, C), (D, E) = vectors(3, 2)
TREES = [A, [A, B, C], [A, [B, C, D], [E, [A, C, E], B]]]

# By name: a block, its examples, and how many products of its cell leave the loop.
CASES: dict[str, tuple[Callable[[], jf.Block], list[Any], int]] = {
    'lstm': (lambda: jf.Map(item) >> layers.LSTM(SIZE, name='cell'), LISTS, 1),
    'gru': (lambda: jf.Map(item) >> layers.GRU(SIZE, name='cell'), LISTS, 3),
    'simple': (lambda: folded(simple, weights('x', 'h')), LISTS, 1),
    'deep': (lambda: folded(deep, weights('x', 'y', 'h')), LISTS, 1),
    'gated': (lambda: folded(gated, weights('x', 'y', 'h')), LISTS, 1),
    'linear': (lambda: folded(linear, weights('x')), LISTS, 1),
    'frozen': (lambda: folded(frozen), LISTS, 1),
    'whole tiles': (lambda: folded(simple, weights('x', 'h'), batched=True), LISTS, 1),
    'two items': (
        lambda: (
            jf.Map(jf.Record((item >> embed, item >> shift)))
            >> jf.Fold(jf.Function(of_two, weights('x', 'y', 'h'), name='cell'), start)
        ),
        TWO,
        2,
    ),
    'decoder': (decoder, PAIRS, 1),
    'trees': (trees, TREES, 1),
    'added': (lambda: folded(added, weights('h')), LISTS, 0),
    'beside': (lambda: folded(beside, weights('h')), LISTS, 0),
    'mixed': (mixed, [[A, B], [[A, B], [C, [D, E]]]], 0),
    'drawn': (lambda: folded(dropped, weights('x', 'h'), rngs='dropout'), LISTS, 1),
    'nnx': (nnx_cell, LISTS, 1),
    'looped': (lambda: folded(looped, weights('x', 'h')), LISTS, 0),
    'few summands': (narrow, [np.ones((3, WORTH - 1), 'float32').tolist()], 0),
}


def plan_of(model: jf.Model, examples: list[Any]) -> Execution:
    """How a batch of these is run."""
    spec = model.schedule(examples).spec
    return make_execution(spec, model.init(jax.random.key(0)))


def kernel_of(execution: Execution, name: str = 'cell') -> Kernel:
    (found,) = (k for k in execution.kernels.values() if k.operation.layer.name == name)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', CASES)
def test_values_and_gradients(name: str) -> None:
    make, examples, count = CASES[name]
    model = jf.compile(make())
    assert len(hoisted_products(kernel_of(plan_of(model, examples)))) == count
    params, rngs = model.init(jax.random.key(0)), jax.random.key(3)
    agree(model, params, examples, forward=True, rngs=rngs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ('name', 'chosen'),
    [
        ('lstm', {'reproducible': True}),
        ('deep', {'residuals': RECOMPUTE_ALL}),
        ('two items', {'strategy': FIXED}),
        ('decoder', {'residuals': RECOMPUTE_ALL, 'strategy': FIXED}),
    ],
)
def test_values_and_gradients_whatever_the_options(name: str, chosen: Any) -> None:
    make, examples, _ = CASES[name]
    model = jf.compile(make(), **chosen)
    agree(model, model.init(jax.random.key(0)), examples, forward=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('strategy', ['counted', 'fixed'])
def test_tangents(strategy: str) -> None:
    """Forward mode, of values and of gradients, equals that of the eager twin."""
    make, examples, _ = CASES['deep']
    model = jf.compile(make(), strategy=strategy)
    params, schedule = model.init(jax.random.key(0)), model.schedule(examples[:1])

    def batched(params: Any) -> Any:
        return jnp.sum(jnp.sin(model.apply(params, schedule)))

    def eager(params: Any) -> Any:
        return jnp.sum(jnp.sin(model.eval(examples[0], params)))

    along = jax.tree.map(jnp.ones_like, params)

    def pushed(f: Any) -> Any:
        return lambda x: jax.jvp(f, (x,), (along,))

    for f, g in ((batched, eager), (jax.grad(batched), jax.grad(eager))):
        got, want = jax.jit(pushed(f))(params), interpreter.called(pushed(g), params)
        chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)


def test_examples_on_two_devices() -> None:
    make, examples, _ = CASES['two items']
    where = over_devices(2, AxisType.Explicit)
    model = jf.compile(make())
    agree(model, model.init(jax.random.key(0)), examples, sharding=where)


# ---- what leaves the loop, and what stays --------------------------------------------


def test_inputs_from_outside_get_cotangents_after_the_loop() -> None:
    """If these take a product of their own."""
    for name, late in (('simple', 1), ('two items', 2), ('gated', 1), ('added', 0)):
        make, examples, _ = CASES[name]
        execution = plan_of(jf.compile(make()), examples)
        pulled = execution.pullbacks([True for _ in execution.tensors])
        (found,) = (
            each.reverse
            for each in pulled.values()
            if each.reverse.kernel is kernel_of(execution)
        )
        assert len(found.late_inputs) == late
        assert {*found.late_inputs, *found.early_inputs} == {*found.flow.places}
        # What both places need of the cotangents crosses, and no input's own.
        assert len(found.crossing) == 1


def test_what_is_printed_is_what_is_given() -> None:
    """Though nothing else is made of an input."""
    seen: list[float] = []

    def told(p: Any, state: Any, x: Any) -> Any:
        jax.debug.callback(lambda total: seen.append(float(total)), x.sum())
        return jnp.tanh(state @ p['h'])

    items = jf.Map(item) >> jf.Fold(jf.Function(told, weights('h')), start)
    model = jf.compile(items)
    model.apply(model.init(jax.random.key(0)), model.schedule([np.eye(3, SIZE) + 1]))
    jax.effects_barrier()
    assert set(seen) == {SIZE + 1.0}


def test_what_is_stored_for_the_forward_pass_alone_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else products stay in the loop; not in programs that must not depend on their
    capacity, nor where products are kept for a gradient, nor on an accelerator."""
    make, examples, _ = CASES['lstm']
    plans = [
        plan_of(jf.compile(make(), **chosen), examples)
        for chosen in ({}, {'reproducible': True}, {'strategy': FIXED})
    ]

    def hoisted(execution: Execution) -> list[bool]:
        (o,) = (o for o, k in execution.kernels.items() if k is kernel_of(execution))
        policies = execution.forward_alone[o], execution.policies[o]
        return [bool(each.hoisted) for each in policies]

    assert hoisted(plans[0]) == [True, True]
    monkeypatch.setattr('jfold.device.execution.ROOM', 1000)
    plans = [dataclasses.replace(execution) for execution in plans]
    assert list(map(hoisted, plans)) == [[False, True], [True, True], [True, True]]
    stingy = plan_of(jf.compile(make(), residuals=RECOMPUTE_ALL), examples)
    assert hoisted(stingy) == [False, False]


# ---- HLO -----------------------------------------------------------------------------

ITEM, STATE = 24, 40  # sizes that nothing else has


def init_wide(key: Any, *_: Any) -> Any:
    return {'x': jnp.ones((ITEM, STATE)), 'h': jnp.ones((STATE, STATE))}


def products_in_levels(module: Module) -> set[frozenset[int]]:
    """Of products within loops over levels, which hold other loops, the sizes of all
    that they read and give."""
    bodies = {
        body_of(i) for each in module.values() for i in each if i.opcode == 'while'
    }
    outer = [name for name in bodies if any(i.opcode == 'while' for i in module[name])]
    found, waiting = set[frozenset[int]](), outer
    while waiting:
        name = waiting.pop()
        arrays = {i.name: i.arrays for i in module[name]}
        for i in module[name]:
            waiting += i.calls
            if i.opcode == 'dot':
                read = [x for each in i.operands for x in arrays[each]]
                sizes = (each.shape[-2:] for each in (*read, *i.arrays))
                found.add(frozenset(n for shape in sizes for n in shape))
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize('learns', [False, True])
def test_loops_over_levels_hold_no_product_of_the_item(learns: bool) -> None:
    """Neither forward nor in reverse, and no copy of a buffer for it."""
    block = jf.Map(jf.Vector(ITEM) >> jf.Function(nn.Dense(ITEM))) >> jf.Fold(
        jf.Function(simple, init_wide, name='cell'), jf.Zeros([STATE])
    )
    model = jf.compile(block, strategy='counted')
    lists = [np.ones((30, ITEM), 'float32').tolist() for _ in range(40)]
    params, schedule = model.init(jax.random.key(0)), model.schedule(lists)

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return jnp.sum(model.apply(params, schedule))

    text = compiled_text(jax.grad(loss) if learns else loss, params, schedule)
    module = parse(text)
    found = products_in_levels(module)
    assert found
    assert all(STATE in sizes and ITEM not in sizes for sizes in found)
    assert not large(module, 1200)
    assert not scatters(module)


# ---- drawn expressions ---------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize('root', ['tree', 'sequences'])
def test_drawn_expressions(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which products of few numbers leave the loop too."""
    monkeypatch.setattr(hoisting, 'WORTH', 1)

    @settings(max_examples=drawn(1, 3))
    @given(expressions(root))
    def equal(expression: Expression) -> None:
        model = jf.compile(expression.block)
        examples = expression.batch(np.random.default_rng(2), 3)
        agree(model, model.init(jax.random.key(1)), examples, forward=True)

    equal()
