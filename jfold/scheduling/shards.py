# SPDX-License-Identifier: Apache-2.0
"""`Shards`: the devices of a mesh that share the examples of a batch.

Axes of a mesh are explicit, automatic or manual, as in `jax.sharding.AxisType`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jfold.base.errors import short_repr

Array = np.ndarray[Any, Any]
Sharding: TypeAlias = NamedSharding | PartitionSpec
EVERYWHERE = PartitionSpec()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Shards:
    """The devices that share the examples of a batch.

    A shard is a part of the examples. It is scheduled by itself, with a capacity that
    all shards have, and runs on the devices at one place along `axes`.

    Attributes:
      mesh: the mesh of the devices.
      axes: the names of the mesh axes over which examples are split.
    """

    mesh: Mesh
    axes: tuple[str, ...]

    @functools.cached_property
    def count(self) -> int:
        """The number of shards."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    @functools.cached_property
    def split(self) -> PartitionSpec:
        """The partition spec of arrays [shards, ...]."""
        return PartitionSpec(self.axes)  # type: ignore[no-untyped-call]

    @functools.cached_property
    def sharding(self) -> NamedSharding:
        """The sharding of arrays [shards, ...] on the mesh."""
        return NamedSharding(self.mesh, self.split)

    @functools.cached_property
    def own(self) -> tuple[int, ...]:
        """The numbers of the shards that run on devices of this process, ascending."""
        places = self.sharding.addressable_devices_indices_map((self.count,))
        return tuple(sorted({_start(where) for where in places.values()}))

    @functools.cached_property
    def processes(self) -> tuple[int, ...]:
        """The indices of the processes that have devices of the mesh, ascending."""
        return tuple(sorted({x.process_index for x in self.mesh.devices.flat}))

    @property
    def is_local(self) -> bool:
        """Return whether this process has a device of every shard."""
        return len(self.own) == self.count

    def gathered(self, parts: Array) -> Array | jax.Array:
        """Return the global array [shards, ...] from this process's rows [own, ...].

        If no other process has devices of the mesh, `parts` is returned as it is.
        `jax.device_put` will not do: where processes share a shard, it compares their
        values by a collective, which may hang when a thread issues it.
        """
        if self.sharding.is_fully_addressable:
            return parts
        dtype = jax.dtypes.canonicalize_dtype(parts.dtype)

        def part(where: object) -> Array:
            first = self.own.index(_start(where))
            return parts[first : first + 1].astype(dtype)

        shape = self.count, *parts.shape[1:]
        return jax.make_array_from_callback(shape, self.sharding, part)

    @property
    def is_explicit(self) -> bool:
        """Return whether one of `axes` is explicit, so that array types name it."""
        types = zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        return any(t == AxisType.Explicit for axis, t in types if axis in self.axes)

    def replicated(self, x: object) -> Any:
        """Return `x` [*shape], resharded to be replicated over explicit mesh axes.

        Unchanged if no axis is explicit.
        """
        if AxisType.Explicit not in self.mesh.axis_types:
            return x
        return jax.sharding.reshard(x, NamedSharding(self.mesh, EVERYWHERE))  # type: ignore[no-untyped-call]

    def alike(self, x: object, spec: PartitionSpec = EVERYWHERE) -> Any:
        """Return `x`, and its cotangent, constrained to `spec` on automatic mesh axes.

        Unchanged unless a mesh axis other than `axes` is automatic.
        """
        # Else XLA might split a loop over axes that are not those of the shards, and so
        # put collectives of all shards into it, though each shard runs it a different
        # number of times.
        types = zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        if not any(t == AxisType.Auto for axis, t in types if axis not in self.axes):
            return x
        # JAX refuses constraints that name explicit axes, which are in the type.
        where = NamedSharding(self.mesh, EVERYWHERE if self.is_explicit else spec)
        return jax.lax.with_sharding_constraint(x, where)  # type: ignore[no-untyped-call]

    def parted(self, x: object) -> Any:
        """Return `x` [shards, ...], resharded to be split over explicit `axes`.

        Unchanged if no axis is explicit.
        """
        return jax.sharding.reshard(x, self.sharding) if self.is_explicit else x  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f'{self.count} shards over {", ".join(self.axes)} of {self.mesh}'


def _start(where: Any) -> int:
    """Return the first row of an array's part `where`, a tuple of slices."""
    rows: slice = where[0]
    return rows.start or 0


def make_shards(sharding: Sharding) -> Shards:
    """Return the shards into which a sharding splits examples.

    Args:
      sharding: the sharding of an array [examples]; a `PartitionSpec` refers to the
        mesh of `jax.set_mesh`.

    Raises:
      TypeError: `sharding` is neither a `NamedSharding` nor a `PartitionSpec`.
      ValueError: there is no mesh, or it has manual axes; the first axis is split over
        no axis of the mesh, or further axes are split.
    """
    if isinstance(sharding, NamedSharding):
        mesh, spec = sharding.mesh, sharding.spec
    elif isinstance(sharding, PartitionSpec):
        mesh, spec = jax.sharding.get_mesh(), sharding
    else:
        raise TypeError(
            'expected `sharding` as a NamedSharding or a PartitionSpec, got '
            f'{short_repr(sharding)}: pass `NamedSharding(mesh, jax.P("data"))`'
        )
    if not isinstance(mesh, Mesh) or mesh.empty:
        raise ValueError(
            f'expected `sharding` on a mesh of devices, got {sharding} without one: '
            'pass `NamedSharding(mesh, spec)`, or call `jax.set_mesh(mesh)` before'
        )
    if AxisType.Manual in mesh.axis_types:
        raise ValueError(
            f'expected a mesh of automatic or explicit axes, got {mesh}, of which some '
            'are manual: make it by `jax.make_mesh(shape, names)`'
        )
    first, *others = *spec, None
    axes = first if isinstance(first, tuple) else (first,)
    known = all(axis in mesh.axis_names for axis in axes)
    if not known or any(x is not None for x in others):
        names = ' or '.join(f'jax.P({name!r})' for name in mesh.axis_names)
        raise ValueError(
            'expected `sharding` of the axis of examples alone, over axes of its mesh, '
            f'{names}, got {spec}'
        )
    return Shards(mesh, axes)
