# SPDX-License-Identifier: Apache-2.0
"""More kinds of functions: control flow, transformations, several results."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
from function_kinds import WIDE, dot, family, place
from jax import lax


def step(p: Any, x: Any) -> Any:
    """A small recurrent step."""
    return jnp.tanh(p['w'] @ x + p['b'])


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


def running(p: Any, x: Any) -> Any:
    """A scan with a result for every step."""
    return lax.scan(lambda c, row: (c + row @ x, c * row), p['s'], p['w'])[1].sum(0)


def weights_carried(p: Any, x: Any) -> Any:
    """A scan whose state is parameters and numbers."""
    body = lambda c, _: ((c[0] * 0.5, jnp.tanh(c[0] @ c[1])), None)  # noqa: E731
    return lax.scan(body, (p['w'], x), length=2)[0][1]


def nested_scan(p: Any, x: Any) -> Any:
    """A scan in a scan."""
    return scan(lambda c, row: scan(lambda d, _: jnp.sin(d + row), c), x, p['w'][:2])


def linear_solve(p: Any, x: Any) -> Any:
    """A solution found by iterations, with its own rule."""
    matrix = 3 * jnp.eye(x.size, dtype=x.dtype) + 0.1 * (p['w'] + p['w'].T)
    solve = lambda f, y: lax.fori_loop(0, 80, lambda _, z: z + (y - f(z)) / 4, y)  # noqa: E731
    return lax.custom_linear_solve(lambda v: matrix @ v, x, solve, symmetric=True)


def root(p: Any, x: Any) -> Any:
    """Where a function is zero, with its own rule."""

    def newton(f: Any, start: Any) -> Any:
        towards = lambda _, y: y - f(y) / jax.grad(lambda z: f(z).sum())(y)  # noqa: E731
        return lax.fori_loop(0, 30, towards, start)

    made = lax.custom_root(
        lambda y: y + 0.5 * jnp.tanh(y) - p['a'] * x,
        jnp.zeros_like(x),
        newton,
        lambda g, y: y / g(jnp.ones_like(y)),
    )
    return made * p['b']


family(
    {
        'scan': lambda p, x: scan(lambda c, _: step(p, c), x),
        'scan over parameters': lambda p, x: scan(
            lambda c, w: jnp.tanh(w @ c), x, p['cube']
        ),
        'scan in reverse': lambda p, x: scan(
            lambda c, w: jnp.tanh(w @ c), x, p['cube'], reverse=True
        ),
        'scan over numbers': lambda p, x: scan(lambda c, i: jnp.sin(c + i), p['a'], x),
        'scan with results': running,
        'scan without parameters': lambda p, x: scan(lambda c, _: jnp.sin(2 * c), x),
        'scan of parameters alone': lambda p, x: (
            scan(lambda c, _: jnp.sin(2 * c), p['a']) * x
        ),
        'scan of a state of weights': weights_carried,
        'scan in a scan': nested_scan,
        'scan of no steps': lambda p, x: scan(lambda c, i: c * i, x, p['a'][:0]),
        'scan under checkpoint': lambda p, x: scan(
            jax.checkpoint(lambda c, _: step(p, c)), x
        ),
        'fori_loop': lambda p, x: lax.fori_loop(0, 3, lambda _, c: step(p, c), x),
        'fori_loop over rows': lambda p, x: lax.fori_loop(
            0, x.size, lambda i, c: c + p['w'][i] * x[i], x
        ),
        'fori_loop that sets': lambda p, x: lax.fori_loop(
            1, x.size, lambda i, c: c.at[i].add(p['s'] * c[i - 1]), x
        ),
        'map': lambda p, x: lax.map(lambda row: row @ x, p['w']),
        'associative_scan': lambda p, x: lax.associative_scan(jnp.add, x * p['a']),
        'associative products': lambda p, x: (
            lax.associative_scan(jnp.matmul, p['cube'])[-1] @ x
        ),
        'custom_linear_solve': linear_solve,
        'custom_root': root,
    }
)
family(
    {
        'while_loop of integers': lambda p, x: x * p['a'][counted_while(x, 5)],
        'while_loop of parameters alone': lambda p, x: (
            x * counted_while(p['a'], 30) * p['s']
        ),
        'fori_loop to a parameter': lambda p, x: (
            x * p['a'] * lax.fori_loop(0, p['order'][0], lambda i, c: c + i, 1)
        ),
    },
    dtypes=WIDE,
)
family(
    {
        'while_loop': lambda p, x: while_small(lambda s: 1.5 * s + 0.1 * p['a'] + 1, x),
        'while_loop with a product': lambda p, x: while_small(
            lambda s: p['w'] @ s + 2 * s + 1, x
        ),
        'while_loop of parameters': lambda p, x: (
            x * while_small(lambda s: 2 * s, p['a'] ** 2 + 1)
        ),
        'fori_loop of a computed length': lambda p, x: lax.fori_loop(
            0, place(x), lambda _, c: step(p, c), x
        ),
        'while_loop in a cond': lambda p, x: (
            lax.cond(
                positive(x), lambda y: while_small(lambda s: 2 * s + 1, y), jnp.sin, x
            )
            * p['a']
        ),
    },
    dtypes=WIDE,
    reverse=False,
)

# ---- conditionals --------------------------------------------------------------------


def branch_in_scan(p: Any, x: Any) -> Any:
    """A conditional in a loop."""
    body = lambda c, a: lax.cond(positive(c), jnp.sin, lambda y: y * a + 0.3, c)  # noqa: E731
    return scan(body, x, p['a'])


def two_operands(p: Any, x: Any) -> Any:
    """Branches with operands and several results."""
    ab = lambda a, b: (a + b, a * b)  # noqa: E731
    return sum(lax.cond(positive(x), ab, lambda a, b: (b, a), x, p['a']))


family(
    {
        'cond': lambda p, x: lax.cond(
            positive(x), lambda: p['w'] @ x, lambda: p['a'] * x
        ),
        'cond of a parameter': lambda p, x: lax.cond(
            positive(p['a']), lambda y: p['w'] @ y, lambda y: p['u'] @ y, x
        ),
        'cond of a constant branch': lambda p, x: lax.cond(
            positive(x), lambda: jnp.ones_like(x), lambda: p['a'] * x
        ),
        'cond of operands': two_operands,
        'cond in a cond': lambda p, x: lax.cond(
            positive(x),
            lambda y: lax.cond(y[0] > 0.1, lambda z: p['w'] @ z, jnp.cos, y),
            lambda y: y * p['a'],
            x,
        ),
        'cond of a flag': lambda p, x: (
            lax.cond(p['flags'][0], jnp.sin, jnp.cos, x) * p['a']
        ),
        'cond in a scan': branch_in_scan,
        'scan in a cond': lambda p, x: lax.cond(
            positive(x), lambda y: scan(lambda c, _: step(p, c), y), lambda y: y, x
        ),
        'switch': lambda p, x: lax.switch(
            jnp.argmax(x[:3]), [jnp.sin, lambda y: p['w'] @ y, lambda y: p['a'] * y], x
        ),
        'switch of an integer parameter': lambda p, x: lax.switch(
            p['order'][0], [jnp.sin, lambda y: p['w'] @ y, lambda y: p['a'] * y], x
        ),
        'switch beyond the end': lambda p, x: lax.switch(
            place(x) - 2, [lambda y: p['a'] * y, lambda y: p['b'] + y], x
        ),
        'select_n': lambda p, x: lax.select_n(x > p['a'], x, p['b']),
    },
    dtypes=WIDE,
)

# ---- transformations inside ----------------------------------------------------------

save_dots = jax.checkpoint_policies.dots_saveable


def energy(p: Any, x: Any) -> Any:
    """A number, to be differentiated."""
    return jnp.sum(jnp.tanh(p['w'] @ x) * p['a'])


family(
    {
        'checkpoint': lambda p, x: jax.checkpoint(step)(dict(w=p['w'], b=p['b']), x),
        'checkpoint with a policy': lambda p, x: jax.checkpoint(
            lambda y: jnp.sin(p['w'] @ jnp.sin(y)), policy=save_dots
        )(x),
        'checkpoint in a checkpoint': lambda p, x: jax.checkpoint(
            lambda y: jax.checkpoint(lambda z: p['w'] @ jnp.sin(z))(y) * y
        )(x),
        'checkpoint of a scan': lambda p, x: jax.checkpoint(
            lambda y: scan(lambda c, _: step(p, c), y)
        )(x),
        'checkpoint of parameters alone': lambda p, x: (
            jax.checkpoint(jnp.sin)(p['w']) @ x
        ),
        'jit': lambda p, x: jax.jit(lambda w, y: jnp.sin(w @ y))(p['w'], x),
        'jit in a jit': lambda p, x: jax.jit(lambda y: jax.jit(jnp.sin)(p['a'] * y))(x),
        'jit of parameters alone': lambda p, x: jax.jit(jnp.cos)(p['a']) * x,
        'vmap': lambda p, x: jax.vmap(lambda row, y: jnp.sin(row * y).sum())(p['w'], x),
        'gradient': lambda p, x: jax.grad(energy, 1)(dict(w=p['w'], a=p['a']), x),
        'gradient of parameters': lambda p, x: jax.grad(energy)(
            dict(w=p['w'], a=p['a']), x
        )['a'],
        'jvp': lambda p, x: jax.jvp(lambda y: jnp.sin(p['w'] @ y), (x,), (p['a'],))[1],
        'vjp': lambda p, x: jax.vjp(lambda y: jnp.sin(p['w'] @ y), x)[1](p['a'])[0],
        'hessian': lambda p, x: (
            jax.hessian(lambda y: jnp.sum(p['a'] * jnp.sin(y * y.sum())))(x) @ x
        ),
        'linearized': lambda p, x: jax.linearize(lambda y: p['a'] * jnp.sin(y), x)[1](
            p['b']
        ),
        'transposed function': lambda p, x: jax.linear_transpose(
            lambda y: p['w'] @ y, x
        )(x)[0],
        'stop_gradient': lambda p, x: lax.stop_gradient(x) * p['a'] + jnp.sin(x),
        'random': lambda p, x: (
            x * p['a'] + jax.random.normal(jax.random.key(3), x.shape, x.dtype)
        ),
        'optimization_barrier': lambda p, x: lax.optimization_barrier(p['a'] * x) + x,
    }
)
family(
    {
        'dropout': lambda p, x: jnp.where(
            jax.random.bernoulli(
                jax.random.fold_in(jax.random.key(0), place(x)), 0.5, x.shape
            ),
            x,
            p['a'],
        ),
    },
    dtypes=WIDE,
)

# ---- several results -----------------------------------------------------------------

Pair = namedtuple('Pair', 'first second')

family(
    {
        'and an unused product': lambda p, x: (p['w'] @ x, p['u'] @ x),
        'and an unused parameter': lambda p, x: (p['a'] * x, p['b']),
        'and the numbers themselves': lambda p, x: (p['a'] * x, x),
        'the same twice': lambda p, x: ((y := p['w'] @ x), y),
        'and a constant': lambda p, x: (p['w'] @ x, jnp.ones(3, x.dtype)),
        'and a number': lambda p, x: (p['a'] * x, x.sum(), x @ p['b']),
        'and a matrix': lambda p, x: (p['a'] * x, jnp.outer(x, x) @ p['w']),
        'nested results': lambda p, x: (p['a'] * x, (x + p['b'], (p['w'] @ x,))),
        'unused results of a loop': lambda p, x: lax.scan(
            lambda c, w: (jnp.tanh(w @ c), c * p['a']), x, p['cube']
        ),
        'and what nothing is needed for': lambda p, x: (
            x * 1,
            lax.stop_gradient(p['w'] @ x),
        ),
    },
    several=True,
)
family(
    {
        'and an integer': lambda p, x: (p['a'] * x, jnp.argmax(x)),
        'and booleans': lambda p, x: (p['a'] * x, x > p['b']),
        'and an integer parameter': lambda p, x: (p['a'] * x, p['order']),
        'and order': lambda p, x: (jnp.sort(x * p['a']), jnp.argsort(x), x[::-1]),
        'and a count': lambda p, x: (p['w'] @ x, counted_while(x, 5)),
        'and small integers': lambda p, x: (p['a'] * x, (4 * x).astype('int8')),
        'and unsigned integers': lambda p, x: (p['a'] * x, place(x).astype('uint32')),
        'top_k and where': lambda p, x: (x * p['a'], *lax.top_k(x, 2)),
    },
    several=True,
    dtypes=WIDE,
)

# ---- parameters ----------------------------------------------------------------------


def from_nested(p: Any, x: Any) -> Any:
    """All parameters of a nested tree."""
    (a, (b,)), s = p['nested']['pair'], p['nested']['inner']['s']
    return jnp.tanh(a * x + b) * s


family(
    {
        'nested parameters': from_nested,
        'some nested parameters': lambda p, x: p['nested']['pair'][0] * x,
        'parameters for a scan': lambda p, x: scan(
            lambda c, q: jnp.tanh(q['w'] @ c + q['b']), x, {'w': p['cube'], 'b': p['w']}
        ),
        'parameters through a jit': lambda p, x: jax.jit(from_nested)(
            {'nested': p['nested']}, x
        ),
        'parameters alone': lambda p, x: jnp.sin(p['a']),
        'a result of constants': lambda p, x: jnp.ones_like(x),
        'unused parameter': lambda p, x: (p['w'], p['a'] * x)[1],
        'integers and flags': lambda p, x: jnp.where(p['flags'], x[p['order']], p['a']),
        'shared by two products': lambda p, x: (
            dot(p['w'], x, ((0,), (0,))) + p['w'] @ p['b']
        ),
    }
)
