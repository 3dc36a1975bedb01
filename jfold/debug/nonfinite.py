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
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.errors import check_examples, expect
from jfold.base.tracebacks import api_boundary
from jfold.data.scheduler import build
from jfold.debug.losses import loss_of, sum_of_floats
from jfold.debug.rowwise import (
    ROWS,
    Runner,
    bad_kind,
    chunks,
    filled_up,
    first_bad,
    is_inexact,
    padded,
    worst,
)
from jfold.debug.visit import make_walk
from jfold.device.execution import Execution, make_execution
from jfold.device.linear import MaybeZeros
from jfold.device.random_keys import without_draws
from jfold.device.returned import returned
from jfold.graph import Graph, Table
from jfold.language.parameter_checks import check_params, with_external
from jfold.language.reference import CONSTANTS, NODES, explain_row
from jfold.lower import lower
from jfold.models.model import Model
from jfold.program.operations import Program
from jfold.scheduling.demands import capacity, demands
from jfold.scheduling.layout import has_gradient
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Spec
from jfold.tracing.record import trace

Array = np.ndarray[Any, Any]
Arrays = list[Array]


@dataclass(frozen=True, eq=False)
class NonFinite:
    """The first NaN or infinity, as `jfold.find_nan` returns it; prints readably.

    Attributes:
      message: what is wrong.
      example: the number of the example; `None` if parameters, the loss, or a gradient
        summed over nodes are at fault.
      path: the path in the example, as `['left'][0]`, to the innermost data that hold
        all that the inputs of the operation come from.
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


class _Fault(NamedTuple):
    """A fault at a row of a table of the graph, a constant or node."""

    table: str  # CONSTANTS or NODES
    number: int  # the type or operation
    row: int  # the index among the rows of all examples
    message: str
    inputs: tuple[Array, ...] = ()


@api_boundary
def find_nan(
    model: Model,
    params: Mapping[str, Any],
    examples: Iterable[Any],
    *,
    loss: Callable[[Any], Any] | None = None,
    external: Mapping[str, Any] | None = None,
) -> NonFinite | None:
    """Look for the first NaN or infinity, in values and then in gradients.

    Operations run one by one, which is slow but compiles nothing large; so pass the
    examples of one batch or fewer. Infinite outputs of infinite inputs do not count. An
    index outside an array, for which JAX gives NaN or another row, is found too. Layers
    with random draws draw nothing. Gradients are those of a step of training: results
    that the loss does not read have none.

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
    params = with_external(program.layers, params, external)
    check_params(program.layers, params)
    if (bad := _bad_parameter(program, params)) is not None:
        return bad
    items = list(check_examples(examples))
    search = Search(program, params, trace(program, items))
    fault = search.first(loss or sum_of_floats)
    return search.located(fault, items) if isinstance(fault, _Fault) else fault


def _bad_parameter(program: Program, params: Mapping[str, Any]) -> NonFinite | None:
    for layer in program.layers:
        tree = params[layer.name] if layer.params is not None else None
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if (bad := bad_kind(np.asarray(leaf))) is not None:
                place = f'{layer.name!r}{jax.tree_util.keystr(path)}'
                message = f'expected finite parameters, got {bad} in {place}'
                return NonFinite(message, layer=layer.name)
    return None


# ---- the search ----------------------------------------------------------------------


