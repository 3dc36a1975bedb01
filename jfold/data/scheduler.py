# SPDX-License-Identifier: Apache-2.0
"""The `Scheduler`, which turns selections of traced examples into schedules.

A budget keeps the capacities in use, and adds one if none holds a selection. A schedule
has the shapes of its capacity, and spare room in them. Examples may be assigned to
shards; a single device is one shard. Times are those of `time.perf_counter`.
"""

from __future__ import annotations

import copy
import functools
import operator
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np

from jfold.base.arguments import check_examples
from jfold.data.adoption import Traced, graph_in
from jfold.data.agreement import Channel, Processes
from jfold.data.fingerprint import digest_of, fingerprint
from jfold.files.encoding import Encoder, decode
from jfold.graph import labels_of
from jfold.language.portable import portable
from jfold.lower import lower_typed
from jfold.program.operations import Program
from jfold.scheduling.budget import Budget, FixedBudget
from jfold.scheduling.demands import capacity, chance, demands, margins, profiles
from jfold.scheduling.fill import fill
from jfold.scheduling.growth import Headroom
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.selections import Selection, select
from jfold.scheduling.shard_assignment import (
    ShardAssignment,
    assign_in_order,
    default_assignment,
    rows_of_shard,
)
from jfold.scheduling.shards import Shards
from jfold.scheduling.spec import Capacity, Spec, of_one_shard
from jfold.tracing.record import trace


class Scheduling(Protocol):
    """The protocol of a model, as far as loading corpora and making batches need it."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the model."""


