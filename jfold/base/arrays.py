# SPDX-License-Identifier: Apache-2.0
"""Arrays as the device half names them, and the mesh axes that they vary over."""

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
    """The axes of an enclosing `jax.shard_map` that arrays vary over.

    Attributes:
      sharding, type_: those of specs of such arrays.
    """

    sharding: jax.sharding.NamedSharding
    type_: jax.sharding.ManualAxisType


def varying_axes(arrays: ArrayTree) -> Varying | None:
    """Return the axes that some of the arrays vary over."""
    types = list(map(jax.typeof, jax.tree.leaves(arrays)))
    widest = max(types, key=lambda t: len(t.manual_axis_type.varying), default=None)
    if widest is None or not widest.manual_axis_type.varying:
        return None
    everywhere = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    sharding = jax.sharding.NamedSharding(widest.sharding.mesh, everywhere)
    return Varying(sharding, widest.manual_axis_type)


def cast_varying(x: jax.Array, varying: Varying | None) -> jax.Array:
    """Return `x` [*shape], of a type that may vary over the given axes. Loops need what
    they carry to be of one type from the start."""
    if varying is None or x.dtype == jax.dtypes.float0:
        return x
    axes = varying.type_.varying
    missing = axes.difference(jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(x, tuple(missing), to='varying') if missing else x


def array_spec(
    shape: tuple[int, ...], dtype: DTypeLike, varying: Varying | None = None
) -> Spec:
    """Return a spec, which stands for an array while only shapes matter."""
    if varying is None:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        shape, dtype, sharding=varying.sharding, manual_axis_type=varying.type_
    )


def spec_of(x: jax.Array | np.ndarray[Any, Any] | Spec) -> Spec:
    """Return the spec of an array [*shape], or of what stands for one."""
    return array_spec(np.shape(x), x.dtype)


def strong(x: Any) -> Any:
    """Return an array or spec [*shape] without a weak type, which a step would lose."""
    if not getattr(x, 'weak_type', False):
        return x
    return spec_of(x) if isinstance(x, Spec) else jnp.asarray(x, x.dtype)


def masked(x: jax.Array, real: jax.Array) -> jax.Array:
    """Return `x`, zero where it is not real.

    Args:
      x: [rows, ...], or anything if `real` is one bool.
      real: [rows] bool, or [] bool.
    """
    real = real.reshape(real.shape + (1,) * (x.ndim - real.ndim))
    return jnp.where(real, x, jnp.zeros((), x.dtype))


# An array has rows if its shape at three rows differs from that at two in one axis
# alone, whose length is the number of rows.


def row_axis(two: Spec, three: Spec) -> int | None:
    """Return the axis of rows, given an array's specs at two and at three rows."""
    pairs = list(enumerate(zip(two.shape, three.shape, strict=True)))
    axes = [axis for axis, (a, b) in pairs if a != b]
    clean = len(axes) == 1 and pairs[axes[0]][1] == (2, 3)
    return axes[0] if clean else None


def one_row(two: Spec, axis: int) -> Spec:
    """Return the spec of one row, from that of two."""
    return array_spec(two.shape[:axis] + two.shape[axis + 1 :], two.dtype)
