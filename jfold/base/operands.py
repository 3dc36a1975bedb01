# SPDX-License-Identifier: Apache-2.0
"""The base class of wires, and the scopes in which wires are made.

A wire stands for a value that is not computed yet: the result of a block, or the input
of a composition. Blocks and operators such as `+` are applied to wires.
"""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType
from typing import Any, ClassVar, NoReturn

import jax.numpy as jnp

from jfold.base.tracebacks import api_boundary

Operator = Callable[..., Any]
UNKNOWN = 'though its value is not known yet'
# A wire cannot raise errors for these functions, nor for `is`: Python answers them
# without calling a method of the wire.
QUESTIONS = 'isinstance', 'type', 'callable', 'hasattr'


def _methods(fn: Operator) -> tuple[Operator, Operator]:
    """Return methods like `__add__` and `__radd__`, which apply `fn` to wires."""

    @api_boundary
    def left(self: Operand, other: object) -> Any:
        return self.applied(fn, self, other)

    @api_boundary
    def right(self: Operand, other: object) -> Any:
        return self.applied(fn, other, self)

    return left, right


def _method(fn: Operator) -> Operator:
    """Return a method like `__neg__`, which applies `fn` to a wire."""
    return api_boundary(lambda self: self.applied(fn, self))


def _refused(
    what: str, hint: str = 'choose by OneOf, or by jnp.where in a Function'
) -> Operator:
    """Return a method that raises TypeError: wires cannot tell `what`; do `hint`."""

    @api_boundary
    def refused(self: Operand, *_: object) -> NoReturn:
        raise TypeError(self._question_message(what, hint))

    return refused


class Operand:
    """A base class of wires, whose operators, as in `x + y`, return new wires.

    A new wire is the result of a `Function` block. Operations that need a value, such
    as `bool(x)` or `np.exp(x)`, raise an error that says what to write instead.
    """

    __slots__ = ()
    # Hints of errors: what to write instead of `len(x)` and `for item in x`.
    of_length: ClassVar[str] = 'compute it by `jf.Length()(x)`'
    of_items: ClassVar[str] = (
        'take those of a tuple by `x[0]`, `x[1]`, those of a sequence by Map'
    )
    beside_arrays: ClassVar[str] = ''  # what to write instead of `array * x`

    def applied(self, fn: Operator, *operands: object) -> Any:
        """Return the wire of `fn(*operands)`; at least one operand is a wire."""
        raise NotImplementedError

    def count(self) -> int | None:
        """Return the length of the wire's value if it must be a tuple, else `None`."""
        raise NotImplementedError

    def __getitem__(self, key: object) -> Any:
        raise NotImplementedError

    __add__, __radd__ = _methods(jnp.add)
    __sub__, __rsub__ = _methods(jnp.subtract)
    __mul__, __rmul__ = _methods(jnp.multiply)
    __truediv__, __rtruediv__ = _methods(jnp.divide)
    __floordiv__, __rfloordiv__ = _methods(jnp.floor_divide)
    __mod__, __rmod__ = _methods(jnp.mod)
    _pow, __rpow__ = _methods(jnp.power)
    __matmul__, __rmatmul__ = _methods(jnp.matmul)
    __and__, __rand__ = _methods(jnp.bitwise_and)
    __or__, __ror__ = _methods(jnp.bitwise_or)
    __xor__, __rxor__ = _methods(jnp.bitwise_xor)
    __lt__, __le__ = _methods(jnp.less)[0], _methods(jnp.less_equal)[0]
    __gt__, __ge__ = _methods(jnp.greater)[0], _methods(jnp.greater_equal)[0]
    __eq__, __ne__ = _methods(jnp.equal)[0], _methods(jnp.not_equal)[0]
    __hash__ = object.__hash__
    __neg__, __pos__ = _method(jnp.negative), _method(jnp.positive)
    __invert__, __abs__ = _method(jnp.invert), _method(jnp.abs)

    @api_boundary
    def __pow__(self, other: object, modulus: object = None) -> Any:
        if modulus is not None:
            raise TypeError(
                f'{self!r}: expected `pow(x, y)`, got a third operand: write '
                '`x**y % z` for `pow(x, y, z)`'
            )
        return self._pow(other)

    @api_boundary
    def __setitem__(self, *_: object) -> NoReturn:
        raise TypeError(
            f'{self!r}: expected blocks and operators on it, got an assignment to an '
            'item: write `jf.Function(lambda x, y: x.at[0].set(y))` outside and call it'
        )

    @api_boundary
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Return the wire of `array + self`; raise TypeError for `np.exp(self)`.

        NumPy calls this method for operators with an array or a NumPy scalar on their
        left, which go to `applied`, and for its functions, which are refused.
        """
        if len(inputs) == 2 and inputs[1] is self:
            return self.applied(getattr(jnp, ufunc.__name__), *inputs)
        raise TypeError(self._call_message(f'`np.{ufunc.__name__}`'))

    @api_boundary
    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(self._call_message('a function of NumPy'))

    @property
    def __jax_array__(self) -> NoReturn:
        # JAX replaces a TypeError by one with another message.
        text = self._call_message('a function or a module')
        raise ValueError(text + self.beside_arrays)

    @api_boundary
    def __len__(self) -> int:
        raise TypeError(self._question_message('its length', self.of_length))

    __bool__, __contains__ = _refused('its truth'), _refused('what is in it')
    __int__ = __float__ = __complex__ = __index__ = _refused(
        'its number', 'write `jf.Function(fn)(x)`, where `fn` calculates with it'
    )
    __round__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = __int__

    @api_boundary
    def __format__(self, spec: str) -> str:
        return f'{self.__int__()}' if spec else str(self)

    @api_boundary
    def __iter__(self) -> Iterator[Any]:
        count = self.count()
        if count is None:
            raise TypeError(self._question_message('its items', self.of_items))
        return iter([self[index] for index in range(count)])

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


WITH_NUMBERS: dict[tuple[Any, ...], Operator] = {}  # the cache of `with_number`


def with_number(fn: Operator, number: Any, type_: type, is_left: bool) -> Operator:
    """Return `x -> fn(x, number)`, or `fn(number, x)` if `is_left`.

    The function is cached, so that its uses are one layer; `type_`, the class of the
    number, tells `True`, 1 and 1.0 apart. The number takes the dtype of `x`.
    """
    # The text tells 0.0 from -0.0, and finds NaN again; equality does neither.
    is_ordered = type_ is not complex and (number > 0 or number < 0)
    key = fn, number if is_ordered else repr(number), type_, is_left
    if known := WITH_NUMBERS.get(key):
        return known

    def bound(x: object) -> Any:
        return fn(number, x) if is_left else fn(x, number)

    bound.__name__ = fn.__name__
    return WITH_NUMBERS.setdefault(key, bound)


@contextlib.contextmanager
def noting_flax_modules(name: str) -> Iterator[None]:
    """Add a note to Flax's errors in function `name`: wrap modules in `Function`."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith('flax.'):
            error.add_note(
                f'in `{name}`: expected blocks to be called, got a module of Flax: '
                'write `jf.Function(module)(x)` for `module(x)`'
            )
        raise


