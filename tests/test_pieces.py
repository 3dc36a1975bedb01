# SPDX-License-Identifier: Apache-2.0
"""What a recursion collects: put together once, and the same as if at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from graphs import same
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf
from jfold.graph import Graph
from jfold.host import pieces, prepared_rules, rules
from jfold.host.evaluation import trace

number = jf.Scalar()
alone = jf.AllOf(jf.Identity())


@jf.recursive
def states(tree: Any) -> Any:
    """The sum of a tree, and those of all its nodes, of parts first."""

    @jf.compose
    def join(pair: Any) -> Any:
        left, right = tree(pair[0]), tree(pair[1])
        total = jf.Function(jnp.add)(left[0], right[0])
        return total, jf.Chain()(left[1], right[1], alone(total))

    leaf = number >> jf.AllOf(jf.Identity(), alone >> jf.Map(jf.Identity()))
    return jf.OneOf(type, {int: leaf, tuple: join})


@jf.recursive
def leaves(tree: Any) -> Any:
    """Leaves alone, of any number of parts."""
    leaf = number >> alone >> jf.Map(jf.Identity())
    parts = jf.Map(tree()) >> jf.Chain()
    return jf.OneOf(type, {int: leaf, tuple: parts})


@jf.recursive
def by_node(tree: Any) -> Any:
    """A sequence for each node."""
    own = jf.InputTransform(lambda x: [[x]] if isinstance(x, int) else [[7, 8], []])
    some = own >> jf.Map(jf.Map(number))
    both = jf.AllOf(jf.Map(tree()) >> jf.Chain(), some) >> jf.Chain()
    return jf.OneOf(type, {int: some, tuple: both})


@jf.recursive
def objects(tree: Any) -> Any:
    """Leaves as they are in the data, which become numbers outside."""
    leaf = jf.InputTransform(lambda x: [x]) >> jf.Map(jf.Identity())
    parts = jf.Map(tree()) >> jf.Chain()
    return jf.OneOf(type, {int: leaf, tuple: parts})


@jf.recursive
def summed(tree: Any) -> Any:
    """At every node a sum over all below, which asks for them at every level."""
    leaf = number >> alone >> jf.Map(jf.Identity())
    pair = jf.Record((tree(), tree())) >> jf.Chain()
    both = pair >> jf.AllOf(jf.Sum() >> alone, jf.Identity()) >> jf.Chain()
    return jf.OneOf(type, {int: leaf, tuple: both})


BLOCKS: dict[str, Any] = {
    'states': states,
    'states in pairs': states >> jf.GetItem(1) >> jf.NGrams(2),
    'leaves': leaves,
    'backwards': leaves >> jf.Slice(step=-1),
    'sequences': by_node,
    'objects': objects >> jf.Map(number),
    'asked for at every node': summed,
    'in a loop': jf.Map(leaves >> jf.Sum()) >> jf.Fold(jnp.subtract, jf.Zeros([])),
}
pairs = st.recursive(st.integers(-9, 9), lambda x: st.tuples(x, x), max_leaves=12)


@pytest.mark.parametrize('short', [0, pieces.SHORT])
@pytest.mark.parametrize('name', BLOCKS)
def test_graphs_are_those_of_copies(name: str, short: int) -> None:
    """Pieces or copies at every level, however few items: to the bit."""
    block = jf.Pipe(BLOCKS[name])
    left, right = jf.compile(block).program, jf.compile(block).program

    @settings(max_examples=30)
    @given(st.lists(st.tuples(pairs, pairs), min_size=1, max_size=3))
    def equal(batch: list[Any]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, 'SHORT', short)
            got = trace(left, batch)
            patch.setattr(prepared_rules, '_collects', lambda _: False)
            same(got, trace(right, batch))

    equal()


@pytest.mark.parametrize('name', ['states', 'sequences', 'asked for at every node'])
def test_they_agree_with_the_eager_twin(name: str) -> None:
    model = jf.compile(BLOCKS[name])
    agree(model, {}, [(1, ((2, 3), 4)), ((((5, 6), 7), 8), (9, 10))])


def chain(count: int) -> Any:
    """As deep as it has leaves."""
    made: Any = 1
    for k in range(count):
        made = (made, k)
    return made


def bushy(count: int) -> Any:
    """As flat as can be."""
    return count if count < 2 else (bushy(count // 2), bushy(count - count // 2))


def items_moved(program: Any, tree: Any) -> int:
    """How many items the host copies."""
    moved = 0

    def counted(make: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal moved
            made = make(*args)
            moved += len(made)
            return made

        return run

    with pytest.MonkeyPatch.context() as patch:
        for home, name in (rules, 'take'), (rules, 'join'), (pieces, '_written'):
            patch.setattr(home, name, counted(getattr(home, name)))
        patch.setattr(np, 'concatenate', counted(np.concatenate))
        trace(program, [tree])
    return moved


@pytest.mark.parametrize('make', [chain, bushy])
@pytest.mark.parametrize('name', ['states', 'leaves', 'objects'])
def test_work_grows_with_nodes(name: str, make: Callable[[int], Any]) -> None:
    """Twice the nodes, twice the items that are copied, however deep the tree is; and
    twice the rows on the device."""
    program = jf.compile(BLOCKS[name]).program
    half, all_ = (items_moved(program, make(n)) for n in (200, 400))
    assert half > 200
    assert all_ < 2.2 * half
    rows = [_rows(trace(program, [make(n)])) for n in (200, 400)]
    assert rows[1] <= 2.1 * rows[0]


def _rows(graph: Graph) -> int:
    tables = *graph.constants, *graph.operations, *graph.results
    return sum(len(table.columns[0]) for table in tables)


def test_a_chain_of_many_nodes() -> None:
    model = jf.compile(states >> jf.GetItem(1) >> jf.Sum())
    total, expected = 1, 1
    for k in range(1500):
        total += k
        expected += total + k
    (got,) = model.apply({}, model.schedule([chain(1500)]))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_errors_tell_the_way_through_pieces() -> None:
    """As they do through copies."""
    few = jf.GetItem(1) >> jf.Stack(3)
    outside = jf.Record((states, jf.Identity())) >> jf.compose(
        lambda made, at: jf.Nth()(made[1], at)
    )
    told = []
    for collects in prepared_rules._collects, lambda _: False:
        for block, example in (states >> few, (1, (2, 3))), (outside, ((1, 2), 9)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pieces, 'SHORT', 0)
                patch.setattr(prepared_rules, '_collects', collects)
                with pytest.raises(jf.InputError) as caught:
                    jf.compile(block).schedule([example])
            told.append(str(caught.value))
    assert told[:2] == told[2:]
    assert 'expected at most 3 items, got 5' in told[0]
    assert 'expected an item 9' in told[1]


@pytest.mark.parametrize('column', [list('abcdef'), np.arange(6, dtype=np.int16)])
def test_pieces_of_any_kind_of_column(column: Any) -> None:
    """Of pieces of pieces; also of none."""
    spans = pieces.Spans(np.array([4, 0, 2]), np.array([2, 0, 3]))
    some = pieces.picked(column, spans)
    both = pieces.joined([some, column, some])
    of_both = pieces.picked(both, pieces.Spans(np.array([3, 9]), np.array([4, 7])))
    listed = list(column)
    five = [*listed[4:6], *listed[2:5]]
    sixteen = [*five, *listed, *five]
    expected = [*sixteen[3:7], *sixteen[9:16]]
    assert len(of_both) == 11
    for made, items in (of_both, expected), (both, sixteen), (some, five):
        found = pieces.whole(made)
        assert type(found) is type(column)
        assert list(found) == items
        assert getattr(found, 'dtype', None) == getattr(column, 'dtype', None)
    nothing = pieces.whole(pieces.part(both, 3, 3))
    assert type(nothing) is type(column)
    assert list(nothing) == []


def test_gradients_reach_all_nodes() -> None:
    weigh = jf.Function(lambda w, x: w * x, lambda key, x: jnp.float32(2), name='w')
    model = jf.compile(states >> jf.GetItem(1) >> jf.Map(weigh) >> jf.Sum())
    schedule = model.schedule([chain(40), bushy(20)])
    grads = jax.grad(lambda p: model.apply(p, schedule).sum())({'w': jnp.float32(2)})
    each = [model.eval(x, {'w': 1.0 * jnp.ones(())}) for x in (chain(40), bushy(20))]
    np.testing.assert_allclose(grads['w'], sum(each), rtol=1e-5)
