# SPDX-License-Identifier: Apache-2.0
"""The eager twin: runs a typed expression on one example, block by block.

It shares no code with columns, schedules and the runtime, so that it can check them and
so that a user can step through a model. It is slow, on purpose.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import combinators as c
from jfold.errors import shown
from jfold.host.objects import ABSENT
from jfold.kept import kept
from jfold.language.inference import infer
from jfold.language.parameter_checks import check_families, check_layer, with_external
from jfold.language.typed import Typed, Typing
from jfold.trampoline import Steps, in_turn, run
from jfold.types import (
    Product,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    pack,
)


@dataclass(eq=False)
class Eager:
    """One evaluation: the types, the parameters, and what was collected so far.

    Attributes:
      noted: errors on their way out that say which block they come from.
      calls: of declarations, with the ids of what they were given, that have not
        returned.
      once: by a shared block and a key, the object and, once there is one, its value.
      found: the values of blocks that are used more than once, with what they were
        given; of this item or call alone.
    """

    typing: Typing
    params: Mapping[str, Any]
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    noted: list[Exception] = field(default_factory=list)
    calls: set[tuple[Any, ...]] = field(default_factory=set)
    once: dict[Any, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict)
    found: dict[Typed, tuple[Any, Any]] = field(default_factory=dict)


def typing_of(block: c.Block) -> Typing:
    """The types of a block."""
    return _typing(block, jax.dtypes.canonicalize_dtype(float))


@kept
def _typing(block: c.Block, widest: np.dtype[Any]) -> Typing:
    """The types of a block, found once for each width of floats that JAX keeps.

    A block never changes, and one with a declaration that is not resolved raises.
    """
    return infer(block)


def evaluate_typed(
    typing: Typing,
    example: object,
    params: Mapping[str, Any] | None = None,
    external: Mapping[str, Any] | None = None,
) -> Any:
    """The value of an expression that is typed already, where nothing is drawn."""
    params = with_external(typing.layers, params or {}, external)
    known = {layer.name: layer for layer in typing.layers if layer.params is not None}
    for name in known.keys() & params.keys():  # others may not be needed
        check_layer(known[name], params[name])
    check_families(known, params)
    state = Eager(typing, params, {name: [] for name in sorted(typing.metrics)})
    value = run(eval_part(typing.root, example, state))
    return (value, state.metrics) if state.metrics else value


def eval_part(node: Typed | None, x: object, state: Eager) -> Steps[Any]:
    """The value of a block inside another; not again, if it is known."""
    assert node is not None
    x = None if isinstance(node.input, VoidType) else x
    # What it was given is compared too, so that the twin does not rest on the typing.
    if node in state.found and state.found[node][0] is x:
        return state.found[node][1]
    rule = value_of.dispatch(type(node.block))
    try:
        value = rule(node.block, node, x, state)
        if inspect.isgeneratorfunction(rule):  # a value may be a generator too
            value = yield value
    except Exception as error:
        _note(error, node, x, state)
        raise
    if node.shared:
        state.found[node] = x, value
    return value


def eval_anew(node: Typed | None, x: object, state: Eager) -> Steps[Any]:
    """The same, where the block is given many values, one after another."""
    return eval_part(node, x, replace(state, found={}))


@functools.singledispatch
def value_of(block: c.Block, node: Typed, x: object, state: Eager) -> object:
    """The value of one use of a block; evaluates the blocks inside by steps."""
    raise NotImplementedError(f'eager evaluation has no rule for {block!r}')


def _note(error: Exception, node: Typed, x: object, state: Eager) -> None:
    """Adds to an error in which block, and on what, unless it says so."""
    # On its way out an error passes every block around it; the innermost says most.
    if any(each is error for each in state.noted):
        return
    if not str(error).startswith(f'{node}: '):
        error.add_note(
            f'{node}: expected what it takes, got {shown(x)}; call '
            '`jf.compile(block).schedule([example])` to see the path in the data'
        )
    state.noted.append(error)


def zeros(type_: Type) -> object:
    """The zero of a type."""
    return run(_zeros(type_))


def _zeros(type_: Type) -> Steps[Any]:
    if isinstance(type_, Product):
        return type_.form.closed((yield in_turn(map(_zeros, type_))))
    if isinstance(type_, SequenceType):
        return []
    if isinstance(type_, TensorType):
        return np.zeros(type_.shape, type_.dtype)
    return None


def call(node: Typed, x: Any, state: Eager) -> object:
    """Calls the layer of a node on one example."""
    layer = node.layer
    assert layer is not None
    inputs = x if isinstance(node.input, TupleType) else () if x is None else (x,)
    inputs = jax.tree.map(jnp.asarray, tuple(inputs))
    if layer.batched:
        inputs = jax.tree.map(lambda a: a[None], inputs)
    if layer.params is not None and layer.name not in state.params:
        if layer.external:
            check_layer(layer, None)
        raise TypeError(
            f'{node}: expected parameters for layer {layer.name!r}, got '
            f'{list(state.params)}; `model.init(key)` makes them'
        )
    call = layer.evaluating or layer.call  # without keys nothing is drawn
    keys = (None for _ in layer.rngs)
    result = call(state.params.get(layer.name), *keys, *inputs)
    if layer.batched:
        result = jax.tree.map(lambda a: a[0], result)
    return pack(node.output, map(strong, jax.tree.leaves(result)))


def strong(x: jax.Array) -> jax.Array:
    """An array whose dtype does not give way: weak types do not reach a buffer."""
    return jnp.asarray(x, jnp.result_type(x))


def get_or(x: Any, key: object, default: tuple[Any, ...]) -> object:
    """The same, or the default, if there is one, of what lacks it."""
    try:
        return get(x, key)
    except ABSENT:
        if not default:
            raise
        return default[0]


def get(x: Any, key: object) -> object:
    """A field of a mapping or sequence, or an attribute of an object."""
    try:
        return x[key]
    except TypeError:
        # Attributes of Python's own types are their methods, never data.
        if not isinstance(key, str) or type(x).__module__ == 'builtins':
            raise
        return getattr(x, key)
