# SPDX-License-Identifier: Apache-2.0
"""Progress bars and lines that count seconds, on terminals and in notebooks."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from jfold.base.errors import elide

BAR_DELAY = 3.0  # seconds before anything shows
PACE = 1.0  # seconds between two states of a line
LEAST = 10  # characters of a line's name, however narrow the terminal is
MOST = 240  # characters of a line where there is no terminal


@contextlib.contextmanager
def progress_bar(
    what: str, total: int | None, progress: bool
) -> Iterator[Callable[[int], object]]:
    """Show a progress bar after `BAR_DELAY` seconds; yield a function to advance it.

    Args:
      what: the text in front of the bar.
      total: the number of examples; `None` if it is not known.
      progress: whether to show the bar, on a terminal or in a notebook.
    """
    if not progress:  # a bar that shows nothing takes 2 % of tracing a small batch
        yield lambda count: None
        return
    from tqdm import tqdm

    options: dict[str, Any] = {'unit': ' examples', 'delay': BAR_DELAY, 'leave': False}
    with tqdm(desc=what, total=total, disable=not _is_seen(), **options) as bar:
        yield bar.update


def start_line(what: str) -> Callable[[], object]:
    """Show `what` and seconds after `BAR_DELAY`; return a function to remove them."""
    done, begin = threading.Event(), time.monotonic()

    def show() -> None:
        if done.wait(BAR_DELAY):
            return
        from tqdm import tqdm

        with tqdm(bar_format='{desc}', leave=False) as line:
            columns = getattr(line, 'ncols', None) or MOST  # disabled, it has none
            while not done.wait(PACE):
                seconds = f': {time.monotonic() - begin:.0f} s'
                room = max(columns - len(seconds) - 1, LEAST)
                line.set_description_str(elide(what, room) + seconds)

    if _is_seen():
        threading.Thread(target=show, daemon=True).start()
    return done.set


def _is_seen() -> bool:
    """Return whether output goes to a terminal or to a notebook."""
    ipython = sys.modules.get('IPython')  # a notebook says that it is no terminal
    shell = getattr(ipython, 'get_ipython', lambda: None)()
    classes = {cls.__name__ for cls in type(shell).__mro__}
    if shell is not None and 'TerminalInteractiveShell' not in classes:
        return True
    # A server that runs without a terminal may have closed it.
    is_open = sys.stderr is not None and not sys.stderr.closed
    return is_open and sys.stderr.isatty()
