# SPDX-License-Identifier: Apache-2.0
"""The recording of a lazy function on one example: values, and nodes of calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from jfold import blocks as b
from jfold.base.errors import short_repr
from jfold.base.operands import RECORDER
from jfold.base.structs import Form, StructForm, flatten_once, is_struct
from jfold.base.trampoline import Steps, run
from jfold.blocks.lazy import Lazy, Node, Value
from jfold.language.lazy_registry import EmptyList, Entry, Registry
from jfold.types import Product, TensorType

SCALARS = bool, int, float, complex
NUMBERS = *SCALARS, np.generic, np.ndarray, jax.Array


class Recording:
    """The recording of the calls of a lazy function on one example.

    Attributes:
      registry: the entries of calls.
      observed: the values of metrics: nodes (number of the metric, node, label).
      memo: the results of shared functions, by function and ids of arguments.
    """

    __slots__ = ('calls', 'memo', 'observed', 'registry')

    def __init__(self, registry: Registry) -> None:
        self.registry, self.calls = registry, registry.calls
        self.observed: list[Node] = []
        self.memo: dict[Any, tuple[Any, ...]] = {}

    def run(self, lazy: Lazy, example: object) -> Node:
        """Return the node of the result of a lazy function on an example.

        Raises:
          TypeError: the result is not made of values.
          Exception: whatever the function raises.
        """
        token = RECORDER.set(self)
        try:
            value = lazy(example)
            if _is_generator(value):
                value = run(value)
            if value is None:
                raise TypeError(
                    f'{lazy!r}: expected a result of values, got None; end every '
                    'branch of the function by `return`'
                )
            node = self.node(value)
        except RecursionError:
            raise TypeError(
                f'{lazy!r}: expected data less deep than calls of Python may be '
                'nested, got deeper ones; write `x = yield f(part)` for each call of '
                'itself, which makes it a generator function without that limit'
            ) from None
        finally:
            RECORDER.reset(token)
        self.registry.result(lazy, node[0])
        return node

    # ---- what lazy functions call

    def call(self, block: b.Block, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a block on values and data, recorded, not computed."""
        nodes: Sequence[Node]
        try:
            # One and two arguments apart take half the time: 0.5 us a call.
            if len(arguments) == 1:
                (x,) = arguments
                nodes = (x.node,)
                number = self.calls[block, x.node[0]]
                is_own = x.recording is self
            elif len(arguments) == 2:
                x, y = arguments
                nodes = x.node, y.node
                number = self.calls[block, x.node[0], y.node[0]]
                is_own = x.recording is self and y.recording is self
            else:
                nodes = [x.node for x in arguments]
                number = self.calls[(block, *[node[0] for node in nodes])]
                is_own = all([x.recording is self for x in arguments])
        except (AttributeError, KeyError):
            return self._call(block, arguments)
        return Value((number, *nodes), self) if is_own else self._foreign(arguments)

    def _call(self, block: b.Block, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a call with any arguments, or for the first time."""
        takes_data = not isinstance(block, b.Function)
        nodes = [self.node(x, takes_data) for x in arguments]
        numbers = tuple(node[0] for node in nodes)
        key = block, *numbers
        entry = self.registry.known.get(key)
        if entry is None and takes_data and self._is_refused(key, arguments):
            nodes = [self.node(x) for x in arguments]
            numbers = tuple(node[0] for node in nodes)
            entry = self.registry.known.get((block, *numbers))
        entry = entry or self.registry.apply(block, numbers)
        return self._opened((entry.number, *nodes), entry)

    def _is_refused(self, key: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
        """Return whether a block takes no data, so that its data are constants.

        Args:
          key: the block, and the entries of its arguments if they are data.
        """
        refused = self.registry.refused
        if key not in refused and not all(map(_holds_values, arguments)):
            try:
                self.registry.apply(key[0], key[1:])
            except EmptyList:
                raise
            except TypeError:
                refused.add(key)
        return key in refused

    def shared(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a lazy function that runs once for the same objects."""
        owner = getattr(function, '__self__', None)
        key = (getattr(function, '__func__', function), id(owner), *map(id, arguments))
        if key in self.memo:
            return self._remembered(key)
        self.memo[key] = (arguments,)  # kept, so that no other object gets its id
        value = function(*arguments)
        if _is_generator(value):
            return self._shared_steps(key, arguments, value)
        self.memo[key] = arguments, value
        return value

    def _shared_steps(self, key: Any, arguments: Any, steps: Steps[Any]) -> Steps[Any]:
        value = yield steps
        self.memo[key] = arguments, value
        return value

    def _remembered(self, key: Any) -> Any:
        arguments, *values = self.memo[key]
        if not values:
            raise TypeError(
                'expected data without circles, got an object that contains itself, '
                f'{short_repr(arguments[0] if arguments else None)}'
            )
        return values[0]

    def constant(self, value: object, dtype: object) -> Any:
        """Return the value of a number or an array of the data."""
        number = self.registry.numbers.get((value.__class__, dtype))
        node = self._constant(value, dtype) if number is None else (number, value)
        return Value(node, self)

    def _constant(self, value: Any, dtype: object = None) -> Node:
        if isinstance(value, Value):
            raise TypeError(f'expected a number or an array, got {value!r}')
        array = value if hasattr(value, 'dtype') else np.asarray(value)
        kind = array.dtype if dtype is None else np.dtype(dtype)  # type: ignore[call-overload]
        if kind.kind not in 'biufcV':
            hint = 'look up its number first, as in `vocabulary[word]`'
            got = short_repr(value)
            raise TypeError(f'expected a number or an array, got {got}; {hint}')
        if type(value) in SCALARS and not np.can_cast(type(value), kind, 'same_kind'):
            got = short_repr(value)
            raise TypeError(f'expected a number that fits {kind.name}, got {got}')
        type_ = TensorType(array.shape, jax.dtypes.canonicalize_dtype(kind))
        number = self.registry.tensor(type_).number
        if type(value) in SCALARS:
            self.registry.numbers[value.__class__, dtype] = number
        return number, value

    def observe(self, name: str, value: object, label: tuple[Any, ...]) -> None:
        """Collect a value for a metric, with `(label,)` or `()` beside it."""
        node = self.node(value)
        self.registry.metric(name, bool(label), node[0])
        self.observed.append(((name, bool(label)), node, *label))

    # ---- values and nodes

    def node(self, x: Any, takes_data: bool = False) -> Node:
        """Return the node of an argument: a value, a constant, or parts of these.

        Args:
          takes_data: whether what holds no values is an object of the data.

        Raises:
          TypeError: it is something else, or a value of another example.
        """
        if type(x) is Value:
            if x.recording is not self:
                self._foreign((x,))
            return x.node
        if takes_data and not _holds_values(x):
            return self.registry.data().number, x
        if isinstance(x, list):
            items = [self.node(item) for item in x]
            return self.registry.sequence(item[0] for item in items).number, items
        if isinstance(x, NUMBERS):
            number = self.registry.numbers.get((x.__class__, None))
            return self._constant(x) if number is None else (number, x)
        if isinstance(x, tuple) or (is_struct(x) and not isinstance(x, b.Block)):
            form = Form() if isinstance(x, tuple) else StructForm.of(x)
            parts = [self.node(part) for part in form.opened(x)]
            numbers = tuple(part[0] for part in parts)
            return self.registry.product(form, numbers).number, *parts
        raise TypeError(
            f'expected values, numbers or arrays, in tuples, lists or dicts, got '
            f'{short_repr(x)}{_advice(x)}'
        )

    def _opened(self, node: Node, entry: Entry) -> Any:
        """Return the result of a call: a value, or values in tuples and structs."""
        if not isinstance(entry.type, Product):
            return Value(node, self)
        items = [self.registry.entries[n] for n in entry.items]
        return entry.type.form.closed(self._opened((x.number, node), x) for x in items)

    def _foreign(self, values: Iterable[Value]) -> NoReturn:
        x = next(x for x in values if x.recording is not self)
        raise TypeError(
            f'{x!r}: expected a value of this example, got one that was kept from '
            'another example or model; make it again'
        )

    def tensor_type(self, x: Value) -> TensorType:
        """Return the type of a value; raise AttributeError if that is no tensor."""
        type_ = self.registry.entries[x.node[0]].type
        if not isinstance(type_, TensorType):
            raise AttributeError(f'{x!r}: expected a tensor, got {type_}')
        return type_

    def describe(self, x: Value) -> str:
        """Return the name and type of the call that made a value."""
        entry = self.registry.entries[x.node[0]]
        return (
            entry.name
            if entry.name == repr(entry.type)
            else f'{entry.name}: {entry.type}'
        )


def _holds_values(x: object) -> bool:
    """Return whether there is a value in nested tuples, lists, dicts and structs."""
    waiting = [x]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Value):
            return True
        if isinstance(item, tuple | list):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
        elif is_struct(item):
            waiting += flatten_once(item)[0]
    return False


def _is_generator(x: object) -> bool:
    """Return whether this is what a call of a generator function returns."""
    # A value makes an error with a message for an attribute that it lacks.
    return type(x) is not Value and hasattr(x, 'send')


def _advice(x: object) -> str:
    """Return what to do about an argument that is no value; '' if unknown."""
    if isinstance(x, b.Block):
        return ': call it, or write `return` before what it gives'
    if isinstance(x, str | bytes):
        return ': look up its number first, as in `jf.int32(vocabulary[word])`'
    if _is_generator(x):
        return ': write `yield` before a call of a generator function'
    return ''
