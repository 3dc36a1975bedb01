# SPDX-License-Identifier: Apache-2.0
"""Tracebacks that show the user's lines alone, as those of JAX do.

Frames of jfold, JAX and Flax are left out, in notebooks too, unless
`jax.config.jax_traceback_filtering` is 'off'. Marking frames as hidden for IPython is
not enough: IPython shows the last frame even if it is marked.
"""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

from jfold.base.errors import elide

P = ParamSpec('P')
R = TypeVar('R')

FOLDER = Path(__file__).parent.parent  # the package
PACKAGES = 'jfold', 'jax', 'jaxlib', 'flax'
CALLED = sys.stdlib_module_names | {'numpy', 'tqdm'}  # hidden below a hidden frame
Frame = types.TracebackType


def api_boundary(fn: Callable[P, R]) -> Callable[P, R]:
    """Wrap a public function so that errors leaving it show no frames of jfold.

    Frames of functions that the user passed in stay. KeyboardInterrupt counts as an
    error.
    """
    clean = _clean

    def shown(*args: P.args, **options: P.kwargs) -> R:
        try:
            return fn(*args, **options)
        except (Exception, KeyboardInterrupt) as error:
            __tracebackhide__ = True  # for IPython, see `_clean`
            clean(error)
            raise

    # With the globals of `fn`, by which doctest finds the module of the function.
    code, closure = shown.__code__, shown.__closure__
    wrapper = types.FunctionType(code, fn.__globals__, closure=closure)
    return functools.update_wrapper(wrapper, fn)


def _clean(error: BaseException) -> None:
    """Remove frames of jfold and JAX from an error, its causes and its contexts."""
    config: Any = jax.config
    if config.jax_traceback_filtering == 'off':
        return
    if isinstance(error, KeyboardInterrupt):
        # Mark frames for IPython to hide, as JAX marks its own for errors alone. Not
        # those that hold the error: `f_locals` is kept, which would be a cycle.
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            if _is_hidden(frame, False) and frame.f_locals is not frame.f_globals:
                frame.f_locals['__tracebackhide__'] = True
            frame = frame.f_back
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        raised = waiting.pop()
        if raised is None or id(raised) in seen:
            continue
        seen.add(id(raised))
        waiting += [raised.__cause__, raised.__context__]
        raised.__traceback__ = _filtered(raised.__traceback__)
        if raised.__context__ is not raised.__cause__:
            raised.__context__ = _first_of_user(raised.__context__)


def _first_of_user(error: BaseException | None) -> BaseException | None:
    """Return the first error along `__context__` with a user's frame, else `None`."""
    seen: set[int] = set()
    while error is not None and _filtered(error.__traceback__) is None:
        seen.add(id(error))
        error = error.__context__
        error = None if id(error) in seen else error
    return error


def _filtered(traceback: Frame | None) -> Frame | None:
    """Return a new traceback without frames of jfold and JAX, or `None` if empty."""
    shown: list[Frame] = []
    hidden = False
    for entry in _entries(traceback):
        hidden = _is_hidden(entry.tb_frame, hidden)
        shown += [] if hidden else [entry]
    return _joined(shown)


def _entries(traceback: Frame | None) -> Iterator[Frame]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _joined(entries: list[Frame]) -> Frame | None:
    """Return a new traceback of some entries alone, or `None` if there are none."""
    result = None
    for entry in reversed(entries):
        frame, lasti, line = entry.tb_frame, entry.tb_lasti, entry.tb_lineno
        result = types.TracebackType(result, frame, lasti, line)
    return result


def _is_hidden(frame: types.FrameType, after_hidden: bool) -> bool:
    # By module, not by file, because methods that `dataclasses` writes have no file.
    # Only frames that JAX makes from recorded source locations have no module.
    name = frame.f_globals.get('__name__')
    if name is None:
        return FOLDER in Path(frame.f_code.co_filename).parents
    package = name.partition('.')[0]
    return package in PACKAGES or (after_hidden and package in CALLED)


# ---- lines of the user's -------------------------------------------------------------

STDLIB = sysconfig.get_path('stdlib')
SHOWN = 10, 20  # the first and the last frames of a long traceback


def is_of_user(frame: types.FrameType) -> bool:
    """Return whether a frame is not of jfold, JAX, Flax, NumPy or Python itself."""
    package = str(frame.f_globals.get('__name__')).partition('.')[0]
    file = frame.f_code.co_filename
    if package in (*PACKAGES, 'numpy') or file.startswith('<frozen'):
        return False
    return not file.startswith(STDLIB) or 'site-packages' in file


def line_text(code: types.CodeType, line: int) -> str:
    """Return ', in line 3 of f.py, `<its text>`' for a `line` of `code`."""
    text = linecache.getline(code.co_filename, line).strip()
    shown = f', `{elide(text, 80)}`' if text else ''
    return f', in line {line} of {Path(code.co_filename).name}{shown}'


def without_middle(traceback: Frame) -> Frame:
    """Return the user's frames of a traceback: at most 10 first and 20 last ones.

    Without any such frame the traceback is returned unchanged.
    """
    entries = [x for x in _entries(traceback) if is_of_user(x.tb_frame)]
    first, last = SHOWN
    if len(entries) > first + last:
        entries = entries[:first] + entries[-last:]
    return _joined(entries) or traceback
