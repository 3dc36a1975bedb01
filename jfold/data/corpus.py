# SPDX-License-Identifier: Apache-2.0
"""A `Corpus`: examples traced once, as arrays, from which batches are put together."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import jax
import numpy as np

from jfold.data import storage
from jfold.data.adoption import differing, fitted
from jfold.data.files import check_path, malformed, noted, parts_in
from jfold.data.fingerprint import differences, fingerprint, numbers_of
from jfold.data.labels import labels_as_text, labels_of_text
from jfold.data.parts import Parts, graphs_in, in_parts
from jfold.data.scheduling import Chosen, Scheduling
from jfold.errors import MASKED, expect, some_masked, whole
from jfold.graph import Graph, Table, labels_of
from jfold.planning.deals import in_order, rows_of_shard
from jfold.planning.demands import (
    Demands,
    demands,
    fits,
    join_demands,
    make_capacity,
)
from jfold.planning.profiles import Profiles, most, profiles
from jfold.planning.reads import Readable
from jfold.planning.uses import make_uses
from jfold.program import Program
from jfold.schedule import Schedule, on_device
from jfold.shards import Sharding, make_shards
from jfold.spec import Capacity
from jfold.staircase import larger
from jfold.tracebacks import boundary
from jfold.tracing.check_graph import check_graph

Array = np.ndarray[Any, Any]
Indices: TypeAlias = Sequence[int] | Array | jax.Array
DEMANDS = 'added', 'highest'  # arrays of `Demands`
OUTPUTS = 'outputs'  # the table of results with one row an example, in a file


@dataclass(frozen=True, eq=False)
class Corpus:
    """Examples as arrays; made by `model.trace` or read by `Corpus.load`.

    Attributes:
      model: whose expression the examples were traced for; its tracer, of a corpus that
        was pickled: `model.join([corpus])` is that of a model again.
      graph: what each example computes; in parts, if it lies in several files.
      demands: what each needs.
      source: [examples] int64, the place of each among what was given to `trace`;
        differs from 0, 1, ... where bad examples were skipped.
      skipped: place and error of every example that was skipped.
    """

    model: Scheduling
    graph: Graph | Parts
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

    @property
    def labels(self) -> dict[str, Array]:
        """By name of a `Metric` that is given labels, those of all rows [rows] object;
        see `Schedule.labels`."""
        parts = graphs_in(self.graph)
        return labels_of(self.model.program, [part.labels for part in parts])

    @boundary
    def schedule(
        self,
        indices: Indices,
        *,
        size: int | None = None,
        sharding: Sharding | None = None,
    ) -> Schedule:
        """The schedule of the given examples: `model.schedule` of them, to the bit.

        Args:
          indices: [n] int, places in the corpus; one may occur several times.
          size, sharding: as of `Model.schedule`.

        Raises:
          IndexError: an index is out of range; those from the end are, too.
          TypeError: the indices are no sequence of ints.
          ValueError, ProgramBudgetError: as of `Model.schedule`.
        """
        places = self._checked(indices)
        chosen, demanded = self._chosen(places), self.demands.pick(places)
        if sharding is None:
            return self._scheduling._build_chosen(chosen, demanded, size)
        shards = make_shards(sharding)
        rows = rows_of_shard('size', shards, len(places), size)
        deal = in_order(shards, rows, len(places))
        return on_device(self._scheduling._build_dealt_chosen(chosen, demanded, deal))

    @property
    def _scheduling(self) -> Scheduling:
        if isinstance(self.model, Scheduling):
            return self.model
        raise TypeError(
            'expected a corpus of a model, got one that was pickled, which models are '
            'not: call `model.join([corpus])`, of the model of the same expression'
        )

    def _chosen(self, places: Array) -> Chosen:
        return Chosen(self.model.program, self.graph, places, self._readable)

    @functools.cached_property
    def _readable(self) -> Readable | None:
        """What keeps all that examples read; where they lie in several files, that is
        found for each batch."""
        if isinstance(self.graph, Parts) or not self.model.program.once:
            return None
        return Readable(self.model.program, self.graph)

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
    def capacities(
        self,
        batch_size: int,
        max_nodes: int | None = None,
        sharding: Sharding | None = None,
    ) -> Capacity:
        """A capacity that holds any batch of different examples of the corpus.

        For `Model.precompile`, so that one program serves all batches. Where sizes
        differ much it is larger than typical batches need; `Batches.capacities` is
        what a planned run needs and no more. A batch with one example several times
        may need more.

        Args:
          batch_size: rows of the results, and the most examples in a batch.
          max_nodes: the most operations in a batch, if its nodes are limited.
          sharding: as of `Model.schedule`.

        Raises:
          TypeError: an argument is no int.
          ValueError: one is not positive, or an example alone exceeds `max_nodes`; or
            `batch_size` is no multiple of the number of shards.
        """
        size = whole('batch_size', batch_size, 1)
        shards = None if sharding is None else make_shards(sharding)
        if shards is not None:
            size = rows_of_shard('batch_size', shards, size, size)
        count = min(size, len(self))
        added = np.partition(self.demands.added, len(self) - count, axis=0)
        total = added[len(self) - count :].sum(0, dtype=np.int64)
        if max_nodes is not None:
            rows = self.demands.row_columns
            total[rows] = np.minimum(total[rows], self._limit(max_nodes))
        highest = self.demands.highest.max(0, initial=0)
        numbers = total.tolist(), highest.tolist()
        need = make_capacity(self.model.program, *numbers, size, shards)

        def of_any() -> Profiles:
            graph = self.graph.pick(np.arange(len(self)))
            return most(self.model.program, graph, count)

        return replace(need, profiles=self._scheduling._profiles(of_any))

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
        numbers = added.tolist(), highest.tolist()
        need = make_capacity(self.model.program, *numbers, size)
        return replace(need, profiles=levels)

    def _levels(self, chosen: Array) -> Profiles:
        """The rows of each level of some examples, if steps depend on them."""
        program = self.model.program
        made = lambda: profiles(program, [self.graph.pick(chosen)])  # noqa: E731
        return self._scheduling._profiles(made)

    @boundary
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the corpus to one file, whole or not at all.

        It has an `.npy` for each array, named as in `Graph` and `Demands`, and the
        fingerprint of the expression as JSON; nothing is pickled. A file that was there
        before stays until the new one is complete; a process that is killed meanwhile
        leaves a `.tmp` file beside it. Labels are written as JSON.

        Raises:
          TypeError: a label is not of those that JSON gives back as they were.
        """
        write(path, self, fingerprint(self.model.program))

    @classmethod
    @boundary
    def load(
        cls, path: str | os.PathLike[str], model: Scheduling, *, verify: bool = True
    ) -> Corpus:
        """Opens a saved corpus; its arrays stay in the file until they are used.

        Args:
          path: of the file; or of a folder, whose `.jfold` files are parts of a corpus
            in the order of their names, written by as many workers.
          model: of the same expression, tables and Python functions included; layers
            may have other widths. What functions read while they run, such as files, is
            not seen; data at module level that they change counts as changed.
          verify: reads the file once to compare checksums, and the numbers of values
            another time: each has to be one of its example.

        Raises:
          FileNotFoundError: there is no such file.
          DamagedError: the file is damaged or truncated, or of another kind.
          UnknownFormatError: it is of another version; write it anew.
          ValueError: it holds something else, or was traced for another expression;
            the message says what differs.
        """
        if not isinstance(getattr(model, 'program', None), Program):
            raise TypeError(
                f'expected `model` as a model, got {type(model).__name__}: pass what '
                '`jfold.compile` returns'
            )
        check_path(path)
        if os.path.isdir(path):
            return joined(
                model, [cls.load(x, model, verify=verify) for x in parts_in(path)]
            )
        with noted('a corpus in a file, got none: write it by `Corpus.save`'):
            arrays, metadata = storage.read(path, verify=verify)
        saved = metadata.get('corpus')
        if not isinstance(saved, dict):
            raise ValueError(f'{path}: expected a corpus, got other arrays')
        with malformed(path):
            current = fingerprint(model.program)
            found = differences(saved['fingerprint'], current)
        _refuse(f'{path}: ', found)
        with malformed(path):
            skipped = tuple((int(at), str(text)) for at, text in saved['skipped'])
            corpus = _corpus(model, arrays, skipped, saved['fingerprint']['numbers'])
        if verify:
            _check(corpus, path)
        assert isinstance(corpus.graph, Graph)  # of one file
        return replace(corpus, graph=replace(corpus.graph, fits=True))

    def __getstate__(self) -> dict[str, Any]:
        given: Any = self.model  # of which nothing is sent but what traces
        host = given.tracer() if isinstance(self.model, Scheduling) else given
        told = replace(self.demands, program=host.program)
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return state | {'model': host, 'demands': told}

    # It never changes; a copy of it is of the same model.
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


