# SPDX-License-Identifier: Apache-2.0
"""Examples to a corpus, chunk by chunk."""

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
FIRST_CHUNK, LARGEST_CHUNK = 64, 4096  # examples; the next may be larger than any yet
BAR_DELAY = 3.0  # seconds before there is a progress bar


def trace_corpus(
    scheduler: Scheduler, examples: Iterable[Any], skip_errors: bool, progress: bool
) -> Corpus:
    """See `Model.trace`."""
    tracing = Tracing(scheduler.program, skip_errors)
    size = operator.length_hint(examples, -1)
    with progress_bar('trace', size if size >= 0 else None, progress) as update:
        rest = iter(examples)
        while chunk := list(itertools.islice(rest, tracing.chunk)):
            tracing.add(chunk)
            update(len(chunk))
            del chunk  # before there is another
    return tracing.corpus(scheduler)


@dataclass(eq=False)
class Tracing:
    """Traces chunk by chunk."""

    program: Program
    skip_errors: bool
    chunk: int = FIRST_CHUNK
    seen: int = 0
    parts: list[tuple[Graph, Demands, Array]] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)

    def add(self, examples: list[Any]) -> None:
        """Traces the next examples, and chooses how many come after them."""
        work = 0
        for part in self._good(examples):
            self.parts.append(part)
            graph, *_ = part
            own = (table.columns[0].size for table in graph.constants)
            work += max(graph.nodes, sum(own))
        self.seen += len(examples)
        likely = CHUNK_WORK * len(examples) // max(work, len(examples))
        self.chunk = min(max(likely, 1), 2 * self.chunk, LARGEST_CHUNK)

    def corpus(self, scheduler: Scheduler) -> Corpus:
        """Everything so far."""
        parts = self.parts or [self._part([], np.zeros(0, np.int64))]
        graphs, demanded, sources = zip(*parts, strict=True)
        return Corpus(
            scheduler,
            concatenate(graphs),
            join_demands(demanded),
            np.concatenate(sources),
            tuple(sorted(self.skipped)),
        )

    def _good(self, examples: list[Any]) -> Iterator[tuple[Graph, Demands, Array]]:
        """Parts with all good examples, in order.

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
                found = error.renumbered(self.seen + int(places[error.example]))
                if not self.skip_errors:
                    found = found.with_traceback(error.__traceback__)
                    raise found from error.__cause__
                self.skipped.append((found.example, str(found)))
                others = np.delete(places, error.example)
                halves = np.array_split(others, 2)[::-1]
                waiting += [half for half in halves if len(half)]

    def _part(self, examples: list[Any], source: Array) -> tuple[Graph, Demands, Array]:
        """Examples traced together; `source` says which they are."""
        graph = trace(self.program, examples)
        return graph, demands(select(self.program, graph)), source


@contextlib.contextmanager
def progress_bar(
    what: str, total: int | None, progress: bool
) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal or in a notebook, once it takes a while: what tells
    it how many examples are done more."""
    if not progress:  # a bar that shows nothing takes 2 % of tracing a small batch
        yield lambda count: None
        return
    from tqdm import tqdm

    # A notebook shows what is written over, though it says that it is no terminal.
    disable = False if _is_notebook() else None
    options: dict[str, Any] = {'unit': ' examples', 'delay': BAR_DELAY, 'leave': False}
    with tqdm(desc=what, total=total, disable=disable, **options) as bar:
        yield bar.update


def _is_notebook() -> bool:
    """Whether IPython runs what is running."""
    ipython = sys.modules.get('IPython')
    return getattr(ipython, 'get_ipython', lambda: None)() is not None
