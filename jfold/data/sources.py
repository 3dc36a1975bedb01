# SPDX-License-Identifier: Apache-2.0
"""The sources of the examples of batches, and how each kind is scheduled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.data.agreement import Channel
from jfold.data.corpus import Corpus, adopt_corpus
from jfold.data.scheduler import Scheduler, Scheduling
from jfold.scheduling.assignment import (
    ShardAssignment,
    assign_evenly,
    default_assignment,
)
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.shards import Shards

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Source:
    """A source of examples: a corpus, a sequence or a stream.

    Its items are examples; for a corpus, places in it.

    Attributes:
      model: the model that the examples are scheduled for.
      argument: what the user passed; a corpus is adopted by the model.
      examples: how many examples there are; `None` for a stream.
      channel: the channel to other processes, if each has a stream of its own.
    """

    model: Scheduling
    argument: Any
    examples: int | None
    channel: Channel | None = None

    @property
    def corpus(self) -> Corpus | None:
        """The corpus of the examples; `None` if the source is no corpus."""
        return self.argument if _is_corpus(self.argument) else None

    def items(self, places: Array) -> list[Any] | Array:
        """Return items at `places` [n]; raise ValueError if the source grew or shrank.

        Not for a stream.
        """
        items = self.argument
        if self.corpus is not None:
            return places
        try:
            if len(items) == self.examples:
                return [items[i] for i in places.tolist()]
        except IndexError:
            if len(items) == self.examples:
                raise
        raise ValueError(
            f'expected a source of {self.examples} examples, as when its batches were '
            f'made, got one of {len(items)}: leave it alone while batches are taken, '
            'or pass a copy'
        )

    def build(
        self, items: Any, size: int, shards: Shards | None
    ) -> tuple[Schedule, ShardAssignment]:
        """Return the schedule of items, with `size` rows, and each item's shard."""
        corpus = self.corpus
        # A model that has grown has another scheduler than a corpus adopted before.
        maker: Any = self.model if corpus is None else corpus
        scheduler: Scheduler = maker.scheduler
        if shards is None:
            deal = default_assignment(len(items), size)
            return maker.schedule(items, size=size), deal
        if self.channel is not None:
            return scheduler.schedule_part(items, size, shards, self.channel)
        if corpus is None:
            selection = scheduler.select(items)
            work = selection.graph.nodes_of_examples
        else:
            selection, work = corpus.select(items), corpus.nodes[items]
        deal = assign_evenly(shards, size // shards.count, work.tolist())
        return scheduler.schedule(selection, deal), deal


def _is_corpus(source: object) -> bool:
    return hasattr(source, 'capacities_of')


def make_source(model: Scheduling, source: Any, shards: Shards | None = None) -> Source:
    """Return the `Source` for the argument `source` of `Model.batches`.

    Raises:
      TypeError: `source` holds no examples or may be one; or `model` is no model.
      ValueError: `source` is a corpus of another expression.
    """
    if not callable(getattr(model, 'schedule', None)):
        got = type(model).__name__
        raise TypeError(f'expected a model as `jfold.compile` returns it, got {got}')
    # A tuple, text or dict may be one example, passed by mistake in place of several.
    if not isinstance(source, tuple | str | bytes | Mapping | type):
        if _is_corpus(source):
            # All processes have the same corpus, so they need no messages.
            return Source(model, adopt_corpus(model.scheduler, source), len(source))
        if hasattr(source, '__len__') and hasattr(source, '__getitem__'):
            return Source(model, source, len(source))
        if isinstance(source, Iterable):
            if shards is None or shards.is_local:
                return Source(model, source, None)
            channel = Channel('batches', shards.processes)
            return Source(model, source, None, channel)
    raise TypeError(
        'expected a corpus, a sequence or a stream of examples as `source`, got '
        f'{type(source).__name__}: pass `[example]` for a single one'
        f'{", `list(source)` for several" if isinstance(source, tuple) else ""}'
    )
