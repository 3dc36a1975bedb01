# SPDX-License-Identifier: Apache-2.0
"""Types and specs of arrays: shapes, dtypes, and the mesh axes they vary over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from jfold.base.arguments import is_int

if TYPE_CHECKING:
    from chex import ArrayTree

Arrays: TypeAlias = list[jax.Array]
Spec: TypeAlias = jax.ShapeDtypeStruct
Specs: TypeAlias = list[Spec]
ByOperation: TypeAlias = Mapping[int, Arrays]


@dataclass(frozen=True)
class Varying:
    """The mesh axes of an enclosing `jax.shard_map` that arrays vary over.

    Attributes:
      sharding: the sharding in the spec of an array that varies over these axes.
      type_: the `manual_axis_type` in that spec; `type_.varying` holds the axis names.
    """

    sharding: jax.sharding.NamedSharding
    type_: jax.sharding.ManualAxisType


def varying_axes(arrays: ArrayTree) -> Varying | None:
    """Return the mesh axes of that array in `arrays` which varies over the most axes.

    `None` if no array varies over any, as outside of `jax.shard_map`.
    """
    types = list(map(jax.typeof, jax.tree.leaves(arrays)))
    widest = max(types, key=lambda t: len(t.manual_axis_type.varying), default=None)
    if widest is None or not widest.manual_axis_type.varying:
        return None
    everywhere = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    sharding = jax.sharding.NamedSharding(widest.sharding.mesh, everywhere)
    return Varying(sharding, widest.manual_axis_type)


def cast_varying(x: jax.Array, varying: Varying | None) -> jax.Array:
    """Return `x` [*shape], cast to vary also over the mesh axes `varying`.

    A loop carry keeps one type, which includes these axes. `x` is returned unchanged if
    it is float0, or if `varying` is `None`.
    """
    if varying is None or x.dtype == jax.dtypes.float0:
        return x
    axes = varying.type_.varying
    missing = axes.difference(jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(x, tuple(missing), to='varying') if missing else x


def array_spec(
    shape: tuple[int, ...], dtype: DTypeLike, varying: Varying | None = None
) -> Spec:
    """Return the `jax.ShapeDtypeStruct` of an array that varies over axes `varying`."""
    if varying is None:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        shape, dtype, sharding=varying.sharding, manual_axis_type=varying.type_
    )


def spec_of(x: jax.Array | np.ndarray[Any, Any] | Spec) -> Spec:
    """Return the shape and dtype of an array or spec [*shape], without mesh axes."""
    return array_spec(np.shape(x), x.dtype)


def strong(x: Any) -> Any:
    """Return array or spec `x` [*shape], made strongly typed if weakly typed.

    An optimizer's update turns weakly typed parameters into strong ones, so that a
    jitted function of them would be compiled again.
    """
    if not getattr(x, 'weak_type', False):
        return x
    return spec_of(x) if isinstance(x, Spec) else jnp.asarray(x, x.dtype)


def masked(x: jax.Array, real: jax.Array) -> jax.Array:
    """Return `x` [rows, ...] with zeros in spare rows, where `real` [rows] is false.

    A `real` of shape [] applies to all of `x`, which may have any shape.
    """
    real = real.reshape(real.shape + (1,) * (x.ndim - real.ndim))
    return jnp.where(real, x, jnp.zeros((), x.dtype))


# ---- axes of rows --------------------------------------------------------------------

# Kernels are traced at two and at three rows. An array has an axis of rows if exactly
# one axis differs between the two traces, and its lengths are 2 and 3.


def row_axis(two: Spec, three: Spec) -> int | None:
    """Return the axis that has length 2 in `two` and 3 in `three`, or `None`.

    [2, 5], [3, 5] -> 0. It is `None` if no axis differs, or several, or other lengths.
    """
    pairs = enumerate(zip(two.shape, three.shape, strict=True))
    differing = [(axis, lengths) for axis, lengths in pairs if len({*lengths}) > 1]
    return differing[0][0] if [x for _, x in differing] == [(2, 3)] else None


def one_row(two: Spec, axis: int) -> Spec:
    """Return the spec of one row: `two`, the spec of two rows, without axis `axis`."""
    return array_spec(two.shape[:axis] + two.shape[axis + 1 :], two.dtype)


# ---- shapes and dtypes from users ----------------------------------------------------


def shape_of(shape: Iterable[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of ints.

    Raises:
      TypeError: `shape` is no tuple or list of non-negative ints.
    """
    is_shape = isinstance(shape, tuple | list) and all(
        is_int(n) and n >= 0 for n in shape
    )
    if not is_shape:
        hint = ''
        if isinstance(shape, int) or (isinstance(shape, tuple) and len(shape) == 1):
            hint = '; write `Tensor([2, 3])` for a shape, `Vector(2)` for a length'
        raise TypeError(
            'expected `shape` as a tuple or list of non-negative ints, got '
            f'{shape!r}{hint}'
        )
    return tuple(map(int, shape))


def dtype_of(dtype: DTypeLike) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype of bools or numbers, in native byte order.

    Raises:
      TypeError: `dtype` is `None`, no dtype, a dtype of other values, or long double.
    """
    try:
        result: np.dtype[Any] = np.dtype(dtype).newbyteorder('=')
    except (TypeError, ValueError):
        result = np.dtype(object)
    # Dtypes that JAX adds, such as bfloat16, have NumPy's kind V but are not built in.
    is_added = result.kind == 'V' and result.isbuiltin == 2
    is_number = is_added or (result.kind in 'biufc' and result.char not in 'gG')
    if dtype is None or not is_number:
        raise TypeError(
            f"expected `dtype` as a number type such as 'float32', got {dtype!r}"
        )
    return result
