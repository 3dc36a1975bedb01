# SPDX-License-Identifier: Apache-2.0
"""All benchmarks in one run: what is written, told and returned; no times."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / 'benchmarks'
sys.path.append(str(BENCHMARKS))

import gpu  # noqa: E402
import suite  # noqa: E402

PROGRAM = f"""
import sys
sys.path.append({str(BENCHMARKS)!r})
from options import make_parser, say
from report import Report
options = make_parser('A part').parse_args()
report = Report('A part', 'python part.py', (options.json, options.markdown))
say('measuring')
report.add({{'thing': 'a', 'ms': MS, 'steps': [1, 2]}})
report.absent |= ABSENT
report.close()
"""
PROGRAMS = {
    'core': PROGRAM.replace('MS', '1.5').replace('ABSENT', '{}'),
    'host': PROGRAM.replace('MS', '2.5').replace('ABSENT', "{'wheel': 'no such'}"),
    'peers': PROGRAM.replace('MS', 'None').replace('ABSENT', "{'all': 'no home'}"),
    'models': PROGRAM.replace('MS', '1').replace('ABSENT', '1 / 0'),
    'scaling': "import sys\nsys.exit('no memory')",
    'search': 'import time\ntime.sleep(600)',
}


def run_main(
    program: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *given: str
) -> tuple[int, dict[str, Any], list[Any], str]:
    """Exit status, parts by name, their rows, and the Markdown, of made-up programs."""
    for name, text in PROGRAMS.items():
        (folder / f'{name}.py').write_text(text)
    monkeypatch.setattr(suite, 'PROGRAMS', folder)
    names, *options = given
    line = [program.__name__, '--only', names, '--results', str(folder / 'new')]
    monkeypatch.setattr(sys, 'argv', [*line, *options])
    status = 0
    try:
        program.main()
    except SystemExit as exit_:
        status = int(str(exit_.code))
    (lines,) = (folder / 'new').glob('*.jsonl')
    _, *rows = map(json.loads, lines.read_text().splitlines())
    parts = {row['part']: row for row in rows if 'state' in row}
    found = [row for row in rows if 'state' not in row]
    return status, parts, found, lines.with_suffix('.md').read_text()


def test_one_file_holds_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows know their part; what is absent is told, and is no failure."""
    given = monkeypatch, 'core,host,peers', '--quick'
    status, parts, rows, markdown = run_main(suite, tmp_path, *given)
    assert status == 0
    states = {name: part['state'] for name, part in parts.items()}
    assert states == {'core': 'done', 'host': 'done', 'peers': 'absent'}
    assert parts['core']['command'] == 'python benchmarks/core.py --quick'
    assert parts['core']['head']['title'] == 'A part'
    assert parts['host']['remarks'] == 'wheel absent: no such'
    assert [row['part'] for row in rows] == ['core', 'host', 'peers']
    assert rows[0]['steps'] == [1, 2]
    assert markdown.startswith('## All benchmarks\n')
    assert markdown.count('## A part\n') == 3
    assert 'wheel: skipped, no such.' in markdown
    told = capsys.readouterr().err
    assert '==> host, part 2 of 3\nhost 0:0' in told
    assert '  measuring\n==> host: done after ' in told
    assert (tmp_path / 'new/quick.md').exists()


def test_failures_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told with their reason, and in the exit status."""
    given = monkeypatch, 'scaling,models,core'
    status, parts, rows, _ = run_main(suite, tmp_path, *given)
    assert status == 1
    states = {name: part['state'] for name, part in parts.items()}
    assert states == {'scaling': 'failed', 'models': 'failed', 'core': 'done'}
    assert parts['scaling']['remarks'] == 'exit status 1: no memory'
    assert 'ZeroDivisionError' in parts['models']['remarks']
    assert [row['part'] for row in rows] == ['core']


def test_parts_are_stopped_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that is lent; the others run, and files are named for it. Nothing
    runs when the time of all is spent."""
    monkeypatch.setattr(gpu, 'device', lambda: 'NVIDIA X (1)')
    monkeypatch.setattr(gpu, 'PART', 2.0)
    monkeypatch.setitem(gpu.PARTS, 'core', ())
    status, parts, rows, markdown = run_main(gpu, tmp_path, monkeypatch, 'search,core')
    assert status == 1
    assert parts['search']['remarks'] == 'stopped after 2 s: '
    assert parts['core']['state'] == 'done'
    assert [row['part'] for row in rows] == ['core']
    assert markdown.startswith('## Benchmarks on NVIDIA X (1)\n')
    (written,) = (tmp_path / 'new').glob('*.md')
    assert written.name.startswith('nvidia-x-1-20')
    for each in (tmp_path / 'new').iterdir():
        each.unlink()
    monkeypatch.setattr(gpu, 'ALL', 0.0)
    _, parts, _, _ = run_main(gpu, tmp_path, monkeypatch, 'search')
    assert parts['search']['remarks'] == 'stopped after 0 s: '
