# SPDX-License-Identifier: Apache-2.0
"""The budget of a model: its specs, each of which is a program to compile.

For each batch size and choice of shards, the specs in use form a chain from small to
large: a spec holds all batches that the spec before it holds, and a batch takes the
first spec that holds it. A reserved spec stays in its chain. If the last spec is not
reserved, a larger one replaces it as soon as a batch does not fit; unless that is so
much larger that batches like those before would take far longer in it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from jfold.base.errors import ProgramBudgetError
from jfold.program.operations import Program
from jfold.scheduling.growth import (
    KINDS,
    Headroom,
    Stage,
    grow,
    no_headroom,
    with_all_operations,
)
from jfold.scheduling.read_modes import with_slots
from jfold.scheduling.shards import Shards
from jfold.scheduling.spec import Capacity, Spec
from jfold.scheduling.staircase import fits
from jfold.scheduling.tiles import (
    Strategy,
    best_strategy,
    strategy_for,
    strategy_of,
    without_unused,
)

Batches: TypeAlias = tuple[int, Shards | None]  # a shard's rows of results, and shards
LOG = logging.getLogger('jfold')
FEW = 8  # programs; a user is warned of more
LATE = 32  # most recent batches, by whose needs capacities grow
GIANT = 16  # times as many nodes; a spec that is outgrown by more stays in its chain


@dataclass(eq=False)
class Chain:
    """The specs (programs to compile) for one size of batches.

    Attributes:
      specs: from small to large: each holds all that the spec before it holds.
      late: the least capacities of the `LATE` batches that were scheduled last.
      outgrown: the number of batches that did not fit the largest spec.
      kinds: the number of batches with an operation that the largest spec had not.
    """

    specs: tuple[Spec, ...] = ()
    late: deque[Capacity] = field(default_factory=lambda: deque(maxlen=LATE))
    outgrown: int = 0
    kinds: int = 0

    def holding(self, need: Capacity) -> Spec | None:
        """Return the smallest spec that holds capacity `need`; `None` if none does."""
        return next((x for x in self.specs if x.capacity.holds(need)), None)

    @property
    def largest(self) -> Capacity | None:
        """The capacity of the largest spec; `None` if the chain has no specs."""
        return self.specs[-1].capacity if self.specs else None


@dataclass(eq=False)
class Budget:
    """The specs (programs to compile) of a model; batches that need room add more.

    `program`, `residuals`, `strategy` and `reproducible` are those of every spec.

    Attributes:
      limit: the most specs; `None` for any number, with a warning beyond `FEW`.
      strategy: one of `STRATEGIES`; `None` for the one that suits the backend.
      chains: the specs in use, by rows and shards of the results.
      reserved: the specs that are never replaced; the value is whether a user reserved
        the spec.
      specs: all specs so far, in order; the value is whether it counts against `limit`.
        Those of the programs before this one, of fewer calls, are among them.
      is_hard: whether more specs than `limit` are an error; see `without_limit`.
      has_warned: whether the user was warned that there are more than `FEW` specs.
    """

    program: Program
    limit: int | None
    residuals: str
    strategy: str | None
    reproducible: bool = False
    chains: dict[Batches, Chain] = field(default_factory=dict)
    reserved: dict[Spec, bool] = field(default_factory=dict)
    specs: dict[Spec, bool] = field(default_factory=dict)
    is_hard: bool = True
    has_warned: bool = False

    @property
    def has_profiles(self) -> bool:
        """Return whether capacities record the rows of each level, in `profiles`."""
        return self._strategy.fixed

    @property
    def _strategy(self) -> Strategy:
        return strategy_for(self.program, self.strategy, self.reproducible)

    def without_limit(self) -> Budget:
        """Return a budget with the same chains of specs, but no limit to their number.

        Specs that it adds do not count against the limit.
        """
        return self if self.limit is None else replace(self, is_hard=False)

    @contextlib.contextmanager
    def reserving(
        self, need: Capacity, headroom: Callable[[], Headroom]
    ) -> Iterator[Spec]:
        """Yield the smallest spec that holds `need`; if there is none, add one.

        The body builds schedules. If it raises, an added spec is dropped: where there
        is no memory for one schedule, later ones must not be built as large.

        Args:
          need: the least capacity that holds the batch.
          headroom: called only to add a spec; returns the spare room that it gets.

        Raises:
          ProgramBudgetError: a new spec would exceed the limit; nothing has changed.
        """
        need, chain, spec = self._find(need)
        if spec is not None:
            chain.late.append(need)
            yield spec
            return
        before, known = replace(chain, late=chain.late.copy()), {**self.specs}
        spec = self._grow(chain, need, headroom)
        chain.late.append(need)
        try:
            yield spec
        except BaseException:
            self.chains[_batches(need)] = before
            if not before.specs:
                del self.chains[_batches(need)]
            if spec not in known:
                self.specs.pop(spec, None)
            raise

    def _find(self, need: Capacity) -> tuple[Capacity, Chain, Spec | None]:
        """Return `need` less unused fields, its chain, and a spec for it or `None`."""
        need = without_unused(self.program, need)
        chain = self.chains.get(_batches(need)) or Chain()
        return need, chain, chain.holding(need)

    def _grow(
        self, chain: Chain, need: Capacity, headroom: Callable[[], Headroom]
    ) -> Spec:
        """Append a spec for `need`, recent batches and `headroom()`; return it."""
        old, stage = chain.largest, Stage.GROWING if chain.outgrown else Stage.OUTGROWN
        # A user who reserved the largest spec expected no larger batch: so warn.
        was_enough = old is not None and self.reserved.get(chain.specs[-1])
        level = logging.WARNING if was_enough else logging.INFO
        # One batch has more nodes of one operation, the next of another. So a capacity
        # takes the maximum of the last batches, else each of them would outgrow it in
        # turn.
        late = [*chain.late]  # a copy, since other threads may schedule meanwhile
        most = functools.reduce(operator.or_, late, need)
        # Where each batch is of another kind, those to come are, too.
        pairs = zip(old.rows, need.rows, strict=True) if old else ()
        is_kind = any(had == 0 < wanted for had, wanted in pairs)
        if old is not None and is_kind and chain.kinds >= KINDS:
            most = with_all_operations(old, most)
        # Meanwhile other threads may outgrow `old`, too: all grow alike, to one spec.
        new = grow(old, most, headroom(), stage)
        spec = self._append(need, new, chain)
        chain.outgrown += old is not None
        chain.kinds += is_kind
        self._log(need, self._growth(old, need), level)
        return spec

    def prepare(self, need: Capacity, is_known: bool, whose: str) -> None:
        """Reserve a spec that holds `need`; a new one has spare room unless `is_known`.

        Args:
          need: a capacity that holds several batches, none of which is scheduled yet.
          is_known: whether no later batch needs more than `need`.
          whose: the name of the batches in log messages.

        Raises:
          ProgramBudgetError: as of `reserving`.
        """
        need, chain, spec = self._find(need)
        if spec is None:
            # Grown as a first capacity, since earlier batches tell nothing about these.
            new = grow(None, need, no_headroom(need) if is_known else {})
            spec = self._append(need, new, chain)
            nodes, levels = sum(spec.capacity.rows), spec.capacity.levels
            room = f'{nodes:,} nodes' + (f' in {levels} levels' if levels else '')
            self._log(need, f'reserved {room} for {whose}')
        self.reserved.setdefault(spec, False)

    def adopt(self, capacity: Capacity) -> Spec:
        """Reserve, and return, a spec for all batches that fit a user's `capacity`.

        Raises:
          TypeError: `capacity` is no `Capacity`.
          ValueError: `capacity` is of another program.
          ProgramBudgetError: as of `reserving`.
        """
        self._check(capacity)
        capacity, chain, spec = self._find(with_slots(self.program, capacity))
        if spec is None:
            growth = self._growth(chain.largest, capacity)
            # Without spare room: the user knows what comes.
            spec = self._append(capacity, capacity, chain)
            self._log(capacity, f'{growth}; reserved')
        self.reserved[spec] = True
        return spec

    def spec_of(self, capacity: Capacity) -> Spec:
        """Return the spec of a capacity, without adding it to the budget.

        Raises:
          TypeError, ValueError: as of `adopt`.
        """
        self._check(capacity)
        return self._spec(capacity)

    def _spec(self, capacity: Capacity) -> Spec:
        options = self.residuals, self.strategy or best_strategy(), self.reproducible
        capacity = with_slots(self.program, capacity)
        capacity = self._strategy.fitted(self.program, capacity)
        return Spec(self.program, capacity, *options)

    def _check(self, capacity: Capacity) -> None:
        if not isinstance(capacity, Capacity):
            raise TypeError(
                f'expected a `Capacity`, got {type(capacity).__name__}: take it from '
                '`model.trace(examples).capacities(batch_size)`'
            )
        program = self.program
        expected = [len(program.types), len(program.operations), len(program.observed)]
        got = [*map(len, (capacity.constants, capacity.rows, capacity.metrics))]
        if expected != got:
            raise ValueError(
                'expected a `Capacity` of this model, with numbers of types, '
                f'operations and metrics {expected}, got {got}: take it from a corpus '
                'that `model.trace` returns'
            )

    def _append(self, need: Capacity, new: Capacity, chain: Chain) -> Spec:
        """Append to `chain`, and return, a spec for `new` and all that `chain` holds.

        Args:
          need: the least capacity of the batch that needs the spec; it selects the
            chain, and errors show it.

        Raises:
          ProgramBudgetError: the spec is new, and would exceed the limit.
        """
        old, limit = chain.largest, self.limit
        spec = self._spec(new if old is None else old | new)
        # A spec that was in use before is no new program: JAX has it compiled already.
        is_new = self.is_hard and spec not in self.specs
        if is_new and limit is not None and sum(self.specs.values()) >= limit:
            raise ProgramBudgetError(_over_limit(limit, old, need))
        # An outgrown spec is dropped unless it is reserved, since its successor holds
        # all that it held. But time and memory grow with the capacity.
        is_giant = old is not None and sum(spec.capacity.rows) > GIANT * sum(old.rows)
        stays = not chain.specs or chain.specs[-1] in self.reserved or is_giant
        chain.specs = *(chain.specs if stays else chain.specs[:-1]), spec
        self.chains[_batches(need)] = chain
        self.specs.setdefault(spec, self.is_hard)
        return spec

    def named(self, number: int) -> str:
        """Return a phrase for program `number`: 'program 2 of at most 3'."""
        # Predictions may add programs beyond the limit.
        most = '' if number > (self.limit or 0) else f' of at most {self.limit}'
        return f'program {number}{most}'

    def _growth(self, old: Capacity | None, need: Capacity) -> str:
        """Return why a batch needs another spec, for a log."""
        if old is None and any(x.program is not self.program for x in self.specs):
            return 'the first of the program that was lowered again'
        return _growth(old, need)

    def _log(self, need: Capacity, text: str, level: int = logging.INFO) -> None:
        """Log a text about the newest program, for batches of the size of `need`.

        Once there are more than `FEW` programs without a limit, add advice.
        """
        latest = self.named(len(self.specs))
        text = f'{latest}, for batches of {need.results} examples: {text}'
        if self.limit is None and len(self.specs) > FEW and not self.has_warned:
            self.has_warned, level = True, logging.WARNING
            programs = len({spec.program for spec in self.specs})
            text += _advice(self.chains, programs)
        LOG.log(level, text)


@dataclass(frozen=True, eq=False)
class FixedBudget:
    """A budget that never grows: the specs of a model saved with compiled programs.

    Attributes:
      specs: all specs, from small to large; empty for a corpus without a model.
    """

    specs: tuple[Spec, ...]

    @property
    def has_profiles(self) -> bool:
        """Return whether capacities record the rows of each level, in `profiles`.

        Scheduling asks this first. Raise TypeError without specs, since only a model
        has capacities.
        """
        if not self.specs:
            raise TypeError(
                'expected a corpus of a model, got one that was pickled, which models '
                'are not: call `model.join([corpus])`, of the model of the same '
                'expression'
            )
        return strategy_of(self.specs[0]).fixed

    def reserving(
        self, need: Capacity, headroom: Callable[[], Headroom]
    ) -> contextlib.AbstractContextManager[Spec]:
        """Return a context of the smallest spec that holds `need`; none is ever added.

        It may have more rows of results than `need`. `headroom` is not called.

        Raises:
          ValueError: no spec holds `need`, or `need` has shards.
        """
        need = without_unused(self.specs[0].program, need)
        for spec in self.specs:
            if need.shards is None and spec.capacity.holds(need):
                return contextlib.nullcontext(spec)
        raise ValueError(_outgrown(self.specs[-1].capacity, need))

    def prepare(self, need: Capacity, is_known: bool, whose: str) -> None:
        """Do nothing, since all specs are there already."""

    def without_limit(self) -> FixedBudget:
        """Return `self`, which never gets more specs."""
        return self


def _outgrown(largest: Capacity, need: Capacity) -> str:
    if need.shards is not None:
        return (
            'expected a batch for one device, as what was saved is, got one for '
            f'{need.shards}: leave `sharding` out'
        )
    return (
        'expected a batch that fits a capacity that the model was saved with, got one '
        f'that is larger than the largest of them; {_growth(largest, need)}. Save it '
        'with a larger one, `jf.save(path, model, params, capacities=[...])`, of '
        '`model.trace(examples).capacities(batch_size)`, or give smaller batches'
    )


def _batches(need: Capacity) -> Batches:
    return need.examples, need.shards


def _advice(chains: Mapping[Batches, Chain], programs: int) -> str:
    """Return advice, by the batch sizes of `chains`, for a log of many programs.

    Args:
      programs: how often the expression was lowered, for new calls of lazy functions.
    """
    if programs > FEW // 2:
        return (
            f'. The expression was lowered {programs} times, for calls that `like=` '
            'lacks: give it examples with all calls, and write `x / jf.float32(n)` for '
            '`x / n`, which is a new call for each `n`'
        )
    sizes = sorted({examples * (x.count if x else 1) for examples, x in chains})
    if len(sizes) > FEW // 2:
        shown = ', '.join(map(str, sizes))
        return (
            f'. That is one for each size of batches, {shown}: give them one size, '
            f'`model.schedule(examples, size={sizes[-1]})`, and they share programs'
        )
    return (
        '. Each takes time to compile: reserve what the largest batches will need, '
        '`model.reserve(model.trace(largest).capacities(batch_size))`, before the first'
    )


def _growth(old: Capacity | None, need: Capacity) -> str:
    if old is None:
        return f'no batch had {need.results} examples before'
    pairs = zip(old.dimensions(), need.dimensions(), strict=True)
    grown = [f'{n} from {a} to {b}' for (n, a), (_, b) in pairs if b > a]
    if not all(map(fits, need.profiles, old.profiles)):
        grown.append('the rows of levels, or their number')
    return f'these grew: {", ".join(grown)}'


def _over_limit(limit: int, old: Capacity | None, need: Capacity) -> str:
    return (
        f'expected batches for at most {limit} programs, as `max_programs` says, got '
        f'a batch of {need.results} examples, which needs program {limit + 1}; '
        f'{_growth(old, need)}. Give batches of one size and similar content, which '
        'share programs; or raise `jfold.compile(..., max_programs=...)`'
    )
