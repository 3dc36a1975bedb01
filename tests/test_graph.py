# SPDX-License-Identifier: Apache-2.0
"""The graph of an example does not depend on what it is traced together with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary_tree, chain, dense_cell, embedding, kind_of, tree_block
from expressions import Expression, expressions
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf
from jfold import columns
from jfold import graph as graphs
from jfold.columns import trace
from jfold.demands import demands
from jfold.graph import (
    Graph,
    Table,
    Trace,
    check_graph,
    concatenate,
    example_of,
    shared_counts,
)
from jfold.program import Program

Array = np.ndarray[Any, Any]

# ---- comparing graphs ----------------------------------------------------------------


def named(graph: Graph) -> Iterator[tuple[str, Array]]:
    """All arrays of a graph."""
    for kind in ('constants', 'operations', 'metrics'):
        for n, table in enumerate(getattr(graph, kind)):
            yield f'{kind} {n}: first', table.first
            for k, column in enumerate(table.columns):
                yield f'{kind} {n}: column {k}', column
    for n, values in enumerate(graph.outputs):
        yield f'output {n}', values


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
        made = model.build(whole.pick(picked), demanded.pick(picked))
        assert made.spec == expected.spec
        same_bits('indices', made.indices, expected.indices)
        for t, pair in enumerate(zip(made.constants, expected.constants, strict=True)):
            same_bits(f'constants {t}', *pair)


# ---- what a graph says ---------------------------------------------------------------


def owners(table: Table) -> list[int]:
    """The example of each row of a table."""
    return [e for e, count in enumerate(table.counts.tolist()) for _ in range(count)]


def levels_of_values(program: Program, graph: Graph) -> list[list[list[int]]]:
    """Per type and example, the level of each value, by its number."""
    found = [
        [[0] * (shared + count) for count in table.counts.tolist()]
        for shared, table in zip(shared_counts(program), graph.constants, strict=True)
    ]
    for operation, table in zip(program.operations, graph.operations, strict=True):
        for t in operation.outputs:
            rows = zip(owners(table), table.columns[0].tolist(), strict=True)
            for example, level in rows:
                found[t][example].append(level)
    return found


def check_levels(program: Program, graph: Graph) -> None:
    """A node's level is one more than the highest of what it takes."""
    found = levels_of_values(program, graph)
    for operation, table in zip(program.operations, graph.operations, strict=True):
        rows = zip(owners(table), *(x.tolist() for x in table.columns), strict=True)
        for example, level, *values in rows:
            taken = zip(operation.inputs, values, strict=True)
            below = [found[t][example][value] for t, value in taken]
            assert level == 1 + max(below, default=0)


class Watched(Trace):
    """Keeps the places of all rows that are made, by what they are rows of."""

    def __init__(self, program: Program, examples: int) -> None:
        super().__init__(program, examples)
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

    def observe(self, metric: int, places: Array, values: list[Array]) -> None:
        self.keep('metric', metric, places)
        super().observe(metric, places, values)


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
        trace(program, examples)
    (state,) = made
    return {key: np.concatenate(found) for key, found in state.places.items()}


def check_places(program: Program, examples: Sequence[Any]) -> None:
    """No two rows of one table share a place; a place tells its example."""
    graph = trace(program, examples)
    found = traced_places(program, examples)
    rows = sum(map(len, graph.tables))
    assert sum(map(len, found.values())) == rows
    tables = {'constants': graph.constants, 'operation': graph.operations}
    tables['metric'] = graph.metrics
    for (kind, number), places in found.items():
        assert len(np.unique(places)) == len(places), (kind, number)
        counts = np.bincount(example_of(places), minlength=len(examples))
        assert counts.tolist() == tables[kind][number].counts.tolist()


def check(model: jf.Model, examples: Sequence[Any]) -> None:
    """Everything that is cheap."""
    graph = trace(model.program, examples)
    check_graph(model.program, graph)
    check_levels(model.program, graph)
    check_places(model.program, examples)
    check_examples(model.program, examples)
    with pytest.MonkeyPatch.context() as patch:  # rows in the order of their places
        patch.setattr(graphs, 'is_breadth_first', lambda program: False)
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

