# SPDX-License-Identifier: Apache-2.0
"""The tracing of examples: to a corpus, chunk by chunk, or in other processes."""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jfold.base.arguments import check_examples
from jfold.base.errors import InputError
from jfold.base.tracebacks import api_boundary
from jfold.data.adoption import Traced
from jfold.data.corpus import Corpus, write
from jfold.data.fingerprint import code_of, digest_of, fingerprint
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


# A group of examples: graph, demands, and places among all examples [n] int64.
_Group: TypeAlias = tuple[Graph, Demands, Array]


def trace_corpus(
    scheduler: Scheduler, examples: Iterable[Any], skip_errors: bool, progress: bool
) -> Corpus:
    """Trace examples into a corpus, chunk by chunk; see `Model.trace`."""
    groups, seen, skipped = list[_Group](), 0, list[tuple[int, str]]()
    size, count = operator.length_hint(examples, -1), FIRST_CHUNK
    with progress_bar('trace', size if size >= 0 else None, progress) as update:
        iterator = iter(examples)
        while chunk := list(itertools.islice(iterator, count)):
            work, read = 0, len(chunk)
            left_out = skipped if skip_errors else None
            for group in _groups(scheduler.program, chunk, seen, left_out):
                groups.append(group)
                graph, *_ = group
                sizes = (table.columns[0].size for table in graph.constants)
                work += max(graph.nodes, sum(sizes))
            del chunk  # so that no two chunks are in memory
            update(read)
            seen += read
            # The number of examples with work of `CHUNK_WORK`, if they are like these.
            likely = CHUNK_WORK * read // max(work, read)
            count = min(max(likely, 1), 2 * count, LARGEST_CHUNK)
    groups = groups or [_group(scheduler.program, [], np.zeros(0, np.int64))]
    graphs, demanded, sources = zip(*groups, strict=True)
    return Corpus(
        scheduler,
        concatenate(graphs),
        join_demands(demanded),
        np.concatenate(sources),
        code_of(scheduler.program),
        tuple(sorted(skipped)),
    )


def _groups(
    program: Program,
    examples: list[Any],
    seen: int,
    skipped: list[tuple[int, str]] | None,
) -> Iterator[_Group]:
    """Trace examples, which come after `seen` others, in groups, in order.

    If an example of a group does not fit the expression, the others are traced again in
    two halves, so that many such examples cost little more than a few. Its place and
    the error are added to `skipped`; if that is `None`, InputError is raised.
    """
    waiting = [np.arange(len(examples))]
    while waiting:
        places = waiting.pop()
        try:
            chosen = list(map(examples.__getitem__, places.tolist()))
            yield _group(program, chosen, seen + places)
        except InputError as error:
            located = error.renumbered(seen + int(places[error.example]))
            if skipped is None:
                located = located.with_traceback(error.__traceback__)
                raise located from error.__cause__
            skipped.append((located.example, str(located)))
            others = np.delete(places, error.example)
            halves = np.array_split(others, 2)[::-1]
            waiting += [half for half in halves if len(half)]


def _group(program: Program, examples: list[Any], source: Array) -> _Group:
    graph = trace(program, examples)
    return graph, demands(select(program, graph)), source


# ---- in other processes --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tracer:
    """A callable from examples to `Traced`, to be pickled; made by `Model.tracer`.

    It holds no parameters and no arrays of a device, and computes with NumPy alone: JAX
    is imported where it runs, but starts no backend. Lambdas, and lazy functions of a
    script or notebook, are pickled by `cloudpickle` alone, which grain and Dask use.

    Attributes:
      scheduler: a scheduler without functions of layers and without a budget.
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
