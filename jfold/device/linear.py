# SPDX-License-Identifier: Apache-2.0
"""A primitive of JAX for a derivative whose forward and reverse functions are known.

It maps tangents by `push`, and its transpose is `pull`. Rules of `jax.custom_jvp` bind
it, so that one rule serves both modes: forward mode runs `push`; reverse mode, which
transposes the primitive and never runs it, runs `pull`.

Arguments (*known* operands) and outputs are lists of arrays, each [*shape]. So are
tangents and cotangents; they are left out for arguments and outputs that have none, and
in a list of type `MaybeZeros` `None` stands for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jfold.base.arrays import Arrays
from jfold.base.jaxprs import is_inexact
from jfold.base.tracebacks import api_boundary
from jfold.device import xla

# A list of arrays; `None` stands for one that is known to be zero, whatever the values.
MaybeZeros: TypeAlias = list[Array | None]
Function: TypeAlias = Callable[[Arrays], Arrays]
Avals: TypeAlias = Sequence[Any]  # JAX's abstract values of arrays


@dataclass(frozen=True, eq=False)
class Reverse:
    """The reverse (pullback) of a function, and the reverse of its derivative.

    Both functions may leave out cotangents of the last arguments if they are zero.

    Attributes:
      pull: maps arguments and cotangents of the outputs to cotangents of the arguments.
      again: maps arguments, their tangents and cotangents of the derivative along these
        tangents to cotangents of the arguments.
    """

    pull: Callable[[Arrays, MaybeZeros], MaybeZeros]
    again: Callable[[Arrays, MaybeZeros, MaybeZeros], MaybeZeros]


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear map of tangents: a derivative at arguments, or a batch of derivatives.

    Its functions take all arguments (`known`), the tangents of arguments that have one,
    and the cotangents of outputs whose type has tangents.

    Attributes:
      push: maps arguments and their tangents to tangents of outputs.
      pull: maps arguments and cotangents of outputs to cotangents of the tangents.
      again: the reverse of `push` in its arguments: maps arguments, tangents and
        cotangents of outputs to cotangents of the arguments, second derivatives.
    """

    push: Callable[[Arrays, Arrays], Arrays]
    pull: Callable[[Arrays, MaybeZeros], MaybeZeros]
    again: Callable[[Arrays, Arrays, MaybeZeros], MaybeZeros]