@dataclass(frozen=True, eq=False)
class Scheduler:
    """A maker of schedules from selections of examples, in a budget of capacities.

    Attributes:
      program: the program that the examples were traced for.
      budget: the capacities in use, each a program to compile, and their limit; without
        a model a `FixedBudget` that has none.
      channels: the channels to other processes, by the processes that take part.
    """

    program: Program
    budget: Budget | FixedBudget
    channels: dict[Processes, Channel] = field(default_factory=dict)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the fingerprint of the expression."""
        return digest_of(fingerprint(self.program))

    def channel(self, shards: Shards) -> Channel:
        """Return the channel of processes with devices of `shards`, opened if new."""
        processes = shards.processes
        if processes not in self.channels:
            self.channels[processes] = Channel('schedules', processes)
        return self.channels[processes]

    def without_limit(self) -> Scheduler:
        """Return a scheduler with the same capacities, and no limit to their number."""
        budget = self.budget.without_limit()
        return self if budget is self.budget else replace(self, budget=budget)

    def portable(self) -> Scheduler:
        """Return a scheduler for other processes, without budget and layers."""
        return _decoded(_encoded(self.program))

    def __deepcopy__(self, memo: dict[int, Any]) -> Scheduler:
        """Return a scheduler of the same program with a copy of the budget."""
        return Scheduler(self.program, copy.deepcopy(self.budget, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _decoded, (_encoded(self.program),)

    def select(self, examples: Iterable[Any] | Traced) -> Selection:
        """Return the selection of all `examples`, traced here if no tracer has done so.

        Raises the errors of `Model.schedule`.
        """
        if not isinstance(examples, Traced):
            graph = trace(self.program, list(check_examples(examples)))
            return select(self.program, graph)
        if examples.digest != self.digest:
            raise ValueError(
                'expected examples traced for this expression, got those of another: '
                'trace them with `model.tracer()` of the model that schedules them, '
                'made again if its program has grown since'
            )
        return select(self.program, graph_in(examples, self.program))

    def schedule(
        self,
        selection: Selection,
        deal: ShardAssignment,
        begin: float | None = None,
        channel: Channel | None = None,
    ) -> Schedule:
        """Return the schedule of `selection`, whose examples `deal` assigns to shards.

        Args:
          begin: when the work began; `None` for now.
          channel: the channel to the processes with other shards; all make this call.

        Raises:
          ProgramBudgetError: the budget has no room; then nothing has changed.
          RuntimeError: another process has failed, has no more batches or is silent.
        """
        begin = time.perf_counter() if begin is None else begin
        parts = deal.parts(selection)
        need = self._need(parts, deal)
        if channel is not None:
            need = channel.need(need)
        headroom_of = functools.partial(self._headroom, selection, max(map(len, parts)))
        # Headroom is estimated from local examples, so processes would disagree.
        headroom = dict if channel else headroom_of
        with self.budget.reserving(need, headroom) as spec:
            return build([parts[k] for k in deal.own], spec, begin)

    def schedule_part(
        self,
        examples: Iterable[Any] | Traced,
        size: int | None,
        shards: Shards,
        channel: Channel,
        begin: float | None = None,
    ) -> tuple[Schedule, ShardAssignment]:
        """Return the schedule of a batch shared by processes, and the shard assignment.

        All processes with devices of the mesh call this together. This one's examples
        are assigned to its shards. If tracing fails here, the error is also sent to the
        others.

        Args:
          examples: the part of this process, for its shards in order.
          size: rows of the results of all parts; by default as many in each shard as
            the largest part needs.
          channel, begin: see `schedule`.

        Raises:
          Those of `schedule`, `select` and `rows_of_shard`.
        """
        count = len(shards.own)
        try:
            selection = self.select(examples)
            part = None
            if size is not None:
                part = rows_of_shard('size', shards, 0, size) * count
            rows = rows_of_shard('size', shards, len(selection), part, count)
        except Exception as error:
            channel.fail(error)
            raise
        rows = channel.most(rows) if size is None else rows
        deal = assign_in_order(shards, rows, len(selection), count)
        return self.schedule(selection, deal, begin, channel), deal

    def schedules(
        self, selections: Sequence[Selection], size: int | None = None
    ) -> list[Schedule]:
        """Return schedules of several selections, all of one capacity.

        Args:
          size: rows of the results of each schedule; by default the number of examples
            of the largest selection.

        Raises:
          ProgramBudgetError: see `schedule`.
        """
        begin = time.perf_counter()
        if not selections:
            return []
        size = max(map(len, selections)) if size is None else size
        deals = [default_assignment(len(x), size) for x in selections]
        need, first = self._need(selections, deals[0]), selections[0]
        headroom = functools.partial(self._headroom, first, len(first))
        with self.budget.reserving(need, headroom) as spec:
            return [build([selection], spec, begin) for selection in selections]

    def _need(self, parts: Sequence[Selection], deal: ShardAssignment) -> Capacity:
        """Return the least capacity, with the rows of `deal`, that holds each part."""
        program, size, shards = self.program, deal.rows, deal.shards
        needs = (capacity(program, demands(x), size, shards) for x in parts)
        need = functools.reduce(operator.or_, needs)
        if not self.budget.has_profiles:
            return need
        return replace(need, profiles=profiles(program, parts))

    def _headroom(self, selection: Selection, examples: int) -> Headroom:
        """Estimate how much more room other batches of `examples` examples may need.

        Batches differ by chance. Empty if the selection has too few examples.
        """
        more = chance(self.program, demands(selection), examples)
        if not (more and self.budget.has_profiles):
            return more
        return {**more, 'profiles': margins(selection, examples)}


def build(
    parts: Sequence[Selection], spec: Spec, begin: float | None = None
) -> Schedule:
    """Return the schedule of a batch; `parts` has the examples of each local shard.

    Args:
      spec: a spec whose capacity holds each part.
      begin: when the work began; `None` to measure no time.
    """
    shards, local = spec.shards, of_one_shard(spec)
    if shards is None:
        ((indices, constants),) = (fill(part, local) for part in parts)
    else:
        devices = len(shards.sharding.addressable_devices)
        filled = [fill(part, local, devices) for part in parts]
        stacked = jax.tree.map(lambda *x: np.stack(x), *filled)
        indices, constants = jax.tree.map(shards.gathered, stacked)
    labels = labels_of(spec.program, [part.labels for part in parts])
    seconds = None if begin is None else time.perf_counter() - begin
    return Schedule(indices, constants, spec, seconds, labels)


# ---- for other processes -------------------------------------------------------------


def _encoded(program: Program) -> tuple[Any, ...]:
    """Return a program as flat records for pickle, with users' objects as they are."""
    encoder = Encoder(by_name=False)
    return encoder.encode(portable(program)), encoder.records, encoder.arrays


def _decoded(records: tuple[Any, ...]) -> Scheduler:
    """Return a scheduler of the program in `_encoded` records, without layers."""
    return Scheduler(lower_typed(*decode(*records)), FixedBudget(()))
