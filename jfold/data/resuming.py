# SPDX-License-Identifier: Apache-2.0
"""The progress of a run of batches, and its conversion to arrays, to resume it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.data.sampler import KEY_WORDS, Settings

Array = np.ndarray[Any, Any]

FORMAT = 1  # of what `Batches.state` returns


@dataclass(frozen=True)
class Progress:
    """The progress of a run of batches, up to the last batch that was delivered."""

    epoch: int = 0  # of the last batch
    # How many examples of the epoch are done, left out ones included, of all processes.
    position: int = 0
    batches: int = 0  # how many were delivered
    skipped: int = 0  # how many examples were left out


def state_of(settings: Settings, cursor: Progress) -> dict[str, Array]:
    """Return the arguments and progress of a run, in arrays of fixed shapes by name.

    All are int64 scalars, -1 for `None`, except `key` [1 + KEY_WORDS] uint32: how many
    words the key has, the words, and zeros.
    """
    key = [len(settings.key), *settings.key, *[0] * KEY_WORDS][: 1 + KEY_WORDS]
    fixed = 'examples', 'batch_size', 'max_nodes', 'drop_remainder'
    numbers = {'format': FORMAT} | {name: getattr(settings, name) for name in fixed}
    return {'key': np.array(key, np.uint32)} | {
        name: np.array(-1 if number is None else number, np.int64)
        for name, number in (numbers | vars(cursor)).items()
    }


def progress_of(settings: Settings, state: object) -> Progress:
    """Return the progress in a `state` that `state_of` returned.

    Raises:
      TypeError: `state` is no dict.
      ValueError: its arrays have other names or shapes, a count is no int of 0 or more,
        or the arguments of the run were others.
    """
    if not isinstance(state, Mapping):
        raise TypeError(
            'expected `state` as a dict, which `Batches.state` returns, got '
            f'{type(state).__name__}'
        )
    fresh = state_of(settings, Progress())
    arrays = {name: np.asarray(x) for name, x in state.items()}
    expected, got = ({k: x.shape for k, x in d.items()} for d in (fresh, arrays))
    if expected != got:
        raise ValueError(
            f'expected a state of arrays of shapes {expected}, got {got}: pass what '
            '`Batches.state` returned'
        )
    cursor = {name: _count(name, arrays[name]) for name in vars(Progress())}
    differing = [
        f'{name} {_shown(name, arrays[name])} instead of {_shown(name, value)}'
        for name, value in fresh.items()
        if name not in cursor and not np.array_equal(arrays[name], value)
    ]
    if differing:
        raise ValueError(
            'expected `state` of batches made with the same arguments, got one with '
            f'{", ".join(differing)}: make them with these'
        )
    return Progress(**cursor)


def _count(name: str, value: Array) -> int:
    """Return a count in a state, checked to be an int of 0 or more."""
    if value.dtype.kind not in 'iu' or value < 0:
        raise ValueError(
            f'expected `{name}` of a state as an int of 0 or more, got {value} '
            f'({value.dtype}): pass what `Batches.state` returned'
        )
    return int(value)


def _shown(name: str, value: Array) -> str:
    if name == 'key':
        return str(value[1 : 1 + int(value[0])].tolist())
    return 'none' if value == -1 else str(value)
