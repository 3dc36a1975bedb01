# SPDX-License-Identifier: Apache-2.0
"""The layers of `Function` blocks: callables as `call(params, *inputs)`, and names."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp

from jfold.base.arrays import array_spec, strong
from jfold.base.keys import as_key
from jfold.base.printing import callable_name
from jfold.base.structs import StructForm, flatten_once, is_struct
from jfold.blocks.inputs import Rows, shown_rows
from jfold.combinators import Function
from jfold.language.flax_modules import (
    Called,
    Streams,
    called,
    check_closed_over,
    check_shared_variables,
    is_module,
    module_of,
)
from jfold.language.forwarding import Forwarding, forwarding_of
from jfold.language.signatures import call_hint, check_init, takes_specs
from jfold.program.operations import ADD, MAXIMUM, MINIMUM, PROBES, Layer
from jfold.types import (
    KeyType,
    StructType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    pack,
    tensors,
)

if TYPE_CHECKING:
    from chex import ArrayTree

Specs: TypeAlias = Any  # a `jax.ShapeDtypeStruct`, or several in tuples and structs
COMBINING = (  # binary functions, each with its `Layer.combines`
    *((jnp.add, ADD), (operator.add, ADD)),
    *((jnp.maximum, MAXIMUM), (jnp.minimum, MINIMUM)),
)
TUPLES = (
    'take an item of a tuple by its place, as `x[0]`, or give it what a function '
    'returns as a dict'
)


def layer_key(function: Function) -> Hashable:
    """Return a hashable key, equal for `Function` blocks that are the same layer.

    Options have to be equal, and callables the same objects, or equal `External` ones.
    """
    keys: list[Hashable] = []
    for fn in function.fn, function.init:
        if isinstance(fn, Rows):
            keys.append(fn)
        # A bound method is a new object at each access; its parts are not.
        elif isinstance(fn, types.MethodType):
            keys.append((id(fn.__self__), fn.__func__))
        else:
            keys.append(id(fn))
    return *keys, function.name, function.batched, function.rngs


def adapt(function: Function) -> Called:
    """Wrap the callable of a `Function` block in the uniform signature of `Called`."""
    fn, init = function.fn, function.init
    uniform = called(fn)
    if uniform is None and init is None:
        uniform = Called(lambda _, inputs, keys: fn(*inputs, **keys))
    elif uniform is None:
        uniform = Called(lambda params, inputs, keys: fn(params, *inputs, **keys))
    if init is not None:
        drawn = init if takes_specs(init) else lambda key, *_: init(key)
        uniform = dataclasses.replace(uniform, init=drawn)
    if rngs := tuple(function.rngs):
        uniform = dataclasses.replace(uniform, draws=lambda *_: rngs)
    return uniform


def make_layer(function: Function, arguments: Sequence[Type]) -> Layer:
    """Return the layer of a function, with parameter specs for these argument types.

    Raises:
      TypeError: `init` does not take these inputs, a batched Flax module draws, or the
        function reads a module with parameters that nobody would train.
    """
    check_init(function, len(arguments))
    if function.init is None:
        check_closed_over(function.fn)
    module = module_of(function.fn)
    name = function.name or callable_name(module)
    combines = next((name for fn, name in COMBINING if fn is function.fn), '')
    if isinstance(function.fn, Rows):
        return Layer(name, function.fn, None, function.fn.spec, external=True)
    uniform = adapt(function)
    draw, params = None, None
    if uniform.init is not None:
        draw = functools.partial(_draw, uniform.init, [*map(to_spec, arguments)])
        params = jax.eval_shape(draw, jax.random.key(0))
    has_params = bool(jax.tree.leaves(params))
    none = None if has_params else params
    calling = functools.cache(functools.partial(_layer_call, uniform, none))
    rows = 2 if function.batched else None  # any number will do
    rngs = uniform.draws(calling, params, [to_spec(x, rows) for x in arguments])
    if function.batched and is_module(module) and rngs:
        raise TypeError(
            f'expected a module that draws, {list(rngs)}, on one example, got '
            '`batched=True`, where each row has a key of its own: leave it out'
        )
    return Layer(
        name,
        calling(rngs),
        draw if has_params else None,
        params if has_params else None,
        function.batched,
        rngs=rngs,
        evaluating=calling(rngs, evaluates=True) if rngs else None,
        owner=(id(module), function.name) if has_params and is_module(module) else None,
        combines='' if function.init is not None else combines,
    )


def _layer_call(
    uniform: Called, none: ArrayTree | None, rngs: Streams, evaluates: bool = False
) -> Callable[..., Any]:
    """Return a layer's call of `uniform`: (params, *keys, *inputs) -> outputs.

    There is a key, [2] uint32, for each of `rngs`. In place of params `None`, `uniform`
    gets `none`: the tree without arrays that `init` returned. If the call `evaluates`,
    it draws nothing and ignores its keys.
    """

    def call(params: ArrayTree | None, *arrays: jax.Array) -> ArrayTree:
        pairs = zip(rngs, arrays, strict=False)
        keys = {name: None if evaluates else as_key(x) for name, x in pairs}
        inputs = arrays[len(rngs) :]
        return uniform.call(none if params is None else params, inputs, keys)

    return call


def _draw(init: Any, specs: Sequence[Specs], key: jax.Array) -> object:
    return jax.tree.map(lambda x: strong(jnp.asarray(x)), init(key, *specs))


# ---- types and arrays ----------------------------------------------------------------


def to_spec(type_: Type, rows: int | None = None) -> Specs:
    """Convert a type to nested `ShapeDtypeStruct`s, led by an axis `rows` if given."""
    leading = () if rows is None else (rows,)
    specs = (array_spec(leading + x.shape, x.dtype) for x in tensors(type_))
    return pack(type_, specs)


def to_type(value: object, rows: int | None = None) -> Type:
    """Convert nested arrays or specs to a type, dropping leading axis `rows` if given.

    This is the inverse of `to_spec`. Raise TypeError if `value` holds something else,
    or a leading axis is not `rows` long.
    """
    if isinstance(value, tuple | list) and value:
        return TupleType(to_type(item, rows) for item in value)
    if is_struct(value) and (parts := flatten_once(value)[0]):
        return StructType(StructForm.of(value), (to_type(x, rows) for x in parts))
    if not hasattr(value, 'shape') or not hasattr(value, 'dtype'):
        raise TypeError(
            f'expected arrays, or tuples or dicts of arrays, got {value!r}; return '
            'arrays'
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
    """Return the types of arguments: a tuple's items, none for void, else `type_`."""
    if isinstance(type_, TupleType):
        return type_.items
    return () if isinstance(type_, VoidType) else (type_,)


