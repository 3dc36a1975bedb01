# SPDX-License-Identifier: Apache-2.0
"""The graph of an example does not depend on what it is traced together with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from binary_trees import binary_tree, chain, tree_block
from expressions import Expression, expressions
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_cases import CASES, add, number, tanh, trees, tuples

import jfold as jf
from jfold.components import component_of
from jfold.graph import Graph, Table, concatenate, numbering, shared_counts
from jfold.host import columns
from jfold.host import trace as tracing
from jfold.host.columns import trace
from jfold.host.trace import Trace, example_of
from jfold.planning.demands import demands
from jfold.program import Program

Array = np.ndarray[Any, Any]

# ---- comparing graphs ----------------------------------------------------------------


def check_graph(program: Program, graph: Graph) -> None:
    """Every value number is in range; every operation has all its inputs."""
    first = numbering(program, graph).first
    limits = [(x[1:] - x[:-1]).astype(np.uint32) for x in first]

    def check(t: int, values: Array, rows: Array, what: Any) -> None:
        limit = limits[t].repeat(rows)
        assert values.shape == limit.shape, what
        # As unsigned numbers, negative ones are above all limits.
        assert np.logical_and.reduce(values.astype(np.uint32) < limit), what

    for operation, table in zip(program.operations, graph.operations, strict=True):
        levels, *inputs = table.columns
        assert len(levels) == len(table), operation
        for t, values in zip(operation.inputs, inputs, strict=True):
            check(t, values, table.counts, operation)
    for result, table in zip(program.results, graph.results, strict=True):
        assert not result.per_example or (table.counts == 1).all()
        for t, values in zip(result.tensors, table.columns, strict=True):
            check(t, values, table.counts, result)


def named(graph: Graph) -> Iterator[tuple[str, Array]]:
    """All arrays of a graph."""
    for kind in ('constants', 'operations', 'results'):
        for n, table in enumerate(getattr(graph, kind)):
            yield f'{kind} {n}: first', table.first
            for k, column in enumerate(table.columns):
                yield f'{kind} {n}: column {k}', column


def same_bits(name: str, left: Any, right: Any) -> None:
    """Two arrays have one type, one shape and the same bits."""
    left, right = np.asarray(left), np.asarray(right)
    assert (left.dtype, left.shape) == (right.dtype, right.shape), name
    assert left.tobytes() == right.tobytes(), f'{name}: {left} is not {right}'


def same(left: Graph, right: Graph) -> None:
    """Two graphs are equal to the bit."""
    assert left.examples == right.examples
    pairs = zip(named(left), named(right), strict=True)
    for (name, a), (other, b) in pairs:
        assert name == other
        same_bits(name, a, b)


def chosen(examples: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    """Some of the examples."""
    return [examples[i] for i in indices]


def selections(count: int) -> Iterator[tuple[int, ...]]:
    """All subsets of the first numbers in all orders, and some numbers repeated."""
    for size in range(count + 1):
        yield from itertools.permutations(range(count), size)
    if count:
        yield (0,) * 3
        yield (*range(count), *range(count)[::-1])


def check_examples(program: Program, examples: Sequence[Any]) -> None:
    """A batch is its examples one after another, and any part of it its examples."""
    whole = trace(program, examples)
    same(whole, concatenate([whole]))
    if examples:
        same(whole, concatenate([trace(program, [each]) for each in examples]))
    for cut in range(len(examples) + 1):
        parts = examples[:cut], [], examples[cut:]
        same(whole, concatenate([trace(program, part) for part in parts]))


def check_picks(
    program: Program, examples: Sequence[Any], picks: Iterator[tuple[int, ...]]
) -> None:
    """A graph's examples in any order are the graph of the examples in that order."""
    whole = trace(program, examples)
    for indices in picks:
        picked = whole.pick(np.array(indices, np.int64))
        check_graph(program, picked)
        same(picked, trace(program, chosen(examples, indices)))


def check_schedules(
    model: jf.Model, examples: Sequence[Any], picks: Iterator[tuple[int, ...]]
) -> None:
    """The schedule of picked examples is that of the examples, to the bit."""
    whole = trace(model.program, examples)
    demanded = demands(model.program, whole)
    for indices in picks:
        expected = model.schedule(chosen(examples, indices))
        picked = np.array(indices, np.int64)
        made = model._build(whole.pick(picked), demanded.pick(picked))
        assert made.spec == expected.spec
        same_bits('indices', made.indices, expected.indices)
        for t, pair in enumerate(zip(made.constants, expected.constants, strict=True)):
            same_bits(f'constants {t}', *pair)


# ---- what a graph says ---------------------------------------------------------------


def owners(table: Table) -> list[int]:
    """The example of each row of a table."""
    return [e for e, count in enumerate(table.counts.tolist()) for _ in range(count)]


