# SPDX-License-Identifier: Apache-2.0
"""`Spec`: the static key of a compiled program: operations, a `Capacity`, options.

A capacity gives array shapes alone. The rows and levels that a batch fills are data, so
all batches that fit one capacity share a compiled program.
"""

from __future__ import annotations

import functools
import math
import operator
import weakref
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jfold.base.arguments import check_at_least, expect
from jfold.base.memo import Memoized, Stays, cached_property, memoized
from jfold.program.operations import Operations
from jfold.scheduling.shards import Shards
from jfold.scheduling.staircase import Profile, fits, larger

RESIDUALS = SAVE_PRODUCTS, RECOMPUTE_ALL = 'save products', 'recompute all'
STRATEGIES = COUNTED, FIXED = 'counted', 'fixed'  # for loops


def check_options(
    max_programs: object, residuals: object, strategy: object, reproducible: object
) -> None:
    """Raise TypeError or ValueError if an option of `jf.compile` is invalid."""
    if max_programs is not None:
        check_at_least('max_programs', max_programs, 1)
    for name, value, choices in (
        ('residuals', residuals, RESIDUALS),
        ('strategy', strategy, (*STRATEGIES, None)),
    ):
        if value not in choices:
            names = ' or '.join(map(repr, choices))
            raise ValueError(f'expected `{name}` as {names}, got {value!r}')
    hint = 'say `True` for sums in a fixed order'
    is_bool = isinstance(reproducible, bool)
    expect('reproducible', reproducible, is_bool, 'a bool', hint)


@dataclass(frozen=True)
class Capacity:
    """The numbers of rows, levels and sums that fit into a schedule.

    With shards, the numbers are those of a single shard. In the reverse pass each use
    of a value leaves its cotangent in an edge row. A slot is an input of an operation
    outside of loops, or a tensor of a result.

    Attributes:
      examples: the exact number of rows of the results; most others are upper bounds.
      levels: the most levels of a component, the operations of one recurrence.
      constants: [types] rows of constants, the program's own included.
      rows: [operations] the most nodes (applications) of each operation.
      fans: [types] the most edge rows that one gather adds up for a value; 0 for types
        without gradients.
      sums: [types] rows for sums of edge rows, for values with more uses than one
        gather adds up.
      stages: rounds of sums of edge rows: each adds up edge rows and earlier sums.
      metrics: rows of each result whose number of rows varies: those of metrics, then
        the items of sequences.
      indexed: [slots] 1 if a slot has an index for each value that it reads, 0 if it is
        read in place; empty if all operations are in loops.
      summands: [slots] the most values that each slot adds up, where segment sums have
        no rows.
      sum_rows: [slots] 1 if the segment sums that a slot reads have rows, since some
        are read more than once, else 0.
      apart: 0 for each pair of slots, its twins, that read the same value in each row,
        else 1.
      profiles: per component, the rows of each operation on each level of a batch, or
        in each step of a staircase, into which levels must fit; () for a component
        whose number of steps does not depend on levels.
      shards: the devices that share the examples; `None` for one device.
    """

    examples: int
    levels: int
    constants: tuple[int, ...]
    rows: tuple[int, ...]
    fans: tuple[int, ...]
    sums: tuple[int, ...]
    stages: int
    metrics: tuple[int, ...]
    indexed: tuple[int, ...] = field(default=(), repr=False)
    summands: tuple[int, ...] = field(default=(), repr=False)
    sum_rows: tuple[int, ...] = field(default=(), repr=False)
    apart: tuple[int, ...] = field(default=(), repr=False)
    profiles: tuple[Profile, ...] = field(default=(), repr=False)
    shards: Shards | None = field(default=None, repr=False)

    @property
    def results(self) -> int:
        """The number of rows of the results, over all shards together."""
        return self.examples * (self.shards.count if self.shards else 1)

    def holds(self, other: Capacity) -> bool:
        """Return whether every batch that fits `other` fits this capacity."""
        is_larger = all(map(operator.ge, self._room, other.numbers))
        return is_larger and all(map(fits, other.profiles, self.profiles))

    def __or__(self, other: Capacity) -> Capacity:
        """Return the least capacity that holds all batches that fit either operand.

        Raises ValueError if the shards of the operands differ.

        >>> one = Capacity(8, 5, (0,), (70,), (1,), (0,), 0, ())
        >>> either = one | Capacity(8, 9, (0,), (60,), (1,), (0,), 0, ())
        >>> either.levels, either.rows
        (9, (70,))
        """
        if not isinstance(other, Capacity):
            return NotImplemented
        if self.shards != other.shards:
            raise ValueError(
                'expected capacities of the same shards, got '
                f'{self.shards or "none"} and {other.shards or "none"}'
            )
        numbers = {x: _larger(getattr(self, x), getattr(other, x)) for x in _NUMBERS}
        # Without profiles the rows of levels are unknown, so the result has none.
        profiles = self.profiles and other.profiles
        if profiles:
            profiles = tuple(map(larger, self.profiles, other.profiles))
        return replace(self, **numbers, profiles=profiles)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """All fields but `profiles` and `shards`, flattened in one fixed order."""
        of_types = *self.constants, *self.fans, *self.sums
        rows = *self.rows, *self.metrics
        of_slots = *self.indexed, *self.apart, *self.summands, *self.sum_rows
        return self.examples, self.levels, self.stages, *of_types, *rows, *of_slots

    @cached_property
    def _room(self) -> tuple[float, ...]:
        """The upper bounds on the `numbers` of capacities that fit into this one.

        Infinite for `summands` where sums have rows, since slots then add up nothing.
        """
        summands = [
            math.inf if has_rows else number
            for number, has_rows in zip(self.summands, self.sum_rows, strict=True)
        ]
        first = len(self.numbers) - len(self.sum_rows) - len(summands)
        return *self.numbers[:first], *summands, *self.sum_rows

    def dimensions(self) -> Iterable[tuple[str, int]]:
        """Yield pairs such as ('rows[2]', 70), for all but `profiles` and `shards`."""
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, tuple):
                yield from ((f'{name}[{k}]', number) for k, number in enumerate(value))
            else:
                yield name, value


