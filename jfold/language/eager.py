# SPDX-License-Identifier: Apache-2.0
"""The eager twin: an expression walked with arrays in the place of tensors."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import blocks as b
from jfold.base.errors import MASKED, BadItem, short_repr, some_masked
from jfold.base.memo import memoized
from jfold.base.trampoline import Steps, in_turn, run
from jfold.language.inference import infer
from jfold.language.layer_names import arguments_of
from jfold.language.parameter_checks import check_params, with_external
from jfold.language.typed import Typed, Typing
from jfold.language.walk import (
    At,
    Misfit,
    Walk,
    in_tuples,
    misfit,
    plain,
    tensors_in,
)
from jfold.tracing.convert import to_array
from jfold.types import Product, SequenceType, TensorType, TupleType, Type, pack

Array = np.ndarray[Any, Any]
# The numbers [2] of a key of a stream, given its number in the example.
Keys = Callable[[str, int], Any]


def typing_of(block: b.Block) -> Typing:
    """The types of a block."""
    return _typing(block, jax.dtypes.canonicalize_dtype(float))


@memoized
def _typing(block: b.Block, widest: np.dtype[Any]) -> Typing:
    """The types of a block, found once for each width of floats that JAX keeps.

    A block never changes, and one with a declaration that is not resolved raises.
    """
    return infer(block)


def evaluate(
    typing: Typing,
    example: object,
    params: Mapping[str, Any] | None = None,
    external: Mapping[str, Any] | None = None,
    keys: Keys | None = None,
) -> Any:
    """The value of an expression that is typed already.

    Args:
      keys: of what is drawn; nothing is, without.

    Raises:
      InputError: the example does not fit.
    """
    params = with_external(typing.layers, params or {}, external)
    check_params(typing.layers, params)
    arrays = Arrays(params, {name: [] for name in sorted(typing.metrics)}, keys)
    try:
        made = Walk(typing, arrays).run(example)
    except Misfit as error:
        raise error.told() from error.__cause__
    value = closed(typing.root.output, plain(made))
    return (value, arrays.metrics) if arrays.metrics else value


def closed(type_: Type, value: object) -> Any:
    """A value of a walk as functions and callers have it: structs are no tuples."""
    return run(_closed(type_, value))


# Values have the structure of the expression, so Python's stack is not used for them.
def _closed(type_: Type, value: Any) -> Steps[Any]:
    if isinstance(type_, Product):
        pairs = zip(type_, value, strict=True)
        parts = yield in_turn(_closed(each, part) for each, part in pairs)
        return type_.form.closed(parts)
    if isinstance(type_, SequenceType):
        return list((yield in_turn(_closed(type_.item, item) for item in value)))
    return value


@dataclass(eq=False)
class Arrays:
    """Tensors that are arrays.

    Attributes:
      metrics: what was collected so far.
      drawn: how many keys of each stream.
    """

    params: Mapping[str, Any]
    metrics: dict[str, list[Any]]
    keys: Keys | None = None
    drawn: Counter[str] = field(default_factory=Counter)

    def tensor(self, node: Typed, x: At, type_: TensorType, below: int | None) -> Array:
        """An object as an array of just this type."""
        if some_masked([x.value], len(type_.shape)):
            raise misfit(
                node, f'expected {type_}, got {short_repr(x.value)}, {MASKED}', x
            )
        try:
            given = np.asarray(x.value)
        except Exception:  # of what is ragged, or of its `__array__`
            given = np.empty(0, object)
        if given.shape == type_.shape and given.dtype.kind in 'biufcV':
            with np.errstate(all='ignore'), warnings.catch_warnings(action='ignore'):
                made = given.astype(type_.dtype)
            if below is not None and not all(0 <= each < below for each in given.flat):
                text = f'ints from 0 to {below - 1}, as `below={below}` says'
                raise misfit(node, f'expected {text}, got {short_repr(x.value)}', x)
            if _is_same(given, made):
                return made
        try:  # the engine says why
            to_array([x.value], type_)
        except BadItem as error:
            raise misfit(node, str(error), x, error.hint) from error.__cause__
        raise misfit(node, f'expected {type_}, got {short_repr(x.value)}', x)

    def constant(self, node: Typed, value: Array) -> Array:
        """An array of the program."""
        return value

    def length(self, node: Typed, n: int, type_: TensorType) -> Array:
        """A length as an array."""
        given = np.asarray(n)
        made = given.astype(type_.dtype)
        if not _is_same(given, made):
            name = type_.dtype.name
            text = f'expected {type_}, got the length {n}, which {name} cannot hold'
            raise misfit(node, text)
        return made

    def call(self, node: Typed, x: object) -> Any:
        """Calls the layer of a node on one example."""
        layer = node.layer
        assert layer is not None
        arguments = TupleType(arguments_of(node.taken))
        inputs = pack(arguments, map(jnp.asarray, tensors_in(node.arranged(x))))
        if layer.batched:
            inputs = jax.tree.map(lambda a: a[None], inputs)
        call, keys = layer.call, [self._key(name) for name in layer.rngs]
        if self.keys is None:
            call = layer.evaluating or call  # without keys nothing is drawn
        elif layer.batched:
            keys = [key[None] for key in keys]
        result = call(self.params.get(layer.name), *keys, *inputs)
        if layer.batched:
            result = jax.tree.map(lambda a: a[0], result)
        return in_tuples(node.output, map(strong, jax.tree.leaves(result)))

    def _key(self, stream: str) -> Any:
        if self.keys is None:
            return None
        self.drawn[stream] += 1
        return self.keys(stream, self.drawn[stream] - 1)

    def group(self, combine: Typed, item: Type, items: list[Any]) -> object:
        """The first two items as one, that and the third, and so on."""
        made, *others = items
        for each in others:
            made = self.call(combine, (made, each))
        return made

    def observe(self, node: Typed, name: str, x: object) -> None:
        """Collects."""
        self.metrics[name].append(closed(node.input, plain(x)))


def strong(x: jax.Array) -> jax.Array:
    """An array whose dtype does not give way: weak types do not reach a buffer."""
    return jnp.asarray(x, jnp.result_type(x))


def _is_same(given: Array, made: Array) -> bool:
    """Whether no number was changed, but for rounding a float to a float."""
    kinds = [jnp.issubdtype(x.dtype, np.inexact) for x in (given, made)]
    if all(kinds):
        complex_lost = given.dtype.kind == 'c' and made.dtype.kind != 'c'
        overflow = np.isfinite(given) & ~np.isfinite(made)
        return not (complex_lost or overflow.any())
    # Python compares ints and floats exactly, NumPy after rounding.
    return bool(given.tolist() == made.tolist())
