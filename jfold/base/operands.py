# SPDX-License-Identifier: Apache-2.0
"""Wires: values not computed yet, on which blocks and operators can be used."""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn, Protocol

import jax.numpy as jnp

from jfold.base.errors import short_repr
from jfold.base.tracebacks import api_boundary

Operator = Callable[..., Any]
Instruction = dis.Instruction
UNKNOWN = 'though its value is not known yet'
# A wire cannot refuse these: Python answers them, as `is`, without calling a method.
QUESTIONS = 'isinstance', 'type', 'callable', 'hasattr'


def _left(fn: Operator) -> Operator:
    """Return the method of an operator whose left operand is a wire."""

    @api_boundary
    def method(self: Operand, other: object) -> Any:
        return self.applied(fn, self, other)

    return method


def _right(fn: Operator) -> Operator:
    """Return the method of an operator whose right operand alone is a wire."""

    @api_boundary
    def method(self: Operand, other: object) -> Any:
        return self.applied(fn, other, self)

    return method


class Operand:
    """A base class of wires: an operator on them becomes a `Function` of them."""

    def applied(self, fn: Operator, *operands: object) -> Any:
        """Return the wire of `fn(*operands)`; at least one operand is a wire."""
        raise NotImplementedError

    def count(self) -> int | None:
        """Return how many items this wire has, or `None` if that is not known."""
        raise NotImplementedError

    def __getitem__(self, key: object) -> Any:
        raise NotImplementedError

    __add__, __radd__ = _left(jnp.add), _right(jnp.add)
    __sub__, __rsub__ = _left(jnp.subtract), _right(jnp.subtract)
    __mul__, __rmul__ = _left(jnp.multiply), _right(jnp.multiply)
    __truediv__, __rtruediv__ = _left(jnp.divide), _right(jnp.divide)
    __floordiv__, __rfloordiv__ = _left(jnp.floor_divide), _right(jnp.floor_divide)
    __mod__, __rmod__ = _left(jnp.mod), _right(jnp.mod)
    __pow__, __rpow__ = _left(jnp.power), _right(jnp.power)
    __matmul__, __rmatmul__ = _left(jnp.matmul), _right(jnp.matmul)
    __lt__, __le__ = _left(jnp.less), _left(jnp.less_equal)
    __gt__, __ge__ = _left(jnp.greater), _left(jnp.greater_equal)
    __eq__, __ne__ = _left(jnp.equal), _left(jnp.not_equal)
    __hash__ = object.__hash__

    @api_boundary
    def __neg__(self) -> Any:
        return self.applied(jnp.negative, self)

    @api_boundary
    def __abs__(self) -> Any:
        return self.applied(jnp.abs, self)

    @api_boundary
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Apply an operator with an array on its left; refuse functions of NumPy."""
        if len(inputs) == 2 and inputs[1] is self:
            return self.applied(getattr(jnp, ufunc.__name__), *inputs)
        raise TypeError(self._call_message(f'`np.{ufunc.__name__}`'))

    @api_boundary
    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(self._call_message('a function of NumPy'))

    @property
    def __jax_array__(self) -> NoReturn:
        # JAX replaces a TypeError by one with another message.
        raise ValueError(self._call_message('a function or a module'))

    @api_boundary
    def __len__(self) -> int:
        raise TypeError(
            self._question_message('its length', 'compute it by `jf.Length()(x)`')
        )

    @api_boundary
    def __bool__(self) -> bool:
        hint = 'choose by OneOf, or by jnp.where in a Function'
        raise TypeError(self._question_message('its truth', hint))

    @api_boundary
    def __iter__(self) -> Iterator[Any]:
        count = self.count()
        if count is None:
            hint = 'take those of a tuple by `x[0]`, `x[1]`, those of a sequence by Map'
            raise TypeError(self._question_message('its items', hint))
        return iter([self[index] for index in range(count)])

    @api_boundary
    def __getattr__(self, name: str) -> Any:
        hint = (
            f'take a field by `x[{name!r}]`, and write `jf.Function(fn)(x)` for a '
            'method, where `fn` calls it'
        )
        if name.startswith('_'):
            raise AttributeError(name)
        raise AttributeError(self._question_message(f'`.{name}`', hint))

    def _call_message(self, what: str) -> str:
        return (
            f'{self!r}: expected a block to be called on it, got {what}, {UNKNOWN}; '
            'write `jf.Function(fn)(x)` for `fn(x)`'
        )

    def _question_message(self, what: str, hint: str) -> str:
        return (
            f'{self!r}: expected blocks and operators on it, got a question for '
            f'{what}, {UNKNOWN}; {hint}'
        )


@functools.cache
def with_number(fn: Operator, number: object, type_: object, is_left: bool) -> Operator:
    """Return a function of two arguments with one bound to a Python number.

    There is one object for each number, so that its uses are one layer; `type_` tells
    `True`, 1 and 1.0 apart. The number takes the dtype of the other argument.
    """

    def bound(x: object) -> Any:
        return fn(number, x) if is_left else fn(x, number)

    bound.__name__ = fn.__name__
    return bound


@contextlib.contextmanager
def noting_flax_modules(name: str) -> Iterator[None]:
    """Add a note to errors of Flax about modules called on wires."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith('flax.'):
            error.add_note(
                f'in `{name}`: expected blocks to be called on wires, got a module of '
                'Flax: write `jf.Function(module)(x)` for `module(x)`'
            )
        raise


