# SPDX-License-Identifier: Apache-2.0
"""Functions in and out of recurrences, and plain recursion to compare jfold with.

The latter is written in Python and JAX and shares no code with jfold.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
from agreement import close, floats
from function_kinds import Call, Kind, Rng
from functions import WIDTH, joined_results

import jfold as jf


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
    """

    cell: Kind
    head: Kind
    leaf: Kind

    def __repr__(self) -> str:
        parts = (f'{k}={getattr(self, k).text}' for k in ('cell', 'head', 'leaf'))
        return f'Network({", ".join(parts)})'

    @property
    def reverse(self) -> bool:
        """Whether it has a gradient."""
        return all(kind.reverse for kind in (self.cell, self.head, self.leaf))

    def block(self, dtype: str) -> Any:
        """As an expression that gives what is made of the root, and the root."""
        spec = jax.ShapeDtypeStruct((WIDTH,), dtype)
        tree = jf.ForwardDeclaration(name='net')
        node = jf.Record((tree(), tree())) >> self.operation('cell', with_mixed, spec)
        leaf = jf.Vector(WIDTH, dtype) >> self.operation('leaf', alone, spec)
        tree.resolve_to(jf.OneOf(type, {tuple: node, list: leaf}))
        head = self.operation('head', alone, spec, join=False)
        return tree() >> jf.AllOf(head, jf.Identity())

    def operation(self, role: str, use: Any, spec: Any, join: bool = True) -> Any:
        """One of its functions as a block; several results are joined in another."""
        kind: Kind = getattr(self, role)
        fn, params = functools.partial(use, kind), initial(kind, role, spec)
        if jax.tree.leaves(params):
            init = lambda key, *specs: initial(kind, role, spec)  # noqa: E731
            block = jf.Function(fn, init, name=role)
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
        own = params.get(role)
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


def draw_tree(rng: Rng, leaves: int) -> Any:
    """Nested pairs of lists of numbers."""
    if leaves == 1:
        return rng.uniform(-1, 1, WIDTH).round(2).tolist()
    left = int(rng.integers(1, leaves))
    return draw_tree(rng, left), draw_tree(rng, leaves - left)


def compare(
    network: Network,
    examples: list[Any],
    size: int,
    dtype: str = 'float32',
    residuals: str = 'save products',
    strategy: str = 'counted',
    by_numpy: bool = False,
) -> None:
    """A network on a batch of `size` rows gives what plain recursion gives.

    With `by_numpy`, an interpreter runs what XLA would take long to compile.
    """
    with jax.enable_x64(dtype == 'float64'):
        model = jf.compile(network.block(dtype), residuals=residuals, strategy=strategy)
        params = model.init(jax.random.key(1))
        schedule = model.schedule(examples, size=size)
        fn = _value_and_grad if network.reverse else _value
        run = functools.partial(_by_numpy, fn=fn) if by_numpy else fn
        values, grads = run(params, model, schedule, len(examples))
        wanted, gradients = _expected(params, network, examples, dtype, by_numpy)
        close(values, wanted, TOLERANCE[dtype])
        assert jax.tree.structure(grads) == jax.tree.structure(gradients)
        close(floats(grads), floats(gradients), TOLERANCE[dtype])


def _expected(
    params: Any, network: Network, examples: list[Any], dtype: str, by_numpy: bool
) -> Any:
    """The same by plain recursion, of which XLA runs each operation by itself; or the
    interpreter does, where XLA has compiled the model, so that one side is XLA's."""
    run = functools.partial(one_by_one, network=network, examples=examples, dtype=dtype)
    return run(params) if by_numpy else interpreter.called(run, params)


def _by_numpy(params: Any, model: Any, schedule: Any, count: int, fn: Any) -> Any:
    """The same as compiled, but for rounding, in the dtypes that it would have."""
    plain = functools.partial(fn.__wrapped__, model=model, count=count)
    return interpreter.called(lambda p, s: plain(p, schedule=s), params, schedule)


@functools.partial(jax.jit, static_argnums=(1, 3), compiler_options=QUICK)
def _value_and_grad(params: Any, model: Any, schedule: Any, count: int) -> Any:
    def total(params: Any) -> Any:
        values, _ = _value.__wrapped__(params, model, schedule, count)
        return loss(values), values

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
