# SPDX-License-Identifier: Apache-2.0
"""What a compiled program depends on: a `Spec`, of a program and a `Capacity`.

Only shapes. How many rows of a capacity a batch fills is data, so that batches share
compiled programs.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Any

from jfold.kept import Owner, kept
from jfold.operations import Operations

RESIDUALS = SAVE_PRODUCTS, RECOMPUTE_ALL = 'save products', 'recompute all'
STRATEGIES = COUNTED, FIXED = 'counted', 'fixed'


@dataclass(frozen=True)
class Capacity:
    """How much fits into a schedule. Only shapes: the counts of a batch are data.

    Attributes:
      examples: rows of the results, exactly.
      levels: the most of a component.
      constants: [types] of each type, the program's own included.
      rows: [operations] nodes of each.
      fans: [types] how many uses of a value are gathered at once; 0 where no gradient
        flows.
      sums: [types] rows for sums over wider uses.
      stages: how many rounds such sums take.
      metrics: rows of the results that have any number of them: those of metrics,
        then the items of sequences.
    """

    examples: int
    levels: int
    constants: tuple[int, ...]
    rows: tuple[int, ...]
    fans: tuple[int, ...]
    sums: tuple[int, ...]
    stages: int
    metrics: tuple[int, ...]

    def __or__(self, other: Capacity) -> Capacity:
        """The least capacity that holds what either holds, of training and validation.

        >>> one = Capacity(8, 5, (0,), (70,), (1,), (0,), 0, ())
        >>> either = one | Capacity(8, 9, (0,), (60,), (1,), (0,), 0, ())
        >>> either.levels, either.rows
        (9, (70,))
        """
        if not isinstance(other, Capacity):
            return NotImplemented
        pairs = zip(astuple(self), astuple(other), strict=True)
        larger: list[Any] = [
            tuple(map(max, x, y)) if isinstance(x, tuple) else max(x, y)
            for x, y in pairs
        ]
        return Capacity(*larger)

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """All numbers in a row."""
        of_types = *self.constants, *self.fans, *self.sums
        rows = *self.rows, *self.metrics
        return self.examples, self.levels, self.stages, *of_types, *rows

    def dimensions(self) -> Iterable[tuple[str, int]]:
        """Every number with a name that tells what it counts."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, tuple):
                for index, number in enumerate(value):
                    yield f'{each.name}[{index}]', number
            else:
                yield each.name, value


@dataclass(frozen=True)
class Spec(Owner):
    """What a compiled program depends on; static and hashable.

    Attributes:
      residuals: what the forward pass keeps; one of `RESIDUALS`.
      strategy: how often loops run; one of `STRATEGIES`. 'counted': as often as the
        batch says, level by level, with tiles of several widths. 'fixed': as often as
        the capacity says, with one wide tile of each operation a step.
    """

    program: Operations
    capacity: Capacity
    residuals: str = SAVE_PRODUCTS
    strategy: str = COUNTED


@dataclass(frozen=True)
class SpecKey:
    """A spec in the tree of a schedule: equal where specs are, but without the program.

    Caches of JAX that outlive every function keep trees; with it they would keep all
    data of the program.
    """

    program: weakref.ref[Operations]
    capacity: Capacity
    residuals: str
    strategy: str

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.program, self.capacity, self.residuals, self.strategy))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        # JAX puts this into its error about schedules that do not stack.
        return (
            f'{self.capacity} of {self.program()!r}, expected of all that are stacked; '
            'make them with one `size`, after `model.precompile`'
        )

    @property
    def spec(self) -> Spec:
        """The spec that the key stands for.

        Raises:
          ReferenceError: the model and its schedules have been deleted.
        """
        program = self.program()
        if program is None:
            raise ReferenceError(
                'expected the model that made this schedule, got a tree of one that '
                'was deleted: keep the model while its schedules are in use'
            )
        return _specs(program)[self]


@kept
def key_of(spec: Spec) -> SpecKey:
    """The key of a spec, which can be looked up from now on."""
    program = weakref.ref(spec.program)
    key = SpecKey(program, spec.capacity, spec.residuals, spec.strategy)
    _specs(spec.program).setdefault(key, spec)
    return key


@kept
def _specs(program: Operations) -> dict[SpecKey, Spec]:
    """The specs of a program, by their keys."""
    return {}
