# SPDX-License-Identifier: Apache-2.0
"""The display of an `InputError`: its example as a tree, with the bad value marked.

No code of the data's classes is called but to iterate over mappings and sequences; a
`repr` might raise, or print a million nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from jfold.base.errors import InputError, elide
from jfold.display import markup as m
from jfold.display.texts import cut, short

# The most parts shown of a value; levels shown at each end of a long path; levels shown
# below the bad value; keys of a mapping that are compared with the path.
CHILDREN, NEAR, DEPTH, KEYS = 8, 10, 2, 20_000
Child: TypeAlias = tuple[str, Any]  # a path step, as `['left']`, and the value there
Outer: TypeAlias = tuple[str, Any, str]  # a step, the value there, and the next step
_INDEX = re.compile(r'\[(\d+)\]')
_NAME = re.compile(r'\.(\w+)')


def error_page(error: InputError) -> str:
    """Return the HTML of an error, and of its example if `error.data` has it."""
    at = f'at {elide(error.path)}' if error.path else ''
    lines = [m.line('bad', cut(error.message, 600))]
    lines.append(m.line('muted', f'in {error.block}'))
    lines.append(m.line('code', f'What to do: {error.hint}' if error.hint else ''))
    trees = [_tree(data, error.path) for data in error.data]
    return m.page('InputError', [f'example {error.example}', at], *lines, *trees)


def _tree(example: Any, path: str) -> m.Markup:
    """Return the example as a tree, opened along the path to the bad value."""
    label, end, value, outers = '', 0, example, list[Outer]()
    while end < len(path) and (child := _step(value, path, end)) is not None:
        outers.append((label, value, child[0]))
        label, value = child
        end += len(label)
    note = f'  what is at {elide(path[end:])} of it' if end < len(path) else ''
    result = _branch(label, value, DEPTH, note, marked=True)
    hidden = max(len(outers) - 2 * NEAR, 0)
    del outers[NEAR : NEAR + hidden]
    for k, (label, outer, step) in enumerate(reversed(outers)):
        if k == NEAR:
            result = m.joined([m.more(hidden, 'levels'), result])
        (children, size), depth = _children(outer), 1 if k < 3 else 0
        body = [result if x == step else _branch(x, y, depth) for x, y in children]
        if step not in dict(children):
            body.append(m.joined([m.line('leaf jf-muted', '…'), result]))
        rest = m.more(size - len(body), 'items')
        result = m.folded(_title(label, outer), *body, rest, opened=True)
    return result


def _branch(
    step: str, value: Any, depth: int, note: str = '', marked: bool = False
) -> m.Markup:
    """Return a collapsible tree of a value's parts, or a line if none is shown.

    Args:
      step: the text before the value, such as '[0]'; `note` is the text after it.
      depth: the number of levels of parts to show.
      marked: whether the value is highlighted and its tree open.
    """
    title = m.joined([_title(step, value, marked), m.span('muted', note)])
    children, size = _children(value) if depth > 0 else ([], 0)
    if not children:
        return m.line('leaf', title)
    body = [_branch(*child, depth - 1) for child in children]
    rest = m.more(size - len(body), 'items')
    return m.folded(title, *body, rest, opened=marked)


def _title(step: str, value: Any, marked: bool = False) -> m.Markup:
    text = m.span('mark jf-code' if marked else 'code', short(value))
    return m.joined([m.span('code jf-muted', cut(step), ' ' if step else ''), text])


# ---- what is inside ------------------------------------------------------------------


def _inside(value: Any) -> Iterator[Child]:
    """Yield (path step, such as '[0]' or '.name', child) per child of `value`."""
    if isinstance(value, Mapping):
        yield from ((f'[{short(key)}]', value[key]) for key in value)
    elif isinstance(value, tuple) and hasattr(value, '_fields'):
        yield from ((f'.{name}', getattr(value, name)) for name in value._fields)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((f'[{k}]', value[k]) for k in range(len(value)))
    elif type(value).__module__ not in ('builtins', 'numpy'):
        slots = getattr(type(value), '__slots__', ())
        names = itertools.chain(getattr(value, '__dict__', ()), slots)
        public = (str(name) for name in names if str(name)[:1] != '_')
        yield from ((f'.{name}', getattr(value, name)) for name in public)


def _children(value: Any) -> tuple[list[Child], int]:
    """Return the first children of a value, and the number of all, 0 if unknown.

    They are fewer if the data's own code raises an error.
    """
    children, size = list[Child](), 0
    with contextlib.suppress(Exception):
        children.extend(itertools.islice(_inside(value), CHILDREN))
    with contextlib.suppress(Exception):
        size = len(value) if isinstance(value, Mapping | Sequence) else 0
    return children, size


def _step(value: Any, path: str, end: int) -> Child | None:
    """Return (step, child of `value`) at `path[end]`; `None` if nothing is there."""
    with contextlib.suppress(Exception):  # of the data's own code
        if isinstance(value, Mapping):
            for key in itertools.islice(value, KEYS):
                if path.startswith(step := f'[{key!r}]', end):
                    return step, value[key]
        elif match := _INDEX.match(path, end):
            return match[0], value[int(match[1])]
        if match := _NAME.match(path, end):
            return match[0], getattr(value, match[1])
    return None


# ---- tracebacks of notebooks ---------------------------------------------------------


def error_traceback(error: InputError) -> list[str]:
    """Return an error's traceback lines; in IPython also show its HTML, once."""
    ipython: Any = sys.modules.get('IPython')
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return traceback.format_exception(error)
    if 'text/html' in shell.display_formatter.active_types and not error.was_shown:
        error.was_shown = True
        if html := error._repr_html_():
            data = {'text/html': html, 'text/plain': ''}
            ipython.display.display(data, raw=True)
    lines = shell.InteractiveTB.structured_traceback
    return list(lines(type(error), error, error.__traceback__))
