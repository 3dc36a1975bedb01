# SPDX-License-Identifier: Apache-2.0
"""A search for the first NaN or infinity, with its operation, example and inputs.

Examples are evaluated one after another, operation by operation, and then in reverse,
with gradients node by node; so each node of each operation can be looked at.

    parameters -> the steps of the first example, ..., of the last
                                          -> the loss, and its gradient
                  the steps of the first example, ..., of the last

A fault of values is the first in this order, since later ones may follow from it. Of
gradients, which flow from the last step to the first, it is the first of those that
follow from no other. A *fault* is a *bad* number, NaN or infinite, or an index outside
of its array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.arguments import check_examples, expect
from jfold.base.errors import short_repr
from jfold.base.jaxprs import is_inexact
from jfold.base.tracebacks import api_boundary
from jfold.data.scheduler import build
from jfold.debug.values import Application, Step, Value, Values, bad_kind, badness
from jfold.device.execution import make_execution
from jfold.device.linear import (
    MaybeZeros,
    maybe_zero,
    partition,
    replace_list,
    scatter_list,
)
from jfold.device.random_keys import without_draws
from jfold.device.results import returned
from jfold.graph import Array
from jfold.language.data_paths import common_prefix
from jfold.language.parameter_checks import checked_params
from jfold.lower import lower
from jfold.models.model import Model
from jfold.program.operations import Layer, Program
from jfold.scheduling.demands import capacity, demands
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.selections import select
from jfold.scheduling.spec import Spec
from jfold.tracing.record import trace

Results: TypeAlias = list[list[Any]]  # per result, its tensors, each [rows, *shape]


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
      TypeError: `model` is no model, or `loss` no function that returns a float.
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
    # On the host, where arrays have no mesh: operations run on one device.
    params = jax.device_get(checked_params(program.layers, params, external))
    for layer in program.layers:
        tree = params[layer.name] if layer.params is not None else None
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if (bad := bad_kind(leaf)) is not None:
                place = f'{layer.name!r}{jax.tree_util.keystr(path)}'
                message = f'expected finite parameters, got {bad} in {place}'
                return NonFinite(message, layer=layer.name)
    # Under these settings JAX would raise before the fault is located.
    with jax.debug_nans(False), jax.debug_infs(False):
        search = Search(program, params, list(check_examples(examples)))
        return search.first(loss or sum_of_floats)


# ---- the search ----------------------------------------------------------------------


class Search:
    """A search for NaN or infinity in values of examples, then in their gradients.

    Attributes:
      values: all values, and the steps that made them.
      totals: by layer, the gradients of its float parameters so far, each [*shape].
      fault: the first step with a fault of a gradient, and what was expected, if any.
    """

    def __init__(self, program: Program, params: Any, examples: list[Any]) -> None:
        # Traced first, which refuses examples that do not fit.
        self.selection = select(program, trace(program, examples))
        operations = without_draws(program).operations
        self.program = program = replace(program, operations=operations)
        self.params, self.examples = params, examples
        self.values = Values(program, params)
        for example in examples:
            self.values.add(example)
        self.values.mark_read()
        self.totals: dict[str, list[Array]] = {}
        self.fault: tuple[Application, str] | None = None

    def first(self, loss: Callable[[Any], Any]) -> NonFinite | None:
        """Return the first fault in values, else in gradients of `loss`, or `None`."""
        outside: Application | None = None
        for step in self.values.steps:
            # Values that are never read are no faults.
            outputs = [x.array for x in step.outputs if x.is_read]
            bad = bad_kind(*outputs)
            if not isinstance(step, Application):
                if bad is not None:
                    return self._report(step, f'finite numbers, got {bad} in the data')
            elif bad is not None and badness(outputs) > badness(step.arrays):
                what = f'finite values of {step.operation!r}, got {bad}'
                return self._at_node(step, what)
            elif step.outside and outside is None:
                # Reported only if no value is at fault: where an index gives NaN, this
                # NaN is the fault, with the index as its cause.
                outside = step
        if outside is not None:
            what = f'an index within its array in {outside.operation!r}, got another'
            return self._at_node(outside, what)
        return self._in_gradients(loss)

    def batch(self) -> tuple[Schedule, Results]:
        """Return a schedule of all examples, and each result's tensors [rows, ...]."""
        # `returned` takes masks and the examples of rows from a schedule, so one is
        # built, though nothing runs by it. Spare rows are zero.
        need = capacity(self.program, demands(self.selection), len(self.selection))
        schedule, results = build([self.selection], Spec(self.program, need)), []
        for r, result in enumerate(self.program.results):
            # There are no owners where each example has one row.
            count, tensors = len(schedule.owners(r)) or len(self.examples), []
            for t, column in zip(result.tensors, self.values.columns(r), strict=True):
                type_ = self.program.types[t]
                dtype = jax.dtypes.canonicalize_dtype(type_.dtype)
                array = np.zeros((count, *type_.shape), dtype)
                for row, value in enumerate(column):
                    array[row] = value.array
                tensors.append(jnp.asarray(array))
            results.append(tensors)
        return schedule, results

    # ---- gradients

    def _in_gradients(self, loss: Callable[[Any], Any]) -> NonFinite | None:
        """Return the fault of the loss or parameter gradients; `None` without one."""
        schedule, results = self.batch()
        value, grads = loss_of(
            lambda results: loss(returned(self.program, schedule, results)), results
        )
        if (bad := bad_kind(np.asarray(value))) is not None:
            return NonFinite(f'expected a finite loss, got {bad}')
        every = range(len(self.program.results))
        columns = [(r, x) for r in every for x in self.values.columns(r)]
        of_loss: NonFinite | None = None
        for (r, column), grad in zip(columns, grads, strict=True):
            for row, (value, x) in enumerate(zip(column, _rows(grad), strict=False)):
                if _add(value, x) and of_loss is None:
                    what = f'a loss with a finite gradient, got {bad_kind(x)}'
                    example = self.selection.graph.results[r].owner(row)
                    of_loss = NonFinite(f'expected {what}', example)
        # The execution of a training step says which operations run in reverse.
        execution = make_execution(schedule.spec, self.params)
        flows = execution.flows([x is not None for x in grads])
        for step in reversed(self.values.steps):
            if isinstance(step, Application) and step.o in flows and step.is_trained:
                self._backward(step, flows[step.o].live)
        # Only parameter gradients count: an infinite gradient of a value may be stopped
        # by a function before it reaches any parameter.
        layers = {x.layer.name: x.layer for x in self.program.operations}
        for name, total in self.totals.items():
            if (of_layer := _bad_gradient(layers[name], total)) is not None:
                if self.fault is not None:
                    return of_loss or self._at_node(*self.fault)
                message = f'expected {of_layer} in sum, though of no node alone'
                return of_loss or NonFinite(message, layer=name)
        return None

    def _backward(self, step: Application, live: tuple[int, ...]) -> None:
        """Run a step in reverse, from cotangents of outputs `live` to gradients.

        Those by inputs are added to their cotangents, those by parameters to `totals`.
        """
        outputs = [step.outputs[k] for k in live]
        grads = [
            np.zeros_like(x.array) if x.cotangent is None else x.cotangent
            for x in outputs
        ]
        of_inputs, of_params = step.runner.reverse(live, step.arrays, grads)
        what = None
        # Inputs first: an infinite gradient there makes that of parameters infinite
        # too, and says more of where it comes from.
        for a, (value, grad) in enumerate(zip(step.inputs, of_inputs, strict=True)):
            if grad is not None and _add(value, grad) and what is None:
                what = f'a finite gradient of input {a} of {step.operation!r}, got '
                what += str(bad_kind(grad))
        what = what or _bad_gradient(step.operation.layer, of_params)
        if what is not None and not any(x.is_blamed for x in outputs):
            self.fault = step, what  # so the first step's is left
        name = step.operation.layer.name
        with np.errstate(all='ignore'):  # too large a sum is found in the end
            total = self.totals.get(name, [np.zeros_like(x) for x in of_params])
            self.totals[name] = list(map(np.add, total, of_params))

    # ---- reports

    def _at_node(self, step: Application, what: str) -> NonFinite:
        """Return a report that `what` was expected of a step's inputs."""
        shown = ', '.join(map(_shown, step.arrays)) or 'no inputs'
        cause = f': {step.outside}' if step.outside else ''
        report = self._report(step, f'{what} of {shown}{cause}')
        layer = step.operation.layer.name
        return replace(report, layer=layer, inputs=tuple(step.arrays))

    def _report(self, step: Step, what: str) -> NonFinite:
        """Return a report that `what` was expected, with the place of a step."""
        paths = (x.path for x in step.outputs if x.path is not None)
        line = self.values.line_of(step, self.examples[step.example])
        path = str(common_prefix(paths) or '')
        return NonFinite(f'expected {what}{line}', step.example, path, str(step.node))


