# SPDX-License-Identifier: Apache-2.0
"""A search for the first NaN or infinity, with its operation, example and inputs.

The graph is run as it is, operation by operation in the order of levels, and then in
reverse, with gradients row by row; so each row of each operation can be looked at.

    parameters -> constants of the data -> nodes, from the first level to the last
                                             -> the loss, and its gradient
                                           nodes, from the last level to the first

The first fault in this order is reported: all later ones may follow from it. A *fault*
is a *bad* number, NaN or infinite, or an index outside of its array. Shapes: [nodes] of
an operation, [values] of a type, [rows] of a chunk of nodes or of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.arguments import check_examples, expect
from jfold.base.jaxprs import is_inexact
from jfold.base.tracebacks import api_boundary
from jfold.data.scheduler import build
from jfold.debug.row_finder import CONSTANTS, NODES, find_row
from jfold.debug.row_runner import (
    Arrays,
    Results,
    Runner,
    bad_kind,
    chunks,
    first_bad,
    loss_of,
    padded,
    sum_of_floats,
    waves,
)
from jfold.device.execution import make_execution
from jfold.device.random_keys import without_draws
from jfold.device.results import returned
from jfold.graph import Array, ranges
from jfold.language.parameter_checks import checked_params
from jfold.lower import lower
from jfold.models.model import Model
from jfold.program.components import operand_types
from jfold.program.operations import Layer, Program
from jfold.scheduling.demands import capacity, demands
from jfold.scheduling.layout import has_gradient
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.selections import select
from jfold.scheduling.spec import Spec
from jfold.tracing.record import trace

Values: TypeAlias = tuple[int, Array]  # the number of their type; their numbers


@dataclass(frozen=True, eq=False)
class NonFinite:
    """The first NaN or infinity, as `jfold.find_nan` returns it; prints readably.

    Attributes:
      message: what is wrong.
      example: the number of the example; `None` if parameters, the loss, or a gradient
        summed over nodes are at fault.
      path: the path in the example, as `['left'][0]`, to the innermost part of the data
        from which all inputs of the operation are computed.
      block: the path of the block in the expression, as in an `InputError`.
      layer: the name of the layer of the operation or of the parameters; else ''.
      inputs: the inputs of the operation, each [*shape].
    """

    message: str
    example: int | None = None
    path: str = ''
    block: str = ''
    layer: str = ''
    inputs: tuple[Array, ...] = ()

    def __repr__(self) -> str:
        if self.example is None:
            return self.message
        place = f'example {self.example}' + (f', at {self.path}' if self.path else '')
        return f'{place}: {self.message}' + (f'; in {self.block}' if self.block else '')


@api_boundary
def find_nan(
    model: Model,
    params: Mapping[str, Any],
    examples: Iterable[Any],
    *,
    loss: Callable[[Any], Any] | None = None,
    external: Mapping[str, Any] | None = None,
) -> NonFinite | None:
    """Look for the first NaN or infinity in a model's values, then in its gradients.

    Operations run one by one, which is slow but compiles nothing large; so pass the
    examples of one batch or fewer. Infinite outputs of infinite inputs do not count. An
    index outside an array, for which JAX gives NaN or another row, is found too, except
    in a layer with a `while_loop` that JAX cannot check. Layers with random draws draw
    nothing. Gradients are those of a step of training: results that the loss does not
    read have none.

    Args:
      model: as `jfold.compile` returns it.
      params: as of `Model.apply`.
      examples: the examples of a batch.
      loss: a function of what `Model.apply` returns; by default the sum of all floats.
        Its gradients by parameters are looked at, and by values on the way to these.
      external: as of `Model.apply`.

    Returns:
      The fault, to be printed; `None` if all is finite.

    Raises:
      TypeError: `model` is no model, or `loss` no function.
      InputError, ...: as `Model.schedule` and `Model.apply` raise them.

    >>> import jax.numpy as jnp, jfold as jf
    >>> model = jf.compile(jf.Map(jf.Scalar() >> jf.Function(jnp.log)) >> jf.Sum())
    >>> jf.find_nan(model, {}, [[1, 2], [3, -4]])
    example 1, at [1]: expected finite values of log(float32[]) -> float32[], got nan \
