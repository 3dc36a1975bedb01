# SPDX-License-Identifier: Apache-2.0
"""A line while functions that apply a model compile, and how long it took."""

from __future__ import annotations

import io
import logging
import re
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tqdm
from binary_trees import chain, tree_block

import jfold as jf
from jfold.data import progress_bars
from jfold.models import compile_times


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ('shell', 'terminal', 'level', 'seen'),
    [
        (None, True, logging.WARNING, True),
        ('a notebook', False, logging.WARNING, True),
        (None, False, logging.WARNING, False),
        ('a notebook', True, logging.ERROR, False),
    ],
)
def test_a_line_while_a_step_compiles(
    shell: str | None,
    terminal: bool,
    level: int,
    seen: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shows on a terminal and in a notebook, and is erased; others compile without."""

    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    def wait(ready: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + 60
        while seen and not ready(stream.getvalue()):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def hold(event: str, value: float, fun_name: str = '', **options: Any) -> None:
        """Hold up XLA until there is a line."""
        if event == compile_times.COMPILED and fun_name == 'jit(step)':
            wait(lambda text: text.count('compiling') > 1)

    stream = Stream()
    caplog.set_level(level, logger='jfold')
    python = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, 'IPython', python)
    monkeypatch.setattr(sys, 'stderr', stream)
    monkeypatch.setattr(progress_bars, 'BAR_DELAY', 0.0)
    monkeypatch.setattr(progress_bars, 'PACE', 0.01)
    model = jf.compile(tree_block(4))
    params, schedule = model.init(jax.random.key(0)), model.schedule([chain(3)])

    @jax.jit
    def step(params: Any) -> Any:
        return model.apply(params, schedule)

    jax.monitoring.register_scalar_listener(hold)
    try:
        step(params)
    finally:
        jax.monitoring.unregister_scalar_listener(hold)
    wait(lambda text: text.endswith(' \r'))  # the line is erased
    jax.jit(lambda x: x * 3)(2.0)
    lines = {x.strip() for x in stream.getvalue().split('\r')} - {''}
    told = {re.sub(r': \d+ s$', ': some s', x) for x in lines}
    assert told == ({'compiling step (program 1): some s'} if seen else set())


@pytest.mark.parametrize('columns', [24, 40])
def test_a_long_name_leaves_room_for_the_seconds(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, 'stderr', stream)
    monkeypatch.setattr(stream, 'isatty', lambda: True, raising=False)
    shape = columns, 20
    monkeypatch.setattr(tqdm.std, '_screen_shape_wrapper', lambda: lambda _: shape)
    monkeypatch.setattr(progress_bars, 'BAR_DELAY', 0.0)
    monkeypatch.setattr(progress_bars, 'PACE', 0.01)
    end = progress_bars.start_line(f'compiling {"long_" * 20}name (program 1)')
    deadline, shown = time.monotonic() + 60, None
    while shown is None:
        shown = re.search(r'compil.* \.\.\. .*1\): \d+ s', stream.getvalue())
        assert time.monotonic() < deadline
        time.sleep(0.01)
    end()
    assert len(shown[0]) <= columns
    while not stream.getvalue().endswith(' \r'):  # the line is erased
        assert time.monotonic() < deadline
        time.sleep(0.01)


def compiled_in(text: str) -> tuple[str, str]:
    """Return the function and the program that a message with a time names."""
    name, _, rest = text.partition(' was compiled in ')
    seconds, _, program = rest.partition(' s: ')
    assert float(seconds) > 0
    return name, program


def test_how_long_a_step_took_to_compile(caplog: pytest.LogCaptureFixture) -> None:
    model = jf.compile(tree_block(4), 8)
    params = model.init(jax.random.key(0))
    first, second = (model.schedule([chain(leaves)]) for leaves in (1, 300))

    @jax.jit
    def step(params: Any, schedule: Any) -> Any:
        grads = jax.grad(lambda p: model.apply(p, schedule).sum())(params)
        with jax.ensure_compile_time_eval():  # something else, before the step
            return grads, jnp.arange(5).sum()

    with caplog.at_level(logging.INFO, logger='jfold'):
        for schedule in first, first, second, first:
            step(params, schedule)
        for _ in range(2):
            model.apply(params, first)
        jax.jit(lambda x: x * 3)(2.0)
        jax.make_jaxpr(model.apply)(params, first)
        model.precompile(model.apply, params, model.trace([chain(5)]).capacities(1))
    assert [compiled_in(x.getMessage()) for x in caplog.records] == [
        ('step', 'program 1 of at most 8'),
        ('step', 'program 2 of at most 8'),
        ('apply', 'program 1 of at most 8'),
        ('apply', 'program 2 of at most 8'),
    ]
