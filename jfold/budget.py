# SPDX-License-Identifier: Apache-2.0
"""The shapes of schedule that a model has: each is a program to compile.

There is one in use for each number of rows of the results, and the shards they lie in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from jfold.errors import ProgramBudgetError
from jfold.planning.growth import Chance, grow
from jfold.planning.tiles import best_strategy
from jfold.program import Program
from jfold.shards import Shards
from jfold.spec import Capacity, Spec

Batches: TypeAlias = tuple[int, Shards | None]  # rows of the results, and shards


@dataclass(eq=False)
class Budget:
    """The specs of a model's schedules, of which there may be `limit`.

    Attributes:
      strategy: of every spec, as are `program` and `residuals`; `None`: as suits the
        backend.
      current: the specs in use, to which the next batches of their kind are fitted.
      specs: all there were, in order.
    """

    program: Program
    limit: int
    residuals: str
    strategy: str | None
    current: dict[Batches, Spec] = field(default_factory=dict)
    specs: dict[Spec, None] = field(default_factory=dict)

    def reserve(self, need: Capacity, chance: Callable[[], Chance]) -> Spec:
        """The spec for a batch, which is in use from now on.

        Raises:
          ProgramBudgetError: it would be one too many; nothing has changed then.
        """
        old = self._capacity(need)
        new = grow(old, need, chance)
        return self.current[_batches(need)] if new is old else self._use(old, need, new)

    def adopt(self, capacity: Capacity) -> Spec:
        """The spec that all batches of a kind are fitted to, if `capacity` is enough.

        Raises:
          ValueError: the capacity is of another program.
          ProgramBudgetError: as of `reserve`.
        """
        program = self.program
        expected = [len(program.types), len(program.operations), len(program.observed)]
        got = [*map(len, (capacity.constants, capacity.rows, capacity.metrics))]
        if expected != got:
            raise ValueError(
                'expected a `Capacity` of this model, with numbers of types, '
                f'operations and metrics {expected}, got {got}: take it from a corpus '
                'that `model.trace` returns'
            )
        old = self._capacity(capacity)
        return self._use(old, capacity, capacity if old is None else old | capacity)

    def _capacity(self, like: Capacity) -> Capacity | None:
        current = self.current.get(_batches(like))
        return None if current is None else current.capacity

    def _use(self, old: Capacity | None, need: Capacity, new: Capacity) -> Spec:
        strategy = self.strategy or best_strategy()
        spec = Spec(self.program, new, self.residuals, strategy)
        if spec not in self.specs and len(self.specs) >= self.limit:
            raise ProgramBudgetError(_over(self.limit, old, need))
        self.current[_batches(need)] = spec
        self.specs[spec] = None
        return spec


def _batches(need: Capacity) -> Batches:
    return need.examples, need.shards


def _over(limit: int, old: Capacity | None, need: Capacity) -> str:
    batch = f'a batch of {need.examples} examples, which needs program {limit + 1}'
    if old is None:
        grown = f'no batch had {need.examples} examples before'
    else:
        pairs = zip(old.dimensions(), need.dimensions(), strict=True)
        grown = ', '.join(f'{n} from {a} to {b}' for (n, a), (_, b) in pairs if b > a)
        grown = f'these grew: {grown}'
    return (
        f'expected batches for at most {limit} programs, as `max_programs` says, got '
        f'{batch}; {grown}. Give batches of one size and similar content, which share '
        'programs; or raise `jfold.compile(..., max_programs=...)`'
    )
