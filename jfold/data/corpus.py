# SPDX-License-Identifier: Apache-2.0
"""A `Corpus`: examples traced once, as arrays, from which batches are put together."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import numpy as np

from jfold.data import storage
from jfold.data.fingerprint import differences, fingerprint
from jfold.errors import InputError, whole
from jfold.graph import Graph, Table, concatenate
from jfold.graph_checker import check_graph
from jfold.host.evaluation import trace
from jfold.host.objects import Reread
from jfold.planning.demands import Demands, demands, join_demands, make_capacity
from jfold.planning.uses import make_uses
from jfold.program import Program
from jfold.schedule import Schedule
from jfold.spec import Capacity
from jfold.tracebacks import boundary

if TYPE_CHECKING:
    from tqdm import tqdm

Array = np.ndarray[Any, Any]
Indices: TypeAlias = Sequence[int] | Array | jax.Array
CHUNK_WORK = 1 << 17  # nodes and numbers traced at once: fast, and little memory
FIRST_CHUNK, LARGEST_CHUNK = 64, 4096  # examples; the next may be larger than any yet
DEMANDS = 'added', 'highest'  # arrays of `Demands`
BAR_DELAY = 3.0  # seconds before there is a progress bar


class Scheduler(Protocol):
    """What a corpus and batches need of a model."""

    program: Program

    def _reschedule(self, examples: list[Any], reread: Reread, size: int) -> Schedule:
        """The schedule of examples; see `Model._reschedule`."""

    def _build(
        self, graph: Graph, demanded: Demands | None = None, size: int | None = None
    ) -> Schedule:
        """The schedule of a graph; see `Model._build`."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Examples as arrays; made by `model.trace` or read by `Corpus.load`.

    Attributes:
      model: whose expression the examples were traced for.
      graph: what each example computes.
      demands: what each needs.
      source: [examples] int64, the place of each among what was given to `trace`;
        differs from 0, 1, ... where bad examples were skipped.
      skipped: place and error of every example that was skipped.
    """

    model: Scheduler
    graph: Graph
    demands: Demands
    source: Array
    skipped: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return self.graph.examples

    @property
    def nodes(self) -> Array:
        """How many operations each example runs [examples] int64."""
        return self.demands.nodes

    @property
    def nbytes(self) -> int:
        """The size of all arrays, the examples' constants included."""
        return sum(x.nbytes for x in _arrays(self).values())

    @boundary
    def schedule(self, indices: Indices, *, size: int | None = None) -> Schedule:
        """The schedule of the given examples: `model.schedule` of them, to the bit.

        Args:
          indices: [n] int, places in the corpus; one may occur several times.
          size: as of `Model.schedule`.

        Raises:
          IndexError: an index is out of range; those from the end are, too.
          TypeError: the indices are no sequence of ints.
          ValueError, ProgramBudgetError: as of `Model.schedule`.
        """
        chosen = self._checked(indices)
        return self.model._build(
            self.graph.pick(chosen), self.demands.pick(chosen), size
        )

    def _checked(self, indices: Indices) -> Array:
        chosen = _whole_numbers(indices)
        outside = (chosen < 0) | (chosen >= len(self))
        if outside.any():
            place = int(np.argmax(outside))
            known = f'from 0 to {len(self) - 1}'
            raise IndexError(
                f'expected `indices` {known if len(self) else "of no examples"}, got '
                f'{chosen[place]} at position {place}'
            )
        return chosen.astype(np.int64, copy=False)

    @boundary
    def capacities(self, batch_size: int, max_nodes: int | None = None) -> Capacity:
        """A capacity that holds any batch of different examples of the corpus.

        For `Model.precompile`, so that one program serves all batches. Where sizes
        differ much it is larger than typical batches need; `Batches.capacities` is
        what a planned run needs and no more. A batch with one example several times
        may need more.

        Args:
          batch_size: rows of the results, and the most examples in a batch.
          max_nodes: the most operations in a batch, if its nodes are limited.

        Raises:
          TypeError: an argument is no int.
          ValueError: one is not positive, or an example alone exceeds `max_nodes`.
        """
        size = whole('batch_size', batch_size, 1)
        count = min(size, len(self))
        added = np.partition(self.demands.added, len(self) - count, axis=0)
        total = added[len(self) - count :].sum(0, dtype=np.int64)
        if max_nodes is not None:
            rows = self.demands.row_columns
            total[rows] = np.minimum(total[rows], self._limit(max_nodes))
        highest = self.demands.highest.max(0, initial=0)
        return make_capacity(self.model.program, total.tolist(), highest.tolist(), size)

    def _limit(self, max_nodes: int) -> int:
        """`max_nodes`, checked."""
        limit = whole('max_nodes', max_nodes, 1)
        nodes = self.nodes
        if nodes.max(initial=0) > limit:
            raise ValueError(
                f'expected `max_nodes` of at least {nodes.max()}, the operations of '
                f'example {np.argmax(nodes)} alone, got {limit}'
            )
        return limit

    @boundary
    def capacities_of(self, batches: Iterable[Indices], size: int) -> Capacity:
        """The capacity that some batches need.

        Args:
          batches: the indices of each.
          size: rows of the results, and the most examples in a batch.

        Raises:
          IndexError, TypeError: as of `schedule`.
          ValueError: a batch has more than `size` examples.
        """
        size = whole('size', size, 1)
        added = np.zeros(self.demands.added.shape[1], np.int64)
        highest = np.zeros(self.demands.highest.shape[1], np.int64)
        for number, batch in enumerate(batches):
            chosen = self._checked(batch)
            if len(chosen) > size:
                raise ValueError(
                    f'expected at most {size} examples, as `size` says, got '
                    f'{len(chosen)} in batch {number}'
                )
            now = self.demands.added[chosen].sum(0, dtype=np.int64)
            np.maximum(added, now, out=added)
            now = self.demands.highest[chosen].max(0, initial=0)
            np.maximum(highest, now, out=highest)
        return make_capacity(self.model.program, added.tolist(), highest.tolist(), size)

    @boundary
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the corpus to one file, whole or not at all.

        The file is an uncompressed `.npz`, which `numpy.load` reads too: arrays named
        as in `Graph` and `Demands`, and `metadata.json`, with the fingerprint of the
        expression. A file that was there before stays until the new one is complete;
        a process that is killed meanwhile leaves a `.tmp` file beside it.
        """
        metadata = {
            'fingerprint': fingerprint(self.model.program),
            'skipped': [list(each) for each in self.skipped],
        }
        with _noted('`path` in a folder that exists, got another: make the folder'):
            storage.write(path, _arrays(self), {'corpus': metadata})

    @classmethod
    @boundary
    def load(
        cls, path: str | os.PathLike[str], model: Scheduler, *, verify: bool = True
    ) -> Corpus:
        """Opens a saved corpus; its arrays stay in the file until they are used.

        Args:
          path: of the file.
          model: of the same expression, widths, tables and Python functions included.
            What functions read while they run, such as files, is not seen; data at
            module level that they change counts as changed.
          verify: reads the file once to compare checksums, and the numbers of values
            another time: each has to be one of its example.

        Raises:
          FileNotFoundError: there is no such file.
          DamagedError: the file is damaged or truncated, or of another kind.
          UnknownFormatError: it is of a later version.
          ValueError: it holds something else, or was traced for another expression;
            the message says what differs.
        """
        if not isinstance(getattr(model, 'program', None), Program):
            raise TypeError(
                f'expected `model` as a model, got {type(model).__name__}: pass what '
                '`jfold.compile` returns'
            )
        with _noted('a corpus in a file, got none: write it by `Corpus.save`'):
            arrays, metadata = storage.read(path, verify=verify)
        saved = metadata.get('corpus')
        if not isinstance(saved, dict):
            raise ValueError(f'{path}: expected a corpus, got other arrays')
        found = differences(saved.get('fingerprint', {}), fingerprint(model.program))
        if found:
            raise ValueError(
                f'{path}: expected a corpus of the expression of this model, got one '
                f'of another, with {"; ".join(found)}. Trace the examples again with '
                '`model.trace`'
            )
        skipped = tuple((int(at), str(text)) for at, text in saved['skipped'])
        corpus = _corpus(model, arrays, skipped)
        if verify:
            _check(corpus, path)
        return corpus

    def __repr__(self) -> str:
        more = f', {len(self.skipped)} skipped' if self.skipped else ''
        return (
            f'Corpus({len(self):,} examples, {self.graph.nodes:,} nodes, '
            f'{self.nbytes / 1e6:.3g} MB{more})'
        )


# ---- arguments -----------------------------------------------------------------------


@contextlib.contextmanager
def _noted(expected: str) -> Iterator[None]:
    """Tells what was expected where a file or a folder is missing."""
    try:
        yield
    except FileNotFoundError as error:
        error.add_note(f'expected {expected}')
        raise


def _whole_numbers(indices: Indices) -> Array:
    """Indices as an array [n] of some integer type."""
    try:
        array = np.asarray(indices)
    except ValueError:  # ragged
        array = np.asarray(None)
    if array.ndim == 1 and (not len(array) or array.dtype.kind in 'iu'):
        return array if len(array) else array.astype(np.int64)
    hint = ''
    if array.dtype == bool:
        hint = ': pass `np.flatnonzero(mask)`'
    elif array.ndim == 0 and array.dtype.kind in 'iu':
        hint = f': pass `[{indices}]`'
    elif isinstance(indices, Iterable) and not isinstance(indices, Sequence):
        hint = ': pass `list(indices)`'
    got = type(indices).__name__
    if array.dtype != object:
        got += f' of {array.dtype} of shape {array.shape}'
    raise TypeError(f'expected `indices` as a sequence of ints, got {got}{hint}')


# ---- arrays by name ------------------------------------------------------------------


def _check(corpus: Corpus, path: str | os.PathLike[str]) -> None:
    """Refuses what no trace gives: checksums are right, whoever wrote the file."""
    try:
        check_graph(corpus.model.program, corpus.graph)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None


def _arrays(corpus: Corpus) -> dict[str, Array]:
    """Everything by name; the inverse of `_corpus`."""
    graph = corpus.graph
    arrays = {'source': corpus.source}
    program = corpus.model.program
    observed = [graph.results[r] for r in program.observed]
    # What begins where need not be kept of what has one row an example.
    own = graph.results[program.results.index(program.own)]
    kinds = ('constants', graph.constants), ('operations', graph.operations)
    for kind, tables in (*kinds, ('metrics', observed)):
        for n, table in enumerate(tables):
            arrays[f'{kind}/{n}/first'] = table.first
            for k, column in enumerate(table.columns):
                arrays[f'{kind}/{n}/{k}'] = column
    arrays |= {f'outputs/{n}': values for n, values in enumerate(own.columns)}
    for name in DEMANDS:
        arrays[f'demands/{name}'] = getattr(corpus.demands, name)
    return arrays


def _corpus(
    model: Scheduler, arrays: dict[str, Array], skipped: tuple[tuple[int, str], ...]
) -> Corpus:
    program = model.program

    def tables(kind: str, columns: Iterable[int]) -> tuple[Table, ...]:
        return tuple(
            Table(
                arrays[f'{kind}/{n}/first'],
                tuple(arrays[f'{kind}/{n}/{k}'] for k in range(count)),
            )
            for n, count in enumerate(columns)
        )

    observed = [program.results[r] for r in program.observed]
    values = tuple(arrays[f'outputs/{n}'] for n in range(len(program.own.tensors)))
    examples = len(arrays['source'])
    results = list(tables('metrics', (len(each.tensors) for each in observed)))
    own = Table(np.arange(examples + 1), values)
    results.insert(program.results.index(program.own), own)
    graph = Graph(
        examples,
        tables('constants', (1 for _ in program.types)),
        tables('operations', (1 + len(o.inputs) for o in program.operations)),
        tuple(results),
    )
    demanded = Demands(program, *(arrays[f'demands/{name}'] for name in DEMANDS))
    return Corpus(model, graph, demanded, arrays['source'], skipped)


# ---- tracing -------------------------------------------------------------------------


def trace_corpus(
    model: Scheduler, examples: Iterable[Any], skip_errors: bool, progress: bool
) -> Corpus:
    """See `Model.trace`."""
    tracing = Tracing(model.program, skip_errors)
    size = operator.length_hint(examples, -1)
    with _bar(size if size >= 0 else None, progress) as bar:
        rest = iter(examples)
        while chunk := list(itertools.islice(rest, tracing.chunk)):
            tracing.add(chunk)
            bar.update(len(chunk))
            del chunk  # before there is another
    return tracing.corpus(model)


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

    def corpus(self, model: Scheduler) -> Corpus:
        """Everything so far."""
        parts = self.parts or [self._part([], np.zeros(0, np.int64))]
        graphs, demanded, sources = zip(*parts, strict=True)
        return Corpus(
            model,
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
        waiting, reread = [np.arange(len(examples))], Reread()
        while waiting:
            places = waiting.pop()
            try:
                chosen = list(map(examples.__getitem__, places.tolist()))
                yield self._part(chosen, self.seen + places, reread)
            except InputError as error:
                found = error.renumbered(self.seen + int(places[error.example]))
                if not self.skip_errors:
                    found = found.with_traceback(error.__traceback__)
                    raise found from error.__cause__
                self.skipped.append((found.example, str(found)))
                others = np.delete(places, error.example)
                halves = np.array_split(others, 2)[::-1]
                waiting += [half for half in halves if len(half)]

    def _part(
        self, examples: list[Any], source: Array, reread: Reread | None = None
    ) -> tuple[Graph, Demands, Array]:
        """Examples traced together; `source` says which they are."""
        graph = trace(self.program, examples, reread)
        return graph, demands(make_uses(self.program, graph)), source


def _bar(total: int | None, progress: bool) -> tqdm[object]:
    """A progress bar on the terminal, once it takes a while."""
    from tqdm import tqdm

    return tqdm(
        desc='trace',
        total=total,
        unit=' examples',
        delay=BAR_DELAY,
        disable=None if progress else True,
        leave=False,
    )
