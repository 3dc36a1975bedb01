# SPDX-License-Identifier: Apache-2.0
"""A step compiled ahead of time, and why it refuses a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jfold.schedule import Schedule, abstract
from jfold.spec import Capacity, Spec
from jfold.tracebacks import boundary


@dataclass(frozen=True, eq=False, repr=False)
class CompiledStep:
    """A step that was compiled ahead of time; made by `Model.precompile`.

    Attributes:
      compiled: what JAX made, with its text, its costs and the memory it takes.
      specs: of the schedules it takes.
    """

    compiled: jax.stages.Compiled
    specs: tuple[Spec, ...]

    @boundary
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Runs the step.

        Raises:
          ValueError: a schedule is not of the capacity that the step was compiled for.
          TypeError: other arguments differ from those it was compiled for.
        """
        try:
            return self.compiled(*args, **options)
        except TypeError:
            for each in jax.tree.leaves((args, options), is_leaf=_is_schedule):
                if _is_schedule(each) and each.spec not in self.specs:
                    raise ValueError(_other_spec(self.specs, each.spec)) from None
            raise

    def __repr__(self) -> str:
        return f'CompiledStep({", ".join(str(x.capacity) for x in self.specs)})'


def compile_step(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    adopt: Callable[[Capacity], Spec],
) -> CompiledStep:
    """See `Model.precompile`; `adopt` makes a capacity the model's own."""
    leaves, tree = jax.tree.flatten((args, options), is_leaf=_is_capacity)
    if not any(map(_is_capacity, leaves)):
        raise TypeError(
            'expected a `Capacity` among the arguments, in place of the schedule, '
            'got none: call '
            '`model.precompile(step, params, corpus.capacities(batch_size))`'
        )
    specs = [abstract(adopt(x)) if _is_capacity(x) else x for x in leaves]
    args, options = jax.tree.unflatten(tree, specs)
    compilable: Any = step if hasattr(step, 'lower') else jax.jit(step)
    taken = [x.spec for x in specs if _is_schedule(x)]
    return CompiledStep(compilable.lower(*args, **options).compile(), tuple(taken))


def _is_capacity(value: object) -> bool:
    return isinstance(value, Capacity)


def _is_schedule(value: object) -> bool:
    return isinstance(value, Schedule)


def _other_spec(expected: tuple[Spec, ...], got: Spec) -> str:
    """Why a compiled step takes other schedules than one of spec `got`."""
    if all(spec.program is not got.program for spec in expected):
        return (
            'expected `schedule` of the model that compiled the step, got one of '
            'another: make it by the first'
        )
    if got.shards not in [spec.shards for spec in expected]:
        shards = expected[0].shards
        return (
            f'expected a schedule of {shards or "no shards"}, for which the step was '
            f'compiled, got one of {got.shards or "none"}: make it with '
            f'`sharding={shards and shards.sharding}`'
        )
    rows = [spec.capacity.results for spec in expected]
    if got.capacity.results not in rows:
        return (
            f'expected a schedule of {rows[0]} rows of results, for which the step was '
            f'compiled, got one of {got.capacity.results}: make it with '
            f'`size={rows[0]}`'
        )
    old = expected[rows.index(got.capacity.results)].capacity
    pairs = zip(old.dimensions(), got.capacity.dimensions(), strict=True)
    changes = ', '.join(f'{n} from {a} to {b}' for (n, a), (_, b) in pairs if a != b)
    return (
        'expected a schedule of the capacity that the step was compiled for, got one '
        f'with {changes}. Since then a batch had no room, or another step was compiled '
        'for batches of this size: call `model.precompile` again'
    )
