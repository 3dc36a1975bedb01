# SPDX-License-Identifier: Apache-2.0
"""The source of a run, the examples of its batches, and its state.

The examples are a pure function of the checked arguments and the number of the epoch,
so a run can be resumed at any batch, on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.arguments import check_at_least, check_spare_rows
from jfold.data.agreement import Channel
from jfold.data.corpus import Corpus, adopt_corpus
from jfold.data.scheduler import Scheduler, Scheduling
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.shard_assignment import (
    ShardAssignment,
    assign_evenly,
    default_assignment,
    rows_of_shard,
)
from jfold.scheduling.shards import Shards

Array = np.ndarray[Any, Any]
Shuffle: TypeAlias = jax.Array | Array | int | np.integer | None  # key, seed, none

KEY_WORDS = 4  # the most 32-bit words that a key of JAX's own generators has
FORMAT = 1  # of what `Batches.state` returns


@dataclass(frozen=True, eq=False)
class Settings:
    """The arguments of `batches`, checked: types, ranges, and what goes together."""

    model: Scheduling
    source: Any  # a corpus, adopted by the model, a sequence or a stream
    examples: int | None  # how many the source has; `None` for a stream
    channel: Channel | None  # to other processes, if each has a stream of its own
    key: tuple[int, ...]  # its 32-bit words; () if nothing is shuffled
    batch_size: int
    max_nodes: int | None
    drop_remainder: bool
    epochs: int | None
    skip_errors: bool
    device_put: bool
    shards: Shards | None

    def __post_init__(self) -> None:
        for name in ('batch_size', 'max_nodes', 'epochs'):
            value = getattr(self, name)
            if value is not None or name == 'batch_size':
                vars(self)[name] = check_at_least(name, value, 1)
        for name in ('drop_remainder', 'skip_errors', 'device_put'):
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f'expected `{name}` as bool, got {value!r}')
        if self.shards is not None:
            rows_of_shard('batch_size', self.shards, self.batch_size, self.batch_size)
        _check_together(self)

    @property
    def corpus(self) -> Corpus | None:
        """The corpus of the examples; `None` if the source is no corpus."""
        return self.source if _is_corpus(self.source) else None

    def items(self, places: Array) -> list[Any] | Array:
        """Return the examples at `places` [n] of a sequence; of a corpus, `places`.

        Raises ValueError if the sequence has grown or shrunk since it was passed.
        """
        items = self.source
        if self.corpus is not None:
            return places
        try:
            if len(items) == self.examples:
                return [items[i] for i in places.tolist()]
        except IndexError:
            if len(items) == self.examples:
                raise
        raise ValueError(
            f'expected a source of {self.examples} examples, as when its batches were '
            f'made, got one of {len(items)}: leave it alone while batches are taken, '
            'or pass a copy'
        )

    def build(self, items: Any) -> tuple[Schedule, ShardAssignment]:
        """Return the schedule of a batch, and its shard assignment.

        Args:
          items: examples; if the source is a corpus, their places in it.
        """
        corpus, size, shards = self.corpus, self.batch_size, self.shards
        # A model that has grown has another scheduler than a corpus adopted before.
        maker: Any = self.model if corpus is None else corpus
        scheduler: Scheduler = maker.scheduler
        if shards is None:
            deal = default_assignment(len(items), size)
            return maker.schedule(items, size=size), deal
        if self.channel is not None:
            return scheduler.schedule_part(items, size, shards, self.channel)
        if corpus is None:
            selection = scheduler.select(items)
            work = selection.graph.nodes_of_examples
        else:
            selection, work = corpus.select(items), corpus.nodes[items]
        deal = assign_evenly(shards, size // shards.count, work.tolist())
        return scheduler.schedule(selection, deal), deal


def _is_corpus(source: object) -> bool:
    return hasattr(source, 'capacities_of')


def check_source(
    model: Scheduling, source: Any, shards: Shards | None
) -> tuple[Any, int | None, Channel | None]:
    """Return the fields `source`, `examples` and `channel` of `Settings`.

    A stream has a channel if other processes hold some of `shards`. Raises TypeError if
    `model` is no model, or `source` may itself be an example; ValueError if it is a
    corpus of another expression.
    """
    if not callable(getattr(model, 'schedule', None)):
        got = type(model).__name__
        raise TypeError(f'expected a model as `jfold.compile` returns it, got {got}')
    # A tuple, text or dict may be one example, passed by mistake in place of several.
    # A set has no order that `Batch.indices` could tell.
    # Arrays [] have a length by name alone.
    is_number = getattr(source, 'shape', None) == ()
    if not is_number and not isinstance(
        source, tuple | str | bytes | Mapping | set | frozenset | type
    ):
        if _is_corpus(source):
            # All processes have the same corpus, so they need no messages.
            return adopt_corpus(model.scheduler, source), len(source), None
        if hasattr(source, '__len__') and hasattr(source, '__getitem__'):
            return source, len(source), None
        if isinstance(source, Iterable):
            if shards is None or shards.is_local:
                return source, None, None
            return source, None, Channel('batches', shards.processes)
    hint = 'pass `[example]` for a single one'
    if isinstance(source, tuple):
        hint += ', `list(source)` for several'
    elif isinstance(source, set | frozenset):
        hint = 'it has no order, pass `sorted(source)`'
    raise TypeError(
        'expected a corpus, a sequence or a stream of examples as `source`, got '
        f'{type(source).__name__}: {hint}'
    )


@dataclass(frozen=True, eq=False)
class BatchSampler:
    """The batches of an epoch: `sampler[k]` is batch `k`, as example indices [n]."""

    order: Array  # [examples] int64, the places of all examples in the source
    cuts: Array  # [batches + 1] int64, where in `order` batches begin and end

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def __getitem__(self, batch: int) -> Array:
        return self.order[self.cuts[batch] : self.cuts[batch + 1]]

    def __iter__(self) -> Iterator[Array]:
        return map(self.__getitem__, range(len(self)))


def make_sampler(settings: Settings, epoch: int) -> BatchSampler:
    """Return the sampler of the epoch with the number `epoch`."""
    order = np.arange(settings.examples or 0, dtype=np.int64)
    if key := settings.key:
        # NumPy promises never to change random bits, unlike permutations.
        seed = np.random.SeedSequence([*key, epoch])
        bits = np.random.Philox(seed).random_raw(len(order))
        order = np.argsort(bits, kind='stable').astype(np.int64, copy=False)
    size, limit, corpus = settings.batch_size, settings.max_nodes, settings.corpus
    if corpus is None or limit is None:
        cuts = np.append(np.arange(0, len(order), size, dtype=np.int64), len(order))
        is_full = len(order) % size == 0
    else:
        nodes = corpus.nodes[order]
        cuts = _cuts_by_nodes(nodes, size, limit)
        last = nodes[cuts[-2:][0] :]
        is_full = len(last) == size or int(last.sum()) == limit
    drops = settings.drop_remainder and not is_full and len(cuts) > 1
    return BatchSampler(order, cuts[:-1] if drops else cuts)


def _cuts_by_nodes(nodes: Array, batch_size: int, max_nodes: int) -> Array:
    """Return the index where each batch begins, and the end [batches + 1] int64.

    A batch takes the next examples, up to `batch_size`, whose `nodes` [examples] add up
    to `max_nodes` at most: nodes [3, 4, 5], 2 and 8 give [0, 2, 3].
    """
    total = np.concatenate([[0], np.cumsum(nodes, dtype=np.int64)])
    cuts = [0]
    while (first := cuts[-1]) < len(nodes):
        # At least one fits: examples that exceed the limit have been refused.
        ahead = total[first + 1 : first + 1 + batch_size]
        fitting = np.searchsorted(ahead, total[first] + max_nodes, side='right')
        cuts.append(first + int(fitting))
    return np.array(cuts, np.int64)


def epoch_samplers(settings: Settings, epochs: int) -> Iterator[BatchSampler]:
    """Yield the `BatchSampler` of each epoch; a single one if nothing is shuffled."""
    different = range(epochs if settings.key else 1)
    return (make_sampler(settings, epoch) for epoch in different)


# ---- arguments -----------------------------------------------------------------------


def key_words(shuffle: Shuffle) -> tuple[int, ...]:
    """Return the 32-bit words of a key or a seed; () for `None`.

    Raises:
      TypeError: `shuffle` is none of these; ValueError: a seed is out of range.
    """
    if shuffle is None:
        return ()
    if isinstance(shuffle, int | np.integer) and not isinstance(shuffle, bool):
        if not 0 <= shuffle < 1 << 64:
            raise ValueError(
                f'expected a seed from 0 to 2**64 - 1 as `shuffle`, got {shuffle}'
            )
        return divmod(int(shuffle), 1 << 32)
    data = shuffle
    if isinstance(data, jax.Array) and jnp.issubdtype(data.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(data)
    if (
        not isinstance(data, jax.Array | np.ndarray)
        or data.dtype != np.uint32
        or data.ndim != 1
        or not 1 <= data.size <= KEY_WORDS
    ):
        raise TypeError(
            'expected one PRNG key, an int seed or None as `shuffle`, got '
            f'{shuffle!r}: `shuffle=jax.random.key(0)`'
        )
    return tuple(np.asarray(data).tolist())


def _check_together(settings: Settings) -> None:
    """Raise ValueError if `settings` do not go with the source or one another."""
    examples, limit, corpus = settings.examples, settings.max_nodes, settings.corpus
    is_stream = examples is None
    if is_stream and settings.key:
        raise ValueError(
            'expected a corpus or a sequence to `shuffle`, got a stream, which has its '
            'own order: pass `list(stream)`, or shuffle where the stream is made'
        )
    if is_stream and settings.epochs != 1:
        raise ValueError(
            'expected `epochs=1` for a stream, which is read once, got '
            f'{settings.epochs}: pass `list(stream)`, or a stream that repeats itself'
        )
    if examples is not None and not settings.drop_remainder:
        check_spare_rows('batch_size', settings.batch_size, examples)
    are_several = settings.shards is not None and not settings.shards.is_local
    if are_several and corpus is None and not is_stream:
        raise ValueError(
            'expected a corpus, or a stream of its own examples for each process, '
            'as source of batches for several, got a sequence: pass '
            '`model.trace(examples)`, or `iter(own_examples)`'
        )
    if are_several and settings.skip_errors:
        raise ValueError(
            'expected `skip_errors=False` for batches of several processes, got '
            'True: leave bad examples out by `model.trace(..., skip_errors=True)`'
        )
    if limit is not None and corpus is None:
        raise ValueError(
            'expected a corpus as source for `max_nodes`, since nothing else knows how '
            'many operations an example runs: make one by `model.trace(examples)`'
        )
    nodes = np.zeros(0) if corpus is None else corpus.nodes
    if limit is not None and nodes.max(initial=0) > limit:
        large = int(np.argmax(nodes > limit))
        raise ValueError(
            f'expected examples of at most {limit} operations, as `max_nodes` says, '
            f'got {nodes[large]} in example {large}: raise `max_nodes`, or leave it out'
        )
    if settings.epochs is None and not len(make_sampler(settings, 0)):
        raise ValueError(
            'expected `source` of at least one batch, for `epochs=None`, got '
            f'{examples} examples, where `batch_size={settings.batch_size}` '
            f'and `drop_remainder={settings.drop_remainder}`'
        )


# ---- the state of a run --------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """The progress of a run of batches, up to the last batch that was delivered."""

    epoch: int = 0  # of the last batch
    # How many examples of the epoch are done in all processes, skipped ones included.
    position: int = 0
    batches: int = 0  # how many were delivered
    skipped: int = 0  # how many examples were left out


def state_of(settings: Settings, cursor: Progress) -> dict[str, Array]:
    """Return `settings` and the progress `cursor`, in arrays of fixed shapes by name.

    All are int64 scalars, -1 for `None`, except `key` [1 + KEY_WORDS] uint32: how many
    words the key has, the words, and zeros.
    """
    key = [len(settings.key), *settings.key, *[0] * KEY_WORDS][: 1 + KEY_WORDS]
    fixed = 'examples', 'batch_size', 'max_nodes', 'drop_remainder'
    numbers = {'format': FORMAT} | {name: getattr(settings, name) for name in fixed}
    return {'key': np.array(key, np.uint32)} | {
        name: np.array(-1 if number is None else number, np.int64)
        for name, number in (numbers | vars(cursor)).items()
    }


def progress_of(settings: Settings, state: object) -> Progress:
    """Return the progress in a `state` that `state_of` returned.

    Raises TypeError if it is no dict, and ValueError unless it is of equal `settings`.
    """
    if not isinstance(state, Mapping):
        raise TypeError(
            'expected `state` as a dict, which `Batches.state` returns, got '
            f'{type(state).__name__}'
        )
    fresh = state_of(settings, Progress())
    arrays = {name: np.asarray(x) for name, x in state.items()}
    expected, got = ({k: x.shape for k, x in d.items()} for d in (fresh, arrays))
    if expected != got:
        raise ValueError(
            f'expected a state of arrays of shapes {expected}, got {got}: pass what '
            '`Batches.state` returned'
        )
    for name in (names := vars(Progress())):
        value = arrays[name]
        if value.dtype.kind not in 'iu' or value < 0:
            raise ValueError(
                f'expected `{name}` of a state as an int of 0 or more, got {value} '
                f'({value.dtype}): pass what `Batches.state` returned'
            )

    def shown(name: str, value: Array) -> str:
        if name == 'key':
            return str(value[1 : 1 + int(value[0])].tolist())
        return 'none' if value == -1 else str(value)

    differing = [
        f'{name} {shown(name, arrays[name])} instead of {shown(name, value)}'
        for name, value in fresh.items()
        if name not in names and not np.array_equal(arrays[name], value)
    ]
    if differing:
        raise ValueError(
            'expected `state` of batches made with the same arguments, got one with '
            f'{", ".join(differing)}: make them with these'
        )
    return Progress(**{name: int(arrays[name]) for name in names})
