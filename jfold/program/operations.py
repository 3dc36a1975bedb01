# SPDX-License-Identifier: Apache-2.0
"""`Program`: the result of lowering an expression, and all that later parts see.

It has two halves. `Operations` is what the device runs: an operation is a layer at
certain tensor types, one per distinct callable and types. The scheduler and the device
see nothing else, so a front end that makes a `Graph` without source states operations
alone. The source, a Python function of examples, records which operations are applied
to what.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.memo import Memoized
from jfold.program import result_tables as tables
from jfold.program.result_tables import Making, Result, nesting
from jfold.types import TensorType, Type

if TYPE_CHECKING:
    from chex import ArrayTree

    from jfold.tracing.record import Expression, Source

ProducerSet = int  # a set of operations, or of their results, as bits
# Rows on which a batched function is tried: with few and with many rows, so that one
# that looks at the first rows alone is found out.
PROBES = 2, 101


@dataclass(frozen=True, eq=False)
class Layer:
    """A callable with its parameters, shared by all uses of that callable."""

    name: str
    call: Callable[..., Any]  # (params, *inputs) -> outputs
    init: Callable[..., Any] | None  # (key) -> params
    params: ArrayTree | None  # pytree of jax.ShapeDtypeStruct, None without parameters
    batched: bool = False
    external: bool = False  # its parameter is an array that a batch is given
    rngs: tuple[str, ...] = ()  # the streams of the keys that come before the inputs
    evaluating: Callable[..., Any] | None = None  # the call where nothing is drawn
    owner: Hashable = None  # of the parameters, where several layers have the same
    adds: bool = False  # the sum of its arguments, elementwise
    parts: tuple[str, ...] = ()  # the names of others, whose parameters it has

    def own(self, params: Mapping[str, ArrayTree]) -> ArrayTree | None:
        """Return the parameters of this layer, among those of all layers by name."""
        if self.parts:
            return {name: params[name] for name in self.parts}
        return None if self.params is None else params.get(self.name)

    @functools.cached_property
    def leaves(self) -> tuple[list[Any], Any]:
        """The parameters as leaves and structure, to compare others with."""
        return jax.tree.flatten(self.params)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Operation(Memoized):
    """A layer at certain types; the unit of batching.

    Types are stored twice: as the user wrote them (nested tuples), and flat, as numbers
    in `Operations.types`.
    """

    layer: Layer
    arguments: tuple[Type, ...]
    result: Type
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    from_left: bool = False  # the layer takes two of the arguments, then a third, ...
    # Whether it may be fused with its producers: it has no loops, branches or custom
    # derivatives, which would decide how the reverse of the fused operation runs.
    is_straight: bool = field(default=False, compare=False)

    @property
    def is_sum(self) -> bool:
        """Return whether each input has the same cotangent as the output."""
        adds = self.layer.adds and len(self.outputs) == 1
        return adds and {*self.inputs} == {*self.outputs}

    def call(self, params: ArrayTree | None, *arguments: Any) -> Any:
        """Return the layer's outputs for parameters and inputs."""
        if not self.from_left:
            return self.layer.call(params, *arguments)
        leaves, structure = jax.tree.flatten(arguments[0])

        def combined(left: object, right: object) -> Any:
            # An intermediate result gets the types of the operation's result.
            results = jax.tree.leaves(self.layer.call(params, left, right))
            pairs = zip(results, leaves, strict=True)
            arrays = [jnp.asarray(x, like.dtype) for x, like in pairs]
            return jax.tree.unflatten(structure, arrays)

        return functools.reduce(combined, arguments)

    def __repr__(self) -> str:
        arguments = ', '.join(map(repr, self.arguments))
        if self.from_left:
            arguments = f'{len(self.arguments)} of {self.result!r}'
        return f'{self.layer.name}({arguments}) -> {self.result!r}'


