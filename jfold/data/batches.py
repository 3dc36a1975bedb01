# SPDX-License-Identifier: Apache-2.0
"""An iterator over the batches of a run, which a thread builds ahead.

A `BatchSampler` says which examples make up the batches of an epoch, a pure function of
the arguments and the number of the epoch; a `Source` turns examples into a schedule; a
`Prefetcher` runs any iterator on a thread. A `Progress` says what was
delivered, so that
another run goes on there, whatever was prefetched.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from jfold.base.errors import InputError, ProgramBudgetError, check_at_least
from jfold.base.tracebacks import api_boundary
from jfold.data.prefetch import Prefetcher
from jfold.data.progress import Progress, progress_of, state_of
from jfold.data.sampler import (
    Settings,
    Shuffle,
    check_settings,
    epoch_samplers,
    key_words,
    make_sampler,
)
from jfold.data.sources import Scheduling, Source, make_source
from jfold.scheduling.assignment import assign_evenly
from jfold.scheduling.schedule import Schedule, on_device
from jfold.scheduling.shards import Sharding, make_shards
from jfold.scheduling.spec import Capacity

if TYPE_CHECKING:
    from jfold.data.corpus import Corpus

Array = np.ndarray[Any, Any]
PLANNED = 256  # how many batches are examined for their needs before the first


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch, whose own arrays have the same shapes throughout a run.

    Attributes:
      schedule: for `model.apply`; has `size` rows of results.
      indices: [size] int64, which example each row is, as its place in the source.
        Spare rows repeat one, so that `labels[batch.indices]` has a fixed shape.
      mask: [size] bool, which rows are real.
      count: how many rows are real; they come first, in each shard if there are any.
        Where each process has a stream of its own, these are of its own shards.
      epoch: which pass over the source this is, from 0.
    """

    schedule: Schedule
    indices: Array
    mask: Array
    count: int
    epoch: int

    @api_boundary
    def mean(self, losses: object) -> Any:
        """Return the mean of losses [size, ...] over real rows, by `Schedule.mean`."""
        return self.schedule.mean(losses)


# ---- examples of batches -------------------------------------------------------------

# Some examples, not yet a batch: the epoch, the position behind them, their places in
# the source [count] int64, their items.
_Chunk: TypeAlias = tuple[int, int, Array, list[Any]]


def _chunks(settings: Settings, source: Source, start: Progress) -> Iterator[_Chunk]:
    """Yield the examples of all batches behind a cursor."""
    position = start.position
    if source.items is None:
        try:
            yield from _read_chunks(settings, source.argument, position)
        except Exception as error:  # raised by the stream
            source.fail(error)
            raise
        source.finish()
        return
    for epoch in itertools.count(start.epoch):
        if settings.epochs is not None and epoch >= settings.epochs:
            return
        sampler = make_sampler(settings, source.nodes, epoch)
        for batch in range(int(np.searchsorted(sampler.cuts, position)), len(sampler)):
            indices = sampler[batch]
            yield epoch, int(sampler.cuts[batch + 1]), indices, source.items(indices)
        position = 0


