# SPDX-License-Identifier: Apache-2.0
"""A `Corpus`: examples traced once, as arrays, from which batches are put together."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import jax
import numpy as np

from jfold.base.arguments import check_at_least, expect
from jfold.base.errors import MASKED, has_masked
from jfold.base.late import Displayed
from jfold.base.tracebacks import api_boundary
from jfold.data.adoption import Traced, fit_graph, graph_in, structure_differences
from jfold.data.corpus_arrays import (
    Parts,
    arrays_of,
    graph_of_arrays,
    graphs_in,
    in_parts,
    joined_graph,
    labels_as_text,
)
from jfold.data.fingerprint import (
    check_code,
    code_of,
    differences,
    fingerprint,
    numbers_of,
)
from jfold.data.scheduler import Scheduler, Scheduling
from jfold.files import storage
from jfold.files.storage import check_path, note_limit, note_missing, parts_in, reading
from jfold.graph import Graph, labels_of
from jfold.program.operations import Program
from jfold.scheduling.demands import (
    Profiles,
    capacity,
    demands,
    fits,
    join_demands,
    largest_profiles,
    node_counts,
    profiles,
    row_columns,
)
from jfold.scheduling.schedule import Schedule, on_device
from jfold.scheduling.selections import Demands, Selection, select
from jfold.scheduling.shard_assignment import default_assignment, rows_of_shard
from jfold.scheduling.shards import Sharding, make_shards
from jfold.scheduling.spec import Capacity
from jfold.scheduling.staircase import larger
from jfold.tracing.check_graph import check_graph

Array = np.ndarray[Any, Any]
Indices: TypeAlias = Sequence[int] | Array | jax.Array


@dataclass(frozen=True, eq=False)
class Corpus(Displayed):
    """Examples as arrays; made by `model.trace` or read by `Corpus.load`.

    Attributes:
      scheduler: the scheduler of the model that the examples were traced for. In an
        unpickled corpus it makes no schedules: `model.join([corpus])` is a corpus of
        a model again.
      graph: the nodes of all examples, with operands; `Parts` if in several files.
      demands: the numbers of rows, levels and sums that each example needs.
      source: [examples] int64, the place of each example in the argument of `trace`;
        not 0, 1, ... if bad examples were skipped.
      code: a hash of the functions that traced them, which may be defined anew later.
      skipped: the place and the error message of each example that was skipped.
    """

    scheduler: Scheduler
    graph: Graph | Parts
    demands: Demands
    source: Array
    code: str
    skipped: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return self.graph.examples

    @property
    def program(self) -> Program:
        """The program that the examples were traced for."""
        return self.scheduler.program

    @functools.cached_property
    def nodes(self) -> Array:
        """The number of operations that each example runs [examples] int64."""
        return node_counts(self.program, self.demands)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all arrays, constants of examples included."""
        arrays = [self.source, self.demands.added, self.demands.highest]
        # Graph by graph: to join those of several files would read them into memory.
        for graph in graphs_in(self.graph):
            for table in graph.tables:
                arrays += table.first[1:], *table.columns  # the zero tells nothing
        return sum(x.nbytes for x in arrays)

    @property
    def _arrays(self) -> dict[str, Array]:
        """The arrays, without labels, by their names in a file."""
        graph = joined_graph(self.graph)
        return {'source': self.source, **arrays_of(self.program, graph, self.demands)}

    @property
    def labels(self) -> dict[str, Array]:
        """The labels of each metric's rows, [rows] object, by the metric's name."""
        return labels_of(self.program, [x.labels for x in graphs_in(self.graph)])

    @api_boundary
    def schedule(
        self,
        indices: Indices,
        *,
        size: int | None = None,
        sharding: Sharding | None = None,
    ) -> Schedule:
        """Return the schedule of some examples, bit for bit that of `Model.schedule`.

        Args:
          indices: [n] int, places in the corpus; one may occur several times.
          size, sharding: as in `Model.schedule`.

        Raises:
          IndexError: an index is negative, or too large.
          TypeError: the indices are no sequence of ints.
          ValueError, ProgramBudgetError: see `Model.schedule`.
        """
        begin, selection = time.perf_counter(), self.select(self._checked(indices))
        shards = None if sharding is None else make_shards(sharding)
        deal = default_assignment(len(selection), size, shards)
        schedule = self.scheduler.schedule(selection, deal, begin)
        return schedule if shards is None else on_device(schedule)

    def select(self, places: Array) -> Selection:
        """Return a selection of the examples at places [n], ready to be scheduled."""
        if not isinstance(self.graph, Parts):
            return self._all_examples.pick(places)
        # Examples that lie in several files are copied into one graph for each batch.
        selection = select(self.program, self.graph.pick(places))
        return replace(selection, known=self.demands.pick(places))

    # Cached, since a selection memoizes what all selections from it need.
    @functools.cached_property
    def _all_examples(self) -> Selection:
        """The selection of all examples, in one graph."""
        selection = select(self.program, joined_graph(self.graph))
        return replace(selection, known=self.demands)

    def _checked(self, indices: Indices) -> Array:
        """Return indices as int64 [n]; raise IndexError if one is out of range."""
        chosen = _int_array(indices)
        outside = (chosen < 0) | (chosen >= len(self))
        if outside.any():
            place = int(np.argmax(outside))
            known = f'from 0 to {len(self) - 1}'
            raise IndexError(
                f'expected `indices` {known if len(self) else "of no examples"}, got '
                f'{chosen[place]} at position {place}'
            )
        return chosen.astype(np.int64, copy=False)

    @api_boundary
    def capacities(
        self,
        batch_size: int,
        max_nodes: int | None = None,
        sharding: Sharding | None = None,
    ) -> Capacity:
        """Return a capacity that holds any batch of different examples of the corpus.

        For `Model.precompile`, so that one program serves all batches. If examples
        differ much in size, typical batches need far less; `Batches.capacities` is the
        least that one run needs. A batch that repeats an example may need more.

        Args:
          batch_size: rows of the results, and the most examples in a batch.
          max_nodes: the most operations that a batch runs, if they are limited.
          sharding: as in `Model.schedule`.

        Raises:
          TypeError: an argument is no int.
          ValueError: an argument is not positive, an example alone exceeds `max_nodes`,
            or `batch_size` is no multiple of the number of shards.
        """
        size = check_at_least('batch_size', batch_size, 1)
        shards = None if sharding is None else make_shards(sharding)
        if shards is not None:
            size = rows_of_shard('batch_size', shards, size, size)
        count = min(size, len(self))
        added = np.partition(self.demands.added, len(self) - count, axis=0)
        total = added[len(self) - count :].sum(0, dtype=np.int64)
        if max_nodes is not None:
            limit, nodes = check_at_least('max_nodes', max_nodes, 1), self.nodes
            if nodes.max(initial=0) > limit:
                raise ValueError(
                    f'expected `max_nodes` of at least {nodes.max()}, the operations '
                    f'of example {np.argmax(nodes)} alone, got {limit}'
                )
            rows = row_columns(self.program)
            total[rows] = np.minimum(total[rows], limit)
        together = Demands(total[None], self.demands.highest)
        need = capacity(self.program, together, size, shards)
        if not self.scheduler.budget.has_profiles:
            return need
        return replace(need, profiles=largest_profiles(self._all_examples, count))

    @api_boundary
    def capacities_of(self, batches: Iterable[Indices], size: int) -> Capacity:
        """Return the least capacity that holds each of `batches`.

        Args:
          batches: for each batch the indices of its examples, [n] int.
          size: rows of the results, and the most examples in a batch.

        Raises:
          IndexError, TypeError: see `schedule`.
          ValueError: a batch has more than `size` examples.
        """
        size = check_at_least('size', size, 1)
        added = np.zeros(self.demands.added.shape[1], np.int64)
        highest = np.zeros(self.demands.highest.shape[1], np.int64)
        levels = self._levels(np.arange(0))
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
            levels = tuple(map(larger, levels, self._levels(chosen)))
        together = Demands(added[None], highest[None])
        return replace(capacity(self.program, together, size), profiles=levels)

    def _levels(self, chosen: Array) -> Profiles:
        """Return `profiles` of the examples at `chosen` [n]; () if none are needed."""
        has_profiles = self.scheduler.budget.has_profiles
        return profiles(self.program, [self.select(chosen)]) if has_profiles else ()

    @api_boundary
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the corpus to one file, all or nothing.

        The file has an `.npy` for each array, named as in `Graph` and `Demands`; labels
        and the fingerprint of the expression are JSON, and nothing is pickled. An old
        file at `path` stays until the new one is complete; a process that is killed
        before then leaves a `.tmp` file beside it.

        Raises:
          TypeError: JSON would not give a label back unchanged.
          ValueError: functions that traced the examples were defined anew since.
        """
        check_code(self.program, self.code)
        write(path, self, fingerprint(self.program))

    @classmethod
    @api_boundary
    def load(
        cls, path: str | os.PathLike[str], model: Scheduling, *, verify: bool = True
    ) -> Corpus:
        """Open a saved corpus; its arrays stay in the file until they are used.

        Args:
          path: the file; or a folder, whose `.jfold` files are parts of a corpus in the
            order of their names, each written by one worker.
          model: a model of the same expression, tables and Python functions included;
            layers may have other widths. Files that functions read while they run are
            not compared; data of modules that functions change count as changed.
          verify: whether to read the file once to compare checksums, and all operands
            once more to check that they refer to values of their examples.

        Raises:
          FileNotFoundError: there is no such file.
          DamagedError: the file is damaged or truncated, or of another kind.
          UnknownFormatError: the file is of another version; write it anew.
          TypeError: `model` is no model.
          ValueError: the file holds something else, or was traced for another
            expression; the message says what differs.
        """
        scheduler = getattr(model, 'scheduler', None)
        if not isinstance(scheduler, Scheduler):
            raise TypeError(
                f'expected `model` as a model, got {type(model).__name__}: pass what '
                '`jfold.compile` returns'
            )
        check_path(path)
        if os.path.isdir(path):
            with note_limit():
                parts = [cls.load(x, model, verify=verify) for x in parts_in(path)]
            return _joined(scheduler, parts)
        with note_missing('a corpus in a file, got none: write it by `Corpus.save`'):
            arrays, metadata = storage.read(path, verify=verify)
        saved = metadata.get('corpus')
        if not isinstance(saved, dict):
            is_model = 'model' in metadata
            got = 'a model: open it by `jf.load`' if is_model else 'other arrays'
            raise ValueError(f'{path}: expected a corpus, got {got}')
        with reading(path):
            current = fingerprint(scheduler.program)
            unlike = differences(saved['fingerprint'], current)
        _refuse(f'{path}: ', unlike)
        with reading(path):
            skipped = tuple((int(at), str(text)) for at, text in saved['skipped'])
            numbers, source = saved['fingerprint']['numbers'], arrays['source']
            program, types = scheduler.program, numbers['types']
            graph, demanded = graph_of_arrays(program, arrays, len(source), types)
            graph = fit_graph(program, graph, numbers)
            rest = source, code_of(program), skipped
            corpus = _with_demands(Corpus(scheduler, graph, demanded, *rest), numbers)
        if verify:
            try:
                check_graph(program, graph)
            except ValueError as error:  # a wrong number, under a right checksum
                raise ValueError(f'{path}: {error}') from None
        return replace(corpus, graph=replace(graph, fits=True))

    def __getstate__(self) -> dict[str, Any]:
        return {x.name: getattr(self, x.name) for x in fields(self)}

    # A corpus never changes, and a deep copy would copy its model too.
    def __copy__(self) -> Corpus:
        return self

    def __deepcopy__(self, memo: object) -> Corpus:
        return self

    def __repr__(self) -> str:
        more = f', {len(self.skipped)} skipped' if self.skipped else ''
        return (
            f'Corpus({len(self):,} examples, {self.graph.nodes:,} nodes, '
            f'{self.nbytes / 1e6:.3g} MB{more})'
        )


# ---- arguments and files -------------------------------------------------------------


def _int_array(indices: Indices) -> Array:
    """Return indices as an array of integers [n]; raise TypeError for anything else."""
    expect('indices', indices, not has_masked([indices]), 'an array of ints', MASKED)
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


def write(
    path: str | os.PathLike[str], corpus: Corpus, expression: dict[str, Any]
) -> None:
    """Write a corpus, with its program's fingerprint `expression`, to file `path`."""
    check_path(path)
    skipped = list(map(list, corpus.skipped))
    metadata = {'corpus': {'fingerprint': expression, 'skipped': skipped}}
    arrays = {**corpus._arrays, **labels_as_text(corpus.labels)}
    storage.write(path, arrays, metadata)


