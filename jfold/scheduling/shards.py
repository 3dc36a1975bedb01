# SPDX-License-Identifier: Apache-2.0
"""`Shards`: the devices of a mesh that share the examples of a batch."""

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

    Each shard is scheduled by itself, with the capacity of all, and runs on the devices
    that share its place on the axes.

    Attributes:
      mesh: of the devices.
      axes: the names of its axes over which examples are split.
    """

    mesh: Mesh
    axes: tuple[str, ...]

    @functools.cached_property
    def count(self) -> int:
        """The number of shards."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    @functools.cached_property
    def split(self) -> PartitionSpec:
        """The partition of arrays with a leading axis over the shards."""
        return PartitionSpec(self.axes)  # type: ignore[no-untyped-call]

    @functools.cached_property
    def sharding(self) -> NamedSharding:
        """The sharding of arrays with a leading axis over the shards."""
        return NamedSharding(self.mesh, self.split)

    @functools.cached_property
    def own(self) -> tuple[int, ...]:
        """The numbers of the shards that this process has devices of."""
        places = self.sharding.addressable_devices_indices_map((self.count,))
        return tuple(sorted({_start(where) for where in places.values()}))

    @functools.cached_property
    def processes(self) -> tuple[int, ...]:
        """The numbers of processes that have devices of the mesh, in order."""
        return tuple(sorted({x.process_index for x in self.mesh.devices.flat}))

    @functools.cached_property
    def own_devices(self) -> int:
        """The number of devices of this process that shards run on."""
        return len(self.sharding.addressable_devices)

    @property
    def is_local(self) -> bool:
        """Return whether this process has all shards."""
        return len(self.own) == self.count

    def gathered(self, parts: Array) -> Array | jax.Array:
        """Return the array [shards, ...] of which this process has parts [own, ...].

        If no other process has devices of the mesh, `parts` are returned as they are.
        Where others have devices of the same shards, `jax.device_put` would compare
        their values by a collective; see `agreement` about those.
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
        """Return whether one of the axes is explicit: in the types of arrays."""
        types = zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        return any(t == AxisType.Explicit for axis, t in types if axis in self.axes)

    def whole(self, x: object) -> Any:
        """Return `x` [*shape], replicated over the shards in its type, too."""
        if not self.is_explicit:
            return x
        spec = PartitionSpec(*map(self._without, jax.typeof(x).sharding.spec))  # type: ignore[no-untyped-call]
        return jax.sharding.reshard(x, NamedSharding(self.mesh, spec))  # type: ignore[no-untyped-call]

    def alike(self, x: object, spec: PartitionSpec = EVERYWHERE) -> Any:
        """Constrain `x` and its cotangent to be replicated along all automatic axes.

        Args:
          spec: the axes along which `x` may be split.
        """
        # Else XLA might split loops over axes that are not those of the shards, and so
        # put collectives of all shards into loops whose lengths differ.
        types = zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        if not any(t == AxisType.Auto for axis, t in types if axis not in self.axes):
            return x
        # A constraint may not name explicit axes, which are in the type.
        where = NamedSharding(self.mesh, EVERYWHERE if self.is_explicit else spec)
        return jax.lax.with_sharding_constraint(x, where)  # type: ignore[no-untyped-call]

    def _without(self, axes: object) -> object:
        """Return the axes of an array's sharding, without those of the shards."""
        names = axes if isinstance(axes, tuple) else (axes,)
        kept = tuple(x for x in names if x is not None and x not in self.axes)
        return kept or None

    def parted(self, x: object) -> Any:
        """Return `x` [shards, ...], split over the shards in its type, too."""
        if not self.is_explicit:
            return x
        return jax.sharding.reshard(x, self.sharding)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f'{self.count} shards over {", ".join(self.axes)} of {self.mesh}'


def _start(where: Any) -> int:
    """Return the first row of a part of an array, by its slices."""
    rows: slice = where[0]
    return rows.start or 0


def make_shards(sharding: Sharding) -> Shards:
    """Return the shards that a sharding of examples stands for.

    Args:
      sharding: how an array [examples] would lie; without a mesh, on that of
        `jax.set_mesh`.

    Raises:
      TypeError: it is none; ValueError: it names no axis, or there is no mesh.
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
    return Shards(mesh, _axes(mesh, spec))


def _axes(mesh: Mesh, spec: PartitionSpec) -> tuple[str, ...]:
    """Return the axes of a spec of arrays [examples]."""
    first, *others = *spec, None
    axes = first if isinstance(first, tuple) else (first,)
    known = all(axis in mesh.axis_names for axis in axes)
    if not known or any(x is not None for x in others):
        names = ' or '.join(f'jax.P({name!r})' for name in mesh.axis_names)
        raise ValueError(
            'expected `sharding` of the axis of examples alone, over axes of its mesh, '
            f'{names}, got {spec}'
        )
    return axes
