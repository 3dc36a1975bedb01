# SPDX-License-Identifier: Apache-2.0
"""Transformations of JAX, one within another, of functions alike before and after.

Each takes a function of parameters, a number and the arrays of a schedule to two
numbers [2], and makes another of it. So any may be put around any other, and around a
model's function as around that of its twin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Function = Callable[[Any, Any, Any], Any]
MEMBERS = 3
# Those that take a derivative, and those of these that take reverse mode.
REVERSES = {'vjp', 'jacrev', 'vjp of many'}
DERIVATIVES = REVERSES | {'jvp', 'jvp of params', 'jvp of many', 'jacfwd', 'linearize'}


def direction(params: Any) -> Any:
    """A tangent of parameters, or weights of their gradients."""
    return jax.tree.map(
        lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype) + 1).reshape(x.shape),
        params,
    )


def _dot(one: Any, two: Any) -> Any:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return sum((jnp.sum(x * y) for x, y in pairs), jnp.zeros(()))


def _several(x: Any, axis: int = 0) -> Any:
    """As many, that differ."""
    return jnp.stack([x * (1 + k / 4) for k in range(MEMBERS)], axis)


def _last(x: Any) -> Any:
    return _several(x, -1)


def _alike(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.stack([x] * MEMBERS), tree)


# ---- derivatives ---------------------------------------------------------------------


def _vjp(f: Function) -> Function:
    def made(p: Any, x: Any, s: Any) -> Any:
        _, pull = jax.vjp(lambda p, x: f(p, x, s), p, x)
        grads, of_x = pull(jnp.array([1.0, 0.5], x.dtype))
        return jnp.stack([_dot(grads, direction(p)), of_x])

    return made


def _jvp(f: Function) -> Function:
    def made(p: Any, x: Any, s: Any) -> Any:
        along = direction(p), jnp.ones_like(x)
        return jax.jvp(lambda p, x: f(p, x, s), (p, x), along)[1]

    return made


def _jvp_of_params(f: Function) -> Function:
    def made(p: Any, x: Any, s: Any) -> Any:
        value, moved = jax.jvp(lambda p: f(p, x, s), (p,), (direction(p),))
        return value + moved

    return made


def _linearize(f: Function) -> Function:
    def made(p: Any, x: Any, s: Any) -> Any:
        _, push = jax.linearize(lambda p, x: f(p, x, s), p, x)
        return push(direction(p), jnp.ones_like(x))

    return made


def _contracted(jacobian: Any, f: Function) -> Function:
    def made(p: Any, x: Any, s: Any) -> Any:
        rows = jacobian(lambda p: f(p, x, s))(p)
        return jax.vmap(lambda row: _dot(row, direction(p)))(rows)

    return made


def _jvp_of_many(f: Function) -> Function:
    """Of tangents that are mapped, at parameters that are not."""

    def made(p: Any, x: Any, s: Any) -> Any:
        def push(scale: Any) -> Any:
            along = jax.tree.map(lambda d: d * scale, direction(p))
            return jax.jvp(lambda p: f(p, x, s), (p,), (along,))[1]

        return jax.vmap(push)(_several(x)).sum(0)

    return made


def _vjp_of_many(f: Function) -> Function:
    """Of cotangents that are mapped, of results that are not."""

    def made(p: Any, x: Any, s: Any) -> Any:
        value, pull = jax.vjp(lambda p: f(p, x, s), p)
        (grads,) = jax.vmap(pull)(_several(jnp.stack([x, x / 2])))
        return value * jax.vmap(lambda row: _dot(row, direction(p)))(grads).sum()

    return made


# ---- many at once, one after another, and what changes nothing -----------------------


def _mapped(f: Function, which: str) -> Function:
    """By some of its arguments."""
    by_params, by_x, by_s = (name in which for name in ('params', 'x', 'schedule'))

    def made(p: Any, x: Any, s: Any) -> Any:
        axes = -1 if by_params else None, 0 if by_x else None, 0 if by_s else None
        found = jax.vmap(f, axes)(
            jax.tree.map(_last, p) if by_params else p,
            _several(x) if by_x else x,
            _alike(s) if by_s else s,
        )
        return jnp.arange(1.0, MEMBERS + 1, dtype=x.dtype) @ found

    return made


def _mapped_beside(f: Function) -> Function:
    """Along an axis of which the function knows nothing."""

    def made(p: Any, x: Any, s: Any) -> Any:
        many = jnp.arange(1.0, MEMBERS + 1, dtype=x.dtype)
        return jax.vmap(lambda k: f(p, x, s) * k)(many).sum(0)

    return made


def _mapped_leaf(f: Function) -> Function:
    """Of one array of the parameters, the others being shared."""

    def made(p: Any, x: Any, s: Any) -> Any:
        leaves, tree = jax.tree.flatten(p)

        def of_first(first: Any) -> Any:
            return f(jax.tree.unflatten(tree, [first, *leaves[1:]]), x, s)

        return jax.vmap(of_first, -1, 1)(_last(leaves[0])).sum(1)

    return made


def _mapped_with_sum(f: Function) -> Function:
    """What it makes summed over the axis within."""

    def made(p: Any, x: Any, s: Any) -> Any:
        def each(x: Any) -> Any:
            return jnp.sin(lax.psum(f(p, x, s), 'members'))

        return jax.vmap(each, axis_name='members')(_several(x)).sum(0)

    return made


def _scan(f: Function) -> Function:
    """One after another, at parameters that do not change."""

    def made(p: Any, x: Any, s: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            return total + f(p, x, s), None

        return lax.scan(step, jnp.zeros(2, x.dtype), _several(x))[0]

    return made


def _scan_of_steps(f: Function) -> Function:
    """One after another, each at the parameters that the one before makes."""

    def made(p: Any, x: Any, s: Any) -> Any:
        def step(p: Any, s: Any) -> Any:
            found = f(p, x, s)
            by = 1 + jnp.tanh(found[0]) / 8
            return jax.tree.map(lambda w: (w * by).astype(w.dtype), p), found

        return lax.scan(step, p, _alike(s))[1].sum(0)

    return made


def _map(f: Function) -> Function:
    def made(p: Any, x: Any, s: Any) -> Any:
        params = jax.tree.map(_several, p)
        return lax.map(lambda p: f(p, x, s), params).sum(0)

    return made


def _cond(f: Function) -> Function:
    def made(p: Any, x: Any, s: Any) -> Any:
        return lax.cond(x > -9, f, lambda p, x, s: x * jnp.ones(2, x.dtype), p, x, s)

    return made


TRANSFORMATIONS: dict[str, Callable[[Function], Function]] = {
    'jit': jax.jit,
    'vjp': _vjp,
    'jvp': _jvp,
    'vmap beside': _mapped_beside,
    'vmap of params': functools.partial(_mapped, which='params'),
    'vmap of x': functools.partial(_mapped, which='x'),
    'vmap of schedules': functools.partial(_mapped, which='schedule'),
    'vmap of all': functools.partial(_mapped, which='params x schedule'),
    'vmap of a leaf': _mapped_leaf,
    'vmap with psum': _mapped_with_sum,
    'remat': jax.checkpoint,
    'linearize': _linearize,
    'jvp of params': _jvp_of_params,
    'jacfwd': functools.partial(_contracted, jax.jacfwd),
    'jacrev': functools.partial(_contracted, jax.jacrev),
    'jvp of many': _jvp_of_many,
    'vjp of many': _vjp_of_many,
    'scan': _scan,
    'scan of steps': _scan_of_steps,
    'map': _map,
    'cond': _cond,
}


def nested(names: Sequence[str], f: Function) -> Function:
    """The function within all of them, the last one innermost."""
    for name in reversed(names):
        f = TRANSFORMATIONS[name](f)
    return f


def is_refused(names: Sequence[str]) -> bool:
    """Whether somewhere reverse mode is taken of what has two derivatives in it."""
    within = 0
    for name in reversed(names):
        if name in REVERSES and within > 1:
            return True
        within += name in DERIVATIVES
    return False
