# SPDX-License-Identifier: Apache-2.0
"""Cases: an expression, data and calls, all made of whole numbers drawn in order.

The numbers come from a generator, or from a list of those drawn before, which makes the
same case again; lists that are shorter or have smaller numbers make simpler cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from expressions import Maker, Source
from function_kinds import ALL, KINDS, Kind
from function_makers import filled, numbers, width
from functions import COMBINATORS, draw_function
from nestings import DERIVATIVES, TRANSFORMATIONS
from ways_in import TRACED, WAYS

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES
from jfold.types import TupleType, Type, convert_to_type

DTYPES = 'float32', 'bfloat16', 'float64', 'float16'
ROOTS = 'whole', 'tree', 'sequence', 'sequences'
PATHS = 'examples', 'iterator', 'corpus', 'loaded', 'tracer', 'batches'
COMPILED_EVERY = 16  # cases; the others are run by the interpreter
MOST_EXAMPLES, MOST_STEPS = 4, 6
NESTED = 'float32', 'float64'
WIDTH = 4  # of the vectors that drawn functions take
# Rules that make something of a cotangent of zero, of what depends on the input.
RULES = [name for name, kind in KINDS.items() if not (kind.linear or kind.prepares)]
# How one of them is put to a function, and whether it comes first.
BESIDE = {'plus': False, 'times': False, 'residual': True}


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

    def several(self, draw: Callable[[], Any], most: int) -> tuple[Any, ...]:
        """Up to so many things, each behind a number that says that it follows, so that
        without its numbers there is one fewer."""
        made: list[Any] = []
        while len(made) < most and self.integer(4):
            made.append(draw())
        return tuple(made)


def fresh(seed: int) -> Choices:
    """Draws by a generator."""
    rng = np.random.default_rng(seed)
    return Choices(lambda last: int(rng.integers(last + 1)))


def again(drawn: Iterable[int]) -> Choices:
    """Draws what was drawn before, then zeros."""
    rest = iter(drawn)
    return Choices(lambda last: min(next(rest, 0), last))


@dataclass(frozen=True)
class Step:
    """One batch: of which examples, in how many rows, how its schedule is made, and in
    which way a program gets it."""

    rows: tuple[int, ...]
    size: int | None
    path: str
    way: str = 'passed'


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
      linear: whether all rules of functions are linear in the cotangent.
      limited: whether limits are so low that it meets those of large data.
      seeds: of the examples.
      steps: what is done, in order.
      nesting: transformations of the first step, the outermost first.
    """

    dtype: str
    block: Any
    sample: Callable[[np.random.Generator], Any]
    options: dict[str, Any]
    compiled: bool
    forward: bool
    linear: bool
    limited: bool
    seeds: tuple[int, ...]
    steps: tuple[Step, ...]
    nesting: tuple[str, ...]

    def examples(self) -> list[Any]:
        """The data."""
        return [self.sample(np.random.default_rng(seed)) for seed in self.seeds]

    def __str__(self) -> str:
        examples = '\n'.join(f'  {i}: {x!r}' for i, x in enumerate(self.examples()))
        steps = '\n'.join(f'  {step}' for step in self.steps)
        how = 'compiled' if self.compiled else 'interpreted'
        return (
            f'{self.dtype}, {self.options}, {how}'
            f'{", small limits" * self.limited}\n{self.block!r}\n'
            f'within: {", ".join(self.nesting) or "nothing"}\n'
            f'examples:\n{examples}\nsteps:\n{steps}'
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pair:
    """What functions return."""

    y: Any
    x: Any


# Which `jax.export` asks of whoever exports what has such a part.
jax.export.register_pytree_node_serialization(
    Pair,
    serialized_name='fuzz.Pair',
    serialize_auxdata=lambda _: b'',
    deserialize_auxdata=lambda _: (),
)

# What holds two values, as functions return them.
STRUCTS: tuple[Callable[[Any, Any], Any], ...] = (
    Pair,
    lambda x, y: {'y': x, 'x': y},
    lambda x, y: {'y': Pair(x, y), 'x': (x,)},
)


@dataclass
class Drawn(Maker):
    """Makes expressions of choices.

    Attributes:
      wild: whether some functions are drawn from the table of kinds.
      linear: whether all their rules are linear in the cotangent.
    """

    wild: bool = False
    linear: bool = True

    def type(self) -> Type:
        """A tensor, a tuple, a dict or a dataclass."""
        made: Type = super().type()
        if self.draw(7) < 7:
            return made
        return convert_to_type(self.pick(STRUCTS)(made, self.tensor(3)))

    def new_function(self, given: Any, want: Any) -> Any:
        """A function, perhaps of the table."""
        if self.wild and self.dtype in ALL and self.draw(1):
            kind = self._kind()
            # A constant runs once for a batch, and so do rules that are not linear.
            if given != TupleType() or (kind.linear and 'clipped' not in kind.text):
                return wild_function(kind, want, self.dtype)
        return super().new_function(given, want)

    def _kind(self) -> Kind:
        rng = np.random.default_rng(self.draw(9999))
        drawn = draw_function(rng, WIDTH, self.dtype, self.draw(2), linear=True)
        if self.linear or self.draw(3) == 3:
            return drawn
        rule = KINDS[RULES[int(rng.integers(len(RULES)))]]
        how = str(rng.choice([*BESIDE]))
        parts = (rule, drawn) if BESIDE[how] else (drawn, rule)
        return COMBINATORS[how](*parts)


def wild_function(kind: Any, want: Any, dtype: str) -> jf.Function:
    """A function of a vector as one from any type to another."""

    def init(*_: Any) -> Any:
        rng = np.random.default_rng(0)
        return kind.init(rng, jax.ShapeDtypeStruct((WIDTH,), dtype))

    def layer(params: Any, *inputs: Any) -> Any:
        floats, ints = numbers(inputs, dtype)
        x = jnp.concatenate([floats, jnp.sin(ints.astype(dtype)), jnp.ones(1, dtype)])
        made = jnp.tanh(kind(params, jnp.resize(x, WIDTH)))
        return filled(want, jnp.resize(made, width(want)), ints)

    return jf.Function(layer, init, name=f'{kind.text}')


def make_case(choices: Choices) -> Case:
    """Draws a case; zeros give a simple one."""
    dtype = choices.pick(DTYPES)
    options = {
        'residuals': choices.pick(RESIDUALS),
        'strategy': choices.pick(STRATEGIES),
        'reproducible': choices.integer(3) == 3,
    }
    compiled = choices.integer(COMPILED_EVERY - 1) == COMPILED_EVERY - 1
    linear = choices.integer(2) < 2
    forward = choices.integer(3) == 3
    limited = choices.integer(1) == 1
    seeds = (0, *choices.several(lambda: choices.integer(999), MOST_EXAMPLES - 1))
    size = choices.pick([MOST_EXAMPLES, MOST_EXAMPLES, MOST_EXAMPLES, None])

    def step() -> Step:
        return _step(choices, len(seeds), size)

    steps = step(), *choices.several(step, MOST_STEPS - 1)
    with jax.enable_x64(dtype == 'float64'):
        wild = not linear or bool(choices.integer(1))
        made, is_large = draw_source(choices, dtype, wild, linear)
        block = jf.Pipe(made.block)
    compiled |= is_large
    steps = tuple(_in_some_way(choices, each, compiled) for each in steps)
    # The interpreter, which runs what is nested, takes an hour for many rows.
    nests = linear and dtype in NESTED and not is_large
    nesting = _nesting(choices, wild) if nests else ()
    how = options, compiled, forward, linear, limited
    return Case(dtype, block, made.sample, *how, seeds, steps, nesting)


def _nesting(choices: Choices, wild: bool) -> tuple[str, ...]:
    """Transformations within each other, or none."""
    if not choices.integer(1):
        return ()
    drawn = [choices.pick(TRANSFORMATIONS) for _ in range(1 + choices.integer(2))]
    # A rule of its own may be the derivative of nothing, and so have no second one.
    several = sum(name in DERIVATIVES for name in drawn) > 1
    return () if wild and several else tuple(drawn)


def _in_some_way(choices: Choices, step: Step, compiled: bool) -> Step:
    """A step of which the program gets the schedule as an argument, or otherwise."""
    if choices.integer(2) < 2:
        return step
    return replace(step, way=choices.pick(WAYS if compiled else TRACED))


def _step(choices: Choices, examples: int, size: int | None) -> Step:
    """A batch of some of the examples, in `size` rows or in some number of rows."""
    rows = choices.several(lambda: choices.integer(examples - 1), MOST_EXAMPLES)
    if size is None:
        size = choices.pick([None, None, len(rows), len(rows) + 2])
    return Step(rows, size, choices.pick(PATHS))


def draw_source(
    choices: Choices, dtype: str, wild: bool, linear: bool
) -> tuple[Source, bool]:
    """A block with data for it, and whether the data are large."""
    maker = Drawn(choices.integer, dtype, wild=wild, linear=linear)
    is_large = choices.integer(9) == 9
    if is_large:
        maker.leaves, maker.lengths = 40, (0, 1, 13, 70)
    source: Source = getattr(maker, choices.pick(ROOTS))(maker.type(), 2)
    return source, is_large
