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
        'custom_jvp': lambda a, x: doubled_jvp(x * a),
        'custom_jvp of a product': product_jvp,
        'custom_jvp by parts': by_parts_jvp,
        'custom_jvp of a parameter': lambda a, x: doubled_jvp(a) * x,
        'custom_jvp of a while_loop': lambda a, x: repeated_root(2 + jnp.tanh(x)) * a,
        'custom_jvp in a scan': lambda a, x: scan(
            lambda c, a: doubled_jvp(c * a), x, a
        ),
        'custom_vjp': lambda a, x: wrong(x * a),
        'custom_vjp of a product': product_vjp,
        'custom_vjp of a parameter': lambda a, x: wrong(a) * x,
        'custom_vjp of two results': lambda a, x: sum(two_results_vjp(a * x)),
        'custom_vjp of an unused result': lambda a, x: two_results_vjp(a * x)[0],
        'custom_vjp of a static number': lambda a, x: static_power(a * x, 2),
        'custom_vjp in a scan': lambda a, x: scan(lambda c, a: wrong(c * a), x, a),
        'custom_vjp in a jit': lambda a, x: jax.jit(wrong)(a * x),
        'custom_vjp in a checkpoint': lambda a, x: jax.checkpoint(wrong)(a * x),
        'custom_vjp in a vmap': lambda w, x: jax.vmap(wrong)(w * x).sum(0),
        'custom_gradient': lambda a, x: by_closure(x) * a,
        'reversed gradient': lambda w, x: w @ reversed_gradient(x),
        'straight through': lambda a, x: a * straight(x),
        'relu6': lambda a, x: jax.nn.relu6(x + 0.5) * a,
    }
)
family(
    {
        'clipped gradient': lambda w, x: clipped(w @ x),
        'custom_vjp of an integer': lambda a, x: indexed(a * x, place(x)),
        'custom_vjp in a cond': lambda a, x: (
            lax.cond(positive(x), wrong, jnp.sin, x) * a
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
        'affine rule': lambda a, x: affine(x) * a,
        'affine rule behind': lambda w, x: affine(w @ x),
        'affine rule of a function': lambda w, x: affine_sine(w @ x),
        'affine rule of a product': affine_product,
        'affine rule in a scan': lambda a, x: (
            scan(lambda c, _: affine(jnp.sin(c)), x) * a
        ),
        'affine rule in a jit': lambda w, x: jax.jit(affine)(w @ x),
        'affine rule in a checkpoint': lambda w, x: jax.checkpoint(affine)(w @ x),
        'affine rule in a vmap': lambda w, x: jax.vmap(affine)(w * x).sum(1),
        'affine rule before a product': lambda w, x: w @ affine(x),
        'affine rule twice': lambda a, x: affine(jnp.sin(affine(a * x))),
    },
    linear=False,
)
family(
    {
        'normalising rule': lambda a, x: normalised(x) * a,
        'normalising rule behind': lambda w, x: normalised(w @ x),
        'normalising rule before a product': lambda w, x: w @ normalised(x),
        'normalising rule in a checkpoint': lambda w, x: jax.checkpoint(normalised)(
            w @ x
        ),
        'normalising, then affine': lambda w, x: affine(normalised(w @ x)),
    },
    linear=False,
    zero=False,
)
family(
    {'affine rule of a parameter': lambda a, x: a * x},
    prepare=lambda a: {'a': affine(a)},
    linear=False,
)
family(
    {'normalising rule of a parameter': lambda a, x: a * x},
    prepare=lambda a: {'a': normalised(a)},
    linear=False,
    zero=False,
)
family(
    {'affine rule of a matrix': lambda w, b, x: w @ x + b * x},
    prepare=lambda w, b: {'w': affine(w), 'b': b},
    linear=False,
)
family(
    {'affine rule of a product of parameters': lambda w, x: w @ x},
    prepare=lambda w, u: {'w': affine(w @ u)},
    linear=False,
)
