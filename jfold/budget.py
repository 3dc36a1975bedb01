# SPDX-License-Identifier: Apache-2.0
"""The shapes of schedule that a model has: each is a program to compile.

For each number of rows of the results, and the shards they lie in, those in use form a
chain: each holds what the one before it holds, and a batch takes the first that holds
it. What was reserved stays in its chain; the last, if it was not, is replaced when a
batch outgrows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from jfold.errors import ProgramBudgetError
from jfold.kept import lazy
from jfold.planning.growth import COARSE, FINE, Chance, grow
from jfold.planning.slots import with_slots
from jfold.planning.tiles import asked, best_strategy, strategy_named, strategy_of
from jfold.program import Program
from jfold.shards import Shards
from jfold.spec import ONCE, Capacity, Spec
from jfold.staircase import fits

Batches: TypeAlias = tuple[int, Shards | None]  # rows of the results, and shards
LOG = logging.getLogger('jfold')


@dataclass(eq=False)
class Budget:
    """The specs of a model's schedules, of which there may be `limit`.

    Attributes:
      strategy: of every spec, as are `program`, `residuals` and `reproducible`; `None`:
        as suits the backend.
      current: the specs in use, from small to large.
      reserved: those of them that stay, whatever comes.
      specs: all there were, in order.
    """

    program: Program
    limit: int
    residuals: str
    strategy: str | None
    reproducible: bool = False
    current: dict[Batches, tuple[Spec, ...]] = field(default_factory=dict)
    reserved: set[Spec] = field(default_factory=set)
    specs: dict[Spec, None] = field(default_factory=dict)

    @lazy
    def has_profiles(self) -> bool:
        """Whether capacities tell of levels how many rows they have."""
        return strategy_named(self.strategy, self.reproducible).fixed

    def reserve(self, need: Capacity, chance: Callable[[], Chance]) -> Spec:
        """The spec for a batch, which is in use from now on.

        Raises:
          ProgramBudgetError: it would be one too many; nothing has changed then.
        """
        need = asked(self.program, need, self.strategy)
        # The smallest that holds it, though a larger one would too: what a program
        # costs to run goes by its capacity, and compiling it is paid already.
        chain = self.current.get(_batches(need), ())
        for spec in chain:
            if spec.capacity.holds(need):
                return spec
        old = chain[-1].capacity if chain else None
        # What was reserved was to be enough, so a user is warned, and not only told.
        outgrown = bool(chain) and chain[-1] in self.reserved
        sizes = FINE if self.strategy == ONCE else COARSE
        spec = self._use(need, grow(old, need, chance, sizes), chain)
        LOG.log(logging.WARNING if outgrown else logging.INFO, self._told(old, need))
        return spec

    def prepare(self, need: Capacity) -> None:
        """Reserves what several batches need, before the first of them does.

        Raises:
          ProgramBudgetError: as of `reserve`.
        """
        self.reserve(need, dict)

    def adopt(self, capacity: Capacity) -> Spec:
        """The spec for all batches that `capacity` holds, which stays.

        Raises:
          TypeError: the capacity is none; ValueError: it is of another program.
          ProgramBudgetError: as of `reserve`.
        """
        self._check(capacity)
        capacity = with_slots(self.program, capacity)
        capacity = asked(self.program, capacity, self.strategy)
        chain = self.current.get(_batches(capacity), ())
        spec = next((x for x in chain if x.capacity.holds(capacity)), None)
        if spec is None:
            old = chain[-1].capacity if chain else None
            # Not grown by chance: whoever reserves says what comes.
            new = capacity if old is None else old | capacity
            spec = self._use(capacity, new, chain)
            LOG.info(f'{self._told(old, capacity)}; reserved')
        self.reserved.add(spec)
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

    def _use(self, need: Capacity, new: Capacity, chain: tuple[Spec, ...]) -> Spec:
        """Puts a spec of a new capacity at the end of the chain that `need` is of."""
        spec = self._spec(new)
        # One that was in use before is no new program: JAX has it still.
        if spec not in self.specs and len(self.specs) >= self.limit:
            old = chain[-1].capacity if chain else None
            raise ProgramBudgetError(_over(self.limit, old, need))
        # A program that was outgrown serves nobody else: its successor holds all that
        # it held, so of those that grew by themselves there is one at a time.
        stays = not chain or chain[-1] in self.reserved
        self.current[_batches(need)] = *(chain if stays else chain[:-1]), spec
        self.specs[spec] = None
        return spec

    def _told(self, old: Capacity | None, need: Capacity) -> str:
        """Which program the last is, and why there is one more."""
        return (
            f'program {len(self.specs)} of at most {self.limit}, for batches of '
            f'{need.results} examples: {_grown(old, need)}'
        )


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

    def reserve(self, need: Capacity, chance: Callable[[], Chance]) -> Spec:
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

    def prepare(self, need: Capacity) -> None:
        """Nothing: each batch has what holds it, by itself."""


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
