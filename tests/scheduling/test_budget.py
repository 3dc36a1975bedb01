# SPDX-License-Identifier: Apache-2.0
"""Which shapes of schedule are in use: what is reserved stays, whatever comes."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import numpy as np
import pytest
from binary_trees import binary_tree, chain, tree_block
from checking import refuses
from compilations import compilations

import jfold as jf
from jfold.data import scheduler
from jfold.data.scheduler import Scheduler


def model_of_trees(max_programs: int = 8) -> jf.Model:
    return jf.compile(tree_block(4), max_programs)


def room_for(depth: int, size: int = 1) -> jf.Capacity:
    """What a chain of such a depth needs, to the row."""
    return model_of_trees().trace([chain(depth)]).capacities(size)


# ---- what is reserved ----------------------------------------------------------------


def test_a_reserved_capacity_stays() -> None:
    """Large batches come and go; small ones have what was reserved."""
    model, rng = model_of_trees(), np.random.default_rng(0)
    room = model.reserve(room_for(10))
    assert room == room_for(10)
    for _ in range(3):
        large = model.schedule([binary_tree(rng, 300)])
        assert large.capacity.holds(room)
        assert large.capacity != room
        assert model.schedule([chain(10)]).capacity == room
        assert model.schedule([1]).capacity == room
    assert model.programs == 2


def test_several_reserved_capacities() -> None:
    """Each batch has the smallest that holds it; each holds the ones before."""
    model = model_of_trees()
    rooms = [model.reserve(room_for(leaves)) for leaves in (4, 16, 64)]
    found = [model.schedule([chain(n)]).capacity for n in (2, 4, 5, 16, 17, 64)]
    assert found == [rooms[0]] * 2 + [rooms[1]] * 2 + [rooms[2]] * 2
    assert model.programs == 3
    assert all(b.holds(a) and not a.holds(b) for a, b in itertools.pairwise(rooms))
    assert model.reserve(room_for(10)) == rooms[1]
    assert model.programs == 3


def test_what_has_grown_can_be_reserved() -> None:
    model = model_of_trees()
    grown = model.schedule([chain(40)])
    assert model.reserve(grown.capacity) == grown.capacity
    assert model.programs == 1
    model.schedule([chain(4000)])
    assert model.schedule([chain(40)]).spec == grown.spec


def test_what_was_not_reserved_is_replaced() -> None:
    """A stream that grows leaves nothing behind."""
    model = model_of_trees()
    for leaves in (1, 300, 3000):
        last = model.schedule([chain(leaves)])
    assert model.schedule([1]).spec == last.spec
    assert model.programs == 3


def test_other_sizes_are_reserved_apart() -> None:
    model = model_of_trees()
    one, four = (model.reserve(room_for(5, size)) for size in (1, 4))
    assert model.schedule([chain(5)]).capacity == one
    assert model.schedule([chain(5)], size=4).capacity == four


def test_nothing_is_compiled() -> None:
    model = model_of_trees()
    with compilations('') as compiled:
        model.reserve(room_for(5))
    assert compiled == []


def test_capacities_that_are_none() -> None:
    text = (
        'expected a `Capacity`, got Schedule: take it from '
        '`model.trace(examples).capacities(batch_size)`'
    )
    schedule: Any = model_of_trees().schedule([1])
    with refuses(text):
        model_of_trees().reserve(schedule)
    numbers = jf.compile(jf.Scalar())
    with pytest.raises(ValueError, match='expected a `Capacity` of this model'):
        numbers.reserve(room_for(3))


def test_no_room_in_the_budget() -> None:
    """For one more; what there is goes on."""
    model = model_of_trees(max_programs=1)
    room = model.reserve(room_for(5))
    for refused in (
        lambda: model.reserve(room_for(6)),
        lambda: model.schedule([chain(6)]),
    ):
        with pytest.raises(jf.ProgramBudgetError, match=r'rows.1. from 5 to 6'):
            refused()
    assert model.schedule([chain(5)]).capacity == room


def test_what_two_threads_outgrow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither grows what the other has made."""
    model, headroom = model_of_trees(), Scheduler._headroom
    model.schedule([1])

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        model.schedule([chain(300)])  # as another thread does
        return headroom(*arguments)

    monkeypatch.setattr(Scheduler, '_headroom', meanwhile)
    model.schedule([chain(300)])
    assert model.programs == 2


# ---- what is told --------------------------------------------------------------------


def test_each_program_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Why, and which of the budget it is."""
    model = model_of_trees()
    with caplog.at_level(logging.INFO, logger='jfold'):
        for leaves in (1, 2, 300, 2):
            model.schedule([chain(leaves)])
        model.schedule([1, 2])
    assert [x.getMessage() for x in caplog.records] == [
        'program 1 of at most 8, for batches of 1 examples: no batch had 1 examples '
        'before',
        'program 2 of at most 8, for batches of 1 examples: these grew: levels from 32 '
        'to 300, constants[0] from 128 to 301, rows[0] from 128 to 301, rows[1] from '
        '128 to 300',
        'program 3 of at most 8, for batches of 2 examples: no batch had 2 examples '
        'before',
    ]
    assert {x.levelname for x in caplog.records} == {'INFO'}


def test_what_outgrows_a_reserved_capacity_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_of_trees()
    with caplog.at_level(logging.INFO, logger='jfold'):
        model.reserve(room_for(5))
        model.schedule([chain(5)])
        model.schedule([chain(6)])
    assert [(x.levelname, x.getMessage()) for x in caplog.records] == [
        (
            'INFO',
            'program 1 of at most 8, for batches of 1 examples: no batch had 1 '
            'examples before; reserved',
        ),
        (
            'WARNING',
            'program 2 of at most 8, for batches of 1 examples: these grew: levels '
            'from 5 to 6, constants[0] from 6 to 7, rows[0] from 6 to 7, rows[1] from '
            '5 to 6',
        ),
    ]


# ---- batches far larger than others --------------------------------------------------


def test_a_giant_has_a_program_of_its_own() -> None:
    """Small batches keep theirs, whose buffers are small."""
    model, rng = model_of_trees(), np.random.default_rng(0)
    small = model.schedule([binary_tree(rng, 10)]).capacity
    larger = model.schedule([binary_tree(rng, 200)]).capacity
    assert larger != small
    giant = model.schedule([binary_tree(rng, 5000)]).capacity
    assert giant.holds(larger)
    assert model.schedule([binary_tree(rng, 10)]).capacity == larger
    assert model.schedule([binary_tree(rng, 5000)]).capacity.holds(giant)


@pytest.mark.parametrize('several', [False, True])
def test_a_schedule_without_memory_leaves_no_capacity(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later batches are built as before, and the program is not counted."""
    model, rng = model_of_trees(max_programs=2), np.random.default_rng(0)
    before = model.schedule([binary_tree(rng, 10)]).capacity

    def fails(*_: Any) -> Any:
        raise MemoryError('Unable to allocate 449. GiB')

    def build(leaves: int, size: int) -> Any:
        batch = [binary_tree(rng, leaves)] * size
        return model.schedules([batch]) if several else model.schedule(batch)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, 'fill', fails)
        for leaves, size in ((10, 1), (200, 1), (5000, 1), (10, 3)):
            with pytest.raises(MemoryError):
                build(leaves, size)
    assert model.programs == 1
    assert model.schedule([binary_tree(rng, 10)]).capacity == before
    assert model.schedule([1] * 3).capacity.examples == 3
    assert model.programs == 2
