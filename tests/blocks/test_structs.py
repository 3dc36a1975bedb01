# SPDX-License-Identifier: Apache-2.0
"""Functions that give dicts and dataclasses: how these are passed on and handed out."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import check, does_not_compile, number, numbers, refuses, same

import jfold as jf

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
    return {
        'h': jnp.tanh(w * left['h'] + right['c']),
        'c': left['c'] * w - right['h'],
    }


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
    """The same of a dataclass."""
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


def test_results_are_what_the_function_gives() -> None:
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


def test_types() -> None:
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


def test_saved_models(tmp_path: Path) -> None:
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
