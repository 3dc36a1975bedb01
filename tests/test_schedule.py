# SPDX-License-Identifier: Apache-2.0
"""A schedule says what its graph says: rows, tiles, consumers, capacities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary, binary_tree, chain, dense_cell, tree_block
from expressions import Expression, expressions
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf
from jfold.columns import trace
from jfold.graph import Graph
from jfold.layout import (
    SUM_ARITY,
    SUM_WIDTH,
    Capacity,
    Spec,
    active_types,
    grow,
    layout,
    tile_widths,
)
from jfold.policies import shortest
from jfold.program import Program
from jfold.schedule import Schedule, build, needs

Array = np.ndarray[Any, Any]

# ---- reading a schedule --------------------------------------------------------------


@dataclass
class Reading:
    """A graph beside its schedule.

    Attributes:
      rows: per type, the row of each value number.
      level: per type, the level of each value number.
    """

    graph: Graph
    schedule: Schedule
    rows: list[Array]
    level: list[Array]

    @property
    def program(self) -> Program:
        """What is scheduled."""
        return self.schedule.spec.program

    @property
    def capacity(self) -> Capacity:
        """What the schedule has room for."""
        return self.schedule.spec.capacity


def read(graph: Graph, schedule: Schedule) -> Reading:
    """Finds the row and the level of each value."""
    program, places = schedule.spec.program, layout(schedule.spec)
    rows = [[np.arange(len(x))] for x in graph.constants]
    level = [[np.zeros(len(x), int)] for x in graph.constants]
    for o, operation in enumerate(program.operations):
        row_of_node = np.empty(len(graph.levels[o]), int)
        order = np.argsort(graph.levels[o], kind='stable')
        row_of_node[order] = np.arange(len(order))
        for t, base in zip(operation.outputs, places.value_base[o], strict=True):
            rows[t].append(base + row_of_node)
            level[t].append(graph.levels[o])
    joined = [list(map(np.concatenate, x)) for x in (rows, level)]
    return Reading(graph, schedule, *joined)


def scheduled(expression: Expression, seed: int = 0) -> Reading:
    """The schedule of three examples."""
    model = jf.compile(expression.block)
    return reading(model, expression.batch(np.random.default_rng(seed), 3))


def reading(model: jf.Model, examples: list[Any]) -> Reading:
    """The schedule that a model makes, beside its graph."""
    graph = shortest(model.program, trace(model.program, examples))
    return read(graph, model.schedule(examples))


# ---- rows and tiles ------------------------------------------------------------------


def check_tiles(r: Reading) -> None:
    """Tiles of a level begin at its first row and cover its rows.

    They may run past the end, by less than the last of them, but not out of the region.
    """
    region = layout(r.schedule.spec).region
    for o, operation in enumerate(r.program.operations):
        widths = np.array(tile_widths(operation))
        counts = np.bincount(r.graph.levels[o], minlength=r.graph.depth + 1)[1:]
        table = r.schedule.tiles(o)
        assert table.shape == (r.graph.depth, 2 + len(widths))
        assert table[:, 0].tolist() == (np.cumsum(counts) - counts).tolist()
        assert table[:, 1].tolist() == np.cumsum(counts).tolist()
        assert (table[:, 2:] >= 0).all()
        overrun = table[:, 2:] @ widths - counts
        assert (overrun >= 0).all()
        for row, extra in zip(table[:, 2:], overrun, strict=True):
            assert extra < min(widths[row > 0], default=1)
        ends = table[:, 0] + table[:, 2:] @ widths
        assert ends.max(initial=0) <= region[o]


def check_inputs(r: Reading) -> None:
    """Each row reads what its node reads, from a lower level; spare rows repeat."""
    region = layout(r.schedule.spec).region
    for o, operation in enumerate(r.program.operations):
        order = np.argsort(r.graph.levels[o], kind='stable')
        levels = r.graph.levels[o][order]
        for a, t in enumerate(operation.inputs):
            found = r.schedule.section(('input', o, a), region[o])
            values = r.graph.inputs[o][a][order]
            assert found[: len(order)].tolist() == r.rows[t][values].tolist()
            assert (r.level[t][values] < levels).all()
            assert len(order) == 0 or set(found[len(order) :]) <= set(
                found[: len(order)]
            )


def check_header(r: Reading) -> None:
    """The counts, and the rows of results and metrics."""
    assert r.schedule.depth == r.graph.depth
    assert r.schedule.counts.tolist() == [len(x) for x in r.graph.levels]
    assert int(r.schedule.counts.sum()) == r.graph.nodes
    for j, t in enumerate(r.program.output_types):
        found = r.schedule.section(('output', j), r.graph.examples)
        assert found.tolist() == r.rows[t][r.graph.outputs[j]].tolist()
    observed = r.schedule.section('observed', len(r.graph.metrics))
    for m, (example, values) in enumerate(r.graph.metrics):
        size = r.capacity.metrics[m]
        assert observed[m] == len(example)
        found = r.schedule.section(('example', m), size)
        assert found[: len(example)].tolist() == sorted(example)
        assert (found[len(example) :] == r.graph.examples).all()
        for j, t in enumerate(r.program.metrics[m][2]):
            found = r.schedule.section(('metric', m, j), size)[: len(example)]
            assert found.tolist() == r.rows[t][values[j]].tolist()


def check_constants(r: Reading) -> None:
    """They stand first, in the order of the graph."""
    for given_, found in zip(r.graph.constants, r.schedule.constants, strict=True):
        np.testing.assert_array_equal(given_, found[: len(given_)])


# ---- consumers -----------------------------------------------------------------------


def uses(r: Reading, t: int) -> Iterator[tuple[int, int]]:
    """Each use of a computed value of a type: its row and the edge row of the use."""
    places = layout(r.schedule.spec)
    for o, operation in enumerate(r.program.operations):
        order = np.argsort(r.graph.levels[o], kind='stable')
        for a, number in enumerate(operation.inputs):
            if number == t:
                used = r.rows[t][r.graph.inputs[o][a][order]]
                yield from _edges(r, t, used, places.edge_base[o][a])
    for j, number in enumerate(r.program.output_types):
        if number == t:
            used = r.rows[t][r.graph.outputs[j]]
            yield from _edges(r, t, used, places.edge_outputs[j])
    for m, (_, values) in enumerate(r.graph.metrics):
        for j, number in enumerate(r.program.metrics[m][2]):
            if number == t:
                used = r.rows[t][values[j]]
                yield from _edges(r, t, used, places.edge_metrics[m][j])


def _edges(r: Reading, t: int, used: Array, base: int) -> Iterator[tuple[int, int]]:
    for i, row in enumerate(used.tolist()):
        if row >= r.capacity.constants[t]:
            yield row, base + i


def sums(r: Reading, t: int) -> dict[int, list[int]]:
    """What each sum of a type adds up, by edge row, zeros left out."""
    places = layout(r.schedule.spec)
    zero = places.edge_rows[t] - 1
    if not r.capacity.sums[t]:
        return {}
    size = r.capacity.sums[t] + SUM_WIDTH
    table = [r.schedule.section(('sum', t, f), size) for f in range(SUM_ARITY)]
    return {
        places.edge_sums[t] + i: [int(x) for x in each if x != zero]
        for i, each in enumerate(zip(*table, strict=True))
    }


def summed_at(r: Reading, t: int) -> dict[int, tuple[int, int]]:
    """The level and the stage at which each sum is taken, by edge row."""
    found: dict[int, tuple[int, int]] = {}
    if not r.capacity.sums[t]:
        return found
    base = layout(r.schedule.spec).edge_sums[t]
    shape = r.capacity.levels, r.capacity.stages, 2
    steps = r.schedule.section(('steps', t), int(np.prod(shape))).reshape(shape)
    for level, stage in np.argwhere(steps[:, :, 1]).tolist():
        first, count = steps[level, stage].tolist()
        # A tile runs past its end into sums that come before it in reverse, or after
        # it at the same level: a row belongs to the last that covers it.
        rows = range(base + first, base + first + count * SUM_WIDTH)
        found |= dict.fromkeys(rows, (level + 1, stage))
    return found


def check_consumers(r: Reading) -> None:
    """A value's consumers, sums taken apart, are exactly its uses, each once."""
    places = layout(r.schedule.spec)
    for t in sorted(active_types(r.program)):
        parts, zero = sums(r, t), places.edge_rows[t] - 1
        expected: dict[int, Counter[int]] = {}
        for row, edge in uses(r, t):
            expected.setdefault(row, Counter())[edge] += 1
        constants = r.capacity.constants[t]
        size = places.value_rows[t] - constants
        fans = range(r.capacity.fans[t])
        table = [r.schedule.section(('consumer', t, f), size) for f in fans]
        for row, edges in enumerate(np.stack(table, axis=1).tolist(), constants):
            found = Counter(_leaves([e for e in edges if e != zero], parts))
            assert found == expected.get(row, Counter())


