# SPDX-License-Identifier: Apache-2.0
"""How long JAX took to compile what a model is applied in, told by the logger.

JAX says of each compilation how long it took. What it does not say is whether a model
is in there: that is so if the model was applied while the function was traced.
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
BY_ITSELF = 'execute'  # what JAX compiles of a model that is applied in nothing


@dataclass(frozen=True, eq=False)
class _Application:
    """That a model was applied, and when; keeps nothing alive."""

    when: float
    budget: weakref.ref[Budget]
    spec: weakref.ref[Spec]

    def program(self) -> str:
        """Which program of its model it is of; '' where that is not known."""
        budget, spec = self.budget(), self.spec()
        if budget is None or spec not in budget.specs:
            return ''
        return budget.named([*budget.specs].index(spec) + 1)


class _Thread(threading.local):
    """What happens in one thread.

    Attributes:
      applied: the last applications of models.
      programs: what was applied in a function, by its name, when it was traced last.
      seconds: by name, how long it has taken so far.
    """

    def __init__(self) -> None:
        self.applied = collections.deque[_Application](maxlen=64)
        self.programs: dict[str, list[str]] = {}
        self.seconds = collections.defaultdict[str, float](float)


_thread = _Thread()


def note(budget: Budget, spec: Spec) -> None:
    """Notes that a model is applied, at once or in what is being traced."""
    now = time.time()  # the clock that JAX goes by
    _thread.applied.append(_Application(now, weakref.ref(budget), weakref.ref(spec)))


def _listen(
    event: str, start_time: float, end_time: float, **options: str | int
) -> None:
    """Is told by JAX of each function that was traced, lowered or compiled."""
    if event not in (TRACED, LOWERED, COMPILED):
        return
    name = str(options.get('fun_name')).removeprefix('jit(').removesuffix(')')
    if event == TRACED:
        _thread.seconds[name] = 0.0
        found = (x.program() for x in _thread.applied if x.when >= start_time)
        _thread.programs[name] = [*dict.fromkeys(found)]
    _thread.seconds[name] += end_time - start_time
    if event == COMPILED:
        _tell(name, _thread.seconds.pop(name))


def _tell(name: str, seconds: float) -> None:
    programs = _thread.programs.get(name, [])
    if name == BY_ITSELF:
        name, programs = 'apply', [x.program() for x in [*_thread.applied][-1:]]
    if programs:
        told = ', '.join(filter(None, programs))
        LOG.info(f'{name} was compiled in {seconds:.2f} s{told and f": {told}"}')


jax.monitoring.register_event_time_span_listener(_listen)
