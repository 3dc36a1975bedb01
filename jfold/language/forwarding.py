# SPDX-License-Identifier: Apache-2.0
"""Outputs of a function that its jaxpr forwards from inputs, or that are constant.

Readers of a forwarded output read the input instead, and an output that depends on
nothing is a constant of the program. The remaining outputs are computed by an
operation, of the inputs that they depend on alone.

    lambda a, b, c: (c, a * 2, jnp.zeros(3))   ->   c, an operation of a, a constant
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base import jaxprs
from jfold.program.operations import ADD, Layer
from jfold.types import KeyType, TensorType, TupleType, Type, pack, tensors

if TYPE_CHECKING:
    from chex import ArrayTree
    from jax.extend import core

    Traces: TypeAlias = Sequence[core.ClosedJaxpr]
# The origin of an output: the index of the input that it equals, the constant [*shape]
# that it is, or `None` if it is computed.
Origin: TypeAlias = 'int | np.ndarray[Any, Any] | None'


@dataclass(frozen=True, eq=False)
class Forwarding:
    """The origins of a function's outputs: each is an input, a constant or computed.

    Inputs and outputs are leaves: tensors in the order of the flattened types, inputs
    with random keys first.

    Attributes:
      outputs: the origin of each output.
      reads: the indices of inputs that computed outputs depend on.
      is_straight: whether the function may be fused with others: it has no loops,
        branches, custom derivatives or effects.
      pulled: the indices of inputs that a gradient may flow back to.
    """

    outputs: tuple[Origin, ...]
    reads: tuple[int, ...]
    is_straight: bool
    pulled: tuple[int, ...]

    @property
    def computed(self) -> tuple[int, ...]:
        """The indices of the outputs that are computed, not forwarded or constant."""
        return tuple(k for k, origin in enumerate(self.outputs) if origin is None)

    def outputs_of(
        self,
        inputs: Sequence[Any],
        apply: Callable[[list[Any]], Iterable[Any]],
        constant: Callable[[Any], Any],
    ) -> list[Any]:
        """Return the outputs on `inputs`: each is an input, a constant or computed.

        Args:
          apply: computes outputs of the inputs `reads`; called only if any is computed.
          constant: makes an output of an array [*shape].
        """
        computed = iter(apply([inputs[i] for i in self.reads]) if self.computed else ())
        outputs = []
        for origin in self.outputs:
            if isinstance(origin, np.ndarray):
                outputs.append(constant(origin))
            else:
                outputs.append(next(computed) if origin is None else inputs[origin])
        return outputs


def forwarding_of(
    layer: Layer, traces: Traces, arguments: tuple[Type, ...], result: Type
) -> Forwarding:
    """Find which outputs of a layer are unchanged inputs, constants or computed.

    Args:
      traces: the layer's jaxprs: one, or of a batched function one per number of rows.
      arguments: the types of the layer's inputs, without random keys.
      result: the type of the layer's outputs.
    """
    keyed = *map(KeyType, layer.rngs), *arguments
    inputs, results = (list(tensors(x)) for x in (TupleType(keyed), result))
    alone = layer.batched or layer.external or layer.combines == ADD
    is_straight = not alone and all(map(jaxprs.is_straight, traces))
    # These compute all outputs: a function with effects has to run for each node; one
    # that draws may forward other inputs when it runs without keys; a batched one may
    # forward at the numbers of rows that were traced, and not at others.
    effects = any(jaxprs.open_jaxpr(trace)[0].effects for trace in traces)
    if effects or layer.rngs or layer.external or layer.batched:
        every = tuple(range(len(inputs)))
        return Forwarding((None,) * len(results), every, is_straight, every)
    weights = len(jax.tree.leaves(layer.params))
    outputs = tuple(_outputs(traces, weights, inputs, results))

    def read(pulled: bool) -> tuple[int, ...]:
        """Return which inputs computed outputs use, with gradients if `pulled`."""
        pairs = zip(_depends(traces, pulled), outputs, strict=True)
        places = set().union(*(x for x, origin in pairs if origin is None))
        # Parameters come before inputs.
        return tuple(i for i in range(len(inputs)) if i + weights in places)

    return Forwarding(outputs, read(pulled=False), is_straight, read(pulled=True))


def _outputs(
    traces: Traces, weights: int, inputs: list[TensorType], results: list[TensorType]
) -> Iterator[Origin]:
    """Yield, for each of `results`, an input's index, a constant or `None`: computed.

    Args:
      weights: the number of arrays of parameters; jaxprs take them before `inputs`.
    """
    passed = zip(*map(jaxprs.passed, traces), strict=True)
    for k, (places, needs) in enumerate(zip(passed, _depends(traces), strict=True)):
        # Forwarded if that is one input in all traces, of the same type.
        is_one = len({*places}) == 1 and places[0] is not None
        number = places[0] - weights if is_one else -1
        if number >= 0 and inputs[number] == results[k]:
            yield number
        elif needs:
            yield None
        else:
            value = jaxprs.constant(traces[0], k)
            yield None if value is None else np.array(value, results[k].dtype)  # a copy


def _depends(traces: Traces, pulled: bool = False) -> list[set[int]]:
    """Return, per output, the indices of the arguments that it needs in any trace.

    If `pulled`, arguments reached only through `stop_gradient` are left out.
    """
    outputs = zip(*(jaxprs.depends(trace, pulled) for trace in traces), strict=True)
    return [set().union(*sets) for sets in outputs]


def computed_layer(
    layer: Layer, arguments: tuple[Type, ...], origins: Forwarding
) -> Layer:
    """Return `layer` with inputs `origins.reads`, outputs `origins.computed` alone."""
    inputs, computed = list(tensors(TupleType(arguments))), origins.computed

    def call(params: ArrayTree, *read: jax.Array) -> tuple[jax.Array, ...]:
        # No computed output depends on the inputs that are not read: zeros will do.
        filled = {i: jnp.zeros(x.shape, x.dtype) for i, x in enumerate(inputs)}
        filled |= zip(origins.reads, read, strict=True)
        result = layer.call(params, *pack(TupleType(arguments), filled.values()))
        leaves = jax.tree.leaves(result)
        return tuple(leaves[k] for k in computed)

    return dataclasses.replace(layer, call=call, combines='')
