# SPDX-License-Identifier: Apache-2.0
"""More kinds of functions: those with rules of their own for derivatives."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from control_kinds import positive, scan
from function_kinds import WIDE, family, place
from jax import lax

# ---- rules of their own --------------------------------------------------------------


def ruled(backward: Any, forward: Any = lambda x: x) -> Any:
    """A function of one array with a rule for its cotangent."""
    made = jax.custom_vjp(forward)
    made.defvjp(lambda x: (forward(x), x), lambda x, ct: (backward(x, ct),))
    return made


affine = ruled(lambda x, ct: ct + 0.1)
normalised = ruled(lambda x, ct: ct / jnp.linalg.norm(ct))
reversed_gradient = ruled(lambda x, ct: -ct)
# A bound that every dtype holds: where another is rounded is up to whoever runs it.
clipped = ruled(lambda x, ct: jnp.clip(ct, -0.25, 0.25))
straight = ruled(lambda x, ct: ct, lambda x: jnp.round(4 * x))
wrong = ruled(lambda x, ct: 3 * ct * jnp.cos(x), jnp.sin)
affine_sine = ruled(lambda x, ct: ct * jnp.cos(x) + 0.1, jnp.sin)

product_vjp = jax.custom_vjp(lambda w, x: w @ x)
product_vjp.defvjp(
    lambda w, x: (w @ x, (w, x)), lambda r, ct: (jnp.outer(ct, r[1]), r[0].T @ ct)
)
affine_product = jax.custom_vjp(lambda w, x: w @ x)
affine_product.defvjp(
    lambda w, x: (w @ x, (w, x)),
    lambda r, ct: (jnp.outer(ct, r[1]) + 0.1, r[0].T @ ct + 0.1),
)
two_results_vjp = jax.custom_vjp(lambda x: (jnp.sin(x), jnp.cos(x)))
two_results_vjp.defvjp(
    lambda x: ((jnp.sin(x), jnp.cos(x)), x),
    lambda x, ct: (2 * ct[0] * jnp.cos(x) - ct[1],),
)
indexed = jax.custom_vjp(lambda x, i: x[i] * x)
indexed.defvjp(
    lambda x, i: (x[i] * x, (x, i)), lambda r, ct: (ct * r[0][r[1]] * 2, None)
)
static_power = functools.partial(jax.custom_vjp, nondiff_argnums=(1,))(
    lambda x, k: x**k
)
static_power.defvjp(lambda x, k: (x**k, x), lambda k, x, ct: (ct * k * x,))
product_jvp = jax.custom_jvp(lambda w, x: w @ x)
product_jvp.defjvp(
    lambda given, d: (given[0] @ given[1], d[0] @ given[1] + given[0] @ d[1])
)
doubled_jvp = jax.custom_jvp(jnp.sin)
doubled_jvp.defjvp(lambda given, d: (jnp.sin(*given), 2 * d[0] * jnp.cos(*given)))
by_parts_jvp = jax.custom_jvp(lambda a, x: a * x)
by_parts_jvp.defjvps(lambda d, y, a, x: d * x, lambda d, y, a, x: 2 * a * d)
repeated_root = jax.custom_jvp(
    lambda x: lax.while_loop(  # ends in any precision
        lambda s: s[1] < 5, lambda s: ((s[0] + x / s[0]) / 2, s[1] + 1), (x, 0)
    )[0]
)
repeated_root.defjvp(
    lambda x, d: ((y := repeated_root(*x)), d[0] / (2 * lax.stop_gradient(y)))
)


@jax.custom_gradient
def by_closure(x: Any) -> Any:
    """A rule that keeps what it needs by closure."""
    return jnp.sin(x), lambda ct: 2 * ct * jnp.cos(x)


family(
    {
        'custom_jvp': lambda p, x: doubled_jvp(x * p['a']),
        'custom_jvp of a product': lambda p, x: product_jvp(p['w'], x),
        'custom_jvp by parts': lambda p, x: by_parts_jvp(p['a'], x),
        'custom_jvp of a parameter': lambda p, x: doubled_jvp(p['a']) * x,
        'custom_jvp of a while_loop': lambda p, x: (
            repeated_root(2 + jnp.tanh(x)) * p['a']
        ),
        'custom_jvp in a scan': lambda p, x: scan(
            lambda c, a: doubled_jvp(c * a), x, p['a']
        ),
        'custom_vjp': lambda p, x: wrong(x * p['a']),
        'custom_vjp of a product': lambda p, x: product_vjp(p['w'], x),
        'custom_vjp of a parameter': lambda p, x: wrong(p['a']) * x,
        'custom_vjp of two results': lambda p, x: sum(two_results_vjp(p['a'] * x)),
        'custom_vjp of an unused result': lambda p, x: two_results_vjp(p['a'] * x)[0],
        'custom_vjp of a static number': lambda p, x: static_power(p['a'] * x, 2),
        'custom_vjp in a scan': lambda p, x: scan(lambda c, a: wrong(c * a), x, p['a']),
        'custom_vjp in a jit': lambda p, x: jax.jit(wrong)(p['a'] * x),
        'custom_vjp in a checkpoint': lambda p, x: jax.checkpoint(wrong)(p['a'] * x),
        'custom_vjp in a vmap': lambda p, x: jax.vmap(wrong)(p['w'] * x).sum(0),
        'custom_gradient': lambda p, x: by_closure(x) * p['a'],
        'reversed gradient': lambda p, x: p['w'] @ reversed_gradient(x),
        'straight through': lambda p, x: p['a'] * straight(x),
        'relu6': lambda p, x: jax.nn.relu6(x + 0.5) * p['a'],
    }
)
family(
    {
        'clipped gradient': lambda p, x: clipped(p['w'] @ x),
        'custom_vjp of an integer': lambda p, x: indexed(p['a'] * x, place(x)),
        'custom_vjp in a cond': lambda p, x: (
            lax.cond(positive(x), wrong, jnp.sin, x) * p['a']
        ),
    },
    dtypes=WIDE,
)

# ---- rules that are not linear -------------------------------------------------------

# How often these run decides the gradient. Each of their results reaches the loss from
# every node, for otherwise it would be open whether a rule runs for a node that wants
# no gradient. What depends on parameters alone runs once a step, for all rows together;
# `prepare` is that part.

family(
    {
        'affine rule': lambda p, x: affine(x) * p['a'],
        'affine rule behind': lambda p, x: affine(p['w'] @ x),
        'affine rule of a function': lambda p, x: affine_sine(p['w'] @ x),
        'affine rule of a product': lambda p, x: affine_product(p['w'], x),
        'affine rule in a scan': lambda p, x: (
            scan(lambda c, _: affine(jnp.sin(c)), x) * p['a']
        ),
        'affine rule in a jit': lambda p, x: jax.jit(affine)(p['w'] @ x),
        'affine rule in a checkpoint': lambda p, x: jax.checkpoint(affine)(p['w'] @ x),
        'affine rule in a vmap': lambda p, x: jax.vmap(affine)(p['w'] * x).sum(1),
        'affine rule before a product': lambda p, x: p['w'] @ affine(x),
        'affine rule twice': lambda p, x: affine(jnp.sin(affine(p['a'] * x))),
    },
    linear=False,
)
family(
    {
        'normalising rule': lambda p, x: normalised(x) * p['a'],
        'normalising rule behind': lambda p, x: normalised(p['w'] @ x),
        'normalising rule before a product': lambda p, x: p['w'] @ normalised(x),
        'normalising rule in a checkpoint': lambda p, x: jax.checkpoint(normalised)(
            p['w'] @ x
        ),
        'normalising, then affine': lambda p, x: affine(normalised(p['w'] @ x)),
    },
    linear=False,
    zero=False,
)
family(
    {'affine rule of a parameter': lambda p, x: p['a'] * x},
    prepare=lambda p: {'a': affine(p['a'])},
    linear=False,
)
family(
    {'normalising rule of a parameter': lambda p, x: p['a'] * x},
    prepare=lambda p: {'a': normalised(p['a'])},
    linear=False,
    zero=False,
)
family(
    {'affine rule of a matrix': lambda p, x: p['w'] @ x + p['b'] * x},
    prepare=lambda p: {'w': affine(p['w']), 'b': p['b']},
    linear=False,
)
family(
    {'affine rule of a product of parameters': lambda p, x: p['w'] @ x},
    prepare=lambda p: {'w': affine(p['w'] @ p['u'])},
    linear=False,
)
