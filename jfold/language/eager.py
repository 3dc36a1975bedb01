# SPDX-License-Identifier: Apache-2.0
"""The eager twin: runs a typed expression on one example, block by block.

It shares no code with columns, schedules and the runtime, so that it can check them and
so that a user can step through a model. It is slow and recursive, on purpose.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import combinators as c
from jfold.errors import shown
from jfold.host.objects import PICK, count_of, length_of, why_no_sequence
from jfold.kept import kept
from jfold.language.constants import is_constant
from jfold.language.infer import Typed, Typing, infer
from jfold.language.layers import check_layer
from jfold.tracebacks import boundary
from jfold.types import SequenceType, TensorType, TupleType, Type


@dataclass(frozen=True, eq=False)
class Eager:
    """One evaluation: the types, the parameters, and what was collected so far.

    Attributes:
      noted: errors on their way out that say which block they come from.
    """

    typing: Typing
    params: dict[str, Any]
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    noted: list[Exception] = field(default_factory=list)


@boundary
def evaluate(block: c.Block, example: Any, params: Any = None) -> Any:
    """Runs a block on one example, without batching.

    Args:
      block: any block that takes Python data, or nothing.
      example: the data.
      params: as `Model.init` returns them; needed if the block has parameters.

    Returns:
      The value: arrays in tuples, lists for sequences. With `Metric` blocks inside, the
      value and a dict of lists.

    Raises:
      TypeError: the block's types clash. Errors about the data are Python's own,
        with a note that names the block.
    """
    return evaluate_typed(
        _typing(block, jax.dtypes.canonicalize_dtype(float)), example, params
    )


@kept
def _typing(block: c.Block, widest: np.dtype[Any]) -> Typing:
    """The types of a block, found once for each width of floats that JAX keeps.

    A block never changes, and one with a declaration that is not resolved raises.
    """
    return infer(block)


def evaluate_typed(typing: Typing, example: Any, params: Any = None) -> Any:
    """`evaluate`, for an expression that is typed already."""
    params = params or {}
    for layer in typing.layers:
        if layer.params is not None and layer.name in params:
            check_layer(layer, params[layer.name])
    state = Eager(typing, params, {name: [] for name in sorted(typing.metrics)})
    value = part(typing.root, example, state)
    return (value, state.metrics) if state.metrics else value


c.Block.eval = evaluate


@functools.singledispatch
def value_of(block: c.Block, node: Typed, x: Any, state: Eager) -> Any:
    """The value of one use of a block."""
    raise NotImplementedError(f'eager evaluation has no rule for {block!r}')


def part(node: Typed | None, x: Any, state: Eager) -> Any:
    """The value of a block inside another."""
    assert node is not None
    try:
        return value_of(node.block, node, x, state)
    except Exception as error:
        _note(error, node, x, state)
        raise


def _note(error: Exception, node: Typed, x: Any, state: Eager) -> None:
    """Adds to an error in which block, and on what, unless it says so."""
    told = str(error).startswith(f'{node}: ')
    if not told and not any(each is error for each in state.noted):
        error.add_note(
            f'{node}: expected what it takes, got {shown(x)}; call '
            '`jf.compile(block).schedule([example])` to see the path in the data'
        )
    state.noted.append(error)


def zeros(type_: Type) -> Any:
    """The zero of a type."""
    if isinstance(type_, TupleType):
        return tuple(map(zeros, type_))
    if isinstance(type_, SequenceType):
        return []
    return np.zeros(type_.shape, type_.dtype) if isinstance(type_, TensorType) else None


@value_of.register
def _(block: c.Tensor, node: Typed, x: Any, state: Eager) -> Any:
    given = np.asarray(x)
    if given.shape == block.type.shape and given.dtype.kind in 'biufcV':
        with np.errstate(all='ignore'), warnings.catch_warnings(action='ignore'):
            made = given.astype(block.type.dtype)
        if _is_same(given, made):
            return made
    raise TypeError(f'{node}: expected {block.type}, got {x!r}')


def _is_same(given: Any, made: Any) -> bool:
    """Whether no number was changed, but for rounding a float to a float."""
    kinds = [jnp.issubdtype(x.dtype, np.inexact) for x in (given, made)]
    if all(kinds):
        complex_lost = given.dtype.kind == 'c' and made.dtype.kind != 'c'
        overflow = np.isfinite(given) & ~np.isfinite(made)
        return not (complex_lost or overflow.any())
    # Python compares ints and floats exactly, NumPy after rounding.
    return bool(given.tolist() == made.tolist())


@value_of.register
def _(block: c.InputTransform, node: Typed, x: Any, state: Eager) -> Any:
    if not isinstance(block.fn, Mapping):
        return block.fn(x)
    return block.fn.get(x, *block.default) if block.default else block.fn[x]


@value_of.register
def _(block: c.FromTensor, node: Typed, x: Any, state: Eager) -> Any:
    return block.value


@value_of.register
def _(block: c.Zeros, node: Typed, x: Any, state: Eager) -> Any:
    return zeros(block.type)


@value_of.register
def _(block: c.Void, node: Typed, x: Any, state: Eager) -> Any:
    return None


@value_of.register
def _(block: c.Identity, node: Typed, x: Any, state: Eager) -> Any:
    return x


@value_of.register
def _(block: c.Function, node: Typed, x: Any, state: Eager) -> Any:
    return call(node, x, state)


def call(node: Typed, x: Any, state: Eager) -> Any:
    """Calls the layer of a node on one example."""
    layer = node.layer
    assert layer is not None
    inputs = x if isinstance(node.input, TupleType) else () if x is None else (x,)
    inputs = jax.tree.map(jnp.asarray, tuple(inputs))
    if layer.batched:
        inputs = jax.tree.map(lambda a: a[None], inputs)
    if layer.params is not None and layer.name not in state.params:
        raise TypeError(
            f'{node}: expected parameters for layer {layer.name!r}, got '
            f'{list(state.params)}; `model.init(key)` makes them'
        )
    result = layer.call(state.params.get(layer.name), *inputs)
    if layer.batched:
        result = jax.tree.map(lambda a: a[0], result)
    return _tuples(jax.tree.map(_strong, result))


def _strong(x: Any) -> jax.Array:
    """An array whose dtype does not give way: weak types do not reach a buffer."""
    return jnp.asarray(x, jnp.result_type(x))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, tuple | list) else value


@value_of.register
def _(block: c.Pipe, node: Typed, x: Any, state: Eager) -> Any:
    return functools.reduce(lambda value, each: part(each, value, state), node.parts, x)


@value_of.register
def _(block: c.AllOf, node: Typed, x: Any, state: Eager) -> Any:
    return tuple(part(each, x, state) for each in node.parts)


@value_of.register
def _(block: c.Record, node: Typed, x: Any, state: Eager) -> Any:
    most = None if is_constant(block) else block.length
    if most is not None and length_of(x) > most:
        raise TypeError(f'{node}: expected {count_of(most)}, got {x!r}; {PICK}')
    return tuple(
        part(each, None if is_constant(inner) else get(x, key), state)
        for (key, inner), each in zip(block.fields, node.parts, strict=True)
    )


def get(x: Any, key: Any) -> Any:
    """A field of a mapping or sequence, or an attribute of an object."""
    try:
        return x[key]
    except TypeError:
        # Attributes of Python's own types are their methods, never data.
        if not isinstance(key, str) or type(x).__module__ == 'builtins':
            raise
        return getattr(x, key)


@value_of.register
def _(block: c.GetItem, node: Typed, x: Any, state: Eager) -> Any:
    if isinstance(node.input, TensorType):
        return call(node, x, state)
    return get(x, block.key)


@value_of.register
def _(block: c.OneOf, node: Typed, x: Any, state: Eager) -> Any:
    key, pre, *cases = node.parts
    chosen = block.key_fn(x) if key is None else part(key, x, state)
    target = block.targets[chosen]
    given = x if pre is None else part(pre, x, state)
    case = next(each for each in cases if each and each.block is target)
    return part(case, given, state)


@value_of.register
def _(block: c.Optional, node: Typed, x: Any, state: Eager) -> Any:
    some, none = node.parts
    if x is not None:
        return part(some, x, state)
    return zeros(node.output) if none is None else part(none, None, state)


@value_of.register
def _(block: c.Reference, node: Typed, x: Any, state: Eager) -> Any:
    return part(state.typing.declarations[block.declaration].parts[0], x, state)


@value_of.register
def _(block: c.Metric, node: Typed, x: Any, state: Eager) -> Any:
    state.metrics[block.name].append(x)


@value_of.register
def _(block: c.Map, node: Typed, x: Any, state: Eager) -> Any:
    return [part(node.parts[0], item, state) for item in _in_order(node, x)]


def _in_order(node: Typed, x: Any) -> Any:
    if why := why_no_sequence(type(x)):
        raise TypeError(f'{node}: expected a sequence, got {x!r}; {why}')
    return x


@value_of.register
def _(block: c.Fold, node: Typed, x: Any, state: Eager) -> Any:
    combine, start = node.parts
    value = part(start, None, state)
    for item in _in_order(node, x):
        value = part(combine, (value, item), state)
    return value


@value_of.register
def _(block: c.Reduce, node: Typed, x: Any, state: Eager) -> Any:
    combine, default = node.parts
    items = list(_in_order(node, x))
    if not items:
        return zeros(node.output) if default is None else part(default, None, state)
    while len(items) > 1:
        items = list(_round(combine, items, state))
    return items[0]


def _round(combine: Typed | None, items: list[Any], state: Eager) -> Iterator[Any]:
    for i in range(0, len(items), 2):
        pair = tuple(items[i : i + 2])
        yield part(combine, pair, state) if len(pair) == 2 else pair[0]


@value_of.register
def _(block: c.Length, node: Typed, x: Any, state: Eager) -> Any:
    return np.asarray(len(x), block.type.dtype)
