# SPDX-License-Identifier: Apache-2.0
"""Cases: an expression, data and calls, all made of whole numbers drawn in order.

The numbers come from hypothesis, which makes them small where a case fails, or from a
list of those drawn before, which makes the same case again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from expressions import Maker
from hypothesis import strategies as st

import jfold as jf
from jfold.layout import RESIDUALS, STRATEGIES

DTYPES = 'float32', 'bfloat16', 'float64', 'float16'
ROOTS = 'whole', 'tree', 'sequence'
PATHS = 'examples', 'iterator', 'corpus', 'loaded', 'tracer', 'batches'
COMPILED_EVERY = 16  # cases; the others are run by the interpreter
MOST_EXAMPLES = 4


@dataclass(eq=False)
class Choices:
    """Draws whole numbers, and keeps them.

    Attributes:
      source: gives a number from 0 to its argument.
      drawn: so far.
    """

    source: Callable[[int], int]
    drawn: list[int] = field(default_factory=list)

    def integer(self, last: int) -> int:
        """A number from 0 to `last`."""
        self.drawn.append(self.source(last))
        return self.drawn[-1]

    def pick(self, options: Iterable[Any]) -> Any:
        """One of several."""
        options = list(options)
        return options[self.integer(len(options) - 1)]


def again(drawn: Iterable[int]) -> Choices:
    """Draws what was drawn before, then zeros."""
    rest = iter(drawn)
    return Choices(lambda last: min(next(rest, 0), last))


@dataclass(frozen=True)
class Step:
    """One batch: of which examples, in how many rows, and how its schedule is made."""

    rows: tuple[int, ...]
    size: int | None
    path: str


@dataclass(frozen=True)
class Case:
    """An expression with data, and what is done with them.

    Attributes:
      dtype: of all floats.
      block: the expression.
      sample: draws an example.
      options: of `jfold.compile`.
      compiled: whether XLA runs it.
      forward: whether also without a gradient.
      seeds: of the examples.
      steps: what is done, in order.
    """

    dtype: str
    block: Any
    sample: Callable[[np.random.Generator], Any]
    options: dict[str, str]
    compiled: bool
    forward: bool
    seeds: tuple[int, ...]
    steps: tuple[Step, ...]

    def examples(self) -> list[Any]:
        """The data."""
        return [self.sample(np.random.default_rng(seed)) for seed in self.seeds]

    def __str__(self) -> str:
        examples = '\n'.join(f'  {i}: {x!r}' for i, x in enumerate(self.examples()))
        steps = '\n'.join(f'  {step}' for step in self.steps)
        how = 'compiled' if self.compiled else 'interpreted'
        return (
            f'{self.dtype}, {self.options}, {how}\n{self.block!r}\n'
            f'examples:\n{examples}\nsteps:\n{steps}'
        )


class Drawn(Maker):
    """Makes expressions of choices."""

    def integer(self, last: int) -> int:
        return int(self.draw.integer(last))


def make_case(choices: Choices) -> Case:
    """Draws a case; zeros give a simple one."""
    dtype = choices.pick(DTYPES)
    options = {
        'residuals': choices.pick(RESIDUALS),
        'strategy': choices.pick(STRATEGIES),
    }
    compiled = choices.integer(COMPILED_EVERY - 1) == COMPILED_EVERY - 1
    forward = choices.integer(3) == 3
    seeds = tuple(choices.integer(999) for _ in range(1 + choices.integer(3)))
    steps = tuple(_step(choices, len(seeds)) for _ in range(1 + choices.integer(3)))
    maker = Drawn(choices, dtype)
    if choices.integer(9) == 9:
        maker.leaves, maker.lengths = 40, (0, 1, 13, 70)
    with jax.enable_x64(dtype == 'float64'):
        made = getattr(maker, choices.pick(ROOTS))(maker.type(), 2)
        block = jf.Pipe(made.block)
    return Case(dtype, block, made.sample, options, compiled, forward, seeds, steps)


def _step(choices: Choices, examples: int) -> Step:
    count = choices.pick([1, 2, 3, MOST_EXAMPLES, 0])
    rows = tuple(choices.integer(examples - 1) for _ in range(count))
    size = choices.pick([None, None, count, count + 2, MOST_EXAMPLES])
    return Step(rows, size, choices.pick(PATHS))


@st.composite
def drawn_choices(draw: Any) -> Choices:
    """Choices by hypothesis; the case is drawn with them, to be looked at later."""
    choices = Choices(lambda last: draw(st.integers(0, last)))
    make_case(choices)
    return choices