# ---- of other models -----------------------------------------------------------------


def adopt_corpus(scheduler: Scheduler, corpus: Corpus | Traced) -> Corpus:
    """Return a corpus for `scheduler`, made from a corpus for an equal expression.

    Raises ValueError if the expressions differ in structure.
    """
    if not isinstance(corpus, Traced) and corpus.scheduler is scheduler:
        return corpus
    program, code = scheduler.program, code_of(scheduler.program)
    if isinstance(corpus, Traced):
        traced = graph_in(corpus, program)
        demanded = demands(select(program, traced))
        return Corpus(scheduler, traced, demanded, np.arange(len(corpus)), code)
    check_code(corpus.program, corpus.code)
    _refuse('', structure_differences(program, corpus.program))
    numbers = numbers_of(corpus.program)
    parts = graphs_in(corpus.graph)
    graph = in_parts(fit_graph(program, part, numbers) for part in parts)
    adopted = replace(corpus, scheduler=scheduler, graph=graph, code=code)
    return _with_demands(adopted, numbers)


def _refuse(where: str, unlike: Sequence[str]) -> None:
    """Raise ValueError, which begins with `where`, if `unlike` has differences."""
    if unlike:
        raise ValueError(
            f'{where}expected a corpus of the expression of this model, got one of '
            f'another, with {"; ".join(unlike)}. Trace the examples again with '
            '`model.trace`'
        )


