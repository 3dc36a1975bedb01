# SPDX-License-Identifier: Apache-2.0
"""The `Program`: what lowering makes of an expression, and all that later parts see.

Two halves. `Operations` run on the device, and say alone what that needs to know. The
source, a function of examples in Python, records which operations are applied to what.
"""

from __future__ import annotations

from dataclasses import dataclass

from jfold.operations import Operations, check_operations
from jfold.tracing.record import Expression, Source


@dataclass(frozen=True, eq=False, repr=False)
class Program(Operations):
    """An expression, lowered.

    Attributes:
      source: what records examples.
      expression: what tells what is wrong with them.
    """

    source: Source
    expression: Expression

    def __str__(self) -> str:
        return f'{super().__str__()}\n\n{self.source}'


def check_program(program: Program) -> None:
    """Refuses a program in which anything does not fit, in time that grows with it.

    Raises:
      ValueError: something refers to what there is not.
    """
    check_operations(program)