def _read_chunks(
    settings: Settings, stream: Iterable[Any], position: int
) -> Iterator[_Chunk]:
    """Yield the examples of a stream, batch by batch, from a position on."""
    # Positions count the examples of all processes, each of which has its own stream.
    iterator, size, total = iter(stream), settings.local_size, settings.batch_size
    begin = position * size // total
    skipped = sum(1 for _ in itertools.islice(iterator, begin))
    if skipped < begin:
        raise ValueError(
            f'expected a stream of at least {begin} examples, which the restored '
            f'state has behind it, got one of {skipped}: pass it from its beginning'
        )
    while items := list(itertools.islice(iterator, size)):
        if len(items) < size and settings.drop_remainder:
            return
        end = begin + len(items)
        places = np.arange(begin, end, dtype=np.int64)
        yield 0, -(-end * total // size), places, items
        begin = end


# ---- making batches ------------------------------------------------------------------


def _capacity(corpus: Corpus, settings: Settings, batches: Iterable[Array]) -> Capacity:
    """Return a capacity that holds each of some batches."""
    if (shards := settings.shards) is None:
        return corpus.capacities_of(batches, settings.batch_size)
    rows = settings.batch_size // shards.count
    parts = (
        batch[part]
        for batch in batches
        for part in assign_evenly(shards, rows, corpus.nodes[batch].tolist()).examples
    )
    return replace(corpus.capacities_of(parts, rows), shards=shards)


def _large_batches(corpus: Corpus, settings: Settings) -> tuple[list[Array], bool]:
    """Return batches that need most, and whether they are all batches of the run."""
    epochs = (settings.epochs or math.inf) if settings.key else 1
    per_epoch = max(len(make_sampler(settings, corpus.nodes, 0)), 1)
    first_epochs = min(epochs, -(-PLANNED // per_epoch))
    batches = list(_batches_of(corpus, replace(settings, epochs=int(first_epochs))))
    if len(batches) <= PLANNED:
        return batches, first_epochs == epochs
    # Those with most nodes, and those with an example that demands most of anything.
    demands, nodes = corpus.demands, [int(corpus.nodes[x].sum()) for x in batches]
    extreme = np.append(demands.added.argmax(0), demands.highest.argmax(0))
    # One epoch has all examples, so each extreme one is in some batch of the first.
    first_epoch = enumerate(batches[:per_epoch])
    with_extreme = [k for k, x in first_epoch if np.isin(extreme, x).any()]
    largest = np.argsort(nodes)[-PLANNED:].tolist()
    return [batches[k] for k in {*largest, *with_extreme}], False


def _batches_of(corpus: Corpus, settings: Settings) -> Iterator[Array]:
    """Yield the examples [n] of each batch, of one epoch if all epochs are alike."""
    for sampler in epoch_samplers(settings, corpus.nodes):
        for batch in range(len(sampler)):
            yield sampler[batch]


def _reserve(settings: Settings, source: Source) -> None:
    """Reserve room for all batches of a corpus, whose needs are known beforehand."""
    corpus = source.corpus
    if corpus is None or not len(corpus):
        return
    largest, is_known = _large_batches(corpus, settings)
    need = _capacity(corpus, settings, largest)
    subject = f'all batches of {len(corpus):,} examples'
    # With no room in the budget, the first batch that is too large says so.
    with contextlib.suppress(ProgramBudgetError):
        corpus.scheduler.budget.prepare(need, is_known, subject)


_Skipped: TypeAlias = list[tuple[int, str]]  # places in the source, and messages
# The result of a chunk: its batch, unless all of it was left out; what was left out;
# the cursor behind it.
_Step: TypeAlias = tuple[Batch | None, _Skipped, Progress]


def _steps(settings: Settings, source: Source, cursor: Progress) -> Iterator[_Step]:
    """Yield the batches behind a cursor, and what was left out of them."""
    in_vain = 0
    _reserve(settings, source)
    for chunk in _chunks(settings, source, cursor):
        batch, skipped = _build_batch(settings, source, chunk)
        done = cursor.batches + (batch is not None), cursor.skipped + len(skipped)
        cursor = Progress(*chunk[:2], *done)
        in_vain = in_vain + len(skipped) if batch is None else 0
        # A whole epoch is among these, so no later epoch would have a batch either.
        if settings.epochs is None and in_vain >= 2 * (settings.examples or 0):
            raise ValueError(
                f'expected examples that fit the model, got {in_vain} in a row that do '
                f'not; the last: {skipped[-1][1]}'
            )
        yield batch, skipped, cursor


def _build_batch(
    settings: Settings, source: Source, chunk: _Chunk
) -> tuple[Batch | None, _Skipped]:
    """Return the batch of a chunk, and what was left out of it."""
    epoch, _, indices, items = chunk
    size, skipped = settings.batch_size, _Skipped()
    local_size = settings.local_size if source.items is None else size
    while items:
        try:
            schedule, deal = source.build(items, size, settings.shards)
        except InputError as error:
            bad = error.example
            located = _locate(error, int(indices[bad]))
            if not settings.skip_errors:
                raise located from error
            skipped.append((located.example, str(located)))
            indices, items = np.delete(indices, bad), items[:bad] + items[bad + 1 :]
        else:
            schedule = on_device(schedule) if settings.device_put else schedule
            rows, mask = _rows(local_size, len(items)) if deal is None else deal.of_rows
            batch = Batch(schedule, indices[rows], mask, len(items), epoch)
            return batch, skipped
    return None, skipped


def _rows(size: int, count: int) -> tuple[Array, Array]:
    """Return the example of each row [size], and which rows are real [size]."""
    rows = np.arange(size)
    return rows.clip(max=count - 1), rows < count


def _locate(error: InputError, place: int) -> InputError:
    """Return an error with the example's place in the source, not in the batch."""
    result = error.renumbered(place)
    message = str(result).removeprefix(f'example {place}')
    result.args = (f'example {place} of the source{message}',)
    return result


# ---- the iterator --------------------------------------------------------------------


class Batches:
    """An iterator over batches; made by `Model.batches`.

    One thread at a time may take batches. The end of a `with` statement closes it. Once
    it is closed, exhausted, or has raised, nothing comes out until `restore`.
    """

    def __init__(self, settings: Settings, source: Source, prefetch: int) -> None:
        self._settings, self._source, self._prefetch = settings, source, prefetch
        self._cursor = Progress()
        self._skipped: _Skipped = []
        self._steps: Iterator[_Step] | None = None  # until the first batch is taken
        self._has_read = False

    def __iter__(self) -> Batches:
        return self

    @api_boundary
    def __next__(self) -> Batch:
        if self._steps is None:
            self._has_read = True
            steps = _steps(self._settings, self._source, self._cursor)
            self._steps = Prefetcher(steps, self._prefetch) if self._prefetch else steps
        for batch, skipped, cursor in self._steps:
            self._cursor = cursor
            self._skipped += skipped
            if isinstance(batch, Batch):
                return batch
        raise StopIteration

    def close(self) -> None:
        """End the thread; wait until it is done with the batch that it is at."""
        if isinstance(self._steps, Prefetcher | Generator):
            self._steps.close()
        self._steps = iter(())

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @api_boundary
    def __len__(self) -> int:
        """Return how many batches the run has from its beginning to its end.

        With `shuffle` and `max_nodes` this samples all epochs. Fewer come out if
        `skip_errors` leaves nothing of some.

        Raises:
          TypeError: the source is a stream, or the epochs are endless.
        """
        settings, epochs = self._settings, self._settings.epochs
        if settings.examples is None or epochs is None:
            got = 'a stream' if settings.examples is None else 'endless epochs'
            raise TypeError(
                'expected a sequence as source and a number of `epochs`, got '
                f'{got}: batches of that have no length'
            )
        if settings.max_nodes is None:  # then all epochs have as many batches
            settings = replace(settings, key=())
        total = sum(map(len, epoch_samplers(settings, self._source.nodes)))
        return total if settings.key else total * epochs

    @property
    def skipped(self) -> list[tuple[int, str]]:
        """The examples left out so far, as (place in the source, message).

        Those before and in the batch delivered last, since the beginning or `restore`.
        """
        return list(self._skipped)

    @property
    @api_boundary
    def capacities(self) -> Capacity:
        """A capacity that holds each batch of the run, and no more.

        Raises:
          ValueError: the source is no corpus, or the epochs are endless.
        """
        corpus, settings = self._source.corpus, self._settings
        if corpus is None or settings.epochs is None:
            got = type(self._source.argument).__name__
            raise ValueError(
                'expected a corpus as source and a number of `epochs`, got '
                f'{got} and {settings.epochs}: only of '
                'these is known beforehand what they need'
            )
        return _capacity(corpus, settings, _batches_of(corpus, settings))

    def state(self) -> dict[str, Array]:
        """Return a pytree of small arrays, of fixed shapes, for `restore`."""
        return state_of(self._settings, self._cursor)

    @api_boundary
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on behind the batch that had been delivered last when `state` was taken.

        What was prefetched is discarded. A stream is read from its beginning, past the
        examples that are done with; where each process has one, past its part of them,
        be there as many processes as before or not.

        Raises:
          TypeError: `state` is no dict.
          ValueError: `state` is of batches of other arguments, or the source is an
            iterator that was begun. Nothing has changed then.
        """
        cursor, source = progress_of(self._settings, state), self._source
        is_begun = self._has_read and isinstance(source.argument, Iterator)
        if source.items is None and is_begun:
            raise ValueError(
                'expected a stream that can be read from its beginning, got '
                f'{type(source.argument).__name__}, which has been begun: call '
                '`Model.batches` with a fresh one, and restore that'
            )
        cuts = make_sampler(self._settings, source.nodes, cursor.epoch).cuts
        if source.items is not None and cursor.position not in cuts:
            raise ValueError(
                f'expected a state at the end of a batch, got {cursor.position} '
                f'examples of epoch {cursor.epoch}: the source has changed'
            )
        self.close()
        self._cursor, self._skipped, self._steps = cursor, [], None

    def __repr__(self) -> str:
        args, at = self._settings, self._cursor
        examples = 'a stream' if args.examples is None else f'{args.examples} examples'
        limit = '' if args.max_nodes is None else f', max_nodes={args.max_nodes}'
        shuffled = ', shuffled' if args.key else ''
        epochs = '' if args.epochs is None else f' of {args.epochs}'
        return (
            f'Batches({examples}, batch_size={args.batch_size}{limit}{shuffled}; '
            f'{at.batches} delivered, epoch {at.epoch}{epochs}, example {at.position})'
        )


# ---- arguments -----------------------------------------------------------------------


@api_boundary
def batches(
    model: Scheduling,
    source: object,
    batch_size: int,
    *,
    shuffle: Shuffle = None,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    max_nodes: int | None = None,
    skip_errors: bool = False,
    prefetch: int = 2,
    device_put: bool | None = None,
    sharding: Sharding | None = None,
) -> Batches:
    """Cut examples into batches, which a thread builds while the device works.

    A method of `Model`. It can be resumed, see `Batches`; reserves room for a corpus.

    Args:
      model: as `jfold.compile` returns it.
      source: a corpus of this model; a sequence, anything with a length and items; or
        another iterable of examples: a stream, read once, in its order.
      batch_size: examples of a batch, and rows: fewer are padded, by a million at most.
      shuffle: a PRNG key, old or new; an int seed, which stands for
        `jax.random.key(seed)`; `None` keeps the order.
      epochs: how many times to go through the source; `None` for ever.
      drop_remainder: whether to leave out an epoch's last batch if it has neither
        `batch_size` examples nor just `max_nodes` operations.
      max_nodes: for a corpus, how many operations a batch runs at most.
      skip_errors: whether to leave out examples that do not fit the model; see
        `Batches.skipped`. A batch of nothing else does not appear.
      prefetch: how many batches may lie ready or be made; 0 for no thread.
      device_put: whether schedules are sent to the device beforehand; when left out,
        unless it is one CPU, where copies take time from its cores.
      sharding: as of `Model.schedule`, but examples are dealt so that all devices run
        about as many operations; `Batch.indices` says which row is whose.

    Returns:
      An iterator; it raises what the source does, an `InputError` with the place in the
      source as `example`, or a `ProgramBudgetError`.

    Raises:
      TypeError, ValueError: an argument is wrong, or does not go with this source.

    >>> import jax.numpy as jnp, jfold as jf
    >>> model = jf.compile(jf.Scalar() >> jf.Function(jnp.negative))
    >>> for batch in model.batches([1, 2, 3], 2):
    ...     print(model.apply({}, batch.schedule), batch.indices, batch.mask)
    [-1. -2.] [0 1] [ True  True]
    [-3. -3.] [2 2] [ True False]
    """
    shards = None if sharding is None else make_shards(sharding)
    origin = make_source(model, source, shards)
    examples = None if origin.items is None else len(origin.argument)
    has_devices = shards is not None or jax.default_backend() != 'cpu'
    puts = has_devices if device_put is None else device_put
    of_epoch = key_words(shuffle), examples, batch_size, max_nodes, drop_remainder
    settings = Settings(*of_epoch, epochs, skip_errors, puts, shards)
    check_settings(settings, origin.nodes)
    return Batches(settings, origin, check_at_least('prefetch', prefetch, 0))