@dataclass(frozen=True)
class Producers:
    """The results of operations that may be read at each place, as bit sets.

    Results are numbered through all operations, those of one in their order.

    Attributes:
      inputs: per operation and input.
      results: per result and tensor.
    """

    inputs: tuple[tuple[ProducerSet, ...], ...]
    results: tuple[tuple[ProducerSet, ...], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Operations(Memoized):
    """The half of a program that the device runs.

    Compared and hashed by identity; a copy is the object itself.

    Attributes:
      types: the tensor types; each has one buffer on the device.
      layers: of all operations, with parameters or without.
      operations: numbered by their place here.
      constants: arrays that are the same in every batch, with the number of their type.
      results: the outputs of a batch: the expression's value, metrics, and items of
        sequences.
      sources: the results that may be read at each place, which decides what is
        recurrent; any of its type if `None`.
      unrolled: whether it runs without loops: no operation is recurrent, except sums.
    """

    types: tuple[TensorType, ...]
    layers: tuple[Layer, ...]
    operations: tuple[Operation, ...]
    constants: tuple[tuple[int, np.ndarray[Any, Any]], ...]
    results: tuple[Result, ...]
    sources: Producers | None
    unrolled: bool = field(default=False, kw_only=True)

    @property
    def own(self) -> Result:
        """The value of the expression itself, without items of sequences."""
        return self.results[self.value_results[0]]

    @property
    def output(self) -> Type:
        """The type of one example's value."""
        return self.own.type

    @functools.cached_property
    def observed(self) -> tuple[int, ...]:
        """The numbers of results that may have any number of rows."""
        return tables.counted(self.results)

    @functools.cached_property
    def labelled(self) -> tuple[int, ...]:
        """The numbers of results whose rows have labels."""
        return tables.labelled(self.results)

    @functools.cached_property
    def metric_results(self) -> tuple[int, ...]:
        """The numbers of results of metrics."""
        return tables.metric_numbers(self.results)

    @functools.cached_property
    def value_results(self) -> tuple[int, ...]:
        """The numbers of the results that make up the value, in `nesting` order."""
        return tables.value_numbers(self.results)

    def __copy__(self) -> Operations:
        return self

    def __deepcopy__(self, memo: object) -> Operations:
        return self

    def __repr__(self) -> str:
        name = type(self).__name__
        return f'{name}({self.output!r}, operations: {len(self.operations)})'

    def __str__(self) -> str:
        lines = [f'  {i}: {x!r}' for i, x in enumerate(self.operations)]
        return '\n'.join(['operations', *lines])


@dataclass(frozen=True, eq=False, repr=False)
class Program(Operations):
    """A lowered expression.

    Attributes:
      source: the generated function that records examples.
      expression: explains what is wrong with an example.
    """

    source: Source
    expression: Expression

    def __str__(self) -> str:
        return f'{super().__str__()}\n\n{self.source}'


def check_operations(operations: Operations) -> None:
    """Check that operations refer only to types and results that exist.

    Raises:
      ValueError: a number of a type is out of range, sources are of another shape, not
        one result is the value of the expression, or others are not the items of its
        sequences.
    """
    making = [result.kind.making for result in operations.results]
    if (returned := making.count(Making.RETURNED)) != 1:
        raise ValueError(f'expected one result without a name, got {returned}')
    known = range(len(operations.types))
    used = [(repr(x), x.inputs + x.outputs) for x in operations.operations]
    used += [(f'constant {i}', (t,)) for i, (t, _) in enumerate(operations.constants)]
    used += [(f'result {r}', x.tensors) for r, x in enumerate(operations.results)]
    for what, numbers in used:
        for number in numbers:
            if number not in known:
                raise ValueError(
                    f'{what}: expected numbers of {len(known)} types, got {number}'
                )
    _check_levels(operations)
    if operations.sources is not None:
        _check_sources(operations, operations.sources)


def _check_levels(operations: Operations) -> None:
    """Check that results are the items of the sequences in the value."""
    results = [operations.results[r] for r in operations.value_results]
    expected = list(enumerate(nesting(operations.output)))
    if [(result.kind.level, result.type) for result in results] != expected:
        got = [result.type for result in results[1:]]
        items = [type_ for _, type_ in expected[1:]]
        raise ValueError(f'expected results of items {items}, got {got}')


def _check_sources(operations: Operations, sources: Producers) -> None:
    for name, stated, read in (
        ('inputs', sources.inputs, [x.inputs for x in operations.operations]),
        ('results', sources.results, [x.tensors for x in operations.results]),
    ):
        got, expected = list(map(len, stated)), list(map(len, read))
        if got != expected:
            raise ValueError(f'expected `sources.{name}` of {expected}, got {got}')
