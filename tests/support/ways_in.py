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


def _passed(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    made = jit(f)
    return [made(params, x) for x in batches]


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


def _mapped(f: Any) -> Any:
    return jax.vmap(f, (None, 0))


def _scanned(f: Any) -> Any:
    return lambda params, stacked: jax.lax.map(functools.partial(f, params), stacked)


def _stacked(
    batched: Any, is_passed: bool, f: Any, params: Any, batches: Any, jit: Any
) -> list[Any]:
    """All of them stacked, passed or closed over."""
    many, stacked = batched(f), jf.Schedule.stack(batches)
    if is_passed:
        results = jit(many)(params, stacked)
    else:
        results = jit(lambda p: many(p, stacked))(params)
    return [jax.tree.map(lambda x, i=i: x[i], results) for i in range(len(batches))]


WAYS: dict[str, Way] = {
    'passed': _passed,
    'closed over': _closed_over,
    'donated': _donated,
    'exported': _exported,
    'mapped': functools.partial(_stacked, _mapped, True),
    'mapped, closed over': functools.partial(_stacked, _mapped, False),
    'scanned': functools.partial(_stacked, _scanned, True),
    'scanned, closed over': functools.partial(_stacked, _scanned, False),
}
# Those that need no compiler, and those that take schedules of one capacity together.
TRACED = [name for name in WAYS if name not in ('donated', 'exported')]
TOGETHER = [name for name in WAYS if name.startswith(('mapped', 'scanned'))]
