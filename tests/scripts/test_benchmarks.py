# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: their references, their checks, and each at a tiny size; no times."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from program_runs import run

import jfold as jf

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / 'benchmarks'
sys.path += [str(BENCHMARKS), str(ROOT / 'examples')]

import against  # noqa: E402
import iclr2017  # noqa: E402
import measuring  # noqa: E402
import model_kinds  # noqa: E402
import paper_model  # noqa: E402
import scaling  # noqa: E402
import turns  # noqa: E402
from measuring import Disagreement, agree  # noqa: E402
from treebank import made_up_lines  # noqa: E402
from trees import random_tree  # noqa: E402
from turns import Times, take_turns  # noqa: E402

# ---- turns and checks ----------------------------------------------------------------


def test_ratios_go_round_by_round() -> None:
    """Quartiles of ratios, over the rounds that both have."""
    ratios = Times((2.0, 6.0, 12.0, 1.0)) / Times((1.0, 2.0, 3.0))
    assert ratios.values == (2.0, 3.0, 4.0)
    assert (ratios.median, ratios.quartiles) == (3.0, (2.5, 3.5))
    assert (Times((1.0, 3.0)) + Times((1.0, 1.0))).values == (2.0, 4.0)


def test_contenders_take_turns() -> None:
    """All run in every round; a slow one stops once it has enough."""
    calls: dict[str, list[int]] = {'a': [], 'b': []}
    contenders = {name: calls[name].append for name in calls}
    times = take_turns(contenders, 6)
    assert {name: len(t.values) for name, t in times.items()} == {'a': 6, 'b': 6}
    assert calls['a'] == calls['b']
    assert set(range(7)) <= set(calls['a'])
    timed = {'c': lambda _: turns.Seconds(2)}
    assert take_turns(timed, 2)['c'].values == (2, 2)
    stopped = take_turns(contenders, 6, limit=0)
    assert len(stopped['a'].values) == turns.ENOUGH


@pytest.mark.parametrize(
    ('got', 'problem'),
    [
        ({'a': np.ones(3), 'b': np.float32(2.01)}, "results['b']"),
        ({'a': np.ones(3), 'b': np.float32('nan')}, "results['b']"),
        ({'a': np.ones((3, 1)), 'b': np.float32(2)}, "results['a']"),
        ({'a': np.ones(3)}, 'expected ["[\'a\']", "[\'b\']"]'),
    ],
)
def test_wrong_results_are_noticed(got: Any, problem: str) -> None:
    """Values, NaN, shapes and structure."""
    want = {'a': np.ones(3), 'b': np.float32(2)}
    agree('it', jax.tree.map(lambda x: x * 1.00001, want), want)
    with pytest.raises(Disagreement) as raised:
        agree('it', got, want)
    assert problem in str(raised.value)


def counting_block() -> jf.Block:
    """Something with a metric, a whole number and parameters."""
    scale = jf.Function(jnp.multiply, lambda key, x: jnp.full(3, 2.0), 'scale')
    kept = jf.AllOf(jf.Identity(), jf.Function(jnp.sum) >> jf.Metric('sums'))
    item = jf.Scalar('int32') >> jf.Function(jnp.float32) >> scale
    return jf.Map(item) >> jf.Sum() >> kept >> jf.GetItem(0)


BATCHES = [[[1, 2, 3], [4, 5]], [[6], [7, 8]]]


@pytest.mark.slow
def test_setup_counts_and_runs() -> None:
    """Schedules fit the compiled steps; the perfect batch has as many rows."""
    setup = measuring.set_up('sums', counting_block(), BATCHES, [[1], [2, 3]], len)
    assert setup.nodes == 4.0
    assert setup.operations == 8  # the mean of 10 and 6
    for i, expected in enumerate([[12.0, 18.0], [12.0, 30.0]]):
        for step in (setup.run, setup.whole):
            values, _ = step('infer', i)
            np.testing.assert_array_equal(values[:, 0], expected)
    outputs = jax.tree.leaves(setup.perfect.run('infer'))
    assert sum(len(x) for x in outputs) == 8
    assert setup.steps['train'].compiled.memory_analysis() is not None


