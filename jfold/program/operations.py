# SPDX-License-Identifier: Apache-2.0
"""`Program`: the result of lowering an expression, and all that later stages see.

It has two halves. `Operations` describes what the device runs: an operation is a layer
at certain tensor types, one per distinct callable and types. The scheduler and the
device see nothing else, so a front end that makes a `Graph` by other means than source
needs `Operations` alone. The source is a Python function of examples, which records the
operations that are applied, and to which operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.late import Displayed
from jfold.base.memo import Memoized
from jfold.program.result_tables import Result, nesting
from jfold.types import TensorType, Type

if TYPE_CHECKING:
    from chex import ArrayTree

    from jfold.tracing.record import Expression, Source

T = TypeVar('T')
ProducerSet = int  # a set of numbers of operations, or of their outputs: one bit each
# The numbers of rows at which a `batched` function is tried: few and many, to detect a
# function whose results depend on the first rows alone.
PROBES = 2, 101
COMBINE = ADD, MAXIMUM, MINIMUM = 'add', 'maximum', 'minimum'


@dataclass(frozen=True, eq=False)
class Layer:
    """A callable with its parameters, shared by all uses of the callable."""

    name: str
    call: Callable[..., Any]  # (params, *inputs) -> outputs
    init: Callable[..., Any] | None  # (key) -> params
    params: ArrayTree | None  # pytree of jax.ShapeDtypeStruct, None without parameters
    batched: bool = False
    external: bool = False  # its parameter is an array given to each `apply`
    rngs: tuple[str, ...] = ()  # streams of random keys, passed before the inputs
    evaluating: Callable[..., Any] | None = None  # `call` for deterministic runs
    owner: Hashable = None  # equal for layers that share their parameters
    combines: str = ''  # one of `COMBINE` if it reduces its arguments elementwise
    parts: tuple[str, ...] = ()  # if fused: names of layers whose parameters it takes

    def own(self, params: Mapping[str, ArrayTree]) -> ArrayTree | None:
        """Return the parameters of this layer, or `None` if `params` has none for it.

        Args:
          params: the parameters of all layers by name; a fused layer gets the dict of
            those that its `parts` name.
        """
        if self.parts:
            return {name: params[name] for name in self.parts}
        return None if self.params is None else params.get(self.name)

    @functools.cached_property
    def leaves(self) -> tuple[list[Any], Any]:
        """The leaves, `jax.ShapeDtypeStruct`s, and the tree structure of `params`."""
        return jax.tree.flatten(self.params)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Operation(Memoized):
    """A layer at certain types of operands and results; the unit of batching.

    Attributes:
      arguments, result: the types as the user wrote them, nested tuples.
      inputs, outputs: the same types flat, as indices into `Operations.types`.
    """

    layer: Layer
    arguments: tuple[Type, ...]
    result: Type
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    from_left: bool = False  # a left fold of the binary layer over many arguments
    # Whether it may be fused with its producers: the layer has no loops, branches or
    # custom derivatives, which would decide how the reverse of a fused operation runs.
    is_straight: bool = field(default=False, compare=False)
    # The inputs to which no gradient flows back, as behind `lax.stop_gradient`.
    stops: frozenset[int] = field(default=frozenset(), compare=False)

    @property
    def combines(self) -> str:
        """The name of the inputs' reduction: 'add', 'maximum', 'minimum'; '' if none.

        It is '' unless there is one output and all inputs have its type.
        """
        is_one = len(self.outputs) == 1 and {*self.inputs} == {*self.outputs}
        return self.layer.combines if is_one else ''

    @property
    def is_sum(self) -> bool:
        """Return whether the operation adds up inputs, all of its output's type.

        Then the cotangent of each input is that of the output.
        """
        return self.combines == ADD

    def call(self, params: ArrayTree | None, *arguments: Any) -> Any:
        """Return the layer's result for one node, given its parameters and arguments.

        If `from_left`, the layer runs as a left fold over the arguments.
        """
        if not self.from_left:
            return self.layer.call(params, *arguments)
        leaves, structure = jax.tree.flatten(arguments[0])

        def combined(left: object, right: object) -> Any:
            # An intermediate result is cast to the dtypes of the operation's result.
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
    """The possible producers of each operand: a bit set of outputs of operations.

    Outputs are numbered through all operations, in order.

    Attributes:
      inputs: one set per operation and input.
      results: one set per result of the program and tensor in its rows.
    """

    inputs: tuple[tuple[ProducerSet, ...], ...]
    results: tuple[tuple[ProducerSet, ...], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Operations(Memoized, Displayed):
    """The half of a program that the device runs.

    Compared and hashed by identity; a copy is the object itself.

    Attributes:
      types: the tensor types; each has one value buffer on the device.
      layers: the layers of all operations, with parameters or without.
      operations: the operations; the number of an operation is its index here.
      constants: pairs (index of the type, array) of values that are the same in every
        batch.
      results: the tables that a batch returns: the expression's value, metrics, and
        items of sequences.
      sources: the possible producers of each operand, which decide what is recurrent;
        if `None`, all outputs of the operand's type.
      applied: the operations that run outside of loops, each a single time on all its
        rows; those among them that are recurrent are segment sums.
    """

    types: tuple[TensorType, ...]
    layers: tuple[Layer, ...]
    operations: tuple[Operation, ...]
    constants: tuple[tuple[int, np.ndarray[Any, Any]], ...]
    results: tuple[Result, ...]
    sources: Producers | None
    applied: frozenset[int] = field(default=frozenset(), kw_only=True)

    @property
    def has_loops(self) -> bool:
        """Return whether levels and tiles run in loops; else all is plain JAX."""
        return len(self.applied) < len(self.operations)

    @property
    def output(self) -> Type:
        """The type of one example's value."""
        return self.results[self.value_results[0]].type

    @functools.cached_property
    def observed(self) -> tuple[int, ...]:
        """The indices of results whose number of rows differs from batch to batch."""
        return tuple(r for r, x in enumerate(self.results) if x.kind.is_counted)

    @functools.cached_property
    def labelled(self) -> tuple[int, ...]:
        """The indices of results whose rows have labels."""
        return tuple(r for r, x in enumerate(self.results) if x.kind.labelled)

    @functools.cached_property
    def metric_results(self) -> tuple[int, ...]:
        """The indices of results of metrics."""
        return tuple(r for r, x in enumerate(self.results) if x.kind.name is not None)

    @functools.cached_property
    def value_results(self) -> tuple[int, ...]:
        """The indices of the results that make up the value, from outer to inner."""
        levels = ((x.kind.level, r) for r, x in enumerate(self.results))
        return tuple(r for _, r in sorted((k, r) for k, r in levels if k is not None))

    def assemble(
        self,
        tables: Sequence[T],
        value_of: Callable[[list[T]], Any],
        metric_of: Callable[[int, T], Any],
    ) -> Any:
        """Return the value made of `tables`; with metrics `(value, {name: metric})`.

        Args:
          tables: one table per result.
          value_of: a function from the tables of the value's levels to the value.
          metric_of: a function from index and table of a metric's result to its value.
        """
        value = value_of([tables[r] for r in self.value_results])
        metrics = {
            str(self.results[r].kind.name): metric_of(r, tables[r])
            for r in self.metric_results
        }
        return (value, metrics) if metrics else value

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
    """A lowered expression: its operations, and the source that records examples.

    Attributes:
      source: the generated function that records examples.
      expression: the expression as it was lowered, which explains errors of examples.
    """

    source: Source
    expression: Expression

    def __str__(self) -> str:
        return f'{super().__str__()}\n\n{self.source}'