def values_made(program: Program, graph: Graph) -> list[list[list[tuple[int, int]]]]:
    """Per type and example, of each value the component that makes it and its level."""
    found = [
        [[(-1, 0)] * (shared + count) for count in table.counts.tolist()]
        for shared, table in zip(shared_counts(program), graph.constants, strict=True)
    ]
    for o, table in enumerate(graph.operations):
        for t in program.operations[o].outputs:
            rows = zip(owners(table), table.columns[0].tolist(), strict=True)
            for example, level in rows:
                found[t][example].append((component_of(program)[o], level))
    return found


def check_levels(program: Program, graph: Graph) -> None:
    """A node's level is one more than the highest of what its component gives it."""
    found, component = values_made(program, graph), component_of(program)
    for o, table in enumerate(graph.operations):
        rows = zip(owners(table), *(x.tolist() for x in table.columns), strict=True)
        for example, level, *values in rows:
            taken = zip(program.operations[o].inputs, values, strict=True)
            below = [found[t][example][value] for t, value in taken]
            assert all(c <= component[o] for c, _ in below)
            own = [height for c, height in below if c == component[o]]
            assert level == 1 + max(own, default=0)


class Watched(Trace):
    """Keeps the places of all rows that are made, by what they are rows of."""

    def __init__(self, program: Program, examples: int, *more: Any) -> None:
        super().__init__(program, examples, *more)
        self.by_moment = False  # so that places tell more than their examples
        self.places: dict[tuple[str, int], list[Array]] = {}

    def keep(self, kind: str, number: int, places: Array) -> None:
        """Notes places."""
        self.places.setdefault((kind, number), []).append(places.copy())

    def constants(self, t: int, places: Array, values: Array) -> Array:
        self.keep('constants', t, places)
        return super().constants(t, places, values)

    def apply(self, o: int, places: Array, inputs: list[Array]) -> list[Array]:
        self.keep('operation', o, places)
        return super().apply(o, places, inputs)

    def observe(self, result: int, places: Array, values: list[Array]) -> None:
        self.keep('result', result, places)
        super().observe(result, places, values)