@pytest.mark.slow
def test_wrong_steps_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that forgets its metrics is not that of the eager twin."""

    def wrong(model: jf.Model, params: Any, schedule: jf.Schedule) -> Any:
        values, _ = model.apply(params, schedule)
        return (values * values * schedule.mask[:, None]).sum() / 2

    monkeypatch.setattr(measuring, 'loss', wrong)
    with pytest.raises(Disagreement, match='sums, train'):
        measuring.set_up('sums', counting_block(), BATCHES, [[1]], len)


# ---- the table of the paper ----------------------------------------------------------


def recursive(params: Any, tree: Any) -> jax.Array:
    """The root, as the definition reads."""
    if isinstance(tree, int):
        return params['embed'][tree]
    left, right = (recursive(params, part) for part in tree)
    hidden = jax.nn.relu(
        jnp.concatenate([left, right]) @ params['cell']['w0'] + params['cell']['b0']
    )
    gates = hidden @ params['cell']['w1'] + params['cell']['b1']
    keep_left, keep_right, write, new = gates.reshape(4, -1)
    kept = jax.nn.sigmoid(keep_left) * left + jax.nn.sigmoid(keep_right) * right
    return kept + jax.nn.sigmoid(write) * jnp.tanh(new)


@pytest.mark.slow
def test_all_ways_to_the_root() -> None:
    """By hand by node and by level, and the reference, against recursion."""
    rng = random.Random(0)
    shape = random_tree(9, rng)
    words = iter(lambda: rng.randrange(128), None)
    trees = [paper_model.with_words(shape, words) for _ in range(3)]
    params = jf.compile(paper_model.expression(4)).init(jax.random.key(0))
    params['cell'] |= {'b0': jnp.arange(4.0), 'b1': jnp.arange(16.0) / 8}
    want = np.stack([recursive(params, tree) for tree in trees])
    given = paper_model.words_of(trees)
    for roots in (paper_model.roots_by_node, paper_model.roots_by_level):
        np.testing.assert_allclose(roots(shape, params, given), want, rtol=1e-5)
    got = jax.jit(paper_model.roots_in_step)(params, *paper_model.postorder(trees))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_levels_of_a_tree() -> None:
    """Leaves come first, then cells by height, each before its parent."""
    tree = ((0, 0), ((0, 0), 0))
    assert paper_model.levels(tree) == [[(0, 1), (2, 3)], [(6, 4)], [(5, 7)]]


def test_weights_have_the_variance_asked_for() -> None:
    """A sum over inputs of mean square 1 has the square of the factor."""
    weights = paper_model.uniform(jax.random.key(0), (200, 300), 1.43)
    assert 200 * jnp.mean(weights**2) == pytest.approx(1.43**2, rel=0.02)


@pytest.mark.parametrize(
    ('device', 'batch', 'speed_up'),
    [
        ('GPU', 1024, 101.79),
        ('GPU', 512, 114.15),
        ('GPU', 256, 120.86),
        ('GPU', 128, 115.05),
        ('GPU', 64, 96.40),
        ('GPU', 32, 68.79),
        ('GPU', 1, 4.47),
        ('CPU', 1024, 28.86),
    ],
)
def test_figures_of_the_paper(device: str, batch: int, speed_up: float) -> None:
    """Ratios of the seconds are those printed, as far as seconds are rounded."""
    columns = iclr2017.paper_columns(batch)
    assert columns[f'paper {device} speed-up'] == pytest.approx(speed_up, rel=0.02)


def test_table_without_some_contenders() -> None:
    """Ratios need both sides."""
    row = {'mode': 'infer', 'batch': 2, 'contender': 'full', 'device ms': 3.0}
    (found,) = iclr2017.paper_table([row], 'infer')
    assert (found['full ms per tree'], found['speed-up']) == (1.5, None)
    assert found['paper GPU s'] is None


# ---- models --------------------------------------------------------------------------


def test_bushes_have_the_size_asked_for() -> None:
    """And no node has too many children, or none."""
    rng = random.Random(0)

    def widths(tree: Any) -> list[int]:
        if isinstance(tree, int):
            return []
        return [len(tree), *(n for part in tree for n in widths(part))]

    trees = [model_kinds.bush(20, 4, rng) for _ in range(20)]
    assert {model_kinds.bush_size(tree) for tree in trees} == {20}
    assert {n for tree in trees for n in widths(tree)} == {1, 2, 3, 4}


def test_linen_parameters_there_and_back() -> None:
    """Renaming loses nothing."""
    block = model_kinds.chain_block(3)
    params = jf.compile(block).init(jax.random.key(0))
    back = model_kinds.from_linen(model_kinds.to_linen(params))
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_padding() -> None:
    """Words first, zeros behind."""
    rows, lengths = model_kinds.padded(3, [[5, 6], [7], []])
    assert rows.tolist() == [[5, 6, 0], [7, 0, 0], [0, 0, 0]]
    assert lengths.tolist() == [2, 1, 0]


# ---- each as a program ---------------------------------------------------------------

COMMON = '--hidden 4 --sentiment-hidden 4 --batch 2 --leaves 3 --repeats 2'.split()


@pytest.mark.slow
def test_two_checkouts_are_compared(tmp_path: Path) -> None:
    """Each with its own modules, though both have one name."""
    other = tmp_path / 'other'
    shutil.copytree(ROOT / 'jfold', other / 'jfold')
    sizes = '--trees 2 --leaves 2 --hidden 4 --chain 3 --repeats 2'.split()
    (_, *rows), markdown = run('against', other, *sizes, folder=tmp_path, apart=True)
    assert [row['ratio'] for row in rows][-3:] == [
        'merge from a corpus',
        'infer',
        'train',
    ]
    assert all(row['median'] > 0 for row in rows)
    assert 'gradients of a batch were equal' in markdown
    host = other, '--host', *sizes, '--only=1 x name'
    (_, *rows), _ = run('against', *host, folder=tmp_path, apart=True)
    assert [row.get('ratio') for row in rows][:1] == ['1 x name']
    with pytest.raises(SystemExit, match='a folder jfold/'):
        against.load(tmp_path)


@pytest.mark.slow
def test_workers_write_one_corpus(tmp_path: Path) -> None:
    """Two at once, the same bytes as one."""
    quick = '--quick', '--repeats', 2
    (_, *rows), markdown = run('tracing', *quick, folder=tmp_path, apart=True)
    assert [row['workers'] for row in rows] == [1, 2]
    assert all(row['rate'] > 0 for row in rows)
    assert 'equal, byte by byte' in markdown


def test_ways_to_store_arrays_are_compared(tmp_path: Path) -> None:
    (_, *rows), _ = run('storage', '--quick', '--repeats', 2, folder=tmp_path)
    assert [x['arrays'] for x in rows[:3]] == [
        'one file',
        'one file, checksums compared',
        'folder of .npy',
    ]
    assert all(x['open [ms]'] > 0 for x in rows)
    assert rows[-1]['corpus'] == '0.01 GB'


def test_batches_are_dealt_evenly(tmp_path: Path) -> None:
    (_, *rows), _ = run('balance', '--quick', folder=tmp_path, apart=True)
    assert [row['devices'] for row in rows] == [2, 8, 2, 8]
    for row in rows:
        assert 1 <= row['fullest / mean'] <= row['in order']


@pytest.mark.slow
def test_imports_are_compared(tmp_path: Path) -> None:
    (_, *rows), _ = run('imports', '--repeats', 2, folder=tmp_path)
    assert [row['import'] for row in rows[:2]] == ['import jax', 'import jfold']
    assert rows[2]['median'] > 0


@pytest.mark.slow
def test_an_ensemble_is_compared(tmp_path: Path) -> None:
    """With the same models one after another, whose gradients it has."""
    (_, *rows), markdown = run('ensemble', '--quick', folder=tmp_path)
    assert [row.get('models') for row in rows] == [3, 3, 3, None, None]
    assert ['page faults' in row for row in rows] == [True] * 3 + [False] * 2
    assert 'Gradients of all models were equal' in markdown


@pytest.mark.slow
def test_compiling_is_compared_with_code_by_hand(tmp_path: Path) -> None:
    """In parts, with the same gradients."""
    chosen = '--quick', '--only', 'cell,kinds'
    (_, *rows), markdown = run('compile', *chosen, folder=tmp_path)
    ratios = [row for row in rows if 'ratio' in row]
    assert len(ratios) == 2
    assert all(row['median'] > 0 for row in ratios)
    assert [row['contender'] for row in rows if 'contender' in row] == (
        ['jfold', 'by hand'] * 2
    )
    assert 'has given the same loss and gradients' in markdown


@pytest.mark.slow
def test_the_price_of_a_fixed_order(tmp_path: Path) -> None:
    """An example alone gave what it gave in company."""
    (_, *rows), markdown = run('reproducible', '--quick', folder=tmp_path)
    assert [row['mode'] for row in rows] == ['infer', 'train']
    assert all(row['median'] > 0 for row in rows)
    assert 'alone gave to the bit' in markdown


@pytest.mark.slow
def test_kernels_are_told(tmp_path: Path) -> None:
    """Of a CPU, which is said; beside the perfect batch."""
    (head, *rows), _ = run('kernels', '--quick', folder=tmp_path)
    assert set(head['absent']) == {'H200', 'TPU v5e'}
    assert {row['device'] for row in rows} == {'CPU'}
    assert [row['form'] for row in rows].count('perfect batch') == 2
    assert all(row['kernels'] > 0 and row['estimate ms'] > 0 for row in rows)
    assert all(row['rows / real'] >= 1 for row in rows)


@pytest.mark.slow
def test_kernels_are_run_beside_their_estimates(tmp_path: Path) -> None:
    """On the device that is here."""
    (head, *rows), _ = run(
        'kernels', '--quick', '--run', '--repeats', 2, folder=tmp_path
    )
    assert head['absent'] == {}
    assert {row['device'] for row in rows} == {'cpu'}
    assert all(row['ms'] > 0 and row['ms / estimate'] > 0 for row in rows)


@pytest.mark.slow
def test_staircases_are_searched(tmp_path: Path) -> None:
    """jfold's own first, to which the others are compared; one segment is one."""
    (_, *rows), markdown = run('search', '--quick', '--repeats', 2, folder=tmp_path)
    assert [row['segments'] for row in rows] == [4, 1] * 2
    assert [row['over own'] for row in rows][::2] == [1, 1]
    assert rows[1]['steps'] > rows[0]['steps']
    assert 'All forms have given the same results' in markdown


