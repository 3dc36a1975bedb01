# SPDX-License-Identifier: Apache-2.0
"""Lazy functions: what is recorded, and what expressions are made of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NoReturn

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from binary_trees import binary
from lazy_models import embed, encode, pair, summed

import jfold as jf
from jfold.blocks.lazy import Value
from jfold.language import lazy_recording, lazy_registry
from jfold.tracing.record import trace

TREES = [(1, (2, 3)), ((1, 2), 3), 4, ((1, 2), (3, 4))]
ITEMS: dict[str, Any] = {'a': 1, 'b': [2, 3]}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    value: Any
    count: Any


def lists_of(graph: Any) -> list[Any]:
    """The columns of the tables of operations and results."""
    tables = (*graph.operations, *graph.results)
    return [x.tolist() for table in tables for x in (table.first, *table.columns)]


@pytest.mark.parametrize('reproducible', [False, True])
def test_a_model_that_is_written_both_ways(reproducible: bool) -> None:
    """Graphs are equal, and values and gradients to the bit."""
    head = jf.Function(nn.Dense(2), name='head')
    options: Any = {'reproducible': reproducible}
    one = jf.compile(encode >> head, like=TREES, **options)
    block = binary(jf.Scalar('int32') >> embed, pair)
    other = jf.compile(block >> head, **options)
    assert str(one.program.operations) == str(other.program.operations)
    graphs = [trace(model.program, TREES) for model in (one, other)]
    assert lists_of(graphs[0]) == lists_of(graphs[1])
    params = one.init(jax.random.key(0))
    chex.assert_trees_all_equal(params, other.init(jax.random.key(0)))

    def loss(params: Any, model: jf.Model) -> Any:
        return jnp.sum(jnp.sin(model.apply(params, model.schedule(TREES))))

    chex.assert_trees_all_equal(
        *(jax.value_and_grad(loss)(params, model) for model in (one, other))
    )


def test_values_know_their_shape_and_dtype() -> None:
    seen = []

    @jf.lazy
    def look(x: int) -> Any:
        value = embed(x)
        seen.append((value.shape, value.dtype, repr(value)))
        return value

    jf.compile(look, like=[1])
    assert seen[0] == ((3,), np.dtype('float32'), '<value of embed: float32[3]>')


def test_results_that_are_dataclasses() -> None:
    @jf.lazy
    def results(x: int) -> Any:
        return State(embed(x), jf.int32(x))

    model = jf.compile(results, like=[1])
    params = model.init(jax.random.key(0))
    batch = model.apply(params, model.schedule([1, 2]))
    assert isinstance(batch, State)
    assert batch.count.tolist() == [1, 2]


def test_calls_with_tuples_and_dicts() -> None:
    state = jf.Function(lambda s, x: {'h': s['h'] + x, 'n': s['n'] + 1}, name='state')

    @jf.lazy
    def folded(xs: list[int]) -> Any:
        s = {'h': jf.tensor(np.zeros(3, 'float32')), 'n': jf.int32(0)}
        for x in xs:
            s = state(s, embed(x))
        return s['h'], s['n']

    model = jf.compile(folded, like=[[], [1], [1, 2], [1, 2, 3]])
    params = model.init(jax.random.key(0))
    _, count = model.apply(params, model.schedule([[1, 2, 3, 1], []]))
    assert count.tolist() == [4, 0]
    agree(model, params, [[1, 2, 3, 1], []])


def test_blocks_on_data_and_on_lists_of_values() -> None:
    words = jf.Map(jf.Scalar('int32') >> embed) >> jf.Sum()

    @jf.lazy
    def both(x: Any) -> Any:
        return words(x['b']), summed([embed(i) for i in x['b']] + [embed(x['a'])])

    model = jf.compile(both, like=[ITEMS])
    params = model.init(jax.random.key(0))
    one, other = model.eval(ITEMS, params)
    np.testing.assert_allclose(other, one + params['embed'][1], rtol=1e-6)
    agree(model, params, [ITEMS, {'a': 4, 'b': [1]}])


def test_lazy_functions_inside_of_blocks() -> None:
    each = jf.Map(encode) >> jf.Sum()
    block = jf.Record({'trees': each, 'scale': jf.Scalar()}) >> (
        lambda trees, scale: trees * scale
    )
    examples = [{'trees': TREES, 'scale': 2.0}, {'trees': [1], 'scale': 3.0}]
    model = jf.compile(block, like=examples)
    agree(model, model.init(jax.random.key(0)), examples)


def test_metrics_with_labels() -> None:
    @jf.lazy
    def observed(x: Any) -> Any:
        value = embed(x) if isinstance(x, int) else pair(*map(observed, x))
        jf.observe('norm', value @ value, str(x))
        return value

    model = jf.compile(observed, like=TREES)
    params = model.init(jax.random.key(0))
    schedule = model.schedule([(1, 2)])
    assert schedule.labels['norm'].tolist() == ['1', '2', '(1, 2)']
    _, metrics = model.apply(params, schedule)
    assert metrics['norm'].mask.sum() == 3
    agree(model, params, TREES)


def test_shared_objects_run_once() -> None:
    runs = []

    @jf.lazy(share=True)
    def graph(node: Any) -> Any:
        runs.append(node)
        value = embed(node['v'])
        return summed([value, *map(graph, node['to'])])

    a: Any = {'v': 1, 'to': []}
    b: Any = {'v': 2, 'to': [a, a]}
    c: Any = {'v': 3, 'to': [b, a, b]}
    model = jf.compile(graph, like=[c])
    runs.clear()
    assert trace(model.program, [c]).nodes == 3 + 2
    assert len(runs) == 3


def test_a_value_that_is_used_twice_has_one_row() -> None:
    @jf.lazy
    def twice(x: int) -> Any:
        value = embed(x)
        return pair(value, value)

    model = jf.compile(twice, like=[1])
    operations = [str(x.layer) for x in model.program.operations]
    rows = map(len, trace(model.program, [1, 2]).operations)
    assert dict(zip(operations, rows, strict=True)) == {'embed': 2, 'pair': 2}


def test_an_operator_that_is_read_twice_has_one_row() -> None:
    @jf.lazy
    def steps(x: int) -> Any:
        state, product = embed(0), embed(x) * embed(x + 1)
        for _ in range(3):
            state = pair(state, product)
        return state

    model = jf.compile(steps, like=[1])
    operations = [str(x.layer) for x in model.program.operations]
    rows = map(len, trace(model.program, [1, 2]).operations)
    counts = {'embed': 6, 'multiply': 2, 'pair': 6}
    assert dict(zip(operations, rows, strict=True)) == counts


def test_operators_are_fused_with_what_alone_reads_them() -> None:
    """As in a composition of blocks; another reader in another branch prevents it."""
    tanh = jf.Function(jnp.tanh, name='tanh')

    @jf.lazy
    def one(tree: Any) -> Any:
        if isinstance(tree, int):
            return embed(tree)
        left, right = one(tree[0]), one(tree[1])
        return tanh(left[::-1] * right - right)

    @jf.lazy
    def two(tree: Any) -> Any:
        if isinstance(tree, int):
            return embed(tree)
        product = two(tree[0])[::-1] * two(tree[1])
        return tanh(product) if tree == (1, 2) else tanh(product - product)

    for fn, names in (
        (one, ['embed', 'item >> multiply >> subtract >> tanh']),
        (two, ['embed', 'item >> multiply', 'subtract', 'tanh']),
    ):
        model = jf.compile(fn, like=TREES)
        assert [x.layer.name for x in model.program.operations] == names
        agree(model, model.init(jax.random.key(0)), TREES)


def test_generator_functions_go_as_deep_as_data() -> None:
    @jf.lazy
    def deep(t: Any) -> Any:
        if isinstance(t, int):
            return embed(t)
        left = yield deep(t[0])
        right = yield deep(t[1])
        return pair(left, right)

    chain: Any = 1
    for _ in range(3000):
        chain = chain, 2
    model = jf.compile(deep, like=TREES)
    assert model.schedule([chain]).depth == 3001
    agree(model, model.init(jax.random.key(0)), TREES)


def test_methods_and_closures() -> None:
    class Encoder:
        def __init__(self, join: Any) -> None:
            self.join = join

        @jf.lazy
        def run(self, t: Any) -> Any:
            if isinstance(t, int):
                return embed(t)
            return self.join(self.run(t[0]), self.run(t[1]))

    encoder = Encoder(pair)
    model = jf.compile(encoder.run, like=TREES)
    params = model.init(jax.random.key(0))
    other = jf.compile(encode, like=TREES)
    np.testing.assert_array_equal(
        model.apply(params, model.schedule(TREES)),
        other.apply(params, other.schedule(TREES)),
    )


def test_objects_whose_call_is_lazy() -> None:
    class Encoder:
        def __init__(self) -> None:
            self.embed = jf.Function(nn.Embed(10, 4))

        @jf.lazy
        def __call__(self, t: Any) -> Any:
            return self.embed(t) if isinstance(t, int) else self(t[0]) + self(t[1])

    encoder = Encoder()
    model = jf.compile(jf.AllOf(encoder, encoder), like=TREES)
    params = model.init(jax.random.key(0))
    assert list(params) == ['Embed']
    one, other = model.apply(params, model.schedule(TREES))
    np.testing.assert_array_equal(one, other)
    lists = jf.compile(jf.Map(encoder), like=[TREES])
    values = lists.apply(params, lists.schedule([TREES])).to_list()
    np.testing.assert_array_equal(values, [one])


# ---- what recording costs ------------------------------------------------------------


def test_types_of_arguments_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    total = jf.Sum()
    swap, add = jf.Function(lambda a, b: (b, a)), jf.Function(jnp.add)

    @jf.lazy
    def swapped(numbers: Any) -> Any:
        values = [jf.float32(x) for x in numbers]
        first, _ = swap((total(values), values[0]))
        return add(first, 2)

    model = jf.compile(swapped, like=[[1, 2]])

    def refused(*_: object) -> NoReturn:
        raise AssertionError

    for name in ('TupleType', 'SequenceType'):
        monkeypatch.setattr(lazy_registry, name, refused)
    monkeypatch.setattr(lazy_recording, 'TensorType', refused)
    assert model.apply({}, model.schedule([[3, 4], [5]])).tolist() == [5, 7]


def test_values_are_not_asked_for_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by recordings: each question makes an error with a message."""

    @jf.lazy(share=True)
    def doubled(x: float) -> Any:
        return jf.float32(x) * 2

    model = jf.compile(doubled, like=[1.0])

    def asked(_: object, name: str) -> NoReturn:
        raise AssertionError(name)

    monkeypatch.setattr(Value, '__getattr__', asked, raising=False)
    assert model.apply({}, model.schedule([2.0])).tolist() == [4]


