# SPDX-License-Identifier: Apache-2.0
"""The shapes of schedule that a model has: each is a program to compile.

For each number of rows of the results, and the shards they lie in, those in use form a
chain: each holds what the one before it holds, and a batch takes the first that holds
it. What was reserved stays in its chain; the last, if it was not, is replaced when a
batch outgrows it.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeAlias

from jfold.base.errors import ProgramBudgetError
from jfold.base.memo import cached_property
from jfold.program.operations import Program
from jfold.scheduling.growth import COARSE, FINE, Headroom, Stage, grow, nothing_more
from jfold.scheduling.shards import Shards
from jfold.scheduling.slots import with_slots
from jfold.scheduling.spec import ONCE, Capacity, Spec
from jfold.scheduling.staircase import fits
from jfold.scheduling.tiles import asked, best_strategy, strategy_named, strategy_of

Batches: TypeAlias = tuple[int, Shards | None]  # rows of the results, and shards
LOG = logging.getLogger('jfold')
FEW = 8  # programs, beyond which a user is warned
LATE = 32  # batches, by whose needs capacities grow


@dataclass(eq=False)
class Chain:
    """The specs of batches of one size, from small to large.

    Attributes:
      late: what the last batches needed.
      outgrown: how often a batch did not fit.
    """

    specs: tuple[Spec, ...] = ()
    late: deque[Capacity] = field(default_factory=lambda: deque(maxlen=LATE))
    outgrown: int = 0

    def holding(self, need: Capacity) -> Spec | None:
        """The smallest that holds it, though a larger one would too: what a program
        costs to run goes by its capacity, and compiling it is paid already."""
        for spec in self.specs:
            if spec.capacity.holds(need):
                return spec
        return None

    @property
    def largest(self) -> Capacity | None:
        """What holds all others, if there is any."""
        return self.specs[-1].capacity if self.specs else None


@dataclass(eq=False)
class Budget:
    """The specs of a model's schedules.

    Attributes:
      limit: how many there may be; `None`: any number, of which a user is told.
      strategy: of every spec, as are `program`, `residuals` and `reproducible`; `None`:
        as suits the backend.
      chains: the specs in use.
      reserved: those of them that stay, whatever comes; and whether a user said so.
      specs: all there were, in order, and whether they count against the limit.
      is_hard: whether the limit is kept; see `without_limit`.
      has_warned: whether a user was told that there are many.
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

    @cached_property
    def has_profiles(self) -> bool:
        """Whether capacities tell of levels how many rows they have."""
        return strategy_named(self.strategy, self.reproducible).fixed

    @cached_property
    def _sizes(self) -> int:
        return FINE if self.strategy == ONCE else COARSE

    def without_limit(self) -> Budget:
        """The same, of which there may be any number: those that are made do not count
        for whoever has the limit, but are there for them."""
        return self if self.limit is None else replace(self, is_hard=False)

    def reserve(self, need: Capacity, chance: Callable[[], Headroom]) -> Spec:
        """The spec for a batch, which is in use from now on.

        Raises:
          ProgramBudgetError: it would be one too many; nothing has changed then.
        """
        need = asked(self.program, need, self.strategy)
        chain = self.chains.get(_batches(need)) or Chain()
        spec = chain.holding(need) or self._extended(chain, need, chance)
        chain.late.append(need)
        return spec

    def _extended(
        self, chain: Chain, need: Capacity, chance: Callable[[], Headroom]
    ) -> Spec:
        """A new spec for a batch, with room for others like those of late."""
        old, stage = chain.largest, Stage.GROWING if chain.outgrown else Stage.OUTGROWN
        # What was reserved was to be enough, so a user is warned, and not only told.
        was_enough = old is not None and self.reserved.get(chain.specs[-1])
        level = logging.WARNING if was_enough else logging.INFO
        # Where now one kind of node is frequent, now another, either has outgrown it
        # soon: so all have room as the last batches together would.
        late = [*chain.late]  # as it is now: other threads may schedule meanwhile
        most = functools.reduce(operator.or_, late, need)
        new = grow(old, most, chance, self._sizes, stage)
        spec = self._use(need, new, chain)
        chain.outgrown += old is not None
        self._tell(f'{self._told(need)}: {_grown(old, need)}', level)
        return spec

    def prepare(self, need: Capacity, is_known: bool, whose: str) -> None:
        """Reserves what several batches need, before the first of them does.

        Args:
          is_known: whether none needs more.
          whose: what to say of them.

        Raises:
          ProgramBudgetError: as of `reserve`.
        """
        need = asked(self.program, need, self.strategy)
        chain = self.chains.get(_batches(need)) or Chain()
        spec = chain.holding(need)
        if spec is None:
            # What was there before tells nothing of these, unlike those before them.
            chance = functools.partial(nothing_more, need) if is_known else dict
            new = grow(None, need, chance, self._sizes)
            spec = self._use(need, _either(chain.largest, new), chain)
            self._tell(f'{self._told(need)}: reserved {_size(spec)} for {whose}')
        self.reserved.setdefault(spec, False)

    def adopt(self, capacity: Capacity) -> Spec:
        """The spec for all batches that `capacity` holds, which stays.

        Raises:
          TypeError: the capacity is none; ValueError: it is of another program.
          ProgramBudgetError: as of `reserve`.
        """
        self._check(capacity)
        capacity = with_slots(self.program, capacity)
        capacity = asked(self.program, capacity, self.strategy)
        chain = self.chains.get(_batches(capacity)) or Chain()
        spec = chain.holding(capacity)
        if spec is None:
            old = chain.largest
            # Not grown by chance: whoever reserves says what comes.
            spec = self._use(capacity, _either(old, capacity), chain)
            self._tell(f'{self._told(capacity)}: {_grown(old, capacity)}; reserved')
        self.reserved[spec] = True
        return spec

    def spec_of(self, capacity: Capacity) -> Spec:
        """The spec of a capacity by itself, which is not in use for that.

        Raises:
          TypeError, ValueError: as of `adopt`.
        """
        self._check(capacity)
        return self._spec(capacity)

    def _spec(self, capacity: Capacity) -> Spec:
        fitted = strategy_named(self.strategy, self.reproducible).fitted
        options = self.residuals, self.strategy or best_strategy(), self.reproducible
        capacity = fitted(self.program, with_slots(self.program, capacity))
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

    def _use(self, need: Capacity, new: Capacity, chain: Chain) -> Spec:
        """Puts a spec of a new capacity at the end of the chain that `need` is of."""
        spec, limit = self._spec(new), self.limit
        # One that was in use before is no new program: JAX has it still.
        is_new = self.is_hard and spec not in self.specs
        if is_new and limit is not None and sum(self.specs.values()) >= limit:
            raise ProgramBudgetError(_over(limit, chain.largest, need))
        # A program that was outgrown serves nobody else: its successor holds all that
        # it held, so of those that grew by themselves there is one at a time.
        stays = not chain.specs or chain.specs[-1] in self.reserved
        chain.specs = *(chain.specs if stays else chain.specs[:-1]), spec
        self.chains[_batches(need)] = chain
        self.specs.setdefault(spec, self.is_hard)
        return spec

    def _told(self, need: Capacity) -> str:
        """Which program the last is, and for which batches."""
        return f'{self.named(len(self.specs))}, for batches of {need.results} examples'

    def named(self, number: int) -> str:
        """A program by its number."""
        # There are more than there may be where predictions needed some.
        most = '' if number > (self.limit or 0) else f' of at most {self.limit}'
        return f'program {number}{most}'

    def _tell(self, text: str, level: int = logging.INFO) -> None:
        """Tells of a new program; warns of the first that is more than a few."""
        if self.limit is None and len(self.specs) > FEW and not self.has_warned:
            self.has_warned, level = True, logging.WARNING
            text += _advice(self.chains)
        LOG.log(level, text)


