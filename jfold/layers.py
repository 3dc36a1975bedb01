# SPDX-License-Identifier: Apache-2.0
"""What a `Function` may hold, made uniform: `call(params, *inputs)` and `init(key)`.

Flax is looked for among the modules already imported, never imported here: who has a
Flax module has imported Flax.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfold.combinators import Function
from jfold.program import Operation
from jfold.types import TensorType, TupleType, Type, VoidType

Init = Callable[..., Any]


def identity(function: Function) -> tuple[Any, ...]:
    """What makes two `Function` blocks one layer: callables, name and options."""
    return (
        _callable_key(function.fn),
        _callable_key(function.init),
        function.name,
        function.batched,
    )


def _callable_key(fn: Any) -> Any:
    # A bound method is a new object at each access; its parts are not.
    if isinstance(fn, types.MethodType):
        return id(fn.__self__), fn.__func__
    return id(fn)


def adapt(function: Function) -> tuple[Callable[..., Any], Init | None]:
    """`call(params, *inputs)` and `init(key, *specs)`, `None` without parameters."""
    fn = function.fn
    if function.init is not None:
        return fn, function.init
    if _is_instance(fn, 'flax.linen'):
        return _linen(fn)
    if _is_instance(fn, 'flax.nnx'):
        return _nnx(fn)
    return (lambda _, *inputs: fn(*inputs)), None


def _is_instance(fn: Any, library: str) -> bool:
    module = getattr(sys.modules.get(library), 'Module', None)
    return module is not None and isinstance(fn, module)


def _linen(module: Any) -> tuple[Callable[..., Any], Init]:
    def init(key: jax.Array, *specs: Any) -> Any:
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), specs)
        variables = module.init(key, *zeros)
        if other := sorted(set(variables) - {'params'}):
            raise TypeError(
                f'expected a module of parameters alone, got state beside them, {other}'
            )
        return variables.get('params', {})

    def call(params: Any, *inputs: Any) -> Any:
        return module.apply({'params': params}, *inputs)

    return call, init


def _nnx(module: Any) -> tuple[Callable[..., Any], Init]:
    nnx = sys.modules['flax.nnx']
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    if jax.tree.leaves(rest):
        raise TypeError(
            'expected a module of parameters alone, got state beside them, such as '
            'that of BatchNorm and Dropout'
        )
    # An NNX module is made with its parameters, so there is nothing to draw.
    return (lambda p, *inputs: nnx.merge(graph, p, rest)(*inputs)), lambda *_: params


# ---- types and arrays ----------------------------------------------------------------


def array_spec(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Stands for an array while only shapes are looked at."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def to_spec(type_: Type, rows: int | None = None) -> Any:
    """A type as `jax.ShapeDtypeStruct`s in tuples, with a leading axis if `rows`."""
    if isinstance(type_, TupleType):
        return tuple(to_spec(item, rows) for item in type_)
    assert isinstance(type_, TensorType)
    leading = () if rows is None else (rows,)
    return array_spec(leading + type_.shape, type_.dtype)


def to_type(value: Any, rows: int | None = None) -> Type:
    """The type of arrays in (nested) tuples or lists; the inverse of `to_spec`.

    Raises:
      TypeError: something else is in there, or the leading axis is not `rows` long.
    """
    if isinstance(value, tuple | list) and value:
        return TupleType(to_type(item, rows) for item in value)
    if not hasattr(value, 'shape') or not hasattr(value, 'dtype'):
        raise TypeError(
            f'expected arrays or tuples of arrays, got {value!r}; return arrays'
        )
    if rows is None:
        return TensorType(value.shape, value.dtype)
    if value.shape[:1] != (rows,):
        raise TypeError(
            f'expected arrays with a leading axis of {rows} rows, got {value.shape}; '
            'give a row for each row, or leave out `batched=True`'
        )
    return TensorType(value.shape[1:], value.dtype)


def arguments_of(type_: Type) -> tuple[Type, ...]:
    """A function's arguments: a tuple is unpacked, void is none."""
    if isinstance(type_, TupleType):
        return type_.items
    return () if isinstance(type_, VoidType) else (type_,)


def result_type(
    call: Callable[..., Any], params: Any, arguments: Sequence[Type], batched: bool
) -> Type:
    """The type that `call(params, *arguments)` gives, found without computing."""
    rows = 2 if batched else None
    specs = [to_spec(argument, rows) for argument in arguments]
    return to_type(jax.eval_shape(call, params, *specs), rows)


def hint(error: Exception, function: Function, given: Type) -> str:
    """What to do about a function that raised on inputs of type `given`."""
    text = str(error)
    if isinstance(given, VoidType):
        sink = "AllOf(Identity(), Metric('name')) >> GetItem(0)"
        return f'put a sink beside the value, as in `{sink}`'
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return 'use jax.numpy, and jnp.where or lax.cond where a value decides'
    if isinstance(error, TypeError) and 'positional argument' in text:
        return (
            'give it as many inputs as it takes, where a tuple counts as several and '
            'parameters come first with `init`'
        )
    if 'state beside' in text:
        return 'use one that is a pure function of its parameters and inputs'
    return ''


def without_gradient(operation: Operation) -> Exception | None:
    """What an operation raises where its gradient is asked for."""
    layer = operation.layer
    rows = 2 if layer.batched else None
    specs = [to_spec(argument, rows) for argument in operation.arguments]

    def reverse(*inputs: Any) -> Any:
        output, pull = jax.vjp(layer.call, *inputs)
        return pull(output)

    try:
        jax.eval_shape(reverse, layer.params, *specs)
    except Exception as error:
        return error
    return None


def pack(type_: Type, leaves: list[Any]) -> Any:
    """Takes from the front of `leaves` what fills the (nested) tuple `type_`."""
    if isinstance(type_, TupleType):
        return tuple(pack(item, leaves) for item in type_)
    return None if isinstance(type_, VoidType) else leaves.pop(0)
