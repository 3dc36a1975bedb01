# SPDX-License-Identifier: Apache-2.0
"""What examples demand one by one tells what any batch of them needs."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from binary_trees import tree_block
from expressions import Expression, any_expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import in_loops

import jfold as jf
from jfold.graph import Graph, Table, shared_counts
from jfold.program.operations import Program
from jfold.scheduling.demands import capacity, demands, join_demands, node_counts
from jfold.scheduling.index_array import SUM_ARITY
from jfold.scheduling.layout import active_types
from jfold.scheduling.selections import Demands, select
from jfold.scheduling.spec import Capacity
from jfold.tracing.record import trace

Array = np.ndarray[Any, Any]

# ---- slow references -----------------------------------------------------------------

Value = tuple[int, int, int]  # example, type, number in the example


def rows(table: Table, columns: Sequence[Array]) -> Iterator[tuple[int, list[int]]]:
    """The example of each row of a table, and its values in some columns."""
    for example, (begin, end) in enumerate(itertools.pairwise(table.first.tolist())):
        for row in range(begin, end):
            yield example, [int(column[row]) for column in columns]


def makers(program: Program, graph: Graph) -> dict[Value, int]:
    """The operation that makes each value, -1 for constants."""
    found: dict[Value, int] = {}
    counts: Counter[tuple[int, int]] = Counter()

    def add(example: int, t: int, maker: int) -> None:
        found[example, t, counts[example, t]] = maker
        counts[example, t] += 1

    for t, (shared, table) in enumerate(
        zip(shared_counts(program), graph.constants, strict=True)
    ):
        for example, own in enumerate(table.counts.tolist()):
            for _ in range(shared + own):
                add(example, t, -1)
    for o, operation in enumerate(program.operations):
        for t in operation.outputs:
            for example, _ in rows(graph.operations[o], ()):
                add(example, t, o)
    return found


def uses(program: Program, graph: Graph) -> Iterator[Value]:
    for o, operation in enumerate(program.operations):
        table = graph.operations[o]
        for example, values in rows(table, table.columns[1:]):
            for t, value in zip(operation.inputs, values, strict=True):
                yield example, t, value
    for result, table in zip(program.results, graph.results, strict=True):
        for example, values in rows(table, table.columns):
            for t, value in zip(result.tensors, values, strict=True):
                yield example, t, value


def sums_of(count: int, most: int) -> tuple[int, int]:
    """Rows and rounds of the sums of so many uses of a value, so many being left."""
    taken = rounds = 0
    while count > most:
        count = -(-count // SUM_ARITY)
        taken, rounds = taken + count, rounds + 1
    return taken, rounds


def expected_capacity(program: Program, graph: Graph, size: int) -> Capacity:
    """The least capacity for a graph at the levels it was traced at."""
    types, active = range(len(program.types)), active_types(program)
    maker = makers(program, graph)
    used = Counter(
        value
        for value in uses(program, graph)
        if value[1] in active and maker[value] >= 0
    )
    fans, sums, stages = [int(t in active) for t in types], [0 for _ in types], 0
    for value, count in used.items():
        t = value[1]
        # What a sum reads points to the one edge row of what it makes.
        most = 1 if program.operations[maker[value]].is_sum else SUM_ARITY
        taken, rounds = sums_of(count, most)
        fans[t] = max(fans[t], min(count, most))
        sums[t] += taken
        stages = max(stages, rounds)
    own = map(len, graph.constants)
    pairs = zip(shared_counts(program), own, strict=True)
    return Capacity(
        examples=size,
        levels=graph.depth,
        constants=tuple(shared + count for shared, count in pairs),
        rows=tuple(map(len, graph.operations)),
        fans=tuple(fans),
        sums=tuple(sums),
        stages=stages,
        metrics=tuple(map(len, graph.results[1:])),
    )


# ---- comparing demands ---------------------------------------------------------------


def same(left: Demands, right: Demands) -> None:
    """They say the same of each example and of all."""
    for name in ('added', 'highest'):
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, err_msg=name)


def check(program: Program, examples: Sequence[Any]) -> Demands:
    """A batch's demands are those of its examples, and of the slow references."""
    graph = trace(program, examples)
    found = demands(select(program, graph))
    size = len(examples) + 2
    need = expected_capacity(program, graph, size)
    assert capacity(program, found, size) == need
    singles = [trace(program, [each]) for each in examples]
    assert node_counts(program, found).tolist() == [each.nodes for each in singles]
    assert found.highest[:, 0].tolist() == [each.depth for each in singles]
    if examples:
        apart = [demands(select(program, each)) for each in singles]
        same(found, join_demands(apart))
    return found


