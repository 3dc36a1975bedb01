# SPDX-License-Identifier: Apache-2.0
"""Each benchmark as a program, at a tiny size: its tables, and what it has checked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from program_runs import BENCHMARKS, EXAMPLES, ROOT, output, run

sys.path += [str(BENCHMARKS), str(EXAMPLES)]

import iclr2017
import scaling
import trees
from measuring import MODES
from treebank import made_up_lines

# By command: of columns the values, or how many rows have them; and what is said.
TABLES: dict[str, tuple[dict[str, Any], str]] = {
    'compile --quick --only cell,kinds': (
        {'contender': ['jfold', 'by hand'] * 2, 'ratio': 2},
        'has given the same loss and gradients',
    ),
    'core --workloads tiny --chain 20 --tree 20 --repeats 2': (
        {
            'mode': [mode for n in (1, 2) for mode in MODES for _ in range(n)],
            'programs': [1, 1],
            'perfect ms': 2,
            'ratio': 4,
            'example': ['a chain of 20 cells', 'a tree of 20 nodes'],
        },
        'loss and gradients of the eager twin',
    ),
    'ensemble --quick --repeats 2': (
        {'models': [3, 3, 3], 'page faults': 3, 'ratio': 2},
        'Gradients of all models were equal',
    ),
    'imports --repeats 2': ({'import': ['import jax', 'import jfold']}, 'Imports'),
    'lazy --quick --repeats 2 --only graphs': (
        {
            'form': ['graphs, blocks', 'graphs, lazy'],
            'mode': ['schedule', 'train', 'whole train'],
        },
        'Models in plain Python',
    ),
    'models --only treebank': (
        {'ratio': 0, 'model': 0},
        'treebank: skipped, needs the treebank: --trees PATH.',
    ),
    'molecules --batch 3 --width 4 --rounds 1 --repeats 2': (
        {
            'model': ['jfold', 'jfold'],
            'by hand': ['flat', 'padded'] * 2,
            'mode': [mode for n in (1, 2, 3) for mode in MODES for _ in range(n)],
        },
        'jraph: skipped, its message passing is',
    ),
    'reproducible --quick --repeats 2': ({'mode': [*MODES]}, 'alone gave to the bit'),
    'search --quick --repeats 2': (
        {'segments': [4, 1] * 2},  # jfold's own first, to which the others are compared
        'All forms have given the same results',
    ),
    'seq2seq --quick --repeats 2 --only short': (
        {
            'model': ['short, jfold', 'short, in loops'] * 2,
            'by hand': ['short', 'short'],
            'ratio': 4,
        },
        'Sequences to sequences',
    ),
    'storage --quick --repeats 2': ({'open [ms]': 4}, 'checksums compared'),
    'unrolled --quick --repeats 2 --only kinds': (
        {'model': ['kinds, no loops', 'kinds, in loops'] * 2, 'ratio': 2},
        'Programs without loops',
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('command', TABLES)
def test_rows_of_all_contenders(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their checks have passed, which the program says."""
    monkeypatch.setattr(jax, 'clear_caches', lambda: None)  # other tests need theirs
    columns, said = TABLES[command]
    program, *options = command.split()
    (_, *rows), markdown = run(program, *options, folder=tmp_path)
    for column, expected in columns.items():
        values = [row[column] for row in rows if column in row]
        assert (values if isinstance(expected, list) else len(values)) == expected
    assert said in markdown


MODELS = {
    'outputs,kinds': {'no outputs', 'outputs', 'one kind', 'two kinds'},
    'children,unused': {'child sums', 'four kinds', 'four of 5 kinds'},
    'chains,products': {
        *('Fold', 'lax.scan, padded', 'linen.RNN, padded'),
        *('x @ W', 'x @ W.T', 'W @ x', 'W.T @ x'),
    },
    'fan-out,treebank,library': {'fan-out', 'fan-out, by hand', 'treebank', 'library'},
}


