# SPDX-License-Identifier: Apache-2.0
"""The values of examples, and the applications of operations that made them.

The expression is walked as in `eval`, and each operation runs alone, on one node. So
the path of a value's data in the example is known, and so is what reads the value.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.jaxprs import is_inexact
from jfold.base.tracebacks import line_text
from jfold.device.linear import MaybeZeros, maybe_zero
from jfold.graph import Array
from jfold.language.data_paths import End, Path, common_prefix
from jfold.language.eager_twin import Arrays
from jfold.language.rules_reduce import GROUPS
from jfold.language.source_rounds import items_of
from jfold.language.typed import TypedUse
from jfold.language.walk import Located, Misfit, Walk, in_tuples, tensor_leaves
from jfold.program.operations import Operation, Program
from jfold.program.result_tables import LENGTH
from jfold.scheduling.layout import has_gradient
from jfold.types import (
    KeyType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    leaf_types,
    pack,
)

# ---- steps ---------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of one example.

    Attributes:
      array: its numbers [*shape].
      path: the path of the data that it is computed from; `None` without data.
      is_trained: whether it is of floats that depend on parameters.
      is_read: whether a result depends on it.
      cotangent: the gradient by it so far [*shape]; `None` if nothing has added to it.
      is_blamed: whether a fault has been found behind `cotangent`.
    """

    array: Array
    path: Path | None = None
    is_trained: bool = False
    is_read: bool = False
    cotangent: Array | None = None
    is_blamed: bool = False


@dataclass(frozen=True, eq=False)
class Step:
    """A step of an evaluation, which makes values: here of an object of the data.

    Attributes:
      node: the use of the block.
      example: the index of the example.
      number: the number of steps in the example before this one.
      outputs: the values that it makes.
    """

    node: TypedUse
    example: int
    number: int
    outputs: list[Value]


class Runner:
    """An operation with its parameters, compiled to run on one node."""

    def __init__(self, operation: Operation, params: Any) -> None:
        from jax.experimental import checkify  # which takes time to import

        self.operation, self.params = operation, params
        batched = operation.layer.batched
        # By `vmap`, as in a batch: there both branches of a `lax.cond` run.
        axes = (None, *(0 for _ in operation.inputs))
        on_rows = functools.partial(jax.vmap, in_axes=axes, axis_size=1)

        def on_row(params: object, *inputs: Any) -> list[Any]:
            leaves = [x[None] for x in inputs] if batched else inputs
            arguments = pack(TupleType(operation.arguments), leaves)
            outputs = jax.tree.leaves(operation.call(params, *arguments))
            return [jnp.asarray(x[0] if batched else x) for x in outputs]

        def reverse(
            live: tuple[int, ...], params: object, inputs: Any, cotangents: Any
        ) -> tuple[MaybeZeros, MaybeZeros]:
            def live_outputs(params: object, inputs: Any) -> list[Any]:
                outputs = on_rows(on_row)(params, *inputs)
                return [outputs[k] for k in live]

            _, pull = jax.vjp(live_outputs, params, inputs)
            of_params, of_inputs = jax.tree.map(maybe_zero, pull(cotangents))
            return of_inputs, jax.tree.leaves(of_params)  # `None` for ints

        def checked(*inputs: Any) -> tuple[checkify.Error, list[Any]]:
            try:
                return checkify.checkify(on_row, errors=checkify.index_checks)(*inputs)
            except Exception:  # of some `while_loop`s, whose indices stay unchecked
                return checkify.init_error, on_row(*inputs)

        self._forward = jax.jit(on_rows(checked))
        self._reverse = jax.jit(reverse, static_argnums=0)

    def forward(self, inputs: Sequence[Array]) -> tuple[list[Array], str]:
        """Return the outputs [*shape] of inputs, and an error about an index, or ''.

        The error is that of JAX about the first index that is out of bounds.
        """
        error, outputs = self._forward(self.params, *(x[None] for x in inputs))
        error, outputs = jax.device_get((error, outputs))
        text = jax.tree.map(lambda x: x[0], error).get() or ''
        return [x[0] for x in outputs], text.strip()

    def reverse(
        self, live: tuple[int, ...], inputs: Sequence[Array], cotangents: list[Array]
    ) -> tuple[list[Any], list[Array]]:
        """Pull `cotangents` of outputs `live` back to inputs and to float parameters.

        Gradients by inputs are [*shape], `None` for ints.
        """
        rows, grads = ([x[None] for x in arrays] for arrays in (inputs, cotangents))
        result = self._reverse(live, self.params, rows, grads)
        of_inputs, of_params = jax.device_get(result)
        return [x if x is None else x[0] for x in of_inputs], of_params


