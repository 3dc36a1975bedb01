# SPDX-License-Identifier: Apache-2.0
"""Tracebacks that show a user's own lines, as JAX shows them.

Those of jfold, JAX and Flax are left out, in notebooks too, unless
`jax.config.jax_traceback_filtering` is 'off'. A mark for IPython would not do: it shows
the last frame of all whether that is marked or not.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

P = ParamSpec('P')
R = TypeVar('R')

FOLDER = Path(__file__).parent.parent  # of the package
PACKAGES = 'jfold', 'jax', 'jaxlib', 'flax'
CALLED = sys.stdlib_module_names | {'numpy', 'tqdm'}  # hidden behind what calls them
Frame = types.TracebackType


def api_boundary(fn: Callable[P, R]) -> Callable[P, R]:
    """What a user calls: an error that leaves it carries no frames from inside.

    Those of functions that the user passed in stay. Ctrl-C is such an error too.
    """
    clean = _clean

    def shown(*args: P.args, **options: P.kwargs) -> R:
        try:
            return fn(*args, **options)
        except (Exception, KeyboardInterrupt) as error:
            clean(error)
            raise

    # With the globals of `fn`: by these doctest tells whose examples to run.
    code, closure = shown.__code__, shown.__closure__
    made = types.FunctionType(code, fn.__globals__, closure=closure)
    return functools.update_wrapper(made, fn)


def _clean(error: BaseException) -> None:
    """Filters the tracebacks of an error and of those that led to it."""
    config: Any = jax.config
    if config.jax_traceback_filtering == 'off':
        return
    if isinstance(error, KeyboardInterrupt):
        _mark_callers(sys._getframe())
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__]
        each.__traceback__ = _filtered(each.__traceback__)
        if each.__context__ is not each.__cause__:
            each.__context__ = _outside(each.__context__)


def _outside(error: BaseException | None) -> BaseException | None:
    """The first of an error and its contexts that has a frame of a user's."""
    seen: set[int] = set()
    while error is not None and _filtered(error.__traceback__) is None:
        seen.add(id(error))
        error = error.__context__
        error = None if id(error) in seen else error
    return error


def _mark_callers(frame: types.FrameType | None) -> None:
    """Hides frames around ours from shells, as JAX hides its own from errors alone."""
    while frame is not None:
        if _is_hidden(frame, False) and frame.f_locals is not frame.f_globals:
            frame.f_locals['__tracebackhide__'] = True
        frame = frame.f_back


def _filtered(traceback: Frame | None) -> Frame | None:
    """The traceback without hidden frames."""
    found: list[Frame] = []
    hidden = False
    while traceback is not None:
        hidden = _is_hidden(traceback.tb_frame, hidden)
        found += [] if hidden else [traceback]
        traceback = traceback.tb_next
    result = None
    for each in reversed(found):
        frame, lasti, line = each.tb_frame, each.tb_lasti, each.tb_lineno
        result = types.TracebackType(result, frame, lasti, line)
    return result


def _is_hidden(frame: types.FrameType, after_hidden: bool) -> bool:
    # By module, not by file: methods that `dataclasses` writes have none. Those that
    # JAX makes of what it recorded have no module.
    name = frame.f_globals.get('__name__')
    if name is None:
        return FOLDER in Path(frame.f_code.co_filename).parents
    package = name.partition('.')[0]
    return package in PACKAGES or (after_hidden and package in CALLED)
