# SPDX-License-Identifier: Apache-2.0
"""`Program`: the result of lowering an expression, and all that later parts see.

It has two halves. `Operations` is what the device runs: a layer's function at given
tensor types is an operation, and there is one per distinct callable and types. The
scheduler and the device see nothing else, so a front end that makes a `Graph` in
another way than by source states operations alone. The source, a function of examples
in Python, records which operations are applied to what.
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
# Rows on which a function of whole tiles is tried: few, and many, to tell all of them
# from the first ones.
PROBES = 2, 101


@dataclass(frozen=True, eq=False)
class Layer:
    """A callable with its parameters; shared by every use of that callable."""

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
        """Its parameters, of those of all layers by name."""
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
    """A layer at given types; the unit of batching.

    Types are given twice: as the user wrote them (nested tuples), and flat, as numbers
    in `Operations.types`.
    """

    layer: Layer
    arguments: tuple[Type, ...]
    result: Type
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    from_left: bool = False  # the layer takes two of the arguments, then a third, ...
    # Whether it may be one with what it reads: it has no loops, cases or reverse rules
    # inside, which would decide how the reverse of all runs.
    is_straight: bool = field(default=False, compare=False)

    @property
    def is_sum(self) -> bool:
        """Whether each input has the very cotangent of the output."""
        adds = self.layer.adds and len(self.outputs) == 1
        return adds and {*self.inputs} == {*self.outputs}

    def call(self, params: ArrayTree | None, *arguments: Any) -> Any:
        """The layer's outputs, given parameters and inputs."""
        if not self.from_left:
            return self.layer.call(params, *arguments)
        leaves, structure = jax.tree.flatten(arguments[0])

        def combined(left: object, right: object) -> Any:
            # What a step gives is made what an operation gives, for the next one.
            made = jax.tree.leaves(self.layer.call(params, left, right))
            pairs = zip(made, leaves, strict=True)
            arrays = [jnp.asarray(x, like.dtype) for x, like in pairs]
            return jax.tree.unflatten(structure, arrays)

        return functools.reduce(combined, arguments)

    def __repr__(self) -> str:
        given = ', '.join(map(repr, self.arguments))
        if self.from_left:
            given = f'{len(self.arguments)} of {self.result!r}'
        return f'{self.layer.name}({given}) -> {self.result!r}'


@dataclass(frozen=True)
class Producers:
    """Of which operations' results, as bits, each value that is read may be.

    Results are numbered through all operations, those of one in their order.

    Attributes:
      inputs: per operation and input.
      results: per result and tensor.
    """

    inputs: tuple[tuple[ProducerSet, ...], ...]
    results: tuple[tuple[ProducerSet, ...], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Operations(Memoized):
    """What the device runs. Compared and hashed by identity; a copy is itself.

    Attributes:
      types: the tensor types; each has one buffer on the device.
      layers: what has parameters, and what has none.
      operations: in an order that numbers them.
      constants: arrays that are the same in every batch, with the number of their type.
      results: what a batch gives: the expression's own value, metrics, and items of
        sequences.
      sources: which results may be read where, so what is recurrent; any of its type,
        if that is `None`.
      once: whether it is to run without loops: no operation takes turns, but for sums.
    """

    types: tuple[TensorType, ...]
    layers: tuple[Layer, ...]
    operations: tuple[Operation, ...]
    constants: tuple[tuple[int, np.ndarray[Any, Any]], ...]
    results: tuple[Result, ...]
    sources: Producers | None
    once: bool = field(default=False, kw_only=True)

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
        """The results with any number of rows."""
        return tables.counted(self.results)

    @functools.cached_property
    def labelled(self) -> tuple[int, ...]:
        """The results whose rows have labels."""
        return tables.labelled(self.results)

    @functools.cached_property
    def metric_results(self) -> tuple[int, ...]:
        """The results of metrics."""
        return tables.of_metrics(self.results)

    @functools.cached_property
    def value_results(self) -> tuple[int, ...]:
        """The results that the value of the expression is made of: its own, then the
        items of each sequence in it, by the `nesting` of its type."""
        return tables.of_value(self.results)

    def __copy__(self) -> Operations:
        return self

    def __deepcopy__(self, memo: object) -> Operations:
        return self

    def __repr__(self) -> str:
        name = type(self).__name__
        return f'{name}({self.output!r}, operations: {len(self.operations)})'

    def __str__(self) -> str:
        lines = [f'  {i}: {each!r}' for i, each in enumerate(self.operations)]
        return '\n'.join(['operations', *lines])


@dataclass(frozen=True, eq=False, repr=False)
class Program(Operations):
    """An expression, lowered.

    Attributes:
      source: what records examples.
      expression: what tells what is wrong with them.
    """

    source: Source
    expression: Expression

    def __str__(self) -> str:
        return f'{super().__str__()}\n\n{self.source}'


def check_operations(operations: Operations) -> None:
    """Refuses operations that refer to what there is not.

    Raises:
      ValueError: a number of a type is out of range, sources are of another shape, not
        one result is the value of the expression, or others are not the items of its
        sequences.
    """
    making = [each.kind.making for each in operations.results]
    if (own := making.count(Making.RETURNED)) != 1:
        raise ValueError(f'expected one result without a name, got {own}')
    known = range(len(operations.types))
    used = [(repr(each), each.inputs + each.outputs) for each in operations.operations]
    used += [(f'constant {i}', (t,)) for i, (t, _) in enumerate(operations.constants)]
    used += [(f'result {r}', each.tensors) for r, each in enumerate(operations.results)]
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
    """Refuses results that are not the items of the sequences in the value."""
    found = [operations.results[r] for r in operations.value_results]
    expected = list(enumerate(nesting(operations.output)))
    if [(each.kind.level, each.type) for each in found] != expected:
        got = [each.type for each in found[1:]]
        items = [type_ for _, type_ in expected[1:]]
        raise ValueError(f'expected results of items {items}, got {got}')


def _check_sources(operations: Operations, sources: Producers) -> None:
    for name, stated, read in (
        ('inputs', sources.inputs, [each.inputs for each in operations.operations]),
        ('results', sources.results, [each.tensors for each in operations.results]),
    ):
        got, expected = list(map(len, stated)), list(map(len, read))
        if got != expected:
            raise ValueError(f'expected `sources.{name}` of {expected}, got {got}')
