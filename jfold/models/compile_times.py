# SPDX-License-Identifier: Apache-2.0
"""A log of how long JAX took to compile functions that apply a model.

JAX reports the time of each compilation, but not whether a model is in the function:
one is if it was applied while the function was traced.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref
from dataclasses import dataclass

import jax

from jfold.scheduling.budget import Budget
from jfold.scheduling.spec import Spec

LOG = logging.getLogger('jfold')
TRACED = '/jax/core/compile/jaxpr_trace_duration'
LOWERED = '/jax/core/compile/jaxpr_to_mlir_module_duration'
COMPILED = '/jax/core/compile/backend_compile_duration'
BY_ITSELF = 'execute'  # the function that JAX compiles for `apply` outside `jax.jit`


@dataclass(frozen=True, eq=False)
class _Application:
    """An application of a model, with its time; it keeps nothing alive."""

    when: float
    budget: weakref.ref[Budget]
    spec: weakref.ref[Spec]

    def program(self) -> str:
        """Return the name of the program of the model; '' if it is not known."""
        budget, spec = self.budget(), self.spec()
        if budget is None or spec not in budget.specs:
            return ''
        return budget.named([*budget.specs].index(spec) + 1)


class _Thread(threading.local):
    """The state of one thread.

    Attributes:
      applied: the last applications of models.
      programs: by function name, the programs applied when it was traced last.
      seconds: by function name, how long its compilation has taken so far.
    """

    def __init__(self) -> None:
        self.applied = collections.deque[_Application](maxlen=64)
        self.programs: dict[str, list[str]] = {}
        self.seconds = collections.defaultdict[str, float](float)


_thread = _Thread()


def note(budget: Budget, spec: Spec) -> None:
    """Note that a model is applied, at once or in a function under trace."""
    now = time.time()  # the clock of JAX's events
    _thread.applied.append(_Application(now, weakref.ref(budget), weakref.ref(spec)))


def _listen(
    event: str, start_time: float, end_time: float, **options: str | int
) -> None:
    """Listen to JAX's events: a function was traced, lowered or compiled."""
    if event not in (TRACED, LOWERED, COMPILED):
        return
    name = str(options.get('fun_name')).removeprefix('jit(').removesuffix(')')
    if event == TRACED:
        _thread.seconds[name] = 0.0
        programs = (x.program() for x in _thread.applied if x.when >= start_time)
        _thread.programs[name] = [*dict.fromkeys(programs)]
    _thread.seconds[name] += end_time - start_time
    if event == COMPILED:
        _log(name, _thread.seconds.pop(name))


def _log(name: str, seconds: float) -> None:
    programs = _thread.programs.get(name, [])
    if name == BY_ITSELF:
        name, programs = 'apply', [x.program() for x in [*_thread.applied][-1:]]
    if programs:
        names = ', '.join(filter(None, programs))
        LOG.info(f'{name} was compiled in {seconds:.2f} s{names and f": {names}"}')


jax.monitoring.register_event_time_span_listener(_listen)
