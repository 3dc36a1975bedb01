# SPDX-License-Identifier: Apache-2.0
"""jfold's programs as accelerators would run them: compiled once each."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from hlo import Module, parse

from jfold.scheduling.spec import RECOMPUTE_ALL, SAVE_PRODUCTS

sys.path.append(str(Path(__file__).parents[2] / 'benchmarks'))

from kernel_models import program
from targets import ACCELERATORS

# How a program is called, and what it stores.
MODES = {
    'infer': ('infer', SAVE_PRODUCTS),
    'train': ('train', SAVE_PRODUCTS),
    'train, recompute all': ('train', RECOMPUTE_ALL),
}
TARGETS = {target.name: target for target in ACCELERATORS}


@functools.cache
def compiled(name: str, mode: str, target: str) -> Module:
    """What XLA makes of a program for a device.

    Raises:
      jax.errors.JaxRuntimeError: it does not compile.
    """
    call, residuals = MODES[mode]
    chosen = program(name, residuals)
    arguments = chosen.params, chosen.schedule
    made = TARGETS[target].compile(getattr(chosen, call), *arguments)
    return parse(made.as_text())
