# SPDX-License-Identifier: Apache-2.0
"""The ways in which a program gets its schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jfold as jf

# Takes a function of parameters and a schedule, both, the latter several, and what
# compiles; gives what the function makes of each.
Way = Callable[[Any, Any, Sequence[Any], Any], list[Any]]


def _closed_over(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    made: list[Any] = jit(lambda p: [f(p, x) for x in batches])(params)
    return made


def _donated(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    def step(schedule: Any, params: Any) -> Any:
        return f(params, schedule), schedule  # which takes what is donated

    made = jit(step, donate_argnums=0)
    return [made(jax.tree.map(jnp.array, x), params)[0] for x in batches]


def _exported(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    exported = jax.export.export(jit(f))(params, batches[0])
    read = jax.export.deserialize(exported.serialize())
    return [read.call(params, x) for x in batches]


def _stacked(
    is_mapped: bool, is_passed: bool, f: Any, params: Any, batches: Any, jit: Any
) -> list[Any]:
    """All of them stacked, mapped or scanned, passed or closed over."""

    def many(params: Any, stacked: Any) -> Any:
        one = functools.partial(f, params)
        return jax.vmap(one)(stacked) if is_mapped else jax.lax.map(one, stacked)

    stacked = jf.Schedule.stack(batches)
    if is_passed:
        results = jit(many)(params, stacked)
    else:
        results = jit(lambda p: many(p, stacked))(params)
    return [jax.tree.map(lambda x, i=i: x[i], results) for i in range(len(batches))]


WAYS: dict[str, Way] = {
    'passed': lambda f, params, batches, jit: [
        *map(functools.partial(jit(f), params), batches)
    ],
    'closed over': _closed_over,
    'donated': _donated,
    'exported': _exported,
    'mapped': functools.partial(_stacked, True, True),
    'mapped, closed over': functools.partial(_stacked, True, False),
    'scanned': functools.partial(_stacked, False, True),
    'scanned, closed over': functools.partial(_stacked, False, False),
}
# Those that need no compiler, and those that take schedules of one capacity together.
TRACED = [name for name in WAYS if name not in ('donated', 'exported')]
TOGETHER = [name for name in WAYS if name.startswith(('mapped', 'scanned'))]
