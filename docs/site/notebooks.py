# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks and keeps what they print and draw; `make notebooks`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parents[1] / 'notebooks'
TIMEOUT = 300  # seconds that a cell may take


def is_progress(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is of a progress bar, whose lines end without a feed."""
    return output.get('name') == 'stderr' and '\r' in output.text


def execute(path: Path) -> float:
    """Execute a notebook in a kernel of its own and write it with its outputs.

    A notebook in which a cell fails stays as it was.

    Returns:
      The time that it took, in seconds.

    Raises:
      CellExecutionError: a cell failed.
    """
    start = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name='python3',
        extra_arguments=['--log-level=ERROR'],
        record_timing=False,
        skip_cells_with_tag='skip-execution',
        resources={'metadata': {'path': str(path.parent)}},
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == 'code':
            cell.outputs = [x for x in cell.outputs if not is_progress(x)]
    notebook.metadata = nbformat.from_dict(
        {
            'kernelspec': {
                'display_name': 'Python 3',
                'language': 'python',
                'name': 'python3',
            },
            'language_info': {'name': 'python'},
        }
    )
    nbformat.write(notebook, path)
    return time.perf_counter() - start


def main() -> None:
    """Execute the notebooks that the command line names, or all."""
    names = sorted(x.stem for x in FOLDER.glob('*.ipynb'))
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument('names', nargs='*', metavar='NAME', help='; '.join(names))
    given = parser.parse_args()
    if unknown := {*given.names} - {*names}:
        parser.error(f'no such notebook: {", ".join(sorted(unknown))}')
    failed = []
    for name in given.names or names:
        try:
            print(f'{name}: {execute(FOLDER / f"{name}.ipynb"):.0f} s', flush=True)
        except CellExecutionError as error:
            print(f'{name}: {error}', file=sys.stderr)
            failed.append(name)
    if failed:
        sys.exit(f'failed: {", ".join(failed)}')


if __name__ == '__main__':
    main()
