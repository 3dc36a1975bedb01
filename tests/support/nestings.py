# SPDX-License-Identifier: Apache-2.0
"""Transformations of JAX, one within another, of functions alike before and after.

Each takes a function of parameters, a number and the arrays of a schedule to two
numbers [2], and makes another of it. So any may be put around any other, and around a
model's function as around that of its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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


# Each of these takes a function, and then what that takes.

# ---- derivatives ---------------------------------------------------------------------


def _vjp(f: Function, p: Any, x: Any, s: Any) -> Any:
    _, pull = jax.vjp(lambda p, x: f(p, x, s), p, x)
    grads, of_x = pull(jnp.array([1.0, 0.5], x.dtype))
    return jnp.stack([_dot(grads, direction(p)), of_x])


def _jvp(f: Function, p: Any, x: Any, s: Any) -> Any:
    along = direction(p), jnp.ones_like(x)
    return jax.jvp(lambda p, x: f(p, x, s), (p, x), along)[1]


def _jvp_of_params(f: Function, p: Any, x: Any, s: Any) -> Any:
    value, moved = jax.jvp(lambda p: f(p, x, s), (p,), (direction(p),))
    return value + moved


def _linearize(f: Function, p: Any, x: Any, s: Any) -> Any:
    _, push = jax.linearize(lambda p, x: f(p, x, s), p, x)
    return push(direction(p), jnp.ones_like(x))


def _contracted(jacobian: Any, f: Function, p: Any, x: Any, s: Any) -> Any:
    rows = jacobian(lambda p: f(p, x, s))(p)
    return jax.vmap(lambda row: _dot(row, direction(p)))(rows)


def _jvp_of_many(f: Function, p: Any, x: Any, s: Any) -> Any:
    """Of tangents that are mapped, at parameters that are not."""

    def push(scale: Any) -> Any:
        along = jax.tree.map(lambda d: d * scale, direction(p))
        return jax.jvp(lambda p: f(p, x, s), (p,), (along,))[1]

    return jax.vmap(push)(_several(x)).sum(0)


def _vjp_of_many(f: Function, p: Any, x: Any, s: Any) -> Any:
    """Of cotangents that are mapped, of results that are not."""
    value, pull = jax.vjp(lambda p: f(p, x, s), p)
    (grads,) = jax.vmap(pull)(_several(jnp.stack([x, x / 2])))
    return value * jax.vmap(lambda row: _dot(row, direction(p)))(grads).sum()


# ---- many at once, one after another, and what changes nothing -----------------------


def _numbers(x: Any) -> Any:
    """Weights that differ [members]."""
    return jnp.arange(1.0, MEMBERS + 1, dtype=x.dtype)


def _mapped(which: str, f: Function, p: Any, x: Any, s: Any) -> Any:
    """By some of its arguments."""
    by_params, by_x, by_s = (name in which for name in ('params', 'x', 'schedule'))
    axes = -1 if by_params else None, 0 if by_x else None, 0 if by_s else None
    found = jax.vmap(f, axes)(
        jax.tree.map(_last, p) if by_params else p,
        _several(x) if by_x else x,
        _alike(s) if by_s else s,
    )
    return _numbers(x) @ found


def _mapped_leaf(f: Function, p: Any, x: Any, s: Any) -> Any:
    """Of one array of the parameters, the others being shared."""
    leaves, tree = jax.tree.flatten(p)

    def of_first(first: Any) -> Any:
        return f(jax.tree.unflatten(tree, [first, *leaves[1:]]), x, s)

    return jax.vmap(of_first, -1, 1)(_last(leaves[0])).sum(1)


def _mapped_with_sum(f: Function, p: Any, x: Any, s: Any) -> Any:
    """What it makes summed over the axis within."""

    def each(x: Any) -> Any:
        return jnp.sin(lax.psum(f(p, x, s), 'members'))

    return jax.vmap(each, axis_name='members')(_several(x)).sum(0)


def _scan(f: Function, p: Any, x: Any, s: Any) -> Any:
    """One after another, at parameters that do not change."""

    def step(total: Any, x: Any) -> Any:
        return total + f(p, x, s), None

    return lax.scan(step, jnp.zeros(2, x.dtype), _several(x))[0]


def _scan_of_steps(f: Function, p: Any, x: Any, s: Any) -> Any:
    """One after another, each at the parameters that the one before makes."""

    def step(p: Any, s: Any) -> Any:
        found = f(p, x, s)
        by = 1 + jnp.tanh(found[0]) / 8
        return jax.tree.map(lambda w: (w * by).astype(w.dtype), p), found

    return lax.scan(step, p, _alike(s))[1].sum(0)


_TAKING: dict[str, Callable[..., Any]] = {
    'jit': lambda f, p, x, s: jax.jit(f)(p, x, s),
    'vjp': _vjp,
    'jvp': _jvp,
    # Along an axis of which the function knows nothing.
    'vmap beside': lambda f, p, x, s: jax.vmap(lambda k: f(p, x, s) * k)(
        _numbers(x)
    ).sum(0),
    'vmap of params': partial(_mapped, 'params'),
    'vmap of x': partial(_mapped, 'x'),
    'vmap of schedules': partial(_mapped, 'schedule'),
    'vmap of all': partial(_mapped, 'params x schedule'),
    'vmap of a leaf': _mapped_leaf,
    'vmap with psum': _mapped_with_sum,
    'remat': lambda f, p, x, s: jax.checkpoint(f)(p, x, s),
    'linearize': _linearize,
    'jvp of params': _jvp_of_params,
    'jacfwd': partial(_contracted, jax.jacfwd),
    'jacrev': partial(_contracted, jax.jacrev),
    'jvp of many': _jvp_of_many,
    'vjp of many': _vjp_of_many,
    'scan': _scan,
    'scan of steps': _scan_of_steps,
    'map': lambda f, p, x, s: lax.map(
        lambda p: f(p, x, s), jax.tree.map(_several, p)
    ).sum(0),
    'cond': lambda f, p, x, s: lax.cond(
        x > -9, f, lambda p, x, s: x * jnp.ones(2, x.dtype), p, x, s
    ),
}
TRANSFORMATIONS: dict[str, Callable[[Function], Function]] = {
    name: partial(partial, function) for name, function in _TAKING.items()
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
