# SPDX-License-Identifier: Apache-2.0
"""What a new user runs first: the model of the README, and the example programs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import re
from pathlib import Path
from typing import Any

import jax
import one_expression
import pytest
from page_code import code_of, run_as_printed
from program_runs import EXAMPLES, ROOT, output

from jfold import blocks

ESOL = ROOT.parent / 'shared/data/molecules/delaney-processed.csv'
GOING_ON = 'training', 'serving', 'devices', 'flax', 'blocks', 'lazy', 'concepts'
# Pages that need no other, with a name that their last lines define.
ALONE = {'inside': 'traced', 'from-pytorch': 'corpus', 'from-padded-jax': 'network'}
ALONE |= {'transformations': 'exported', 'reproducible': 'model'}
OTHERS = 'errors', 'interoperation', 'source'  # pages with tests of their own
FOLDERS = '.', 'docs', 'docs/api', 'examples', 'benchmarks', 'tests'
PAGES = sorted(
    str(x.relative_to(ROOT)) for f in FOLDERS for x in (ROOT / f).glob('*.md')
)
TREEBANK = ROOT.parent / 'shared/data/sst/trainDevTestTrees_PTB.zip'


@functools.cache
def first_model() -> tuple[dict[str, Any], str]:
    """The names of the README's first model after three steps, and what it prints."""
    code, names = code_of('README.md')[0], dict[str, Any]()
    assert 'range(300)' in code
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code.replace('range(300)', 'range(3)'), names)
    return names, printed.getvalue()