@pytest.mark.parametrize('name', ['jfold', 'jfold.host', 'trees', 'jfolder', 'jax'])
def test_checkouts_hide_each_other(name: str) -> None:
    """While one is active, its modules are found; nothing else is touched."""
    before, module = dict(sys.modules), ModuleType(name)
    try:
        against.Checkout({name: module}).activate()
        assert sys.modules[name] is module
        assert sys.modules['numpy'] is np
    finally:
        sys.modules.clear()
        sys.modules.update(before)


@pytest.mark.slow
def test_core_runs(tmp_path: Path) -> None:
    """Beside the perfect batch, growth, and single examples."""
    sizes = '--workloads tiny --chain 20 --tree 20 --repeats 2'.split()
    (_, *rows), _ = run('core', *sizes, folder=tmp_path)
    beside = [row for row in rows if 'model' in row]
    assert [row['mode'] for row in beside] == list(measuring.MODES)
    assert all(row['perfect ms'] > 0 and row['programs'] == 1 for row in beside)
    assert len([row for row in rows if 'ratio' in row]) == 4
    assert rows[-1]['example'] == 'a tree of 20 nodes'


@pytest.mark.slow
def test_host_runs(tmp_path: Path) -> None:
    """Every table has its rows."""
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


@pytest.mark.slow
def test_table_of_the_paper_runs(tmp_path: Path) -> None:
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


