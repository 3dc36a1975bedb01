# SPDX-License-Identifier: Apache-2.0
"""What may be asked of a value that is not there yet: operators, and little else."""

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
# Python answers these, and `is`, without asking what they are about.
QUESTIONS = 'isinstance', 'type', 'callable', 'hasattr'


def _left(fn: Operator) -> Operator:
    """The method of an operator whose left side is a wire."""

    @api_boundary
    def method(self: Operand, other: object) -> Any:
        return self.applied(fn, self, other)

    return method


def _right(fn: Operator) -> Operator:
    """That of one whose right side is a wire, and whose left is none."""

    @api_boundary
    def method(self: Operand, other: object) -> Any:
        return self.applied(fn, other, self)

    return method


class Operand:
    """Base of wires: an operator between two is a function of both."""

    def applied(self, fn: Operator, *operands: object) -> Any:
        """What a function gives of wires, arrays and numbers, at least one a wire."""
        raise NotImplementedError

    def count(self) -> int | None:
        """How many items there are, where it is known."""
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
    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **_: Any) -> Any:
        """NumPy asks this for an array left of an operator, and for its functions."""
        if len(given) == 2 and given[1] is self:
            return self.applied(getattr(jnp, ufunc.__name__), *given)
        raise TypeError(self._called(f'`np.{ufunc.__name__}`'))

    @api_boundary
    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(self._called('a function of NumPy'))

    @property
    def __jax_array__(self) -> NoReturn:
        # JAX says something else of a TypeError.
        raise ValueError(self._called('a function or a module'))

    @api_boundary
    def __len__(self) -> int:
        raise TypeError(self._asked('its length', 'compute it by `jf.Length()(x)`'))

    @api_boundary
    def __bool__(self) -> bool:
        hint = 'choose by OneOf, or by jnp.where in a Function'
        raise TypeError(self._asked('its truth', hint))

    @api_boundary
    def __iter__(self) -> Iterator[Any]:
        count = self.count()
        if count is None:
            hint = 'take those of a tuple by `x[0]`, `x[1]`, those of a sequence by Map'
            raise TypeError(self._asked('its items', hint))
        return iter([self[place] for place in range(count)])

    @api_boundary
    def __getattr__(self, name: str) -> Any:
        hint = (
            f'take a field by `x[{name!r}]`, and write `jf.Function(fn)(x)` for a '
            'method, where `fn` calls it'
        )
        private = name.startswith('_')
        raise AttributeError(name if private else self._asked(f'`.{name}`', hint))

    def _called(self, what: str) -> str:
        return (
            f'{self!r}: expected a block to be called on it, got {what}, {UNKNOWN}; '
            'write `jf.Function(fn)(x)` for `fn(x)`'
        )

    def _asked(self, what: str, hint: str) -> str:
        return (
            f'{self!r}: expected blocks and operators on it, got a question for '
            f'{what}, {UNKNOWN}; {hint}'
        )


@functools.cache
def with_number(fn: Operator, number: object, kind: object, is_left: bool) -> Operator:
    """A function of two with a number of Python for one, which gives way to the dtype
    of the other; one object for each number, so that its uses are one layer."""

    def made(x: object) -> Any:
        return fn(number, x) if is_left else fn(x, number)

    made.__name__ = fn.__name__
    return made


@contextlib.contextmanager
def noted_modules(name: str) -> Iterator[None]:
    """Says in errors of Flax what to do about a module that is called on a wire."""
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
    """What to say of an operand beside a wire that is none, an array for one."""
    return (
        f'{wire!r}: expected a wire or a number beside it, got {short_repr(other)}; '
        'write `jf.FromTensor(array)` for a constant, and a Function with `init=` for '
        'what is trained'
    )


# ---- where wires are made ------------------------------------------------------------


class Scope(Protocol):
    """Where blocks are wired: a composition that is being written."""

    def add(self, block: Any, source: Any) -> Operand:
        """A new wire, of what a block gives of its source."""

    def link(self, block: Any, source: Any) -> Operand:
        """The wire of a block that has none yet."""


SCOPE: ContextVar[Scope] = ContextVar('scope')  # set by `Composition.scope`


def open_scope(block: object, sources: tuple[object, ...]) -> Scope:
    """The scope in which a block is wired to sources.

    Raises:
      TypeError: it is in none.
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
    """One item of what a block gives, by its key or place."""

    block: Any
    key: Any

    __iter__ = None


# ---- what is read --------------------------------------------------------------------


def leaves(source: object) -> Iterator[Any]:
    """What stands in nested tuples; nothing where nothing is read."""
    waiting = [source]
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple | list):
            waiting.extend(reversed(each))
        elif each is not None:
            yield each


def rebuilt(source: object, fn: Callable[[Any], Any]) -> Any:
    """The same structure of other things."""
    if isinstance(source, tuple | list):
        return tuple(rebuilt(each, fn) for each in source)
    return None if source is None else fn(source)


def together(sources: tuple[Any, ...]) -> Any:
    """What is read: one source, a tuple of several, or nothing."""
    return sources[0] if len(sources) == 1 else sources or None


# ---- what wires are not asked --------------------------------------------------------


def check_questions(fn: Callable[..., Any], inputs: Iterable[str]) -> None:
    """Refuses a function that asks what its inputs are, where these are wires.

    Raises:
      TypeError: it asks whether one is `None`, or of which class.
    """
    code: CodeType | None = getattr(getattr(fn, 'func', fn), '__code__', None)
    if code is None:
        return
    steps = list(dis.get_instructions(code))
    names = {*inputs} - {x.argval for x in steps if x.opname.startswith('STORE')}
    for before, each, *after in zip(*(steps[k:] for k in range(4)), strict=False):
        if each.opname.startswith('LOAD') and each.argval in names:
            if text := _asked(before, each.argval, after):
                raise TypeError(
                    f'`{code.co_name}`: expected no question that Python answers '
                    f'before there are values, got {text}; use OneOf to choose by a '
                    'class, Optional for what may be `None`'
                )


def _asked(before: Instruction, name: str, after: list[Instruction]) -> str:
    """The question for an input between instructions; '' if there is none."""
    first, second = after
    if before.opname.startswith('LOAD') and before.argval in QUESTIONS:
        return f'`{before.argval}({name}...)`'
    is_none = first.opname.startswith('LOAD_CONST') and second.opname == 'IS_OP'
    return f'`{name} is None`' if is_none or first.opname.endswith('_NONE') else ''