# ---- costs ---------------------------------------------------------------------------


def parameter_bytes(operation: Operation) -> int:
    """Return the number of bytes of all parameters of an operation's layer."""
    leaves, _ = operation.layer.leaves
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_bytes(program: Operations, operation: Operation) -> int:
    """Return the number of bytes of one node's inputs and outputs, at least 4."""
    types = [program.types[n] for n in operation.inputs + operation.outputs]
    return sum(t.size * t.dtype.itemsize for t in types) or 4


def looks_up(program: Operations, operation: Operation) -> bool:
    """Return whether an operation is taken for a table look-up, such as an embedding.

    It is one if it has inputs, none with gradients, and is not fused of several layers.
    """
    types = [program.types[t] for t in operation.inputs]
    are_indices = bool(types) and not any(t.differentiable for t in types)
    return are_indices and not operation.layer.parts


# ---- checks --------------------------------------------------------------------------


def check_operations(operations: Operations) -> None:
    """Raise ValueError unless the parts of `operations` agree with each other.

    Each index of a type must be in range; results without a name must be those of
    `nesting`: one for the expression's value, then one for the items of each sequence
    in it; `sources` must have one set per operand.
    """
    if (returned := len(operations.results) - len(operations.observed)) != 1:
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
    results = [operations.results[r] for r in operations.value_results]
    expected = list(enumerate(nesting(operations.output)))
    if [(result.kind.level, result.type) for result in results] != expected:
        got = [result.type for result in results[1:]]
        items = [type_ for _, type_ in expected[1:]]
        raise ValueError(f'expected results of items {items}, got {got}')
    if operations.sources is None:
        return
    for name, wanted in (
        ('inputs', [len(x.inputs) for x in operations.operations]),
        ('results', [len(x.tensors) for x in operations.results]),
    ):
        counts = list(map(len, getattr(operations.sources, name)))
        if counts != wanted:
            raise ValueError(f'expected `sources.{name}` of {wanted}, got {counts}')