number = jf.Scalar()
vector = jf.Vector(2)
add, subtract = jf.Function(jnp.add), jf.Function(jnp.subtract)
tanh = jf.Function(jnp.tanh)
Case = tuple[Any, list[Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Adds a block with examples for it to `CASES`."""
    CASES[make.__name__] = make
    return make


def tuples(leaf: Any, node: Callable[[Any], Any]) -> jf.Block:
    """A recursion over nested tuples; `node` makes a block of the recursion."""
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(jf.OneOf(kind_of, {'word': leaf, 'pair': node(tree)}))
    return tree()


@case
def trees() -> Case:
    """Of very different sizes, one of them given twice."""
    rng = np.random.default_rng(0)
    made = [binary_tree(rng, n) for n in (1, 40, 3)]
    return tree_block(), [*made, made[1]]


@case
def chains() -> Case:
    """Beside shallow trees: what runs together at one depth differs."""
    return tree_block(), [chain(60), 1, chain(7), ((1, 2), (3, 4))]


@case
def metrics() -> Case:
    """Two metrics in a recursion, one of tuples, and one outside."""
    both = jf.AllOf(jf.Identity(), jf.Metric('single'), tanh >> jf.Metric('after'))
    pair = jf.AllOf(jf.Identity(), jf.AllOf(jf.Identity(), tanh) >> jf.Metric('pair'))
    seen = both >> jf.GetItem(0) >> pair >> jf.GetItem(0)
    tree = tuples(number, lambda t: jf.Record((t(), t())) >> add >> seen)
    block = tree >> jf.AllOf(jf.Identity(), jf.Metric('single')) >> jf.GetItem(0)
    return block, [1, (1, 2), ((3, (4, 5)), 6), (7, 8)]


@case
def one_metric_at_two_places() -> Case:
    """Its rows are told apart."""
    seen = jf.AllOf(jf.Identity(), jf.Metric('m')) >> jf.GetItem(0)
    block = jf.Record((number >> seen, number >> seen)) >> seen_pair(seen)
    return block, [(1, 2), (3, 4), (3, 3)]


def seen_pair(seen: Any) -> jf.Block:
    """A sum that is observed, twice in a row."""
    return add >> seen >> seen


@case
def declarations_in_turn() -> Case:
    """Lists and dicts that alternate, one of them called twice per node."""
    lists, dicts = jf.ForwardDeclaration(), jf.ForwardDeclaration()
    of_list = jf.Map(dicts()) >> jf.Sum()
    of_dict = jf.AllOf(jf.GetItem('x'), jf.GetItem('y')) >> jf.Map(lists()) >> jf.Max()
    lists.resolve_to(jf.OneOf(type, {int: number, list: of_list}))
    dicts.resolve_to(jf.OneOf(type, {int: number >> tanh, dict: of_dict}))
    first = [1, {'x': [2, 3], 'y': 4}]
    second = [{'x': first, 'y': [5]}, {'x': 6, 'y': 7}]
    return lists(), [first, [], second, 8]


@case
def calls_in_several_stages() -> Case:
    """A call waits for another's result, at depths that differ between examples."""
    up = jf.ForwardDeclaration(name='up')
    up.resolve_to(dense_cell(2))
    twice = jf.AllOf(jf.Identity(), jf.Identity()) >> up()
    leaf = jf.Scalar('int32') >> embedding(2)

    def node(tree: Any) -> Any:
        raised = jf.AllOf(jf.GetItem(0) >> tree() >> twice, jf.GetItem(1) >> tree())
        return raised >> up() >> twice >> twice

    return tuples(leaf, node), [chain(9), ((1, 2), (3, (4, 5))), 1, (2, 3)]


@case
def a_fold_that_recurses() -> Case:
    """At every position, on the item beside the state: it cannot run before."""
    double = jf.ForwardDeclaration(name='double')
    double.resolve_to(jf.AllOf(jf.Identity(), tanh) >> add)

    def node(tree: Any) -> Any:
        state = jf.GetItem(0) >> double()
        return jf.Fold(jf.AllOf(state, jf.GetItem(1) >> tree()) >> add, jf.Zeros([]))

    examples = [(1, (2, 3, (4,)), 5), (), 6, ((((7,),),), 8)]
    return tuples(number, node), examples


@case
def a_fold_that_recurses_before() -> Case:
    """The same where a recursion on the items runs for all of them at once."""

    def node(tree: Any) -> Any:
        return jf.Fold(jf.Record((tanh, tree())) >> add, jf.Zeros([]))

    examples = [(1, (2, 3, (4,)), 5), (), 6, ((((7,),),), 8)]
    return tuples(number, node), examples


@case
def folds_in_folds() -> Case:
    """With a trained start, and the function of the inner one in the outer one."""
    cell = dense_cell(2)
    start = jf.Function(lambda p: p, lambda key: jnp.ones(2), name='start')
    inner = jf.Map(vector) >> jf.Fold(cell, start)
    block = jf.Map(inner) >> jf.Fold(jf.AllOf(cell, cell) >> cell, start)
    one, two = [[1, 2], [3, 4]], [[5, 6]]
    return block, [[one, [], two], [], [[]], [two, two, two, one]]


@case
def reductions() -> Case:
    """Of lengths on both sides of powers of two, with a call in each pair."""
    pair = jf.ForwardDeclaration(name='pair')
    pair.resolve_to(add >> tanh)
    reduced = jf.Reduce(pair() >> tanh, jf.FromTensor(np.float32(0.5)))
    nested = jf.Map(jf.Map(number) >> reduced) >> reduced
    examples = [[[*range(n)] for n in sizes] for sizes in ((1, 2, 3), (), (17, 0, 8))]
    return nested, [*examples, [[], [], [1] * 5]]


@case
def means_and_lengths() -> Case:
    """Numbers that are counted, beside numbers that are given, of one type."""
    items = jf.AllOf(jf.Mean(), jf.Length(), jf.Max(), jf.Min(), jf.Length())
    part = jf.Map(number) >> items >> jf.Sum()
    return jf.AllOf(part, part) >> add, [[1, 2, 3], [], [4], [1, 2, 3]]


@case
def slices() -> Case:
    """Items by number and from the end, in reverse, and of a tensor."""
    items = jf.Map(vector >> tanh)
    last = jf.GetItem(-1) >> jf.GetItem(0)
    rest = jf.GetItem(slice(None, None, -1)) >> jf.Fold(add, jf.Zeros(2))
    block = items >> jf.AllOf(last, rest >> jf.GetItem(1)) >> add
    return block, [[[1, 2]], [[3, 4], [5, 6], [7, 8]], [[1, 2], [3, 4]]]


@case
def one_function_many_times() -> Case:
    """On one item, on its own result, and on two values of one place."""
    block = jf.AllOf(tanh, tanh >> tanh, jf.Identity(), tanh) >> jf.Map(tanh)
    return number >> block >> jf.Sum(), [1, 2, 2, -3]


@case
def one_block_many_times() -> Case:
    """The same blocks, functions inside, beside each other and in a row."""
    block = jf.AllOf(tanh, jf.Identity()) >> add
    both = jf.AllOf(block, block, block >> block) >> jf.Map(block) >> jf.Sum()
    return jf.Map(number >> both >> block) >> jf.Sum(), [[1], [2, 3], [], [2, 3]]


@case
def scalars_of_a_record() -> Case:
    """Constants of one type that arise at one place."""
    fields = jf.Record({'a': number, 'b': number, 'c': jf.Map(number) >> jf.Sum()})
    both = jf.AllOf(fields, fields) >> jf.GetItem(1)
    examples = [{'a': i, 'b': -i, 'c': [i] * i} for i in range(4)]
    return both >> jf.Function(lambda a, b, c: a - b * c), examples


@case
def one_block_in_several_cases() -> Case:
    """And one function in several others."""
    cases = {
        'a': number >> tanh,
        'b': jf.AllOf(number, number) >> add,
        'c': number >> tanh >> tanh,
    }
    cases['d'] = cases['b']
    block = jf.OneOf(jf.GetItem(0), cases, pre_block=jf.GetItem(1))
    examples = [[(k, i) for i, k in enumerate(keys)] for keys in ('abcd', 'ddb', '')]
    return jf.Map(block) >> jf.Sum(), [*examples, examples[1]]


@case
def cases_with_calls() -> Case:
    """Calls from both cases run as one, in another order than the items'."""
    inner = jf.ForwardDeclaration()
    inner.resolve_to(jf.Map(number) >> jf.Sum() >> tanh)
    cases = {True: inner() >> tanh, False: jf.AllOf(inner(), inner()) >> subtract}
    block = jf.Map(jf.OneOf(lambda x: len(x) > 1, cases)) >> jf.Fold(add, jf.Zeros([]))
    return block, [[[1], [2, 3], []], [[4, 5]], [], [[6], [7]]]


@case
def calls_on_no_items() -> Case:
    """Whoever waits for nothing goes on at once, so what runs first differs."""
    inner, left, right = (jf.ForwardDeclaration() for _ in range(3))
    inner.resolve_to(number >> tanh)
    for side in (left, right):
        deep = jf.GetItem(0) >> inner()
        side.resolve_to(jf.OneOf(type, {int: number, list: deep}) >> tanh)
    block = jf.Record((left(), right())) >> subtract
    return block, [(1, [2]), ([3], 4), ([5], [6]), (7, 8)]


@case
def a_call_beside_items() -> Case:
    """The same functions in the call and on the items, all at one place."""
    inner = jf.ForwardDeclaration()
    inner.resolve_to(number >> tanh)
    items = jf.Map(number >> tanh) >> jf.Fold(add, jf.Zeros([]))
    block = jf.Record((inner(), items)) >> add
    return block, [(1, [2, 3]), (4, []), (5, [6]), (1, [2, 3])]


@case
def loops_beside_loops() -> Case:
    """Folds over the same items and reductions of them, of the same functions."""
    step = add >> tanh
    fold, reduced = jf.Fold(step, jf.Zeros([])), jf.Reduce(step)
    loops = jf.AllOf(fold, fold, reduced, reduced) >> reduced
    return jf.Map(number) >> loops, [[1, 2, 3], [], [4], [5, 6]]


@case
def optional_values() -> Case:
    """What is absent is a constant of the program or computed without input."""
    start = jf.Function(lambda p: p, lambda key: jnp.ones(()), name='start')
    parts = [jf.Optional(number), jf.Optional(number >> tanh, start)]
    block = jf.Map(jf.AllOf(*parts, jf.Optional(number, start)) >> jf.Sum())
    return block >> jf.Sum(), [[None, 1], [], [None], [2, 3, None]]


@case
def sequences_of_declarations() -> Case:
    """A declaration that gives items, of which callers take their own."""
    rows = jf.ForwardDeclaration()
    rows.resolve_to(jf.Map(jf.Map(number >> tanh)))
    first = jf.GetItem(0) >> jf.Map(jf.Sum()) >> jf.Max()
    second = jf.GetItem(1) >> jf.Map(jf.Length()) >> jf.Sum()
    block = jf.AllOf(rows(), rows()) >> jf.AllOf(first, second) >> subtract
    return block, [[[1, 2], [3]], [], [[], [1, 2, 3], [4]], [[]]]


@case
def several_results() -> Case:
    """Nested ones, one of them given as it came, and a function with two outputs."""
    both = jf.Function(lambda x, y: (x + y, x - y), name='both')
    tree = jf.ForwardDeclaration()
    parts = jf.Record((tree() >> jf.GetItem(0), tree() >> jf.GetItem(1)))
    leaf = jf.AllOf(number, number)
    tree.resolve_to(jf.OneOf(kind_of, {'word': leaf, 'pair': parts >> both}))
    results = jf.AllOf(tree(), jf.AllOf(jf.Zeros(2), tree() >> both))
    return results, [1, (1, 2), ((1, 2), (3, 4)), (1, (2, 3))]


@case
def constants_of_the_program() -> Case:
    """No example has constants of its own; some have no nodes."""
    half = jf.FromTensor(np.float32(0.5))
    item = jf.OneOf(type, {int: jf.Zeros([]), str: half, float: half >> tanh})
    return jf.Map(item) >> jf.Fold(add, half), [[1, 'a'], [], ['b', 2.0], ['c'] * 3]


@case
def nothing_but_constants() -> Case:
    """No operation at all; bits that a comparison by value would miss."""
    fields = jf.Record((vector, jf.Scalar('bool'), jf.Scalar('int8'), jf.Zeros(3)))
    rows = [[np.nan, -0.0], [0.0, -np.nan], [np.inf, 1e-45], [0.0, 0.0]]
    return fields, [(row, i % 2 == 0, -i, ()) for i, row in enumerate(rows)]


@case
def shared_data() -> Case:
    """The same Python objects in several examples and several times in one."""
    part = ((1, 2), 3)
    whole = (part, part)
    return tree_block(), [whole, part, (whole, part), whole]


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
    elif where == 'metric':
        table = graph.metrics[0]
        table = damaged_table(table, 0, damage(table.columns[0]))
        graph = replace(graph, metrics=(table,))
    else:
        graph = replace(graph, outputs=(damage(graph.outputs[0]),))
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
    for lacking in (
        replace(graph, operations=(bare,)),
        replace(graph, operations=()),
        replace(graph, outputs=()),
        replace(graph, metrics=()),
        replace(graph, metrics=(Table(graph.metrics[0].first, ()),)),
    ):
        with pytest.raises((ValueError, IndexError)):
            check_graph(program, lacking)
