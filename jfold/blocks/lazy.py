# SPDX-License-Identifier: Apache-2.0
"""Lazy functions: plain Python over the data, in which calls of blocks are recorded.

A call of a block computes nothing. It returns a `Value`, which stands for the result
and can be given to other blocks. A value holds the *node* of its call, a tuple:

    (number of the call's kind, node of the first argument, node of the second, ...)
    (number of the call's kind, row number)

Nodes are nested while kinds of calls are learned, in the eager twin, and to find
errors: there they are data like any other, which an expression of blocks reads; see
`jfold.language.lazy_expression`. Where examples are recorded, a function of the source
records the row of a call at once: that is the second form.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable, Mapping
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple, NoReturn, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.arguments import LEFT_OUT, expect
from jfold.base.errors import short_repr
from jfold.base.functions import take_item
from jfold.base.operands import SCOPE, Operand, get_recorder, with_number
from jfold.base.printing import callable_name
from jfold.base.structs import StructForm
from jfold.base.tracebacks import api_boundary
from jfold.blocks.sequences import Map
from jfold.combinators import Block, Function, Record, block

Fn = TypeVar('Fn', bound=Callable[..., Any])
Node = tuple[Any, ...]
OPERATORS: set[Function] = set()  # the blocks of operators and methods of values
# Methods and properties of arrays that values have, with arguments that are no values.
METHODS = frozenset(
    'all any argmax argmin argsort astype clip cumprod cumsum diagonal flatten max '
    'mean min prod ravel repeat reshape round sort squeeze std sum swapaxes trace '
    'transpose var'.split()
)
# Numbers that take the dtype of what is beside them, if that is of such a kind.
PLAIN: dict[type, Any] = {
    bool: np.generic,
    int: np.number,
    float: np.inexact,
    complex: np.complexfloating,
}
INDICES = int, np.integer, np.bool_
UNFINISHED = object()  # the result, in a memo, of a function that still runs
PROPERTIES = frozenset({'T', 'mT', 'real', 'imag'})


@block
class Lazy(Block):
    """A Python function that runs on the data of an example and calls blocks.

    The calls are recorded, and computed later in a batch.

    Attributes:
      fn: the function.
      share: whether it runs only once per example on the same argument objects.
    """

    fn: Callable[..., Any]
    share: bool = False

    def __post_init__(self) -> None:
        is_function = callable(self.fn) and not isinstance(self.fn, Block | type)
        hint = 'decorate a function of Python, `@jf.lazy`'
        expect('fn', self.fn, is_function, 'a function', hint)
        expect('share', self.share, isinstance(self.share, bool), 'a bool')
        # The function's own name and documentation, as `functools.wraps` sets them.
        shown: Any = SimpleNamespace()
        functools.update_wrapper(shown, self.fn, updated=())
        vars(self).update(vars(shown))

    def __call__(self, part: Any = LEFT_OUT, /, *others: Any, **options: Any) -> Any:
        """Run the function, in another lazy function; or apply the block to wires."""
        recorder = get_recorder()
        # Most calls have one argument, which takes Python no list and no dict.
        if not (recorder is None or others or options):
            if not self.share:
                return self.fn() if part is LEFT_OUT else self.fn(part)
            known = recorder.memo.get((self.fn, id(part)))
            if known is not None and known[0] is not UNFINISHED:
                return known[0]
        arguments = () if part is LEFT_OUT else (part, *others)
        if recorder is None:
            if SCOPE.get(None) is None:
                raise TypeError(
                    f'{self!r}: expected to run on the data of an example, in a model, '
                    'got a call outside of one; write `jf.compile(f, like=examples)`, '
                    'or `f.eval(example)` for one example'
                )
            return super().__call__(*arguments)
        if not self.share:
            return self.fn(*arguments, **options)
        if options:
            raise TypeError(
                f'{self!r}: expected arguments by position, since it has `share=True`, '
                f'got {", ".join(options)} by name; call `f(x, y)`'
            )
        return recorder.shared(self.fn, arguments)

    def __get__(self, instance: object, owner: type | None = None) -> Lazy:
        """Return the lazy function bound to an instance, as a method."""
        if instance is None:
            return self
        return Lazy(self.fn.__get__(instance, owner), self.share)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The name of the function stands for the block, so pickle finds no function.
        place = self.fn.__module__, self.fn.__qualname__
        if place[0] != '__main__' and _imported(*place) is self:
            return _imported, place
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f'lazy({callable_name(self.fn)})'


def _imported(module: str, name: str) -> Any:
    """Return the object of this name in a module; `None` if there is none."""
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return None


@overload
def lazy(fn: Fn, *, share: bool = False) -> Lazy: ...
@overload
def lazy(fn: None = None, *, share: bool = False) -> Callable[[Fn], Lazy]: ...
@api_boundary
def lazy(fn: Any = None, *, share: bool = False) -> Any:
    """Make a block of a function in plain Python, which runs once for each example.

    The function may read the data of one example by any Python: recursion, loops,
    classes, calls of other functions. Where it calls a block, as `cell(left, right)`,
    the call is recorded and its `Value` returned; nothing is computed. The recorded
    calls of many examples run in batches, as in any other expression. Blocks are made
    outside of the function, or inside by `jf.named`.

    Values are opaque, since they are not computed yet: choose by the data, or by
    `jf.select`. The function returns values, in tuples, dicts and lists (`Ragged`).
    `jf.compile(block, like=examples)` finds the kinds of calls by running it.

    A generator function may call itself as deep as the data are: it writes
    `left = yield encode(tree.left)`.

    Args:
      fn: the function, of one argument: an example, or a part that it is called on.
      share: whether the function runs only once per example on the same argument
        objects, compared by identity, so that the work grows with the objects of a
        graph and not with the paths to them.

    >>> import jax.numpy as jnp, jfold as jf
    >>> add = jf.Function(jnp.add)
    >>> @jf.lazy
    ... def total(tree):
    ...     if isinstance(tree, float):
    ...         return jf.tensor(tree)
    ...     return add(total(tree[0]), total(tree[1]))
    >>> model = jf.compile(total, like=[(1.0, (2.0, 3.0)), 1.0])
    >>> model.apply({}, model.schedule([((1.0, 4.0), 2.0), 3.0])).tolist()
    [7.0, 3.0]

    Raises:
      TypeError: `fn` is no function, or `share` is no bool.
    """
    if fn is None:
        return functools.partial(lazy, share=share)
    return Lazy(fn, share)


@block
class Struct(Record):
    """A `Record` block whose result is a dict or another pytree node, not a tuple."""

    form: StructForm  # of the result, whose parts are the fields in order

    def __init__(self, form: StructForm, spec: Mapping[Any, Block]) -> None:
        super().__init__(spec)
        vars(self).update(form=form)


@block
class InOrder(Map):
    """A block that evaluates nodes in the order of their calls, and gives nothing.

    So draws and metrics are numbered alike where rows are recorded and where nodes are
    evaluated. In the source it evaluates nothing, as calls have recorded their rows.
    """


class CallPlace(NamedTuple):
    """The place of a call in a lazy function: number of the call, and line."""

    number: int  # from 1, of all calls of a recording
    code: CodeType
    line: int


class PlacedNode(tuple[Any, ...]):
    """A node with the place of its call; `None` if no line is known."""

    place: CallPlace | None

    @classmethod
    def at(cls, place: CallPlace | None, node: Node) -> PlacedNode:
        """Return a copy of `node` that has this place."""
        placed = cls(node)
        placed.place = place
        return placed


class Value(Operand):
    """A result of a recorded call, which is computed later, in a batch.

    It has a `shape` and a `dtype`. Operators, `a + b`, `a @ b`, `a[..., 0]`, and the
    methods of arrays, `a.sum(-1)`, `a.T`, record calls of small functions.

    Attributes:
      node: the recorded call, as data.
      recording: the recording of the example that it belongs to.
    """

    __slots__ = ('node', 'recording')
    of_length = 'take it from the data, or from `x.shape[0]`'
    of_items = 'take rows of a tensor by `x[0]`, `x[1]`'
    beside_arrays = ', and `x * array` for `array * x` with an array of JAX'

    node: Node
    recording: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that this value stands for."""
        shape: tuple[int, ...] = self.recording.tensor_type(self).shape
        return shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array that this value stands for."""
        return self.recording.tensor_type(self).dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array that this value stands for."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the array that this value stands for."""
        return math.prod(self.shape)

    def applied(self, fn: Callable[..., Any], *operands: Any) -> Any:
        """Return the value of `fn(*operands)`; at least one operand is a value."""
        for other in operands:
            if type(other) in PLAIN:
                bound = with_number(fn, other, other.__class__, operands[0] is other)
                return self.recording.call(function_of(bound), (self,))
        return self.recording.call(function_of(fn), operands)

    def count(self) -> int | None:
        """Return `None`, as a value does not tell its number of items."""
        return None

    @api_boundary
    def __getitem__(self, key: object) -> Any:
        """Return `self[key]` as a `Value`; indices in `key` are plain, not values."""
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            is_slice = type(part) is slice
            for end in (part.start, part.stop, part.step) if is_slice else (part,):
                if end is None or end is ... or isinstance(end, INDICES):
                    continue
                got = f'ints and slices, got {short_repr(end)}'
                if isinstance(end, Operand):
                    got = 'ints, got a value'
                raise TypeError(
                    f'{self!r}: expected an index of {got}; write '
                    '`jf.Function(lambda x, i: x[i])` outside and call it'
                )
        return self.recording.call(function_of(take_item(key)), (self,))

    @api_boundary
    def _method(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call array method `name` on this value; return the result as a `Value`.

        Arguments are plain Python values; raise TypeError if one is a `Value`.
        """
        try:
            static = tuple(map(_as_key, arguments))
            call = static, tuple((k, _as_key(options[k])) for k in sorted(options))
            # As text, 1 and 1.0 differ, and zeros of two signs.
            block = _attribute(name, *call, repr(call) if static or options else '')
        except TypeError:
            raise TypeError(
                f'{self!r}: expected numbers as arguments of `.{name}`, got '
                f'{short_repr((*arguments, *options.values()))}; write '
                f'`jf.Function(lambda x, y: x.{name}(y))` outside and call it'
            ) from None
        return self.recording.call(block, (self,))

    def _refused(self, *_: object) -> NoReturn:
        hint = 'choose by the data, or by `jf.select(condition, a, b)`'
        raise TypeError(self._question_message('its number or its truth', hint))

    __bool__ = __float__ = __int__ = __index__ = __complex__ = _refused
    __contains__ = __round__ = __trunc__ = __floor__ = __ceil__ = _refused

    def __copy__(self) -> Value:
        return self

    def __deepcopy__(self, memo: object) -> Value:
        return self

    def __repr__(self) -> str:
        return f'<value of {self.recording.describe(self)}>'

    def lacks(self, name: str | None) -> str:
        """Return a message: there is no attribute `name`."""
        return self._question_message(
            f'`.{name}`',
            'write `jf.Function(fn)(x)` for a method, with an `fn` outside that '
            'calls it',
        )


def _property(name: str) -> property:
    """Return a property of values that records `x.name`."""
    return property(lambda self: self.recording.call(_attribute(name), (self,)))


# Not by a `__getattr__`, with which Python reads every attribute slowly.
for _name in METHODS:
    setattr(Value, _name, functools.partialmethod(Value._method, _name))
for _name in PROPERTIES:
    setattr(Value, _name, _property(_name))


def _as_key(x: Any) -> Any:
    """Return argument `x` as part of a cache key: lists as tuples, NaN as `math.nan`.

    Raise TypeError for a `Value`.
    """
    if isinstance(x, list | tuple):
        return tuple(map(_as_key, x))
    if isinstance(x, Operand):
        raise TypeError('expected no value')
    return math.nan if type(x) is float and math.isnan(x) else x


@functools.cache
def function_of(fn: Callable[..., Any]) -> Function:
    """Return `fn`, an operator on values, as a block, the same block at every call."""
    operator = Function(fn)
    OPERATORS.add(operator)
    return operator


@functools.cache
def _attribute(name: str, *call: Any) -> Function:
    """Return a block for `x.name`; with `call`, for `x.name(*arguments, **options)`.

    It is cached by `call`: the arguments, the options in pairs, and the text of both.
    """

    def attribute(x: Any) -> Any:
        value = getattr(x, name)
        return value(*call[0], **dict(call[1])) if call else value

    attribute.__name__ = name
    return function_of(attribute)


# ---- functions that are called in lazy functions -------------------------------------


def _recorder(name: str) -> Any:
    """Return the recording of the running lazy function; raise TypeError if none runs.

    The message says that `jf.<name>` was called.
    """
    recorder = get_recorder()
    if recorder is None:
        raise TypeError(
            f'jf.{name}: expected to be called in a function of `jf.lazy`, got a call '
            'outside of one, or in another thread; call it where the data are read'
        )
    return recorder


def tensor(value: Any, dtype: Any = None) -> Any:
    """Return a number or an array of the data as a `Value`.

    Args:
      dtype: by default the dtype of the array; for a Python number the one that JAX
        gives it: bool, int32, float32 or complex64, or with x64 the wider int64,
        float64 or complex128.
    """
    return _recorder('tensor').constant(value, dtype)


def int32(value: Any) -> Any:
    """Return an int or an array of ints as a `Value` of dtype int32."""
    return (get_recorder() or _recorder('int32')).constant(value, 'int32')


def float32(value: Any) -> Any:
    """Return a number or an array of numbers as a `Value` of dtype float32."""
    return _recorder('float32').constant(value, 'float32')


def select(condition: Any, one: Any, other: Any) -> Any:
    """Return the `Value` of `jnp.where(condition, one, other)`, element by element."""
    recorder = _recorder('select')
    operands = condition, _alike(recorder, one, other), _alike(recorder, other, one)
    return recorder.call(function_of(jnp.where), operands)


def _alike(recorder: Any, number: Any, beside: Any) -> Any:
    """Return a number of Python in the dtype of what is `beside` it.

    JAX gives it that dtype unless it is of a wider kind, as a float beside ints: then,
    and if it is no number, it is returned unchanged.
    """
    dtype = getattr(beside, 'dtype', None)
    if type(number) not in PLAIN or dtype is None:
        return number
    if not jnp.issubdtype(dtype, PLAIN[type(number)]):
        return number
    with np.errstate(over='ignore'):  # JAX makes it an infinity, too
        array = np.asarray(number).astype(jax.dtypes.canonicalize_dtype(dtype))
    return recorder.constant(array, None)


def observe(name: str, value: Any, label: Any = LEFT_OUT) -> None:
    """Collect a value for a metric, as the `Metric` block does.

    Args:
      name: the name of the metric in the results.
      value: a value, or several in a tuple.
      label: if passed, a Python object to store beside the value, for
        `Schedule.labels`.
    """
    is_name = isinstance(name, str)
    expect('name', name, is_name, 'str', "write `jf.observe('loss', value)`")
    _recorder('observe').observe(name, value, () if label is LEFT_OUT else (label,))


def named(name: str, make: Callable[[], Any]) -> Any:
    """Return, in a lazy function, the block that `make` creates once for a model.

    Args:
      name: the name of the layer, the key of its parameters.
      make: a function that returns the layer: a Flax module, another callable, or a
        block, whose layers keep their own names. It is called for the first example
        that gets here.

    >>> import jax, flax.linen as nn, jfold as jf
    >>> @jf.lazy
    ... def scores(x):
    ...     return jf.named('head', lambda: nn.Dense(3))(jf.tensor(x, 'float32'))
    >>> model = jf.compile(scores, like=[[1, 2]])
    >>> list(model.init(jax.random.key(0)))
    ['head']

    Raises:
      TypeError: `make` is no function, or two functions make one name.
    """
    expect('name', name, isinstance(name, str), 'str', "write `jf.named('head', make)`")
    hint = "write `jf.named('head', lambda: nn.Dense(8))`"
    is_function = callable(make) and not isinstance(make, Block)
    expect('make', make, is_function, 'a function that makes the layer', hint)
    return _recorder('named').registry.block_named(name, make)
