# SPDX-License-Identifier: Apache-2.0
"""Functions from given types to given types, of all the kinds that there are."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from expression_parts import TABLE

import jfold as jf
from jfold.types import Product, TensorType, leaf_types


def numbers(inputs: Any, dtype: str) -> tuple[Any, Any]:
    """All floats of the inputs as one vector, all ints as another."""
    flat = [jnp.ravel(x) for x in jax.tree.leaves(inputs)]
    floats = [x for x in flat if jnp.issubdtype(x.dtype, jnp.inexact)]
    ints = [x for x in flat if not jnp.issubdtype(x.dtype, jnp.inexact)]
    joined = jnp.concatenate([jnp.zeros(0, dtype), *floats])
    return joined, jnp.concatenate([jnp.zeros(0, 'int32'), *ints])


def float_leaves(type_: Any) -> list[TensorType]:
    """The float tensors in nested tuples."""
    return [t for t in leaf_types(type_) if t.differentiable]


def width(type_: Any) -> int:
    """How many floats a type has."""
    return sum(t.size for t in float_leaves(type_))


def filled(type_: Any, floats: Any, ints: Any) -> Any:
    """A value of a type: its floats from a vector, its ints from other ints."""
    rest = iter(jnp.split(floats, np.cumsum([t.size for t in float_leaves(type_)])))

    def fill(part: Any) -> Any:
        if isinstance(part, Product):
            return part.form.closed(map(fill, part))
        if part.differentiable:
            return next(rest).reshape(part.shape)
        return jnp.broadcast_to((ints.sum() + 1) % TABLE, part.shape).astype(part.dtype)

    return fill(type_)


def dense(want: Any, dtype: str) -> jf.Function:
    """A dense layer with an `init`; ints look up a table."""

    def init(key: Any, *specs: Any) -> Any:
        floats, ints = jax.eval_shape(lambda *x: numbers(x, dtype), *specs)
        inner = floats.size + ints.size
        keys = jax.random.split(key, 3)
        scale = 1 / math.sqrt(max(inner, 1))
        return {
            'weight': scale * jax.random.normal(keys[0], (width(want), inner), dtype),
            'bias': jax.random.normal(keys[1], (width(want),), dtype),
            'table': jax.random.normal(keys[2], (TABLE,), dtype),
        }

    def layer(params: Any, *inputs: Any) -> Any:
        floats, ints = numbers(inputs, dtype)
        x = jnp.concatenate([floats, jnp.asarray(params['table'])[ints % TABLE]])
        return filled(want, jnp.tanh(params['weight'] @ x + params['bias']), ints)

    return jf.Function(layer, init, name='dense')


def plain(want: Any, dtype: str) -> jf.Function:
    """A function without parameters."""

    def mixed(*inputs: Any) -> Any:
        floats, ints = numbers(inputs, dtype)
        x = jnp.concatenate([floats, jnp.sin(ints.astype(dtype)), jnp.ones(1, dtype)])
        return filled(want, jnp.sin(jnp.resize(x, width(want)) + x.mean()), ints)

    return jf.Function(mixed, name='plain')


class Dense(nn.Module):
    """A dense layer as a Flax Linen module."""

    want: Any
    dtype: str

    @nn.compact
    def __call__(self, *inputs: Any) -> Any:
        floats, ints = numbers(inputs, self.dtype)
        x = jnp.concatenate([floats, jnp.cos(ints.astype(self.dtype))])
        kind = {'dtype': self.dtype, 'param_dtype': self.dtype}
        made = nn.Dense(width(self.want), **kind)(x)
        return filled(self.want, nn.sigmoid(made), ints)


def linen(want: Any, dtype: str) -> jf.Function:
    """A Flax Linen module as a block."""
    return jf.Function(Dense(want, dtype))


def whole_tiles(want: Any, dtype: str) -> jf.Function:
    """A function with parameters that takes whole tiles."""
    one = dense(want, dtype)

    def tile(params: Any, *inputs: Any) -> Any:
        return jax.vmap(one.fn, (None, *(0 for _ in inputs)))(params, *inputs)

    return jf.Function(tile, one.init, name='tile', batched=True)


def nested(want: Any, dtype: str) -> jf.Function:
    """A layer with a `jit`, a loop and a product of parameters alone inside."""
    one = dense(want, dtype)

    def layer(params: Any, *inputs: Any) -> Any:
        weight = params['weight'] @ (params['weight'].T @ params['weight'])
        return jax.jit(one.fn)(params | {'weight': weight}, *inputs)

    return jf.Function(layer, one.init, name='nested')
