# SPDX-License-Identifier: Apache-2.0
"""An iterator over the batches of a run, which a thread builds ahead.

A `BatchSampler` chooses the examples of each batch of an epoch. A `Source` turns
examples into a schedule. A `Prefetcher` runs any iterator on a thread. A `Progress`
counts what was delivered, so that a restored run continues there, whatever was
prefetched.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from jfold.base.arguments import check_at_least
from jfold.base.errors import InputError, ProgramBudgetError
from jfold.base.tracebacks import api_boundary
from jfold.data.corpus import Corpus
from jfold.data.prefetch import Prefetcher
from jfold.data.sampler import (
    Progress,
    Settings,
    Shuffle,
    check_source,
    epoch_samplers,
    key_words,
    make_sampler,
    progress_of,
    state_of,
)
from jfold.data.scheduler import Scheduling
from jfold.scheduling.schedule import Schedule, on_device
from jfold.scheduling.shard_assignment import assign_evenly
from jfold.scheduling.shards import Sharding, make_shards
from jfold.scheduling.spec import Capacity

Array = np.ndarray[Any, Any]
PLANNED = 256  # how many batches are examined, before the first, for their needs


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch: a schedule, and the example that each of its rows holds.

    `indices` and `mask` have the same shape in all batches of a run. Where each process
    has a stream of its own, they and `count` are about the rows of its own shards.

    Attributes:
      schedule: for `model.apply`, whose results have `size` rows.
      indices: [size] int64, the place in the source of the example of each row. Spare
        rows repeat one, so that `labels[batch.indices]` has a fixed shape.
      mask: [size] bool, whether a row is real, and not spare.
      count: how many rows are real; they come first, in each shard if there are any.
      epoch: the number of the pass over the source, from 0.
    """

    schedule: Schedule
    indices: Array
    mask: Array
    count: int
    epoch: int

    @api_boundary
    def mean(self, losses: object) -> Any:
        """Return the mean over real rows of losses [size, ...]; see `Schedule.mean`."""
        return self.schedule.mean(losses)


# ---- examples of batches -------------------------------------------------------------


class _Chunk(NamedTuple):
    """The examples of one batch that is still to be built."""

    epoch: int
    position: int  # how many of the epoch's examples are done after these
    places: Array  # [count] int64, in the source
    items: list[Any] | Array  # the examples; of a corpus, their places


def _chunks(settings: Settings, start: Progress) -> Iterator[_Chunk]:
    """Yield the chunk of each batch after `start`; tell processes if a stream ends."""
    position, channel = start.position, settings.channel
    if settings.examples is None:
        try:
            yield from _read_chunks(settings, position)
        except Exception as error:  # raised by the stream
            if channel is not None:
                channel.fail(error)
            raise
        if channel is not None:
            channel.finish()
        return
    for epoch in itertools.count(start.epoch):
        if settings.epochs is not None and epoch >= settings.epochs:
            return
        sampler = make_sampler(settings, epoch)
        for batch in range(int(np.searchsorted(sampler.cuts, position)), len(sampler)):
            places, end = sampler[batch], int(sampler.cuts[batch + 1])
            yield _Chunk(epoch, end, places, settings.items(places))
        position = 0