class Search:
    """A search for faults in the values of a graph, and then in their gradients.

    Attributes:
      values: per type, all values [values, *shape], numbered as by `Walk`.
      read: per type, which values a result depends on [values] bool.
      trained: per type, which values are floats that parameters decide [values] bool.
      made: per operation and output, the number of the value of each node [nodes].
      totals: by layer, the gradients of its float parameters so far, each [*shape].
    """

    def __init__(self, program: Program, params: Any, graph: Graph) -> None:
        self.program, self.walk = program, make_walk(program, graph)
        self.made, self.params = self.walk.made, params
        self.totals: dict[str, Arrays] = {}
        self.runners = [
            Runner(x, x.layer.own(params)) for x in without_draws(program).operations
        ]
        self.values = [
            np.zeros((count, *t.shape), jax.dtypes.canonicalize_dtype(t.dtype))
            for t, count in zip(program.types, self.walk.counts, strict=True)
        ]
        self.trained = [np.zeros(len(x), bool) for x in self.values]
        self.read = self.walk.read()
        for t, numbers, constants in (*self.walk.shared(), *self.walk.own()):
            self.values[t][numbers] = constants

    def first(self, loss: Callable[[Any], Any]) -> _Fault | NonFinite | None:
        """Return the first fault in values, else in gradients; `None` without any."""
        waves = list(self.walk.waves())
        fault = self._bad_constant()
        # An index outside of an array is kept back until no value is at fault: where it
        # gives NaN, that value is the fault, with the index as its cause.
        outside = None
        for o, nodes in waves:
            if fault is None:
                fault, index = self._forward(o, nodes)
                outside = outside or index
        if fault or outside:
            return fault or outside
        return self._in_gradients(loss, waves)

    def _in_gradients(
        self, loss: Callable[[Any], Any], waves: list[tuple[int, Array]]
    ) -> _Fault | NonFinite | None:
        """Return the first fault on the way to a non-finite gradient, or `None`."""
        schedule, results = self.results()
        value, grads = loss_of(
            lambda results: loss(returned(self.program, schedule, results)), results
        )
        if (bad := bad_kind(np.asarray(value))) is not None:
            return NonFinite(f'expected a finite loss, got {bad}')
        fault: _Fault | NonFinite | None
        cotangents, fault = self._cotangents(grads)
        is_read = [x is not None for y in grads for x in y]
        flows = self._execution(schedule).flows(is_read)
        for o, nodes in reversed(waves):
            if o in flows:
                bad_row = self._backward(o, nodes, cotangents, flows[o].live)
                fault = fault or bad_row
        # Only a gradient of parameters counts: a function may stop one that is infinite
        # on its way there.
        in_sum = self._bad_total()
        return in_sum and (fault or in_sum)

    def _bad_constant(self) -> _Fault | None:
        for t, numbers, constants in self.walk.own():
            if (row := _first_bad_of(constants, self.read[t][numbers])) is not None:
                bad = bad_kind(constants[row])
                message = f'expected finite numbers, got {bad} in the data'
                return _Fault(CONSTANTS, t, row, message)
        return None

    # ---- values

    def _forward(self, o: int, nodes: Array) -> tuple[_Fault | None, _Fault | None]:
        """Run nodes [n], fill in `values`; return faults of an output and an index."""
        runner, outside = self.runners[o], None
        for rows in chunks(nodes):
            inputs = self._inputs(o, rows)
            error, results = runner.forward(runner.params, *map(filled_up, inputs))
            outputs = [np.array(x)[: len(rows)] for x in results]
            # For the reverse: values that depend on no parameter need no gradient, so
            # an infinite gradient of such a value is no fault.
            trained = self._is_trained(o, rows)
            types = runner.operation.outputs
            for t, numbers, x in zip(types, self.made[o], outputs, strict=True):
                self.values[t][numbers[rows]] = x
                self.trained[t][numbers[rows]] = trained & is_inexact(x)
                x[~self.read[t][numbers[rows]]] = 0  # values never read are no faults
            text = error.get()
            row = first_bad(outputs, inputs)
            if row is not None:
                name = worst([x[row] for x in outputs])
                what = f'finite values of {runner.operation!r}, got {name}'
                if text is not None:  # some row of these: to see if this one, run it
                    text = self._index_error(runner, [x[row : row + 1] for x in inputs])
                return self._at_node(o, int(rows[row]), what, text), outside
            if text is not None and outside is None:
                outside = self._outside(o, rows, inputs)
        return None, outside

    def _outside(self, o: int, rows: Array, inputs: Arrays) -> _Fault:
        """Return the fault of the first row that takes an index outside an array."""
        # JAX reports such an index, but not its row, so rows run one by one.
        runner, row, text = self.runners[o], 0, None
        while text is None and row < len(rows):
            text = self._index_error(runner, [x[row : row + 1] for x in inputs])
            row += 1
        what = f'an index within its array in {runner.operation!r}, got another'
        return self._at_node(o, int(rows[row - 1]), what, text)

    def _index_error(self, runner: Runner, inputs: Arrays) -> str | None:
        error, _ = runner.forward(runner.params, *map(filled_up, inputs))
        text: str | None = error.get()
        # Further lines tell where in the code, with the frames of this file.
        return text and text.partition('\n')[0].strip()

    def _inputs(self, o: int, rows: Array) -> Arrays:
        types = self.program.operations[o].inputs
        uses = self.walk.inputs[o]
        return [self.values[t][x[rows]] for t, x in zip(types, uses, strict=True)]

    def _is_trained(self, o: int, rows: Array) -> Array:
        """Return which of the nodes `rows` depend on parameters, [rows] bool."""
        result = np.full(len(rows), has_gradient(self.program.operations[o]))
        for trained in self._trained_inputs(o, rows):
            result |= trained
        return result

    def _trained_inputs(self, o: int, rows: Array) -> Arrays:
        types = self.program.operations[o].inputs
        uses = self.walk.inputs[o]
        return [self.trained[t][x[rows]] for t, x in zip(types, uses, strict=True)]

    # ---- gradients

    def _cotangents(self, grads: list[MaybeZeros]) -> tuple[Arrays, NonFinite | None]:
        """Return per type cotangents [values, *shape] from results, and a fault."""
        cotangents, bad = [np.zeros_like(x) for x in self.values], None
        for r, result in enumerate(self.program.results):
            table = self.walk.graph.results[r]
            tensors = zip(result.tensors, self.walk.results[r], grads[r], strict=True)
            for t, uses, grad in tensors:
                if grad is not None:
                    rows = np.asarray(grad)[: len(uses)]
                    _add_at(cotangents[t], uses, rows)
                    bad = bad or _bad_loss(rows, self.trained[t][uses], table)
        return cotangents, bad

    def _execution(self, schedule: Schedule) -> Execution:
        """Return the `Execution` of a training step, which says what has a reverse."""
        spec = schedule.spec.replaced(program=without_draws(self.program))
        return make_execution(spec, self.params)

    def results(self) -> tuple[Schedule, list[list[jax.Array]]]:
        """Return a schedule, and per result its tensors, each [rows, *shape]."""
        # `returned` takes masks and the examples of rows from a schedule, so one is
        # built, though nothing runs by it. Spare rows are zero.
        selection = self.walk.selection
        need = capacity(self.program, demands(selection), len(selection))
        schedule, results = build([selection], Spec(self.program, need)), []
        for r, result in enumerate(self.program.results):
            uses = self.walk.results[r]
            tensors = [
                self.values[t][x] for t, x in zip(result.tensors, uses, strict=True)
            ]
            rows = len(schedule.owners(r))  # none where each example has one
            results.append([jnp.asarray(padded(x, rows)) for x in tensors])
        return schedule, results

    def _backward(
        self, o: int, nodes: Array, cotangents: Arrays, live: tuple[int, ...]
    ) -> _Fault | None:
        """Reverse nodes [n]; add to cotangents and `totals`; return the first fault.

        Args:
          live: the indices of the outputs that have cotangents.
        """
        types = self.program.operations[o].outputs
        nodes = nodes[self._is_trained(o, nodes)]
        fault: _Fault | None = None
        for rows in chunks(nodes):
            inputs = self._inputs(o, rows)
            grads = [cotangents[types[k]][self.made[o][k][rows]] for k in live]
            of_inputs, of_params = self._reverse(o, live, inputs, grads)
            # Inputs first: an infinite gradient there makes that of parameters infinite
            # too, and says more of where it comes from.
            bad = self._add_gradients(o, rows, of_inputs, cotangents)
            fault = fault or bad
            if fault is None and not all(np.isfinite(x).all() for x in of_params):
                fault = self._bad_row(o, live, rows, inputs, grads)
            name = self.program.operations[o].layer.name
            with np.errstate(all='ignore'):  # `_bad_total` finds too large a sum
                total = self.totals.get(name, [np.zeros_like(x) for x in of_params])
                self.totals[name] = list(map(np.add, total, of_params))
        return fault

    def _reverse(
        self, o: int, live: tuple[int, ...], inputs: Arrays, cotangents: Arrays
    ) -> tuple[list[Any], Arrays]:
        """Return gradients of inputs [ROWS, *shape], and of parameters, by `Runner`."""
        # Spare rows have cotangents of zero, so they add nothing to parameters.
        runner = self.runners[o]
        rows, grads = map(filled_up, inputs), (padded(x, ROWS) for x in cotangents)
        of_inputs, of_params = runner.reverse(live, runner.params, [*rows], [*grads])
        return of_inputs, list(map(np.asarray, of_params))

    def _add_gradients(
        self, o: int, rows: Array, of_inputs: list[Any], cotangents: Arrays
    ) -> _Fault | None:
        """Add gradients of trained inputs to `cotangents`; return the first fault."""
        operation, grads = self.program.operations[o], iter(of_inputs)
        trained = self._trained_inputs(o, rows)
        for a, t in enumerate(operation.inputs):
            if not is_inexact(self.values[t]):
                continue
            grad = np.asarray(next(grads))[: len(rows)]
            places = self.walk.inputs[o][a][rows]
            _add_at(cotangents[t], places[trained[a]], grad[trained[a]])
            if (row := _first_bad_of(grad, trained[a])) is not None:
                what = f'a finite gradient of input {a} of {operation!r}'
                message = f'{what}, got {bad_kind(grad[row])}'
                return self._at_node(o, int(rows[row]), message)
        return None

    def _bad_row(
        self,
        o: int,
        live: tuple[int, ...],
        rows: Array,
        inputs: Arrays,
        cotangents: Arrays,
    ) -> _Fault | None:
        """Return the fault of the first row whose gradient of a parameter is bad."""
        layer = self.program.operations[o].layer
        # Gradients of parameters are sums over rows, so rows are run alone to find the
        # one at fault; `None` is returned where finite rows overflow together.
        for number, node in enumerate(rows.tolist()):
            alone = slice(number, number + 1)
            row = [[x[alone] for x in y] for y in (inputs, cotangents)]
            _, of_params = self._reverse(o, live, *row)
            for path, x in zip(_float_paths(layer.params), of_params, strict=True):
                if (bad := bad_kind(x)) is not None:
                    what = f'a finite gradient of layer {layer.name!r}{path}'
                    return self._at_node(o, node, f'{what}, got {bad}')
        return None

    def _bad_total(self) -> NonFinite | None:
        """Return the fault of the first parameter whose gradient in total is bad."""
        layers = {x.layer.name: x.layer for x in self.program.operations}
        for name, total in self.totals.items():
            for path, x in zip(_float_paths(layers[name].params), total, strict=True):
                if (bad := bad_kind(x)) is not None:
                    what = f'a finite gradient of layer {name!r}{path}, got {bad}'
                    message = f'expected {what} in sum, though of no node alone'
                    return NonFinite(message, layer=name)
        return None

    # ---- reports

    def _at_node(
        self, o: int, node: int, what: str, cause: str | None = None
    ) -> _Fault:
        inputs = tuple(x[0] for x in self._inputs(o, np.array([node])))
        shown = ', '.join(map(_shown, inputs)) or 'no inputs'
        message = f'expected {what} of {shown}' + (f': {cause}' if cause else '')
        return _Fault(NODES, o, node, message, inputs)

    def located(self, fault: _Fault, items: list[Any]) -> NonFinite:
        """Return a fault as `NonFinite`, with its example, path and block."""
        of_nodes = fault.table == NODES
        tables = self.walk.graph.operations if of_nodes else self.walk.graph.constants
        table = tables[fault.number]
        example = _owner(table, fault.row)
        # The example is traced again, alone, where its rows are counted from 0.
        row = fault.row - int(table.first[example])
        place = explain_row(
            self.program, items[example], fault.table, fault.number, row
        )
        operation = self.program.operations[fault.number] if of_nodes else None
        return NonFinite(
            fault.message,
            example,
            place.path if place else '',
            place.block if place else '',
            operation.layer.name if operation else '',
            fault.inputs,
        )