def unlike(wire: Operand, other: object) -> str:
    """Return an error message about an operand that is no wire, such as an array."""
    return (
        f'{wire!r}: expected a wire or a number beside it, got {short_repr(other)}; '
        'write `jf.FromTensor(array)` for a constant, and a Function with `init=` for '
        'what is trained'
    )


# ---- where wires are made ------------------------------------------------------------


class Scope(Protocol):
    """A composition that is being wired."""

    def add(self, block: Any, source: Any) -> Operand:
        """Return a new wire for the result of a block on its source."""

    def link(self, block: Any, source: Any) -> Operand:
        """Return the only wire of a block, which has none yet."""


SCOPE: ContextVar[Scope] = ContextVar('scope')  # set by `Composition.scope`


def open_scope(block: object, sources: tuple[object, ...]) -> Scope:
    """Return the scope in which a block is wired to sources.

    Raises:
      TypeError: there is none.
    """
    scope = SCOPE.get(None)
    if scope is None:
        got = ', '.join(map(repr, sources))
        raise TypeError(
            f'{block!r}: expected to be wired within `jf.compose` or the scope of a '
            f'Composition, got ({got}) outside of these; `eval` runs it on data'
        )
    return scope


@dataclass(frozen=True, eq=False)
class Item:
    """One item of the result of a block, by its key or index."""

    block: Any
    key: Any

    __iter__ = None


# ---- sources: wires in nested tuples -------------------------------------------------


def leaves(source: object) -> Iterator[Any]:
    """Iterate over the leaves of nested tuples, `None` left out."""
    waiting = [source]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple | list):
            waiting.extend(reversed(item))
        elif item is not None:
            yield item


def map_sources(source: object, fn: Callable[[Any], Any]) -> Any:
    """Map a function over the leaves of nested tuples."""
    if isinstance(source, tuple | list):
        return tuple(map_sources(item, fn) for item in source)
    return None if source is None else fn(source)


def pack_sources(sources: tuple[Any, ...]) -> Any:
    """Return a single source as it is, several as a tuple, none as `None`."""
    return sources[0] if len(sources) == 1 else sources or None


# ---- questions that wires cannot refuse ----------------------------------------------


def check_type_queries(fn: Callable[..., Any], inputs: Iterable[str]) -> None:
    """Raise an error if a function asks for the class of an input.

    Args:
      inputs: the names of parameters that are wires.

    Raises:
      TypeError: it asks whether one is `None`, or for its class.
    """
    code: CodeType | None = getattr(getattr(fn, 'func', fn), '__code__', None)
    if code is None:
        return
    steps = list(dis.get_instructions(code))
    # A name that is assigned to may hold something else than the wire.
    names = {*inputs} - {x.argval for x in steps if x.opname.startswith('STORE')}
    for before, load, *after in zip(*(steps[k:] for k in range(4)), strict=False):
        if load.opname.startswith('LOAD') and load.argval in names:
            if text := _question(before, load.argval, after):
                raise TypeError(
                    f'`{code.co_name}`: expected no question that Python answers '
                    f'before there are values, got {text}; use OneOf to choose by a '
                    'class, Optional for what may be `None`'
                )


def _question(before: Instruction, name: str, after: list[Instruction]) -> str:
    """Return the question that instructions ask about an input, or ''."""
    first, second = after
    if before.opname.startswith('LOAD') and before.argval in QUESTIONS:
        return f'`{before.argval}({name}...)`'
    is_none = first.opname.startswith('LOAD_CONST') and second.opname == 'IS_OP'
    return f'`{name} is None`' if is_none or first.opname.endswith('_NONE') else ''