# ---- arguments -----------------------------------------------------------------------


def _whole_numbers(indices: Indices) -> Array:
    """Indices as an array [n] of some integer type."""
    expect('indices', indices, not some_masked([indices]), 'an array of ints', MASKED)
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


def write(
    path: str | os.PathLike[str], corpus: Corpus, expression: dict[str, Any]
) -> None:
    """See `Corpus.save`; `expression` is the fingerprint of its program."""
    check_path(path)
    skipped = [list(each) for each in corpus.skipped]
    metadata = {'corpus': {'fingerprint': expression, 'skipped': skipped}}
    arrays = {**_arrays(corpus), **labels_as_text(corpus.model.program, corpus.labels)}
    with noted('`path` in a folder that exists, got another: make the folder'):
        storage.write(path, arrays, metadata)


def _check(corpus: Corpus, path: str | os.PathLike[str]) -> None:
    """Refuses what no trace gives: checksums are right, whoever wrote the file."""
    assert isinstance(corpus.graph, Graph)  # of one file
    try:
        check_graph(corpus.model.program, corpus.graph)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None


def _arrays(corpus: Corpus) -> dict[str, Array]:
    """Everything by name; the inverse of `_corpus`."""
    graph = corpus.graph.whole() if isinstance(corpus.graph, Parts) else corpus.graph
    arrays = {'source': corpus.source}
    program = corpus.model.program
    tables = graph.constants + graph.operations + graph.results
    for name, table in zip(_names(program, len(program.types)), tables, strict=True):
        # What begins where need not be kept of what has one row an example.
        if name != OUTPUTS:
            arrays[f'{name}/first'] = table.first
        for k, column in enumerate(table.columns):
            arrays[f'{name}/{k}'] = column
    for name in DEMANDS:
        arrays[f'demands/{name}'] = getattr(corpus.demands, name)
    return arrays


