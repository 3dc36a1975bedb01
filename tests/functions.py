# SPDX-License-Identifier: Apache-2.0
"""Random functions, and plain recursion in JAX to compare jfold with.

`draw_function` puts kinds of the table together by the combinators below. What it draws
prints as an expression, from which `from_text` makes it again. `compare` runs functions
in and out of recurrences, and the same in plain Python, which shares no code with jfold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import control_kinds
import jax
import jax.numpy as jnp
import numpy as np
from function_kinds import KINDS, Call, Kind, Rng
from jax import lax

import jfold as jf


Drawn = Kind
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


COMBINATORS: dict[str, Callable[..., Kind]] = {}
ARITY: dict[str, int] = {}


def combinator(arity: int, **changes: Any) -> Callable[[Any], Callable[..., Kind]]:
    """Makes a function of functions of x, and of x, one of kinds."""

    def decorate(fn: Any) -> Callable[..., Kind]:
        def make(*kinds: Kind) -> Kind:
            def call(prepared: Any, x: Any) -> Any:
                parts = zip(kinds, prepared, strict=True)
                return fn(*(functools.partial(k.fn, p) for k, p in parts), x)

            return together(fn.__name__, kinds, call, **changes)

        COMBINATORS[fn.__name__], ARITY[fn.__name__] = make, arity
        return make

    return decorate


@combinator(1)
def first(f: Any, x: Any) -> Any:
    """The first of several results."""
    return f(x)[0]


@combinator(1)
def joined(f: Any, x: Any) -> Any:
    """All results, also integers and booleans, in one."""
    return joined_results(f(x))


@combinator(2)
def then(f: Any, g: Any, x: Any) -> Any:
    """One after the other."""
    return g(jnp.tanh(f(x)))


@combinator(2)
def plus(f: Any, g: Any, x: Any) -> Any:
    """The sum of both."""
    return f(x) + g(x)


@combinator(2)
def times(f: Any, g: Any, x: Any) -> Any:
    """The product of both."""
    return f(x) * jnp.tanh(g(x))


@combinator(2)
def residual(f: Any, g: Any, x: Any) -> Any:
    """One after the other, beside the input."""
    return x + f(x - g(x))


@combinator(2)
def unused(f: Any, g: Any, x: Any) -> Any:
    """Two results, of which one is not used."""
    return (f(x), g(x))[0]


@combinator(1)
def jitted(f: Any, x: Any) -> Any:
    """In a `jit`."""
    return jax.jit(f)(x)


@combinator(1)
def checkpointed(f: Any, x: Any) -> Any:
    """Computed again in the reverse pass."""
    return jax.checkpoint(f)(x)


@combinator(1)
def mapped(f: Any, x: Any) -> Any:
    """On three vectors side by side."""
    return jax.vmap(f)(jnp.stack([x, jnp.sin(x), -0.5 * x])).sum(0)


@combinator(1, linear=False)
def affine(f: Any, x: Any) -> Any:
    """With a rule that adds to the cotangent."""
    return control_kinds.affine(f(x))


@combinator(1)
def clipped(f: Any, x: Any) -> Any:
    """With a rule that bounds the cotangent."""
    return control_kinds.clipped(f(x))


@combinator(2)
def chosen(f: Any, g: Any, x: Any) -> Any:
    """A conditional."""
    return lax.cond(x.sum() > 0.05, f, g, x)


@combinator(3)
def switched(f: Any, g: Any, h: Any, x: Any) -> Any:
    """A conditional of three branches."""
    return lax.switch(jnp.argmax(x[:3]), [f, g, h], x)


@combinator(1)
def scanned(f: Any, x: Any) -> Any:
    """In a loop of two steps, with the results of each."""
    last, each = lax.scan(lambda c, _: (jnp.tanh(f(c)), c), x, None, length=2)
    return last + each.sum(0)


@combinator(1)
def looped(f: Any, x: Any) -> Any:
    """In a `fori_loop`."""
    return lax.fori_loop(0, 2, lambda i, c: jnp.tanh(f(c)), x)


@combinator(1, reverse=False)
def repeated(f: Any, x: Any) -> Any:
    """In a `while_loop` that ends by what it computes."""

    def step(state: Any) -> Any:
        count, y = state
        return count + 1, jnp.tanh(f(y))

    going = lambda s: (s[0] < 4) & (s[1].sum() < 1)  # noqa: E731
    return lax.while_loop(going, step, (0, x))[1]


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
    fn = lambda p, x: control_kinds.normalised(kind.fn(p[0], x))  # noqa: E731
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


COMBINATORS |= {'bundle': bundle, 'by_vjp': by_vjp, 'by_jvp': by_jvp, 'normalised': normalised}
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
) -> Drawn:
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
    if not wanted.zero and not wanted.linear and rng.random() < 0.2:
        return normalised(_drawn(rng, replace(wanted, zero=True), depth))
    return _drawn(rng, replace(wanted, zero=wanted.zero or depth > 0), depth)


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


# ---- networks ------------------------------------------------------------------------


def mixed(left: Any, right: Any) -> Any:
    """Two states as one, bounded, so that deep recursions stay small."""
    return 0.6 * jnp.tanh(left) - 0.4 * jnp.tanh(right)


@dataclass(frozen=True)
class Network:
    """A recursion over binary trees of vectors, and functions around it.

    Attributes:
      cell: what a node makes of its children.
      head: what is made of the root.
      leaf: what is made of data.
      name: tells its layers from those of others.
    """

    cell: Kind
    head: Kind
    leaf: Kind
    name: str = 'net'

    def __repr__(self) -> str:
        parts = (f'{k}={getattr(self, k).text}' for k in ('cell', 'head', 'leaf'))
        return f'Network({", ".join(parts)})'

    @property
    def reverse(self) -> bool:
        """Whether it has a gradient."""
        return all(kind.reverse for kind in self.layers().values())

    def layers(self) -> dict[str, Kind]:
        """Its functions by the names of their layers."""
        return {f'{self.name}.{k}': getattr(self, k) for k in ('cell', 'head', 'leaf')}

    def block(self, dtype: str, width: int = WIDTH) -> Any:
        """As an expression that gives what is made of the root, and the root."""
        spec = jax.ShapeDtypeStruct((width,), dtype)
        tree = jf.ForwardDeclaration(name=self.name)
        node = jf.Record((tree(), tree())) >> self.operation('cell', with_mixed, spec)
        leaf = jf.Vector(width, dtype) >> self.operation('leaf', alone, spec)
        tree.resolve_to(jf.OneOf(type, {tuple: node, list: leaf}))
        head = self.operation('head', alone, spec, join=False)
        return tree() >> jf.AllOf(head, jf.Identity())

    def operation(self, role: str, use: Any, spec: Any, join: bool = True) -> Any:
        """One of its functions as a block; several results are joined in another."""
        kind: Kind = getattr(self, role)
        fn, params = functools.partial(use, kind), initial(kind, role, spec)
        if jax.tree.leaves(params):
            init = lambda key, *specs: initial(kind, role, spec)  # noqa: E731
            block = jf.Function(fn, init, name=f'{self.name}.{role}')
        else:
            block = jf.Function(functools.partial(fn, params), name=role)
        if kind.several and join:
            return block >> jf.Function(lambda *results: joined_results(results))
        return block


def initial(kind: Kind, role: str, spec: Any) -> Any:
    """Parameters, the same at every call, and others in another role."""
    return kind.init(np.random.default_rng(sum(map(ord, role))), spec)


def alone(kind: Kind, params: Any, x: Any) -> Any:
    """A kind on its own."""
    return kind(params, x)


def with_mixed(kind: Kind, params: Any, left: Any, right: Any) -> Any:
    """A kind in a recursion; what goes in also goes on, so that it reaches the loss."""
    x = mixed(left, right)
    return beside(kind(params, x), x)


def beside(results: Any, x: Any) -> Any:
    """The first of some results with a vector added to it, and the others."""
    if not isinstance(results, tuple):
        return results + 0.1 * x
    return results[0] + 0.1 * x, *results[1:]


# ---- the same in plain Python --------------------------------------------------------


@functools.cache
def compiled(kind: Kind) -> Call:
    """Of what is prepared; compiled once for all nodes."""
    return jax.jit(kind.fn)


QUICK = {'xla_backend_optimization_level': 0}  # compiling dominates these tests


def plain(
    network: Network, params: Mapping[str, Any], examples: list[Any], dtype: str
) -> Any:
    """What a network makes of examples, one node after another.

    What depends on parameters alone is prepared once, as `vmap` over all rows does it.
    """
    spec = jax.ShapeDtypeStruct((WIDTH,), dtype)

    def function(role: str) -> Call:
        kind: Kind = getattr(network, role)
        own = params.get(f'{network.name}.{role}')
        prepared = kind.prepare(initial(kind, role, spec) if own is None else own)
        return functools.partial(compiled(kind), prepared)

    cell, head, leaf = map(function, ('cell', 'head', 'leaf'))

    def state(tree: Any) -> Any:
        if isinstance(tree, tuple):
            x = mixed(*map(state, tree))
            return joined_results(beside(cell(x), x))
        return joined_results(leaf(jnp.asarray(tree, dtype)))

    roots = [state(tree) for tree in examples]
    return jax.tree.map(lambda *rows: jnp.stack(rows), *((head(x), x) for x in roots))


def loss(values: Any) -> Any:
    """A number in which every entry has its own weight."""
    total = jnp.zeros((), 'float32')
    for x in jax.tree.leaves(values):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            weights = 1 + 0.5 * np.cos(1.7 * np.arange(x.size)).reshape(x.shape)
            total += jnp.sum(x * jnp.asarray(weights, x.dtype)).astype(total.dtype)
    return total


# ---- comparing -----------------------------------------------------------------------

TOLERANCE = {'float32': 2e-4, 'float64': 1e-9, 'bfloat16': 0.15}


@dataclass(frozen=True)
class Batch:
    """Examples, and how many rows of results their schedule has."""

    examples: list[Any]
    size: int | None = None


def draw_tree(rng: Rng, leaves: int, width: int = WIDTH) -> Any:
    """Nested pairs of lists of numbers."""
    if leaves == 1:
        return rng.uniform(-1, 1, width).round(2).tolist()
    left = int(rng.integers(1, leaves))
    return draw_tree(rng, left, width), draw_tree(rng, leaves - left, width)


def draw_batch(rng: Rng, leaves: Sequence[int], size: int | None = None) -> Batch:
    """A tree for each number of leaves."""
    return Batch([draw_tree(rng, n) for n in leaves], size)


def compare(
    networks: Sequence[Network],
    batches: Sequence[Batch],
    dtype: str = 'float32',
    residuals: str = 'save products',
    strategy: str = 'counted',
) -> None:
    """Networks, compiled as one model, give what plain recursion gives.

    Raises:
      AssertionError: values or gradients of some network differ; tells of which, in a
        form from which it can be made again.
    """
    wrong: list[str] = []
    with jax.enable_x64(dtype == 'float64'):
        block = jf.AllOf(*(network.block(dtype) for network in networks))
        model = jf.compile(block, residuals=residuals, strategy=strategy)
        params = model.init(jax.random.key(1))
        for batch in batches:
            schedule = model.schedule(batch.examples, size=batch.size)
            reverse = all(n.reverse for n in networks)
            values, grads = batched(
                params, model, schedule, len(batch.examples), reverse
            )
            for network, value in zip(networks, values, strict=True):
                own = {k: x for k, x in params.items() if k in network.layers()}
                expected = one_by_one(own, network, batch.examples, dtype)
                found = value, {k: x for k, x in grads.items() if k in own}
                if found_wrong := differences(found, expected, TOLERANCE[dtype]):
                    wrong.append(f'{network!r} of {len(batch.examples)}: {found_wrong}')
    assert not wrong, '\n'.join(wrong)


def batched(params: Any, model: Any, schedule: Any, count: int, reverse: bool) -> Any:
    """What jfold makes of a batch: values, and gradients where there are any."""
    fn = _value_and_grad if reverse else _value
    return fn(params, model, schedule, count)


@functools.partial(jax.jit, static_argnums=(1, 3), compiler_options=QUICK)
def _value_and_grad(params: Any, model: Any, schedule: Any, count: int) -> Any:
    def total(params: Any) -> Any:
        values, _ = _value.__wrapped__(params, model, schedule, count)
        return sum(map(loss, values)), values

    grads, values = jax.grad(total, has_aux=True, allow_int=True)(params)
    return values, grads


@functools.partial(jax.jit, static_argnums=(1, 3), compiler_options=QUICK)
def _value(params: Any, model: Any, schedule: Any, count: int) -> Any:
    rows = model.apply(params, schedule)
    return jax.tree.map(lambda x: x[:count], rows), {}


def one_by_one(params: Any, network: Network, examples: list[Any], dtype: str) -> Any:
    """The same by plain recursion."""

    def total(params: Any) -> Any:
        values = plain(network, params, examples, dtype)
        return loss(values), values

    if not network.reverse:
        return total(params)[1], {}
    grads, values = jax.grad(total, has_aux=True, allow_int=True)(params)
    return values, grads


def differences(found: Any, expected: Any, tolerance: float) -> list[str]:
    """Where two pytrees differ, relative to the largest entry of each array."""
    lefts, rights = map(jax.tree_util.tree_leaves_with_path, (found, expected))
    assert len(lefts) == len(rights), (found, expected)
    pairs = zip(lefts, rights, strict=True)
    return [
        f'{jax.tree_util.keystr(path)} is {a!r}, not {b!r}'
        for (path, a), (_, b) in pairs
        if not same(a, b, tolerance)
    ]


def same(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether two arrays agree; integers must be equal, and no number is wrong."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if not jnp.issubdtype(found.dtype, jnp.inexact):
        return found.dtype == jax.dtypes.float0 or bool((found == expected).all())
    a, b = np.asarray(found, 'float64'), np.asarray(expected, 'float64')
    scale = max(float(np.abs(b).max(initial=0)), 1e-2)
    return bool(np.abs(a - b).max(initial=0) <= tolerance * scale)
