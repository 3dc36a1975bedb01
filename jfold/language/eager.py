# SPDX-License-Identifier: Apache-2.0
"""The eager twin: runs a typed expression on one example, block by block.

It shares no code with columns, schedules and the runtime, so that it can check them and
so that a user can step through a model. It is slow, on purpose.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import combinators as c
from jfold.errors import shown
from jfold.host.objects import PICK, count_of, length_of, why_no_sequence
from jfold.kept import kept
from jfold.language.infer import infer
from jfold.language.layers import check_layer
from jfold.language.typed import Typed, Typing
from jfold.recursion import Steps, run
from jfold.tracebacks import boundary
from jfold.types import SequenceType, TensorType, TupleType, Type, VoidType


@dataclass(frozen=True, eq=False)
class Eager:
    """One evaluation: the types, the parameters, and what was collected so far.

    Attributes:
      noted: errors on their way out that say which block they come from.
      found: the values of blocks that are used more than once, with what they were
        given; of this item or call alone.
    """

    typing: Typing
    params: dict[str, Any]
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    noted: list[Exception] = field(default_factory=list)
    found: dict[Typed, tuple[Any, Any]] = field(default_factory=dict)


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
    value = run(part(typing.root, example, state))
    return (value, state.metrics) if state.metrics else value


c.Block.eval = evaluate


def part(node: Typed | None, x: Any, state: Eager) -> Steps[Any]:
    """The value of a block inside another; not again, if it is known."""
    assert node is not None
    x = None if isinstance(node.input, VoidType) else x
    if node in state.found and state.found[node][0] is x:
        return state.found[node][1]
    try:
        value = yield steps_of(node.block, node, x, state)
    except Exception as error:
        _note(error, node, x, state)
        raise
    if node.shared:
        state.found[node] = x, value
    return value


def part_anew(node: Typed | None, x: Any, state: Eager) -> Steps[Any]:
    """The same, where the block is given many values, one after another."""
    return part(node, x, replace(state, found={}))


@functools.singledispatch
def steps_of(block: c.Block, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    """The value of one use of a block; of those with others inside, the rules."""
    yield from ()
    return value_of(block, node, x, state)


@functools.singledispatch
def value_of(block: c.Block, node: Typed, x: Any, state: Eager) -> Any:
    """The value of one use of a block without others inside."""
    raise NotImplementedError(f'eager evaluation has no rule for {block!r}')


def _note(error: Exception, node: Typed, x: Any, state: Eager) -> None:
    """Adds to an error in which block, and on what, unless it says so."""
    if any(each is error for each in state.noted):
        return
    if not str(error).startswith(f'{node}: '):
        error.add_note(
            f'{node}: expected what it takes, got {shown(x)}; call '
            '`jf.compile(block).schedule([example])` to see the path in the data'
        )
    state.noted.append(error)


def zeros(type_: Type) -> Any:
    """The zero of a type."""
    return run(_zeros(type_))


def _zeros(type_: Type) -> Steps[Any]:
    if not isinstance(type_, TupleType):
        if isinstance(type_, SequenceType):
            return []
        if isinstance(type_, TensorType):
            return np.zeros(type_.shape, type_.dtype)
        return None
    made = []
    for item in type_:
        made.append((yield _zeros(item)))
    return tuple(made)


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


@steps_of.register
def _(block: c.Pipe, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    for each in node.parts:
        x = yield part(each, x, state)
    return x


@steps_of.register
def _(block: c.AllOf, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    made = []
    for each in node.parts:
        made.append((yield part(each, x, state)))
    return tuple(made)


@steps_of.register
def _(block: c.Record, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    most = None if isinstance(node.input, VoidType) else block.length
    if most is not None and length_of(x) > most:
        raise TypeError(f'{node}: expected {count_of(most)}, got {x!r}; {PICK}')
    made = []
    for (key, _), each in zip(block.fields, node.parts, strict=True):
        item = None if each is None or isinstance(each.input, VoidType) else get(x, key)
        made.append((yield part(each, item, state)))
    return tuple(made)


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


@steps_of.register
def _(block: c.OneOf, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    key, pre, *cases = node.parts
    chosen = block.key_fn(x) if key is None else (yield part(key, x, state))
    target = block.targets[chosen]
    given = x if pre is None else (yield part(pre, x, state))
    case = next(each for each in cases if each and each.block is target)
    return (yield part(case, given, state))


@steps_of.register
def _(block: c.Optional, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    some, none = node.parts
    if x is not None:
        return (yield part(some, x, state))
    return zeros(node.output) if none is None else (yield part(none, None, state))


@steps_of.register
def _(block: c.Reference, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    body = state.typing.declarations[block.declaration].parts[0]
    return (yield part_anew(body, x, state))


@value_of.register
def _(block: c.Metric, node: Typed, x: Any, state: Eager) -> Any:
    state.metrics[block.name].append(x)


@steps_of.register
def _(block: c.Map, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    made = []
    for item in _in_order(node, x):
        made.append((yield part_anew(node.parts[0], item, state)))
    return made


def _in_order(node: Typed, x: Any) -> Any:
    if why := why_no_sequence(type(x)):
        raise TypeError(f'{node}: expected a sequence, got {x!r}; {why}')
    return x


@steps_of.register
def _(block: c.Fold, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    combine, start = node.parts
    value = yield part(start, None, state)
    for item in _in_order(node, x):
        value = yield part_anew(combine, (value, item), state)
    return value


@steps_of.register
def _(block: c.Reduce, node: Typed, x: Any, state: Eager) -> Steps[Any]:
    combine, default = node.parts
    items = list(_in_order(node, x))
    if not items:
        if default is None:
            return zeros(node.output)
        return (yield part(default, None, state))
    while len(items) > 1:
        made = []
        for pair in zip(items[::2], items[1::2], strict=False):
            made.append((yield part_anew(combine, pair, state)))
        items = made + items[len(made) * 2 :]
    return items[0]


@value_of.register
def _(block: c.Length, node: Typed, x: Any, state: Eager) -> Any:
    return np.asarray(len(x), block.type.dtype)
