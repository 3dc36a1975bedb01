# SPDX-License-Identifier: Apache-2.0
"""Random functions with parameters.

`draw_function` puts kinds of the table together by the combinators below. What it draws
prints as an expression, from which `from_text` makes it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rule_kinds
from function_kinds import KINDS, Call, Kind, Rng
from jax import lax

K = KINDS
WIDTH = 4

# ---- functions made of functions -----------------------------------------------------


def together(text: str, kinds: Sequence[Kind], fn: Call, **changes: Any) -> Kind:
    """A kind made of others, whose parameters are a tuple of theirs."""

    def init(rng: Rng, spec: Any) -> Any:
        return tuple(k.init(rng, spec) for k in kinds)

    def prepare(params: Any) -> Any:
        return tuple(k.prepare(p) for k, p in zip(kinds, params, strict=True))

    arguments = ', '.join(k.text for k in kinds)
    made = Kind(
        f'{text}({arguments})',
        fn,
        init,
        prepare,
        reverse=all(k.reverse for k in kinds),
        dtypes=tuple(d for d in kinds[0].dtypes if all(d in k.dtypes for k in kinds)),
        linear=all(k.linear for k in kinds),
        zero=all(k.zero for k in kinds),
    )
    return replace(made, **changes)


def combinator(name: str, fn: Any, **changes: Any) -> Callable[..., Kind]:
    """Makes a function of functions of x, and of x, one of kinds."""

    def make(*kinds: Kind) -> Kind:
        def call(prepared: Any, x: Any) -> Any:
            parts = zip(kinds, prepared, strict=True)
            return fn(*(functools.partial(k.fn, p) for k, p in parts), x)

        return together(name, kinds, call, **changes)

    return make


def scanned(f: Any, x: Any) -> Any:
    """In a loop of two steps, with the results of each."""
    last, each = lax.scan(lambda c, _: (jnp.tanh(f(c)), c), x, None, length=2)
    return last + each.sum(0)


def repeated(f: Any, x: Any) -> Any:
    """In a `while_loop` that ends by what it computes."""

    def step(state: Any) -> Any:
        count, y = state
        return count + 1, jnp.tanh(f(y))

    going = lambda s: (s[0] < 4) & (s[1].sum() < 1)  # noqa: E731
    return lax.while_loop(going, step, (0, x))[1]


OF_FUNCTIONS: dict[str, Any] = {
    'first': lambda f, x: f(x)[0],
    # All results, also integers and booleans, in one.
    'joined': lambda f, x: joined_results(f(x)),
    'then': lambda f, g, x: g(jnp.tanh(f(x))),
    'plus': lambda f, g, x: f(x) + g(x),
    'times': lambda f, g, x: f(x) * jnp.tanh(g(x)),
    'residual': lambda f, g, x: x + f(x - g(x)),
    # Two results, of which one is not used.
    'unused': lambda f, g, x: (f(x), g(x))[0],
    'jitted': lambda f, x: jax.jit(f)(x),
    'checkpointed': lambda f, x: jax.checkpoint(f)(x),
    'mapped': lambda f, x: jax.vmap(f)(jnp.stack([x, jnp.sin(x), -0.5 * x])).sum(0),
    # With a rule that adds to the cotangent, and with one that bounds it.
    'affine': lambda f, x: rule_kinds.affine(f(x)),
    'clipped': lambda f, x: rule_kinds.clipped(f(x)),
    'chosen': lambda f, g, x: lax.cond(x.sum() > 0.05, f, g, x),
    'switched': lambda f, g, h, x: lax.switch(jnp.argmax(x[:3]), [f, g, h], x),
    'scanned': scanned,
    'looped': lambda f, x: lax.fori_loop(0, 2, lambda i, c: jnp.tanh(f(c)), x),
    'repeated': repeated,
}


def by_vjp(kind: Kind) -> Kind:
    """With a rule for the cotangents of its parameters and of x."""
    call = jax.custom_vjp(kind.fn)
    call.defvjp(lambda p, x: jax.vjp(kind.fn, p, x), lambda pull, ct: pull(ct))
    return together('by_vjp', [kind], lambda p, x: call(p[0], x))


def by_jvp(kind: Kind) -> Kind:
    """With a rule for the tangents of its parameters and of x."""
    call = jax.custom_jvp(kind.fn)
    call.defjvp(lambda primals, tangents: jax.jvp(kind.fn, primals, tangents))
    return together('by_jvp', [kind], lambda p, x: call(p[0], x))


def normalised(kind: Kind) -> Kind:
    """With a rule that makes the cotangent, which must not be zero, as long as one."""
    fn = lambda p, x: rule_kinds.normalised(kind.fn(p[0], x))  # noqa: E731
    return together('normalised', [kind], fn, linear=False, zero=False)


def bundle(*kinds: Kind) -> Kind:
    """Many functions as one, which gives a sum of what they give."""

    def fn(prepared: Any, x: Any) -> Any:
        made = (k.fn(p, x) for k, p in zip(kinds, prepared, strict=True))
        return sum(jnp.tanh(joined_results(y)) for y in made) / len(kinds)

    return together('bundle', kinds, fn)


def joined_results(results: Any) -> Any:
    """Results as one vector, like the first of them."""
    vector, *rest = jax.tree.leaves(results)
    for i, x in enumerate(rest):
        vector = vector + jnp.mean(x.astype(vector.dtype)) * 0.1 * (i + 1)
    return vector


CHANGES = {'affine': {'linear': False}, 'repeated': {'reverse': False}}
COMBINATORS: dict[str, Callable[..., Kind]] = {
    **{k: combinator(k, fn, **CHANGES.get(k, {})) for k, fn in OF_FUNCTIONS.items()},
    **{'bundle': bundle, 'by_vjp': by_vjp, 'by_jvp': by_jvp, 'normalised': normalised},
}
ARITY = {k: fn.__code__.co_argcount - 1 for k, fn in OF_FUNCTIONS.items()}
ARITY |= {'by_vjp': 1, 'by_jvp': 1}


def from_text(text: str) -> Kind:
    """What a drawn function prints as, made again."""
    made: Kind = eval(text, {'K': KINDS, **COMBINATORS})
    return made


# ---- drawing -------------------------------------------------------------------------

LOOPS = {'scanned', 'looped', 'repeated', 'mapped'}
BRANCHES = {'chosen', 'switched'}
RULES = {'by_vjp', 'by_jvp'}


@dataclass(frozen=True)
class Need:
    """What a function must have: see `Kind`."""

    dtype: str
    reverse: bool = True
    linear: bool = False
    zero: bool = True

    def met(self, kind: Kind) -> bool:
        """Whether a kind has it."""
        pairs = (self.reverse, kind.reverse), (self.linear, kind.linear)
        has = all(yes or not wanted for wanted, yes in (*pairs, (self.zero, kind.zero)))
        return has and self.dtype in kind.dtypes

    def within(self, name: str) -> Need:
        """What the parts of a combination must have."""
        linear = self.linear or name in LOOPS | BRANCHES | RULES
        return replace(self, reverse=self.reverse or name in RULES, linear=linear)

    def combinators(self) -> list[str]:
        """Those whose combinations may have it."""
        without = {'first', 'joined'} | ({'repeated'} if self.reverse else set())
        return sorted(set(ARITY) - without - ({'affine'} if self.linear else set()))


def draw_function(
    rng: Rng, width: int = WIDTH, dtype: str = 'float32', depth: int = 2, **need: bool
) -> Kind:
    """Draws a function of a vector.

    Args:
      rng: decides.
      width: of the vector, even; every kind takes every such width.
      dtype: in which it must work.
      depth: how deep combinators nest.
      **need: of `Need`. The rules of a function that need not be linear may be so that
        it must run just once for every row, and that all rows reach the loss; those of
        one with `zero=False` give no number where the cotangent is zero.

    Returns:
      A kind: `init(rng, spec)` draws its parameters, `text` says what it is.
    """
    assert width % 2 == 0, width
    wanted = Need(dtype, **need)
    while True:
        drawn = _outermost(rng, wanted, depth)
        # Of 1,785 drawn, 45 had no reverse; each had this in it.
        risky = wanted.reverse and 'by_jvp(' in drawn.text
        if not risky or jax_reverses(drawn, width):
            return drawn


def jax_reverses(kind: Kind, width: int) -> bool:
    """Whether JAX has a reverse of it under `vmap`: of some combinations, such as a
    `cond` or a `custom_vjp` in the rule of a `custom_jvp`, it has none."""

    def total(params: Any, rows: Any) -> Any:
        return jax.vmap(functools.partial(kind, params))(rows).sum()

    row, rows = (jax.ShapeDtypeStruct((*n, width), 'float32') for n in ((), (2,)))
    params = kind.init(np.random.default_rng(0), row)
    try:
        jax.eval_shape(jax.grad(total, (0, 1), allow_int=True), params, rows)
    except NotImplementedError:
        return False
    except TypeError as error:
        if 'forward-mode' in str(error):
            return False
        raise
    return True


def _outermost(rng: Rng, need: Need, depth: int) -> Kind:
    if not need.zero and not need.linear and rng.random() < 0.2:
        return normalised(_drawn(rng, replace(need, zero=True), depth))
    return _drawn(rng, replace(need, zero=need.zero or depth > 0), depth)


def _drawn(rng: Rng, need: Need, depth: int) -> Kind:
    if depth == 0 or rng.random() < 0.2:
        return draw_kind(rng, need)
    name = str(rng.choice(need.combinators()))
    inner = need.within(name)
    parts = [_drawn(rng, inner, depth - 1) for _ in range(ARITY[name])]
    return COMBINATORS[name](*parts)


def draw_kind(rng: Rng, need: Need) -> Kind:
    """A kind of the table, made to give one vector."""
    kinds = [kind for kind in KINDS.values() if need.met(kind)]
    kind = kinds[int(rng.integers(len(kinds)))]
    name = str(rng.choice(['first', 'joined']))
    return COMBINATORS[name](kind) if kind.several else kind
