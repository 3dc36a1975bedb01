# SPDX-License-Identifier: Apache-2.0
"""The notebooks: they run, in small; what they show is of the code that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from notebook import run_cells
from program_runs import ROOT

FOLDER = ROOT / 'docs/notebooks'
NOTEBOOKS = sorted(x.stem for x in FOLDER.glob('*.ipynb'))
# One sets how many devices its process has.
ALONE = 'several_devices'
OTHERS = [name for name in NOTEBOOKS if name != ALONE]
TOGETHER = [pytest.param(OTHERS[k::5], marks=pytest.mark.long) for k in range(5)]
KEPT = ROOT / '.pytest_cache/notebooks'  # what they compile
LARGEST = 500_000  # bytes of a notebook with its pictures
# Text of a machine, its folders and its moments.
OF_A_MACHINE = r'/(?:home|root|tmp|work|usr)/|site-packages|ipykernel_\d|\x1b\['


def cells(name: str) -> list[dict[str, Any]]:
    """The cells of code, which run; the install line is left out."""
    notebook = json.loads((FOLDER / f'{name}.ipynb').read_text(encoding='utf8'))
    code = [x for x in notebook['cells'] if x['cell_type'] == 'code']
    return [x for x in code if 'skip-execution' not in x['metadata'].get('tags', [])]


def quick(source: str) -> str:
    """The same, with the values that its remarks give for a quick run."""
    return re.sub(r'^([\w, ]+ = ).*# quick: (.*)$', r'\1\2', source, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize('names', [[ALONE], *TOGETHER], ids=' '.join)
def test_all_cells_run(names: list[str], tmp_path: Path) -> None:
    """Some notebooks in one process, which forgets the names of those before."""
    sources: list[str] = []
    for name in names:
        own = [''.join(x['source']) for x in cells(name)]
        assert sum('# quick:' in x for x in own) == 1
        sources += ['%reset -f', *map(quick, own)]
    KEPT.mkdir(parents=True, exist_ok=True)
    (tmp_path / 'cache').symlink_to(KEPT)
    for ran in run_cells(sources, tmp_path):
        assert ran.error is None, f'{ran.cell}\n{ran.text}'


@pytest.mark.parametrize('name', NOTEBOOKS)
def test_what_is_kept_is_of_one_run(name: str) -> None:
    """From the first cell to the last, without errors; pictures have a description."""
    path = FOLDER / f'{name}.ipynb'
    assert path.stat().st_size < LARGEST
    code = cells(name)
    assert [x['execution_count'] for x in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell['outputs']]
    assert {x['output_type'] for x in outputs} <= {
        'display_data',
        'execute_result',
        'stream',
    }
    pictures = [
        x for x in code if any('image/png' in y.get('data', {}) for y in x['outputs'])
    ]
    assert pictures
    for cell in pictures:
        assert cell['metadata']['mystnb']['image']['alt'].endswith('.')
    for output in outputs:
        shown = {k: v for k, v in output.get('data', {}).items() if k != 'image/png'}
        assert not re.search(OF_A_MACHINE, json.dumps([output.get('text'), shown]))


def test_all_say_what_to_install() -> None:
    """In a cell behind the title, which is left out where they are run."""
    assert NOTEBOOKS
    for name in NOTEBOOKS:
        text = (FOLDER / f'{name}.ipynb').read_text(encoding='utf8')
        first, second = json.loads(text)['cells'][:2]
        assert ''.join(first['source']).startswith('# ')
        assert re.fullmatch(
            r'%pip install -q "jfold\[examples\]"( \w+)*', ''.join(second['source'])
        )
        assert second['metadata']['tags'] == ['skip-execution']
