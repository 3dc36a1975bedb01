# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a run, so that schedules of shared batches agree.

The parts of a batch in all processes need one capacity, and no process may wait for one
that has failed. So for each batch a process sends what its part needs, or its error.
Whoever waits for others raises RuntimeError if one has sent an error, has no more
batches, or has sent nothing for `PATIENCE` seconds.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import jax

from jfold.base.errors import describe_error
from jfold.scheduling.spec import Capacity

PATIENCE = 60.0  # seconds until a process that sends nothing counts as lost
Processes: TypeAlias = tuple[int, ...]  # their indices in JAX, ascending
# One counter for each group of processes, so that all its members give a channel the
# same number, whatever channels some of them open in other groups.
_NUMBERS: defaultdict[Processes, Iterator[int]] = defaultdict(itertools.count)
Message = dict[str, Any]


@dataclass(eq=False)
class Channel:
    """A channel between processes, which all make the same calls in the same order.

    In each round every process sends one message and reads those of all.
    """

    what: str  # the subject, a plural for error messages
    processes: Processes  # those that take part, this one among them
    rounds: int = 0  # how many are complete
    _prefix: str = field(init=False)  # of the keys of its messages

    def __post_init__(self) -> None:
        group = hashlib.sha256(repr(self.processes).encode()).hexdigest()[:16]
        self._prefix = f'jfold/{group}/{next(_NUMBERS[self.processes])}'

    def need(self, need: Capacity) -> Capacity:
        """Return the least capacity that holds the `need` that each process passed."""
        result = need  # with its shards, which no message holds
        for message in self._gather({'need': capacity_as_json(need)}):
            result |= replace(capacity_of_json(message['need']), shards=need.shards)
        return result

    def most(self, number: int) -> int:
        """Return the largest `number` that any of the processes passed."""
        messages = self._gather({'number': number})
        return max(int(message['number']) for message in messages)

    def fail(self, error: Exception) -> None:
        """Tell the other processes that this one failed by `error`; do not wait."""
        self._send({'failure': describe_error(error)})
        self.rounds += 1  # as in the processes that read the message

    def finish(self) -> None:
        """Tell the other processes that this one has no more batches; wait for all.

        Raises RuntimeError also if another process has more batches.
        """
        self._gather({'ended': True})

    def _send(self, message: Message) -> None:
        key = self._key(self.rounds, jax.process_index())
        _store().key_value_set(key, json.dumps(message))

    def _key(self, number: int, process: int) -> str:
        """Return the coordinator's key for a process's message in round `number`."""
        return f'{self._prefix}/{number}/{process}'

    def _gather(self, message: Message) -> list[Message]:
        """Send a message; wait for, and return, the messages of all processes."""
        self._send(message)
        messages, store = dict[int, Message](), _store()
        for process in self.processes:
            key = self._key(self.rounds, process)
            try:
                text = store.blocking_key_value_get(key, int(1000 * PATIENCE))
            except Exception as error:
                raise RuntimeError(
                    f'expected {self.what} of all processes, heard nothing of process '
                    f'{process} for {PATIENCE:g} seconds'
                ) from error
            messages[process] = json.loads(text)
        # All have sent a message of this round, so they have read the previous ones.
        if self.rounds:
            store.key_value_delete(self._key(self.rounds - 1, jax.process_index()))
        done, self.rounds = self.rounds, self.rounds + 1
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
                f'process {ended[0]} after {done}: give each as many examples'
            )
        return list(messages.values())


def _store() -> Any:
    """Return the key-value store of JAX's coordinator, a process that all can reach.

    A collective of the devices would not do: issued from a separate thread, it would
    have another order in each process, and the training step would wait for ever.
    """
    from jax._src import distributed

    return distributed.global_state.client


def capacity_as_json(capacity: Capacity) -> Message:
    """Return the fields of a capacity by name, without `shards`."""
    names = (x.name for x in fields(capacity) if x.name != 'shards')
    return {name: getattr(capacity, name) for name in names}


def capacity_of_json(numbers: Mapping[str, Any]) -> Capacity:
    """Return the capacity, without shards, of the fields `numbers` read from JSON."""
    return Capacity(**{name: _tuples(x) for name, x in numbers.items()})


def _tuples(x: object) -> Any:
    """Return `x` with tuples in place of lists, nested ones too, as before JSON."""
    return tuple(map(_tuples, x)) if isinstance(x, list) else x
