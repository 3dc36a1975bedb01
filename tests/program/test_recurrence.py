# SPDX-License-Identifier: Apache-2.0
"""Components: which operations take turns, and in which order they run."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from binary_trees import chain, dense_cell, embedding, kind_of
from looped import in_loops

import jfold as jf
from jfold.lower import lower
from jfold.program.components import components
from jfold.program.operations import Program
from jfold.tracing.record import trace


def named(program: Program) -> list[tuple[tuple[str, ...], bool]]:
    """Components by the names of their operations."""
    names = [x.layer.name for x in program.operations]
    parts = components(program)
    return [(tuple(names[o] for o in x.operations), x.recurrent) for x in parts]


def function(name: str) -> jf.Function:
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
