# SPDX-License-Identifier: Apache-2.0
"""The eager twin: an evaluation of one example in arrays, block by block."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold import blocks as b
from jfold.base.arrays import strong
from jfold.base.errors import BadItem, has_masked, short_repr
from jfold.base.memo import memoized
from jfold.language.function_layers import arguments_of
from jfold.language.inference import infer
from jfold.language.parameter_checks import checked_params
from jfold.language.typed import TypedExpression, TypedUse
from jfold.language.walk import (
    Located,
    Misfit,
    Walk,
    in_tuples,
    misfit,
    plain,
    tensor_leaves,
)
from jfold.tracing.convert import to_bounded
from jfold.types import Product, SequenceType, TensorType, TupleType, Type, pack

Array: TypeAlias = np.ndarray[Any, Any]
# (stream, number of keys drawn from it before in this example) -> key [2] uint32.
Keys = Callable[[str, int], Any]


def typed_expression(block: b.Block) -> TypedExpression:
    """Infer the types of an expression, memoized per value of `jax_enable_x64`."""
    return _typing(block, jax.dtypes.canonicalize_dtype(float))


@memoized
def _typing(block: b.Block, widest: np.dtype[Any]) -> TypedExpression:
    """Infer an expression's types, memoized per `widest`, JAX's widest float dtype.

    Blocks do not change, except unresolved declarations, for which `infer` raises.
    """
    return infer(block)


def evaluate(
    typing: TypedExpression,
    example: object,
    params: Mapping[str, Any] | None = None,
    external: Mapping[str, Any] | None = None,
    keys: Keys | None = None,
) -> Any:
    """Evaluate an expression; return `(value, metrics)`, or `value` without metrics.

    `metrics` maps the name of each metric to the list of its values.

    Args:
      typing: the expression.
      params: parameters by layer name.
      external: external arrays by name.
      keys: makes the keys of random draws; if `None`, layers run in evaluation mode.

    Raises:
      InputError: the example does not fit.
      TypeError: the parameters or external arrays do not fit.
    """
    params = checked_params(typing.layers, params or {}, external)
    params = jax.tree.map(strong, params)
    arrays = Arrays(params, {name: [] for name in sorted(typing.metrics)}, keys)
    try:
        result = Walk(typing, arrays).run(example)
    except Misfit as error:
        input_error = error.input_error().on(example)
        raise input_error from input_error.__cause__
    value = with_structs(typing.root.output, plain(result))
    return (value, arrays.metrics) if arrays.metrics else value


def with_structs(type_: Type, value: Any) -> Any:
    """Turn tuples in a value into dicts and structs, wherever `type_` says so."""
    if isinstance(type_, Product):
        pairs = zip(type_, value, strict=True)
        return type_.form.closed([with_structs(item, x) for item, x in pairs])
    if isinstance(type_, SequenceType):
        return [with_structs(type_.item, item) for item in value]
    return value


@dataclass(eq=False)
class Arrays:
    """An evaluator of one example, with a NumPy or JAX array [*shape] for each tensor.

    Attributes:
      params: parameters by layer name.
      metrics: the values that each metric has collected so far, by name.
      keys: a function that makes random keys (see `Keys`); if `None`, nothing is drawn.
      drawn: the number of keys drawn so far, by stream.
    """

    params: Mapping[str, Any]
    metrics: dict[str, list[Any]]
    keys: Keys | None = None
    drawn: Counter[str] = field(default_factory=Counter)

    def tensor(
        self, node: TypedUse, x: Located, type_: TensorType, below: int | None
    ) -> Array:
        """Convert `x` to a `type_` array, at most rounding floats, or raise `Misfit`.

        Overflow is refused, as are values not in `[0, below)` unless `below` is `None`.
        """
        # What NumPy converts without change is returned. All else is refused below, but
        # for ints beyond 64 bits that a float is equal to.
        array = np.empty(0, object)
        if not has_masked([x.value], len(type_.shape)):
            # The object may be ragged, or its `__array__` raise.
            with contextlib.suppress(Exception):
                array = np.asarray(x.value)
        is_number = array.dtype.kind in 'biufcV' and not array.dtype.names
        if array.shape == type_.shape and is_number:
            with np.errstate(all='ignore'), warnings.catch_warnings(action='ignore'):
                converted = array.astype(type_.dtype)
            if _is_exact(array, converted):
                if below is None:
                    return converted
                outside = [n for n in converted.ravel().tolist() if not 0 <= n < below]
                if not outside:
                    return converted
                text = f'ints from 0 to {below - 1}, as `below={below}` says'
                raise misfit(node, f'expected {text}, got {outside[0]}', x)
        try:  # the engine's conversion has the detailed errors
            converted = to_bounded([x.value], type_, below).reshape(type_.shape)
        except BadItem as error:
            raise misfit(node, str(error), x, error.hint) from error.__cause__
        if array.dtype == object:
            return converted
        raise misfit(node, f'expected {type_}, got {short_repr(x.value)}', x)

    def constant(self, node: TypedUse, value: Array) -> Array:
        """Return the constant `value`, which is an array already."""
        return value

    def call(self, node: TypedUse, x: object) -> Any:
        """Apply the layer of `node` to input `x`; return arrays in nested tuples."""
        layer = node.layer
        assert layer is not None
        arguments = TupleType(arguments_of(node.taken))
        inputs = pack(arguments, map(jnp.asarray, tensor_leaves(node.arranged(x))))
        if layer.batched:  # it takes a batch, here of one example
            inputs = jax.tree.map(lambda a: a[None], inputs)
        call, keys = layer.call, [self._key(name) for name in layer.rngs]
        if self.keys is None:
            call = layer.evaluating or call  # without keys nothing is drawn
        elif layer.batched:
            keys = [key[None] for key in keys]
        result = call(self.params.get(layer.name), *keys, *inputs)
        if layer.batched:
            result = jax.tree.map(lambda a: a[0], result)
        # Without weak types, since arrays in buffers have none.
        arrays = (strong(jnp.asarray(x)) for x in jax.tree.leaves(result))
        return in_tuples(node.output, arrays)

    def _key(self, stream: str) -> Any:
        if self.keys is None:
            return None
        self.drawn[stream] += 1
        return self.keys(stream, self.drawn[stream] - 1)

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> object:
        """Reduce `items` from left to right by the binary function of `combine`."""
        return functools.reduce(lambda x, y: self.call(combine, (x, y)), items)

    def observe(self, node: TypedUse, name: str, x: object) -> None:
        """Append `x` to metric `name`, with dicts and structs in place of tuples."""
        self.metrics[name].append(with_structs(node.input, plain(x)))


def _is_exact(before: Array, after: Array) -> bool:
    """Return whether `after`, a cast of `before`, kept all numbers but for rounding."""
    if before.dtype.kind == 'c' and after.dtype.kind != 'c':
        return False
    if all(jnp.issubdtype(x.dtype, np.inexact) for x in (before, after)):
        return not (np.isfinite(before) & ~np.isfinite(after)).any()
    # Python compares ints and floats exactly, NumPy after rounding.
    return bool(before.tolist() == after.tolist())
