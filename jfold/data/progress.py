# SPDX-License-Identifier: Apache-2.0
"""Progress bars, on terminals and in notebooks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

BAR_DELAY = 3.0  # seconds before there is a progress bar


@contextlib.contextmanager
def progress_bar(
    what: str, total: int | None, progress: bool
) -> Iterator[Callable[[int], object]]:
    """Show a progress bar after `BAR_DELAY` seconds; yield a function to advance it.

    Args:
      what: the caption.
      total: the number of examples; `None` if it is not known.
      progress: whether to show the bar, on a terminal or in a notebook.
    """
    if not progress:  # a bar that shows nothing takes 2 % of tracing a small batch
        yield lambda count: None
        return
    from tqdm import tqdm

    # A notebook can show a bar, though it says that it is no terminal.
    disable = False if _is_notebook() else None
    options: dict[str, Any] = {'unit': ' examples', 'delay': BAR_DELAY, 'leave': False}
    with tqdm(desc=what, total=total, disable=disable, **options) as bar:
        yield bar.update


def _is_notebook() -> bool:
    """Return whether this code runs under IPython."""
    ipython = sys.modules.get('IPython')
    return getattr(ipython, 'get_ipython', lambda: None)() is not None
