# SPDX-License-Identifier: Apache-2.0
"""The meaning of blocks: an expression is evaluated on one example, block by block.

Each class of blocks has one rule, and `Tensors` says what stands for tensors. With
arrays the walk is the eager twin (`eager`), which shares nothing with the engine. With
paths alone it finds what is wrong with an example (`expression`). With row numbers it
is the reference that generated source is tested against (`reference`). Objects carry
their path in the example, for errors. The walk is simple rather than fast.
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
from jfold.base.errors import InputError, describe_error, hint_for, short_repr
from jfold.base.trampoline import Steps, in_turn, run
from jfold.language.typed import TypedExpression, TypedUse
from jfold.tracing.helpers import field as field_of
from jfold.tracing.objects import ABSENT, listed, why_no_sequence, why_no_value
from jfold.types import Product, SequenceType, TensorType, Type, VoidType

LACKS = 'put the block in an Optional, if a field may be missing'
UNHASHABLE = 'make a tuple of a list, which can be looked up'


@dataclass(frozen=True, eq=False, slots=True)
class Path:
    """The path of an object in an example, as a linked list of steps.

    Data may be 100,000 deep, so a step takes constant time; printing reads all steps.

    Attributes:
      before: the path of the object around it; `None` of the example itself.
      text: the last step, as `[0]` or `.left`.
      length: the number of steps.
    """

    before: Path | None = None
    text: str = ''
    length: int = 0

    def step(self, text: str) -> Path:
        """Return the path of an object one step inside."""
        return Path(self, text, self.length + 1)

    def __str__(self) -> str:
        texts, path = [], self
        while path.before is not None:
            texts.append(path.text)
            path = path.before
        return ''.join(reversed(texts))


EXAMPLE = Path()


class Misfit(Exception):
    """An example does not fit the expression; raised by the innermost block.

    Attributes:
      where: the path of the block.
      path: the path of the value in the example; `None` until it is known.
      hint: what to do about it, or ''.
    """

    def __init__(
        self, message: str, where: str, path: Path | None, hint: str = ''
    ) -> None:
        super().__init__(message)
        self.message, self.where, self.path, self.hint = message, where, path, hint

    def input_error(self) -> InputError:
        """Return the error that users see, of example 0."""
        path = str(self.path or '')
        return InputError(self.message, 0, path, self.where, self.hint)


@dataclass(frozen=True, eq=False)
class Located:
    """A Python object with its path in the example."""

    value: object
    path: Path = EXAMPLE

    def step(self, value: object, text: str) -> Located:
        """Return an object inside this one, with its path."""
        return Located(value, self.path.step(text))


class Tensors(Protocol):
    """The operations of a walk on tensors, whatever stands for them."""

    def tensor(
        self, node: TypedUse, x: Located, type_: TensorType, below: int | None
    ) -> Any:
        """Return the tensor of an object, with ints in `[0, below)`."""

    def constant(self, node: TypedUse, value: Any) -> Any:
        """Return the tensor of a constant of the program."""

    def call(self, node: TypedUse, x: object) -> Any:
        """Return the outputs of the layer of a node."""

    def length(self, node: TypedUse, n: int, type_: TensorType) -> Any:
        """Return the tensor of the length of a sequence."""

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> Any:
        """Return several items reduced by one operation, made of `combine`."""

    def observe(self, node: TypedUse, name: str, x: object) -> None:
        """Collect a value for a metric."""


@dataclass(eq=False)
class Walk:
    """The state of a walk over one example.

    Attributes:
      calls: the path of each open call, by declaration and the ids of its objects.
      shared: for blocks in a `Share`, by declaration and key: the object and a tuple
        that holds its value, or is empty while it is being computed.
      known: the input and value of blocks that are used more than once, for the item
        or call of this walk alone.
    """

    typing: TypedExpression
    tensors: Tensors
    calls: dict[tuple[Any, ...], Path] = field(default_factory=dict)
    shared: dict[Any, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict)
    known: dict[TypedUse, tuple[Any, Any]] = field(default_factory=dict)

    def run(self, example: object) -> Any:
        """Return the value of an example, its objects with their paths.

        Raises:
          Misfit: the example does not fit.
        """
        return run(self.part(self.typing.root, Located(example)))

    def part(self, node: TypedUse | None, x: object) -> Steps[Any]:
        """Return the value of one use of a block, computed once for each input."""
        assert node is not None
        x = None if isinstance(node.input, VoidType) else x
        # The input is compared too, so that a wrong `shared` cannot change a value.
        if node in self.known and self.known[node][0] is x:
            return self.known[node][1]
        block_class: type = type(node.block)
        rule, has_steps = _rule(block_class)
        try:
            value = rule(node.block, node, x, self)
            if has_steps:
                value = yield value
        except Misfit as error:
            error.path = path_of(x) if error.path is None else error.path
            raise
        except Exception as error:
            _add_note(error, node, x)
            raise
        if node.shared and not node.draws:
            self.known[node] = x, value
        return value

    def anew(self, node: TypedUse | None, x: object) -> Steps[Any]:
        """Return the value of a block that gets many inputs, one after another."""
        return Walk(self.typing, self.tensors, self.calls, self.shared).part(node, x)

    # ---- objects

    def as_object(self, x: Any) -> Located:
        """Return a tuple or list of objects as one object."""
        if isinstance(x, Located):
            return x
        parts = [self.as_object(part) for part in x]
        path = parts[0].path if parts else EXAMPLE
        container = tuple if isinstance(x, tuple) else list
        return Located(container(part.value for part in parts), path)

    def apply(
        self, node: TypedUse, fn: Callable[[Any], Any], x: Located, what: str
    ) -> Any:
        """Return `fn` of an object; `what` says in an error what it takes."""
        if why := why_no_value(type(x.value)):
            text = f'expected a value, got {short_repr(x.value)}; {why}'
            raise misfit(node, text, x)
        try:
            return fn(x.value)
        except Exception as error:
            text = (
                f'expected {what}, got {short_repr(x.value)}: {describe_error(error)}'
            )
            raise misfit(node, text, x, hint_for(x.value)) from error

    def lookup(
        self,
        node: TypedUse,
        table: Mapping[Any, Any],
        key: Located,
        expected: Callable[[Mapping[Any, Any], bool], str],
        default: tuple[Any, ...] = (),
        hint: str = '',
    ) -> Any:
        """Return the entry of a key, or the default, if there is one."""
        try:
            return table.get(key.value, *default) if default else table[key.value]
        except (KeyError, TypeError) as error:
            hint = hint if isinstance(error, KeyError) else UNHASHABLE
            what = expected(table, isinstance(error, KeyError))
            text = f'expected {what}, got {short_repr(key.value)}'
            raise misfit(node, text, key, hint) from None
        except Exception as error:  # raised by its `__hash__` or `__eq__`
            raise misfit(node, describe_error(error), key) from error

    def get(
        self, node: TypedUse, value: Any, key: Any, default: tuple[Any, ...] = ()
    ) -> Located:
        """Return an item of a mapping or sequence, or an attribute of an object."""
        x = self.as_object(value)
        try:
            return x.step(field_of(x.value, key), _step(x.value, key))
        except Exception as error:
            if default and isinstance(error, ABSENT):
                return x.step(default[0], _step(x.value, key))
            got = f'{short_repr(x.value)}: {describe_error(error)}'
            text = f'expected an item {key!r}, got {got}'
            lacks = isinstance(error, KeyError) and isinstance(x.value, Mapping)
            hint = LACKS if lacks else hint_for(x.value)
            raise misfit(node, text, x, hint) from error

    def items(self, node: TypedUse, x: Any) -> list[Any]:
        """Return the items of a sequence."""
        if not isinstance(x, Located):
            return list(x)
        if why := why_no_sequence(type(x.value)):
            text = f'expected a sequence, got {short_repr(x.value)}; {why}'
            raise misfit(node, text, x)
        try:
            items = listed(x.value)
        except Exception as error:
            got = f'{short_repr(x.value)}: {describe_error(error)}'
            text = f'expected something iterable, got {got}'
            raise misfit(node, text, x, hint_for(x.value)) from error
        return [x.step(item, f'[{k}]') for k, item in enumerate(items)]

    def length(self, node: TypedUse, x: Any) -> int:
        """Return the number of items."""
        if not isinstance(x, Located):
            return len(x)
        return int(self.apply(node, len, x, 'something with a length'))


def misfit(node: TypedUse, message: str, x: object = None, hint: str = '') -> Misfit:
    """Return the error of a block, with the path of an object `x`."""
    return Misfit(message, str(node), x.path if isinstance(x, Located) else None, hint)


def refuse(node: TypedUse, message: str, x: object = None) -> NoReturn:
    """Raise a `Misfit`."""
    raise misfit(node, message, x)


def expected_key(table: Mapping[Any, Any], hashable: bool) -> str:
    """Return what an error says was expected of a key of a table of cases."""
    return f'one of the keys {", ".join(map(repr, itertools.islice(table, 20)))}'


def plain(value: object) -> Any:
    """Return a value with plain objects, without their paths."""
    return run(_plain(value))


def _plain(value: object) -> Steps[Any]:
    if isinstance(value, Located):
        return value.value
    if isinstance(value, tuple):
        return tuple((yield in_turn(map(_plain, value))))
    if isinstance(value, list):
        return list((yield in_turn(map(_plain, value))))
    return value


def zero_of(type_: Type, node: TypedUse, state: Walk) -> Any:
    """Return the zero of a type on a walk; sequences are empty."""
    if isinstance(type_, Product):
        return tuple(zero_of(item, node, state) for item in type_)
    if isinstance(type_, SequenceType):
        return []
    if isinstance(type_, TensorType):
        return state.tensors.constant(node, np.zeros(type_.shape, type_.dtype))
    return None


def tensor_leaves(x: object) -> Iterator[Any]:
    """Yield the tensors in nested tuples, left to right."""
    if isinstance(x, tuple):
        for part in x:
            yield from tensor_leaves(part)
    elif x is not None:
        yield x


def in_tuples(type_: Type, tensors: Iterator[Any]) -> Any:
    """Return tensors in nested tuples of the structure of a type."""
    if isinstance(type_, Product):
        return tuple(in_tuples(part, tensors) for part in type_)
    return None if isinstance(type_, VoidType) else next(tensors)


@dataclass(frozen=True, eq=False)
class PathOnly:
    """A tensor known only by the path of the data that it was made of."""

    path: Path | None


def path_of(x: object) -> Path | None:
    """Return the innermost path around all data that a value was made of."""
    if isinstance(x, list) and len(x) == 1:  # an only item tells the path of its list
        path = path_of(x[0])
        return path.before if path and path.text == '[0]' else path
    if isinstance(x, tuple | list):
        return common_prefix([p for p in map(path_of, x) if p is not None])
    return getattr(x, 'path', None)


def common_prefix(paths: Iterable[Path]) -> Path | None:
    """Return the longest common prefix of paths; `None` without any path."""
    others = iter(paths)
    return functools.reduce(_common, others, next(others, None))


def _common(one: Path | None, other: Path) -> Path | None:
    """Return the longest common prefix of two paths."""
    # From the ends to a node that both share, which is usually near: `prefix` is the
    # answer if all steps read so far, from `one` on, are equal.
    prefix = one
    while one is not other:
        assert one is not None
        if one.length < other.length:
            assert other.before is not None
            other = other.before
        elif one.length > other.length:
            prefix = one = one.before
        else:
            # Equal steps may be two objects.
            prefix = prefix if one.text == other.text else one.before
            assert other.before is not None
            one, other = one.before, other.before
    return prefix


def _step(value: object, key: object) -> str:
    """Return the step of a path to a field: `.name`, or `[key]`."""
    by_item = hasattr(type(value), '__getitem__') and not hasattr(value, '_fields')
    if isinstance(key, str) and not by_item:
        return f'.{key}'
    if isinstance(key, slice):
        parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
        return f'[{":".join("" if part is None else repr(part) for part in parts)}]'
    return f'[{key!r}]'


def _add_note(error: Exception, node: TypedUse, x: object) -> None:
    """Add to an error of a function the block and its input."""
    # The error passes all blocks around it; only the innermost adds a note.
    if getattr(error, '__notes__', None) or getattr(error, 'names_block', False):
        return
    if str(error).startswith(f'{node}: '):
        error.names_block = True  # type: ignore[attr-defined]
        return
    path = path_of(x) or ''
    at = f', at {path}' if str(path) else ''
    error.add_note(f'{node}: expected what it takes, got {short_repr(plain(x))}{at}')


@functools.cache
def _rule(block_class: type) -> tuple[Callable[..., Any], bool]:
    """Return the rule of a class of blocks, and whether it yields steps."""
    # The value of a rule does not tell: it may be a generator that a user's data hold.
    rule = walk.dispatch(block_class)
    return rule, inspect.isgeneratorfunction(rule)


@functools.singledispatch
def walk(block: b.Block, node: TypedUse, x: object, state: Walk) -> Any:
    """Return the value of one use of a block; yields the steps of inner blocks."""
    raise NotImplementedError(f'walking has no rule for {block!r}')
