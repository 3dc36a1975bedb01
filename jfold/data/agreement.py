# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a run about batches that they share.

All parts of a batch need schedules of one capacity, and no process may wait for another
that has failed. So each tells the others what its part needs, or why there is none.
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

from jfold.base.errors import describe_error
from jfold.scheduling.shards import Shards
from jfold.scheduling.spec import Capacity

PATIENCE = 60.0  # seconds until a process that sends nothing counts as lost
Processes: TypeAlias = tuple[int, ...]  # their numbers, in order
# One counter for each group of processes: all of its members count alike, whatever
# channels some of them open in other groups.
_NUMBERS: defaultdict[Processes, Iterator[int]] = defaultdict(itertools.count)
Message = dict[str, Any]


@dataclass(eq=False)
class Agreement:
    """A subject that processes agree about, with a channel for each group of them.

    Attributes:
      what: the subject, for error messages.
      channels: those so far, by the processes that take part.
    """

    what: str
    channels: dict[Processes, Channel] = field(default_factory=dict)

    def among(self, shards: Shards) -> Channel:
        """Return the channel of the processes that have devices of a mesh."""
        processes = shards.processes
        if processes not in self.channels:
            self.channels[processes] = Channel(self.what, processes)
        return self.channels[processes]


@dataclass(eq=False)
class Channel:
    """A channel between processes, which all make the same calls in the same order.

    Attributes:
      what: the subject, for error messages.
      processes: those that take part, this one among them.
      number: the number of this channel among those of the same processes.
      rounds: how many rounds are over.
    """

    what: str
    processes: Processes
    number: int = field(init=False)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.number = next(_NUMBERS[self.processes])

    def need(self, need: Capacity) -> Capacity:
        """Return the capacity that holds the parts of all processes.

        Args:
          need: what the part of this process needs.

        Raises:
          RuntimeError: another has none, and why.
        """
        result = need  # with its shards, which no message holds
        for message in self._gather({'need': _numbers(need)}):
            result |= _capacity(message['need'], need.shards)
        return result

    def most(self, number: int) -> int:
        """Return the largest of the numbers of all processes.

        Raises:
          RuntimeError: as of `need`.
        """
        messages = self._gather({'number': number})
        return max(int(message['number']) for message in messages)

    def fail(self, error: Exception) -> None:
        """Tell the others that this process has no part, and why."""
        self._send({'failure': describe_error(error)})

    def finish(self) -> None:
        """Tell the others that this process has no more batches.

        Raises:
          RuntimeError: another has more.
        """
        self._gather({'ended': True})

    def _send(self, message: Message) -> None:
        key = self._key(self.rounds, jax.process_index())
        _store().key_value_set(key, json.dumps(message))

    def _key(self, number: int, process: int) -> str:
        """The key under which a process stores its message of a round."""
        return f'jfold/{self._name}/{self.number}/{number}/{process}'

    @functools.cached_property
    def _name(self) -> str:
        """A digest of the processes: as short for many as for few."""
        return hashlib.sha256(repr(self.processes).encode()).hexdigest()[:16]

    def _gather(self, message: Message) -> list[Message]:
        """Send a message; return those of all processes in this round, in order."""
        self._send(message)
        messages = {process: self._receive(process) for process in self.processes}
        for process, answer in messages.items():
            if 'failure' in answer:
                raise RuntimeError(
                    f'expected {self.what} of all processes, got an error in process '
                    f'{process}: {answer["failure"]}'
                )
        ended = [process for process, x in messages.items() if 'ended' in x]
        if ended and len(ended) < len(messages):
            raise RuntimeError(
                f'expected as many {self.what} of all processes, got no more of '
                f'process {ended[0]} after {self.rounds}: give each as many examples'
            )
        self._forget()
        self.rounds += 1
        return list(messages.values())

    def _receive(self, process: int) -> Message:
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
        """Delete this process's message of the round before, which all have read."""
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
    """Return the fields of a capacity by name, but for its shards."""
    names = (x.name for x in fields(capacity) if x.name != 'shards')
    return {name: getattr(capacity, name) for name in names}


def _capacity(numbers: Mapping[str, Any], shards: Shards | None) -> Capacity:
    """Return the capacity of numbers by name; the inverse of `_numbers`."""
    return Capacity(**{n: _tuples(x) for n, x in numbers.items()}, shards=shards)


def _tuples(x: object) -> Any:
    """Convert lists, nested ones too, to the tuples that they were before JSON."""
    return tuple(map(_tuples, x)) if isinstance(x, list) else x
