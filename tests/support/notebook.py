# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of a notebook in a process of their own, as IPython does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ran:
    """What became of a cell.

    Attributes:
      cell: its code.
      text: what it printed, with the traceback of its error.
      error: the class of that, if there was one.
      compiled: the functions that JAX compiled meanwhile.
      again: those among them of which it has compiled the same program before.
    """

    cell: str
    text: str
    error: str | None
    compiled: list[str]
    again: list[str]

    @property
    def lines(self) -> list[str]:
        """The lines of the text that are not blank."""
        return [line for line in self.text.splitlines() if line.strip()]


def run_cells(cells: Sequence[str], folder: Path) -> list[Ran]:
    """Runs cells one after another.

    Args:
      cells: the code of each.
      folder: an empty one, to which they may write.
    """
    paths = {'PYTHONPATH': f'{HERE.parents[1]}:{HERE}', 'JAX_PLATFORMS': 'cpu'}
    paths |= {'MPLBACKEND': 'Agg'}
    done = subprocess.run(
        [sys.executable, str(HERE / 'notebook.py')],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | paths,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Ran(**each) for each in json.loads(done.stdout.splitlines()[-1])]


class _Compiling:
    """Which functions JAX compiles, and which programs another time.

    A cache of compiled programs in a folder tells: what is found there was compiled
    before, though JAX would have compiled it anew without the cache. A cell that says
    `# defines` empties it.
    """

    def __init__(self) -> None:
        import jax

        self.compiled: list[str] = []
        self.again: list[str] = []
        self.hit = False
        jax.config.update('jax_compilation_cache_dir', str(Path('cache').absolute()))
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
        jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
        jax.monitoring.register_event_listener(self._event)
        jax.monitoring.register_event_duration_secs_listener(self._duration)

    def _event(self, event: str, **details: object) -> None:
        self.hit = self.hit or event == '/jax/compilation_cache/cache_hits'

    def _duration(self, event: str, duration: float, **details: object) -> None:
        if event == '/jax/core/compile/backend_compile_duration':
            name = str(details.get('fun_name', ''))
            self.compiled.append(name)
            if self.hit:
                self.again.append(name)
            self.hit = False

    def forget(self) -> None:
        """Lets all be compiled once more."""
        for each in Path('cache').glob('*'):
            each.unlink()

    def taken(self) -> tuple[list[str], list[str]]:
        """Both lists, which are empty from then on."""
        both = self.compiled, self.again
        self.compiled, self.again = [], []
        return both


def _main() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    # A shell's background jobs, and so these tests in one, are deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config = Config()
    config.InteractiveShell.colors = 'nocolor'
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    compiling, found = _Compiling(), []
    for number, cell in enumerate(json.load(sys.stdin)):
        text = io.StringIO()
        if '# defines' in cell:
            compiling.forget()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            done = shell.run_cell(cell, store_history=True)
        error = done.error_before_exec or done.error_in_exec
        name = None if error is None else type(error).__name__
        found.append(asdict(Ran(cell, text.getvalue(), name, *compiling.taken())))
        print(f'cell {number} done', file=sys.stderr)
    print(json.dumps(found))


if __name__ == '__main__':
    _main()