def run_behind_first_model(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its code runs as it stands, one part after another, behind the first model."""
    names, parts = dict(first_model()[0]), code_of(page)
    for part in parts[page == 'README.md' :]:
        run_as_printed(part, names, lambda: capsys.readouterr().out)
    if page in ('README.md', 'docs/training.md'):
        both = first_model()[0]['params'], names['params']
        changed = jax.tree.map(lambda x, y: bool((x != y).any()), *both)
        assert all(jax.tree.leaves(changed))


def test_code_of_the_readme_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = first_model()[1]
    assert re.fullmatch(r'loss \d\.\d{3}, [1-3] compiled program\(s\)\n', printed)
    run_behind_first_model('README.md', capsys)


@pytest.mark.sampled(3)
@pytest.mark.parametrize('page', GOING_ON)
def test_code_of_pages_runs(
    page: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run_behind_first_model(f'docs/{page}.md', capsys)


def error_of(part: str, names: dict[str, Any]) -> str:
    """The error that a part of a page raises, with its notes, as Python prints it."""
    with pytest.raises(Exception) as caught:  # the text is compared
        exec(compile(part, 'page', 'exec', dont_inherit=True), names)
    error = caught.value
    return '\n'.join([f'{caught.typename}: {error}', *getattr(error, '__notes__', [])])


def test_the_page_of_errors_prints_what_is_raised() -> None:
    """Each part raises the error below it, broken into lines as it may be."""
    text = (ROOT / 'docs/errors.md').read_text(encoding='utf8')
    names = dict(first_model()[0])
    mistakes = re.findall(r'```python\n(.*?)```\n```text\n(.*?)```', text, re.DOTALL)
    assert len(mistakes) == len(code_of('docs/errors.md')) >= 10
    for part, message in mistakes:
        assert error_of(part, names).split() == message.split()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(('page', 'last'), ALONE.items())
def test_pages_that_stand_alone(
    page: str, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run without the first model, and compare themselves with a twin."""
    names: dict[str, Any] = {}
    for part in code_of(f'docs/{page}.md'):
        run_as_printed(part, names, lambda: capsys.readouterr().out)
    assert last in names


def test_no_page_with_code_is_forgotten() -> None:
    """All that has code for Python is run by a test."""
    run = {'README.md', *(f'docs/{x}.md' for x in (*GOING_ON, *ALONE, *OTHERS))}
    assert {page for page in PAGES if code_of(page)} == run


def test_the_readme_is_short() -> None:
    """What more there is to say stands in `docs/`, to which it links."""
    text = (ROOT / 'README.md').read_text(encoding='utf8')
    assert len(text.splitlines()) <= 200
    pages = {path.name for path in (ROOT / 'docs').glob('*.md')}
    assert pages - {'index.md'} == set(re.findall(r'\]\(docs/([\w-]+\.md)', text))


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Within the project, to files and to headings."""
    text = (ROOT / page).read_text(encoding='utf8')
    for target in re.findall(r'\]\((?!https?:)([^)]*)\)', text):
        path, _, anchor = target.partition('#')
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r'^#+ (.*)', file.read_text(encoding='utf8'), re.M)
            plain = [re.sub(r'[^\w\- ]', '', title.lower()) for title in titles]
            assert anchor in [title.replace(' ', '-') for title in plain], target


def test_the_way_from_fold_names_what_there_is() -> None:
    """Every public name of a block stands in the table."""
    text = (ROOT / 'docs' / 'from-fold.md').read_text(encoding='utf8')
    reductions = {'Sum', 'Max', 'Min', 'Mean'}
    wiring = {'Composition', 'compose', 'recursive'}
    all_blocks = {name for name, x in vars(blocks).items() if callable(x)}
    all_blocks |= reductions | wiring
    shown = set(re.findall(r'[A-Za-z_]+', ' '.join(re.findall(r'`([^`]+)`', text))))
    assert all_blocks - shown == {'Reference'}


def test_one_expression_all_the_way() -> None:
    """The page is what its program makes of it."""
    assert one_expression.page() == one_expression.PAGE.read_text()


# ---- examples ------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ('command', 'heads'),
    [
        ('quick_start', 'squared error  best constant'),
        ('fizzbuzz', 'always the number'),
        ('attention --tasks add', 'right answers  best constant'),
        ('names', 'most frequent language'),
        ('words', 'words in order'),
        ('calculator', 'right signs'),
        ('spinn', 'stack and tracker'),
        ('module_network', 'pixels and words, linear'),
        ('tree_decoder', 'one letter, one operation'),
    ],
)
def test_small_examples_print_their_tables(
    command: str,
    heads: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They learn beside a baseline; here they are tested on few examples."""
    name, *options = command.split()
    monkeypatch.syspath_prepend(EXAMPLES)
    program = importlib.import_module(name)
    monkeypatch.setattr(program, 'HELD_OUT', 100, raising=False)
    program.main([*options, '--quick'])
    printed = capsys.readouterr().out
    assert heads in printed
    assert 'epoch  2: loss' in printed


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('devices', ['1', '2'])
def test_function_names(devices: str, tmp_path: Path) -> None:
    """The main job, small: a table and a picture."""
    picture = tmp_path / 'curve.png'
    options = '--quick', '--devices', devices, '--picture', picture
    printed = output(EXAMPLES / 'function_names.py', *options, folder=tmp_path)
    for line in ('most frequent word', 'bag of node types', 'tree model', 'nodes/s'):
        assert line in printed
    assert picture.read_bytes().startswith(b'\x89PNG')


@pytest.mark.long
def test_engines_trace_in_workers(tmp_path: Path) -> None:
    """Two of Dask's, started and stopped, then two of grain's."""
    options: Any = {'folder': tmp_path, 'apart': True}
    printed = output(EXAMPLES / 'corpus_in_parts.py', '--quick', **options)
    assert 'Dask, 2 workers' in printed
    assert 'nodes) in 3 parts' in re.sub(', [0-9.]+ MB', '', printed)
    assert 'grain, 2 workers' in printed


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('model', ['messages', 'weave'])
def test_molecules(model: str, tmp_path: Path) -> None:
    """Made up, and for one of the models those of the file, where it is at hand."""
    pytest.importorskip(
        'rdkit', reason='RDKit, which reads molecules, is not installed'
    )
    options = ['--quick', '--model', model]
    options += ['--esol', str(ESOL)] if model == 'weave' and ESOL.exists() else []
    printed = output(EXAMPLES / 'molecules.py', *options, folder=tmp_path)
    assert printed.startswith('120 molecules')
    assert 'mean of training  linear' in re.sub('  +', '  ', printed)
    assert 'epoch  2: loss' in printed
    assert 'mean ± deviation' in printed


@pytest.mark.long
def test_sentiment_needs_no_file(tmp_path: Path) -> None:
    """Without a treebank it makes one up; several models with dropout are one run."""
    options = '--epochs 2 --hidden 8 --limit 60 --seeds 3'.split()
    options += '--dropout 0.2 --recurrent-dropout 0.2'.split()
    printed = output(EXAMPLES / 'sentiment.py', *options, folder=tmp_path)
    assert re.search(r'best epochs on dev: \[[12], [12], [12]\]', printed)
    assert re.search(r'test roots: fine \d+\.\d \(\d+\.\d\), binary', printed)
    assert re.search(r'test roots, ensemble: fine \d+\.\d, binary', printed)
    assert 'perfect batch' in printed


@pytest.mark.long
def test_sentiment_reads_the_treebank(tmp_path: Path) -> None:
    """The real one, where it is at hand."""
    if not TREEBANK.exists():
        pytest.skip(f'the Stanford Sentiment Treebank is not at {TREEBANK}')
    options = '--epochs 1 --hidden 8 --limit 20 --batch-size 10 --seeds 1'.split()
    options += '--dropout 0 --recurrent-dropout 0 --trees'.split()
    printed = output(EXAMPLES / 'sentiment.py', *options, TREEBANK, folder=tmp_path)
    assert 'dev roots: fine' in printed
