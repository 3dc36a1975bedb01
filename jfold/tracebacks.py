# SPDX-License-Identifier: Apache-2.0
"""Tracebacks that show a user's own lines, as JAX shows them.

What `jax.config.jax_traceback_filtering` says of JAX's frames holds for those of jfold:
'off' shows all, 'tracebackhide' marks them for IPython, anything else leaves them out.
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

FOLDER = Path(__file__).parent
PACKAGES = 'jfold', 'jax', 'jaxlib'
WRAPPERS = 'functools', 'contextlib'  # hidden with what they wrap
Frame = types.TracebackType


def boundary(fn: Callable[P, R]) -> Callable[P, R]:
    """What a user calls: an error that leaves it carries no frames from inside.

    Those of functions that the user passed in stay.
    """
    clean = _clean

    def shown(*args: P.args, **options: P.kwargs) -> R:
        try:
            return fn(*args, **options)
        except Exception as error:
            clean(error)
            raise

    # With the globals of `fn`: by these doctest tells whose examples to run.
    code, closure = shown.__code__, shown.__closure__
    made = types.FunctionType(code, fn.__globals__, closure=closure)
    return functools.update_wrapper(made, fn)


def _clean(error: BaseException) -> None:
    """Filters the tracebacks of an error and of those that led to it."""
    mode = _mode()
    if mode == 'off':
        return
    change = _marked if mode == 'tracebackhide' else _filtered
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__]
        each.__traceback__ = change(each.__traceback__)
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


def _mode() -> str:
    config: Any = jax.config
    mode = config.jax_traceback_filtering
    if mode not in (None, 'auto'):
        return str(mode)
    shell = getattr(sys.modules.get('IPython'), 'get_ipython', lambda: None)()
    return 'remove_frames' if shell is None else 'tracebackhide'


def _filtered(traceback: Frame | None) -> Frame | None:
    """The traceback without hidden frames."""
    result = None
    for each, hidden in reversed(_frames(traceback)):
        if not hidden:
            frame, lasti, line = each.tb_frame, each.tb_lasti, each.tb_lineno
            result = types.TracebackType(result, frame, lasti, line)
    return result


def _marked(traceback: Frame | None) -> Frame | None:
    """The traceback with hidden frames marked, for shells that know the mark."""
    for each, hidden in _frames(traceback):
        if hidden:
            each.tb_frame.f_locals['__tracebackhide__'] = True
    return traceback


def _frames(traceback: Frame | None) -> list[tuple[Frame, bool]]:
    """The entries of a traceback, outermost first, and whether each is hidden."""
    found: list[tuple[Frame, bool]] = []
    hidden = False
    while traceback is not None:
        hidden = _is_hidden(traceback.tb_frame, hidden)
        found.append((traceback, hidden))
        traceback = traceback.tb_next
    return found


def _is_hidden(frame: types.FrameType, after_hidden: bool) -> bool:
    # By module, not by file: methods that `dataclasses` writes have none. Those that
    # JAX makes of what it recorded have no module.
    name = frame.f_globals.get('__name__')
    if name is None:
        return FOLDER in Path(frame.f_code.co_filename).parents
    return (after_hidden and name in WRAPPERS) or name.partition('.')[0] in PACKAGES