def _leaves(edges: list[int], parts: dict[int, list[int]]) -> Iterator[int]:
    for edge in edges:
        if edge in parts:
            assert parts[edge], 'a sum of nothing'
            yield from _leaves(parts[edge], parts)
        else:
            yield edge


def check_sums(r: Reading) -> None:
    """A sum is taken at the level of its value, after the sums that it reads."""
    places = layout(r.schedule.spec)
    for t in sorted(active_types(r.program)):
        parts, at = sums(r, t), summed_at(r, t)
        level_of = dict(zip(r.rows[t].tolist(), r.level[t].tolist(), strict=True))
        constants = r.capacity.constants[t]
        for f in range(r.capacity.fans[t]):
            size = places.value_rows[t] - constants
            section = r.schedule.section(('consumer', t, f), size)
            for row, edge in enumerate(section.tolist(), constants):
                waiting = [edge] if edge in parts else []
                while waiting:
                    each = waiting.pop()
                    assert at[each][0] == level_of[row]
                    inner = [e for e in parts[each] if e in parts]
                    assert all(at[e][1] < at[each][1] for e in inner)
                    waiting += inner


def check(r: Reading) -> None:
    """All of it."""
    check_header(r)
    check_constants(r)
    check_tiles(r)
    check_inputs(r)
    check_consumers(r)
    check_sums(r)


