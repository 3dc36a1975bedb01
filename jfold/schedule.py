# SPDX-License-Identifier: Apache-2.0
"""The `Schedule`: what the host makes of a batch, and all that the device sees of it.

One array of indices and the constants of each type. Trip counts are among the indices:
which programs are compiled depends on the `Spec` alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.graph import Array
from jfold.planning.build import fill
from jfold.planning.layout import layout
from jfold.planning.sections import Sections
from jfold.planning.uses import Uses
from jfold.spec import Spec, SpecKey, key_of


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """A batch, ready for the device: a pytree with a static, hashable spec.

    Attributes:
      indices: [size] int32, all indices and counts, in `sections`.
      constants: per type [capacity, *shape].
      spec: what a compiled program depends on.
      seconds: how long building took; `None` after a pytree transformation.
    """

    indices: Array | jax.Array
    constants: tuple[Array | jax.Array, ...]
    spec: Spec
    seconds: float | None = None

    def tree_flatten(self) -> tuple[tuple[Any, ...], SpecKey]:
        """For JAX: the arrays, and what is static."""
        return (self.indices, self.constants), key_of(self.spec)

    @classmethod
    def tree_unflatten(cls, key: SpecKey, children: tuple[Any, Any]) -> Schedule:
        """For JAX: the inverse of `tree_flatten`."""
        indices, constants = children
        return cls(indices, constants, key.spec)

    @property
    def sections(self) -> Sections:
        """Where each part of `indices` lies."""
        return layout(self.spec).sections

    @property
    def examples(self) -> int:
        """How many rows the results have: examples, and spare rows if asked for."""
        return self.spec.capacity.examples

    @property
    def mask(self) -> jax.Array:
        """Which rows of the results are examples [examples] bool.

        The others repeat the last example, without its gradient: a loss weighs by this.
        """
        rows = jnp.arange(self.examples, dtype=jnp.int32)
        return rows < self.sections.header.examples.of(self.indices)

    @property
    def depth(self) -> int:
        """How many levels run, those of one component after those of another."""
        return int(self.depths.sum())

    @property
    def depths(self) -> Array:
        """How many levels of each component run [components]; of steps, if their number
        is fixed."""
        return np.asarray(self.sections.header.depths.of(self.indices))

    @property
    def counts(self) -> Array:
        """Nodes per operation [operations]."""
        return np.asarray(self.sections.header.counts.of(self.indices))

    def tiles(self, operation: int) -> Array:
        """Per level of its component [depth, 2 + widths]: first row, end, then tiles
        per width."""
        places = layout(self.spec)
        size = 2 + len(places.widths[operation])
        if not self.spec.capacity.rows[operation]:
            return np.zeros((0, size), np.int32)
        component = places.component[operation]
        table = np.asarray(self.sections.tiles[component].of(self.indices))
        first = places.column[operation]
        return table[: int(self.depths[component]), first : first + size]

    def __repr__(self) -> str:
        try:
            data = f'{int(self.counts.sum())} nodes, depth {self.depth}'
        except (TypeError, ValueError, jax.errors.JAXTypeError):
            data = 'traced'
        return f'Schedule({self.examples} examples, {data})'


def build(uses: Uses, spec: Spec, begin: float | None = None) -> Schedule:
    """The schedule of a graph, given where it uses its values; `spec` must hold it.

    Args:
      begin: when the work on it began, if its time is to be told.
    """
    indices, constants = fill(uses, spec)
    seconds = None if begin is None else time.perf_counter() - begin
    return Schedule(indices, constants, spec, seconds)


def abstract(spec: Spec) -> Schedule:
    """A schedule of shapes and types alone, for compiling ahead of time."""
    struct: Any = jax.ShapeDtypeStruct
    constants = tuple(
        struct((rows, *t.shape), jax.dtypes.canonicalize_dtype(t.dtype))
        for rows, t in zip(spec.capacity.constants, spec.program.types, strict=True)
    )
    return Schedule(struct((layout(spec).sections.size,), np.int32), constants, spec)