@dataclass(frozen=True, eq=False)
class Application(Step):
    """The application of an operation to some values.

    Attributes:
      o: the number of the operation in the program.
      runner: what runs the operation.
      inputs: the values that it reads.
      is_trained: whether parameters of the operation, or inputs, are trained.
      outside: JAX's error about an index outside of its array; '' if all are inside.
    """

    o: int
    runner: Runner
    inputs: list[Value]
    is_trained: bool
    outside: str

    @property
    def operation(self) -> Operation:
        """The operation, on as many arguments as it has here."""
        return self.runner.operation

    @property
    def arrays(self) -> list[Array]:
        """The inputs as arrays, each [*shape]."""
        return [x.array for x in self.inputs]


# ---- evaluation ----------------------------------------------------------------------


class Values(Arrays):
    """An evaluator of examples that keeps all values, and the steps that made them.

    Attributes:
      steps: all steps, in order of evaluation.
      results: by result of the program, the rows: of each its tensors.
    """

    def __init__(self, program: Program, params: Mapping[str, Any]) -> None:
        super().__init__(params, {})
        self.program = program
        self.expression: Any = program.expression
        self.steps: list[Step] = []
        self.results: list[list[list[Value]]] = [[] for _ in program.results]
        self._runners: dict[tuple[int, int], Runner] = {}  # also by number of inputs
        self._items = items_of(program)
        self._example, self._first = -1, 0

    def add(self, example: object) -> None:
        """Evaluate one more example."""
        self._example, self._first = self._example + 1, len(self.steps)
        value = Walk(self.expression.typing, self).run(example)
        self._row(value, self.program.output, self.program.value_results[0])

    def line_of(self, step: Step, example: object) -> str:
        """Return text on the line of the lazy function that made a step; else ''."""
        if not self.program.source.recording.prunes:  # without lazy functions
            return ''
        try:
            _Until(self, step.number).add(example)
        except Misfit as error:
            if isinstance(error.path, End) and error.path.place is not None:
                return line_text(error.path.place.code, error.path.place.line)
        return ''

    def columns(self, r: int) -> list[list[Value]]:
        """Return the values of each tensor of result `r`, one a row."""
        tensors = range(len(self.program.results[r].tensors))
        return [[row[k] for row in self.results[r]] for k in tensors]

    def mark_read(self) -> None:
        """Set `is_read` of the values that some result depends on."""
        for value in itertools.chain(*itertools.chain(*self.results)):
            value.is_read = True
        for step in reversed(self.steps):
            if isinstance(step, Application) and any(x.is_read for x in step.outputs):
                for value in step.inputs:
                    value.is_read = True

    # ---- the methods that the walk calls

    def tensor(
        self, node: TypedUse, x: Located, type_: TensorType, below: int | None
    ) -> Any:
        """Return `x` as a value; see `Arrays.tensor`."""
        value = Value(super().tensor(node, x, type_, below), x.path)
        self._add(Step(node, self._example, self._number, [value]))
        return value

    def constant(self, node: TypedUse, value: Array) -> Any:
        """Return an array [*shape] of the expression as a value."""
        return Value(np.asarray(value))

    def call(self, node: TypedUse, x: object) -> Any:
        """Apply the layer of `node`, if any output is computed; return the outputs."""
        assert node.layer is not None and node.origins is not None
        keys = [self.constant(node, _no_key(name)) for name in node.layer.rngs]
        operands = [*keys, *tensor_leaves(node.arranged(x))]

        def apply(inputs: list[Value]) -> list[Value]:
            return self._apply(node, self.expression.tables.computing(node), inputs)

        constant = functools.partial(self.constant, node)
        outputs = node.origins.outputs_of(operands, apply, constant)
        return in_tuples(node.output, iter(outputs))

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> Any:
        """Reduce 2 to 8 `items` by the operation for groups of this size or larger."""
        size = next(size for size in GROUPS if size >= len(items))
        o = self.expression.tables.grouping(combine, item, size)
        inputs = [*tensor_leaves(tuple(items))]
        return in_tuples(item, iter(self._apply(combine, o, inputs, len(items))))

    def observe(self, node: TypedUse, name: str, x: Any) -> None:
        """Append `x`, without its label if it has one, to the rows of a metric."""
        if self.expression.typing.metrics[name][1]:
            x, _ = x
        r = self.expression.typing.metric_numbers[name]
        self.results[r].append([*tensor_leaves(x)])

    @property
    def _number(self) -> int:
        """The number of steps in the example so far."""
        return len(self.steps) - self._first

    def _add(self, step: Step) -> None:
        self.steps.append(step)

    def _apply(
        self, node: TypedUse, o: int, inputs: list[Value], arguments: int | None = None
    ) -> list[Value]:
        """Run operation `o` on `inputs`, of its first `arguments`; return the outputs.

        By default it gets all its arguments.
        """
        key = o, len(inputs)
        if key not in self._runners:
            operation = self.program.operations[o]
            operation = replace(
                operation,
                arguments=operation.arguments[:arguments],
                inputs=operation.inputs[: len(inputs)],
            )
            self._runners[key] = Runner(operation, operation.layer.own(self.params))
        runner = self._runners[key]
        arrays, outside = runner.forward([x.array for x in inputs])
        is_trained = has_gradient(runner.operation)
        is_trained = is_trained or any(x.is_trained for x in inputs)
        path = common_prefix(x.path for x in inputs if x.path is not None)
        outputs = [Value(x, path, is_trained and is_inexact(x)) for x in arrays]
        step = node, self._example, self._number, outputs
        self._add(Application(*step, o, runner, inputs, is_trained, outside))
        return outputs

    def _row(self, x: Any, type_: Type, r: int) -> None:
        """Append a row for `x` to result `r`, and rows for items to those inside."""
        row, items = list[Value](), iter(self._items[r])
        for leaf, leaf_type in zip(tensor_leaves(x), leaf_types(type_), strict=True):
            if not isinstance(leaf_type, SequenceType):
                row.append(leaf)
                continue
            row.append(Value(np.array(len(leaf), LENGTH.dtype)))
            inner = next(items)
            for item in leaf:
                self._row(item, leaf_type.item, inner)
        self.results[r].append(row)


