# SPDX-License-Identifier: Apache-2.0
"""Models and sources that say what a batch was built of, and a watch on threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

import jfold as jf
from jfold.data.batches import Batch, Batches, batches
from jfold.scheduling.budget import FixedBudget
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Capacity

Array = np.ndarray[Any, Any]
negate = jf.Scalar() >> jf.Function(jnp.negative)
MODEL = jf.compile(negate)
SPEC = jf.compile(negate).schedule([1]).spec
PATIENCE = 30  # seconds until something that must happen counts as failed


@dataclass(eq=False)
class FakeScheduler:
    """Has room for everything."""

    budget: FixedBudget = field(default_factory=lambda: FixedBudget(()))


@dataclass(eq=False)
class FakeModel:
    """Takes ints that are not negative; its schedules hold them, and spare rows."""

    built: list[list[int]] = field(default_factory=list)
    scheduler: FakeScheduler = field(default_factory=FakeScheduler)

    def schedule(self, examples: list[int], *, size: int | None = None) -> Schedule:
        """What a real model does, but for the tables."""
        for error in self._errors(examples):
            raise error
        self.built.append(examples)
        rows = [*examples, *[examples[-1]] * (size - len(examples))]
        return Schedule(np.array(rows, np.int32), (), SPEC, 0.5)

    def trace(self, examples: list[int], **_: bool) -> Any:
        """A corpus that has left out what does not fit."""
        errors = [*self._errors(examples)]
        return SimpleNamespace(skipped=[(x.example, str(x)) for x in errors])

    def _errors(self, examples: list[int]) -> Iterator[jf.InputError]:
        for place, example in enumerate(examples):
            if example < 0:
                yield jf.InputError(f'got {example}', place, "['x']", 'Fake')


@dataclass(eq=False)
class FakeCorpus:
    """Examples that are their own numbers, of so many operations each."""

    model: FakeModel
    nodes: Array

    @property
    def scheduler(self) -> FakeScheduler:
        """That of its model."""
        return self.model.scheduler

    def __len__(self) -> int:
        return len(self.nodes)

    def schedule(self, indices: Array, *, size: int | None = None) -> Schedule:
        """As of a corpus."""
        assert indices.dtype == np.int64
        return self.model.schedule(indices.tolist(), size=size)

    def capacities_of(self, batches: Iterable[Array], size: int) -> Capacity:
        """As of a corpus, for the number of nodes."""
        rows = max((int(self.nodes[x].sum()) for x in batches), default=0)
        return Capacity(size, 0, (), (rows,), (), (), 0, ())


def corpus(*nodes: int) -> FakeCorpus:
    """A corpus of examples of so many operations."""
    return FakeCorpus(FakeModel(), np.array(nodes, np.int64))


class Stream:
    """An iterable that begins anew each time."""

    def __init__(self, *examples: Any) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)


def made(source: Any, size: int, **arguments: Any) -> Batches:
    """Batches of a fake model."""
    model: Any = source.model if isinstance(source, FakeCorpus) else FakeModel()
    return batches(model, source, size, **arguments)


def real(batch: Batch) -> list[int]:
    """The places of the real examples."""
    return batch.indices[batch.mask].tolist()


def told(batch: Batch) -> tuple[int, list[int], list[int], list[int]]:
    """All that can be compared."""
    rows = np.asarray(batch.schedule.indices).tolist()
    return batch.epoch, batch.indices.tolist(), batch.mask.tolist(), rows


def threads() -> set[threading.Thread]:
    """The prefetching threads that run."""
    return {x for x in threading.enumerate() if x.name == 'jfold.Prefetcher'}


def started(**arguments: Any) -> tuple[Batches, threading.Thread]:
    """Batches of which one was taken, and their thread."""
    before = threads()
    found = made(range(100), 1, epochs=None, **arguments)
    next(found)
    (thread,) = threads() - before
    return found, thread
