# SPDX-License-Identifier: Apache-2.0
"""The `Graph` of a batch: for each operation, its nodes as rows of input values.

Values of one tensor type are numbered: the constants first, then the outputs of each
operation in the program's order, node by node. Nodes of an operation stand in the order
in which they were traced. All of it is arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.program import Program

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Graph:
    """What a batch computes.

    Attributes:
      examples: how many there are.
      constants: per type [constants, *shape].
      inputs: per operation, per input, the value numbers [nodes].
      levels: per operation [nodes]: 1 + the highest level of the inputs; constants have
        level 0. Two nodes of one level do not depend on each other.
      outputs: per tensor of the result, the value numbers [examples].
      metrics: per metric, the example [nodes] of each node, and per tensor the value
        numbers [nodes]; sorted by example.
    """

    examples: int
    constants: tuple[Array, ...]
    inputs: tuple[tuple[Array, ...], ...]
    levels: tuple[Array, ...]
    outputs: tuple[Array, ...]
    metrics: tuple[tuple[Array, tuple[Array, ...]], ...]

    @property
    def nodes(self) -> int:
        """How many operations run."""
        return sum(map(len, self.levels))

    @property
    def depth(self) -> int:
        """The highest level."""
        return max((int(x.max(initial=0)) for x in self.levels), default=0)

    def __str__(self) -> str:
        counts = ', '.join(str(len(x)) for x in self.levels)
        return f'Graph({self.examples} examples, nodes ({counts}), depth {self.depth})'


def check_graph(program: Program, graph: Graph) -> None:
    """Every value number is in range; every operation has all its inputs."""
    counts = value_counts(program, graph)
    for operation, inputs, levels in zip(
        program.operations, graph.inputs, graph.levels, strict=True
    ):
        for number, values in zip(operation.inputs, inputs, strict=True):
            assert len(values) == len(levels), operation
            assert not len(values) or 0 <= values.min(), operation
            assert not len(values) or values.max() < counts[number], operation


def value_counts(program: Program, graph: Graph) -> list[int]:
    """Per type, how many values there are."""
    counts = [len(x) for x in graph.constants]
    for operation, levels in zip(program.operations, graph.levels, strict=True):
        for number in operation.outputs:
            counts[number] += len(levels)
    return counts


class Trace:
    """Collects nodes while the host plan runs.

    Values get an *id* per type in the order in which they are made, since how many
    constants and nodes there will be is not known yet; `graph` turns ids into numbers.
    """

    def __init__(self, program: Program, examples: int) -> None:
        self.program = program
        self.examples = examples
        self._types = [_Values() for _ in program.types]
        self._arrays: list[list[Array]] = [[] for _ in program.types]
        self._inputs: list[list[list[Array]]] = [[] for _ in program.operations]
        self._levels: list[list[Array]] = [[] for _ in program.operations]
        self._shared: dict[int, int] = {}
        self._metrics: list[list[list[Array]]] = [[] for _ in program.metrics]

    def constants(self, number: int, values: Array) -> Array:
        """Ids [n] for constants [n, *shape] of type `number`."""
        self._arrays[number].append(values)
        return self._types[number].new(0, len(values), None)

    def shared_constant(self, index: int) -> int:
        """The id of one of the program's constants, the same throughout the batch."""
        if index not in self._shared:
            number, value = self.program.constants[index]
            self._shared[index] = int(self.constants(number, value[None])[0])
        return self._shared[index]

    def apply(self, operation: int, size: int, inputs: list[Array]) -> list[Array]:
        """Ids of each output for `size` new nodes with the given inputs."""
        op = self.program.operations[operation]
        if not size:
            return [np.zeros(0, np.int32) for _ in op.outputs]
        level = np.zeros(size, np.int32)
        for number, ids in zip(op.inputs, inputs, strict=True):
            np.maximum(level, self._types[number].levels[ids], out=level)
        level += 1
        self._inputs[operation].append(inputs)
        self._levels[operation].append(level)
        return [
            self._types[number].new((operation, k), size, level)
            for k, number in enumerate(op.outputs)
        ]

    def observe(self, metric: int, example: Array, values: list[Array]) -> None:
        """Records values of a metric."""
        self._metrics[metric].append([example, *values])

    def graph(self, outputs: list[Array]) -> Graph:
        """What was traced, checked."""
        program = self.program
        numbers = [
            values.numbers(_sources(program, number))
            for number, values in enumerate(self._types)
        ]
        inputs = [
            tuple(
                numbers[t][_concatenate([chunk[k] for chunk in chunks])]
                for k, t in enumerate(operation.inputs)
            )
            for operation, chunks in zip(program.operations, self._inputs, strict=True)
        ]
        graph = Graph(
            self.examples,
            tuple(map(_stack, self._arrays, program.types)),
            tuple(inputs),
            tuple(map(_concatenate, self._levels)),
            tuple(
                numbers[t][x]
                for t, x in zip(program.output_types, outputs, strict=True)
            ),
            tuple(
                map(
                    self._metric,
                    range(len(program.metrics)),
                    [numbers] * len(program.metrics),
                )
            ),
        )
        check_graph(program, graph)
        return graph

    def _metric(
        self, index: int, numbers: list[Array]
    ) -> tuple[Array, tuple[Array, ...]]:
        types = self.program.metrics[index][2]
        chunks = self._metrics[index]
        example = _concatenate([chunk[0] for chunk in chunks])
        order = np.argsort(example, kind='stable')
        values = [
            numbers[t][_concatenate([chunk[k] for chunk in chunks])[order]]
            for k, t in enumerate(types, 1)
        ]
        return example[order], tuple(values)


def _sources(program: Program, number: int) -> list[Any]:
    """What makes values of a type, in the order of their numbers."""
    made = [
        (index, k)
        for index, operation in enumerate(program.operations)
        for k, output in enumerate(operation.outputs)
        if output == number
    ]
    return [0, *made]


def _concatenate(chunks: list[Array]) -> Array:
    if not chunks:
        return np.zeros(0, np.int32)
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _stack(chunks: list[Array], type_: Any) -> Array:
    if not chunks:
        return np.zeros((0, *type_.shape), type_.dtype)
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


class _Values:
    """The values of one type: a level for each, and who made which."""

    def __init__(self) -> None:
        self.levels = np.zeros(256, np.int32)
        self.count = 0
        self._makers: list[Any] = []
        self._sizes: list[int] = []

    def new(self, maker: Any, size: int, level: Array | None) -> Array:
        """Ids for `size` new values."""
        first, self.count = self.count, self.count + size
        if self.count > len(self.levels):
            grown = np.zeros(2 * self.count, np.int32)
            grown[:first] = self.levels[:first]
            self.levels = grown
        if level is not None:
            self.levels[first : self.count] = level
        self._makers.append(maker)
        self._sizes.append(size)
        return np.arange(first, self.count, dtype=np.int32)

    def numbers(self, sources: list[Any]) -> Array:
        """The number of each id: values of one source get consecutive numbers."""
        index = {source: i for i, source in enumerate(sources)}
        makers = np.fromiter(map(index.__getitem__, self._makers), np.intp)
        sizes = np.array(self._sizes, np.int64)
        order = np.argsort(makers, kind='stable')
        first = np.empty(len(sizes), np.int64)
        first[order] = np.cumsum(sizes[order]) - sizes[order]
        ids = np.cumsum(sizes) - sizes
        numbers = np.repeat(first - ids, sizes) + np.arange(self.count)
        return numbers.astype(np.int32)
