# SPDX-License-Identifier: Apache-2.0
"""What a function computes, as its jaxpr tells: not what it passes on, nor constants.

An output that is an input is read where that was, and one that depends on nothing is a
constant of the program. The others are an operation, of the inputs that they read.

    lambda a, b, c: (c, a * 2, jnp.zeros(3))   ->   c, an operation of a, a constant
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base import jaxprs
from jfold.program.operations import Layer
from jfold.types import KeyType, TensorType, TupleType, Type, pack, tensors

if TYPE_CHECKING:
    from chex import ArrayTree
    from jax.extend import core

    Traces: TypeAlias = Sequence[core.ClosedJaxpr]
# Of an output: the number of the input that it is, the constant [*shape] that it is, or
# nothing if it is computed.
Origin: TypeAlias = 'int | np.ndarray[Any, Any] | None'


@dataclass(frozen=True, eq=False)
class Forwarding:
    """Where the outputs of a function come from; its inputs and outputs are flat.

    Attributes:
      outputs: of each, where it comes from.
      reads: the inputs that those which are computed depend on.
      is_straight: whether the function may be one with others; see `Operation`.
    """

    outputs: tuple[Origin, ...]
    reads: tuple[int, ...]
    is_straight: bool

    @property
    def computed(self) -> tuple[int, ...]:
        """The outputs that are computed."""
        return tuple(k for k, origin in enumerate(self.outputs) if origin is None)


def origins_of(
    layer: Layer,
    traces: Traces,
    arguments: tuple[Type, ...],
    result: Type,
) -> Forwarding:
    """Where the outputs of a layer's function come from, at arguments of these types.

    Args:
      traces: its jaxprs; several, on other numbers of rows, if it is of whole tiles.
    """
    keyed = *map(KeyType, layer.rngs), *arguments
    given, made = (list(tensors(x)) for x in (TupleType(keyed), result))
    alone = layer.batched or layer.external or layer.adds
    is_straight = not alone and all(map(jaxprs.is_straight, traces))
    # What prints or checks something does so for each node; what draws is another
    # function where nothing is drawn; what passes on tiles of some numbers of rows may
    # cut others.
    effects = any(jaxprs.opened(each)[0].effects for each in traces)
    if effects or layer.rngs or layer.external or layer.batched:
        return Forwarding((None,) * len(made), tuple(range(len(given))), is_straight)
    weights = len(jax.tree.leaves(layer.params))
    outputs = tuple(_outputs(traces, weights, given, made))
    depends = _depends(traces)
    computed = (x for x, origin in zip(depends, outputs, strict=True) if origin is None)
    read = {place - weights for places in computed for place in places}
    reads = (i for i in range(len(given)) if i in read)  # without parameters
    return Forwarding(outputs, tuple(reads), is_straight)


def _outputs(
    traces: Traces,
    weights: int,
    given: list[TensorType],
    made: list[TensorType],
) -> Iterator[Origin]:
    """Where each output of a layer with so many arrays of parameters comes from."""
    passed = zip(*map(jaxprs.passed, traces), strict=True)
    for k, (places, needs) in enumerate(zip(passed, _depends(traces), strict=True)):
        is_one = len({*places}) == 1 and places[0] is not None
        number = places[0] - weights if is_one else -1
        if number >= 0 and given[number] == made[k]:
            yield number
        elif needs:
            yield None
        else:
            found = jaxprs.constant(traces[0], k)
            yield None if found is None else np.array(found, made[k].dtype)  # its own


def _depends(traces: Traces) -> list[set[int]]:
    """The arguments that each output depends on."""
    of_all = zip(*map(jaxprs.depends, traces), strict=True)
    return [set().union(*of_one) for of_one in of_all]


def computing(layer: Layer, arguments: tuple[Type, ...], origins: Forwarding) -> Layer:
    """The layer that computes what has to be, of those of its inputs that it reads."""
    given, computed = list(tensors(TupleType(arguments))), origins.computed

    def call(params: ArrayTree, *read: jax.Array) -> tuple[jax.Array, ...]:
        """The outputs that are computed."""
        # Nothing depends on the other inputs, so any numbers do.
        filled = {i: jnp.zeros(x.shape, x.dtype) for i, x in enumerate(given)}
        filled |= zip(origins.reads, read, strict=True)
        made = layer.call(params, *pack(TupleType(arguments), filled.values()))
        leaves = jax.tree.leaves(made)
        return tuple(leaves[k] for k in computed)

    return dataclasses.replace(layer, call=call, adds=False)
