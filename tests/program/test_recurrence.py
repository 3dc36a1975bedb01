# SPDX-License-Identifier: Apache-2.0
"""Components: which operations take turns, and in which order they run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from binary_trees import chain, dense_cell, embedding, kind_of, tree_block
from expressions import Expression, any_expressions
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import in_loops

import jfold as jf
from jfold.graph import Graph, ranges
from jfold.lower import lower
from jfold.program.components import component_of, components
from jfold.program.operations import Program
from jfold.scheduling.selections import select
from jfold.tracing.record import trace


def named(program: Program) -> list[tuple[tuple[str, ...], bool]]:
    """Components by the names of their operations."""
    return [
        (tuple(program.operations[o].layer.name for o in each.operations), recurrent)
        for each in components(program)
        for recurrent in [each.recurrent]
    ]


def function(name: str) -> jf.Function:
    """One number to another."""
    return jf.Function(jnp.sin, name=name)


def scored_trees() -> jf.Model:
    """A trained score at every node, of which a loss and the root's result are made."""
    score = dense_cell(2, name='score')
    loss = jf.Function(lambda x: x @ x, name='loss')
    scored = jf.AllOf(
        jf.Identity(),
        jf.AllOf(jf.Identity(), jf.Identity()) >> score >> loss >> jf.Metric('loss'),
    )
    tree = jf.ForwardDeclaration()
    leaf = jf.Scalar('int32') >> embedding(2)
    node = jf.Record((tree(), tree())) >> dense_cell(2)
    cases = {'word': leaf, 'pair': node}
    tree.resolve_to(jf.OneOf(kind_of, cases) >> scored >> jf.GetItem(0))
    return jf.compile(tree())


def test_what_is_not_recurrent_runs_once() -> None:
    """Before, what a recursion reads; behind it, what reads it."""
    model = scored_trees()
    assert named(model.program) == [
        (('embed',), False),
        (('cell',), True),
        (('score >> loss',), False),
    ]
    schedule = model.schedule([chain(10), ((1, 2), 3)])
    assert schedule.depths.tolist() == [1, 10, 1]
    assert schedule.depth == 12


def test_a_recursion_behind_another_has_levels_of_its_own() -> None:
    """Words of any length come first; the tree is as deep as it is without them."""
    spell = jf.Map(jf.Scalar()) >> jf.Fold(
        jf.Function(jnp.add, name='spell'), jf.Zeros([])
    )
    tree = jf.ForwardDeclaration()
    both = jf.Record((tree(), tree())) >> jf.Function(jnp.multiply, name='join')
    tree.resolve_to(jf.OneOf(type, {list: spell, tuple: both}))
    model = jf.compile(tree())
    assert named(model.program) == [(('spell',), True), (('join',), True)]
    schedule = model.schedule([([1.0] * 50, ([2.0], [3.0] * 7)), [4.0] * 3])
    assert schedule.depths.tolist() == [50, 2]
    got = model.apply({}, schedule)
    np.testing.assert_allclose(got, [50 * 2 * 21, 12])


def test_operations_that_read_each_other_are_one_component() -> None:
    """Through a recursion, whether directly or in several steps."""
    tree = jf.ForwardDeclaration()
    one = tree() >> function('even') >> function('odd')
    tree.resolve_to(
        jf.OneOf(
            type, {float: jf.Scalar() >> function('leaf'), list: jf.GetItem(0) >> one}
        )
    )
    program = lower(tree() >> function('root'), fuses=False)
    assert named(program) == [
        (('leaf',), False),
        (('even', 'odd'), True),
        (('root',), False),
    ]
    graph = trace(program, [[[1.0]]])
    levels = dict(
        zip([o.layer.name for o in program.operations], graph.levels, strict=True)
    )
    assert {name: sorted(x.tolist()) for name, x in levels.items()} == {
        'leaf': [1],
        'even': [1, 3],
        'odd': [2, 4],
        'root': [1],
    }


def test_a_layer_used_twice_in_turn_is_recurrent() -> None:
    """It reads what it makes, though no data makes it longer."""
    step = function('step')
    assert named(in_loops(jf.Scalar() >> step >> step).program) == [(('step',), True)]
    assert named(jf.compile(jf.Scalar() >> step).program) == [(('step',), False)]


def test_loops_are_looked_into() -> None:
    """A fold's state and a reduction's results return to them; items do not."""
    item, last = function('item'), function('last')
    fold = jf.Fold(jf.Function(jnp.add, name='add'), jf.Zeros([]))
    reduce = jf.Reduce(jf.Function(jnp.multiply, name='multiply'))
    for loop, name in (fold, 'add'), (reduce, 'multiply'):
        program = in_loops(jf.Map(jf.Scalar() >> item) >> loop >> last).program
        assert named(program) == [
            (('item',), False),
            ((name,), True),
            (('last',), False),
        ]


def test_a_tree_has_an_embedding_and_a_cell() -> None:
    """As the example of the documentation."""
    assert named(jf.compile(tree_block()).program) == [
        (('embed',), False),
        (('cell',), True),
    ]


# ---- properties ----------------------------------------------------------------------


def makers(program: Program, graph: Graph) -> np.ndarray[Any, Any]:
    """The operation that makes each value, -1 for constants."""
    numbers, types = select(program, graph).numbers, len(program.types)
    found = np.full(numbers.ends[-1], -1)
    for o, table in enumerate(graph.operations):
        for k in range(len(program.operations[o].outputs)):
            found[ranges(numbers.begin(types + o, k), table.counts)] = o
    return found


def reads(program: Program, graph: Graph) -> set[tuple[int, int]]:
    """Pairs of an operation and one whose results it reads in the data."""
    found, made_by = set(), makers(program, graph)
    values, types = select(program, graph).values, len(program.types)
    for o, operation in enumerate(program.operations):
        for a in range(len(operation.inputs)):
            made = made_by[values.column(types + o, 1 + a)]
            found |= {(o, q) for q in np.unique(made).tolist() if q >= 0}
    return found


def check(program: Program, examples: Sequence[Any]) -> None:
    """Every operation once; each reads its own component and earlier ones alone."""
    listed = list(itertools.chain(*(each.operations for each in components(program))))
    assert sorted(listed) == list(range(len(program.operations)))
    number = component_of(program)
    for each in components(program):
        assert list(each.operations) == sorted(each.operations)
        assert each.recurrent or len(each.operations) == 1
    for o, q in reads(program, trace(program, examples)):
        assert number[q] <= number[o]
        assert number[q] < number[o] or components(program)[number[o]].recurrent


@settings(max_examples=60)
@given(
    any_expressions(),
    st.integers(0, 99),
)
def test_recurrence_of_expressions(expression: Expression, seed: int) -> None:
    """What the program says of who reads what covers what the data does."""
    examples = expression.batch(np.random.default_rng(seed), 3)
    check(in_loops(expression.block).program, examples)
