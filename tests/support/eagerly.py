# SPDX-License-Identifier: Apache-2.0
"""Lazy functions run at once, on arrays: what they mean, without jfold's recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any

import jax
import jax.numpy as jnp

import jfold as jf
from jfold.base.operands import RECORDER, Operand
from jfold.base.trampoline import run


class Known(Operand):
    """An array with the operators of values."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.array.shape)

    def applied(self, fn: Callable[..., Any], *operands: Any) -> Any:
        """What an operator gives."""
        return closed(fn(*map(opened, operands)))

    def __getitem__(self, key: Any) -> Any:
        return Known(self.array[key])


def opened(tree: Any) -> Any:
    """The arrays of values, numbers as JAX has them."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [jnp.asarray(x.array if isinstance(x, Known) else x) for x in leaves]
    return jax.tree.unflatten(structure, arrays)


def closed(tree: Any) -> Any:
    """Values of arrays."""
    return jax.tree.map(Known, tree)


class Eager:
    """Computes calls at once, by parameters by the names of functions."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params, self.observed, self.memo = params, [], {}
        self.registry, self.named = self, {}

    def block_named(self, name: str, make: Callable[[], Any]) -> Any:
        """What was made first under a name."""
        return self.named.setdefault(name, make())

    def call(self, block: Any, arguments: tuple[Any, ...]) -> Any:
        """What a function gives on these arguments; other blocks as functions."""
        if isinstance(block, jf.Metric):
            return self.observe(block.name, arguments[0], arguments[1:])
        if isinstance(block, jf.Pipe):
            for part in block.blocks:
                arguments = (self.call(part, arguments),)
            return arguments[0]
        inputs = opened(arguments)
        if not isinstance(block, jf.Function):
            return closed(BLOCKS[type(block)](*inputs))
        own = () if block.init is None else (self.params[block.name or ''],)
        return closed(block.fn(*own, *inputs))

    def shared(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """What it gave before for the same objects."""
        key = (function, *map(id, arguments))
        if key not in self.memo:
            value = function(*arguments)
            if isinstance(value, GeneratorType):
                return self.steps(key, value, arguments)
            self.memo[key] = value, arguments
        return self.memo[key][0]

    def steps(self, key: Any, steps: Any, arguments: tuple[Any, ...]) -> Any:
        """What a generator gives, which runs unless another has run meanwhile."""
        if key not in self.memo:
            self.memo[key] = (yield steps), arguments
        return self.memo[key][0]

    def constant(self, value: Any, dtype: Any) -> Any:
        """An array."""
        return Known(jnp.asarray(value, dtype))

    def observe(self, name: str, value: Any, label: tuple[Any, ...]) -> None:
        """Keeps it."""
        self.observed.append((name, opened(value), *label))


# What other blocks than functions give on lists of arrays.
BLOCKS: dict[type, Callable[..., Any]] = {
    type(jf.Sum()): lambda items: sum(items[1:], items[0]) if items else jnp.zeros(())
}


def eagerly(lazy: jf.Lazy, example: Any, params: Mapping[str, Any]) -> Any:
    """What a lazy function gives for an example, and what it observes."""
    recorder = Eager(params)
    token = RECORDER.set(recorder)
    try:
        value = lazy(example)
        value = run(value) if hasattr(value, 'send') else value
    finally:
        RECORDER.reset(token)
    return opened(value), recorder.observed