# ---- properties ----------------------------------------------------------------------


@settings(max_examples=40)
@given(expressions('whole'), st.integers(0, 99))
def test_schedules_of_expressions(expression: Expression, seed: int) -> None:
    """Whatever the expression."""
    check(scheduled(expression, seed))


@settings(max_examples=40)
@given(expressions('tree'), st.integers(0, 99))
def test_schedules_of_recursions(expression: Expression, seed: int) -> None:
    """With levels, metrics and values used several times."""
    check(scheduled(expression, seed))


@pytest.mark.parametrize('leaves', [(1,), (700,), (3, 1, 90, 64, 65)], ids=str)
def test_schedules_of_trees(leaves: tuple[int, ...]) -> None:
    """Levels wider than the widest tile, and narrower than the narrowest."""
    rng = np.random.default_rng(0)
    check(reading(jf.compile(tree_block()), [binary_tree(rng, n) for n in leaves]))


@pytest.mark.parametrize('uses', [1, 4, 5, 16, 17, 64, 65, 300])
def test_schedules_of_wide_uses(uses: int) -> None:
    """More than `SUM_ARITY` uses of a value are summed in a tree."""
    items = jf.AllOf(*[jf.Identity()] * uses)
    fold = jf.Fold(dense_cell(2), jf.Zeros([2]))
    layer = jf.Function(lambda p, x: p * x, lambda key, x: jnp.ones(2))
    once = jf.Vector(2) >> layer >> items >> fold
    model = jf.compile(jf.Map(once) >> jf.Sum())
    check(reading(model, [[[1, 2]] * n for n in (0, 1, 3, 70)]))


def test_schedules_of_wide_uses_at_many_levels() -> None:
    """Every state of a fold is used by the next, by four more and by the metric."""
    layer = jf.Function(lambda p, x, y: p * x + y, lambda key, *x: jnp.ones(2))
    sixfold = jf.AllOf(*[jf.Identity()] * 6) >> jf.Fold(layer, jf.Zeros([2]))
    observed = jf.AllOf(jf.Identity(), jf.Metric('m')) >> jf.GetItem(0)
    fold = jf.Fold(layer >> observed >> sixfold, jf.Zeros([2]))
    model = jf.compile(jf.Map(jf.Vector(2)) >> fold)
    check(reading(model, [[[1, 2]] * n for n in (0, 1, 3, 40)]))


def test_an_empty_batch_has_a_schedule() -> None:
    """With nothing in it."""
    check(reading(jf.compile(tree_block()), []))


# ---- capacities ----------------------------------------------------------------------


def capacities(types: int = 2, operations: int = 2) -> st.SearchStrategy[Capacity]:
    """What batches may need."""

    def several(number: int, most: int = 5000) -> Any:
        return st.tuples(*[st.integers(0, most)] * number)

    return st.builds(
        Capacity,
        examples=st.just(4),
        levels=st.integers(0, 300),
        constants=several(types),
        rows=several(operations),
        fans=several(types, SUM_ARITY),
        sums=several(types),
        stages=st.integers(0, 5),
        metrics=several(1),
    )


