# SPDX-License-Identifier: Apache-2.0
"""Steps: functions of schedules, compiled ahead of time for known capacities."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jfold.base.arguments import expect
from jfold.base.memo import Recent, Stays
from jfold.base.tracebacks import api_boundary
from jfold.data.adoption import adopt_spec
from jfold.language.flax_modules import is_graph
from jfold.scheduling.schedule import Schedule, abstract
from jfold.scheduling.spec import Capacity, Spec


@dataclass(frozen=True, eq=False, repr=False)
class CompiledStep(Stays):
    """A function of schedules, compiled ahead of time; made by `Model.precompile`.

    Attributes:
      compiled: the executable of JAX, which tells its text, costs and memory.
      specs: the spec of each schedule among the arguments, with its capacity.
    """

    _instead = 'a `CompiledStep`', 'call `Model.precompile` there'
    compiled: jax.stages.Compiled
    specs: tuple[Spec, ...]
    _compile: Callable[[Sequence[Spec]], jax.stages.Compiled]  # for any capacities
    # Positions and names of arguments that are, or hold, schedules.
    _holders: tuple[int | str, ...]
    _others: Recent[jax.stages.Compiled] = field(default_factory=Recent)

    def __deepcopy__(self, memo: object) -> CompiledStep:
        return self  # as of functions, whose copies are themselves

    @api_boundary
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the step.

        For a schedule of another capacity, as one that did not fit, it is compiled once
        more, with a RuntimeWarning. Of many such programs the least recently used are
        dropped.

        Raises:
          ValueError: a schedule is of another model, or has other shards or another
            number of rows.
          TypeError: other arguments differ from those the step was compiled for.
        """
        # Schedules are searched only in arguments that held capacities, which is fast.
        values = [
            args[x] if isinstance(x, int) else options.get(x)
            for x in self._holders
            if isinstance(x, str) or x < len(args)
        ]
        specs = _specs_in(values)
        if len(specs) != len(self.specs):  # static arguments left out move the others
            specs = _specs_in((args, options))
        pairs = zip(self.specs, specs, strict=False)
        if any(x.program is not y.program for x, y in pairs):
            args, options = self._adopt(args, options)
            specs = _specs_in((args, options))
        compiled = self.compiled
        if specs != self.specs:
            for expected, got in zip(self.specs, specs, strict=False):
                _check_kind(expected, got)
            if len(specs) == len(self.specs):
                make = functools.partial(self._compiled_for, specs)
                compiled = self._others.get(tuple(x.key for x in specs), make)
        return compiled(*args, **options)

    def _adopt(self, *tree: Any) -> Any:
        """Return arguments, with schedules of equal models given this model's specs."""
        # An NNX module is a leaf: the step may change the object, so none is made anew.
        specs = iter(self.specs)

        def adopted(x: Any) -> Any:
            """Return leaf `x`; an equal model's schedule gets this model's spec."""
            if not _is_schedule(x) or (spec := next(specs, None)) is None:
                return x
            return adopt_spec(x, spec.replaced(capacity=x.capacity)) or x

        return jax.tree.map(
            adopted, tree, is_leaf=lambda x: _is_schedule(x) or is_graph(x)
        )

    def _compiled_for(self, specs: tuple[Spec, ...]) -> jax.stages.Compiled:
        """Return the step compiled for other specs, and warn of the differences."""
        begin = time.perf_counter()
        compiled = self._compile(specs)
        changes = ', '.join(  # as 'levels from 3 to 5'
            f'{name} from {a} to {b}'
            for old, new in zip(self.specs, specs, strict=True)
            for (name, a), (_, b) in zip(
                old.capacity.dimensions(), new.capacity.dimensions(), strict=True
            )
            if a != b
        )
        pairs = zip(self.specs, specs, strict=True)
        advice = 'Reserve that much by `model.reserve` before `model.precompile`'
        if all(old.capacity.holds(new.capacity) for old, new in pairs):
            advice = 'Make schedules after `model.precompile`'
        warnings.warn(
            'expected schedules of the capacity that the step was compiled for, got '
            f'one with {changes}: compiled the step for it too, in '
            f'{time.perf_counter() - begin:.1f} s. {advice}',
            RuntimeWarning,
            stacklevel=5,
        )
        return compiled

    def __repr__(self) -> str:
        return f'CompiledStep({", ".join(str(x.capacity) for x in self.specs)})'


def _specs_in(tree: object) -> tuple[Spec, ...]:
    """Return the specs of the schedules in a pytree."""
    leaves = jax.tree.leaves(tree, is_leaf=_is_schedule)
    return tuple(x.spec for x in leaves if _is_schedule(x))


def compile_step(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    adopt: Callable[[Capacity], Spec],
) -> CompiledStep:
    """Compile `step` ahead of time; capacities in its arguments stand for schedules.

    Args:
      args, options: the arguments of `step`, by position and by name.
      adopt: reserves a capacity in the model and returns its spec.
    """
    expect('step', step, callable(step), 'a function', 'pass it first')
    leaves, tree = jax.tree.flatten(
        (args, options), is_leaf=lambda x: _is_capacity(x) or is_graph(x)
    )
    if not any(map(_is_capacity, leaves)):
        raise TypeError(
            'expected a `Capacity` among the arguments, in place of the schedule, '
            'got none: call '
            '`model.precompile(step, params, corpus.capacities(batch_size))`'
        )
    specs = tuple(adopt(x) for x in leaves if _is_capacity(x))
    compilable: Any = step if hasattr(step, 'lower') else jax.jit(step)
    places: list[tuple[int | str, Any]] = [*enumerate(args), *options.items()]
    holders = tuple(
        place
        for place, held in places
        if any(map(_is_capacity, jax.tree.leaves(held, is_leaf=_is_capacity)))
    )
    shapes = [*map(_shape_of, leaves)]

    def compiled(specs: Sequence[Spec]) -> jax.stages.Compiled:
        """Return the step compiled with `specs` for the capacities in `shapes`."""
        remaining = iter(specs)
        inputs = (abstract(next(remaining)) if _is_capacity(x) else x for x in shapes)
        args, options = jax.tree.unflatten(tree, inputs)
        result: jax.stages.Compiled = compilable.lower(*args, **options).compile()
        return result

    return CompiledStep(compiled(specs), specs, compiled, holders)


def _shape_of(leaf: object) -> object:
    """Return the shape, dtype and sharding of an array; other leaves as they are."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return leaf
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        leaf.shape,
        leaf.dtype,
        sharding=leaf.sharding if leaf.committed else None,
        weak_type=getattr(leaf, 'weak_type', False),  # keys have none
    )


def _is_capacity(value: object) -> bool:
    return isinstance(value, Capacity)


def _is_schedule(value: object) -> bool:
    return isinstance(value, Schedule)


def _check_kind(expected: Spec, got: Spec) -> None:
    """Raise ValueError if two specs differ in program, shards or number of rows."""
    if expected.program is not got.program:
        raise ValueError(
            'expected `schedule` of the program that the step was compiled for, got '
            'one of another: make it by the model that compiled the step; if its '
            'program has grown since, precompile again'
        )
    if got.shards != expected.shards:
        shards = expected.shards
        raise ValueError(
            f'expected a schedule of {shards or "no shards"}, for which the step was '
            f'compiled, got one of {got.shards or "none"}: make it with '
            f'`sharding={shards and shards.sharding}`'
        )
    rows, got_rows = expected.capacity.results, got.capacity.results
    if got_rows != rows:
        raise ValueError(
            f'expected a schedule of {rows} rows of results, for which the step was '
            f'compiled, got one of {got_rows}: make it with `size={rows}`'
        )
