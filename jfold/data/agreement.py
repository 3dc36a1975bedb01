# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run tell each other about a batch that each has a part of.

Schedules of one batch need one capacity, and none may wait for what another will never
make. So each process tells the others what its part needs, or why there is none.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import jax

from jfold.base.errors import reason
from jfold.scheduling.shards import Shards
from jfold.scheduling.spec import Capacity

PATIENCE = 60.0  # seconds until a process that tells nothing counts as lost
Processes: TypeAlias = tuple[int, ...]  # their numbers, in order
# Counted apart, since nobody knows of what others have begun without him.
_NUMBERS: defaultdict[Processes, Iterator[int]] = defaultdict(itertools.count)
Message = dict[str, Any]


@dataclass(eq=False)
class Agreement:
    """What some processes agree about; others are not asked.

    Attributes:
      what: they agree about.
      talks: those begun so far, by the processes that take part.
    """

    what: str
    talks: dict[Processes, Channel] = field(default_factory=dict)

    def among(self, shards: Shards) -> Channel:
        """Of the processes that have devices of a mesh."""
        processes = shards.processes
        if processes not in self.talks:
            self.talks[processes] = Channel(self.what, processes)
        return self.talks[processes]


@dataclass(eq=False)
class Channel:
    """Messages of some processes, round by round; each makes its own, in one order.

    Attributes:
      what: the processes agree about.
      processes: those that take part, this one among them.
      number: of the talks of these processes.
      rounds: that are over.
    """

    what: str
    processes: Processes
    number: int = field(init=False)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.number = next(_NUMBERS[self.processes])

    def need(self, own: Capacity) -> Capacity:
        """What the largest part needs, given what that of this process does.

        Raises:
          RuntimeError: another has none, and why.
        """
        told = self._gather({'need': _numbers(own)})
        found = [_capacity(each['need'], own.shards) for each in told]
        result = own
        for each in found:
            result |= each
        return result

    def most(self, number: int) -> int:
        """The largest number that a process tells.

        Raises:
          RuntimeError: as of `need`.
        """
        told: list[int] = [each['number'] for each in self._gather({'number': number})]
        return max(told)

    def fail(self, error: Exception) -> None:
        """Tells the others that this process has none, and why."""
        self._tell({'failure': reason(error)})

    def finish(self) -> None:
        """Tells that this process has no more.

        Raises:
          RuntimeError: another has.
        """
        self._gather({'ended': True})

    def _tell(self, message: Message) -> None:
        key = self._key(self.rounds, jax.process_index())
        _store().key_value_set(key, json.dumps(message))

    def _key(self, number: int, process: int) -> str:
        """Of the message of a process in a round."""
        return f'jfold/{self._name}/{self.number}/{number}/{process}'

    @functools.cached_property
    def _name(self) -> str:
        """Of the processes, short however many there are."""
        return hashlib.sha256(repr(self.processes).encode()).hexdigest()[:16]

    def _gather(self, message: Message) -> list[Message]:
        """What all processes tell in this round."""
        self._tell(message)
        told = {process: self._told_by(process) for process in self.processes}
        for process, each in told.items():
            if 'failure' in each:
                raise RuntimeError(
                    f'expected {self.what} of all processes, got an error in process '
                    f'{process}: {each["failure"]}'
                )
        ended = [process for process, each in told.items() if 'ended' in each]
        if ended and len(ended) < len(told):
            raise RuntimeError(
                f'expected as many {self.what} of all processes, got no more of '
                f'process {ended[0]} after {self.rounds}: give each as many examples'
            )
        self._forget()
        self.rounds += 1
        return list(told.values())

    def _told_by(self, process: int) -> Message:
        key = self._key(self.rounds, process)
        try:
            text = _store().blocking_key_value_get(key, int(1000 * PATIENCE))
        except Exception as error:
            raise RuntimeError(
                f'expected {self.what} of all processes, heard nothing of process '
                f'{process} for {PATIENCE:g} seconds'
            ) from error
        message: Message = json.loads(text)
        return message

    def _forget(self) -> None:
        """Takes back what was told a round before: who has told now has heard it."""
        if self.rounds:
            before = self._key(self.rounds - 1, jax.process_index())
            _store().key_value_delete(before)


def _store() -> Any:
    """The key-value store of JAX's coordinator.

    Not a collective of the devices: one from a thread of its own would come in another
    order in each process, and the training step would wait for ever.
    """
    from jax._src import distributed

    return distributed.global_state.client


def _numbers(capacity: Capacity) -> Message:
    """A capacity by the names of its fields, less its shards."""
    names = (each.name for each in fields(capacity) if each.name != 'shards')
    return {name: getattr(capacity, name) for name in names}


def _capacity(numbers: Mapping[str, Any], shards: Shards | None) -> Capacity:
    """The inverse of `_numbers`."""
    return Capacity(**{n: _tuples(x) for n, x in numbers.items()}, shards=shards)


def _tuples(x: object) -> Any:
    """Lists, and those in them, as the tuples that they were."""
    return tuple(map(_tuples, x)) if isinstance(x, list) else x