@dataclass(frozen=True, eq=False)
class FixedBudget:
    """The specs of a model whose programs were compiled elsewhere: no others.

    Attributes:
      specs: from small to large.
    """

    specs: tuple[Spec, ...]

    @property
    def has_profiles(self) -> bool:
        """As of `Budget`."""
        return strategy_of(self.specs[0]).fixed

    def reserve(self, need: Capacity, chance: Callable[[], Headroom]) -> Spec:
        """The spec for a batch: the smallest that holds it, whose results may have more
        rows.

        Raises:
          ValueError: none does.
        """
        need = asked(self.specs[0].program, need, self.specs[0].strategy)
        for spec in self.specs:
            if need.shards is None and spec.capacity.holds(need):
                return spec
        raise ValueError(_outgrown(self.specs[-1].capacity, need))

    def prepare(self, need: Capacity, is_known: bool, whose: str) -> None:
        """Nothing: each batch has what holds it, by itself."""

    def without_limit(self) -> FixedBudget:
        """Itself: what it has is all there is."""
        return self


class NoBudget:
    """What examples have that were traced apart from a model: they wait for one."""

    @property
    def has_profiles(self) -> bool:
        """Refuse, as do all others: a model decides.

        Raises:
          TypeError: always.
        """
        _refuse_without_model()

    def reserve(self, need: Capacity, chance: Callable[[], Headroom]) -> Spec:
        """Refuse to make room."""
        _refuse_without_model()

    def prepare(self, need: Capacity, is_known: bool, whose: str) -> None:
        """Refuse to make room."""
        _refuse_without_model()

    def without_limit(self) -> NoBudget:
        """Return itself."""
        return self


