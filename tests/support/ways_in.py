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


def _mapped(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    made = jit(jax.vmap(f, (None, 0)))(params, jf.Schedule.stack(batches))
    return _apart(made, len(batches))


def _mapped_within(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    each, stacked = jax.vmap(f, (None, 0)), jf.Schedule.stack(batches)
    return _apart(jit(lambda p: each(p, stacked))(params), len(batches))


def _scanned(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    def each(params: Any, stacked: Any) -> Any:
        return jax.lax.map(functools.partial(f, params), stacked)

    return _apart(jit(each)(params, jf.Schedule.stack(batches)), len(batches))


def _scanned_within(f: Any, params: Any, batches: Any, jit: Any) -> list[Any]:
    stacked = jf.Schedule.stack(batches)
    made = jit(lambda p: jax.lax.map(functools.partial(f, p), stacked))(params)
    return _apart(made, len(batches))


def _apart(stacked: Any, count: int) -> list[Any]:
    return [jax.tree.map(lambda x: x[i], stacked) for i in range(count)]  # noqa: B023


WAYS: dict[str, Way] = {
    'passed': _passed,
    'closed over': _closed_over,
    'donated': _donated,
    'exported': _exported,
    'mapped': _mapped,
    'mapped, closed over': _mapped_within,
    'scanned': _scanned,
    'scanned, closed over': _scanned_within,
}
# Those that need no compiler, and those that take schedules of one capacity together.
TRACED = [name for name in WAYS if name not in ('donated', 'exported')]
TOGETHER = [name for name in WAYS if name.startswith(('mapped', 'scanned'))]