def _derivative(
    function: Function, reverse: Reverse, moving: Sequence[bool], live: Sequence[bool]
) -> Linear:
    """Return the derivative of `function`: JAX's forward mode, and the given `reverse`.

    `moving` tells which arguments have a tangent, `live` which outputs are of a type
    that has tangents.
    """

    def push(known: Arrays, tangents: Arrays) -> Arrays:
        # Only arguments with tangents are differentiated: for the others JAX would
        # compute with tangents of zeros.
        def of_moving(primals: Arrays) -> Arrays:
            return partition(function(replace_list(known, primals, moving)), live)

        pushed: Arrays = jax.jvp(of_moving, (partition(known, moving),), (tangents,))[1]
        return pushed

    def pull(known: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
        # Integers among the outputs have no cotangents. The reverse returns cotangents
        # of all arguments; those of arguments that do not move are dropped.
        pulled = reverse.pull(known, scatter_list(cotangents, live))
        return partition(pad_zeros(pulled, len(known)), moving)

    def again(known: Arrays, tangents: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
        along, padded = scatter_list(tangents, moving), scatter_list(cotangents, live)
        return pad_zeros(reverse.again(known, along, padded), len(known))

    return Linear(push, pull, again)


def _batched(
    linear: Linear, axis: Any, known_in: list[int | None], moving_in: list[int | None]
) -> Linear:
    """Return a linear map for a batch of items, by `jax.vmap`.

    The batch axis of arguments and tangents, `known_in` and `moving_in`, is 0 or
    `None`; cotangents of operands without one are sums over the batch, [*shape].
    """

    def mapped(function: Callable[..., Any], *in_axes: object) -> Callable[..., Any]:
        # The mesh axes that the user's own `vmap` names are passed on to this one.
        mesh = axis.spmd_name or axis.explicit_mesh_axis
        sizes = {'axis_size': axis.size, 'axis_name': axis.name, 'spmd_axis_name': mesh}
        return jax.vmap(function, in_axes, **sizes)

    def summed(cotangents: MaybeZeros, axes: list[int | None]) -> MaybeZeros:
        # The transpose of a broadcast is a sum.
        pairs = zip(cotangents, axes, strict=True)
        return [x.sum(0) if x is not None and a is None else x for x, a in pairs]

    def pull(known: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
        return summed(mapped(linear.pull, known_in, 0)(known, cotangents), moving_in)

    def again(*operands: Any) -> MaybeZeros:
        every = mapped(linear.again, known_in, moving_in, 0)(*operands)
        return summed(every, known_in)

    return Linear(mapped(linear.push, known_in, moving_in), pull, again)


def tangents_of(
    function: Function,
    reverse: Reverse,
    known: Arrays,
    tangents: MaybeZeros,
    outputs: Arrays,
) -> MaybeZeros:
    """Return the tangents of outputs of `function`, for `tangents` of its arguments.

    JAX can differentiate them in both modes; reverse mode runs `reverse`.

    Args:
      known: the arguments.
      tangents: of the first arguments; the others have none.

    Returns:
      A tangent [*shape] per output, `None` for zero. If no argument has a tangent, all
      are `None`.
    """
    # Without tangents the primitive is not bound: so programs without derivatives lack
    # it.
    all_tangents = pad_zeros(tangents, len(known))
    moving = tuple(x is not None for x in all_tangents)
    live = tuple(map(is_inexact, outputs))
    if not any(moving) or not any(live):
        return [None for _ in outputs]
    linear = _derivative(function, reverse, moving, live)
    avals = [jax.typeof(x).to_tangent_aval() for x in partition(outputs, live)]
    pushed = _bind(linear, known, partition(all_tangents, moving), avals)
    return scatter_list(pushed, live)


def maybe_zero(tangent: Any) -> Array | None:
    """Return a tangent or cotangent [*shape]; `None` for a symbolic zero of JAX."""
    zero = tangent is None or isinstance(tangent, SymbolicZero | ad.Zero)
    return None if zero or tangent.dtype == jax.dtypes.float0 else tangent


def scatter_list(values: Sequence[Any], places: Sequence[bool]) -> list[Any]:
    """Spread values over true places: `[x]` over `[False, True]` is `[None, x]`."""
    remaining = iter(values)
    return [next(remaining) if here else None for here in places]


def partition(values: Sequence[Any], places: Sequence[bool]) -> list[Any]:
    """Return those of `values` for which `places` is true."""
    return [x for x, here in zip(values, places, strict=True) if here]


def replace_list(
    values: Sequence[Any], new: Iterable[Any], places: Sequence[bool]
) -> list[Any]:
    """Return `values` with those at true `places` replaced by `new`, in order."""
    remaining = iter(new)
    pairs = zip(values, places, strict=True)
    return [next(remaining) if here else x for x, here in pairs]


def pad_zeros(values: MaybeZeros, count: int) -> MaybeZeros:
    """Return a list of `count` values, extended by `None`, which stands for zero."""
    return [*values, *(None for _ in range(count - len(values)))]


# ---- the primitive -------------------------------------------------------------------

# Its operands are the arguments, and then tangents, in which it is linear:
#
#                   known k        tangents t           gives
#     run           k              t                    push(k, t)
#     transposed    k              cotangents c         pull(k, c), for t alone
#     its tangents  k and k'       t and t'             push(k, t') + d push(k, t) k'
#
# In reverse mode JAX only transposes linear equations. So the cotangents of tangents
# that a rule returns reach `pull`, and JAX derives no reverse of its own.
linear_p = core.Primitive('jfold_linear')
linear_p.multiple_results = True


def _bind(linear: Linear, known: Arrays, tangents: Arrays, avals: Avals) -> Arrays:
    """Apply `linear` at `known` to `tangents` by `linear_p`; outputs are of `avals`."""
    result: Arrays = linear_p.bind(  # type: ignore[no-untyped-call]
        *known,
        *tangents,
        linear=linear,
        count=len(known),
        avals=tuple(avals),
        owner=xla.lifetime_token(),
    )
    return result


@api_boundary
def _impl(*operands: Array, linear: Linear, count: int, **_: object) -> Arrays:
    return linear.push(list(operands[:count]), list(operands[count:]))


def _abstract(*operands: object, avals: Avals, **_: object) -> Avals:
    return avals


@api_boundary
def _transpose(
    cotangents: Sequence[Any], *operands: Any, linear: Linear, count: int, **_: object
) -> list[Any]:
    moving = [isinstance(x, ad.UndefinedPrimal) for x in operands]
    # JAX marks the operands that it wants cotangents of: only tangents are among them.
    pulled = linear.pull(list(operands[:count]), list(map(maybe_zero, cotangents)))
    pairs = zip(pulled, operands[count:], strict=True)
    wanted = [ad.Zero(x.aval.to_tangent_aval()) if y is None else y for y, x in pairs]
    return scatter_list(partition(wanted, moving[count:]), moving)


@api_boundary
def _jvp(
    primals: Sequence[Array],
    tangents: Sequence[Any],
    *,
    linear: Linear,
    count: int,
    avals: Avals,
    **_: object,
) -> tuple[Arrays, list[Any]]:
    known, directions = list(primals[:count]), list(primals[count:])
    outputs = _bind(linear, known, directions, avals)
    # The map is linear in its tangents: where only these have tangents, it is its own
    # derivative. Second derivatives are needed only where arguments have tangents, too.
    if all(maybe_zero(x) is None for x in tangents[:count]):
        moved = list(map(ad.instantiate_zeros, tangents[count:]))
        return outputs, _bind(linear, known, moved, avals)

    def push(arguments: Arrays) -> Arrays:
        return linear.push(arguments[:count], arguments[count:])

    def pull(arguments: Arrays, cotangents: MaybeZeros) -> MaybeZeros:
        """Return cotangents of arguments, then of tangents, each [*shape]."""
        known, directions = arguments[:count], arguments[count:]
        return [
            *linear.again(known, directions, cotangents),
            *linear.pull(known, cotangents),
        ]

    moving = list(map(maybe_zero, tangents))
    pushed = tangents_of(push, Reverse(pull, refuse), list(primals), moving, outputs)
    pairs = zip(pushed, outputs, strict=True)
    return outputs, [
        ad.Zero(jax.typeof(x).to_tangent_aval()) if t is None else t for t, x in pairs
    ]


def refuse(*_: object) -> MaybeZeros:
    """Raise TypeError: the reverse of second derivatives is not supported."""
    raise TypeError(
        'expected reverse mode of values or of first derivatives, got a reverse of '
        'second derivatives: take the outer derivatives in forward mode, by '
        '`jax.jvp` or `jax.jacfwd`'
    )


def _batch(
    axis: Any,
    operands: Sequence[Array],
    dims: Sequence[int | None],
    *,
    linear: Linear,
    count: int,
    avals: Avals,
    **_: object,
) -> tuple[Arrays, list[int | None]]:
    if all(d is None for d in dims):
        # JAX also calls this where no operand is batched; then no result is batched,
        # nor is any cotangent.
        result = _bind(linear, list(operands[:count]), list(operands[count:]), avals)
        return result, [None] * len(avals)
    # The batched map is one equation again, so that its transpose is a batched `pull`.
    pairs = zip(operands, dims, strict=True)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in pairs]
    axes = [None if d is None else 0 for d in dims]
    batched = _batched(linear, axis, axes[:count], axes[count:])
    many = [core.unmapped_aval(axis.size, 0, x, axis.explicit_mesh_axis) for x in avals]
    return _bind(batched, moved[:count], moved[count:], many), [0] * len(avals)


linear_p.def_impl(_impl)  # type: ignore[no-untyped-call]
linear_p.def_abstract_eval(_abstract)  # type: ignore[no-untyped-call]
# In JAX's own tables: `jax.custom_jvp` and `custom_vjp` have no place for a transpose.
ad.primitive_jvps[linear_p] = _jvp
ad.primitive_transposes[linear_p] = _transpose
batching.fancy_primitive_batchers[linear_p] = _batch
mlir.register_lowering(linear_p, mlir.lower_fun(_impl, multiple_results=True))
