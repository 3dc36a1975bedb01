# SPDX-License-Identifier: Apache-2.0
"""Paths of objects in an example, as linked lists of steps, and what they share.

Data may be 100,000 deep, so a step takes constant time; the text reads all steps. Each
path also knows an earlier one, its `jump`, by which any earlier path is found in
logarithmic time (Myers, An applicative random-access stack, 1983).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

from jfold.blocks.lazy import CallPlace
from jfold.language.function_layers import LazyCalls


# Not frozen: a frozen object takes three times as long to make.
@dataclass(eq=False, slots=True)
class Path:
    """The path of an object in an example.

    Attributes:
      before: the path of the enclosing object; `None` for the example itself.
      text: the last step, such as `[0]` or `.left`.
      length: the number of steps.
      jump: an earlier path, by `length` alone how much earlier; `None` for the example,
        and for paths that steps do not extend.
    """

    before: Path | None = None
    text: str = ''
    length: int = 0
    jump: Path | None = field(default=None, kw_only=True)

    def step(self, text: str) -> Path:
        """Return a new path: this one with the step `text` at its end."""
        jump, one = self.jump, self
        if jump is not None and jump.jump is not None:
            if self.length - jump.length == jump.length - jump.jump.length:
                one = jump.jump
        return Path(self, text, self.length + 1, jump=one)

    def ancestor(self, length: int) -> Path:
        """Return the path of the first `length` steps."""
        path = self
        while path.length > length:
            jump = path.jump
            if jump is None or jump.length < length:
                assert path.before is not None
                jump = path.before
            path = jump
        return path

    def __str__(self) -> str:
        texts, path = [], self
        while path.before is not None:
            texts.append(path.text)
            path = path.before
        return ''.join(reversed(texts))


@dataclass(eq=False, slots=True)
class End(Path):
    """A path that steps do not extend, into recorded calls or a packed tuple.

    Attributes:
      calls: the lazy function; `None` for a tuple or list that a block has packed.
      example: the data that the lazy function runs on.
      place: the place of a call; `None` if no line is known.
    """

    calls: LazyCalls | None = None
    example: object = None
    place: CallPlace | None = None

    def step(self, text: str) -> Path:
        """Return this path, without `text`."""
        return self

    def at(self, place: CallPlace | None) -> End:
        """Return this path, to the call at `place`."""
        return End(self.before, '', self.length, self.calls, self.example, place)


EXAMPLE = Path()


def common_prefix(paths: Iterable[Path]) -> Path | None:
    """Return the longest common prefix of paths; `None` if there are none."""
    others = iter(paths)
    return functools.reduce(_common, others, next(others, None))


def _common(one: Path | None, other: Path) -> Path | None:
    """Return the longest common prefix of the paths `one` and `other`."""
    if one is None or one is other:
        return one
    least = min(one.length, other.length)
    one, other = one.ancestor(least), other.ancestor(least)
    # From two paths of one length towards the root, to one object.
    a, b = one, other
    while a is not b:
        if a.jump is not None and b.jump is not None and a.jump is not b.jump:
            a, b = a.jump, b.jump
        else:
            assert a.before is not None and b.before is not None
            a, b = a.before, b.before
    # And back, as distinct objects may be equal steps.
    for length in range(a.length + 1, least + 1):
        longer = one.ancestor(length)
        if not _same_step(longer, other.ancestor(length)):
            break
        a = longer
    return a


def _same_step(one: Path, other: Path) -> bool:
    """Return whether the last steps of two paths are equal."""
    if isinstance(one, End) and isinstance(other, End):
        is_one = one.calls is other.calls and one.example is other.example
        return is_one and one.place == other.place
    return one.text == other.text
