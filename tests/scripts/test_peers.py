# SPDX-License-Identifier: Apache-2.0
"""The benchmark against peers: its workload, its checks, its rows; no times."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / 'benchmarks'
sys.path += [str(BENCHMARKS), str(BENCHMARKS / 'peers')]

import peers  # noqa: E402
import protocol  # noqa: E402
from report import Report  # noqa: E402

TINY = protocol.Workload(leaves=5, hidden=4, batch=3, vocab=7)
MATCH = peers.Match('tiny', 'infer', threads=1, repeats=4, limit=60)

# ---- the reference -------------------------------------------------------------------


def loss(weights: protocol.Weights, trees: list[Any]) -> tuple[jax.Array, jax.Array]:
    """The loss, and the roots, by recursion as the definition reads."""

    def visit(tree: Any) -> Any:
        if isinstance(tree, int):
            return jnp.split(weights.table[tree], 2)
        (c_left, h_left), (c_right, h_right) = map(visit, tree)
        z = jnp.concatenate([h_left, h_right]) @ weights.kernel + weights.bias
        i, o, u, f_left, f_right = jnp.split(z, 5)
        c = jax.nn.sigmoid(i) * jnp.tanh(u)
        c += jax.nn.sigmoid(f_left) * c_left + jax.nn.sigmoid(f_right) * c_right
        return c, jax.nn.sigmoid(o) * jnp.tanh(c)

    roots = jnp.stack([visit(tree)[1] for tree in trees])
    return roots.sum(1).mean(), roots


@pytest.mark.long
def test_reference_equals_recursion_and_its_gradient() -> None:
    """Levels in NumPy against the definition in JAX."""
    weights, trees = TINY.weights(), next(TINY.batches())
    roots, found = protocol.reference(weights, trees, TINY.leaves)
    gradients, expected = jax.grad(loss, has_aux=True)(
        jax.tree.map(jnp.asarray, weights), trees
    )
    np.testing.assert_allclose(roots, expected, atol=1e-6)
    assert protocol.relative_error(found, gradients) < 1e-5


def test_workload_is_the_one_of_earlier_figures() -> None:
    """The mean of the h of the first batch's roots; the next batch is another."""
    workload = protocol.Workload(leaves=32, hidden=128, batch=32)
    trees, others = itertools.islice(workload.batches(), 2)
    roots, _ = protocol.reference(workload.weights(), trees, 32)
    assert roots.mean() == pytest.approx(0.0128479, abs=1e-7)
    assert trees == next(workload.batches()) != others


# ---- programs ------------------------------------------------------------------------


class Exact(protocol.Program):
    """Computes what the reference computes, plus an error."""

    error = 0.0  # of the roots
    scale = 1.0  # of the gradients

    def __init__(self, workload: Any, weights: Any, threads: int) -> None:
        self.leaves, self.now = workload.leaves, weights

    def infer(self, trees: Any, clock: protocol.Clock) -> Any:
        clock.built()
        return protocol.reference(self.now, trees, self.leaves)[0] + self.error

    def train(self, trees: Any, clock: protocol.Clock) -> float:
        roots, grads = protocol.reference(self.now, trees, self.leaves)
        rate = protocol.RATE * self.scale
        self.now = jax.tree.map(lambda w, g: w - rate * g, self.now, grads)
        return float(roots.sum(1).mean() + self.error)

    def weights(self) -> Any:
        return self.now


def ask(kind: type[protocol.Program], mode: str, question: str = 'check') -> Any:
    """The answer of a program of tiny size."""
    options = argparse.Namespace(**vars(TINY), threads=1, mode=mode)
    return protocol.Server(kind, options).answer(question)


@pytest.mark.parametrize('mode', peers.MODES)
def test_right_programs_pass(mode: str) -> None:
    """Checks and steps have answers that survive JSON."""
    check, step = ask(Exact, mode), ask(Exact, mode, 'step')
    assert 'error' not in check
    assert json.loads(json.dumps(check))['trees'] == TINY.batch
    assert (step['build'] is None) == (mode == 'train')  # which does not tell it
    assert step['total'] == pytest.approx((step['build'] or 0) + step['compute'])


@pytest.mark.parametrize(
    ('mode', 'error', 'scale', 'what'),
    [
        ('infer', 1e-3, 1.0, 'the roots'),
        ('infer', float('nan'), 1.0, 'the roots'),
        ('train', 1e-2, 1.0, 'the roots'),
        ('train', 0.0, 1.01, 'the gradients'),
        ('train', 0.0, float('nan'), 'the gradients'),
    ],
)
def test_wrong_programs_fail(mode: str, error: float, scale: float, what: str) -> None:
    """Small errors and NaN are noticed."""
    wrong = type('Wrong', (Exact,), {'error': error, 'scale': scale})
    assert ask(wrong, mode)['error'].startswith(f'CheckError: expected {what} to be')


