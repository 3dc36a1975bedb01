# SPDX-License-Identifier: Apache-2.0
"""What a block of a function means, by example; functions that give dataclasses."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import add, check, does_not_compile, number, numbers, refuses, same, whole
from flax import nnx

import jfold as jf


def test_functions_of_one_example() -> None:
    def mixed(a: Any, b: Any) -> Any:
        return (a * 2, [b[0] + a, b[1]]), jnp.stack([a, a])

    pair, first = (number, (jf.Vector(2), whole)), (2.0, ([2, 3], 3))
    check(
        (number >> jnp.negative, [1, 2], [-1.0, -2.0]),
        (pair >> jf.Function(mixed), [(1, ([1, 2], 3))], [(first, [1, 1])]),
        (number >> (lambda x: (x, 1, 2.5)), [4], [(4.0, np.int32(1), np.float32(2.5))]),
        (jf.Vector(3) >> (lambda x: x[::-1]), [[1, 2, 3]], [[3, 2, 1]]),
        (jf.Record(()) >> (lambda: jnp.ones(2)), [0], [[1, 1]]),
    )


def test_functions_of_whole_tiles() -> None:
    calls = []

    def rows(x: Any, y: Any) -> Any:
        calls.append(x.shape)
        return jnp.einsum('ri,rij->rj', x, y)

    block = (jf.Vector(2), jf.Tensor((2, 3))) >> jf.Function(rows, batched=True)
    check((block, [([1, 2], np.ones((2, 3)))], [[3, 3, 3]]))
    assert all(len(shape) == 2 for shape in calls)


def test_functions_with_parameters() -> None:
    def init(key: Any, x: Any) -> Any:
        return {'scale': jnp.full(x.shape, 3.0), 'shift': 1.0}

    def layer(params: Any, x: Any) -> Any:
        return params['scale'] * x + params['shift']

    block = jf.Vector(2) >> jf.Function(layer, init)
    assert list(jf.compile(block).init(jax.random.key(0))) == ['layer']
    check((block, [[1, 2]], [[4, 7]]))


def test_learned_constants() -> None:
    def start(key: Any) -> Any:
        return jnp.arange(3.0)

    learned = jf.Void() >> jf.Function(lambda p: p, start, name='start')
    vector, lists = jf.Vector(3), [[], [[1, 1, 1]]]
    sums = jf.Map(vector) >> jf.Fold(add, learned)
    check(
        (learned, [0, 0], [[0, 1, 2]] * 2),
        ({'x': vector, 'w': learned} >> add, [{'x': [1, 1, 1]}], [[1, 2, 3]]),
        (sums, lists, [[0, 1, 2], [1, 2, 3]]),
        (jf.Map(vector) >> jf.Max(learned), lists, [[0, 1, 2], [1, 1, 1]]),
    )


class Affine(nn.Module):
    @nn.compact
    def __call__(self, x: Any, y: Any) -> Any:
        return nn.Dense(2)(x), nn.Dense(1, name='second')(y)


def test_flax_modules() -> None:
    linen = (jf.Vector(3), jf.Vector(2)) >> jf.Function(Affine())
    nnx_linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    model = jf.compile(
        (linen, jf.GetItem(0) >> jf.Vector(3) >> jf.Function(nnx_linear))
    )
    params = model.init(jax.random.key(1))
    assert list(params) == ['Affine', 'Linear']
    assert params['Affine']['second']['kernel'].shape == (2, 1)
    x, y = np.ones(3, np.float32), np.ones(2, np.float32)
    want = Affine().apply({'params': params['Affine']}, x, y), nnx_linear(x)
    example = ((x, y), (x, y))
    same(model.eval(example, params), want)
    got = model.apply(params, model.schedule([example]))
    same(jax.tree.map(lambda a: a[0], got), want)


def test_the_same_callable_shares_parameters() -> None:
    def init(key: Any, x: Any) -> Any:
        return jax.random.normal(key, x.shape)

    def scale(p: Any, x: Any) -> Any:
        return p * x

    def other(p: Any, x: Any) -> Any:
        return p * x

    blocks = [
        jf.Function(scale, init),
        jf.Function(scale, init),
        jf.Function(scale, init, name='mine'),
        jf.Function(scale, init, name='mine'),
        jf.Function(other, init, name='mine'),
        jf.Function(lambda p, x: p * x, init),
    ]
    model = jf.compile(number >> jf.AllOf(*blocks))
    params = model.init(jax.random.key(0))
    assert list(params) == ['scale', 'mine', 'mine_1', 'function']
    assert len(set(map(float, params.values()))) == 4
    assert len(model.program.operations) == 4
    a, b, c, d, e, f = model.eval(1, params)
    assert a == b != c == d != e != f


def settings(fn: Any, init: Any = None) -> None:
    """A function of a tuple of two numbers."""
    jf.compile(jf.Record((number, number)) >> jf.Function(fn, init, name='fn'))


@pytest.mark.parametrize(
    ('fn', 'init', 'shown'),
    [
        (lambda x, scale=2.0: x * scale, None, 'scale=2.0'),
        (lambda p, x, train=False: x, lambda *_: jnp.ones(()), 'train=False'),
        (functools.partial(lambda a, x, n=3: x * n, 1), None, 'n=3'),
        (jnp.concatenate, None, 'axis=0'),
        (jax.jit(lambda x, kind='a': x), None, "kind='a'"),
    ],
)
def test_an_item_is_not_taken_for_a_setting(fn: Any, init: Any, shown: str) -> None:
    """It would replace a default without a word."""
    with refuses(
        'Pipe[1].Function(fn): expected an input for each argument without a default, '
        'got the tuple (float32[], float32[]), of which an item would be '
        f'`{shown}`; items are arguments of their own: take one by `GetItem`, or write '
        'a function that takes 2 inputs, as `lambda *inputs: ...`'
    ):
        settings(fn, init)


def test_defaults_that_may_stay_or_be_replaced() -> None:
    """Those that come first, that are `None`, or that no item reaches."""
    settings(lambda x=1.0, y=None: x + y)
    settings(lambda x, y, scale=2.0: x + y * scale)
    settings(lambda *inputs, scale=2.0: sum(inputs) * scale)
    settings(functools.partial(lambda x, y, scale: x + y * scale, scale=2.0))
    settings(jnp.clip)
    settings(jnp.maximum)
    jf.compile(number >> jf.Function(lambda x, scale=2.0: x * scale))


def test_bound_methods_are_one_layer() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def times(self, x: Any) -> Any:
            return self.factor * x

    two, three = Scale(2.0), Scale(3.0)
    block = number >> jf.AllOf(two.times, two.times, three.times)
    assert len(jf.compile(block).program.operations) == 2
    check((block, [1], [(2.0, 2.0, 3.0)]))


def test_concat() -> None:
    pair, row = (number, jf.Vector(2)), jf.Tensor((1, 2))
    nested = (number, (jf.Vector(2), (number,)))
    check(
        (pair >> jf.Concat(), [(1, [2, 3])], [[1, 2, 3]]),
        ((number, number) >> jf.Concat(), [(1, 2)], [[1, 2]]),
        ((row, row) >> jf.Concat(), [([[1, 2]], [[3, 4]])], [[[1, 2], [3, 4]]]),
        ((row, row) >> jf.Concat(1), [([[1, 2]], [[3, 4]])], [[[1, 2, 3, 4]]]),
        ((row, row) >> jf.Concat(-1), [([[1, 2]], [[3, 4]])], [[[1, 2, 3, 4]]]),
        (nested >> jf.Concat(flatten=True), [(1, ([2, 3], (4,)))], [[1, 2, 3, 4]]),
        ((whole, whole) >> jf.Concat(), [(1, 2)], [np.array([1, 2], np.int32)]),
    )


# ---- dicts and dataclasses -----------------------------------------------------------

TREES: list[Any] = [1, (1, 2), ((1, 2), 3), (1, (2, 3))]
LISTS: list[Any] = [[1, (1, 2)], [], [((1, 2), 3)]]


@jax.tree_util.register_dataclass
@dataclass
class State:
    """What JAX takes apart in the order of its fields."""

    h: Any
    c: Any


def leaf(x: Any) -> Any:
    return {'h': x, 'c': 2 * x}


def leaf_state(x: Any) -> Any:
    return State(x, {'inner': (2 * x, x)})


def cell(w: Any, left: Any, right: Any) -> Any:
    """The same arguments again, whose names no Record says."""
    return {'h': jnp.tanh(w * left['h'] + right['c']), 'c': left['c'] * w - right['h']}


def cell_state(w: Any, left: Any, right: Any) -> Any:
    h = jnp.tanh(w * left.h + right.c['inner'][0])
    return State(h, {'inner': (left.c['inner'][1] * w, right.h)})


def tree(make_leaf: Any = leaf, combine: Any = cell) -> jf.Block:
    """A recursion whose state is a dict, or a dataclass."""
    made = jf.ForwardDeclaration(name='tree')
    layer = jf.Function(combine, init=lambda key: jnp.float32(0.5), name='cell')
    pair = jf.Record((made(), made())) >> layer
    made.resolve_to(jf.OneOf(type, {int: number >> make_leaf, tuple: pair}))
    return made()


def states() -> jf.Block:
    return tree(leaf_state, cell_state)


def step(state: Any, x: Any) -> Any:
    return {'h': state['h'] + x, 'c': state['c'] - state['h'] * x}


ZEROS = jf.Zeros({'h': [], 'c': []})

BLOCKS: dict[str, Callable[[], tuple[jf.Block, list[Any]]]] = {
    'a recursion': lambda: (tree(), TREES),
    'a recursion of dataclasses': lambda: (states(), TREES),
    'a field': lambda: (tree() >> jf.GetItem('h'), TREES),
    'a field of a dataclass': lambda: (
        states() >> jf.GetItem('c') >> jf.GetItem('inner') >> jf.GetItem(1),
        TREES,
    ),
    'a block for each field': lambda: (
        tree() >> jf.Record([('h', jnp.sin), ('c', jf.Identity())]) >> jnp.subtract,
        TREES,
    ),
    'one argument': lambda: (tree() >> (lambda s: s['h'] - s['c']), TREES),
    'a wire': lambda: (
        jf.compose(lambda x: jf.Function(jnp.subtract)(tree()(x)['h'], number(x))),
        [1, 2],
    ),
    'joined': lambda: (tree() >> jf.Concat(flatten=True), TREES),
    'items': lambda: (jf.Map(tree()), LISTS),
    'items of dataclasses': lambda: (jf.Map(states()), LISTS),
    'a metric': lambda: (
        jf.Map(tree() >> jf.AllOf(jf.Metric('m'), jf.GetItem('h')) >> jf.GetItem(1)),
        LISTS,
    ),
    'a state of Fold': lambda: (numbers >> jf.Fold(step, ZEROS), [[1, 2, 3], []]),
    'a state of RNN': lambda: (
        numbers >> jf.RNN(lambda x, s: (x * s['h'], step(s, x)), ZEROS),
        [[1, 2, 3], []],
    ),
    'items reduced': lambda: (
        jf.Map(number >> jf.Function(leaf))
        >> jf.Reduce(lambda a, b: {'h': a['h'] * b['h'], 'c': a['c'] - b['h']}, ZEROS),
        [[1, 2, 3, 4, 5], []],
    ),
    'optional': lambda: (jf.Optional(tree()), [None, 2]),
    'whole tiles': lambda: (
        jf.Vector(2) >> jf.Function(lambda x: {'a': x * 2, 'b': (x,)}, batched=True),
        [[1, 2], [3, 4]],
    ),
    'shared': lambda: (jf.Map(jf.Share(tree())), LISTS),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', BLOCKS)
def test_values_and_gradients_are_those_of_eval(name: str) -> None:
    block, examples = BLOCKS[name]()
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    agree(model, params, examples)
    values = model.predict(params, examples, batch_size=2)
    whole = jax.eval_shape(model.apply, params, model.schedule(examples))
    assert jax.tree.structure(values) == jax.tree.structure(whole)
    if not model.program.metric_results and 'Map' not in repr(block):
        for i, example in enumerate(examples):
            got = jax.tree.map(lambda x, i=i: x[i], values)
            assert jax.tree.structure(got) == jax.tree.structure(
                model.eval(example, params)
            )


def test_results_are_the_dicts_and_dataclasses() -> None:
    check(
        (number >> leaf, [3], [{'h': 3.0, 'c': 6.0}]),
        (number >> leaf >> jf.GetItem('c'), [3], [6.0]),
        (number >> (lambda x: {2: x, 1: -x}) >> jf.GetItem(2), [3], [3.0]),
    )
    model = jf.compile(number >> leaf_state)
    made = model.predict({}, [1, 2])
    assert isinstance(made, State)
    same((made.h, made.c), (np.float32([1, 2]), {'inner': ([2, 4], [1, 2])}))
    assert isinstance(model.predict({}, []), State)
    sequences = jf.compile(jf.Map(number >> leaf)).predict({}, [[1, 2], []])
    same(sequences.to_list(), [[{'h': 1.0, 'c': 2.0}, {'h': 2.0, 'c': 4.0}], []])
    assert repr(sequences) == (
        "Ragged(values={'c': float32[2], 'h': float32[2]}, lengths=int32[2])"
    )


def test_types_of_dicts_and_dataclasses() -> None:
    made = jf.convert_to_type({'h': [2], 'c': ('int32', {'x': 3})})
    assert repr(made) == "{'c': (int32[], {'x': float32[3]}), 'h': float32[2]}"
    assert made.size == 6
    assert made == jf.convert_to_type({'c': ('int32', {'x': 3}), 'h': [2]})
    assert pickle.loads(pickle.dumps(made)) == made
    assert made != jf.convert_to_type({'h': [2], 'd': ('int32', {'x': 3})})
    state = jf.convert_to_type(State([2], 'int32'))
    assert repr(state) == 'State(h=float32[2], c=int32[])'
    assert state != jf.convert_to_type({'h': [2], 'c': 'int32'})
    assert state.unflatten(state.flatten(State(1, 2))) == State(1, 2)
    assert jf.Zeros(State([2], [])).eval(None).h.tolist() == [0, 0]
    assert (number >> leaf).output_type == jf.convert_to_type({'h': [], 'c': []})


def test_saved_models_of_dicts_and_dataclasses(tmp_path: Path) -> None:
    model = jf.compile(jf.Map(tree()))
    params = model.init(jax.random.key(0))
    jf.save(tmp_path / 'm', model, params, model.trace(LISTS).capacities(3))
    loaded = jf.load(tmp_path / 'm')
    same(loaded.predict(LISTS).to_list(), model.predict(params, LISTS).to_list())
    inside = jf.compile(states() >> (lambda s: {'h': s.h}))
    corpus = inside.trace(TREES)
    jf.save(tmp_path / 'm', inside, params, corpus.capacities(4))
    same(jf.load(tmp_path / 'm').predict(TREES), inside.predict(params, TREES))
    corpus.save(tmp_path / 'corpus')
    again = jf.Corpus.load(tmp_path / 'corpus', jf.load(tmp_path / 'm'))
    assert len(again) == len(TREES)
    with refuses(
        'expected `model` with results in tuples and dicts, got State(h=float32[], '
        'c=float32[]): return a dict at its end'
    ):
        ends = jf.compile(number >> (lambda x: State(x, x)))
        jf.save(tmp_path / 'm', ends, {}, ends.trace([1]).capacities(1))


def test_a_tracer_takes_it_along() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Local:
        """What no other process has."""

        h: Any

    model = jf.compile(states() >> (lambda s: Local(s.h)) >> (lambda x: State(x.h, x)))
    traced = pickle.loads(pickle.dumps(model.tracer()))(TREES)
    params = model.init(jax.random.key(0))
    got = model.apply(params, model.schedule(traced))
    want = model.apply(params, model.schedule(TREES))
    same((got.h, got.c.h), (want.h, want.c.h))


def test_what_is_ambiguous_is_refused() -> None:
    shown = "{'c': float32[], 'h': float32[]}"
    made = number >> jf.Function(leaf)
    does_not_compile(
        made >> jf.GetItem(0),
        f"Pipe[2].GetItem(0): expected a key of its input, {shown}, got 0; write 'c' "
        "or 'h'",
    )
    does_not_compile(
        made >> jf.Record((jnp.sin, jnp.cos)),
        'Pipe[2].Record({0: Function(sin), 1: Function(cos)}): expected a key of its '
        f"input, {shown}, got 0; write 'c' or 'h'",
    )
    does_not_compile(
        made >> jf.Map(jnp.sin),
        'Pipe[2].Map(Function(sin)): expected a sequence, a non-empty tuple of one '
        f'type, or an object, got {shown}',
    )
    does_not_compile(
        jf.OneOf(type, {int: made, tuple: jf.Record((number, number))}),
        "OneOf[<class 'tuple'>].Record({0: Scalar('float32'), 1: Scalar('float32')}): "
        f'expected to give {shown}, got (float32[], float32[]); give all cases one '
        'type',
    )


def test_a_name_with_a_line_break() -> None:
    def double(x: Any) -> Any:
        return 2 * x

    double.__name__ = 'a\nb\x1b'
    model = jf.compile(jf.Scalar() >> jf.Function(double))
    assert repr(model.block.blocks[1]) == 'Function(a\\nb\\x1b)'
    assert 'a\\nb' in model.explain(model.schedule([1]))