@pytest.mark.long
@pytest.mark.parametrize('names', MODELS)
def test_models(names: str, tmp_path: Path) -> None:
    """Every model has a row in each mode, every benchmark a ratio."""
    for part, lines in made_up_lines(0).items():
        (tmp_path / f'{part}.txt').write_text('\n'.join(lines[:20]))
    sizes = '--hidden 4 --sentiment-hidden 4 --batch 2 --leaves 3 --repeats 2'.split()
    sizes += '--children 3 --longest 6 --kinds 5 --readers 9 --files 6'.split()
    given = ['--only', names, *sizes, '--trees', tmp_path]
    (head, *rows), _ = run('models', *given, folder=tmp_path)
    assert not head['absent']
    found = [(row['model'], row['mode']) for row in rows if 'model' in row]
    expected = [(name, mode) for name in MODELS[names] for mode in MODES]
    assert sorted(found) == sorted(expected)
    ratios = {row['benchmark'] for row in rows if 'ratio' in row}
    assert ratios == set(names.split(','))


@pytest.mark.long
def test_the_table_of_the_paper(tmp_path: Path) -> None:
    """All contenders in both modes; ratios follow from times."""
    sizes = '--leaves 4 --width 4 --batches 1,2 --repeats 2'.split()
    (_, *rows), markdown = run('iclr2017', *sizes, folder=tmp_path)
    table = [row for row in rows if 'table 1' in row]
    phases = {(r['mode'], r['batch'], r['contender']): r for r in rows[len(table) :]}
    assert [(row['table 1'], row['batch']) for row in table] == [
        (mode, batch) for mode in ('infer', 'train') for batch in (1, 2)
    ]
    assert len(phases) == 4 * len(iclr2017.CONTENDERS)
    for row in table:
        single = phases[row['table 1'], 1, 'by node']['device ms']
        full = phases[row['table 1'], row['batch'], 'full']['device ms']
        assert row['speed-up'] == pytest.approx(single / (full / row['batch']))
    assert '0.161 / 0.038 / 0.036' in markdown


@pytest.mark.long
def test_sweeps(tmp_path: Path) -> None:
    """Times and memory of every point, shares that add up, and a picture of each."""
    names = 'kinds', 'depth'
    sizes = '--points 2 --batch 2 --leaves 3 --width 4 --repeats 2'.split()
    given = ['--sweeps', ','.join(names), *sizes, '--pictures', tmp_path / 'pictures']
    (_, *rows), _ = run('scaling', *given, folder=tmp_path)
    times, memory = scaling.split(rows)
    points = [(name, value) for name in names for value in scaling.SWEEPS[name][:2]]
    for table in times, memory:
        assert [(row['sweep'], row['value']) for row in table] == points
    for row in times:
        shares = [row[key] for key in row if key.startswith('train: ')]
        assert len(shares) == 4
        assert sum(shares) == pytest.approx(100)
    for row in memory:
        assert row['train temporary MB'] > row['infer temporary MB'] > row['values MB']
    for name in names:
        assert (tmp_path / f'pictures/{name}.png').stat().st_size > 10_000


# ---- the host ------------------------------------------------------------------------


@pytest.mark.long
def test_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table has its rows; what has a process of its own is run here."""
    workload, start = trees.Workload, subprocess.run

    def small(trees: int, leaves: int, hidden: int) -> Any:
        return workload(min(trees, 8), min(leaves, 16), hidden)

    def here(command: list[str], **options: Any) -> Any:
        if command[0] != sys.executable:
            return start(command, **options)
        return SimpleNamespace(stdout=output(Path(command[1]), *command[2:], **place))

    place: Any = {'folder': tmp_path}
    monkeypatch.setattr(trees, 'Workload', small)
    monkeypatch.setattr(subprocess, 'run', here)
    sizes = '--functions 600 --hidden 4 --batches 1 --nodes 1000 --repeats 2'.split()
    (_, *rows), _ = run('host', *sizes, folder=tmp_path)
    tables = [next(iter(row)) for row in rows]
    assert {name: tables.count(name) for name in tables} == {
        'from examples': 10,
        'from a corpus': 1,
        'an epoch over': 3,
        'training on': 1,
        'traced from a stream': 1,
    }
    assert rows[-1]['GB'] >= rows[-1]['GB before'] > 0


AGAINST = """
import argparse, pathlib
import against