# ---- where wires are made ------------------------------------------------------------


# The `blocks.compose.Scope` that is open: that of the composition being wired.
SCOPE: ContextVar[Any] = ContextVar('scope')


# The `language.lazy_recording.Recording` of the lazy function that runs, if one does.
RECORDER: ContextVar[Any] = ContextVar('recorder', default=None)
# Python looks a method of an imported object up at each call, but not this function.
get_recorder = RECORDER.get


def open_scope(block: object, sources: tuple[object, ...]) -> Any:
    """Return the scope of the composition being wired; raise TypeError if none is.

    The message names the block, and the sources that it was applied to.
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
    """An item `block[key]` of a block's result, which other blocks can read."""

    block: Any
    key: Any

    __iter__ = None


# ---- sources: wires in nested tuples -------------------------------------------------

# A source is what a block reads: a wire, a block, an `Item`, `None` for no input, or a
# tuple of sources. In finished wirings numbers of values take the place of wires.


def leaves(source: object) -> Iterator[Any]:
    """Iterate over wires and blocks in `source`, a nested tuple, without `None`."""
    waiting = [source]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple | list):
            waiting.extend(reversed(item))
        elif item is not None:
            yield item


def map_sources(source: object, fn: Callable[[Any], Any]) -> Any:
    """Return a nested tuple like `source`, with `fn` applied to each wire or block."""
    if isinstance(source, tuple | list):
        return tuple(map_sources(item, fn) for item in source)
    return None if source is None else fn(source)


def pack_sources(sources: tuple[Any, ...]) -> Any:
    """Pack a block's sources: `None` for none, one as it is, several as a tuple."""
    return sources[0] if len(sources) == 1 else sources or None


# ---- questions that wires cannot refuse ----------------------------------------------


def check_type_queries(fn: Callable[..., Any], inputs: Iterable[str]) -> None:
    """Raise TypeError if `fn` tests an input by `x is None`, `isinstance` or the like.

    Its bytecode is searched for `x is None`, `x is not None`, and `isinstance`, `type`,
    `callable` and `hasattr` of a parameter `x`, one of `inputs`. A callable without
    bytecode passes.
    """
    code: CodeType | None = getattr(getattr(fn, 'func', fn), '__code__', None)
    if code is None:
        return
    steps = list(dis.get_instructions(code))
    # A parameter that is assigned to may hold another value than the wire.
    names = {*inputs} - {x.argval for x in steps if x.opname.startswith('STORE')}
    for before, load, after, last in zip(*(steps[k:] for k in range(4)), strict=False):
        if not (load.opname.startswith('LOAD') and load.argval in names):
            continue
        is_none = after.opname.startswith('LOAD_CONST') and last.opname == 'IS_OP'
        if before.opname.startswith('LOAD') and before.argval in QUESTIONS:
            text = f'{before.argval}({load.argval}...)'
        elif is_none or after.opname.endswith('_NONE'):
            text = f'{load.argval} is None'
        else:
            continue
        raise TypeError(
            f'`{code.co_name}`: expected no question that Python answers before there '
            f'are values, got `{text}`; use OneOf to choose by a class, Optional for '
            'what may be `None`'
        )
