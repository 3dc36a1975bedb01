# SPDX-License-Identifier: Apache-2.0
"""The meaning of blocks: an expression run on one example, block by block.

Each kind of block has one rule, whatever tensors are: with arrays, the walk is the
eager twin (`eager`), which shares nothing with tapes, schedules and the runtime; with
nothing in their place it finds what is wrong with an example, and with numbers of rows
it is the reference of what source records (`numbering`). Objects come with the way to
them in the example, so that errors can tell it. It is slow, on purpose.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np

from jfold import blocks as b
from jfold.base.errors import InputError, instead_of, reason, short_repr
from jfold.base.trampoline import Steps, in_turn, run
from jfold.language.typed import Typed, Typing
from jfold.tracing.helpers import field as field_of
from jfold.tracing.objects import ABSENT, listed, why_no_sequence, why_no_value
from jfold.types import (
    Product,
    SequenceType,
    TensorType,
    Type,
    VoidType,
)

LACKS = 'put the block in an Optional, if a field may be missing'
UNHASHABLE = 'make a tuple of a list, which can be looked up'


@dataclass(frozen=True, eq=False, slots=True)
class Path:
    """The path to an object in an example: that to what it is in, and a step.

    Data may be as deep as they like, so a path is not read as long as it only grows.

    Attributes:
      before: `None` of the example itself.
      length: how many steps there are.
    """

    before: Path | None = None
    text: str = ''
    length: int = 0

    def step(self, text: str) -> Path:
        """The path of what is further in."""
        return Path(self, text, self.length + 1)

    def __str__(self) -> str:
        texts, path = [], self
        while path.before is not None:
            texts.append(path.text)
            path = path.before
        return ''.join(reversed(texts))


EXAMPLE = Path()


class Misfit(Exception):
    """An example does not fit the expression; told once, by the innermost block.

    Attributes:
      where: the path of the block.
      path: that of the value in the example, once that is known.
      hint: what to do; '' if that is not known.
    """

    def __init__(
        self, message: str, where: str, path: Path | None, hint: str = ''
    ) -> None:
        super().__init__(message)
        self.message, self.where, self.path, self.hint = message, where, path, hint

    def told(self) -> InputError:
        """The same for users, of the only example."""
        path = str(self.path or '')
        return InputError(self.message, 0, path, self.where, self.hint)


@dataclass(frozen=True, eq=False)
class At:
    """A Python object, and the way to it in the example."""

    value: object
    path: Path = EXAMPLE

    def step(self, value: object, text: str) -> At:
        """What is further in."""
        return At(value, self.path.step(text))


class Tensors(Protocol):
    """What tensors are on a walk."""

    def tensor(self, node: Typed, x: At, type_: TensorType, below: int | None) -> Any:
        """That of an object."""

    def constant(self, node: Typed, value: Any) -> Any:
        """That of an array that the program has."""

    def call(self, node: Typed, x: object) -> Any:
        """What the layer of a node makes of tensors."""

    def length(self, node: Typed, n: int, type_: TensorType) -> Any:
        """That of a length."""

    def group(self, combine: Typed, item: Type, items: list[Any]) -> Any:
        """What an operation on several items makes of them."""

    def observe(self, node: Typed, name: str, x: object) -> None:
        """Is told what a metric collects."""


@dataclass(eq=False)
class Walk:
    """One walk.

    Attributes:
      calls: of declarations, with the objects they were given, that have not returned.
      once: by a shared block and a key, the object and, once there is one, its value.
      found: the values of blocks that are used more than once, with what they were
        given; of this item or call alone.
    """

    typing: Typing
    tensors: Tensors
    calls: dict[tuple[Any, ...], Path] = field(default_factory=dict)
    once: dict[Any, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict)
    found: dict[Typed, tuple[Any, Any]] = field(default_factory=dict)

    def run(self, example: object) -> Any:
        """The value of an example; of objects in it, with the way to them.

        Raises:
          Misfit: the example does not fit.
        """
        return run(self.part(self.typing.root, At(example)))

    def part(self, node: Typed | None, x: object) -> Steps[Any]:
        """The value of a block inside another; not again, if it is known."""
        assert node is not None
        x = None if isinstance(node.input, VoidType) else x
        # What it was given is compared too, so as not to rest on the typing.
        if node in self.found and self.found[node][0] is x:
            return self.found[node][1]
        kind: type = type(node.block)
        rule, steps = _rule(kind)
        try:
            value = rule(node.block, node, x, self)
            if steps:
                value = yield value
        except Misfit as error:
            error.path = path_of(x) if error.path is None else error.path
            raise
        except Exception as error:
            _note(error, node, x)
            raise
        if node.shared and not node.draws:
            self.found[node] = x, value
        return value

    def anew(self, node: Typed | None, x: object) -> Steps[Any]:
        """The same, where the block is given many values, one after another."""
        return Walk(self.typing, self.tensors, self.calls, self.once).part(node, x)

    # ---- objects

    def object(self, x: Any) -> At:
        """A value made of objects as one object."""
        if isinstance(x, At):
            return x
        parts = [self.object(each) for each in x]
        path = parts[0].path if parts else EXAMPLE
        kind = tuple if isinstance(x, tuple) else list
        return At(kind(each.value for each in parts), path)

    def apply(self, node: Typed, fn: Callable[[Any], Any], x: At, what: str) -> Any:
        """What a function of the data gives."""
        if why := why_no_value(type(x.value)):
            text = f'expected a value, got {short_repr(x.value)}; {why}'
            raise misfit(node, text, x)
        try:
            return fn(x.value)
        except Exception as error:
            text = f'expected {what}, got {short_repr(x.value)}: {reason(error)}'
            raise misfit(node, text, x, instead_of(x.value)) from error

    def lookup(
        self,
        node: Typed,
        table: Mapping[Any, Any],
        key: At,
        expected: Callable[[Mapping[Any, Any], bool], str],
        default: tuple[Any, ...] = (),
        hint: str = '',
    ) -> Any:
        """The entry of a key, or the default, if there is one."""
        try:
            return table.get(key.value, *default) if default else table[key.value]
        except (KeyError, TypeError) as error:
            hint = hint if isinstance(error, KeyError) else UNHASHABLE
            what = expected(table, isinstance(error, KeyError))
            text = f'expected {what}, got {short_repr(key.value)}'
            raise misfit(node, text, key, hint) from None
        except Exception as error:  # of its `__hash__`
            raise misfit(node, reason(error), key) from error

    def get(
        self, node: Typed, value: Any, key: Any, default: tuple[Any, ...] = ()
    ) -> At:
        """A field of a mapping or sequence, or an attribute of an object."""
        x = self.object(value)
        try:
            return x.step(field_of(x.value, key), _step(x.value, key))
        except Exception as error:
            if default and isinstance(error, ABSENT):
                return x.step(default[0], _step(x.value, key))
            text = (
                f'expected an item {key!r}, got {short_repr(x.value)}: {reason(error)}'
            )
            lacks = isinstance(error, KeyError) and isinstance(x.value, Mapping)
            hint = LACKS if lacks else instead_of(x.value)
            raise misfit(node, text, x, hint) from error

    def items(self, node: Typed, x: Any) -> list[Any]:
        """The items of a sequence."""
        if not isinstance(x, At):
            return list(x)
        if why := why_no_sequence(type(x.value)):
            text = f'expected a sequence, got {short_repr(x.value)}; {why}'
            raise misfit(node, text, x)
        try:
            found = listed(x.value)
        except Exception as error:
            got = f'{short_repr(x.value)}: {reason(error)}'
            text = f'expected something iterable, got {got}'
            raise misfit(node, text, x, instead_of(x.value)) from error
        return [x.step(each, f'[{k}]') for k, each in enumerate(found)]

    def length(self, node: Typed, x: Any) -> int:
        """How many items there are."""
        if not isinstance(x, At):
            return len(x)
        return int(self.apply(node, len, x, 'something with a length'))


def misfit(node: Typed, message: str, x: object = None, hint: str = '') -> Misfit:
    """What is wrong, in which block, and with what if that is an object."""
    return Misfit(message, str(node), x.path if isinstance(x, At) else None, hint)


def refuse(node: Typed, message: str, x: object = None) -> NoReturn:
    """Raises that."""
    raise misfit(node, message, x)


def one_of(table: Mapping[Any, Any], hashable: bool) -> str:
    """What a key had to be to be in a table of cases."""
    return f'one of the keys {", ".join(map(repr, itertools.islice(table, 20)))}'


def plain(value: object) -> Any:
    """A value without the ways to its objects."""
    return run(_plain(value))


def _plain(value: object) -> Steps[Any]:
    if isinstance(value, At):
        return value.value
    if isinstance(value, tuple):
        return tuple((yield in_turn(map(_plain, value))))
    if isinstance(value, list):
        return list((yield in_turn(map(_plain, value))))
    return value


def zeros(type_: Type, zero: Callable[[TensorType], Any]) -> Any:
    """The zero of a type."""
    if isinstance(type_, Product):
        return tuple(zeros(each, zero) for each in type_)
    if isinstance(type_, SequenceType):
        return []
    return zero(type_) if isinstance(type_, TensorType) else None


def zero_of(type_: Type, node: Typed, state: Walk) -> Any:
    """The zero of a type on a walk."""

    def zero(each: TensorType) -> Any:
        return state.tensors.constant(node, np.zeros(each.shape, each.dtype))

    return zeros(type_, zero)


def tensors_in(x: object) -> Iterator[Any]:
    """The tensors in nested tuples, left to right."""
    if isinstance(x, tuple):
        for each in x:
            yield from tensors_in(each)
    elif x is not None:
        yield x


def in_tuples(type_: Type, tensors: Iterator[Any]) -> Any:
    """Tensors in the nested tuples that stand for a value of a type."""
    if isinstance(type_, Product):
        return tuple(in_tuples(each, tensors) for each in type_)
    return None if isinstance(type_, VoidType) else next(tensors)


@dataclass(frozen=True, eq=False)
class Made:
    """A tensor, of which nothing is known but the way to what it was made of."""

    path: Path | None


def path_of(x: object) -> Path | None:
    """The way to the data that all of a value was made of."""
    if isinstance(x, list) and len(x) == 1:  # the way to the list is that of its item
        path = path_of(x[0])
        return path.before if path and path.text == '[0]' else path
    if isinstance(x, tuple | list):
        return common([p for p in map(path_of, x) if p is not None])
    return getattr(x, 'path', None)


def common(paths: Iterable[Path]) -> Path | None:
    """The steps that all paths begin with; `None` without any path."""
    rest = iter(paths)
    return functools.reduce(_common, rest, next(rest, None))


def _common(one: Path | None, other: Path) -> Path | None:
    """The steps that two paths begin with, read from the end to where they part."""
    same = one
    while one is not other:
        assert one is not None
        if one.length < other.length:
            assert other.before is not None
            other = other.before
        elif one.length > other.length:
            same = one = one.before
        else:
            # Two paths may say the same without being the same.
            same = same if one.text == other.text else one.before
            assert other.before is not None
            one, other = one.before, other.before
    return same


def _step(value: object, key: object) -> str:
    by_item = hasattr(type(value), '__getitem__') and not hasattr(value, '_fields')
    if isinstance(key, str) and not by_item:
        return f'.{key}'
    if isinstance(key, slice):
        parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
        return f'[{":".join("" if part is None else repr(part) for part in parts)}]'
    return f'[{key!r}]'


def _note(error: Exception, node: Typed, x: object) -> None:
    """Adds to an error of a function in which block it was, and on what."""
    # On its way out an error passes every block around it; the innermost says most.
    if getattr(error, '__notes__', None) or getattr(error, 'names_block', False):
        return
    if str(error).startswith(f'{node}: '):
        error.names_block = True  # type: ignore[attr-defined]
        return
    path = path_of(x) or ''
    at = f', at {path}' if str(path) else ''
    error.add_note(f'{node}: expected what it takes, got {short_repr(plain(x))}{at}')


@functools.cache
def _rule(kind: type) -> tuple[Callable[..., Any], bool]:
    """The rule of a kind of block, and whether it is one of steps: a value may be a
    generator too."""
    rule = walk.dispatch(kind)
    return rule, inspect.isgeneratorfunction(rule)


@functools.singledispatch
def walk(block: b.Block, node: Typed, x: object, state: Walk) -> Any:
    """The value of one use of a block; walks the blocks inside by steps."""
    raise NotImplementedError(f'walking has no rule for {block!r}')