def trace_layer(layer: Layer, arguments: tuple[Type, ...]) -> tuple[Type, Forwarding]:
    """Trace a layer; return its result type and which outputs are inputs or constants.

    `arguments` are types: nothing is computed. A batched function is traced at several
    numbers of rows, since a result may have an axis that happens to be as long as one
    of them. Raise TypeError if it returns anything but arrays, or not one row for each
    input row.
    """
    types_by_rows, traces = {}, []
    taken = *map(KeyType, layer.rngs), *arguments
    for rows in PROBES if layer.batched else (None,):
        trace = jax.make_jaxpr(layer.call, return_shape=True)
        closed, value = trace(layer.params, *(to_spec(x, rows) for x in taken))
        types_by_rows[rows] = to_type(value, rows)
        traces.append(closed)
    if len(set(types_by_rows.values())) > 1:
        shown = ', '.join(f'{x} of {rows}' for rows, x in types_by_rows.items())
        raise TypeError(
            f'expected rows of one type for any number of rows, got {shown}; make each '
            'row of the same row of the inputs alone, or leave out `batched=True`'
        )
    result = next(iter(types_by_rows.values()))
    return result, forwarding_of(layer, traces, arguments, result)


# ---- names and shared parameters -----------------------------------------------------


class LazyCalls:
    """The base class of `lazy_expression.Reader`, for modules that may not import it.

    Attributes:
      ranks: by `layer_key`, a number: layers of one name are numbered in this order, as
        in `dense` and `dense_1`.
      placed: a function of an example that returns its calls, as nodes with lines.
      raised: (example, place, message) -> an error with this message, raised by the
        function in the call at this place; `None` if it does not get there.
      line_of: (error or `None`) -> ', in line 3 of f.py, ...', where the function
        raised it.
    """

    ranks: Mapping[Hashable, int]
    placed: Any
    raised: Any
    line_of: Any


