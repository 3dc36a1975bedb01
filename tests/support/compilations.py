# SPDX-License-Identifier: Apache-2.0
"""Counting what JAX compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

COMPILED = '/jax/core/compile/backend_compile_duration'


@contextlib.contextmanager
def compilations(name: str) -> Iterator[list[str]]:
    """Collects the names of functions compiled meanwhile that contain `name`."""
    found: list[str] = []

    def listen(event: str, duration: float, **details: Any) -> None:
        compiled = str(details.get('fun_name', ''))
        if event == COMPILED and name in compiled:
            found.append(compiled)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
