# SPDX-License-Identifier: Apache-2.0
"""Batches go on again after a stop, and refuse what does not go together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checking import refuses
from extent import drawn
from fake_sources import Array, Stream, corpus, made, real, started, told
from hypothesis import given, settings
from hypothesis import strategies as st

import jfold as jf
from jfold.data.batches import Batches, batches

pytestmark = pytest.mark.usefixtures('no_thread_is_left')

# ---- on again ------------------------------------------------------------------------


@st.composite
def runs(draw: Any) -> Callable[[], Batches]:
    """Makes the same batches again and again."""
    examples = draw(st.lists(st.integers(-2, 5), min_size=1, max_size=9))
    arguments: dict[str, Any] = {
        'skip_errors': True,
        'drop_remainder': draw(st.booleans()),
        'prefetch': draw(st.sampled_from([0, 2])),
        'device_put': False,
    }
    size, kind = draw(st.integers(1, 4)), draw(st.sampled_from(['list', 'stream', '']))
    if kind == 'stream':
        return lambda: made(Stream(*examples), size, **arguments)
    arguments |= {
        'shuffle': draw(st.sampled_from([None, 0])),
        'epochs': draw(st.integers(1, 3)),
    }
    if kind == 'list':
        return lambda: made(examples, size, **arguments)
    nodes = [abs(x) for x in examples]
    return lambda: made(corpus(*nodes), size, max_nodes=7, **arguments)


@given(runs())
@settings(max_examples=drawn(20, 60))
def test_a_run_goes_on_from_any_place(run: Callable[[], Batches]) -> None:
    found = run()
    states, batches_, skipped = [found.state()], [], []
    for batch in found:
        states.append(found.state())
        batches_.append(told(batch))
        skipped.append(len(found.skipped))
    states.append(found.state())  # at the end, behind what was left out there
    for taken, state in enumerate(states):
        again = run()
        again.restore(state)
        assert_same(again.state(), state)
        assert [told(x) for x in again] == batches_[taken:]
        assert_same(again.state(), states[-1])
        assert len(again.skipped) == states[-1]['skipped'] - state['skipped']
    middle = states[len(states) // 2]
    found.restore(middle)  # back to where it was
    assert [told(x) for x in found] == batches_[len(states) // 2 :]
    assert len(found.skipped) == states[-1]['skipped'] - middle['skipped']
    assert skipped == [int(state['skipped']) for state in states[1:-1]]


def assert_same(got: dict[str, Array], want: dict[str, Array]) -> None:
    """The same states."""
    assert {k: (x.shape, x.dtype, x.tolist()) for k, x in got.items()} == {
        k: (x.shape, x.dtype, x.tolist()) for k, x in want.items()
    }


def test_the_state_is_of_what_was_delivered() -> None:
    found = made(range(10), 4, shuffle=jax.random.key(7), epochs=None, prefetch=3)
    shapes = {k: (x.shape, x.dtype) for k, x in found.state().items()}
    for _ in range(4):
        next(found)
    assert {k: x.tolist() for k, x in found.state().items()} == {
        'format': 1, 'key': [2, 0, 7, 0, 0], 'examples': 10, 'batch_size': 4,
        'max_nodes': -1, 'drop_remainder': 0,
        'epoch': 1, 'position': 4, 'batches': 4, 'skipped': 0,
    }  # fmt: skip
    found.close()
    stream = made(Stream(), 1).state()
    assert {k: (x.shape, x.dtype) for k, x in stream.items()} == shapes
    assert all(isinstance(x, np.ndarray) for x in stream.values())


@pytest.mark.parametrize('checkpointer', ['StandardCheckpointer', 'PyTreeCheckpointer'])
def test_orbax_keeps_states(checkpointer: str, tmp_path: Path) -> None:
    def run() -> Batches:
        return made(range(10), 4, shuffle=1, epochs=3)

    found = run()
    taken = [told(x) for x in itertools.islice(found, 4)]
    with getattr(ocp, checkpointer)() as keeper:
        keeper.save(tmp_path / 'state', found.state())
        if checkpointer == 'StandardCheckpointer':
            keeper.wait_until_finished()
            kept = keeper.restore(tmp_path / 'state', run().state())
        else:
            kept = keeper.restore(tmp_path / 'state')
    for state in (kept, jax.tree.map(jnp.asarray, kept)):
        again = run()
        again.restore(state)
        assert taken + [told(x) for x in again] == [told(x) for x in run()]


def test_a_run_goes_on_after_errors_ends_and_close() -> None:
    examples = [0, 1, 2, -3, 4]
    found = made(examples, 2)
    next(found)
    with pytest.raises(jf.InputError):
        next(found)
    state = found.state()
    found.restore(state)
    with pytest.raises(jf.InputError):
        next(found)
    examples[3] = 3
    found.restore(state)
    assert [real(x) for x in found] == [[2, 3], [4]]
    found.restore(state)
    found.close()
    assert list(found) == []
    found.restore(found.state())
    assert [real(x) for x in found] == [[2, 3], [4]]
    more = made(examples, 2, epochs=2)
    more.restore(found.state())
    assert [(x.epoch, real(x)) for x in more] == [(1, [0, 1]), (1, [2, 3]), (1, [4])]
    found.restore(more.state())
    assert list(found) == []


def test_restoring_ends_the_thread() -> None:
    found, thread = started()
    found.restore(found.state())
    assert not thread.is_alive()
    assert real(next(found)) == [1]
    found.close()


def test_streams_go_on_from_their_beginning() -> None:
    found = made(iter(range(9)), 2)
    next(found)
    next(found)
    again = made(iter(range(9)), 2)
    again.restore(found.state())
    assert [real(x) for x in again] == [[4, 5], [6, 7], [8]]
    with pytest.raises(ValueError, match='expected a stream that can be read from its'):
        found.restore(found.state())
    assert real(next(found)) == [4, 5]
    found.close()


# ---- what is refused -----------------------------------------------------------------

DIFFERENT: list[tuple[Any, int, dict[str, Any], str]] = [
    (range(9), 3, {'shuffle': 1}, 'batch_size 2 instead of 3'),
    (range(8), 2, {'shuffle': 1}, 'examples 9 instead of 8'),
    (range(9), 2, {}, 'key [0, 1] instead of []'),
    (range(9), 2, {'shuffle': jax.random.key(1, impl='rbg')},
     'key [0, 1] instead of [0, 1, 0, 1]'),
    (range(9), 2, {'shuffle': 1, 'drop_remainder': True},
     'drop_remainder 0 instead of 1'),
    (corpus(*[1] * 9), 2, {'shuffle': 1, 'max_nodes': 5},
     'max_nodes none instead of 5'),
    (Stream(), 4, {}, 'key [0, 1] instead of [], examples 9 instead of none, '
     'batch_size 2 instead of 4'),
]  # fmt: skip


@pytest.mark.parametrize(('source', 'size', 'arguments', 'text'), DIFFERENT)
def test_states_of_other_arguments(
    source: Any, size: int, arguments: dict[str, Any], text: str
) -> None:
    state = made(range(9), 2, shuffle=1).state()
    start = 'expected `state` of batches made with the same arguments, got one with '
    with refuses(f'{start}{text}: make them with these', ValueError):
        made(source, size, **arguments).restore(state)


def test_what_is_no_state() -> None:
    found = made(range(9), 2, epochs=2)
    state = found.state()
    for epoch, position in (0, 3), (1, 10):  # within a batch, beyond the end
        with refuses(
            f'expected a state at the end of a batch, got {position} examples of epoch '
            f'{epoch}: the source has changed',
            ValueError,
        ):
            found.restore(
                state | {'epoch': np.array(epoch), 'position': np.array(position)}
            )
    with refuses(
        'expected `state` of batches made with the same arguments, got one with format '
        '2 instead of 1: make them with these',
        ValueError,
    ):
        found.restore(state | {'format': np.array(2)})
    list(found)
    found.restore(found.state())
    assert list(found) == []


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        *(('position', x) for x in (16.5, 4.0, True, -2)),
        *(('epoch', -1), ('batches', 1.5), ('skipped', -3)),
    ],
)
@pytest.mark.parametrize('source', [range(9), Stream(*range(9))])
def test_numbers_that_no_state_has(name: str, value: Any, source: Any) -> None:
    """They are neither rounded nor taken for others."""
    found = made(source, 2)
    array = np.array(value)
    with refuses(
        f'expected `{name}` of a state as an int of 0 or more, got {value} '
        f'({array.dtype}): pass what `Batches.state` returned',
        ValueError,
    ):
        found.restore(found.state() | {name: array})


KEY = 'expected one PRNG key, an int seed or None as `shuffle`, got {}: '
KEY += '`shuffle=jax.random.key(0)`'
SINGLE = (
    'expected a corpus, a sequence or a stream of examples as `source`, got {}: pass '
    '`[example]` for a single one'
)
WRONG: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    ([], None, {}, TypeError, 'expected `batch_size` as int, got None'),
    ([], 2, {'prefetch': None}, TypeError, 'expected `prefetch` as int, got None'),
    ([], 2, {'epochs': 'x'}, TypeError, "expected `epochs` as int, got 'x'"),
    ([1], 2, {'epochs': None, 'drop_remainder': True}, ValueError,
     'expected `source` of at least one batch, for `epochs=None`, got 1 examples, '
     'where `batch_size=2` and `drop_remainder=True`'),
    ([], 2, {'max_nodes': 0}, ValueError,
     'expected `max_nodes` of at least 1, got 0; write `max_nodes=1` or more'),
    ([], 2, {'skip_errors': 1}, TypeError,
     'expected `skip_errors` as bool, got 1'),
    ([], 2, {'device_put': 1}, TypeError,
     'expected `device_put` as bool, got 1'),
    ([], 2, {'shuffle': np.zeros(2)}, TypeError, KEY.format('array([0., 0.])')),
    ([], 2, {'shuffle': np.zeros((1, 2), np.uint32)}, TypeError,
     KEY.format('array([[0, 0]], dtype=uint32)')),
    ('ab', 2, {}, TypeError, SINGLE.format('str')),
    (list, 2, {}, TypeError, SINGLE.format('type')),
    (np.zeros(()), 2, {}, TypeError, SINGLE.format('ndarray')),
]  # fmt: skip


@pytest.mark.parametrize(('source', 'size', 'arguments', 'error', 'text'), WRONG)
def test_wrong_arguments(
    source: Any, size: Any, arguments: dict[str, Any], error: Any, text: str
) -> None:
    with refuses(text, error):
        made(source, size, **arguments)


def test_what_is_no_model() -> None:
    model: Any = 3
    with refuses('expected a model as `jfold.compile` returns it, got int'):
        batches(model, [], 2)
