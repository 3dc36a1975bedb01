# SPDX-License-Identifier: Apache-2.0
"""Arrays as the device half names them, and the axes of a mesh that they vary over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

if TYPE_CHECKING:
    from chex import ArrayTree

Arrays: TypeAlias = list[jax.Array]
Spec: TypeAlias = jax.ShapeDtypeStruct
Specs: TypeAlias = list[Spec]
ByOperation: TypeAlias = Mapping[int, Arrays]


@dataclass(frozen=True)
class Varying:
    """Over which axes of an enclosing `jax.shard_map` arrays vary.

    Attributes:
      sharding, type_: of specs of such arrays.
    """

    sharding: jax.sharding.NamedSharding
    type_: jax.sharding.ManualAxisType


def varying_axes(arrays: ArrayTree) -> Varying | None:
    """Over which axes some of the arrays vary."""
    types = list(map(jax.typeof, jax.tree.leaves(arrays)))
    found = max(types, key=lambda t: len(t.manual_axis_type.varying), default=None)
    if found is None or not found.manual_axis_type.varying:
        return None
    everywhere = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    sharding = jax.sharding.NamedSharding(found.sharding.mesh, everywhere)
    return Varying(sharding, found.manual_axis_type)


def varied(x: jax.Array, varying: Varying | None) -> jax.Array:
    """`x` [*shape], of a type that may vary over the given axes.

    Loops need what they carry to be of one type from the start.
    """
    if varying is None or x.dtype == jax.dtypes.float0:
        return x
    axes = varying.type_.varying
    missing = axes.difference(jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(x, tuple(missing), to='varying') if missing else x


def array_spec(
    shape: tuple[int, ...], dtype: DTypeLike, varying: Varying | None = None
) -> Spec:
    """Stands for an array while only shapes are looked at."""
    if varying is None:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        shape, dtype, sharding=varying.sharding, manual_axis_type=varying.type_
    )


def spec_of(x: jax.Array | np.ndarray[Any, Any] | Spec) -> Spec:
    """The spec of an array [*shape], or of what stands for one."""
    return array_spec(np.shape(x), x.dtype)


def masked(x: jax.Array, real: jax.Array) -> jax.Array:
    """`x`, zero where it is not real.

    Args:
      x: [rows, ...], or anything if `real` is one bool.
      real: [rows] bool, or [] bool.
    """
    real = real.reshape(real.shape + (1,) * (x.ndim - real.ndim))
    return jnp.where(real, x, jnp.zeros((), x.dtype))


# An array has rows if its shape at three rows differs from that at two, in one axis
# alone, which has as many places as there are rows.


def row_axis(two: Spec, three: Spec) -> int | None:
    """The axis of rows of an array whose specs at two and at three rows are given."""
    pairs = list(enumerate(zip(two.shape, three.shape, strict=True)))
    axes = [axis for axis, (a, b) in pairs if a != b]
    clean = len(axes) == 1 and pairs[axes[0]][1] == (2, 3)
    return axes[0] if clean else None


def one_row(two: Spec, axis: int) -> Spec:
    """The spec of one row, from that of two."""
    return array_spec(two.shape[:axis] + two.shape[axis + 1 :], two.dtype)