def _names(program: Program, types: int) -> list[str]:
    """What the tables of a graph are called in a file: of constants, of so many types,
    operations and results."""
    names = [f'constants/{t}' for t in range(types)]
    names += [f'operations/{o}' for o in range(len(program.operations))]
    numbers = {r: n for n, r in enumerate(program.observed)}
    return names + [
        f'metrics/{numbers[r]}' if r in numbers else OUTPUTS
        for r in range(len(program.results))
    ]


def _corpus(
    model: Scheduling,
    arrays: dict[str, Array],
    skipped: tuple[tuple[int, str], ...],
    numbers: Mapping[str, Any],
) -> Corpus:
    program, names = model.program, iter(_names(model.program, numbers['types']))
    examples = len(arrays['source'])

    def tables(columns: Iterable[int]) -> tuple[Table, ...]:
        """The next tables, of so many columns each."""
        return tuple(
            Table(
                np.arange(examples + 1) if name == OUTPUTS else arrays[f'{name}/first'],
                tuple(arrays[f'{name}/{k}'] for k in range(count)),
            )
            for count, name in zip(columns, names, strict=False)
        )

    graph = Graph(
        examples,
        tables(1 for _ in range(numbers['types'])),
        tables(1 + len(each.inputs) for each in program.operations),
        tables(len(each.tensors) for each in program.results),
    )
    graph = replace(graph, labels=labels_of_text(program, graph, arrays))
    demanded = Demands(program, *(arrays[f'demands/{name}'] for name in DEMANDS))
    graph = fitted(program, graph, numbers)
    made = Corpus(model, graph, demanded, arrays['source'], skipped)
    return _demanding(made, numbers)


def suited(model: Scheduling, corpus: Corpus) -> Corpus:
    """A corpus of another model whose expression has the same structure, for this.

    Raises:
      ValueError: the structure differs.
    """
    if corpus.model is model:
        return corpus
    program, demanded = model.program, corpus.demands
    _refuse('', differing(program, corpus.model.program))
    numbers = numbers_of(corpus.model.program)
    parts = graphs_in(corpus.graph)
    graph = in_parts(fitted(program, each, numbers) for each in parts)
    demanded = Demands(program, demanded.added, demanded.highest)
    made = replace(corpus, model=model, graph=graph, demands=demanded)
    return _demanding(made, numbers)


def _refuse(where: str, found: Sequence[str]) -> None:
    """Refuses a corpus of another structure, if anything was found that differs."""
    if found:
        raise ValueError(
            f'{where}expected a corpus of the expression of this model, got one of '
            f'another, with {"; ".join(found)}. Trace the examples again with '
            '`model.trace`'
        )


def _demanding(corpus: Corpus, numbers: Mapping[str, Any]) -> Corpus:
    """A corpus that knows what its examples demand of its model, whose program may be
    without loops where that which they were traced for had some, or have other numbers.
    """
    program, graph = corpus.model.program, corpus.graph
    if numbers == numbers_of(program) and fits(program, corpus.demands):
        return corpus
    graph = graph.whole() if isinstance(graph, Parts) else graph
    return replace(corpus, demands=demands(make_uses(program, graph)))


# ---- several -------------------------------------------------------------------------


def joined(model: Scheduling, parts: Sequence[Corpus]) -> Corpus:
    """The examples of all, numbered as if given one part after another."""
    given = (len(part) + len(part.skipped) for part in parts)
    first = list(itertools.accumulate(given, initial=0))
    return Corpus(
        model,
        in_parts([part.graph for part in parts]),
        join_demands([part.demands for part in parts]),
        np.concatenate([a + x.source for a, x in zip(first, parts, strict=False)]),
        tuple(
            (a + at, text)
            for a, part in zip(first, parts, strict=False)
            for at, text in part.skipped
        ),
    )