JAX_PROGRAMS = {
    'jfold_trees': 'Trees',
    'jfold_lazy': 'Trees',
    'jax_scan': 'Scan',
    'jax_stack': 'Stack',
    'jax_levels': 'Levels',
    'jax_unrolled': 'Unrolled',
}


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize('mode', peers.MODES)
@pytest.mark.parametrize('program', JAX_PROGRAMS)
def test_programs_of_this_environment_pass(program: str, mode: str) -> None:
    """Roots and gradients of what runs without further installation."""
    kind = getattr(importlib.import_module(program), JAX_PROGRAMS[program])
    answer = ask(kind, mode)
    assert 'error' not in answer
    assert answer['compile'] > 0


# ---- the driver ----------------------------------------------------------------------

PROGRAM = """
from protocol import serve
from test_peers import {name}
serve({name})
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two programs: one in NumPy, and one that ends at once."""
    here = Path(__file__).parent
    folders = here, here.parent / 'support', BENCHMARKS / 'peers'
    monkeypatch.setenv('PYTHONPATH', ':'.join(map(str, folders)))
    monkeypatch.setattr(peers, 'PROGRAMS', tmp_path)
    names = {'jfold': 'exact', 'dynet': 'broken', 'dgl': 'exact'}
    found = {name: peers.Peer(name, program) for name, program in names.items()}
    monkeypatch.setattr(peers, 'PEERS', found)
    (tmp_path / 'exact.py').write_text(PROGRAM.format(name='Exact'))
    (tmp_path / 'broken.py').write_text(
        "print('hello')\nraise SystemExit('no library')"
    )
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures('programs')
def test_rows_of_all_peers() -> None:
    """Those that are absent or fail have a row with the reason."""
    pythons = {
        'jfold': Path(sys.executable),
        'dynet': Path(sys.executable),
        'dgl': peers.Unable('absent: no wheel'),
    }
    rows = peers.compare(['dgl', 'dynet', 'jfold'], pythons, MATCH)
    found = {row['peer']: row for row in rows}
    assert rows[0]['peer'] == 'jfold'
    assert found['jfold']['times jfold'] == 1
    assert found['jfold']['repeats'] == MATCH.repeats
    assert found['dgl']['remarks'] == 'absent: no wheel'
    assert found['dynet']['remarks'] == 'failed: no library'
    assert found['dynet']['ms'] is None


def test_steps_that_compile_are_not_counted() -> None:
    """Medians are of the others, and few trees are scaled to the batch."""
    steps = [
        {'total': total, 'build': None, 'compute': total, 'compile': compiling}
        for total, compiling in ((1.0, 0), (9.0, 8.0), (3.0, 0))
    ]
    contender = argparse.Namespace(
        name='jax-unrolled', command=[], check={'trees': 2, 'total': 9.0}, steps=steps
    )
    contender.compiled, contender.compilations = 8.0, 1
    row = peers.row_of(contender, MATCH)
    assert (row['ms'], row['repeats'], row['build ms']) == (2e3 * 4 / 2, 2, None)
    assert 'scaled to 4' in row['remarks']


# ---- reports -------------------------------------------------------------------------


def test_report_writes_both_files(tmp_path: Path) -> None:
    """Rows with the same keys share a table; lists are for JSON only."""
    paths = tmp_path / 'rows.jsonl', tmp_path / 'table.md'
    report = Report('Cells', 'python cells.py', paths)
    rows = [
        {'cell': 'a|b', 'ms': 1.234, 'steps': [1, 2]},
        {'cell': 'c', 'ms': None, 'steps': []},
        {'other': 12.34},
    ]
    for row in rows:
        report.add(row)
    report.note('Under load.')
    report.absent['glue'] = 'no wheel'
    report.write()
    head, *lines = map(json.loads, paths[0].read_text().splitlines())
    assert lines == rows
    assert (head['notes'], head['absent']) == (['Under load.'], {'glue': 'no wheel'})
    assert head['versions']['jax'] == jax.__version__
    text = paths[1].read_text()
    table = '| cell | ms |\n| --- | ---: |\n| a\\|b | 1.23 |\n| c | – |\n\n| other |'
    assert table in text
    assert text.startswith('## Cells\n\n`python cells.py`\n')
    assert text.endswith('| 12.3 |\n\nglue: skipped, no wheel.\n\nUnder load.\n')