def _add_at(array: Array, places: Array, rows: Array) -> None:
    """Add rows [n, *shape] to an array at indices `places` [n], which may repeat."""
    with np.errstate(all='ignore'):  # too large a sum is found where it is read
        np.add.at(array, places, rows)


def _float_paths(params: object) -> list[str]:
    """Return the paths, as text, of the float arrays in the parameters of a layer."""
    pairs = jax.tree_util.tree_leaves_with_path(params)
    return [jax.tree_util.keystr(path) for path, leaf in pairs if is_inexact(leaf)]


def _bad_loss(grads: Array, trained: Array, table: Table) -> NonFinite | None:
    """Return the fault of the first bad row of `grads` that is `trained` [rows]."""
    row = _first_bad_of(grads, trained)
    if row is None:
        return None
    message = f'expected a loss with a finite gradient, got {bad_kind(grads[row])}'
    return NonFinite(message, _owner(table, row))


def _first_bad_of(x: Array, chosen: Array) -> int | None:
    """Return the index of the first bad row of `x` where `chosen` [rows], or `None`."""
    row = first_bad([x[chosen]])
    return None if row is None else int(np.flatnonzero(chosen)[row])


def _owner(table: Table, row: int) -> int:
    """Return the number of the example that a row of a table belongs to."""
    return int(np.searchsorted(table.first, row, side='right')) - 1


def _shown(x: Array) -> str:
    """Return a number as text, or the dtype, shape and range of an array."""
    if not x.ndim:
        return str(x.item() if x.dtype.kind in 'biuf' else x)
    text = f'{x.dtype}{list(x.shape)}'
    if is_inexact(x) and x.size and np.isfinite(x).all() and x.dtype.kind != 'c':
        text += f' from {float(x.min()):.4g} to {float(x.max()):.4g}'
    return text