def _with_demands(corpus: Corpus, numbers: Mapping[str, Any]) -> Corpus:
    """Return a corpus whose `demands` fit its program, computed anew if they do not.

    Args:
      numbers: the result of `numbers_of` for the program of `corpus.demands`.
    """
    program, graph = corpus.program, corpus.graph
    # The present program may have other numbers of values, or no loops.
    if numbers == numbers_of(program) and fits(program, corpus.demands):
        return corpus
    return replace(corpus, demands=demands(select(program, joined_graph(graph))))


# ---- several -------------------------------------------------------------------------


@api_boundary
def join(model: Scheduling, parts: Iterable[Corpus | Traced]) -> Corpus:
    """Join examples that were traced separately into one corpus.

    A method of models. The schedules of the result are to the bit those of the same
    examples traced together.

    Args:
      model: as `jfold.compile` or `jfold.load` returns it.
      parts: a list, or other iterable, of corpora, of this model or another of the
        same expression, and of `Traced`, which tracers return. `Corpus.source` and
        `skipped` count on from part to part.

    Raises:
      TypeError: a part is neither a corpus nor `Traced`.
      ValueError: a part is of another expression, or there is no part.

    >>> import jfold as jf
    >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    >>> both = model.join([model.trace([[1, 2]]), model.tracer()([[3], []])])
    >>> model.apply({}, both.schedule([2, 0, 1])).tolist()
    [0.0, 3.0, 3.0]
    """
    is_several = isinstance(parts, Iterable)
    expect('parts', parts, is_several, 'a list of what was traced', 'pass `[part]`')
    items, scheduler = list(parts), model.scheduler
    for number, part in enumerate(items):
        if isinstance(part, Corpus):
            check_code(part.program, part.code)
            unlike = structure_differences(scheduler.program, part.program)
            _refuse(f'part {number}: ', unlike)
        elif not isinstance(part, Traced):
            raise TypeError(
                f'part {number}: expected a corpus or what a tracer made, got '
                f'{type(part).__name__}: trace examples by `model.trace`'
            )
        elif part.digest != scheduler.digest:
            raise ValueError(
                f'part {number}: expected examples traced for the expression of this '
                'model, got those of another: trace them with its `model.tracer()`, '
                'made again if its program has grown since'
            )
    if not items:
        raise ValueError('expected at least one corpus or Traced, got none')
    return _joined(scheduler, [adopt_corpus(scheduler, part) for part in items])


def _joined(scheduler: Scheduler, parts: Sequence[Corpus]) -> Corpus:
    """Join `parts` to a corpus of `scheduler`, with `source` as if traced at once."""
    counts = (len(part) + len(part.skipped) for part in parts)
    first = list(itertools.accumulate(counts, initial=0))
    return Corpus(
        scheduler,
        in_parts([part.graph for part in parts]),
        join_demands([part.demands for part in parts]),
        np.concatenate([a + x.source for a, x in zip(first, parts, strict=False)]),
        code_of(scheduler.program),
        tuple(
            (a + at, text)
            for a, part in zip(first, parts, strict=False)
            for at, text in part.skipped
        ),
    )
