# SPDX-License-Identifier: Apache-2.0
"""The recording of a lazy function on one example: values, and nodes of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from traceback import walk_tb
from types import GeneratorType
from typing import Any, NoReturn

import jax
import numpy as np

from jfold import blocks as b
from jfold.base.errors import short_repr
from jfold.base.memo import memoized
from jfold.base.operands import RECORDER
from jfold.base.structs import Form, StructForm, is_struct
from jfold.base.trampoline import MOST_CALLS, Steps, TooDeep, run
from jfold.blocks.lazy import UNFINISHED, Lazy, Node, Value
from jfold.language.lazy_arguments import (
    FIXED,
    NUMBERS,
    SCALARS,
    advice,
    advice_on_error,
    constant_type,
    holds_values,
)
from jfold.language.lazy_registry import (
    Entry,
    GivesObjects,
    NewCall,
    Registry,
    result_type,
)
from jfold.types import ObjectType, Product, TensorType

# By entry number, what records the row of a call: a function of the source, from the
# nodes of the operands to the row numbers of the result.
Functions = Mapping[int, Callable[..., Any]]
NO_FUNCTIONS: Functions = {}
# Where lazy functions call themselves until the stack ends: so many of its last frames,
# the last of which may be JAX's, and more calls among them than this.
FRAMES, CALLS = 300, 10


def _is_of_calls(error: RecursionError) -> bool:
    """Return whether lazy functions call each other where the stack ended."""
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    return codes[-FRAMES:].count(Lazy.__call__.__code__) > CALLS


class Recording:
    """A recording of the block calls that a lazy function makes on one example.

    Attributes:
      registry: the entries of calls.
      functions: what records rows; nothing does while kinds of calls are learned.
      failed: the error of a function whose rows are incomplete, if any: the user's
        code may have caught it.
      observed: per value of a metric, ((name, whether labelled), node, label if any).
      memo: by shared function and ids of its arguments, (result, arguments); the result
        is `UNFINISHED` while the function runs.
    """

    __slots__ = 'calls', 'failed', 'functions', 'memo', 'observed', 'registry', 'tuples'

    def __init__(self, registry: Registry, functions: Functions = NO_FUNCTIONS) -> None:
        self.registry = registry
        self.calls, self.tuples = registry.calls, registry.tuples
        self.functions = functions
        self.failed: BaseException | None = None
        self.observed: list[Node] = []
        self.memo: dict[Any, tuple[Any, ...]] = {}

    def run(self, lazy: Lazy, example: object) -> Node:
        """Run `lazy` on `example`; return the recorded call that made its result.

        Raise TypeError if the result is not made of values.
        """
        token = RECORDER.set(self)
        try:
            value = lazy(example)
            if (
                isinstance(value, GeneratorType)
                and value.gi_code.co_name != '<genexpr>'
            ):
                value = run(value, MOST_CALLS)
            if value is None:
                raise TypeError(
                    f'{lazy!r}: expected a result of values, got None; end every '
                    'branch of the function by `return`'
                )
            node = self.node(value)
        except RecursionError as error:
            # Where rows are recorded their deep form may have room, or the walk raises.
            if self.functions or not _is_of_calls(error):
                raise
            raise TypeError(
                f'{lazy!r}: expected data less deep than calls of Python may be '
                'nested, got deeper ones; write `x = yield f(part)` for each call of '
                'itself, which makes it a generator function without that limit'
            ) from error
        except TooDeep:
            raise TypeError(
                f'{lazy!r}: expected data that end, got more than {MOST_CALLS:,} '
                'calls inside each other; write `@jf.lazy(share=True)`, which tells '
                'data that contain themselves'
            ) from None
        except (TypeError, AttributeError) as error:
            if isinstance(error, AttributeError) and isinstance(error.obj, Value):
                raise AttributeError(error.obj.lacks(error.name)) from error
            if hint := advice_on_error(str(error)):
                raise TypeError(f'{lazy!r}: {hint}') from error
            raise
        finally:
            RECORDER.reset(token)
        if self.failed is not None:
            raise self.failed
        self.registry.end(lazy, node, self.observed)
        return node

    # ---- what lazy functions call

    def call(self, block: b.Block, arguments: tuple[Any, ...]) -> Any:
        """Record a call of `block` on `arguments`, not computed; return its `Value`."""
        try:
            # Most calls have a value, a list of values, or two values. Two of these are
            # written out, since calls of `_node` and `_value` would be felt.
            if len(arguments) == 1:
                (x,) = arguments
                if x.__class__ is Value:
                    if x.recording is self:
                        node = x.node
                        number = self.calls.get((block, node[0]))
                        if number is not None:
                            function = self.functions.get(number)
                            made = node if function is None else function(node)
                            value = Value()
                            value.node, value.recording = (number, made), self
                            return value
                elif x.__class__ is list and x:
                    nodes: list[Node] = []
                    numbers: dict[int, None] = {}
                    for item in x:
                        if item.recording is not self:
                            break
                        node = item.node
                        nodes.append(node)
                        numbers[node[0]] = None
                    else:
                        number = self.calls[list, *numbers]
                        node, number = (number, nodes), self.calls[block, number]
                        function = self.functions.get(number)
                        made = node if function is None else function(node)
                        value = Value()
                        value.node, value.recording = (number, made), self
                        return value
            elif len(arguments) == 2:
                x, y = arguments
                if (
                    x.__class__ is Value is y.__class__
                    and x.recording is self is y.recording
                ):
                    node, other = x.node, y.node
                    number = self.calls.get((block, node[0], other[0]))
                    if number is not None:
                        function = self.functions.get(number)
                        value = Value()
                        value.recording = self
                        value.node = (
                            (number, node, other)
                            if function is None
                            else (number, function(node, other))
                        )
                        return value
            return self._known(block, arguments)
        except (AttributeError, LookupError, TypeError):  # plain data, or a new call
            pass
        except BaseException as failed:
            self.failed = failed
            raise
        return self._call(block, arguments)

    def _known(self, block: b.Block, arguments: tuple[Any, ...]) -> Any:
        """Record a known call on values and tuples of values; return its result.

        Raise LookupError if it is new, or on anything else.
        """
        nodes = []
        for x in arguments:
            if x.__class__ is Value and x.recording is self:
                nodes.append(x.node)
            elif x.__class__ is tuple:  # such as a state of an LSTM
                parts = []
                for part in x:
                    if part.__class__ is not Value or part.recording is not self:
                        raise LookupError
                    parts.append(part.node)
                product = self.calls[(tuple, *[part[0] for part in parts])]
                nodes.append((product, *parts))
            else:
                raise LookupError
        key = (block, *[node[0] for node in nodes])
        number = self.calls.get(key)
        if number is not None:
            return self._value(self._node(number, *nodes))
        number, items = self.tuples[key]
        node = self._node(number, *nodes)
        is_row, values = number in self.functions, []
        for k, item in enumerate(items):
            value = Value()
            value.node = item, node[1][k] if is_row else node
            value.recording = self
            values.append(value)
        return tuple(values)

    def _call(self, block: b.Block, arguments: tuple[Any, ...]) -> Any:
        """Record a call that is new, on data or of a metric; return its result."""
        of_values = self.registry.of_values
        if isinstance(block, b.Function) or block in of_values:
            return self._called(block, arguments)
        if isinstance(block, b.Metric):
            return self._collect(block, arguments)
        if isinstance(block, b.Pipe) and isinstance(block.blocks[-1], b.Metric):
            value = self.call(without_last(block), arguments)
            return self.observe(block.blocks[-1].name, value, ())
        on_data: Exception | None = None
        holding = [*map(holds_values, arguments)]
        try:
            try:
                if ('data',) not in self.registry.known and not all(holding):
                    # An entry for data is added only if the block takes data.
                    entries = self.registry.entries
                    types = (
                        entries[self.node(x)[0]].type if holds else ObjectType()
                        for x, holds in zip(arguments, holding, strict=True)
                    )
                    result_type(block, tuple(types))
                return self._called(block, arguments, takes_data=True)
            except (TypeError, NewCall) as error:
                if isinstance(error, GivesObjects) or all(holding):
                    raise
                on_data = error
            # Numbers and empty lists are data to some blocks, and constants to others.
            try:
                result = self._called(block, arguments)
            except TypeError as error:
                if isinstance(on_data, NewCall):
                    raise on_data from None
                error.add_note(f'or, if it is to run on data: {on_data}')
                raise
        finally:
            on_data = None  # breaks a reference cycle: the error holds this frame
        of_values.add(block)
        return result

    def _called(
        self, block: b.Block, arguments: tuple[Any, ...], takes_data: bool = False
    ) -> Any:
        nodes = [
            x.node
            if x.__class__ is Value and x.recording is self
            else self.node(x, takes_data)
            for x in arguments
        ]
        numbers = tuple([node[0] for node in nodes])
        known = self.registry.known.get((block, *numbers))
        entry = known or self.registry.apply(block, numbers)
        is_row = entry.number in self.functions
        # Functions inside a block that takes data may call blocks for themselves.
        token = RECORDER.set(None) if takes_data else None
        try:
            node = self._node(entry.number, *nodes)
        finally:
            if token is not None:
                RECORDER.reset(token)
        return self._opened(node, entry, is_row)

    def _collect(self, metric: b.Metric, arguments: tuple[Any, ...]) -> None:
        """Observe `arguments` of a `Metric`: a value, and its label if any."""
        if not 1 <= len(arguments) <= 2:
            got = f'{len(arguments)} arguments'
            raise TypeError(
                f'{metric!r}: expected a value, or a value and a label, got {got}; '
                'write several values as a tuple'
            )
        value, *label = arguments
        if label and holds_values(label):
            value, label = arguments, []
        self.observe(metric.name, value, tuple(label))

    def shared(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return a lazy function's result, memoized by identity of the arguments."""
        # A bound method, as a key, tells instances apart and keeps its instance alive.
        one = len(arguments) == 1
        key = (function, id(arguments[0]) if one else (*map(id, arguments),))
        known = self.memo.get(key)
        if known is not None:
            return known[0] if known[0] is not UNFINISHED else _refuse_cycle(arguments)
        # Arguments are kept, so that no other object gets their ids.
        self.memo[key] = UNFINISHED, arguments
        try:
            value = function(*arguments)
        except BaseException:
            del self.memo[key]
            raise
        if value.__class__ is GeneratorType:
            del self.memo[key]
            return self._shared_steps(key, arguments, value)
        self.memo[key] = value, arguments
        return value

    def _shared_steps(
        self, key: Any, arguments: tuple[Any, ...], steps: Steps[Any]
    ) -> Steps[Any]:
        known = self.memo.get(key)
        if known is not None:  # it ran after the call, and before the `yield`
            return known[0] if known[0] is not UNFINISHED else _refuse_cycle(arguments)
        self.memo[key] = UNFINISHED, arguments
        try:
            value = yield steps
        except BaseException:
            del self.memo[key]
            raise
        self.memo[key] = value, arguments
        return value

    def constant(self, value: object, dtype: object) -> Any:
        """Return the `Value` of a number or array `value`, as `dtype` if not `None`."""
        number = self.calls.get((value.__class__, dtype))
        node = self._constant(value, dtype) if number is None else (number, value)
        made = Value()
        made.node, made.recording = node, self
        return made

    def _constant(self, value: Any, dtype: object = None) -> Node:
        if value.__class__ is np.ndarray:
            number = self.calls.get((value.dtype, value.shape, dtype))
            if number is not None:  # copied, since the function may change it
                return self._node(number, value.copy())
        if isinstance(value, Value):
            raise TypeError(f'expected a number or an array, got {value!r}')
        is_fixed, type_ = isinstance(value, FIXED), constant_type(value, dtype)
        number = self.registry.tensor(type_).number
        if type(value) in SCALARS:
            self.calls[value.__class__, dtype] = number
        elif isinstance(value, jax.core.Tracer):
            raise TypeError(
                'expected a number or an array, got one that JAX is tracing; make the '
                'schedule outside of `jax.jit`, and give the function that, or give '
                'the array as a parameter'
            )
        elif not is_fixed:
            if value.__class__ is np.ndarray:
                self.calls[value.dtype, value.shape, dtype] = number
            value = np.array(value)
        return self._node(number, value)

    def observe(self, name: str, value: object, label: tuple[Any, ...]) -> None:
        """Record a value for metric `name`; `label` is `(label,)`, or `()` if none."""
        node = self.node(value)
        self.registry.check_metric(name, node[0])
        self.observed.append(((name, bool(label)), node, *label))

    # ---- values and nodes

    def node(self, x: Any, takes_data: bool = False) -> Node:
        """Return the node of argument `x`: `(entry number, *operands)` of its call.

        `x` is a value, a constant or a container of these. With `takes_data`, an `x`
        without values is an object of the data. The operand of an object or a constant
        is `x` itself. Raise TypeError for any other `x`, or a value of another example.
        """
        if x.__class__ is Value:
            if x.recording is not self:
                raise TypeError(
                    f'{x!r}: expected a value of this example, got one that was kept '
                    'from another example or model; make it again'
                )
            return x.node
        if takes_data and not holds_values(x):
            return self.registry.data().number, x
        number = self.calls.get((x.__class__, None))  # of numbers of Python
        if number is not None:
            return number, x
        if x.__class__ is tuple:
            return self._tuple(x)
        if isinstance(x, list):
            items = [self.node(item) for item in x]
            makers = dict.fromkeys([item[0] for item in items])
            number = self.calls[list, *makers] = self.registry.sequence(makers).number
            return number, items
        if isinstance(x, NUMBERS):
            return self._constant(x)
        if isinstance(x, tuple) or (is_struct(x) and not isinstance(x, b.Block)):
            form = Form() if isinstance(x, tuple) else StructForm.of(x)
            parts = [self.node(part) for part in form.opened(x)]
            numbers = tuple(part[0] for part in parts)
            return self.registry.product(form, numbers).number, *parts
        raise TypeError(
            f'expected values, numbers or arrays, in tuples, lists or dicts, got '
            f'{short_repr(x)}{advice(x)}'
        )

    def _tuple(self, x: tuple[Any, ...]) -> Node:
        """Return the node of a tuple of arguments."""
        parts = [
            part.node
            if part.__class__ is Value and part.recording is self
            else self.node(part)
            for part in x
        ]
        numbers = tuple([part[0] for part in parts])
        number = self.calls.get((tuple, *numbers))
        if number is None:
            number = self.registry.product(Form(), numbers).number
            self.calls[(tuple, *numbers)] = number
        return number, *parts

    def _node(self, number: int, *operands: Any) -> Node:
        """Return the node of a call; record its row if calls of entry `number` do."""
        function = self.functions.get(number)
        if function is None:
            return number, *operands
        try:
            return number, function(*operands)
        except BaseException as error:
            self.failed = error
            raise

    def _value(self, node: Node) -> Value:
        """Return the `Value` that stands for a call's result, one tensor."""
        # No `__init__`: its call would take as long as all the rest.
        value = Value()
        value.node, value.recording = node, self
        return value

    def _opened(self, node: Node, entry: Entry, is_row: bool) -> Any:
        """Return the result of `node`, a call of `entry`: a `Value`, or nested ones.

        If `is_row`, the node has row numbers, and so have the nodes of items.
        """
        if not isinstance(entry.type, Product):
            return self._value(node)
        parts, entries = [], self.registry.entries
        for k, number in enumerate(entry.items):
            part = number, node[1][k] if is_row else node
            item = entries[number]
            is_tensor = item.type.__class__ is TensorType
            parts.append(
                self._value(part) if is_tensor else self._opened(part, item, is_row)
            )
        return entry.type.form.closed(parts)

    def tensor_type(self, x: Value) -> TensorType:
        """Return the type of `x`; raise AttributeError if it is not a tensor."""
        type_ = self.registry.entries[x.node[0]].type
        if not isinstance(type_, TensorType):
            raise AttributeError(f'{x!r}: expected a tensor, got {type_}')
        return type_

    def describe(self, x: Value) -> str:
        """Return a text with the name and type of the call that made `x`."""
        entry = self.registry.entries[x.node[0]]
        is_type = entry.name == repr(entry.type)
        return entry.name if is_type else f'{entry.name}: {entry.type}'


@memoized
def without_last(pipe: b.Pipe) -> b.Block:
    """Return a pipe without its last block, the same at every call."""
    return b.Pipe(*pipe.blocks[:-1])


def _refuse_cycle(arguments: tuple[Any, ...]) -> NoReturn:
    """Raise TypeError: a shared function meets data that it already runs on."""
    raise TypeError(
        'expected data without cycles, got an object that contains itself, '
        f'{short_repr(arguments[0] if arguments else None)}; leave out what '
        'points back, or follow it without `share`, up to a depth'
    )