def _rows(grad: Any) -> Array:
    """Return a gradient [rows, *shape] as an array; `None` has no rows."""
    return np.zeros(0) if grad is None else np.asarray(grad)


def _add(value: Value, grad: Array) -> bool:
    """Add a gradient [*shape] to the cotangent of a value; return whether it is bad.

    Values that do not depend on parameters need none.
    """
    if not value.is_trained:
        return False
    with np.errstate(all='ignore'):  # too large a sum is found where it is read
        value.cotangent = grad if value.cotangent is None else value.cotangent + grad
    is_bad = bad_kind(grad) is not None
    value.is_blamed |= is_bad
    return is_bad


def _bad_gradient(layer: Layer, grads: list[Array]) -> str | None:
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


# ---- the loss ------------------------------------------------------------------------


def sum_of_floats(value: object) -> Any:
    """Return the sum float32 [] of all floats in a pytree (real parts of complex)."""
    leaves = [x for x in jax.tree.leaves(value) if is_inexact(x)]
    return sum((x.sum().real.astype('float32') for x in leaves), jnp.float32(0))


def _checked_loss(value: Any) -> Any:
    """Return the value of a loss; raise TypeError unless it is one float."""
    is_array = hasattr(value, 'dtype')
    is_float = is_array and jnp.issubdtype(value.dtype, jnp.floating)
    if isinstance(value, float) or (is_float and not value.shape):
        return value
    got = f'{value.dtype}{list(value.shape)}' if is_array else short_repr(value)
    hint = 'take its mean or sum' if is_float else 'return a mean or sum of floats'
    raise TypeError(f'expected `loss` to return one float, got {got}: {hint}')


