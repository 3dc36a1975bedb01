# SPDX-License-Identifier: Apache-2.0
"""More kinds of functions: control flow, transformations, several results."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
from function_kinds import WIDE, dot, family, place
from jax import lax


def step(w: Any, b: Any, x: Any) -> Any:
    """A small recurrent step."""
    return jnp.tanh(w @ x + b)


def positive(x: Any) -> Any:
    """A condition."""
    return x.sum() > 0


# ---- loops ---------------------------------------------------------------------------


def scan(fn: Any, x: Any, items: Any = None, **options: Any) -> Any:
    """The last state of a scan that gives nothing else."""
    length = 3 if items is None else None
    return lax.scan(lambda c, i: (fn(c, i), None), x, items, length, **options)[0]


def while_small(fn: Any, x: Any) -> Any:
    """Repeats a growing function."""
    return lax.while_loop(lambda s: jnp.abs(s).sum() < 10, fn, x)


def counted_while(x: Any, bound: Any) -> Any:
    """How often numbers can be doubled below a bound: an integer."""
    start = lax.stop_gradient(jnp.abs(x).sum() + 0.1), 0
    body = lambda s: (2 * s[0], s[1] + 1)  # noqa: E731
    return lax.while_loop(lambda s: s[0] < bound, body, start)[1]


def linear_solve(w: Any, x: Any) -> Any:
    """A solution found by iterations, with its own rule."""
    matrix = 3 * jnp.eye(x.size, dtype=x.dtype) + 0.1 * (w + w.T)
    solve = lambda f, y: lax.fori_loop(0, 80, lambda _, z: z + (y - f(z)) / 4, y)  # noqa: E731
    return lax.custom_linear_solve(lambda v: matrix @ v, x, solve, symmetric=True)


def root(a: Any, b: Any, x: Any) -> Any:
    """Where a function is zero, with its own rule."""

    def newton(f: Any, start: Any) -> Any:
        towards = lambda _, y: y - f(y) / jax.grad(lambda z: f(z).sum())(y)  # noqa: E731
        return lax.fori_loop(0, 30, towards, start)

    made = lax.custom_root(
        lambda y: y + 0.5 * jnp.tanh(y) - a * x,
        jnp.zeros_like(x),
        newton,
        lambda g, y: y / g(jnp.ones_like(y)),
    )
    return made * b


family(
    {
        'scan': lambda w, b, x: scan(lambda c, _: step(w, b, c), x),
        'scan over parameters': lambda cube, x: scan(
            lambda c, w: jnp.tanh(w @ c), x, cube
        ),
        'scan in reverse': lambda cube, x: scan(
            lambda c, w: jnp.tanh(w @ c), x, cube, reverse=True
        ),
        'scan over numbers': lambda a, x: scan(lambda c, i: jnp.sin(c + i), a, x),
        'scan with results': lambda w, s, x: lax.scan(
            lambda c, row: (c + row @ x, c * row), s, w
        )[1].sum(0),
        'scan without parameters': lambda x: scan(lambda c, _: jnp.sin(2 * c), x),
        'scan of parameters alone': lambda a, x: (
            scan(lambda c, _: jnp.sin(2 * c), a) * x
        ),
        'scan of a state of weights': lambda w, x: lax.scan(
            lambda c, _: ((c[0] * 0.5, jnp.tanh(c[0] @ c[1])), None), (w, x), length=2
        )[0][1],
        'scan in a scan': lambda w, x: scan(
            lambda c, row: scan(lambda d, _: jnp.sin(d + row), c), x, w[:2]
        ),
        'scan of no steps': lambda a, x: scan(lambda c, i: c * i, x, a[:0]),
        'scan under checkpoint': lambda w, b, x: scan(
            jax.checkpoint(lambda c, _: step(w, b, c)), x
        ),
        'fori_loop': lambda w, b, x: lax.fori_loop(0, 3, lambda _, c: step(w, b, c), x),
        'fori_loop over rows': lambda w, x: lax.fori_loop(
            0, x.size, lambda i, c: c + w[i] * x[i], x
        ),
        'fori_loop that sets': lambda s, x: lax.fori_loop(
            1, x.size, lambda i, c: c.at[i].add(s * c[i - 1]), x
        ),
        'map': lambda w, x: lax.map(lambda row: row @ x, w),
        'associative_scan': lambda a, x: lax.associative_scan(jnp.add, x * a),
        'associative products': lambda cube, x: (
            lax.associative_scan(jnp.matmul, cube)[-1] @ x
        ),
        'custom_linear_solve': linear_solve,
        'custom_root': root,
    }
)
family(
    {
        'while_loop of integers': lambda a, x: x * a[counted_while(x, 5)],
        'while_loop of parameters alone': lambda a, s, x: x * counted_while(a, 30) * s,
        'fori_loop to a parameter': lambda a, order, x: (
            x * a * lax.fori_loop(0, order[0], lambda i, c: c + i, 1)
        ),
    },
    dtypes=WIDE,
)
family(
    {
        'while_loop': lambda a, x: while_small(lambda s: 1.5 * s + 0.1 * a + 1, x),
        'while_loop with a product': lambda w, x: while_small(
            lambda s: w @ s + 2 * s + 1, x
        ),
        'while_loop of parameters': lambda a, x: (
            x * while_small(lambda s: 2 * s, a**2 + 1)
        ),
        'fori_loop of a computed length': lambda w, b, x: lax.fori_loop(
            0, place(x), lambda _, c: step(w, b, c), x
        ),
        'while_loop in a cond': lambda a, x: (
            lax.cond(
                positive(x), lambda y: while_small(lambda s: 2 * s + 1, y), jnp.sin, x
            )
            * a
        ),
    },
    dtypes=WIDE,
    reverse=False,
)

# ---- conditionals --------------------------------------------------------------------


family(
    {
        'cond': lambda w, a, x: lax.cond(positive(x), lambda: w @ x, lambda: a * x),
        'cond of a parameter': lambda w, u, a, x: lax.cond(
            positive(a), lambda y: w @ y, lambda y: u @ y, x
        ),
        'cond of a constant branch': lambda a, x: lax.cond(
            positive(x), lambda: jnp.ones_like(x), lambda: a * x
        ),
        'cond of operands': lambda a, x: sum(
            lax.cond(
                positive(x), lambda x, y: (x + y, x * y), lambda x, y: (y, x), x, a
            )
        ),
        'cond in a cond': lambda w, a, x: lax.cond(
            positive(x),
            lambda y: lax.cond(y[0] > 0.1, lambda z: w @ z, jnp.cos, y),
            lambda y: y * a,
            x,
        ),
        'cond of a flag': lambda a, flags, x: (
            lax.cond(flags[0], jnp.sin, jnp.cos, x) * a
        ),
        'cond in a scan': lambda a, x: scan(
            lambda c, i: lax.cond(positive(c), jnp.sin, lambda y: y * i + 0.3, c), x, a
        ),
        'scan in a cond': lambda w, b, x: lax.cond(
            positive(x), lambda y: scan(lambda c, _: step(w, b, c), y), lambda y: y, x
        ),
        'switch': lambda w, a, x: lax.switch(
            jnp.argmax(x[:3]), [jnp.sin, lambda y: w @ y, lambda y: a * y], x
        ),
        'switch of an integer parameter': lambda w, a, order, x: lax.switch(
            order[0], [jnp.sin, lambda y: w @ y, lambda y: a * y], x
        ),
        'switch beyond the end': lambda a, b, x: lax.switch(
            place(x) - 2, [lambda y: a * y, lambda y: b + y], x
        ),
        'select_n': lambda a, b, x: lax.select_n(x > a, x, b),
    },
    dtypes=WIDE,
)

# ---- transformations inside ----------------------------------------------------------

save_dots = jax.checkpoint_policies.dots_saveable


def energy(w: Any, a: Any, x: Any) -> Any:
    """A number, to be differentiated."""
    return jnp.sum(jnp.tanh(w @ x) * a)


family(
    {
        'checkpoint': jax.checkpoint(step),
        'checkpoint over parameters': lambda w, x: jax.checkpoint(
            lambda y: w @ jnp.sin(y)
        )(x),
        'checkpoint with a policy': lambda w, x: jax.checkpoint(
            lambda y: jnp.sin(w @ jnp.sin(y)), policy=save_dots
        )(x),
        'checkpoint in a checkpoint': lambda w, x: jax.checkpoint(
            lambda y: jax.checkpoint(lambda z: w @ jnp.sin(z))(y) * y
        )(x),
        'checkpoint of a scan': lambda w, b, x: jax.checkpoint(
            lambda y: scan(lambda c, _: step(w, b, c), y)
        )(x),
        'checkpoint of parameters alone': lambda w, x: jax.checkpoint(jnp.sin)(w) @ x,
        'jit': jax.jit(lambda w, y: jnp.sin(w @ y)),
        'jit in a jit': lambda a, x: jax.jit(lambda y: jax.jit(jnp.sin)(a * y))(x),
        'jit of parameters alone': lambda a, x: jax.jit(jnp.cos)(a) * x,
        'vmap': jax.vmap(lambda w, x: jnp.sin(w * x).sum()),
        'gradient': jax.grad(energy, 2),
        'gradient of parameters': jax.grad(energy, 1),
        'jvp': lambda w, a, x: jax.jvp(lambda y: jnp.sin(w @ y), (x,), (a,))[1],
        'vjp': lambda w, a, x: jax.vjp(lambda y: jnp.sin(w @ y), x)[1](a)[0],
        'hessian': lambda a, x: (
            jax.hessian(lambda y: jnp.sum(a * jnp.sin(y * y.sum())))(x) @ x
        ),
        'linearized': lambda a, b, x: jax.linearize(lambda y: a * jnp.sin(y), x)[1](b),
        'transposed function': lambda w, x: jax.linear_transpose(lambda y: w @ y, x)(x)[
            0
        ],
        'stop_gradient': lambda a, x: lax.stop_gradient(x) * a + jnp.sin(x),
        'random': lambda a, x: (
            x * a + jax.random.normal(jax.random.key(3), x.shape, x.dtype)
        ),
        'optimization_barrier': lambda a, x: lax.optimization_barrier(a * x) + x,
    }
)
family(
    {
        'dropout': lambda a, x: jnp.where(
            jax.random.bernoulli(
                jax.random.fold_in(jax.random.key(0), place(x)), 0.5, x.shape
            ),
            x,
            a,
        )
    },
    dtypes=WIDE,
)

# ---- several results -----------------------------------------------------------------

Pair = namedtuple('Pair', 'first second')

family(
    {
        'and an unused product': lambda w, u, x: (w @ x, u @ x),
        'and an unused parameter': lambda a, b, x: (a * x, b),
        'and the numbers themselves': lambda a, x: (a * x, x),
        'the same twice': lambda w, x: ((y := w @ x), y),
        'and a constant': lambda w, x: (w @ x, jnp.ones(3, x.dtype)),
        'and a number': lambda a, b, x: (a * x, x.sum(), x @ b),
        'and a matrix': lambda w, a, x: (a * x, jnp.outer(x, x) @ w),
        'nested results': lambda w, a, b, x: (a * x, (x + b, (w @ x,))),
        'unused results of a loop': lambda cube, a, x: lax.scan(
            lambda c, w: (jnp.tanh(w @ c), c * a), x, cube
        ),
        'and what nothing is needed for': lambda w, x: (
            x * 1,
            lax.stop_gradient(w @ x),
        ),
    },
    several=True,
)
family(
    {
        'and an integer': lambda a, x: (a * x, jnp.argmax(x)),
        'and booleans': lambda a, b, x: (a * x, x > b),
        'and an integer parameter': lambda a, order, x: (a * x, order),
        'and order': lambda a, x: (jnp.sort(x * a), jnp.argsort(x), x[::-1]),
        'and a count': lambda w, x: (w @ x, counted_while(x, 5)),
        'and small integers': lambda a, x: (a * x, (4 * x).astype('int8')),
        'and unsigned integers': lambda a, x: (a * x, place(x).astype('uint32')),
        'top_k and where': lambda a, x: (x * a, *lax.top_k(x, 2)),
    },
    several=True,
    dtypes=WIDE,
)

# ---- parameters ----------------------------------------------------------------------


def from_nested(nested: Any, x: Any) -> Any:
    """All parameters of a nested tree."""
    (a, (b,)), s = nested['pair'], nested['inner']['s']
    return jnp.tanh(a * x + b) * s


family(
    {
        'nested parameters': from_nested,
        'some nested parameters': lambda nested, x: nested['pair'][0] * x,
        'parameters for a scan': lambda w, cube, x: scan(
            lambda c, q: jnp.tanh(q['w'] @ c + q['b']), x, {'w': cube, 'b': w}
        ),
        'parameters through a jit': jax.jit(from_nested),
        'parameters alone': lambda a, x: jnp.sin(a),
        'a result of constants': lambda x: jnp.ones(x.shape, x.dtype),
        'unused parameter': lambda w, a, x: (w, a * x)[1],
        'integers and flags': lambda a, order, flags, x: jnp.where(flags, x[order], a),
        'shared by two products': lambda w, b, x: dot(w, x, ((0,), (0,))) + w @ b,
    }
)