def traced_places(
    program: Program, examples: Sequence[Any]
) -> dict[tuple[str, int], Array]:
    """The places of the rows of each table."""
    made: list[Watched] = []

    def watched(*arguments: Any) -> Watched:
        made.append(Watched(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, 'Trace', watched)
        patch.setattr(columns, 'is_breadth_first', lambda program: False)
        trace(program, examples)
    (state,) = made
    return {key: np.concatenate(found) for key, found in state.places.items()}


def check_places(program: Program, examples: Sequence[Any]) -> None:
    """No two rows of one table share a place; a place tells its example."""
    graph = trace(program, examples)
    found = traced_places(program, examples)
    tables = {'constants': graph.constants, 'operation': graph.operations}
    rows = sum(map(len, itertools.chain(*tables.values(), graph.results[1:])))
    assert sum(map(len, found.values())) == rows
    tables['result'] = graph.results
    for (kind, n), places in found.items():
        assert len(np.unique(places)) == len(places), (kind, n)
        counts = np.bincount(example_of(places), minlength=len(examples))
        assert counts.tolist() == tables[kind][n].counts.tolist()


def check(model: jf.Model, examples: Sequence[Any]) -> None:
    """Everything that is cheap."""
    graph = trace(model.program, examples)
    check_graph(model.program, graph)
    check_levels(model.program, graph)
    check_places(model.program, examples)
    check_examples(model.program, examples)
    with pytest.MonkeyPatch.context() as patch:  # rows in the order of their places
        for module in (columns, tracing):
            patch.setattr(module, 'is_breadth_first', lambda program: False)
        check_examples(model.program, examples)


# ---- any expression ------------------------------------------------------------------

indices = st.lists(st.integers(0, 4), max_size=7).map(tuple)


def check_any(expression: Expression, seed: int, picks: list[Any]) -> None:
    """All of it for five examples, of which one occurs twice."""
    model = jf.compile(expression.block, max_programs=100)
    examples = expression.batch(np.random.default_rng(seed), 4)
    examples.insert(2, examples[0])
    check(model, examples)
    check_picks(model.program, examples, iter(picks))
    check_schedules(model, examples, iter(picks))


@settings(max_examples=60)
@given(
    st.sampled_from(['whole', 'tree', 'sequence']).flatmap(expressions),
    st.integers(0, 99),
    st.lists(indices, min_size=1, max_size=4),
)
def test_examples_of_expressions(
    expression: Expression, seed: int, picks: list[Any]
) -> None:
    """Whatever the expression, the batch and the part of it."""
    check_any(expression, seed, picks)


@settings(max_examples=15)
@given(
    expressions('tree', 'float64'), st.integers(0, 99), st.lists(indices, max_size=2)
)
def test_examples_of_double_precision(
    expression: Expression, seed: int, picks: list[Any]
) -> None:
    """Constants keep all their bits."""
    with jax.enable_x64(True):
        check_any(expression, seed, picks)


# ---- expressions of all kinds --------------------------------------------------------


@pytest.mark.parametrize('name', CASES)
def test_examples_of_cases(name: str) -> None:
    """All subsets in all orders."""
    block, examples = CASES[name]()
    model = jf.compile(block, max_programs=100)
    check(model, examples)
    check_picks(model.program, examples, selections(len(examples)))


@pytest.mark.parametrize('name', CASES)
def test_schedules_of_cases(name: str) -> None:
    """From picked examples as from examples."""
    block, examples = CASES[name]()
    model = jf.compile(block, max_programs=100)
    last = len(examples) - 1
    picks = [(), (0,), (last, 0), (1,) * 7, tuple(range(last + 1))]
    check_schedules(model, examples, iter(picks))


def test_examples_of_large_batches() -> None:
    """Hundreds of trees in another order, half of them twice, half of them never."""
    rng = np.random.default_rng(0)
    examples = [binary_tree(rng, int(n)) for n in rng.integers(1, 30, 300)]
    model = jf.compile(tree_block(), max_programs=100)
    check_places(model.program, examples)
    picks = [tuple(rng.permutation(300).tolist()), tuple(rng.integers(0, 300, 500))]
    check_picks(model.program, examples, iter(picks))
    check_schedules(model, examples, iter(picks))


def test_places_in_a_large_example() -> None:
    """Of tens of thousands of nodes none shares one: deep, wide and balanced."""
    deep, wide = chain(3000), (1,) * 90_000
    balanced: Any = 1
    for _ in range(15):
        balanced = (balanced, balanced)
    pairs = jf.compile(tree_block(2))
    items = jf.compile(tuples(number, lambda t: jf.Map(t() >> tanh) >> jf.Sum()))
    check_places(pairs.program, [deep, balanced])
    check_places(items.program, [wide, ((1,) * 300,) * 300, balanced])


def test_more_examples_than_places_can_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are traced in parts, which nobody sees."""
    block, examples = trees()
    model = jf.compile(block)
    expected = trace(model.program, examples * 2)
    monkeypatch.setattr(columns, 'MAX_EXAMPLES', 3)
    same(expected, trace(model.program, examples * 2))
    same(trace(model.program, []), expected.pick(np.zeros(0, np.int64)))
    with pytest.raises(jf.InputError) as caught:
        trace(model.program, [*examples, *examples, (1, ('a', 2))])
    assert str(caught.value).startswith('example 8, at [1][0]: expected int32[]')
    assert caught.value.example == 8


# ---- damage --------------------------------------------------------------------------


def damaged_table(table: Table, column: int, values: Array) -> Table:
    """A table with one column replaced."""
    parts = list(table.columns)
    parts[column] = values
    return Table(table.first, tuple(parts))


def first_set(values: Array, value: int) -> Array:
    """A copy with another value in front."""
    made = values.copy()
    made[0] = value
    return made


DAMAGE: dict[str, Callable[[Array], Array]] = {
    'a negative number': lambda values: first_set(values, -1),
    'a number beyond all': lambda values: first_set(values, 1 << 20),
    # The first example is the smaller one, so some value has this number.
    'a number of another example': lambda values: first_set(values, 9),
    'a row too few': lambda values: values[:-1],
    'a row too many': lambda values: np.append(values, values[:1]),
}


def observed_trees() -> tuple[Program, Graph]:
    """Two trees with a metric, of which the first has fewer values."""
    seen = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    node = lambda tree: jf.Record((tree(), tree())) >> add >> seen  # noqa: E731
    model = jf.compile(tuples(number, node))
    return model.program, trace(model.program, [(1, 2), (((1, 2), 3), (4, (5, 6)))])


@pytest.mark.parametrize('where', ['operation', 'result', 'metric'])
@pytest.mark.parametrize('name', DAMAGE)
def test_damaged_values_are_found(where: str, name: str) -> None:
    """Whatever refers to values."""
    program, graph = observed_trees()
    check_graph(program, graph)
    damage = DAMAGE[name]
    if where == 'operation':
        table = graph.operations[0]
        table = damaged_table(table, 2, damage(table.columns[2]))
        graph = replace(graph, operations=(table, *graph.operations[1:]))
    else:
        own, metric = graph.results
        if where == 'metric':
            metric = damaged_table(metric, 0, damage(metric.columns[0]))
        else:
            own = damaged_table(own, 0, damage(own.columns[0]))
        graph = replace(graph, results=(own, metric))
    with pytest.raises(AssertionError):
        check_graph(program, graph)


def test_missing_columns_are_found() -> None:
    """Levels, inputs, results, and tables as a whole."""
    program, graph = observed_trees()
    table = graph.operations[0]
    short = damaged_table(table, 0, table.columns[0][1:])
    with pytest.raises(AssertionError):
        check_graph(program, replace(graph, operations=(short,)))
    bare = Table(table.first, table.columns[:-1])
    own, metric = graph.results
    for lacking in (
        replace(graph, operations=(bare,)),
        replace(graph, operations=()),
        replace(graph, results=()),
        replace(graph, results=(own,)),
        replace(graph, results=(Table(own.first, ()), metric)),
        replace(graph, results=(own, Table(metric.first, ()))),
    ):
        with pytest.raises((ValueError, IndexError)):
            check_graph(program, lacking)