MODELS = {
    'outputs,kinds': {'no outputs', 'outputs', 'one kind', 'two kinds'},
    'children,unused': {'child sums', 'four kinds', 'four of 5 kinds'},
    'chains,products': {
        *('Fold', 'lax.scan, padded', 'linen.RNN, padded'),
        *('x @ W', 'x @ W.T', 'W @ x', 'W.T @ x'),
    },
    'fan-out,treebank,library': {'fan-out', 'fan-out, by hand', 'treebank', 'library'},
}


@pytest.mark.slow
@pytest.mark.parametrize('names', MODELS)
def test_models_run(names: str, tmp_path: Path) -> None:
    """Every model has a row in each mode, every benchmark a ratio."""
    for part, lines in made_up_lines(0).items():
        (tmp_path / f'{part}.txt').write_text('\n'.join(lines[:20]))
    sizes = '--children 3 --longest 6 --kinds 5 --readers 9 --files 6'.split()
    given = ['--only', names, *COMMON, *sizes, '--trees', tmp_path]
    (head, *rows), _ = run('models', *given, folder=tmp_path)
    assert not head['absent']
    found = [(row['model'], row['mode']) for row in rows if 'model' in row]
    expected = [(name, mode) for name in MODELS[names] for mode in measuring.MODES]
    assert sorted(found) == sorted(expected)
    ratios = {row['benchmark'] for row in rows if 'ratio' in row}
    assert ratios == set(names.split(','))
    assert all(row['low'] <= row['high'] for row in rows if 'ratio' in row)


