# SPDX-License-Identifier: Apache-2.0
"""The tracing of examples to a corpus, chunk by chunk."""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.base.errors import InputError
from jfold.data.corpus import Corpus
from jfold.data.scheduler import Scheduler
from jfold.graph import Graph, concatenate
from jfold.program.operations import Program
from jfold.scheduling.demands import demands, join_demands
from jfold.scheduling.selections import Demands, select
from jfold.tracing.record import trace

Array = np.ndarray[Any, Any]
CHUNK_WORK = 1 << 17  # nodes and numbers traced at once: fast, and little memory
FIRST_CHUNK, LARGEST_CHUNK = 64, 4096  # examples; later ones may be larger
BAR_DELAY = 3.0  # seconds before there is a progress bar


def trace_corpus(
    scheduler: Scheduler, examples: Iterable[Any], skip_errors: bool, progress: bool
) -> Corpus:
    """Return a corpus of examples, for `Model.trace`."""
    tracing = Tracing(scheduler.program, skip_errors)
    size = operator.length_hint(examples, -1)
    with progress_bar('trace', size if size >= 0 else None, progress) as update:
        iterator = iter(examples)
        while chunk := list(itertools.islice(iterator, tracing.chunk)):
            tracing.add(chunk)
            update(len(chunk))
            del chunk  # so that no two are in memory
    return tracing.corpus(scheduler)


@dataclass(eq=False)
class Tracing:
    """A trace of examples, chunk by chunk."""

    program: Program
    skip_errors: bool
    chunk: int = FIRST_CHUNK  # how many examples to add next
    seen: int = 0  # how many examples were added
    # Graphs, their demands, and the places of their examples; places and errors.
    parts: list[tuple[Graph, Demands, Array]] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)

    def add(self, examples: list[Any]) -> None:
        """Trace the next examples, and choose the size of the chunk after them."""
        work = 0
        for part in self._parts(examples):
            self.parts.append(part)
            graph, *_ = part
            sizes = (table.columns[0].size for table in graph.constants)
            work += max(graph.nodes, sum(sizes))
        self.seen += len(examples)
        likely = CHUNK_WORK * len(examples) // max(work, len(examples))
        self.chunk = min(max(likely, 1), 2 * self.chunk, LARGEST_CHUNK)

    def corpus(self, scheduler: Scheduler) -> Corpus:
        """Return a corpus of all examples so far."""
        parts = self.parts or [self._part([], np.zeros(0, np.int64))]
        graphs, demanded, sources = zip(*parts, strict=True)
        return Corpus(
            scheduler,
            concatenate(graphs),
            join_demands(demanded),
            np.concatenate(sources),
            tuple(sorted(self.skipped)),
        )

    def _parts(self, examples: list[Any]) -> Iterator[tuple[Graph, Demands, Array]]:
        """Yield parts with all good examples, in order.

        Where there is a bad one, halves of the others are traced, so that many bad ones
        cost little more than a few.
        """
        waiting = [np.arange(len(examples))]
        while waiting:
            places = waiting.pop()
            try:
                chosen = list(map(examples.__getitem__, places.tolist()))
                yield self._part(chosen, self.seen + places)
            except InputError as error:
                located = error.renumbered(self.seen + int(places[error.example]))
                if not self.skip_errors:
                    located = located.with_traceback(error.__traceback__)
                    raise located from error.__cause__
                self.skipped.append((located.example, str(located)))
                others = np.delete(places, error.example)
                halves = np.array_split(others, 2)[::-1]
                waiting += [half for half in halves if len(half)]

    def _part(self, examples: list[Any], source: Array) -> tuple[Graph, Demands, Array]:
        """Return examples traced together, with their places `source` [n]."""
        graph = trace(self.program, examples)
        return graph, demands(select(self.program, graph)), source


@contextlib.contextmanager
def progress_bar(
    what: str, total: int | None, progress: bool
) -> Iterator[Callable[[int], object]]:
    """Show a progress bar, if it takes a while; yield a function to advance it."""
    if not progress:  # a bar that shows nothing takes 2 % of tracing a small batch
        yield lambda count: None
        return
    from tqdm import tqdm

    # A notebook can show a bar, though it says that it is no terminal.
    disable = False if _is_notebook() else None
    options: dict[str, Any] = {'unit': ' examples', 'delay': BAR_DELAY, 'leave': False}
    with tqdm(desc=what, total=total, disable=disable, **options) as bar:
        yield bar.update


def _is_notebook() -> bool:
    """Return whether this code runs under IPython."""
    ipython = sys.modules.get('IPython')
    return getattr(ipython, 'get_ipython', lambda: None)() is not None
