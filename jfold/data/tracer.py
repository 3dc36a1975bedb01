# SPDX-License-Identifier: Apache-2.0
"""The tracing of examples: to a corpus, chunk by chunk, or in other processes."""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.base.errors import InputError, check_examples
from jfold.base.tracebacks import api_boundary
from jfold.data.adoption import Traced
from jfold.data.corpus import Corpus, write
from jfold.data.fingerprint import digest_of, fingerprint
from jfold.data.progress_bars import progress_bar
from jfold.data.scheduler import Scheduler, Scheduling
from jfold.graph import Graph, concatenate
from jfold.program.operations import Program
from jfold.scheduling.demands import demands, join_demands
from jfold.scheduling.selections import Demands, select
from jfold.tracing.record import trace

Array = np.ndarray[Any, Any]
CHUNK_WORK = 1 << 17  # operations or numbers of a chunk: fast, and little memory
FIRST_CHUNK, LARGEST_CHUNK = 64, 4096  # examples; a chunk is at most twice the last


def trace_corpus(
    scheduler: Scheduler, examples: Iterable[Any], skip_errors: bool, progress: bool
) -> Corpus:
    """Trace examples into a corpus; see `Model.trace`."""
    tracing = Tracing(scheduler.program, skip_errors)
    size = operator.length_hint(examples, -1)
    with progress_bar('trace', size if size >= 0 else None, progress) as update:
        iterator = iter(examples)
        while chunk := list(itertools.islice(iterator, tracing.chunk)):
            tracing.add(chunk)
            update(len(chunk))
            del chunk  # so that no two chunks are in memory
    return tracing.corpus(scheduler)


@dataclass(eq=False)
class Tracing:
    """A corpus in the making, to which examples are added chunk by chunk.

    An example that does not fit raises InputError, unless `skip_errors` is true.
    """

    program: Program
    skip_errors: bool
    chunk: int = FIRST_CHUNK  # how many examples to add next
    seen: int = 0  # how many examples were added
    # Per group of examples: graph, demands, and places among all examples [n] int64.
    # Per example left out: place and error message.
    parts: list[tuple[Graph, Demands, Array]] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)

    def add(self, examples: list[Any]) -> None:
        """Trace the next examples; set `chunk`, how many to add after them."""
        work = 0
        for part in self._parts(examples):
            self.parts.append(part)
            graph, *_ = part
            sizes = (table.columns[0].size for table in graph.constants)
            work += max(graph.nodes, sum(sizes))
        self.seen += len(examples)
        # The number of examples with work of `CHUNK_WORK`, if they are like these.
        likely = CHUNK_WORK * len(examples) // max(work, len(examples))
        self.chunk = min(max(likely, 1), 2 * self.chunk, LARGEST_CHUNK)

    def corpus(self, scheduler: Scheduler) -> Corpus:
        """Return a corpus of all examples that were added."""
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
        """Trace examples in groups, in order; yield each group's `parts`.

        If an example of a group does not fit the expression, the others are traced
        again in two halves, so that many such examples cost little more than a few.
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
        """Trace examples; return the graph, the demands, and `source` unchanged."""
        graph = trace(self.program, examples)
        return graph, demands(select(self.program, graph)), source


# ---- in other processes --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tracer:
    """A callable from examples to `Traced`, to be pickled; made by `Model.tracer`.

    It holds no parameters and no arrays of a device, and computes with NumPy alone: JAX
    is imported where it runs, but starts no backend. Functions that pickle refuses, as
    lambdas, are pickled by `cloudpickle`, which grain and Dask use.

    Attributes:
      scheduler: without functions of layers and without a budget.
      fingerprint: all that traced examples depend on, as JSON data.
    """

    scheduler: Scheduler
    fingerprint: dict[str, Any]

    @property
    def program(self) -> Program:
        """The program that examples are traced for."""
        return self.scheduler.program

    @functools.cached_property
    def digest(self) -> str:
        """The digest of `fingerprint`."""
        return digest_of(self.fingerprint)

    @api_boundary
    def __call__(self, examples: Iterable[Any]) -> Traced:
        """Trace examples and return them as arrays.

        Raises:
          InputError: an example does not fit the expression; the error has its number
            among `examples`.
          TypeError: `examples` is a tuple, dict or string, which may be one example.
        """
        graph = trace(self.program, list(check_examples(examples)))
        return Traced(graph, self.digest, is_own=True)

    @api_boundary
    def save(
        self,
        examples: Iterable[Any],
        path: str | os.PathLike[str],
        *,
        skip_errors: bool = False,
    ) -> None:
        """Trace examples and write them as one part of a corpus, all or nothing.

        Each worker writes a part, and holds no more in memory than that part.
        `Corpus.load` opens the folder of all parts, in the order of their names.

        Args:
          examples, skip_errors: as in `Model.trace`.
          path: the file, as in `Corpus.save`; the names of parts end in `.jfold`.

        Raises:
          InputError, TypeError: see `Model.trace`; then nothing is written.
          FileNotFoundError: there is no such folder.

        >>> import jfold as jf, tempfile
        >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.tracer().save([[1, 2], []], f'{folder}/part-0.jfold')
        ...     model.tracer().save([[3]], f'{folder}/part-1.jfold')
        ...     corpus = jf.Corpus.load(folder, model)
        >>> model.apply({}, corpus.schedule([2, 0])).tolist()
        [3.0, 3.0]
        """
        examples = check_examples(examples)
        corpus = trace_corpus(self.scheduler, examples, skip_errors, progress=False)
        write(path, corpus, self.fingerprint)

    def __repr__(self) -> str:
        return f'Tracer({self.program.output!r})'


def tracer(model: Scheduling) -> Tracer:
    """Return a callable that traces examples in other processes.

    A method of models. There it runs on NumPy. `Model.schedule` takes its result in
    place of the examples and returns the same schedule, to the bit. With grain:

        source = grain.MapDataset.source(examples).shuffle(seed=0)
        batches = source.batch(64, batch_fn=list).map(model.tracer())
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=4)
        for traced in batches.to_iter_dataset().mp_prefetch(options):
            schedule = model.schedule(traced)

    >>> import jfold as jf, pickle
    >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    >>> tracer = pickle.loads(pickle.dumps(model.tracer()))
    >>> model.apply({}, model.schedule(tracer([[1, 2], [3]]))).tolist()
    [3.0, 3.0]
    """
    scheduler = model.scheduler
    return Tracer(scheduler.portable(), fingerprint(scheduler.program))