_NUMBERS = [x.name for x in fields(Capacity) if x.name not in ('profiles', 'shards')]


def _larger(x: Any, y: Any) -> Any:
    """Return the larger of two numbers, or the elementwise maximum of two tuples."""
    return tuple(map(max, x, y)) if isinstance(x, tuple) else max(x, y)


class Spec(Memoized, Stays):
    """The static key of a compiled program: hashable and immutable.

    No dataclass: Flax's `tabulate` would print its fields, the entire program, wherever
    a module is called with a schedule.

    Args:
      residuals: what the forward pass stores for the reverse; one of `RESIDUALS`.
      strategy: how often loops run, if the program has any; one of `STRATEGIES`.
        'counted': as often as the batch says, level by level, with tiles (blocks of
        rows) of several widths. 'fixed': as often as the capacity says, with one tile
        of each operation a step, whose widths follow the capacity's profiles.
      reproducible: whether the order of sums depends neither on the capacity nor on the
        number of threads; then each operation has tiles of one width.
    """

    _instead = (
        'a `Schedule`',
        'give it what `model.tracer()(examples)` makes, for `model.schedule` there',
    )

    def __init__(
        self,
        program: Operations,
        capacity: Capacity,
        residuals: str = SAVE_PRODUCTS,
        strategy: str = COUNTED,
        reproducible: bool = False,
    ) -> None:
        self.program, self.capacity = program, capacity
        self.residuals, self.strategy = residuals, strategy
        self.reproducible = reproducible
        self._all = program, capacity, residuals, strategy, reproducible

    def __eq__(self, other: object) -> bool:
        return self._all == other._all if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f'Spec({", ".join(map(repr, self._all))})'

    def replaced(self, **changes: Any) -> Spec:
        """Return a copy with some arguments of the constructor replaced, by name."""
        names = 'program', 'capacity', 'residuals', 'strategy', 'reproducible'
        return Spec(**{**dict(zip(names, self._all, strict=True)), **changes})

    @property
    def shards(self) -> Shards | None:
        """The devices that share the examples; `None` for one device."""
        return self.capacity.shards

    @cached_property
    def key(self) -> SpecKey:
        """The static part of a schedule's pytree, which stands for this spec."""
        program, *others = self._all
        key = SpecKey(weakref.ref(program), tuple(others))
        _specs(program).setdefault(key, self)
        return key


@memoized
def of_one_shard(spec: Spec) -> Spec:
    """Return the same spec without `shards`, by which each shard runs alone."""
    return spec.replaced(capacity=replace(spec.capacity, shards=None))


@dataclass(frozen=True)
class SpecKey:
    """A stand-in for a spec in a schedule's pytree; equal where specs are equal.

    The key has a weak reference to the program: JAX has caches of pytrees that outlive
    every function, and they would keep all data of the program alive.
    """

    program: weakref.ref[Operations]
    others: tuple[Any, ...]  # the other arguments of `Spec`

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.program, self.others))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        # JAX prints this four times in its error about schedules that do not stack, so
        # the text is short. The checksum tells apart keys of else the same numbers.
        capacity, residuals, strategy, reproducible = self.others
        program = self.program()
        operations = 0 if program is None else len(program.operations)
        shape = zlib.crc32(str((capacity.numbers, capacity.profiles)).encode())
        options = f'{strategy}, {residuals}'
        if reproducible:
            options += ', reproducible'
        return (
            f'shape {shape:08x} (examples: {capacity.examples}, nodes: '
            f'{sum(capacity.rows)}, operations: {operations}, {options}), expected of '
            'all; use one `size`, and `Schedule.stack`'
        )

    @property
    def spec(self) -> Spec:
        """The spec that the key stands for.

        Raises:
          ReferenceError: the program was deleted, with its model and schedules.
        """
        program = self.program()
        if program is None:
            raise ReferenceError(
                'expected the model that made this schedule, got a tree of one that '
                'was deleted: keep the model while its schedules are in use'
            )
        return _specs(program)[self]


@memoized
def _specs(program: Operations) -> dict[SpecKey, Spec]:
    """Return the one dict in which `Spec.key` stores a program's specs by key."""
    return {}