def _read_chunks(settings: Settings, position: int) -> Iterator[_Chunk]:
    """Yield the chunk of each batch of stream `settings.source` from `position` on.

    Raises ValueError if the stream ends before `position`.
    """
    total, shards = settings.batch_size, settings.shards
    iterator = iter(settings.source)
    # The rows that belong to this process's shards.
    size = total if shards is None else total // shards.count * len(shards.own)
    # Positions count the examples of all processes, `begin` those of this stream.
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
        yield _Chunk(0, -(-end * total // size), places, items)
        begin = end


# ---- making batches ------------------------------------------------------------------


def _capacity(corpus: Corpus, settings: Settings, batches: Iterable[Array]) -> Capacity:
    """Return the least capacity for each of `batches`, places [n] in `corpus`."""
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
    """Return batches that may need the largest capacity, and whether these are all.

    Only the first epochs are looked at, as many as have `PLANNED` batches.
    """
    epochs = (settings.epochs or math.inf) if settings.key else 1
    per_epoch = max(len(make_sampler(settings, 0)), 1)
    first_epochs = min(epochs, -(-PLANNED // per_epoch))
    samplers = epoch_samplers(settings, int(first_epochs))
    batches = list(itertools.chain.from_iterable(samplers))
    if len(batches) <= PLANNED:
        return batches, first_epochs == epochs
    # Chosen are the batches with most operations, and those that hold an example with
    # the largest demand in some column.
    demands, nodes = corpus.demands, [int(corpus.nodes[x].sum()) for x in batches]
    extreme = np.append(demands.added.argmax(0), demands.highest.argmax(0))
    # Each epoch has all examples, so any extreme one is in some batch of the first.
    first_epoch = enumerate(batches[:per_epoch])
    with_extreme = [k for k, x in first_epoch if np.isin(extreme, x).any()]
    largest = np.argsort(nodes)[-PLANNED:].tolist()
    return [batches[k] for k in {*largest, *with_extreme}], False


_Skipped: TypeAlias = list[tuple[int, str]]  # place in the source, error message
# The result of a chunk: its batch, or `None` if all examples were left out; those left
# out; the progress after the batch.
_Step: TypeAlias = tuple[Batch | None, _Skipped, Progress]


def _steps(settings: Settings, cursor: Progress) -> Iterator[_Step]:
    """Yield (batch or `None`, examples left out, progress) per batch after `cursor`.

    Raises InputError if an example does not fit, and `skip_errors` is false; ValueError
    if epochs are endless, and no example of a whole epoch fits.
    """
    in_vain, corpus = 0, settings.corpus
    if corpus is not None and len(corpus):
        largest, is_known = _large_batches(corpus, settings)
        need = _capacity(corpus, settings, largest)
        subject = f'all batches of {len(corpus):,} examples'
        # Beyond `max_programs` nothing is reserved: what does not fit will raise.
        with contextlib.suppress(ProgramBudgetError):
            corpus.scheduler.budget.prepare(need, is_known, subject)
    for chunk in _chunks(settings, cursor):
        batch, skipped = _build_batch(settings, chunk)
        done = cursor.batches + (batch is not None), cursor.skipped + len(skipped)
        cursor = Progress(chunk.epoch, chunk.position, *done)
        in_vain = in_vain + len(skipped) if batch is None else 0
        # These include a whole epoch, so no later epoch would have a batch either.
        if settings.epochs is None and in_vain >= 2 * (settings.examples or 0):
            raise ValueError(
                f'expected examples that fit the model, got {in_vain} in a row that do '
                f'not; the last: {skipped[-1][1]}'
            )
        yield batch, skipped, cursor


def _build_batch(settings: Settings, chunk: _Chunk) -> tuple[Batch | None, _Skipped]:
    """Return a chunk's batch, `None` if no example fits, and the examples left out.

    Raises InputError if an example does not fit, and `skip_errors` is false.
    """
    places, items, skipped = chunk.places, chunk.items, _Skipped()
    while len(items):
        try:
            schedule, deal = settings.build(items)
        except InputError as error:
            text = _of_source(str(error), error.example, places)
            if not settings.skip_errors:
                located = error.renumbered(int(places[error.example]))
                located.args = (text,)
                raise located.with_traceback(error.__traceback__) from error.__cause__
            # All at once, by halves: one after another, each would trace all again.
            model: Any = settings.model
            traced = model.trace(items, skip_errors=True, progress=False)
            errors = dict(traced.skipped) or {error.example: str(error)}
            for bad in sorted(errors):
                text = _of_source(errors[bad], bad, places)
                skipped.append((int(places[bad]), text))
            left = [k for k in range(len(items)) if k not in errors]
            places, items = places[left], [items[k] for k in left]
        else:
            schedule = on_device(schedule) if settings.device_put else schedule
            rows, mask = deal.of_rows
            batch = Batch(schedule, places[rows], mask, len(items), chunk.epoch)
            return batch, skipped
    return None, skipped


def _of_source(text: str, example: int, places: Array) -> str:
    """Return the text of an error with the place of its example in the source."""
    rest = text.removeprefix(f'example {example}')
    return f'example {places[example]} of the source{rest}'


# ---- the iterator --------------------------------------------------------------------


class Batches(Iterator[Batch]):
    """An iterator over batches; made by `Model.batches`.

    Only one thread at a time may take batches. The end of a `with` statement closes the
    iterator. Once closed, exhausted or failed, it yields nothing until `restore`.
    """

    def __init__(self, settings: Settings, prefetch: int) -> None:
        self._settings, self._prefetch = settings, prefetch
        self._cursor = Progress()
        self._skipped: _Skipped = []
        self._steps: Iterator[_Step] | None = None  # until the first batch is taken
        self._has_read = False

    @api_boundary
    def __next__(self) -> Batch:
        if self._steps is None:
            self._has_read = True
            steps = _steps(self._settings, self._cursor)
            self._steps = Prefetcher(steps, self._prefetch) if self._prefetch else steps
        for batch, skipped, cursor in self._steps:
            self._cursor = cursor
            self._skipped += skipped
            if isinstance(batch, Batch):
                return batch
        raise StopIteration

    def close(self) -> None:
        """End the thread, after waiting for the batch that it is building."""
        if isinstance(self._steps, Prefetcher | Generator):
            self._steps.close()
        self._steps = iter(())

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @api_boundary
    def __len__(self) -> int:
        """Return the number of batches in the whole run, delivered ones included.

        With `shuffle` and `max_nodes` all epochs are sampled to count them. Fewer are
        delivered if `skip_errors` leaves out all examples of some.

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
        if settings.key and settings.max_nodes is not None:
            return sum(map(len, epoch_samplers(settings, epochs)))
        return epochs * len(make_sampler(settings, 0))  # all epochs have as many

    @property
    def skipped(self) -> list[tuple[int, str]]:
        """The place in the source and the error message of each example left out.

        It covers batches since the beginning or `restore`, up to the last delivered.
        """
        return list(self._skipped)

    @property
    @api_boundary
    def capacities(self) -> Capacity:
        """The least capacity that holds each batch of the run.

        Raises:
          ValueError: the source is no corpus, or the epochs are endless.
        """
        settings, corpus = self._settings, self._settings.corpus
        if corpus is None or settings.epochs is None:
            got = type(settings.source).__name__
            raise ValueError(
                'expected a corpus as source and a number of `epochs`, got '
                f'{got} and {settings.epochs}: only of '
                'these is known beforehand what they need'
            )
        every = itertools.chain.from_iterable(epoch_samplers(settings, settings.epochs))
        return _capacity(corpus, settings, every)

    def state(self) -> dict[str, Array]:
        """Return arguments and progress as a dict of small arrays, for `restore`.

        The shapes are the same for all runs.
        """
        return state_of(self._settings, self._cursor)

    @api_boundary
    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch that had been delivered when `state` was taken.

        Prefetched batches are discarded. A stream is read from its beginning, past the
        examples that are done. Where each process has a stream, it is read past this
        process's share of them, even if there were more or fewer processes before.

        Raises:
          TypeError: `state` is no dict.
          ValueError: `state` is of another order or size of batches, the source is an
            iterator that was begun, or has more or fewer examples. Then this iterator
            is as before.
        """
        settings, cursor = self._settings, progress_of(self._settings, state)
        is_begun = self._has_read and isinstance(settings.source, Iterator)
        if settings.examples is None and is_begun:
            raise ValueError(
                'expected a stream that can be read from its beginning, got '
                f'{type(settings.source).__name__}, which has been begun: call '
                '`Model.batches` with a fresh one, and restore that'
            )
        cuts = make_sampler(settings, cursor.epoch).cuts
        if settings.examples is not None and cursor.position not in cuts:
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

    A method of `Model`. The run can be resumed, see `Batches.restore`. For a corpus a
    capacity is reserved that holds all batches.

    Args:
      model: as `jfold.compile` returns it.
      source: a corpus of this model; a sequence, anything with a length and items; or
        another iterable of examples: a stream, read once, in its order.
      batch_size: examples in a batch, and its rows; up to a million may be spare.
      shuffle: a PRNG key, legacy or typed; an int seed, which stands for
        `jax.random.key(seed)` of the default kind; `None` keeps the order.
      epochs: how many times to go through the source; `None` for ever.
      drop_remainder: whether to leave out an epoch's last batch if it has neither
        `batch_size` examples nor exactly `max_nodes` operations.
      max_nodes: for a corpus, the most operations that a batch may run.
      skip_errors: whether to leave out examples that do not fit the model; see
        `Batches.skipped`. A batch without any other examples is not delivered.
      prefetch: how many batches may be ready or in the making; 0 for no thread.
      device_put: whether schedules are sent to the device ahead of time; by default,
        unless it is a single CPU, where copies take time from its cores.
      sharding: as in `Model.schedule`, but examples are assigned so that devices run
        about as many operations each; in order, where each process has its own stream.
        `Batch.indices` has the example of each row.

    Returns:
      An iterator. It raises errors of the source, an `InputError` whose `example` is
      the place in the source, or a `ProgramBudgetError`.

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
    has_devices = shards is not None or jax.default_backend() != 'cpu'
    settings = Settings(
        model,
        *check_source(model, source, shards),
        key_words(shuffle),
        batch_size,
        max_nodes,
        drop_remainder,
        epochs,
        skip_errors,
        has_devices if device_put is None else device_put,
        shards,
    )
    return Batches(settings, check_at_least('prefetch', prefetch, 0))
