# SPDX-License-Identifier: Apache-2.0
"""What a `Function` may hold, made uniform: `call(params, *inputs)` and `init(key)`.

Flax is looked for among the modules already imported, never imported here: who has a
Flax module has imported Flax.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jfold.combinators import Function
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
                f'the module keeps state beside its parameters, {other}: a block is a '
                'pure function of its parameters and inputs'
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
            'the module keeps state beside its parameters: a block is a pure function '
            'of its parameters and inputs'
        )
    # An NNX module is made with its parameters, so there is nothing to draw.
    return (lambda p, *inputs: nnx.merge(graph, p, rest)(*inputs)), lambda *_: params


# ---- types and arrays ----------------------------------------------------------------


def array_spec(
    shape: tuple[int, ...], dtype: Any, varying: Varying | None = None
) -> jax.ShapeDtypeStruct:
    """Stands for an array while only shapes are looked at."""
    struct: Any = jax.ShapeDtypeStruct
    given = {} if varying is None else {name: x for name, x in varying.options}
    spec: jax.ShapeDtypeStruct = struct(shape, dtype, **given)
    return spec


@dataclass(frozen=True)
class Varying:
    """Over which axes of an enclosing `jax.shard_map` arrays vary."""

    axes: frozenset[Any]
    options: tuple[tuple[str, Any], ...]  # of specs of such arrays


def varying_axes(arrays: Any) -> Varying | None:
    """Over which axes some of the arrays vary."""
    types = list(map(jax.typeof, jax.tree.leaves(arrays)))
    found = max(types, key=lambda t: len(t.manual_axis_type.varying), default=None)
    if found is None or not found.manual_axis_type.varying:
        return None
    everywhere: Any = jax.sharding.PartitionSpec
    sharding = jax.sharding.NamedSharding(found.sharding.mesh, everywhere())
    options = ('sharding', sharding), ('manual_axis_type', found.manual_axis_type)
    return Varying(found.manual_axis_type.varying, options)


def varied(x: Any, varying: Varying | None) -> Any:
    """`x`, of a type that may vary over the given axes.

    Loops need what they carry to be of one type from the start.
    """
    if varying is None:
        return x
    missing = varying.axes.difference(jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(x, tuple(missing), to='varying') if missing else x


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
        raise TypeError(f'expected arrays or tuples of arrays, got {value!r}')
    if rows is None:
        return TensorType(value.shape, value.dtype)
    if value.shape[:1] != (rows,):
        raise TypeError(
            f'expected arrays with a leading axis of {rows} rows, got {value.shape}'
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


def pack(type_: Type, leaves: list[Any]) -> Any:
    """Takes from the front of `leaves` what fills the (nested) tuple `type_`."""
    if isinstance(type_, TupleType):
        return tuple(pack(item, leaves) for item in type_)
    return None if isinstance(type_, VoidType) else leaves.pop(0)
