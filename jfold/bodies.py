# SPDX-License-Identifier: Apache-2.0
"""What an instruction is, and bodies: straight lines of instructions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from jfold.kept import Owner
from jfold.registers import LISTED, RegisterType, owners_of
from jfold.traits import Effect, Traits, Visiting

CHECK = {'check': True}  # marks an option that no value depends on


@dataclass(frozen=True, eq=False)
class Instruction:
    """Reads and writes registers.

    Attributes:
      where: the path of the block it comes from.
      visit: in the body, a number that grows in the order of evaluation; of blocks with
        a metric inside.
    """

    traits: ClassVar[Traits]

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    where: str
    visit: int | None = field(default=None, kw_only=True, metadata=CHECK)

    def __init_subclass__(cls) -> None:
        # Inherited ones could be wrong, and nobody would see it.
        if 'traits' not in vars(cls):
            raise TypeError(f'expected `traits` in {cls.__name__}, got none')

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The bodies inside."""
        return tuple(getattr(self, name) for name in self.traits.holds)

    @property
    def repeats(self) -> tuple[int, ...]:
        """How many registers each starred term of the inputs stands for."""
        takes = self.traits.signatures[0].takes
        stars = sum(term.many for term in takes)
        return ((len(self.inputs) + stars - len(takes)) // max(stars, 1),) * stars

    @property
    def times(self) -> int:
        """The n of `n*a` in the signature, and how many `/B` are."""
        return len(self.inputs)

    @property
    def chosen(self) -> int | None:
        """Which of the rows that `B` stands for terms without a star have; `None` if
        there is no choice."""
        return None

    def __str__(self) -> str:
        return self.shown([f'r{register}' for register in self.outputs])

    def shown(self, outputs: list[str]) -> str:
        """The text of the instruction, given those of its outputs."""
        options = [
            f'{each.name}={_shown(value) if each.repr else "..."}'
            for each in fields(self)
            if each.name not in ('inputs', 'outputs', 'where', 'owners')
            for value in [getattr(self, each.name)]
            if each.default is MISSING or value is not None
        ]
        written = [', '.join(outputs), '='] if outputs else []
        given = [f'r{register}' for register in self.inputs]
        return ' '.join([*written, type(self).__name__, *given, *options])


def _shown(value: Any) -> str:
    name = getattr(value, '__name__', None)  # of a function, without its address
    return str(name or value)


@dataclass(frozen=True, eq=False)
class Call(Instruction):
    """A declaration's body on a column; all calls that wait for it run as one.

    The types of its registers are those that the body states; `owners` are those of its
    results.
    """

    traits = Traits('', Effect.ANY, visiting=Visiting.CALLS)
    declaration: int
    way: int
    owners: tuple[int, ...] = field(repr=False, metadata=CHECK)


@dataclass(frozen=True, eq=False)
class CallOnce(Call):
    """A call that runs the body once for each object of an example, whatever calls it.

    Objects are one whose `key` is.
    """

    traits = Traits('', Effect.ANY, visiting=Visiting.CALLS)
    key: Callable[[Any], Hashable]


@dataclass(frozen=True, eq=False)
class Stage:
    """Instructions, then calls that wait together."""

    instructions: tuple[Instruction, ...]
    calls: tuple[Call, ...]

    def __iter__(self) -> Iterator[Instruction]:
        return itertools.chain(self.instructions, self.calls)


@dataclass(frozen=True, eq=False)
class Body(Owner):
    """A straight line of instructions.

    Attributes:
      inputs: the types of the first registers, which are its inputs: the place of each
        item, then the values.
      outputs: the registers of its results.
      results: the types of these, with names of rows of their own.
      registers: how many there are.
      writer: of each register that is no input, the instruction that writes it.
    """

    name: str
    inputs: tuple[RegisterType, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[int, ...]
    results: tuple[RegisterType, ...]
    registers: int
    writer: dict[int, Instruction] = field(repr=False)

    @property
    def arity(self) -> int:
        """How many registers are inputs."""
        return len(self.inputs)

    @property
    def instructions(self) -> Iterator[Instruction]:
        """All of them, calls too, in order."""
        return itertools.chain(*self.stages)

    @functools.cached_property
    def lists(self) -> tuple[bool, ...]:
        """Of each result, whether it is a list rather than an array."""
        return tuple(each.kind in LISTED for each in self.results)

    @functools.cached_property
    def owners(self) -> tuple[int, ...]:
        """Of each result, which one holds the lengths of its sequence, or -1."""
        return owners_of(self.results)

    def __str__(self) -> str:
        return f'<{self.name}>'