def loss_of(loss: Callable[[Results], Any], results: Results) -> tuple[Any, MaybeZeros]:
    """Return the value of a loss, and its gradient by each tensor of the results.

    A gradient, [rows, *shape], is `None` for a tensor that has no cotangent in a step
    of training: a tensor of ints, or one that the loss does not read. Zeros would not
    do: zero times infinity is NaN.
    """
    tensors = [x for y in results for x in y]
    is_float = list(map(is_inexact, tensors))
    floats = partition(tensors, is_float)
    gradient: MaybeZeros = [None for _ in floats]  # if JAX has no cotangent to pass
    watched: Any = jax.custom_vjp(lambda floats: floats)

    def backward(_: None, cotangents: list[Any]) -> tuple[MaybeZeros]:
        # JAX passes a symbolic zero for an array that the loss does not read.
        gradient[:] = map(maybe_zero, cotangents)
        return (gradient,)

    watched.defvjp(
        lambda floats: ([x.value for x in floats], None), backward, symbolic_zeros=True
    )

    # Tensors of ints, such as lengths, stay concrete: a loss may read their numbers.
    def of_floats(floats: list[Any]) -> object:
        remaining = iter(replace_list(tensors, watched(floats), is_float))
        value = loss([[next(remaining) for _ in y] for y in results])
        return _checked_loss(value)

    value, _ = jax.value_and_grad(of_floats)(floats)
    return value, scatter_list(gradient, is_float)