def _refuse_without_model() -> NoReturn:
    raise TypeError(
        'expected a corpus of a model, got one that was pickled, which models are '
        'not: call `model.join([corpus])`, of the model of the same expression'
    )


def _outgrown(largest: Capacity, need: Capacity) -> str:
    if need.shards is not None:
        return (
            'expected a batch for one device, as what was saved is, got one for '
            f'{need.shards}: leave `sharding` out'
        )
    return (
        'expected a batch that fits a capacity that the model was saved with, got one '
        f'that is larger than the largest of them; {_grown(largest, need)}. Save it '
        'with a larger one, `jf.save(path, model, params, capacities=[...])`, of '
        '`model.trace(examples).capacities(batch_size)`, or give smaller batches'
    )


def _batches(need: Capacity) -> Batches:
    return need.examples, need.shards


def _either(old: Capacity | None, new: Capacity) -> Capacity:
    """What holds a new capacity, and the largest that there was."""
    return new if old is None else old | new


def _size(spec: Spec) -> str:
    """How much there is room for."""
    capacity = spec.capacity
    levels = f' in {capacity.levels} levels' if capacity.levels else ''
    return f'{sum(capacity.rows):,} nodes{levels}'


def _advice(chains: Mapping[Batches, Chain]) -> str:
    """What to do where there are many programs."""
    sizes = sorted({examples for examples, _ in chains})
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


def _grown(old: Capacity | None, need: Capacity) -> str:
    if old is None:
        return f'no batch had {need.results} examples before'
    pairs = zip(old.dimensions(), need.dimensions(), strict=True)
    grown = [f'{n} from {a} to {b}' for (n, a), (_, b) in pairs if b > a]
    if not all(map(fits, need.profiles, old.profiles)):
        grown.append('the rows of levels, or their number')
    return f'these grew: {", ".join(grown)}'


def _over(limit: int, old: Capacity | None, need: Capacity) -> str:
    return (
        f'expected batches for at most {limit} programs, as `max_programs` says, got '
        f'a batch of {need.results} examples, which needs program {limit + 1}; '
        f'{_grown(old, need)}. Give batches of one size and similar content, which '
        'share programs; or raise `jfold.compile(..., max_programs=...)`'
    )