of -4.0; in Pipe[0].Map.Pipe[1].Function(log)
    """
    is_model = isinstance(model, Model)
    expect('model', model, is_model, 'a model', 'pass what `jfold.compile` returns')
    is_function = loss is None or callable(loss)
    expect('loss', loss, is_function, 'a function of what `Model.apply` returns')
    # Not fused, so that each function is examined.
    program = lower(model.block, fuses=False)
    params = checked_params(program.layers, params, external)
    for layer in program.layers:
        tree = params[layer.name] if layer.params is not None else None
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if (bad := bad_kind(np.asarray(leaf))) is not None:
                place = f'{layer.name!r}{jax.tree_util.keystr(path)}'
                message = f'expected finite parameters, got {bad} in {place}'
                return NonFinite(message, layer=layer.name)
    search = Search(program, params, list(check_examples(examples)))
    return search.first(loss or sum_of_floats)


# ---- the search ----------------------------------------------------------------------


class Search:
    """A search for NaN or infinity in values of a graph, then in their gradients.

    There are no tiles, buffers and spare rows here: a value has the number that it has
    in the `Selection` of all examples, where the values of a type are neighbours.

    Attributes:
      waves: pairs of an operation and nodes of one level, as `waves` yields them.
      inputs: per operation and input, the values read, one a node.
      outputs: per operation and output, the values made, one a node.
      results: per result and tensor, the values returned, one a row.
      begin: per type, the number of its first value.
      values: per type, its values [values of the type, *shape].
      cotangents: per type, the gradients of its values so far, like `values`.
      read: which values a result depends on [values] bool.
      trained: which values are floats that depend on parameters [values] bool.
      totals: by layer, the gradients of its float parameters so far, each [*shape].
      bad_gradient, outside: the first fault of a gradient and of an index, if any yet.
    """

    def __init__(self, program: Program, params: Any, examples: list[Any]) -> None:
        operations = without_draws(program).operations
        self.program = program = replace(program, operations=operations)
        self.params, self.examples = params, examples
        self.selection = selection = select(program, trace(program, examples))
        self.graph, self.waves = selection.graph, list(waves(program, selection.graph))
        self.runners = [Runner(x, x.layer.own(params)) for x in program.operations]
        read: list[list[Values]] = [
            [(t, selection.read_at((table, a))) for a, t in enumerate(operands)]
            for table, operands in enumerate(operand_types(program))
        ]
        count, tables = len(operations), enumerate(operations, len(program.types))
        self.inputs, self.results = read[:count], read[count:]
        self.outputs: list[list[Values]] = [
            [(t, self._of_part(o, k)) for k, t in enumerate(x.outputs)]
            for o, x in tables
        ]
        *self.begin, count = selection.numbers.ends
        self.values = self._constants()
        self.cotangents = [np.zeros_like(x) for x in self.values]
        self.read, self.trained = self._read(count), np.zeros(count, bool)
        self.totals: dict[str, Arrays] = {}
        self.bad_gradient: NonFinite | None = None
        self.outside: NonFinite | None = None

    def _of_part(self, table: int, output: int = 0) -> Array:
        """Return value numbers [rows] of a table: constants, or output `output`."""
        begin = self.selection.numbers.begin(table, output)
        return ranges(begin, self.selection.counts[table])

    def _constants(self) -> Arrays:
        """Return each type's values [values, *shape]: constants, zeros for outputs."""
        first, ends = self.selection.numbers.first, self.selection.numbers.ends
        values = []
        for t, type_ in enumerate(self.program.types):
            dtype = jax.dtypes.canonicalize_dtype(type_.dtype)
            array = np.zeros((ends[t + 1] - ends[t], *type_.shape), dtype)
            shared = [x for of, x in self.program.constants if of == t]
            for number, constant in enumerate(shared):
                array[first[t] + number - ends[t]] = constant
            array[self._of_part(t) - ends[t]] = self.graph.constants[t].columns[0]
            values.append(array)
        return values

    def _read(self, count: int) -> Array:
        """Return a mask [count] bool of the values that some result depends on."""
        read = np.zeros(count, bool)
        for result in self.results:
            for _, numbers in result:
                read[numbers] = True
        # In reverse, so that all readers of a value are seen before its node.
        for o, nodes in reversed(self.waves):
            is_read = np.any([read[x[nodes]] for _, x in self.outputs[o]], axis=0)
            for _, numbers in self.inputs[o]:
                read[numbers[nodes[is_read]]] = True
        return read

    def first(self, loss: Callable[[Any], Any]) -> NonFinite | None:
        """Return the first fault in values, else in gradients of `loss`, or `None`."""
        for t, table in enumerate(self.graph.constants):
            constants, read = table.columns[0], self.read[self._of_part(t)]
            if (row := first_bad([constants], where=read)) is not None:
                bad = bad_kind(constants[row])
                message = f'expected finite numbers, got {bad} in the data'
                return self._located(CONSTANTS, t, row, message)
        for o, nodes in self.waves:
            for rows in chunks(nodes):
                if (fault := self._forward(o, rows)) is not None:
                    return fault
        return self.outside or self._in_gradients(loss)

    # ---- values

    def _forward(self, o: int, rows: Array) -> NonFinite | None:
        """Run and store nodes `rows` of operation `o`; return the first new fault.

        Return `None` if none is new; keep the first index out of bounds as `outside`.
        """
        operation, inputs = self.program.operations[o], self._inputs(o, rows)
        outputs, outside = self.runners[o].forward(len(rows), inputs)
        # For the reverse: values that depend on no parameter need no gradient, so an
        # infinite gradient of such a value is no fault.
        trained = self._is_trained(o, rows)
        for (t, all_numbers), x in zip(self.outputs[o], outputs, strict=True):
            numbers = all_numbers[rows]
            self.values[t][numbers - self.begin[t]] = x
            self.trained[numbers] = trained & is_inexact(x)
            x[~self.read[numbers]] = 0  # values that are never read are no faults
        if (row := first_bad(outputs, inputs)) is not None:
            bad = bad_kind(*(x[row] for x in outputs))
            what = f'finite values of {operation!r}, got {bad}'
            return self._at_node(o, int(rows[row]), what, outside.get(row))
        # An index outside an array is reported only if no value is at fault: where it
        # gives NaN, this NaN is the fault, with the index as its cause.
        if outside and self.outside is None:
            row = min(outside)
            what = f'an index within its array in {operation!r}, got another'
            self.outside = self._at_node(o, int(rows[row]), what, outside[row])
        return None

    def _inputs(self, o: int, rows: Array) -> Arrays:
        """Return the inputs of nodes `rows` of operation `o`, each [rows, *shape]."""
        return [self.values[t][x[rows] - self.begin[t]] for t, x in self.inputs[o]]

    def _is_trained(self, o: int, rows: Array) -> Array:
        """Return a mask [rows]: which nodes of operation `o` depend on parameters."""
        result = np.full(len(rows), has_gradient(self.program.operations[o]))
        for _, numbers in self.inputs[o]:
            result |= self.trained[numbers[rows]]
        return result

    # ---- gradients

    def batch(self) -> tuple[Schedule, Results]:
        """Return a schedule of all examples, and each result's tensors [rows, ...]."""
        # `returned` takes masks and the examples of rows from a schedule, so one is
        # built, though nothing runs by it. Spare rows are zero.
        need = capacity(self.program, demands(self.selection), len(self.selection))
        schedule, results = build([self.selection], Spec(self.program, need)), []
        for r, result in enumerate(self.results):
            rows = len(schedule.owners(r))  # none where each example has one
            tensors = (self.values[t][x - self.begin[t]] for t, x in result)
            results.append([jnp.asarray(padded(x, rows)) for x in tensors])
        return schedule, results

    def _in_gradients(self, loss: Callable[[Any], Any]) -> NonFinite | None:
        """Return the fault of the loss or parameter gradients; `None` without one."""
        schedule, results = self.batch()
        value, grads = loss_of(
            lambda results: loss(returned(self.program, schedule, results)), results
        )
        if (bad := bad_kind(np.asarray(value))) is not None:
            return NonFinite(f'expected a finite loss, got {bad}')
        tensors = [(r, *x) for r, result in enumerate(self.results) for x in result]
        for (r, t, numbers), grad in zip(tensors, grads, strict=True):
            if grad is not None:
                rows = np.asarray(grad)[: len(numbers)]
                if (row := self._add(t, numbers, rows)) is not None:
                    what = f'a loss with a finite gradient, got {bad_kind(rows[row])}'
                    example = self.graph.results[r].owner(row)
                    self.bad_gradient = NonFinite(f'expected {what}', example)
        # The execution of a training step says which operations run in reverse.
        execution = make_execution(schedule.spec, self.params)
        flows = execution.flows([x is not None for x in grads])
        for o, nodes in reversed(self.waves):
            if o in flows:
                for rows in chunks(nodes[self._is_trained(o, nodes)]):
                    self._backward(o, rows, flows[o].live)
        # Only parameter gradients count: an infinite gradient of a value may be stopped
        # by a function before it reaches any parameter.
        layers = {x.layer.name: x.layer for x in self.program.operations}
        for name, total in self.totals.items():
            if (of_layer := _bad_gradient(layers[name], total)) is not None:
                message = f'expected {of_layer} in sum, though of no node alone'
                return self.bad_gradient or NonFinite(message, layer=name)
        return None

    def _add(self, t: int, numbers: Array, grads: Array) -> int | None:
        """Add `grads` to the `cotangents` of those values `numbers` that are trained.

        Return the first bad one's index; `None` without one, or after an earlier fault.
        """
        trained = self.trained[numbers]
        places = numbers[trained] - self.begin[t]  # which may repeat
        with np.errstate(all='ignore'):  # too large a sum is found where it is read
            np.add.at(self.cotangents[t], places, grads[trained])
        return None if self.bad_gradient else first_bad([grads], where=trained)

    def _backward(self, o: int, rows: Array, live: tuple[int, ...]) -> None:
        """Run nodes `rows` of operation `o` in reverse, from cotangents to gradients.

        Outputs `live` have cotangents. Gradients by inputs are added to `cotangents`,
        those by parameters to `totals`.
        """
        operation, inputs = self.program.operations[o], self._inputs(o, rows)
        outputs = [self.outputs[o][k] for k in live]
        grads = [self.cotangents[t][x[rows] - self.begin[t]] for t, x in outputs]
        of_inputs, of_params = self.runners[o].reverse(live, inputs, grads)
        # Inputs first: an infinite gradient there makes that of parameters infinite
        # too, and says more of where it comes from.
        pairs = zip(self.inputs[o], of_inputs, strict=True)
        for a, ((t, numbers), grad) in enumerate(pairs):
            row = None if grad is None else self._add(t, numbers[rows], grad)
            if row is not None:
                bad = bad_kind(of_inputs[a][row])
                what = f'a finite gradient of input {a} of {operation!r}, got {bad}'
                self.bad_gradient = self._at_node(o, int(rows[row]), what)
        if self.bad_gradient is None and bad_kind(*of_params) is not None:
            # Gradients of parameters are sums over rows, so rows are run alone to find
            # the one at fault; there is none where finite rows overflow together.
            for number, node in enumerate(rows.tolist()):
                alone = ([x[[number]] for x in y] for y in (inputs, grads))
                _, of_row = self.runners[o].reverse(live, *alone)
                if (of_layer := _bad_gradient(operation.layer, of_row)) is not None:
                    self.bad_gradient = self._at_node(o, node, of_layer)
                    break
        name = operation.layer.name
        with np.errstate(all='ignore'):  # too large a sum is found in the end
            total = self.totals.get(name, [np.zeros_like(x) for x in of_params])
            self.totals[name] = list(map(np.add, total, of_params))

    # ---- reports

    def _at_node(
        self, o: int, node: int, what: str, cause: str | None = None
    ) -> NonFinite:
        inputs = tuple(x[0] for x in self._inputs(o, np.array([node])))
        shown = ', '.join(map(_shown, inputs)) or 'no inputs'
        message = f'expected {what} of {shown}' + (f': {cause}' if cause else '')
        layer = self.program.operations[o].layer.name
        report = self._located(NODES, o, node, message)
        return replace(report, layer=layer, inputs=inputs)

    def _located(self, kind: str, number: int, row: int, message: str) -> NonFinite:
        """Return a report: `message`, with the example, path and block of a faulty row.

        It is row `row` of table `number` of a `kind`, CONSTANTS or NODES.
        """
        tables = self.graph.operations if kind == NODES else self.graph.constants
        example = tables[number].owner(row)
        # The example is traced again, alone, where its rows are counted from 0.
        alone = row - int(tables[number].first[example])
        data = self.examples[example]
        place = find_row(self.program, data, kind, number, alone)
        return NonFinite(message, example, *place)


def _bad_gradient(layer: Layer, grads: Arrays) -> str | None:
    """Return text about a layer's first bad gradient; `None` if all are finite."""
    pairs = jax.tree_util.tree_leaves_with_path(layer.params)
    paths = [jax.tree_util.keystr(path) for path, leaf in pairs if is_inexact(leaf)]
    for path, grad in zip(paths, grads, strict=True):
        if (bad := bad_kind(grad)) is not None:
            return f'a finite gradient of layer {layer.name!r}{path}, got {bad}'
    return None


def _shown(x: Array) -> str:
    """Return a number as text, or the dtype, shape and range of an array."""
    if not x.ndim:
        return str(x.item() if x.dtype.kind in 'biuf' else x)
    text = f'{x.dtype}{list(x.shape)}'
    if is_inexact(x) and x.size and np.isfinite(x).all() and x.dtype.kind != 'c':
        text += f' from {float(x.min()):.4g} to {float(x.max()):.4g}'
    return text
