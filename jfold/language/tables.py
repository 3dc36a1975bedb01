# SPDX-License-Identifier: Apache-2.0
"""The tables of one program: tensor types, operations and constants, numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfold.language.forwarding import computed_layer
from jfold.language.function_layers import arguments_of
from jfold.language.typed import TypedExpression, TypedUse
from jfold.program.operations import Layer, Operation
from jfold.types import KeyType, TensorType, TupleType, Type, tensors


@dataclass(eq=False)
class Tables:
    """A numbering of types, operations and constants, in order of first use.

    Attributes:
      types: the number of each tensor type.
      operations: the number of each operation.
      listed: the operations, by number.
      constants: by number, the number of the type and the array [*shape].
      places: by number of a constant, its index, from 1, among those of its type.
      known: the numbers of constants, by their keys.
      parts: a memo of `computed_layer`, by layer and types of its arguments.
      applied: a memo of `computing`.
    """

    typing: TypedExpression
    types: dict[TensorType, int] = field(default_factory=dict)
    operations: dict[Operation, int] = field(default_factory=dict)
    listed: list[Operation] = field(default_factory=list)
    constants: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)  # of constants, by type
    known: dict[Hashable, int] = field(default_factory=dict)
    parts: dict[tuple[Layer, tuple[Type, ...]], Layer] = field(default_factory=dict)
    applied: dict[TypedUse, int] = field(default_factory=dict)

    def type_number(self, type_: TensorType) -> int:
        """Return the number of a tensor type, new on first use."""
        return self.types.setdefault(type_, len(self.types))

    def operation(self, layer: Layer, inputs: Type, result: Type, **more: Any) -> int:
        """Return the number of the `Operation` with these attributes, new on first use.

        The keys that the layer draws with come before the operand, of type `inputs`.
        """
        arguments = *map(KeyType, layer.rngs), *arguments_of(inputs)
        read, made = (
            tuple(map(self.type_number, tensors(type_)))
            for type_ in (TupleType(arguments), result)
        )
        operation = Operation(layer, arguments, result, read, made, **more)
        number = self.operations.setdefault(operation, len(self.listed))
        if number == len(self.listed):
            self.listed.append(operation)
        return number

    def computing(self, node: Any) -> int:
        """Return the number of the operation for the computed outputs of `node`."""
        if node in self.applied:
            return self.applied[node]
        layer, origins, arguments = node.layer, node.origins, arguments_of(node.taken)
        inputs, outputs = [*tensors(TupleType(arguments))], [*tensors(node.output)]
        computed, reads, read = origins.computed, origins.reads, node.taken
        result, count = node.output, len(layer.rngs) + len(inputs)
        if (len(computed), len(reads)) != (len(outputs), count):
            # Only some outputs are computed, or of only some inputs.
            if (layer, arguments) not in self.parts:
                self.parts[layer, arguments] = computed_layer(layer, arguments, origins)
            layer = self.parts[layer, arguments]
            read = TupleType(inputs[i] for i in reads)
            results = [outputs[k] for k in computed]
            result = results[0] if len(results) == 1 else TupleType(results)
        stops = frozenset(k for k, i in enumerate(reads) if i not in origins.pulled)
        self.applied[node] = self.operation(
            layer, read, result, is_straight=origins.is_straight, stops=stops
        )
        return self.applied[node]

    def grouping(self, combine: Any, item: Type, size: int) -> int:
        """Return the number of the operation that reduces `size` items by `combine`."""
        items = TupleType((item,) * size)
        return self.operation(combine.layer, items, item, from_left=size > 2)

    def constant(self, key: Hashable, value: np.ndarray[Any, Any]) -> int:
        """Return the number of constant `value` [*shape], new for each new `key`."""
        if key not in self.known:
            self.known[key] = len(self.constants)
            number = self.type_number(TensorType(value.shape, value.dtype))
            self.constants.append((number, value))
            self.counts[number] += 1
            self.places.append(self.counts[number])
        return self.known[key]

    def zeros(self, type_: TensorType) -> int:
        """Return the number of the zero constant of a tensor type."""
        return self.constant(type_, np.zeros(type_.shape, type_.dtype))
