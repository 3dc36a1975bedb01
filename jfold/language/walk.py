# SPDX-License-Identifier: Apache-2.0
"""The meaning of blocks: an expression is evaluated on one example, block by block.

Each class of blocks has one rule, registered with `walk`. The class that implements
`Tensors` says what stands for a tensor. With arrays the walk is the `eager_twin`, which
takes no part of the batched path: no source, graph or schedule. With paths alone it
finds what is wrong with an example (`expression`). With row numbers it is the reference
that generated source is tested against. Objects carry their path in the example, for
errors. The walk is simple rather than fast.
"""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from jfold import blocks as b
from jfold.base.arguments import is_int
from jfold.base.errors import InputError, describe_error, hint_for, short_repr
from jfold.base.tracebacks import line_text
from jfold.base.trampoline import Steps
from jfold.blocks.lazy import PlacedNode
from jfold.language.data_paths import EXAMPLE, End, Path, common_prefix
from jfold.language.typed import TypedExpression, TypedUse
from jfold.tracing.strict_reading import (
    ABSENT,
    listed,
    reads_no_items,
    why_no_sequence,
    why_no_value,
)
from jfold.tracing.strict_reading import field as field_of
from jfold.types import Product, SequenceType, TensorType, Type, VoidType

# The memo of uses with `node.shared`: their last input and its value.
Memo: TypeAlias = dict[TypedUse, tuple[Any, Any]]
Call: TypeAlias = tuple[TypedUse, Any, Memo]  # a use of a block, its input, the memo

UNHASHABLE = 'look up what can be hashed, such as a tuple in place of a list'
DEFINED_ANEW = 'it was defined anew since: make the block and the model again'


class Misfit(Exception):
    """An error that names the innermost block that an example does not fit.

    Attributes:
      where: the path of the block in the expression.
      path: the path of the value in the example; if `None`, the first enclosing block
        whose input has a path fills it in.
    """

    def __init__(
        self, message: str, where: str, path: Path | None, hint: str = ''
    ) -> None:
        super().__init__(message)
        self.message, self.where, self.path, self.hint = message, where, path, hint

    def input_error(self) -> InputError:
        """Return the error for users, with 0 as the number of the example.

        If a lazy function made the faulty call, its line is named, and a cause of the
        error has its frames.
        """
        message, path, cause = self.message, self.path, self.__cause__
        if isinstance(path, End) and path.calls is not None and path.place is not None:
            if raised := path.calls.raised(path.example, path.place, message):
                raised.__cause__, cause = cause, raised
            message += line_text(path.place.code, path.place.line)
        error = InputError(message, 0, str(path or ''), self.where, self.hint)
        error.__cause__ = cause
        return error


# Not frozen, as paths are not: a frozen object takes three times as long to make.
@dataclass(eq=False, slots=True)
class Located:
    """A Python object with its path in the example.

    Attributes:
      path: the path; `None` for an object from elsewhere, such as the length of a list.
      parts: the objects in a tuple or list that a block has packed, each with its own
        path; `None` for an object of the data.
    """

    value: object
    path: Path | None = EXAMPLE
    parts: list[Located] | None = None

    def step(self, value: object, text: str) -> Located:
        """Return `value`, found inside this object, with a path longer by `text`."""
        path = self.path and self.path.step(text)
        if isinstance(value, PlacedNode) and isinstance(path, End):
            path = path.at(value.place)
        return Located(value, path)


class Tensors(Protocol):
    """The interface by which a walk over an example makes and reads tensors.

    The class decides what stands for a tensor, such as an array or a row number. A
    method raises `Misfit` if the example does not fit.
    """

    def tensor(
        self, node: TypedUse, x: Located, type_: TensorType, below: int | None
    ) -> Any:
        """Return `x` as a tensor of `type_`; with `below`, of ints in `[0, below)`."""

    def constant(self, node: TypedUse, value: Any) -> Any:
        """Return the tensor of an array `value` [*shape] that the expression holds."""

    def call(self, node: TypedUse, x: object) -> Any:
        """Return the outputs of `node.layer` on `x`: tensors in nested tuples."""

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> Any:
        """Reduce 2 to 8 items of type `item` by the layer of `combine`."""

    def observe(self, node: TypedUse, name: str, x: object) -> None:
        """Collect `x` for the metric `name`: a value, or a pair of value and label."""