def check_picks(
    program: Program, examples: Sequence[Any], picks: Sequence[tuple[int, ...]]
) -> None:
    """Demands that are picked are those of the examples that are picked."""
    found = check(program, examples)
    for indices in picks:
        chosen = [examples[i] for i in indices]
        picked = found.pick(np.array(indices, np.int64))
        same(picked, check(program, chosen))


# ---- properties ----------------------------------------------------------------------

indices = st.lists(st.integers(0, 3), max_size=6).map(tuple)


@settings(max_examples=drawn(10, 60))
@given(any_expressions(), st.integers(0, 99), st.lists(indices, max_size=3))
def test_demands_of_expressions(
    expression: Expression, seed: int, picks: list[tuple[int, ...]]
) -> None:
    """Whatever the expression, the batch and the part of it."""
    examples = expression.batch(np.random.default_rng(seed), 4)
    check_picks(in_loops(expression.block).program, examples, picks)


def spread(size: int) -> jf.Block:
    """A value that is used `size` times, and the sum of these uses twice."""
    add, sine = jf.Function(jnp.add), jf.Function(jnp.sin)
    layer = jf.Function(lambda p, x: p * x, lambda key, x: jnp.ones(()), name='layer')
    used = jf.AllOf(*[sine] * size) >> jf.Sum()
    twice = jf.AllOf(jf.Identity(), jf.Identity()) >> add
    return jf.Scalar() >> layer >> used >> twice


WIDTHS = (1, 4, 5, 16, 17, 64, 65, 300)


@functools.cache
def chosen_widths() -> Program:
    """Items say how often their value is used."""
    cases = {width: jf.GetItem(1) >> spread(width) for width in WIDTHS}
    return in_loops(jf.Map(jf.OneOf(jf.GetItem(0), cases)) >> jf.Sum()).program


@settings(max_examples=drawn(10, 30))
@given(
    st.lists(st.lists(st.sampled_from(WIDTHS), max_size=3), max_size=4),
    st.lists(indices, max_size=2),
)
def test_demands_of_uses_that_data_decides(
    widths: list[list[int]], picks: list[tuple[int, ...]]
) -> None:
    """How many rounds of sums there are, and of what, differs between examples."""
    examples = [[(width, 0.5) for width in each] for each in widths]
    known = [[i for i in pick if i < len(examples)] for pick in picks]
    check_picks(chosen_widths(), examples, list(map(tuple, known)))


def test_nothing_is_demanded_by_no_examples() -> None:
    """Except that gradients flow."""
    program = in_loops(tree_block()).program
    found = check(program, [])
    selection = select(program, trace(program, [1, (2, 3)]))
    picked = demands(selection).pick(np.zeros(0, np.int64))
    same(found, picked)
    for each in found, picked:
        assert node_counts(program, each).tolist() == []
        least = Capacity(0, 0, (0, 0), (0, 0), (0, 1), (0, 0), 0, ())
        assert capacity(program, each, 0) == least


def test_demands_without_operations() -> None:
    """Of constants alone, the program's among them."""
    program = jf.compile(jf.Record((jf.Scalar(), jf.Zeros([])))).program
    found = demands(select(program, trace(program, [(1, None), (2, None)])))
    assert node_counts(program, found).tolist() == [0, 0]
    room = capacity(program, found, 2)
    read = {'indexed': (0, 1), 'summands': (0, 0), 'sum_rows': (0, 0)}
    assert room == Capacity(2, 0, (3,), (), (0,), (0,), 0, (), **read)
