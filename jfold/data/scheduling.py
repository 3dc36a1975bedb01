# SPDX-License-Identifier: Apache-2.0
"""Graphs to schedules, of one capacity or of one that has grown: half of a model."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jfold.budget import Budget, FixedBudget
from jfold.data.agreement import Agreement
from jfold.data.parts import Parts
from jfold.data.traced import Traced, graph_in, make_digest
from jfold.errors import rows_asked, several
from jfold.graph import Array, Graph, labels_of
from jfold.planning.at_once import Selection
from jfold.planning.deals import Deal
from jfold.planning.demands import Demands, demands, needed
from jfold.planning.growth import Chance
from jfold.planning.profiles import Profiles, margins, profiles
from jfold.planning.reads import Readable, reads
from jfold.planning.uses import Uses, make_uses
from jfold.program import Program
from jfold.schedule import Schedule, Source, build, build_shards
from jfold.spec import Capacity, Spec
from jfold.tracing.record import trace


@dataclass(frozen=True, eq=False)
class Chosen:
    """Examples of a corpus.

    Attributes:
      graph: that of all its examples.
      examples: [n] which of them, in order.
      readable: what keeps all that they read, if the program has no loops.
    """

    program: Program
    graph: Graph | Parts
    examples: Array
    readable: Readable | None

    def pick(self, which: Array) -> Chosen:
        """Some of them [n], in that order."""
        return replace(self, examples=self.examples[which])

    @property
    def picked(self) -> Graph:
        """The graph of them alone."""
        return self.graph.pick(self.examples)

    @property
    def source(self) -> Source:
        """What a schedule of them is made of."""
        if self.readable is None:
            return make_uses(self.program, self.picked)
        read = functools.partial(reads, self.readable)
        return Selection(self.readable.graph, self.examples, read)


class Scheduling:
    """What a corpus and batches ask of a model, which is one of these.

    Attributes:
      program: whose graphs these are.
    """

    program: Program
    _budget: Budget | FixedBudget

    def schedule(
        self, examples: Iterable[Any] | Traced, *, size: int | None = None
    ) -> Schedule:
        """What each of them has for users."""
        raise NotImplementedError

    def _graph(self, examples: Iterable[Any] | Traced) -> Graph:
        if not isinstance(examples, Traced):
            return trace(self.program, list(several(examples)))
        if examples.digest != self._digest:
            raise ValueError(
                'expected examples traced for this expression, got those of another: '
                'trace them with `model.tracer()` of the model that schedules them'
            )
        return graph_in(examples, self.program)

    @functools.cached_property
    def _digest(self) -> str:
        return make_digest(self.program)

    def _build(
        self,
        graph: Graph,
        size: int | None = None,
        begin: float | None = None,
    ) -> Schedule:
        """The schedule of a graph that was traced for this model's program.

        Args:
          begin: when the work on the schedule began, if it has.

        Raises:
          ValueError, ProgramBudgetError: as of `schedule`.
        """
        begin = time.perf_counter() if begin is None else begin
        rows = rows_asked(size, graph.examples)
        uses = make_uses(self.program, graph)
        need = self._profiled(needed(uses, rows), [graph])

        def chance() -> Chance:
            return self._chance(graph, demands(uses), graph.examples)

        labels = labels_of(self.program, [graph.labels])
        return build(uses, self._budget.reserve(need, chance), begin, labels)

    def _build_chosen(
        self, chosen: Chosen, demanded: Demands, size: int | None
    ) -> Schedule:
        """The same, of examples of a corpus, of which it is known what they demand."""
        begin = time.perf_counter()
        source, examples = chosen.source, len(chosen.examples)
        need = demanded.capacity(rows_asked(size, examples))
        need = self._profiled(need, [source.graph])
        chance = functools.partial(self._chance, source.graph, demanded, examples)
        labels = labels_of(self.program, [source.labels])
        return build(source, self._budget.reserve(need, chance), begin, labels)

    def _profiled(self, need: Capacity, graphs: Iterable[Graph]) -> Capacity:
        """What graphs need, with the rows of their levels if steps depend on them."""
        found = self._profiles(lambda: profiles(self.program, graphs))
        return replace(need, profiles=found) if found else need

    def _profiles(self, made: Callable[[], Profiles]) -> Profiles:
        """The rows of levels, which are made if the steps depend on them."""
        return made() if self._budget.has_profiles else ()

    def _chance(self, graph: Graph, demanded: Demands, examples: int) -> Chance:
        """How much more as many others may need than such a part of the examples."""
        more = demanded.chance(examples)
        found = self._profiles(lambda: margins(self.program, graph, examples))
        return {**more, 'profiles': found} if more and found else more

    def _uses(self, graph: Graph, examples: Iterable[Array]) -> list[Uses]:
        """What each part of some examples uses, given the numbers [n] in each."""
        return [make_uses(self.program, graph.pick(x)) for x in examples]

    def _need(self, parts: Sequence[Uses], deal: Deal) -> Capacity:
        """What each shard needs, given what it uses."""
        return self._profiled(deal.needed(parts), (uses.graph for uses in parts))

    def _build_dealt(
        self, graph: Graph, deal: Deal, begin: float | None = None
    ) -> Schedule:
        """As `_build`, of examples that are dealt to shards."""
        begin = time.perf_counter() if begin is None else begin
        parts = self._uses(graph, deal.examples)

        def chance() -> Chance:
            return self._chance(graph, deal.demands(parts), deal.rows)

        spec = self._budget.reserve(self._need(parts, deal), chance)
        return self._build_shards([parts[k] for k in deal.own], spec, begin)

    def _build_dealt_chosen(
        self, chosen: Chosen, demanded: Demands, deal: Deal
    ) -> Schedule:
        """The same, of examples of a corpus, of which it is known what they demand:
        uses are made of the shards of this process alone."""
        begin = time.perf_counter()
        parts = [chosen.pick(x) for x in deal.examples]
        need = self._profiled(deal.capacity(demanded), (x.picked for x in parts))

        def chance() -> Chance:
            return self._chance(chosen.picked, demanded, deal.rows)

        spec = self._budget.reserve(need, chance)
        return self._build_shards([parts[k].source for k in deal.own], spec, begin)

    def _build_shards(
        self, parts: Sequence[Source], spec: Spec, begin: float | None
    ) -> Schedule:
        """The schedule of what each shard of this process has."""
        labels = labels_of(self.program, [source.labels for source in parts])
        return build_shards(parts, spec, begin, labels)

    def _build_all(self, graphs: list[Graph], size: int | None) -> list[Schedule]:
        """The schedules of several graphs, all of one capacity."""
        begin = time.perf_counter()
        if not graphs:
            return []
        size = max(x.examples for x in graphs) if size is None else size
        rows = max(rows_asked(size, x.examples) for x in graphs)
        uses = [make_uses(self.program, x) for x in graphs]
        need = functools.reduce(operator.or_, (needed(x, rows) for x in uses))
        need = self._profiled(need, graphs)

        def chance() -> Chance:
            return self._chance(graphs[0], demands(uses[0]), graphs[0].examples)

        spec = self._budget.reserve(need, chance)
        return [
            build(x, spec, begin, labels_of(self.program, [x.labels])) for x in uses
        ]

    @functools.cached_property
    def _agreement(self) -> Agreement:
        return Agreement('schedules')
