# SPDX-License-Identifier: Apache-2.0
"""The perfect batch: operations on rows that lie side by side, no structure at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from trees import Params
from turns import compiled

import jfold as jf
from jfold.types import TupleType, pack


@dataclass(frozen=True, eq=False)
class Perfect:
    """The operations of a batch, each once on as many rows, which lie side by side.

    Attributes:
      arguments: of both: parameters, inputs through which gradients flow, others.
      infer: gives the outputs of all operations; compiled.
      train: gives the sum of these, and its gradients.
    """

    arguments: tuple[Params, Any, Any]
    infer: Any
    train: Any

    def run(self, mode: str) -> Any:
        """One call."""
        return getattr(self, mode)(*self.arguments)


def perfect_batch(
    model: jf.Model, params: Params, schedules: Sequence[jf.Schedule], names: Any = None
) -> Perfect:
    """The perfect batch for the mean of some batches, compiled; see `perfect_functions`
    for the arguments."""
    given, infer, train = perfect_functions(model, params, schedules, names)
    given = jax.device_put(given)
    forward, _ = compiled(infer, *given)
    training, _ = compiled(train, *given)
    return Perfect(given, forward, training)


def perfect_functions(
    model: jf.Model, params: Params, schedules: Sequence[jf.Schedule], names: Any = None
) -> tuple[tuple[Params, Any, Any], Any, Any]:
    """The arguments of the perfect batch for the mean of some batches, and what is done
    with them in either mode.

    Args:
      model: whose operations they are.
      params: of the model.
      schedules: of the batches.
      names: of the layers that count; all when left out.
    """
    counts = np.ceil(np.mean([s.counts for s in schedules], axis=0)).astype(int)
    chosen = {
        o: operation
        for o, operation in enumerate(model.program.operations)
        if counts[o] and (names is None or operation.layer.name in names)
    }
    rows = [_inputs(schedules[0], o, int(counts[o])) for o in chosen]
    moving = jax.tree.map(lambda x: x if _moves(x) else None, rows)
    fixed = jax.tree.map(lambda x: None if _moves(x) else x, rows)

    def infer(params: Params, moving: Any, fixed: Any) -> Any:
        rows = jax.tree.map(_first, moving, fixed, is_leaf=lambda x: x is None)
        pairs = zip(chosen.values(), rows, strict=True)
        return [_call(operation, params, inputs) for operation, inputs in pairs]

    def total(*arguments: Any) -> jax.Array:
        outputs = jax.tree.leaves(infer(*arguments))
        return sum((x.sum() for x in outputs if _moves(x)), jnp.zeros(()))

    layers = [operation.layer for operation in chosen.values()]
    used = {name for layer in layers for name in layer.parts or (layer.name,)}
    own = {name: value for name, value in params.items() if name in used}
    return (own, moving, fixed), infer, jax.value_and_grad(total, argnums=(0, 1))


def _first(a: Any, b: Any) -> Any:
    return b if a is None else a


def _moves(x: Any) -> bool:
    """Whether a gradient flows through an array."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _call(operation: Any, params: Params, inputs: tuple[Any, ...]) -> Any:
    own = operation.layer.own(params)
    if operation.layer.batched:
        return operation.call(own, *inputs)
    return jax.vmap(operation.call, (None, *(0 for _ in inputs)))(own, *inputs)


def _inputs(schedule: jf.Schedule, o: int, n: int) -> tuple[Any, ...]:
    """Inputs of an operation for n rows: random, or of the data if whole numbers."""
    program, rng = schedule.spec.program, np.random.default_rng(o)
    operation, flat = program.operations[o], []
    for a, t in enumerate(operation.inputs):
        shape, dtype = program.types[t].shape, program.types[t].dtype
        if jnp.issubdtype(dtype, jnp.inexact):
            flat.append(rng.uniform(-1, 1, (n, *shape)).astype(dtype))
            continue
        constants = np.asarray(schedule.constants[t])
        rows = schedule.sections.reads[o, a].of(schedule.indices)
        places = np.asarray(rows[: int(schedule.counts[o])])
        known = constants[places[places < len(constants)]]
        flat.append(np.resize(known.astype(dtype), (n, *shape)))
    return pack(TupleType(operation.arguments), flat)