@dataclass(eq=False, slots=True)
class Walk:
    """The state while an expression is evaluated on one example, block by block.

    Attributes:
      calls: by declaration and by the ids of the objects in an input, the path of the
        input of each unfinished call.
      shared: the memo of `Share`, keyed by the declaration and the key of an object:
        the object, and `(value,)`, or `()` while the value is being computed.
      known: the memo of the innermost unfinished call. An item of a sequence or a call
        of a declaration starts with an empty one, a case with a copy.
    """

    typing: TypedExpression
    tensors: Tensors
    calls: defaultdict[Any, dict[tuple[int, ...], Path]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    shared: dict[Any, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict)
    known: Memo = field(default_factory=dict)

    def run(self, example: object) -> Any:
        """Return the expression's value on an example, or raise `Misfit`.

        Objects in the value are `Located`; `plain` removes their paths.
        """
        call = self.part(self.typing.root, Located(example))
        waiting: list[tuple[Steps[Any], Call]] = []  # rules with unfinished parts
        try:
            while True:
                node, x, self.known = call
                # The input is compared too: a use wrongly marked as shared is computed
                # again.
                if node in self.known and self.known[node][0] is x:
                    value = self.known[node][1]
                else:
                    block_class: type = type(node.block)
                    rule, has_steps = _rule(block_class)
                    value = rule(node.block, node, x, self)
                    if has_steps:
                        waiting.append((value, call))
                        value = None
                    elif node.shared and not node.draws:
                        self.known[node] = x, value
                while waiting:
                    steps, (node, x, self.known) = waiting[-1]
                    try:
                        call = steps.send(value)
                        break
                    except StopIteration as stop:
                        waiting.pop()
                        value = stop.value
                        if node.shared and not node.draws:
                            self.known[node] = x, value
                else:
                    return value
        except Misfit as error:
            cause = error.__cause__
            if isinstance(cause, MemoryError):  # for which no example is to blame
                raise cause from cause.__cause__
            if error.path is None:
                around = (call[1] for _, call in reversed(waiting))
                paths = map(path_of, itertools.chain([x], around))
                error.path = next(filter(None, paths), None)
            raise
        except Exception as error:
            _add_note(error, node, x)
            raise

    def part(self, node: TypedUse | None, x: object) -> Call:
        """Return a request to evaluate `node` on `x`, for a generator to yield."""
        assert node is not None
        return node, None if isinstance(node.input, VoidType) else x, self.known

    def case(self, node: TypedUse | None, x: object) -> Call:
        """Return a request to evaluate `node` on `x`, with a copy of the memo.

        So values that a case computes are not reused after it, as in the source.
        """
        node, x, known = self.part(node, x)
        return node, x, {**known}

    def anew(self, node: TypedUse | None, x: object) -> Call:
        """Return a request to evaluate `node` on `x`, with an empty memo."""
        node, x, _ = self.part(node, x)
        return node, x, {}

    # ---- objects

    def as_object(self, x: Any) -> Located:
        """Return `x`, nested tuples and lists of `Located`, as one such object."""
        if isinstance(x, Located):
            return x
        parts = [self.as_object(part) for part in x]
        path = common_prefix(part.path for part in parts if part.path) or EXAMPLE
        if not isinstance(path, End):
            # The container is not in the data: steps into it add nothing to the path.
            path = End(path.before, path.text, path.length)
        container = tuple if isinstance(x, tuple) else list
        return Located(container(part.value for part in parts), path, parts)

    def apply(
        self, node: TypedUse, fn: Callable[[Any], Any], x: Located, what: str
    ) -> Any:
        """Return `fn(x.value)`; if `fn` raises, raise `Misfit('expected <what>, ...')`.

        A value that can be read only once, such as a generator, is a `Misfit` too,
        unless `fn` takes no items from it.
        """
        why = why_no_value(type(x.value))
        if why and not reads_no_items(fn):
            text = f'expected a value, got {short_repr(x.value)}; {why}'
            raise misfit(node, text, x)
        try:
            return fn(x.value)
        except Exception as error:
            text = (
                f'expected {what}, got {short_repr(x.value)}: {describe_error(error)}'
            )
            raise misfit(node, text, x, why or hint_for(x.value)) from error

    def lookup(
        self,
        node: TypedUse,
        table: Mapping[Any, Any],
        key: Located,
        expected: Callable[[Mapping[Any, Any], bool], str],
        default: tuple[Any, ...] = (),
        hint: str = '',
    ) -> Any:
        """Return `table[key]` or the default; raise a `Misfit` if there is neither.

        Args:
          expected: (table, whether the key can be hashed) -> a phrase for the error.
          default: `(value,)` for a missing key, or `()`.
          hint: what to do about a missing key.
        """
        try:
            return table.get(key.value, *default) if default else table[key.value]
        except (KeyError, TypeError) as error:
            hint = hint if isinstance(error, KeyError) else UNHASHABLE
            is_named = isinstance(key.value, type | enum.Enum)
            if is_named and repr(key.value) in map(repr, table):
                hint = DEFINED_ANEW
            what = expected(table, isinstance(error, KeyError))
            text = f'expected {what}, got {short_repr(key.value)}'
            raise misfit(node, text, key, hint) from None
        except Exception as error:  # raised by its `__hash__` or `__eq__`
            raise misfit(node, describe_error(error), key) from error

    def get(
        self, node: TypedUse, value: Any, key: Any, default: tuple[Any, ...] = ()
    ) -> Located:
        """Return item or attribute `key` of `value`, or `default[0]` if it is missing.

        `Misfit` is raised if there is no default either, or the field cannot be read.
        """
        x = self.as_object(value)
        if x.parts and is_int(key) and -len(x.parts) <= key < len(x.parts):
            return x.parts[key]
        try:
            return x.step(field_of(x.value, key), _step(x.value, key))
        except Exception as error:
            if default and isinstance(error, ABSENT):
                return x.step(default[0], _step(x.value, key))
            got = f'{short_repr(x.value)}: {describe_error(error)}'
            text = f'expected an item {key!r}, got {got}'
            lacks = isinstance(error, KeyError) and isinstance(x.value, Mapping)
            optional = (
                f'write `Record({{{key!r}: Optional(...)}})` if it may be missing'
            )
            hint = optional if lacks else hint_for(x.value)
            raise misfit(node, text, x, hint) from error

    def items(self, node: TypedUse, x: Any) -> list[Any]:
        """Return the items of a sequence `x`; if `x` is `Located`, each with its path.

        `Misfit` is raised for an object without items or order, or read only once.
        """
        if not isinstance(x, Located):
            return list(x)
        if why := why_no_sequence(x.value):
            text = f'expected a sequence, got {short_repr(x.value)}; {why}'
            raise misfit(node, text, x)
        if x.parts is not None:
            return [*x.parts]
        try:
            items = listed(x.value)
        except Exception as error:
            got = f'{short_repr(x.value)}: {describe_error(error)}'
            text = f'expected something iterable, got {got}'
            raise misfit(node, text, x, hint_for(x.value)) from error
        return [x.step(item, f'[{k}]') for k, item in enumerate(items)]


def misfit(node: TypedUse, message: str, x: object = None, hint: str = '') -> Misfit:
    """Return the `Misfit` to raise for data `x` that the block at `node` refuses.

    It has the path of `x` in the example if `x` is `Located`.
    """
    return Misfit(message, str(node), x.path if isinstance(x, Located) else None, hint)


def plain(value: object) -> Any:
    """Return a value with every `Located` object unwrapped, at any depth."""
    if isinstance(value, Located):
        return value.value
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return list(map(plain, value)) if isinstance(value, list) else value


def zero_of(type_: Type, node: TypedUse, state: Walk) -> Any:
    """Return zero tensors, nested in tuples as in a type; sequences are `[]`."""
    if isinstance(type_, Product):
        return tuple(zero_of(item, node, state) for item in type_)
    if isinstance(type_, SequenceType):
        return []
    if isinstance(type_, TensorType):
        return state.tensors.constant(node, np.zeros(type_.shape, type_.dtype))
    return None


def tensor_leaves(x: object) -> Iterator[Any]:
    """Yield the leaves of `x`, nested tuples, left to right, without `None`."""
    if isinstance(x, tuple):
        for part in x:
            yield from tensor_leaves(part)
    elif x is not None:
        yield x


def in_tuples(type_: Type, tensors: Iterator[Any]) -> Any:
    """Return tensors from an iterator, nested as in a type; void becomes `None`."""
    if isinstance(type_, Product):
        return tuple(in_tuples(part, tensors) for part in type_)
    return None if isinstance(type_, VoidType) else next(tensors)


def path_of(x: object) -> Path | None:
    """Return the longest common prefix of the paths in `x`; `None` without paths."""
    if isinstance(x, Located):
        return x.path
    if isinstance(x, list) and len(x) == 1:  # the path of the list itself
        path = path_of(x[0])
        return path.before if path and path.text == '[0]' else path
    if isinstance(x, tuple | list):
        return common_prefix([p for p in map(path_of, x) if p is not None])
    return getattr(x, 'path', None)


def _step(value: object, key: object) -> str:
    """Return the text of a step to `key` in `value`: `.key`, `[key]` or a slice."""
    by_item = hasattr(type(value), '__getitem__') and not hasattr(value, '_fields')
    if isinstance(key, str) and not by_item:
        return f'.{key}'
    if isinstance(key, slice):
        parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
        return f'[{":".join("" if part is None else repr(part) for part in parts)}]'
    return f'[{key!r}]'


def _add_note(error: Exception, node: TypedUse, x: object) -> None:
    """Add a note to an error raised inside a block: block and input `x`."""
    # The error passes all enclosing blocks; only the innermost adds a note, and none
    # does if the text of the error names its block already.
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
    """Return `walk`'s implementation for a class, and whether it is a generator."""
    # The result of a rule does not tell: it may be a generator in the user's data.
    rule = walk.dispatch(block_class)
    return rule, inspect.isgeneratorfunction(rule)


@functools.singledispatch
def walk(block: b.Block, node: TypedUse, x: object, state: Walk) -> Any:
    """Return the value of `node`, a use of `block`, on the input `x`.

    The rule of a block with inner blocks is a generator: it yields what `Walk.part`
    returns for each of these, and `Walk.run` sends it the value.

    Raises:
      Misfit: `x` does not fit.
    """
    raise NotImplementedError(f'walking has no rule for {block!r}')
