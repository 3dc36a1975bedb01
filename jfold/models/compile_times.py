# SPDX-License-Identifier: Apache-2.0
"""A progress line while JAX compiles a model, and a log message with the time.

JAX reports the time of each compilation, but not whether the function applies a model:
it does if a model was applied while JAX traced the function.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable

import jax

from jfold.data.progress_bars import start_line
from jfold.scheduling.budget import Budget
from jfold.scheduling.spec import Spec

LOG = logging.getLogger('jfold')
TRACED = '/jax/core/compile/jaxpr_trace_duration'
LOWERED = '/jax/core/compile/jaxpr_to_mlir_module_duration'
COMPILED = '/jax/core/compile/backend_compile_duration'
BY_ITSELF = 'execute'  # the function that JAX compiles for `apply` outside `jax.jit`


class _Thread(threading.local):
    """The calls of models' `apply`, and JAX's compilations, in one thread."""

    def __init__(self) -> None:
        # When a model was applied, and a function that returns its program's name.
        self.applied = collections.deque[tuple[float, Callable[[], str]]](maxlen=64)
        # By name of the function that JAX compiles: the names of programs applied in
        # its last trace, and the seconds that trace and compilation have taken so far.
        self.programs: dict[str, list[str]] = {}
        self.seconds = collections.defaultdict[str, float](float)
        self.end_line: Callable[[], object] = lambda: None


_thread = _Thread()


def note(budget: Budget, spec: Spec) -> None:
    """Record a call of `apply`, made now, perhaps in a trace, on `spec` of `budget`."""
    refs = weakref.ref(budget), weakref.ref(spec)

    def name() -> str:
        budget, spec = refs[0](), refs[1]()
        if budget is None or spec not in budget.specs:
            return ''
        return budget.named([*budget.specs].index(spec) + 1)

    _thread.applied.append((time.time(), name))  # the clock of JAX's events


def _listen(
    event: str, start_time: float, end_time: float, **options: str | int
) -> None:
    """Add up the times to trace, lower, compile a function by `event`; log the sum."""
    if event not in (TRACED, LOWERED, COMPILED):
        return
    name = _name(options)
    if event == TRACED:
        _thread.seconds[name] = 0.0
        programs = (name() for when, name in _thread.applied if when >= start_time)
        _thread.programs[name] = [*dict.fromkeys(programs)]
    _thread.seconds[name] += end_time - start_time
    if event == COMPILED:
        _thread.end_line()
        seconds = _thread.seconds.pop(name)
        if applying := _applying(name):
            name, names = applying
            which = f': {names}' if names else ''
            LOG.info(f'{name} was compiled in {seconds:.2f} s{which}')


def _begin(event: str, value: float, **options: str | int) -> None:
    """Start a progress line if `event` compiles a function that applies a model."""
    # A logger without warnings shows no line.
    is_shown = event == COMPILED and LOG.isEnabledFor(logging.WARNING)
    if is_shown and (applying := _applying(_name(options))):
        name, names = applying
        which = f' ({names})' if names else ''
        _thread.end_line = start_line(f'compiling {name}{which}')


def _name(options: dict[str, str | int]) -> str:
    """Return the name of the function that an event of JAX with `options` is about."""
    return str(options.get('fun_name')).removeprefix('jit(').removesuffix(')')


def _applying(name: str) -> tuple[str, str] | None:
    """Return a function's (name, 'program 1, ...'); `None` if it applies no model."""
    programs = _thread.programs.get(name, [])
    if name == BY_ITSELF:
        name, programs = 'apply', [last() for _, last in [*_thread.applied][-1:]]
    return (name, ', '.join(filter(None, programs))) if programs else None


jax.monitoring.register_scalar_listener(_begin)
jax.monitoring.register_event_time_span_listener(_listen)