@pytest.mark.slow
def test_absent_data_are_told(tmp_path: Path) -> None:
    """A benchmark that cannot run says why."""
    (head, *rows), markdown = run('models', '--only', 'treebank', folder=tmp_path)
    assert not rows
    assert head['absent'] == {'treebank': 'needs the treebank: --trees PATH'}
    assert 'treebank: skipped, needs the treebank: --trees PATH.' in markdown


@pytest.mark.slow
def test_molecules_run(tmp_path: Path) -> None:
    """A row of each contender in each mode, and three ratios."""
    sizes = '--batch 3 --width 4 --rounds 1 --repeats 2'.split()
    (head, *rows), _ = run('molecules', *sizes, folder=tmp_path)
    assert list(head['absent']) == ['jraph']
    for mode in measuring.MODES:
        found = [row for row in rows if row['mode'] == mode]
        names = [row.get('model') or row.get('by hand') for row in found]
        assert names == ['jfold', 'flat', 'padded', *[None] * 3]
        assert all(row['low'] <= row['high'] for row in found if 'ratio' in row)


@pytest.mark.slow
def test_plain_python_is_compared_with_blocks(tmp_path: Path) -> None:
    """A row of each form, and three ratios."""
    (_, *rows), _ = run('lazy', '--quick', '--only', 'graphs', folder=tmp_path)
    assert [x['form'] for x in rows if 'form' in x] == [
        'graphs, blocks',
        'graphs, lazy',
    ]
    assert [x['mode'] for x in rows if 'ratio' in x] == [
        'schedule',
        'train',
        'whole train',
    ]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['kinds', 'depth'])
def test_sweeps_run(name: str, tmp_path: Path) -> None:
    """Times and memory of every point, shares that add up, and a picture."""
    sizes = '--points 2 --batch 2 --leaves 3 --width 4 --repeats 2'.split()
    given = ['--sweeps', name, *sizes, '--pictures', tmp_path / 'pictures']
    (_, *rows), _ = run('scaling', *given, folder=tmp_path)
    times, memory = scaling.split(rows)
    values = list(scaling.SWEEPS[name][:2])
    assert [row['value'] for row in times] == values
    assert [row['value'] for row in memory] == values
    for row in times:
        shares = [row[key] for key in row if key.startswith('train: ')]
        assert len(shares) == 4
        assert sum(shares) == pytest.approx(100)
    for row in memory:
        assert row['train temporary MB'] > row['infer temporary MB'] > row['values MB']
    assert (tmp_path / 'pictures' / f'{name}.png').stat().st_size > 10_000