class _Until(Values):
    """An evaluator of one example that raises `Misfit` at step number `last`.

    Its values have no paths. So the error has that of the innermost call whose operands
    are objects, and in a lazy function that is the call of a block.
    """

    def __init__(self, values: Values, last: int) -> None:
        super().__init__(values.program, values.params)
        self._runners, self._last = values._runners, last

    def _add(self, step: Step) -> None:
        if step.number == self._last:
            raise Misfit('is made here', str(step.node), None)
        for value in step.outputs:
            value.path = None
        super()._add(step)


def _no_key(stream: str) -> Array:
    """Return zeros in place of a random key, of which nothing is drawn."""
    type_ = KeyType(stream)
    return np.zeros(type_.shape, type_.dtype)


# ---- numbers that are not finite -----------------------------------------------------


def bad_kind(*arrays: Array) -> str | None:
    """Return 'nan' if there is a NaN, else 'inf' if an infinity, else `None`."""
    return (None, 'inf', 'nan')[badness(arrays)]


def badness(arrays: Iterable[Array]) -> int:
    """Return 2 if there is a NaN in arrays, 1 if an infinity, else 0."""
    floats = [x for x in arrays if is_inexact(x)]
    if any(np.isnan(x).any() for x in floats):
        return 2
    return int(not all(np.isfinite(x).all() for x in floats))
