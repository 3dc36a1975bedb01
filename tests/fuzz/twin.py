# SPDX-License-Identifier: Apache-2.0
"""The eager twin with a tape: its values, and gradients step by step.

Blocks are evaluated as `block.eval` does; only the call of a function is replaced, by
one that runs its jaxpr in double precision and writes down what it did. The reverse is
then a walk over what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
from agreement import is_float, labels_of, values_of

from jfold.language import eager_twin
from jfold.language.function_layers import arguments_of, to_spec
from jfold.language.typed import TypedExpression, TypedUse
from jfold.language.walk import in_tuples

Gradients = dict[str, list[Any]]  # per layer, of the leaves of its parameters


def floats_of(leaves: list[Any]) -> list[Any]:
    """The floats among some arrays, `None` for others."""
    return [x if is_float(x) else None for x in leaves]


def with_floats(leaves: list[Any], floats: list[Any]) -> list[Any]:
    """The arrays with other floats."""
    pairs = zip(leaves, floats, strict=True)
    return [x if y is None else y for x, y in pairs]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: what went in and came out, leaf by leaf."""

    layer: Layer
    inputs: list[Any]
    outputs: list[Any]


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One example: its value, its metrics and their labels, and the calls in order."""

    value: Any
    metrics: dict[str, list[Any]]
    labels: dict[str, list[str]]
    calls: list[Call]


class Layer:
    """A layer at one type of input, traced once, and once for each reverse.

    Attributes:
      name: of its parameters.
      params: their leaves.
    """

    def __init__(self, node: TypedUse, params: dict[str, Any]) -> None:
        layer = node.layer
        assert layer is not None
        self.name = layer.name
        self.params, self.tree = jax.tree.flatten(params.get(layer.name))
        self.node, self.inner = node, layer
        specs = [to_spec(each) for each in arguments_of(node.taken)]
        self.specs, self.inputs = jax.tree.flatten(tuple(specs))
        self.forward = jax.make_jaxpr(self.call)(self.params, self.specs)
        self.reverses: dict[tuple[int, ...], Any] = {}

    def call(self, params: Any, inputs: Any) -> Any:
        """The result, of leaves of parameters and inputs."""
        inputs = jax.tree.unflatten(self.inputs, inputs)
        if self.inner.batched:
            inputs = jax.tree.map(lambda a: a[None], inputs)
        made = self.inner.call(jax.tree.unflatten(self.tree, params), *inputs)
        return jax.tree.map(lambda a: a[0], made) if self.inner.batched else made

    def reverse(self, used: tuple[int, ...]) -> Any:
        """As `_reverse`, made once."""
        if used not in self.reverses:
            self.reverses[used] = self._reverse(used)
        return self.reverses[used]

    def _reverse(self, used: tuple[int, ...]) -> Any:
        """The jaxpr from parameters, inputs and cotangents of the used results to the
        cotangents of all floats that went in."""

        def pull(params: Any, inputs: Any, cotangents: Any) -> Any:
            leaves = [*params, *inputs]

            def outputs(floats: list[Any]) -> Any:
                every = with_floats(leaves, floats)
                made = self.call(every[: len(params)], every[len(params) :])
                return [jax.tree.leaves(made)[i] for i in used]

            return jax.vjp(outputs, floats_of(leaves))[1](cotangents)

        outputs = jax.tree.leaves(jax.eval_shape(self.call, self.params, self.specs))
        return jax.make_jaxpr(pull)(self.params, self.specs, [outputs[i] for i in used])


@dataclass(eq=False)
class Twin:
    """An expression with parameters, evaluated example by example."""

    typing: TypedExpression
    params: dict[str, Any]
    layers: dict[int, Layer] = field(default_factory=dict)

    def evaluate(self, example: Any) -> Evaluated:
        """One example."""
        arrays = Recording(self)
        with mock.patch.object(eager_twin, 'Arrays', lambda *_: arrays):
            made = eager_twin.evaluate(self.typing, example, self.params)
        calls = arrays.calls
        value, metrics = made if self.typing.metrics else (made, {})
        values = {name: values_of(rows) for name, rows in metrics.items()}
        labels = {name: labels_of(rows) for name, rows in metrics.items()}
        return Evaluated(value, values, labels, calls)

    def nearby(self) -> Twin:
        """One whose parameters are one rounding of their dtypes away, up or down."""
        rng = np.random.default_rng(0)

        def moved(x: Any) -> Any:
            if not is_float(x):
                return x
            step = float(jnp.finfo(x.dtype).eps) * rng.choice([-1, 1], np.shape(x))
            return (np.asarray(x, float) * (1 + step)).astype(x.dtype)

        return Twin(self.typing, jax.tree.map(moved, self.params))

    def layer_of(self, node: TypedUse) -> Layer:
        """The layer of a node, made once."""
        if id(node) not in self.layers:
            self.layers[id(node)] = Layer(node, self.params)
        return self.layers[id(node)]

    def gradients(
        self, run: Evaluated, weights: Sequence[tuple[Any, Any]]
    ) -> Gradients:
        """The gradients of a sum of results by weights.

        Args:
          run: of which example.
          weights: arrays among its results, and the cotangent of each.
        """
        found = {k: zeros(v) for k, v in self.params.items()}
        pending: dict[int, Any] = {}
        for array, weight in weights:
            _add(pending, array, weight)
        for call in reversed(run.calls):
            used = tuple(i for i, x in enumerate(call.outputs) if id(x) in pending)
            used = tuple(i for i in used if is_float(call.layer.forward.out_avals[i]))
            if used:
                _pull(call, used, pending, found)
        return found


class Recording(eager_twin.Arrays):
    """Arrays, with the calls that made them.

    Attributes:
      twin: whose layers are called.
      calls: in order.
    """

    def __init__(self, twin: Twin) -> None:
        super().__init__(twin.params, {name: [] for name in twin.typing.metrics})
        self.twin, self.calls = twin, list[Call]()

    def call(self, node: TypedUse, x: Any) -> Any:
        """Runs the jaxpr, and writes down what it did."""
        layer = self.twin.layer_of(node)
        inputs = jax.tree.leaves(node.arranged(x))
        made = interpreter.run(layer.forward, [*layer.params, *inputs])
        assert node.origins is not None
        outputs = list(map(_as_given, made, node.origins.outputs))
        self.calls.append(Call(layer, inputs, outputs))
        return in_tuples(node.output, iter(outputs))


def _as_given(made: Any, origin: Any) -> Any:
    """A result, an object of its own; one of nothing is a constant of the program, of
    the dtype that it has there."""
    result = np.array(made)
    return origin.astype(result.dtype) if isinstance(origin, np.ndarray) else result


def zeros(params: Any) -> list[Any]:
    """A gradient of zero."""
    return [np.zeros(np.shape(x)) for x in jax.tree.leaves(params)]


def total_of(parts: Sequence[Gradients], params: dict[str, Any]) -> Gradients:
    """The sum of the gradients of examples."""
    total = {name: zeros(leaves) for name, leaves in params.items()}
    for part in parts:
        for name, leaves in part.items():
            pairs = zip(total[name], leaves, strict=True)
            total[name] = [a if b is None else a + b for a, b in pairs]
    return total


def _add(pending: dict[int, Any], array: Any, weight: Any) -> None:
    pending[id(array)] = pending.get(id(array), 0) + weight


def _pull(
    call: Call, used: tuple[int, ...], pending: dict[int, Any], found: Gradients
) -> None:
    """Takes a call's cotangents from its results to what went in."""
    layer = call.layer
    cotangents = [pending[id(call.outputs[i])] for i in used]
    arguments = [*layer.params, *call.inputs, *cotangents]
    made = iter(interpreter.run(layer.reverse(used), arguments))
    for k, leaf in enumerate(layer.params):
        if is_float(leaf):
            found[layer.name][k] = found[layer.name][k] + next(made)
    for spec, array in zip(layer.specs, call.inputs, strict=True):
        if is_float(spec):
            _add(pending, array, next(made))
