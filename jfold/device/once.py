# SPDX-License-Identifier: Apache-2.0
"""Programs in which no operation takes turns: plain JAX, without loops.

Every operation runs once, on all rows that there is room for, behind those that it
reads. There is no buffer that all write to: an input is gathered from what those have
made that it may read, one behind the other, and JAX takes the gradients.

    round 0     [rows of atoms, 64] ──┐
    sum 1 ◀── gathers and adds up     ├─ concatenated ─▶ gathered ─▶ round 1
         └▶ [rows of sums, 64] ───────┘

Spare rows repeat a real one, and no cotangent flows back through them: where a function
is not defined, zero times infinity would be no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfold.device.arrays import Arrays, ByOperation, array_spec, varied
from jfold.device.jaxprs import is_inexact
from jfold.device.kernel import Weights
from jfold.device.plan import Plan
from jfold.device.sections import Batch
from jfold.operations import Makers
from jfold.planning.sections import Section, summed_at_once
from jfold.recurrence import Component, first_results, results_in, sources, union
from jfold.spec import RECOMPUTE_ALL


@dataclass(frozen=True, eq=False)
class Made:
    """Values of a type that lie one behind the other.

    Attributes:
      first: the row of the first, among all values of the type.
      rows: [count, *shape].
    """

    first: int
    rows: Array


@dataclass(frozen=True, eq=False)
class State:
    """What there is so far.

    Attributes:
      plan: of what runs.
      made: by number of a result of an operation, what it has made; sums of a component
        have theirs together.
    """

    plan: Plan
    batch: Batch
    made: dict[int, Made] = field(default_factory=dict)


def run_once(
    plan: Plan, weights: ByOperation, indices: Array, constants: tuple[Array, ...]
) -> Arrays:
    """The tensors of all results [rows, *shape] each.

    Args:
      weights: by operation [*shape each].
      indices: [size], the index array.
      constants: per type [rows, *shape].
    """
    state = State(plan, Batch(plan.layout, indices, constants))
    for c, component in enumerate(plan.components):
        if summed_at_once(plan.spec, c) and component.operations:
            _add_up(state, c, component)
        else:
            for o in component.operations:
                _apply(state, o, weights[o])
    return [_read(state, x.type, x.makers, x.section) for x in plan.tensors]


def _apply(state: State, o: int, weights: Arrays) -> None:
    """Runs an operation, given its weights [*shape each]."""
    plan, count = state.plan, state.batch.nodes(o)
    kernel, rows = plan.kernels[o], plan.layout.region[o]
    real = varied(jnp.arange(rows) < count, plan.varying)
    tables = zip(
        plan.operations[o].inputs,
        sources(plan.program).inputs[o],
        state.batch.sections.inputs[o],
        strict=True,
    )
    inputs = [_kept_apart(_read(state, *table), real) for table in tables]
    own = [_kept_apart(x, count > 0) for x in weights]

    def run(own: Arrays, inputs: Arrays) -> Arrays:
        return kernel.outputs(Weights(own, []), inputs, rows, real)

    if plan.spec.residuals == RECOMPUTE_ALL:
        run = jax.checkpoint(run)
    bases = plan.layout.value_base[o]
    first = first_results(plan.program)[o]
    for k, (base, x) in enumerate(zip(bases, run(own, inputs), strict=True)):
        state.made[first + k] = Made(base, x)


def _add_up(state: State, c: int, component: Component) -> None:
    """Takes all sums of a component."""
    plan, operations = state.plan, component.operations
    sections, numbers = state.batch.sections, first_results(plan.program)
    (t,) = plan.operations[operations[0]].outputs
    own = sum(1 << numbers[o] for o in operations)
    makers = union(union(sources(plan.program).inputs[o]) for o in operations) & ~own
    summands = _read(state, t, makers, sections.summands[c])
    to = state.batch.read(sections.sums_of[c], 0, *sections.sums_of[c].shape)
    rows = sum(plan.layout.region[o] for o in operations)
    wide = _wide(summands)
    zeros = varied(jnp.zeros((rows, *wide.shape[1:]), wide.dtype), plan.varying)
    # In the order of the batch, on a CPU: its scatter adds one after another.
    sums = zeros.at[to].add(wide, mode='drop').astype(summands.dtype)
    made = Made(plan.layout.value_base[operations[0]][0], sums)
    state.made.update(dict.fromkeys((numbers[o] for o in operations), made))


def _kept_apart(x: Array, real: Array) -> Array:
    """`x` [rows, ...], or [*shape] for one bool: no cotangent flows back from what is
    not real."""
    if not is_inexact(x):
        return x
    real = real.reshape(real.shape + (1,) * (x.ndim - real.ndim))
    return jnp.where(real, x, lax.stop_gradient(x))


def kept_bytes(plan: Plan) -> int:
    """What JAX keeps for the reverse, in bytes."""
    weights = {o: kernel.weight_specs for o, kernel in plan.kernels.items()}
    pairs = zip(plan.spec.capacity.constants, plan.program.types, strict=True)
    constants = tuple(array_spec((rows, *t.shape), t.dtype) for rows, t in pairs)
    indices = array_spec((plan.layout.sections.size,), jnp.int32)

    def pull(weights: ByOperation, indices: Array, constants: tuple[Array, ...]) -> Any:
        """The reverse, a pytree of what it reads."""
        floats = {o: list(filter(is_inexact, x)) for o, x in weights.items()}

        def run(floats: ByOperation) -> Arrays:
            whole = {o: x + weights[o][len(x) :] for o, x in floats.items()}
            return run_once(plan, whole, indices, constants)

        return jax.vjp(run, floats)[1]

    kept = jax.tree.leaves(jax.eval_shape(pull, weights, indices, constants))
    return sum(x.size * x.dtype.itemsize for x in kept)


# ---- what is read --------------------------------------------------------------------


def _read(state: State, t: int, makers: Makers, section: Section) -> Array:
    """Values of a type [rows, *shape], which some operations have made, or constants.

    Args:
      section: of the index array [rows], with their rows among all values of the type.
    """
    parts = list(_parts(state, t, makers))
    rows = state.batch.read(section, 0, *section.shape)
    if not parts:
        type_ = state.plan.program.types[t]
        zeros = jnp.zeros((*section.shape, *type_.shape), type_.dtype)
        return varied(zeros, state.plan.varying)
    values = jnp.concatenate([part.rows for part in parts])
    # In reverse the cotangents of a value are added up, as many as it has uses.
    found = _wide(values).at[_among(parts, rows)].get(mode='clip')
    return found.astype(values.dtype)


def _wide(x: Array) -> Array:
    """Numbers that can be added up one by one: in 16 bits little would be left."""
    narrow = is_inexact(x) and x.dtype.itemsize < np.dtype('float32').itemsize
    return x.astype('float32') if narrow else x


def _parts(state: State, t: int, makers: Makers) -> Iterator[Made]:
    """Where such values are, in the order of their rows."""
    constants = state.batch.constants[t]
    if len(constants):
        yield Made(0, jnp.asarray(constants))
    found = {
        state.made[r].first: state.made[r]
        for r in results_in(makers)
        if r in state.made
    }
    yield from (found[first] for first in sorted(found))


def _among(parts: Iterable[Made], rows: Array) -> Array:
    """Where rows [n] are among values that lie one part behind the other [n]."""
    first, *others = parts
    place, before = rows - first.first, len(first.rows)
    for part in others:
        place = jnp.where(rows >= part.first, rows - part.first + before, place)
        before += len(part.rows)
    return place