def fits(need: Capacity, capacity: Capacity) -> bool:
    """Whether every dimension does."""
    pairs = zip(need.dimensions(), capacity.dimensions(), strict=True)
    return all(a <= b for (_, a), (_, b) in pairs)


@given(st.lists(capacities(), min_size=1, max_size=8))
def test_capacities_only_grow(stream: list[Capacity]) -> None:
    """A capacity holds all that came before, and stays if the next one fits."""
    capacity: Capacity | None = None
    for need in stream:
        before, capacity = capacity, grow(capacity, need)
        assert fits(need, capacity)
        if before is not None:
            assert fits(before, capacity)
            assert not fits(need, before) or capacity is before
        assert grow(capacity, need) is capacity


@given(capacities())
def test_capacities_have_room_to_spare(need: Capacity) -> None:
    """A batch larger by a tenth fits where the first did, if anything was there."""
    larger = replace(
        need,
        constants=tuple(n + n // 10 for n in need.constants),
        rows=tuple(n + n // 10 for n in need.rows),
        metrics=tuple(n + n // 10 for n in need.metrics),
    )
    capacity = grow(None, need)
    assert grow(capacity, larger) is capacity


@given(st.integers(1, 10**6), st.integers(1, 100))
def test_what_is_too_small_grows_by_half(first: int, more: int) -> None:
    """So that a stream which grows slowly meets few shapes."""
    need = Capacity(4, 1, (first,), (first,), (1,), (0,), 0, (first,))
    before = grow(None, need)
    after = grow(before, replace(need, rows=(before.rows[0] + more,)))
    assert after.rows[0] >= 1.5 * before.rows[0] - 1


@settings(max_examples=40)
@given(expressions('tree'))
def test_what_a_graph_needs_is_what_it_takes(expression: Expression) -> None:
    """A schedule fits into the least capacity, without room to spare."""
    model = jf.compile(expression.block)
    examples = expression.batch(np.random.default_rng(0), 3)
    graph = trace(model.program, examples)
    need = needs(model.program, graph)
    tight = replace(need, levels=max(need.levels, 1), stages=max(need.stages, 1))
    check(read(graph, build(graph, Spec(model.program, tight))))


# ---- size ----------------------------------------------------------------------------


def adder() -> jf.Model:
    """Trees whose nodes add and so can be checked at any size."""

    def init(key: Any, *_: Any) -> Any:
        return jnp.ones(())

    add = jf.Function(lambda weight, x, y: weight * x + y, init, name='add')
    return jf.compile(binary(jf.Scalar(), add))


def total(tree: Any) -> int:
    """The sum of all leaves, without recursion."""
    waiting, result = [tree], 0
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple):
            waiting += each
        else:
            result += each
    return result


def evaluated(model: jf.Model, tree: Any) -> tuple[float, float]:
    """The value and the gradient for one tree."""
    schedule = model.schedule([tree])
    grad = jax.value_and_grad(lambda p: model.apply(p, schedule)[0])
    value, grads = grad(model.init(jax.random.key(0)))
    return float(value), float(grads['add'])


def test_a_chain_of_a_thousand() -> None:
    """Value and gradient are right."""
    length = 1000
    value, grad = evaluated(adder(), chain(length))
    assert value == total(chain(length))
    leaves = np.array([0, *(i % 16 for i in range(length))])
    assert grad == np.cumsum(leaves)[:-1].sum()


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand() -> None:
    """No recursion follows the data; levels cost no more than their tiles."""
    length = 100_000
    value, grad = evaluated(adder(), chain(length))
    assert value == total(chain(length))
    leaves = np.array([0, *(i % 16 for i in range(length))], float)
    np.testing.assert_allclose(grad, np.cumsum(leaves)[:-1].sum(), rtol=1e-3)


@pytest.mark.slow
def test_a_million_nodes_in_one_example() -> None:
    """Value is right and everything fits."""
    tree = binary_tree(np.random.default_rng(0), 500_001, words=4)
    model = adder()
    schedule = model.schedule([tree])
    assert schedule.counts.tolist() == [500_000]
    value = model.apply(model.init(jax.random.key(0)), schedule)
    assert value.tolist() == [total(tree)]
