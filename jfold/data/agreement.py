# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run tell each other about a batch that each has a part of.

Schedules of one batch need one capacity, and none may wait for what another will never
make. So each process tells the others what its part needs, or why there is none.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax

from jfold.errors import reason
from jfold.shards import Shards
from jfold.spec import Capacity

PATIENCE = 60.0  # seconds until a process that tells nothing counts as lost
_NUMBERS = itertools.count()
Message = dict[str, Any]


@dataclass(eq=False)
class Agreement:
    """Messages of all processes, round by round; each makes its own, in one order.

    Attributes:
      what: the processes agree about.
    """

    what: str
    number: int = field(default_factory=lambda: next(_NUMBERS))
    rounds: int = 0

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
        key = f'{self._round}/{jax.process_index()}'
        _store().key_value_set(key, json.dumps(message))

    @property
    def _round(self) -> str:
        return f'jfold/{self.number}/{self.rounds}'

    def _gather(self, message: Message) -> list[Message]:
        """What all processes tell in this round."""
        self._tell(message)
        told = [self._told_by(process) for process in range(jax.process_count())]
        for process, each in enumerate(told):
            if 'failure' in each:
                raise RuntimeError(
                    f'expected {self.what} of all processes, got an error in process '
                    f'{process}: {each["failure"]}'
                )
        ended = [process for process, each in enumerate(told) if 'ended' in each]
        if ended and len(ended) < len(told):
            raise RuntimeError(
                f'expected as many {self.what} of all processes, got no more of '
                f'process {ended[0]} after {self.rounds}: give each as many examples'
            )
        self._forget()
        self.rounds += 1
        return told

    def _told_by(self, process: int) -> Message:
        key = f'{self._round}/{process}'
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
            before = f'jfold/{self.number}/{self.rounds - 1}/{jax.process_index()}'
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


def _tuples(x: Any) -> Any:
    """Lists, and those in them, as the tuples that they were."""
    return tuple(map(_tuples, x)) if isinstance(x, list) else x
