# SPDX-License-Identifier: Apache-2.0
"""How programs without loops read: in place, as sums or by index; what changes that."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from hlo import compiled_text
from looped import in_loops
from reading import (
    KEY,
    compiled,
    items,
    layer,
    lists,
    other,
    shared,
    times_two,
    told,
    total,
)

import jfold as jf
from jfold.scheduling.read_modes import ReadMode, read_modes

# ---- three ways ----------------------------------------------------------------------


def test_what_is_read_in_place() -> None:
    """One function upon another, over the same rows; so are results, and spare rows."""
    given = jf.Vector(2) >> layer
    chained = given >> jf.Function(jnp.sin) >> other
    model, params = compiled(jf.AllOf(chained, given))
    examples = [np.ones(2, 'float32') * i for i in range(3)]
    schedule = model.schedule(examples, size=5)
    assert {*read_modes(schedule.spec).values()} == {ReadMode.IN_PLACE}
    agree(model, params, examples, forward=True, size=5)
    _, last = model.apply(params, schedule)
    np.testing.assert_array_equal(last[3:], [last[2]] * 2)
    assert ' gather(' not in compiled_text(model.apply, params, schedule)


def test_sums_are_added_up_where_they_are_read() -> None:
    """Of none, one, and of more than are grouped at once."""
    model, params = compiled(total >> other)
    examples = lists(3, 0, 1, 20)
    schedule = model.schedule(examples)
    assert told(model, schedule.spec) == [
        'layer 0: in_place',
        'other 0: summed_in_place',
        'result 0: in_place',
    ]
    agree(model, params, examples, forward=True)


def test_zeros_that_fill_groups_are_not_added_up() -> None:
    """They would take room, and time."""
    model, _ = compiled(jf.Map(jf.Scalar()) >> jf.Sum())
    corpus = model.trace([[1.0] * n for n in (5, 9, 17)], progress=False)
    assert max(corpus.capacities(3).summands) == 5 + 9 + 17


def test_a_sum_may_be_a_result() -> None:
    model, params = compiled(jf.AllOf(total, total >> other))
    agree(model, params, lists(3, 0, 9), forward=True)
    model, params = compiled(total)
    schedule = model.schedule(lists(2, 3), size=4)
    assert told(model, schedule.spec)[-1] == 'result 0: summed_in_place'
    agree(model, params, lists(2, 3), forward=True, size=4)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'complex64', 'int8'])
def test_sums_of_any_numbers(dtype: str) -> None:
    item = jf.Function(lambda x: jnp.asarray(x, dtype), name='item')
    model = jf.compile(jf.Map(jf.Scalar() >> item) >> jf.Sum() >> times_two)
    examples = [[1.0, 2.0, 3.0], [], [4.0], [1.0] * 9]
    got = np.asarray(model.apply({}, model.schedule(examples)))
    assert got.tolist() == [12, 0, 8, 18]


def test_sums_of_numbers_of_the_data() -> None:
    """Complex ones, and whole ones that no float holds."""
    sums, wholes = (jf.Map(jf.Scalar(x)) >> jf.Sum() for x in ('complex64', 'int32'))
    model = jf.compile({'x': sums, 'n': wholes >> times_two})
    examples = [
        {'x': [1j, 2, 3], 'n': [1, 2, 3]},
        {'x': [], 'n': []},
        {'x': [1 + 1j] * 9, 'n': [2**24 + 1]},
    ]
    got = [x.tolist() for x in model.apply({}, model.schedule(examples))]
    assert got == [[5 + 1j, 0, 9 + 9j], [12, 0, 2**25 + 2]]


def test_the_sign_of_zero_stays() -> None:
    """Also of nothing but what fills groups."""
    block = jf.Map(jf.Scalar()) >> jf.Sum() >> jf.Function(jnp.signbit)
    model, params = compiled(block)
    examples = [[-0.0], [0.0], [], [-0.0, -0.0, -0.0], [-0.0, 0.0]]
    want = [bool(block.eval(x)) for x in examples]
    assert model.apply(params, model.schedule(examples)).tolist() == want
    assert want[:2] == [True, False]
    for zero in (0.0, -0.0):
        nothing = jf.FromTensor(np.array(zero, 'float32'))
        model, params = compiled(jf.Map(jf.Void() >> nothing) >> jf.Sum() >> times_two)
        zeros = model.apply(params, model.schedule([[0] * 3, [0] * 9]))
        assert zeros.tolist() == [0, 0]
        assert np.signbit(zeros).tolist() == [math.copysign(1, zero) < 0] * 2


def test_sums_of_nothing_but_zeros() -> None:
    """Zeros of the program, which are not told; the room is filled to the last row."""
    block = jf.Map(jf.Map(jf.Scalar('int32')) >> jf.Sum()) >> jf.Sum()
    model, params = compiled(block)
    examples = [[[], []], [[7], [8, 9]]]
    model.reserve(model.trace(examples, progress=False).capacities(2))
    assert model.apply(params, model.schedule(examples)).tolist() == [0, 24]


# ---- what changes that ---------------------------------------------------------------


def test_a_sum_that_is_read_often_has_a_row() -> None:
    """Else its summands would be added up once for each item."""
    model, params = compiled(shared >> jf.Map(other) >> jf.Sum())
    schedule = model.schedule(lists(3, 5))
    assert told(model, schedule.spec)[1:] == [
        'multiply 0: in_place',
        'multiply 1: indexed',
        'other 0: in_place',
        'result 0: summed_in_place',
        'add -1: summed_in_place',
    ]
    agree(model, params, lists(3, 0, 1, 9), forward=True)


def test_of_short_sequences_no_sum_is_read_often() -> None:
    """With a longer one there is a second program, which the shorter use as well."""
    model, params = compiled(shared >> jf.Map(other) >> jf.Sum())
    first = model.schedule(lists(1, 1))
    assert not any(first.capacity.sum_rows)
    second = model.schedule(lists(2, 1))
    assert any(second.capacity.sum_rows)
    third = model.schedule(lists(1, 1))
    assert third.spec is second.spec
    agree(model, params, lists(1, 1))


def test_what_was_in_place_may_be_indexed_from_then_on() -> None:
    """All slots are, so that there is one program more and not one for each."""
    kinds = jf.OneOf(len, {2: jf.Vector(2) >> layer, 3: jf.Vector(3) >> other})
    block = jf.Map(kinds >> jf.Function(jnp.sin, name='sin')) >> jf.Sum()
    model, params = compiled(block)
    assert 'sin 0: indexed' in told(model, model.schedule([[np.ones(2)]]).spec)
    once = jf.Share(jf.GetItem('x') >> jf.Vector(2) >> layer, key=lambda x: x['k'])
    model, params = compiled(jf.Map(once >> jf.Function(jnp.sin)) >> jf.Sum())
    apart = [{'k': i, 'x': np.ones(2, 'float32') * i} for i in range(3)]
    first = model.schedule([apart])
    assert 'sin 0: in_place' in told(model, first.spec)
    agree(model, params, [apart, apart[:1]], forward=True)
    second = model.schedule([[*apart, apart[0]]])
    modes = {*read_modes(second.spec).values()}
    assert modes == {ReadMode.INDEXED, ReadMode.SUMMED, ReadMode.UNREAD}
    agree(model, params, [apart, [apart[1], *apart], []], forward=True)
    assert model.schedule([apart]).spec is second.spec


# ---- room ----------------------------------------------------------------------------


SPARE: list[Any] = [
    (jf.Vector(2) >> layer, [np.ones(2, 'float32'), np.arange(2, dtype='float32')]),
    (total, lists(3, 0)),
    (total >> other, lists(3, 0)),
    (items, lists(3, 0)),
]


@pytest.mark.parametrize(('block', 'examples'), SPARE)
def test_a_first_batch_without_examples(block: Any, examples: Any) -> None:
    """Nothing is there to be read, and what comes later is read as if it came first."""
    model, params = compiled(block)
    schedule = model.schedule([], size=4)
    empty = interpreter.called(model.apply, params, schedule)
    assert not jax.tree.leaves(jax.tree.map(np.isnan, empty))[0].any()
    agree(model, params, examples, size=4)
    wanted = told(model, compiled(block)[0].schedule(examples, size=4).spec)
    assert told(model, model.schedule(examples, size=4).spec) == wanted


@pytest.mark.parametrize(('block', 'examples'), SPARE[:3])
def test_spare_rows_of_results_have_no_gradient(block: Any, examples: Any) -> None:
    """As with loops, whatever is done with them."""

    def grads(model: jf.Model) -> Any:
        schedule = model.schedule(examples, size=8)
        loss = lambda params: model.apply(params, schedule).sum()  # noqa: E731
        return interpreter.called(jax.grad(loss), model.init(KEY))

    close(grads(jf.compile(block)), grads(in_loops(block)), 1e-5)


def test_sums_that_have_rows_leave_room_for_any_number() -> None:
    """What is added up is told to nobody, so no batch needs another program for it."""
    model, params = compiled(shared >> jf.Map(other) >> jf.Sum())
    room = model.trace(lists(1, 1, 1, 60), progress=False).capacities(4)
    assert any(room.sum_rows)
    pairs = zip(room.summands, room.sum_rows, strict=True)
    summands = tuple(0 if has_rows else n for n, has_rows in pairs)
    room = model.reserve(replace(room, summands=summands))
    agree(model, params, lists(1, 1, 1, 1))
    assert model.schedule(lists(1, 1, 1, 1)).capacity == room
    assert model.programs == 1


BY_HAND: list[tuple[int | None, dict[str, Any]]] = [
    (None, {'indexed': ()}),
    (None, {'indexed': (0, 0, 0)}),
    (None, {'indexed': (0, 0, 0, 0)}),
    (0, {}),
    (4, {}),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(('without', 'change'), BY_HAND)
def test_capacities_made_by_hand(without: int | None, change: dict[str, Any]) -> None:
    """Of no room for some operation; that say nothing of slots, or less than is so."""
    model, params = compiled(total >> other)
    examples = lists(3, 0, 1, 9)
    room = model.trace(examples, progress=False).capacities(4)
    rows = [0 if o == without else n + 20 * o for o, n in enumerate(room.rows)]
    model.reserve(replace(room, rows=tuple(rows), **change))
    empty = interpreter.called(model.apply, params, model.schedule([], size=4))
    assert empty.shape == (4, 3)
    agree(model, params, examples)
    agree(model, params, lists(20, 20, 20, 20))


@pytest.mark.parametrize('sum_rows', [(0, 1, 0, 0), (1, 0, 0, 1), (1, 0, 1, 0)])
def test_rows_of_sums_that_not_all_slots_know(sum_rows: tuple[int, ...]) -> None:
    """In a capacity made by hand: all sums of a group have rows then, or none."""
    model, params = compiled(total >> other)
    examples = lists(3, 0, 1, 9)
    room = model.trace(examples, progress=False).capacities(4)
    model.reserve(replace(room, sum_rows=sum_rows))
    agree(model, params, examples)


def test_capacities_of_the_same_program_with_or_without_loops() -> None:
    loops, examples = in_loops(total >> other), lists(3, 0, 1, 9)
    model, params = compiled(total >> other)
    for one, another in (loops, model), (model, loops):
        room = one.trace(examples, progress=False).capacities(4)
        another.reserve(room)
        agree(another, params, examples)


# ---- batches of a corpus -------------------------------------------------------------


@pytest.mark.parametrize('block', [total >> other, shared >> jf.Map(other) >> jf.Sum()])
def test_schedules_of_a_corpus(block: jf.Block, tmp_path: Path) -> None:
    """Those of its examples, to the bit, where sums are added up or read often."""
    model, examples = jf.compile(block), lists(3, 0, 12)
    corpus = model.trace(examples, progress=False)
    corpus.save(tmp_path / 'corpus.jfold')
    model.schedule(examples, size=4)
    for source in corpus, jf.Corpus.load(tmp_path / 'corpus.jfold', model):
        for places in ([1, 0, 2], [2], [], [0, 0, 2]):
            got = source.schedule(places, size=4)
            want = model.schedule([examples[i] for i in places], size=4)
            assert got.spec is want.spec
            jax.tree.map(np.testing.assert_array_equal, got, want)


def test_corpora_of_the_same_program_with_loops(tmp_path: Path) -> None:
    """What their examples demand is found again, in files and joined to others."""
    path, parts = tmp_path / 'corpus.jfold', (lists(3, 1), lists(2))
    model, params = compiled(total >> other)
    traced = in_loops(total >> other).trace(parts[0], progress=False)
    traced.save(path)
    want = model.apply(params, model.schedule([*parts[0], *parts[1]]))
    joined = model.join([traced, model.trace(parts[1])]).schedule([0, 1, 2])
    np.testing.assert_array_equal(model.apply(params, joined), want)
    loaded = jf.Corpus.load(path, model).schedule([0, 1], size=3)
    np.testing.assert_array_equal(model.apply(params, loaded)[:2], want[:2])