def load(folder, host, own=against.load):
    found = own(folder, host)
    few = [pathlib.Path(argparse.__file__)]
    found.modules['workloads'].library_files = lambda: few
    return found

def both(this, other, options, hosts=against.compare_hosts):
    yield from against.compare(this, other, options)
    options.only = '1 x name'
    yield from hosts(this, other, options)

against.load, against.compare_hosts = load, both
against.main()
"""


@pytest.mark.long
def test_two_checkouts_are_compared(tmp_path: Path) -> None:
    """Steps and tracing, each with its own modules, though both have one name."""
    other = tmp_path / 'other'
    shutil.copytree(ROOT / 'jfold', other / 'jfold')
    sizes = '--trees 2 --leaves 2 --hidden 4 --chain 3 --repeats 2'.split()
    given = other, '--host', *sizes
    (_, *rows), markdown = run('against', *given, folder=tmp_path, apart=AGAINST)
    ratios = [row['ratio'] for row in rows if 'median' in row]
    assert ratios[-4:] == ['merge from a corpus', 'infer', 'train', '1 x name']
    memory = {row['memory of']: row['ratio'] for row in rows if 'memory of' in row}
    assert {'32 x tree of 32', '64 x syntax tree', '64 x name'} < {*memory}
    assert all(ratio > 0 for ratio in memory.values())
    assert 'gradients of a batch were equal' in markdown


TRACING = """
import functools
import distributed
distributed.LocalCluster = functools.partial(distributed.LocalCluster, processes=False)
import tracing
tracing.main()
"""


@pytest.mark.long
def test_workers_write_one_corpus(tmp_path: Path) -> None:
    """Two at once, the same bytes as one; here they are threads."""
    quick = '--quick', '--repeats', 2
    (_, *rows), markdown = run('tracing', *quick, folder=tmp_path, apart=TRACING)
    assert [row['workers'] for row in rows] == [1, 2]
    assert all(row['rate'] > 0 for row in rows)
    assert 'equal, byte by byte' in markdown


# ---- devices -------------------------------------------------------------------------


def test_batches_are_dealt_evenly(tmp_path: Path) -> None:
    (_, *rows), _ = run('balance', '--quick', folder=tmp_path)
    assert [row['devices'] for row in rows] == [2, 8, 2, 8]
    for row in rows:
        assert 1 <= row['fullest / mean'] <= row['in order']


@pytest.mark.long
def test_devices_are_compared_with_one(tmp_path: Path) -> None:
    """And with PyTorch, where there is an environment of it."""
    quick = '--quick', '--repeats', 2, '--environments', tmp_path
    (head, *rows), markdown = run('devices', *quick, folder=tmp_path)
    assert len({row['ratio'].rpartition(': ')[0] for row in rows}) == 3
    assert head['absent'] == {'PyTorch': f'no environment {tmp_path}/torch'}
    assert 'Results and gradients were equal' in markdown


@pytest.mark.long
def test_kernels_beside_the_perfect_batch(tmp_path: Path) -> None:
    """Told of a CPU, as other devices are absent; then run on the device that is here,
    beside their estimates."""
    (head, *rows), _ = run('kernels', '--quick', folder=tmp_path)
    assert set(head['absent']) == {'H200', 'TPU v5e'}
    assert {row['device'] for row in rows} == {'CPU'}
    assert [row['form'] for row in rows].count('perfect batch') == 2
    assert all(row['kernels'] > 0 and row['rows / real'] >= 1 for row in rows)
    quick = '--quick', '--run', '--repeats', 2
    (head, *rows), _ = run('kernels', *quick, folder=tmp_path)
    assert head['absent'] == {}
    assert {row['device'] for row in rows} == {'cpu'}
    assert all(row['ms'] > 0 and row['ms / estimate'] > 0 for row in rows)