def with_unique_names(
    layers: Mapping[Layer, Function], ranks: Mapping[Hashable, int]
) -> dict[Layer, Layer]:
    """Return a renamed copy of each layer; a second `dense` becomes `dense_1`.

    Layers of one owner, as methods of one module, share a name and parameters. Layers
    without parameters are numbered last, since nothing is stored under their names. The
    rest are numbered by `ranks` (see `LazyCalls`), then in the order of `layers`.

    Raises:
      TypeError: two external arrays have one name and rows of different types, or two
        NNX modules share a parameter.
    """
    _check_externals([layer for layer in layers if layer.external])
    check_shared_variables(function.fn for function in layers.values())
    groups: dict[Hashable, list[Layer]] = {}
    for layer in layers:
        owner = layer if layer.owner is None else layer.owner
        groups.setdefault(owner, []).append(layer)

    def place(group: list[Layer]) -> tuple[bool, bool, int]:
        rank = min(ranks.get(layer_key(layers[x]), len(ranks)) for x in group)
        # External arrays first: users pass them by name, so they have to keep theirs.
        return not group[0].external, group[0].params is None, rank

    names = {layer.name for layer in layers}
    numbers = {name: itertools.count(1) for name in names}
    free, result = set(names), dict[Layer, Layer]()
    for group in sorted(groups.values(), key=place):
        name = group[0].name
        if name not in free:
            tries = (f'{name}_{number}' for number in numbers[name])
            name = next(x for x in tries if x not in names)
        free.discard(name)
        names.add(name)
        result |= {layer: _joint_layer(layer, group, name) for layer in group}
    return {layer: result[layer] for layer in layers}


def _joint_layer(layer: Layer, group: list[Layer], name: str) -> Layer:
    """Return `layer`, called `name`, with the parameters of all layers of `group`."""
    if len(group) == 1:
        return dataclasses.replace(layer, name=name)

    def init(key: jax.Array) -> ArrayTree:
        return functools.reduce(_merge, [x.init(key) for x in group if x.init])

    params = functools.reduce(_merge, [x.params for x in group])
    return dataclasses.replace(layer, name=name, params=params, init=init)


def _merge(one: Any, other: Any) -> object:
    """Return the union of parameter trees: `one`, and the leaves that `other` adds."""
    trees: list[Any] = [jax.tree.structure(x) for x in (one, other)]
    if trees[0] == trees[1]:  # always so for NNX
        return one
    shared = {k: _merge(one[k], other[k]) for k in one.keys() & other.keys()}
    return {**one, **other, **shared}


def _check_externals(layers: Iterable[Layer]) -> None:
    first_of: dict[str, Layer] = {}
    for layer in layers:
        if (known := first_of.setdefault(layer.name, layer)) is not layer:
            one, other = (shown_rows(x.params) for x in (known, layer))
            raise TypeError(
                f'External({layer.name!r}): expected rows of one type, got {one} and '
                f'{other}; give arrays of other types other names'
            )


# ---- advice --------------------------------------------------------------------------

# Advice on errors of Python and JAX, by a phrase of their text.
ADVICE = {
    'on unbound modules': 'give Function the module itself, as `Function(Dense(3))`, '
    'or write a module that calls it',
    'sorting pytree dictionary keys': 'write keys that can be sorted, such as names',
    'is not a valid JAX type': 'return arrays, in tuples or dicts, or in a class that '
    'JAX knows, as by `jax.tree_util.register_dataclass`',
    'must be an integer or unsigned integer': "make it an int: write `Scalar('int32')`",
    'must have ndim at least 1': 'give it a vector: write `Vector(n)` for `Scalar()`',
    "<class 'dict'>": 'take an item of a dict by its key in a function of your own',
    'tuple indices must be': TUPLES,
    "'tuple' object has no attribute": TUPLES,
}


def hint(error: Exception, function: Function, type_: Type) -> str:
    """Return advice on `error`, which a function raised on `type_`; '' if none."""
    if isinstance(type_, VoidType):
        sink = "AllOf(Identity(), Metric('name')) >> GetItem(0)"
        return f'give it an input; put a sink beside the value, as in `{sink}`'
    if isinstance(function.fn, type) and function.init is None:
        return f'pass what it makes, `{callable_name(function.fn)}(...)`'
    if isinstance(error, jax.errors.KeyReuseError):
        return 'split the key: each half is used once'
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return 'use jax.numpy, and jnp.where or lax.cond where a value decides'
    if isinstance(type_, StructType) and isinstance(error, TypeError | AttributeError):
        return (
            'it is one argument, as in `fn(x)`: take an item by '
            f'`GetItem({type_.form.keys[0]!r})`, or several by a Record with their keys'
        )
    if phrase := next((x for x in ADVICE if x in str(error)), ''):
        return ADVICE[phrase]
    arguments = arguments_of(type_)
    is_ours = str(error).startswith('expected ')  # and has advice already
    is_of_shape = isinstance(error, TypeError | ValueError | IndexError) and not is_ours
    is_of_module = is_module(module_of(function.fn))
    if TensorType([]) in arguments and is_of_module and is_of_shape:
        return 'give it a vector: write `Vector(n)`, with n=1 for a number'
    return call_hint(error, function, len(arguments), isinstance(type_, TupleType))
