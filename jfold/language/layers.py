# SPDX-License-Identifier: Apache-2.0
"""What a `Function` may hold, made uniform: `call(params, *inputs)` and `init(key)`.

Flax is looked for among the modules already imported, never imported here: who has a
Flax module has imported Flax.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import types
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jfold.combinators import Function
from jfold.external import Rows, shown_rows
from jfold.language.signatures import call_hint, check_init, takes_specs
from jfold.operations import PROBES, Layer
from jfold.printing import callable_name
from jfold.types import TensorType, TupleType, Type, VoidType

Init: TypeAlias = Callable[..., Any]
Struct: TypeAlias = jax.ShapeDtypeStruct
Specs: TypeAlias = 'Struct | tuple[Specs, ...]'  # of a value: an array or a tuple
Path: TypeAlias = tuple[Any, ...]  # of keys, as JAX gives them


def identity(function: Function) -> Hashable:
    """What makes two `Function` blocks one layer: callables, name and options."""
    callables = map(_callable_key, (function.fn, function.init))
    return *callables, function.name, function.batched


def _callable_key(fn: object) -> Hashable:
    if isinstance(fn, Rows):
        return fn
    # A bound method is a new object at each access; its parts are not.
    if isinstance(fn, types.MethodType):
        return id(fn.__self__), fn.__func__
    return id(fn)


def adapt(function: Function) -> tuple[Callable[..., Any], Init | None]:
    """`call(params, *inputs)` and `init(key, *specs)`, `None` without parameters."""
    fn = function.fn
    if isinstance(fn, Rows):
        return fn, None
    if function.init is not None:
        init = function.init
        return fn, init if takes_specs(init) else lambda key, *_: init(key)
    if _is_instance(fn, 'flax.linen'):
        return _linen(fn)
    if _is_instance(fn, 'flax.nnx'):
        return _nnx(fn)
    return (lambda _, *inputs: fn(*inputs)), None


def _is_instance(fn: object, library: str) -> bool:
    module = getattr(sys.modules.get(library), 'Module', None)
    return module is not None and isinstance(fn, module)


def _linen(module: Any) -> tuple[Callable[..., Any], Init]:
    def init(key: jax.Array, *specs: Specs) -> Any:
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


def make_layer(function: Function, arguments: Sequence[Type]) -> Layer:
    """The layer of a function that is first used on inputs of these types."""
    check_init(function, len(arguments))
    call, init = adapt(function)
    own = callable_name(function.fn)
    name, family = function.name or own, '' if function.name else own
    if isinstance(function.fn, Rows):
        return Layer(name, call, None, function.fn.spec, external=True)
    if init is None:
        return Layer(name, call, None, None, function.batched, family)
    specs = [to_spec(argument) for argument in arguments]
    params = jax.eval_shape(lambda key: init(key, *specs), jax.random.key(0))
    if not jax.tree.leaves(params):
        empty = jax.tree.structure(params)
        bare = functools.partial(call, jax.tree.unflatten(empty, []))
        return Layer(name, lambda _, *x: bare(*x), None, None, function.batched, family)
    draw = functools.partial(_draw, init, specs)
    return Layer(name, call, draw, params, function.batched, family)


def _draw(init: Init, specs: list[Specs], key: jax.Array) -> Any:
    return jax.tree.map(jnp.asarray, init(key, *specs))


# ---- names ---------------------------------------------------------------------------


def numbered(layers: Mapping[Layer, Function]) -> dict[Layer, Layer]:
    """Layers with names that differ: later ones of a name get a number.

    Those without parameters come last, since nobody stores anything under their names.
    """
    _check_externals([layer for layer in layers if layer.external])
    # What a user passes by name keeps it.
    order = sorted(
        layers, key=lambda x: (not x.external, x.params is None, *_place(layers[x]))
    )
    names = {layer.name for layer in layers}
    numbers = {name: itertools.count(1) for name in names}
    free, made = set(names), {}
    for layer in order:
        name = layer.name
        if name not in free:
            tries = (f'{layer.name}_{number}' for number in numbers[name])
            name = next(each for each in tries if each not in names)
        free.discard(name)
        names.add(name)
        made[layer] = dataclasses.replace(layer, name=name)
    return made


def _check_externals(layers: Iterable[Layer]) -> None:
    found: dict[str, Layer] = {}
    for layer in layers:
        known = found.setdefault(layer.name, layer)
        if known is not layer:
            one, other = (shown_rows(x.params) for x in (known, layer))
            raise TypeError(
                f'External({layer.name!r}): expected rows of one type, got {one} and '
                f'{other}; give arrays of other types other names'
            )


def _place(function: Function) -> tuple[Any, ...]:
    """Where the code of a function and of its `init` stands."""
    return *_place_of_code(function.fn), *_place_of_code(function.init)


def _innermost(fn: object, limit: int = 32) -> object:
    """The function inside of partials, methods and wrappers, of so many at most."""
    for _ in range(limit):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        else:
            fn = getattr(fn, '__wrapped__', fn)
    return fn


def _place_of_code(fn: object) -> tuple[str, int, tuple[int, int]]:
    fn = _innermost(fn)
    if not isinstance(fn, types.FunctionType):
        return '', 0, (0, 0)
    code = fn.__code__
    columns = ((x, y) for x, _, y, _ in code.co_positions() if x and y)
    return fn.__module__ or '', code.co_firstlineno, min(columns, default=(0, 0))


# ---- types and arrays ----------------------------------------------------------------


def to_spec(type_: Type, rows: int | None = None) -> Specs:
    """A type as `jax.ShapeDtypeStruct`s in tuples, with a leading axis if `rows`."""
    if isinstance(type_, TupleType):
        return tuple(to_spec(item, rows) for item in type_)
    assert isinstance(type_, TensorType)
    leading = () if rows is None else (rows,)
    return Struct(leading + type_.shape, type_.dtype)  # type: ignore[no-untyped-call]


def to_type(value: object, rows: int | None = None) -> Type:
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
    """The type that `call(params, *arguments)` gives, found without computing.

    A function of whole tiles is tried on tiles of several numbers of rows, since a
    result may have an axis that is just as long as one of them.

    Raises:
      TypeError: it gives something else than arrays, or no row for each row.
    """
    found = {}
    for rows in PROBES if batched else (None,):
        specs = [to_spec(argument, rows) for argument in arguments]
        found[rows] = to_type(jax.eval_shape(call, params, *specs), rows)
    if len(set(found.values())) > 1:
        given = ', '.join(f'{type_} of {rows}' for rows, type_ in found.items())
        raise TypeError(
            f'expected rows of one type for any number of rows, got {given}; make each '
            'row of the same row of the inputs alone, or leave out `batched=True`'
        )
    return next(iter(found.values()))


def hint(error: Exception, function: Function, given: Type) -> str:
    """What to do about a function that raised on inputs of type `given`."""
    text = str(error)
    if isinstance(given, VoidType):
        sink = "AllOf(Identity(), Metric('name')) >> GetItem(0)"
        return f'put a sink beside the value, as in `{sink}`'
    if isinstance(function.fn, type) and function.init is None:
        return f'pass what it makes, `{callable_name(function.fn)}(...)`'
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return 'use jax.numpy, and jnp.where or lax.cond where a value decides'
    if 'state beside' in text:
        return 'use one that is a pure function of its parameters and inputs'
    parts = isinstance(given, TupleType)
    return call_hint(error, function, len(arguments_of(given)), parts)