# ---- growth, files and processes -----------------------------------------------------


def test_programs_grow_with_new_kinds_of_calls(caplog: Any) -> None:
    model = jf.compile(encode, like=[4])
    before = model.schedule([4])
    with caplog.at_level(logging.INFO, logger='jfold'):
        after = model.schedule(TREES)
        model.schedule(TREES)
    grown = [x for x in caplog.messages if 'lowered again, ' in x]
    new = 'for calls that `like=` lacks: pair'
    assert grown == [f'lazy(encode): lowered again, {new}']
    params = model.init(jax.random.key(0))
    assert list(params) == ['embed', 'pair']
    assert model.apply(params, after).shape == (4, 3)
    assert model.apply(params, before).shape == (1, 3)  # of the smaller program
    agree(model, params, TREES)


def test_an_error_leaves_the_program_as_it_was() -> None:
    """What a failing example has shown is no part of it."""
    model = jf.compile(encode, like=[4])
    program = model.program
    for _ in range(2):
        with pytest.raises(Exception, match='expected'):
            model.schedule([(1, 'x')])
        assert model.program is program
        model.schedule([4])


def test_the_expression_of_a_model_is_a_block() -> None:
    """For modules, which compile blocks themselves."""
    from flax import nnx

    block = jf.compile(encode, like=TREES).block
    fold = jf.nnx.Fold(block, rngs=nnx.Rngs(0))
    assert fold(fold.model.schedule(TREES)).shape == (4, 3)
