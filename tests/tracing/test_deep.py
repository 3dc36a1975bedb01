# SPDX-License-Identifier: Apache-2.0
"""Data deeper than Python's stack, and wide: they trace; what never ends is refused."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Any, cast

import jax.numpy as jnp
import pytest
from binary_trees import chain, tree_block
from graphs import same
from hypothesis import given
from hypothesis import strategies as st

import jfold as jf
from jfold.graph import concatenate
from jfold.language.data_paths import EXAMPLE, Path, common_prefix
from jfold.language.expression import Expression
from jfold.language.source_rounds import Round
from jfold.tracing import deep
from jfold.tracing.check_graph import check_graph
from jfold.tracing.record import trace

DEEP = 100_000
SUMS: dict[str, Any] = {
    'record': lambda tree: jf.Record((tree, tree)) >> jnp.add,
    'map': lambda tree: jf.Map(tree) >> jf.Sum(),
    'fold': lambda tree: jf.Fold((jf.Identity(), tree) >> ADD, jf.Zeros([])),
}
ADD, START = jf.Function(jnp.add), jf.Zeros([])


def sums(of_list: Any) -> jf.Block:
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(jf.OneOf(type, {int: jf.Scalar(), list: of_list(tree())}))
    return tree()


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [2, made]
    return made


def test_a_deep_chain() -> None:
    """Each node reads the one below; shallow examples beside it are as they were."""
    program = jf.compile(tree_block()).program
    graph = trace(program, [(1, 2), chain(DEEP), 3])
    assert graph.depth == DEEP
    assert graph.nodes == 2 + DEEP + 1 + DEEP + 1 + 1
    check_graph(program, graph)


def test_a_wide_list() -> None:
    program = jf.compile(sums(SUMS['map'])).program
    graph = trace(program, [[1] * DEEP, [[1], 2]])
    assert graph.constants[0].counts.tolist() == [DEEP, 2]
    assert graph.depth == 6  # of groups of eight
    check_graph(program, graph)


@pytest.mark.parametrize('kind', SUMS)
def test_deep_data_are_recorded_as_shallow_ones(kind: str) -> None:
    """Beside others, and as by calls of Python where it allows for so many."""
    program = jf.compile(sums(SUMS[kind])).program
    examples = [nested(3), nested(2000), 4]
    graph = trace(program, examples)
    same(graph, concatenate([trace(program, [each]) for each in examples]))
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(20_000)
        same(graph, trace(program, examples))
    finally:
        sys.setrecursionlimit(limit)
    assert graph.depth >= 2000


def test_deep_data_by_many_declarations() -> None:
    """Their source nests deeper in the form for such data than in the first."""
    ring = [jf.ForwardDeclaration(name=f'turn_{k}') for k in range(100)]
    for k, declaration in enumerate(ring):
        inner = jf.Record([ring[k - 1](), ring[k - 2]()]) >> ADD
        declaration.resolve_to(jf.OneOf(type, {int: jf.Scalar(), list: inner}))
    assert trace(jf.compile(ring[0]()).program, [nested(1500)]).depth == 1500


def in_turn(of_list: Any) -> jf.Block:
    """Nested lists of ints, by three declarations one after another."""
    a, b, c = (jf.ForwardDeclaration(name=name) for name in 'abc')
    a.resolve_to(b())
    b.resolve_to(jf.OneOf(type, {int: jf.Scalar(), list: of_list(c())}))
    c.resolve_to(a())
    return a()


def shared(key: Any) -> Any:
    """Nested lists of ints, a `Share` at each level."""

    def made(of_list: Any) -> jf.Block:
        tree = jf.ForwardDeclaration(name='tree')
        cases = jf.OneOf(type, {int: jf.Scalar(), list: of_list(tree())})
        tree.resolve_to(jf.Share(cases, key=key))
        return tree()

    return made


@pytest.mark.parametrize('kind', SUMS)
@pytest.mark.parametrize('made', [sums, in_turn, shared(None), shared(repr)])
def test_the_bound_is_of_levels(
    made: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of calls a level takes; recorder and walk agree on it."""
    bound = 200
    monkeypatch.setattr(deep, 'MAX_DEPTH', bound)
    monkeypatch.setattr(deep, 'FIRST_LOOK', 16)
    expression: Any = jf.compile(made(SUMS[kind])).program.expression
    record = expression.deep().record
    fits = nested(bound - 1)  # a call for the number at the end
    assert expression.explain(fits) is None
    deep.run(record([fits]))
    # With several calls a level, the recorder looks at the latest a quarter later.
    endless = nested(bound + bound // 4)
    with pytest.raises(deep.Endless):
        deep.run(record([endless]))
    assert f'at most {bound} deep' in str(expression.explain(endless))


def test_only_the_example_at_fault_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = jf.compile(sums(SUMS['map'])).program
    examples = [nested(2000), nested(2000), [2, 'x'], nested(2000)]
    explain, explained = Expression.explain, []

    def recorded(self: Expression, example: object) -> Any:
        explained.append(example)
        return explain(self, example)

    monkeypatch.setattr(Expression, 'explain', recorded)
    with pytest.raises(jf.InputError, match="got <class 'str'>") as caught:
        trace(program, examples)
    assert caught.value.example == 2
    assert [id(example) for example in explained] == [id(examples[2])]


def test_the_first_bad_example_is_named_beside_deep_data() -> None:
    """Its number is converted after the second bad one was read."""
    program = jf.compile(sums(SUMS['map'])).program
    with pytest.raises(jf.InputError, match='which float32 cannot hold') as caught:
        trace(program, [nested(2000), 1, 2**24 + 1, 'x'])
    assert caught.value.example == 2


class Unread:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_paths_are_read_no_further_than_where_they_part() -> None:
    """So that the walk of a chain takes time in proportion to its length."""
    node = Path(Unread(), '[1]', 99_999)  # type: ignore[arg-type]
    left, right = node.step('[0]'), node.step('[1]').step("['x']").step('[0]')
    assert common_prefix([left, right]) is node
    assert common_prefix([right, left]) is node
    assert common_prefix([left]) is left
    assert common_prefix([left, left.step('[2]')]) is left
    twin = node.step('[1]').step("['x']")  # another object that says the same
    assert common_prefix([right, twin.step('[3]')]).length == twin.length  # type: ignore[union-attr]
    assert str(common_prefix([EXAMPLE.step('[1]'), EXAMPLE.step('[2]')])) == ''
    assert common_prefix([]) is None


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from('ab')), max_size=60))
def test_common_prefixes_are_those_of_the_texts(steps: list[tuple[int, str]]) -> None:
    """Of paths that share objects, and of others that say the same."""
    paths = [EXAMPLE]
    for number, text in steps:
        paths.append(paths[-1 - number % len(paths)].step(text))
    for one in paths:
        assert str(one.ancestor(len(str(one)) // 2)) == str(one)[: len(str(one)) // 2]
        for other in paths[-8:]:
            found = common_prefix([one, other])
            pairs = zip(str(one), str(other), strict=False)
            alike = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            assert str(found) == ''.join(text for text, _ in alike)


def test_earlier_paths_are_found_in_few_steps() -> None:
    """Counted in lines of Python that run: one by one it would be thousands."""
    deepest, lines = EXAMPLE, list[int]()
    for _ in range(4096):
        deepest = deepest.step('[0]')

    def noted(frame: Any, event: str, _: object) -> Any:
        lines.append(frame.f_lineno)
        return noted

    before = sys.gettrace()
    sys.settrace(noted)
    try:
        found = deepest.ancestor(1365)
    finally:
        sys.settrace(before)
    assert found.length == 1365
    assert 0 < len(lines) < 300


def test_collection_of_garbage_goes_on_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(jf.InputError):
        trace(jf.compile(sums(SUMS['map'])).program, ['x'])
    assert gc.isenabled()


@pytest.mark.parametrize('made', [lambda x: [2, x], lambda x: [2, [*x]]])
def test_data_that_functions_make_end_at_a_bound(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of new objects, so that no cycle can be found."""
    monkeypatch.setattr(deep, 'MAX_DEPTH', 2000)
    tree = jf.ForwardDeclaration(name='tree')
    again = (
        jf.InputTransform(made) >> jf.GetItem(1) >> jf.InputTransform(list) >> tree()
    )
    tree.resolve_to(jf.OneOf(type, {int: jf.Scalar(), list: again}))
    model = jf.compile(tree())
    for run in lambda x: model.schedule([1, x]), model.eval:
        with pytest.raises(jf.InputError, match='at most 2,000 deep'):
            run([1])
    assert model.eval(1) == 1


def test_the_bound_is_the_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call more, though cycles are looked for at powers of two."""
    bound = deep.FIRST_LOOK + 100
    monkeypatch.setattr(deep, 'MAX_DEPTH', bound)

    def calls(left: int) -> Any:
        return (yield calls(left - 1)) if left > 1 else None

    assert deep.run(calls(bound)) is None
    with pytest.raises(deep.Endless):
        deep.run(calls(bound + 1))


class Triple:
    """An object with three items, which is no list."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> float:
        return [1.0, 2.0, 3.0][k]


def test_the_length_of_data_is_read_at_the_end_of_the_stack_too() -> None:
    """Else an item too many would be accepted, where `len` does not fit any more."""
    nested = jf.ForwardDeclaration(name='nested')
    pair = jf.Record((jf.Scalar(), jf.Scalar())) >> jnp.add
    inner = jf.Record({0: nested()}) >> jf.GetItem(0)
    nested.resolve_to(jf.OneOf(type, {tuple: inner, Triple: pair}))
    model, data = jf.compile(nested()), cast(Any, Triple())
    for _ in range(sys.getrecursionlimit()):
        data = (data,)
        with pytest.raises(jf.InputError, match='expected 2 items, got 3'):
            model.trace([data])


def test_more_levels_than_a_row_number_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Round, 'level', 60)
    model = jf.compile(jf.Fold(jf.Record((jf.Identity(), jf.Scalar())) >> ADD, START))
    assert model.trace([[1.0] * 7]).nodes == 7
    with pytest.raises(ValueError, match='chains of at most 7 operations, got longer'):
        model.trace([[1.0] * 7, [1.0] * 8])
