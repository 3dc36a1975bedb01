# SPDX-License-Identifier: Apache-2.0
"""Where the examples of batches come from, and who makes schedules of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from jfold.data.agreement import Agreement, Channel
from jfold.data.corpus import Corpus, suited
from jfold.data.scheduler import Scheduler
from jfold.data.traced import Traced
from jfold.scheduling.assignment import ShardAssignment, evenly, in_order, rows_of_shard
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.shards import Shards

Array = np.ndarray[Any, Any]
# A schedule, and which of its examples went to which shard, if there are any.
Dealt: TypeAlias = tuple[Schedule, ShardAssignment | None]


class Scheduling(Protocol):
    """A model, as far as batches need one."""

    @property
    def scheduler(self) -> Scheduler:
        """What makes its schedules."""

    def schedule(self, examples: list[Any], *, size: int | None = None) -> Schedule:
        """See `Model.schedule`."""


@dataclass(frozen=True, eq=False)
class Source:
    """Where examples come from.

    Attributes:
      given: the argument.
      build: makes the schedule of items, with so many rows.
      agreement: with other processes, if each has a part of the batches.
      items: those at some places; a stream has none.
      corpus: the argument, if it is one.
    """

    given: Any
    build: Callable[[list[Any], int, Shards | None], Dealt]
    agreement: Channel | None = None
    items: Callable[[Array], list[Any]] | None = None
    corpus: Corpus | None = None

    def fail(self, error: Exception) -> None:
        """Tells other processes that there is no more, and why."""
        if self.agreement is not None:
            self.agreement.fail(error)

    def finish(self) -> None:
        """Tells other processes that there is no more."""
        if self.agreement is not None:
            self.agreement.finish()

    @property
    def nodes(self) -> Array | None:
        """The operations of each example [examples] int64, if they are known."""
        return None if self.corpus is None else self.corpus.nodes


def make_source(model: Scheduling, given: Any, shards: Shards | None = None) -> Source:
    """The source that an argument is, for batches that are dealt to shards or not.

    Raises:
      TypeError: it is none, or `model` no model; ValueError: it is a corpus of another.
    """
    if not callable(getattr(model, 'schedule', None)):
        got = type(model).__name__
        raise TypeError(f'expected a model as `jfold.compile` returns it, got {got}')
    agreement = None
    if shards is not None and not shards.is_local:
        agreement = Agreement('batches').among(shards)
    traced = functools.partial(_traced, model, agreement)
    if not isinstance(given, tuple | str | bytes | Mapping | type):
        if hasattr(given, 'capacities_of'):
            given = suited(model.scheduler, given)
            stored = functools.partial(_stored, given)
            items = lambda places: list(places.tolist())  # noqa: E731
            return Source(given, stored, None, items, given)
        if hasattr(given, '__len__') and hasattr(given, '__getitem__'):
            items = functools.partial(_taken, given, len(given))
            return Source(given, traced, None, items)
        if isinstance(given, Iterable):
            return Source(given, traced, agreement)
    raise TypeError(
        'expected a corpus, a sequence or a stream of examples as `source`, got '
        f'{type(given).__name__}: pass `[example]` for a single one'
        f'{", `list(source)` for several" if isinstance(given, tuple) else ""}'
    )


def _traced(
    model: Scheduling,
    agreement: Channel | None,
    items: list[Any],
    size: int,
    shards: Shards | None,
) -> Dealt:
    """The schedule of examples."""
    if shards is None:
        return model.schedule(items, size=size), None
    if agreement is not None:
        return schedule_part(model.scheduler, items, size, shards, agreement)
    selection = model.scheduler.select(items)
    work = selection.graph.nodes_of_examples.tolist()
    deal = evenly(shards, size // shards.count, work)
    return model.scheduler.schedule(selection, deal), deal


def schedule_part(
    scheduler: Scheduler,
    examples: Iterable[Any] | Traced,
    size: int | None,
    shards: Shards,
    agreement: Channel,
    begin: float | None = None,
) -> tuple[Schedule, ShardAssignment]:
    """The schedule of a batch of which this process has a part, in order.

    All processes that have devices of the mesh call it together.

    Args:
      examples: of the part.
      size: rows of the whole batch; as many as the largest part asks for if left out.

    Raises:
      RuntimeError: another process has no part, and why.
    """
    own = len(shards.own)
    try:
        selection = scheduler.select(examples)
        part = None if size is None else rows_of_shard('size', shards, 0, size) * own
        rows = rows_of_shard('size', shards, len(selection), part, own)
    except Exception as error:
        agreement.fail(error)
        raise
    rows = agreement.most(rows) if size is None else rows
    deal = in_order(shards, rows, len(selection), own)
    return scheduler.schedule(selection, deal, begin, agreement), deal


def _stored(
    corpus: Corpus, items: list[Any], size: int, shards: Shards | None
) -> Dealt:
    """The schedule of examples of a corpus, of which items are the places."""
    places = np.array(items, np.int64)
    if shards is None:
        return corpus.schedule(places, size=size), None
    work = corpus.nodes[places].tolist()
    deal = evenly(shards, size // shards.count, work)
    return corpus.scheduler.schedule(corpus.select(places), deal), deal


def _taken(given: Sequence[Any], length: int, places: Array) -> list[Any]:
    """Items of a sequence, which must be as long as it was."""
    try:
        if len(given) == length:
            return [given[i] for i in places.tolist()]
    except IndexError:
        if len(given) == length:
            raise
    raise ValueError(
        f'expected a source of {length} examples, as when its batches were made, got '
        f'one of {len(given)}: leave it alone while batches are taken, or pass a copy'
    )
