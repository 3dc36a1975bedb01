# SPDX-License-Identifier: Apache-2.0
"""The forward pass: a schedule and parameters to values.

Component after component; one loop over the levels of each, in it, per operation and
tile width, an inner loop over tiles. A tile gathers its inputs from the value buffers,
runs the vmapped operation and writes its rows in place.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jfold.device.buffers import (
    after,
    buffer_of,
    others,
    repeat,
    step_at,
    take,
    write,
)
from jfold.device.plan import Plan
from jfold.device.tile import Arrays
from jfold.language.layers import varied
from jfold.planning.layout import FIXED, Layout, layout, running

State: TypeAlias = tuple[Any, Any]  # a zero that is handed on, and the buffers
LevelStep: TypeAlias = Callable[[Any, State], State]
TileStep: TypeAlias = Callable[..., Any]


class Forward:
    """One execution while it is traced: constants of the trace, and the two passes."""

    def __init__(
        self, plan: Plan, weights: list[Arrays], indices: Any, constants: Any
    ) -> None:
        spec = plan.spec
        self.plan, self.program, self.capacity = plan, spec.program, spec.capacity
        self.layout: Layout = layout(spec)
        self.components = running(spec)
        self.indices, self.constant, self.leaves = indices, constants, weights
        self.fixed = spec.strategy == FIXED
        self._buffers = itertools.count(0, 2)
        self.computed = {t for o in self.program.operations for t in o.outputs}

    # ---- reading the index array

    def index(self, name: Any, first: Any, size: int) -> Any:
        """Part of a section of the index array."""
        begin = self.layout.sections[name] + first
        return lax.dynamic_slice(self.indices, (begin,), (size,))

    def scalar(self, name: Any, at: Any = 0) -> Any:
        """One number of the index array."""
        return self.index(name, at, 1)[0]

    def component(
        self, c: int, step: LevelStep, state: State, down: bool = False
    ) -> State:
        """`step(level, state)` for all levels of a component, or its fixed steps.

        Args:
          down: from the last to the first.
        """
        if not self.fixed and not self.components[c].recurrent:
            return step(0, state)
        count = self.layout.tables[c][0] if self.fixed else self.scalar('depth', c)

        def body(i: Any, state: State) -> State:
            return step(count - 1 - i if down else i, state)

        done: State = lax.fori_loop(0, count, body, state)
        return done

    def level(
        self,
        tile: TileStep,
        c: int,
        operations: Sequence[int],
        level: Any,
        state: State,
        down: bool = False,
    ) -> State:
        """`tile(operation, first, end, rows, carry)` for all tiles of a level."""
        # Each loop starts from what the one before has counted. Without this chain XLA
        # may reorder two loops, and copies a buffer that one reads and one writes.
        before, carry = state
        _, columns = self.layout.tables[c]
        for o in operations:
            widths = self.layout.widths[o]
            at = level * columns + self.layout.column[o]
            first, end, *counts = self.index(('tiles', c), at, 2 + len(widths))
            if self.fixed:
                carry = tile(o, first=first, end=end, rows=widths[0], carry=carry)
                continue
            runs = []
            for rows, count in zip(widths, counts, strict=True):
                runs.append((rows, count, first))
                first = first + count * rows
            for rows, count, start in reversed(runs) if down else runs:
                step = functools.partial(tile, o, end=end, rows=rows)
                begin = before + (start + (count - 1) * rows if down else start)
                step = functools.partial(step_at, step, begin, -rows if down else rows)
                done, carry = repeat(step, count, carry)
                before = done - count
        return before, carry

    # ---- forward

    def forward(self, keep: bool) -> tuple[dict[int, Any], list[Arrays]]:
        """Value buffers of computed types, and what the reverse pass needs."""
        self.weights = {o: self.plan.tile(o).weights(self.leaves[o]) for o in self.runs}
        values = {t: self._new_values(t) for t in sorted(self.computed)}
        stored = [
            self._new(self.stored_specs(o)) if keep else [] for o in self.operations
        ]
        tile = functools.partial(self._forward_tile, keep=keep)
        state: State = self.varied(jnp.zeros((), jnp.int32)), (values, stored)
        for c, component in enumerate(self.components):
            if not component.operations:
                continue
            level = functools.partial(self.level, tile, c, component.operations)
            state = self.component(c, level, state)
        values, stored = state[1]
        return values, stored

    @property
    def runs(self) -> list[int]:
        """The operations that there is room for."""
        return [o for o in self.operations if self.plan.tiles[o] is not None]

    @property
    def operations(self) -> range:
        """The numbers of all operations."""
        return range(len(self.plan.tiles))

    def _new_values(self, t: int) -> Any:
        type_ = self.program.types[t]
        buffer = self._zeros(self.layout.value_rows[t], type_.shape, type_.dtype)
        if not self.capacity.constants[t]:
            return buffer
        return write(buffer, jnp.asarray(self.constant[t]), 0)

    def stored_specs(self, o: int) -> list[jax.ShapeDtypeStruct]:
        """Buffers with an operation's rows, for what the forward pass stores."""
        reverse = self.plan.kept[o]
        if reverse is None:
            return []
        # With room for what crosses, a tile further on; see `Backward`.
        rows = self.layout.region[o] + self.layout.widths[o][0]
        return [buffer_of(rows, each) for each in reverse.stored]

    def _new(self, specs: Sequence[jax.ShapeDtypeStruct | None]) -> list[Any]:
        """Zeros, `None` left as it is."""
        return [
            each and self._zeros(each.shape[0], each.shape[1:], each.dtype)
            for each in specs
        ]

    def _zeros(self, rows: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new buffer, a few rows longer than the one before.

        Of two buffers of one shape XLA makes one, and copies it.
        """
        return self.varied(jnp.zeros((rows + next(self._buffers), *shape), dtype))

    def varied(self, x: Any) -> Any:
        """`x`, of a type that may vary over the axes over which a batch does."""
        return varied(x, self.plan.varying)

    def _forward_tile(
        self, o: int, first: Any, end: Any, rows: int, carry: Any, *, keep: bool
    ) -> Any:
        values, stored = carry
        # Past the end of the level inputs are not there yet: repeat a real row.
        inputs = self._inputs(o, values, first, rows, real=end - first)
        reverse = self.plan.kept[o] if keep else None
        if reverse is not None:
            made, kept = reverse.keep(self.weights[o], inputs, rows)
            written = [write(b, x, first) for b, x in zip(stored[o], kept, strict=True)]
            stored = [*stored[:o], written, *stored[o + 1 :]]
        else:
            made = self.plan.tile(o).outputs(self.weights[o], inputs, rows)
        values = dict(values)
        operation = self.program.operations[o]
        bases = self.layout.value_base[o]
        reads = self.plan.tile(o).reads
        for t, base, x, known in zip(
            operation.outputs, bases, made, reads, strict=True
        ):
            read = others(t, operation.inputs, inputs, known)
            values[t] = write(values[t], after(read, x, first), base + first)
        return values, stored

    def _inputs(
        self, o: int, values: dict[int, Any], first: Any, rows: int, real: Any = None
    ) -> Arrays:
        """Inputs of rows; those from number `real` on, if given, repeat the first."""
        inputs = []
        for a, t in enumerate(self.program.operations[o].inputs):
            index = self.index(('input', o, a), first, rows)
            if real is not None:
                index = jnp.where(jnp.arange(rows) < real, index, index[0])
            inputs.append(take(self._buffer(values, t), index))
        return inputs

    def _buffer(self, values: dict[int, Any], t: int) -> Any:
        return values[t] if t in values else jnp.asarray(self.constant[t])

    # ---- results

    def results(self, values: dict[int, Any]) -> list[Arrays]:
        """The tensors of each result; spare rows repeat a real one."""
        return [
            [
                take(self._buffer(values, t), self.index(('result', r, j), 0, rows))
                for j, t in enumerate(self.program.results[r].tensors)
            ]
            for r, rows in enumerate(self.layout.results)
        ]
