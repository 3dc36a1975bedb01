# SPDX-License-Identifier: Apache-2.0
"""The parts of the example programs that can be checked without training."""

from __future__ import annotations

import doctest
import io
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from compilations import compilations

import jfold as jf

sys.path.append(str(Path(__file__).parents[2] / 'examples'))

import calculator
import module_network
import names
import server
import spinn
import tree_decoder
import words

SHOWN = calculator, module_network, names, spinn, tree_decoder, words


@pytest.mark.parametrize('module', SHOWN)
def test_what_docstrings_show(module: ModuleType) -> None:
    """There is some, and all of it is so."""
    found = doctest.testmod(module)
    assert found.failed == 0 < found.attempted


QUESTIONS = module_network.draw(8, (1, 3), seed=1).items
LISTS = ('max', 1, 2), ('min', 3, ('med', 4, 5, 6), 7)
MODELS: dict[str, tuple[jf.Block, list[Any], set[str]]] = {
    'letters not seen do': (
        names.make_block('abc', 4, 5),
        [['ab'], ['c', 'x', 'abba']],
        {'letter', 'letters', 'words', 'language'},
    ),
    'a network for each operation': (
        calculator.make_block(4),
        [7, ('+', 1, ('/', 2, 0)), ('*', ('-', 1, 2), 3)],
        {'digit', *'+-*/', 'sign'},
    ),
    'a tracker beside the stack': (
        spinn.make_block(4, 3),
        [*map(spinn.parsed, LISTS)],
        {'embed', 'leaf', 'compose', 'track', 'answer'},
    ),
    'a module for each name that occurs': (
        module_network.make_block(3),
        QUESTIONS,
        {'see', 'is', *(w for x in QUESTIONS for w in module_network.words(x.layout))},
    ),
    'shares of right symbols': (
        tree_decoder.make_block(4),
        ['a', ('+', 'b', ('*', 'c', 'd'))],
        {'embed', 'fold', 'unfold', 'say'},
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
def test_models_give_together_what_they_give_one_by_one(name: str) -> None:
    """Metrics aside; and their layers are those that occur."""
    block, examples, layers = MODELS[name]
    model = jf.compile(block, like=examples if isinstance(block, jf.Lazy) else None)
    params = model.init(jax.random.key(0))
    rows = model.apply(params, model.schedule(examples))
    expected: Any = [model.eval(example, params) for example in examples]
    if isinstance(rows, tuple):
        rows, expected = rows[0], [result for result, _ in expected]
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)
    assert set(params) == layers


# ---- names ---------------------------------------------------------------------------


def test_names_in_an_archive(tmp_path: Path) -> None:
    """Text files alone; blanks and empty lines are none."""
    files = {'x/Irish.txt': "O'Neill \n\nDé\n", 'x/notes': 'none', 'Dutch.txt': 'Ek'}
    with tarfile.open(tmp_path / 'names.tar.gz', 'w:gz') as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    assert list(names.read_names(tmp_path / 'names.tar.gz')) == [
        *(('Irish', "O'Neill"), ('Irish', 'Dé'), ('Dutch', 'Ek'))
    ]


def test_names_are_split_without_their_copies() -> None:
    """By the seed alone; one name may be of two languages."""
    pairs = [(language, f'name {n}') for n in range(10) for language in ('b', 'a')]
    task = names.make_task(pairs * 2, seed=3)
    assert task.languages == ['a', 'b']
    assert (len(task.train), len(task.held_out)) == (16, 4)
    both = [*task.train, *task.held_out]
    assert len({(*name, language) for name, language in both}) == 20
    assert task == names.make_task(pairs[::-1], seed=3)
    assert task != names.make_task(pairs, seed=4)


# ---- calculator ----------------------------------------------------------------------


def test_values_are_those_of_python() -> None:
    """Division is rounded down; by zero it is zero."""
    assert calculator.evaluate(('/', ('-', 2, 9), 2)) == -4
    assert calculator.evaluate(('/', 8, ('-', 3, 3))) == 0
    assert calculator.evaluate(('+', ('*', 3, 4), 5)) == 17
    signs = [calculator.SIGNS[calculator.sign(x)] for x in (-7, 0, 2)]
    assert signs == ['negative', 'zero', 'positive']


# ---- plain Python --------------------------------------------------------------------


def test_lists_have_values() -> None:
    """Medians are one of the numbers."""
    item = 'min', ('med', 4, 9, ('max', 1, 5, 0)), 7
    assert (spinn.evaluate(item), spinn.depth_of(item)) == (5, 3)
    assert spinn.evaluate(('med', 4, 9)) == 9


def test_transitions_parse_lists() -> None:
    """One state remains, of all tokens in their order."""
    parts = spinn.make_parts(30, seed=0)
    assert [len(part.items) for part in parts.values()] == [30, 1000, 1000]
    for sentence in parts['train'].items:
        buffer, stack = sentence.tokens[::-1], list[list[int]]()
        for transition in sentence.transitions:
            if transition == spinn.SHIFT:
                stack.append([buffer.pop()])
            else:
                right = stack.pop()
                stack[-1] = stack[-1] + right
        assert (stack, buffer) == ([sentence.tokens], [])


# ---- server --------------------------------------------------------------------------


def test_the_server_compiles_before_the_first_request() -> None:
    """Whatever comes, alone or together; and answers as the twin does."""
    service = server.make_service(seed=0)
    model, params = service.model, service.params
    assert isinstance(model, jf.Model)
    tree = [1, [2, [3, 4]]]
    expected = model.eval(tree, params)
    with server.serving(service) as port, compilations('') as compiled:
        assert '8 clients' in server.measure(service, port, requests=16, seed=0)
        with server.Client(port) as client:
            status, answer = client.post('[1, [2, [3, 4]]]')
        bad = server.misuse(port).splitlines()
    assert (compiled, model.programs, status) == ([], 2, 200)
    np.testing.assert_allclose(answer['logits'], expected, rtol=1e-4, atol=1e-6)
    assert [each.partition(':')[0] for each in bad] == ['400'] * 3
    assert bad[0].startswith('400: example 0, at [1][1]: expected ints from 0 to 99')
    assert bad[1].startswith('400: example 0, at [1]: expected one of the keys')


def test_the_server_of_a_file(tmp_path: Path) -> None:
    """It answers as the model does, and refuses trees without room."""
    server.main(['--save', str(tmp_path / 'model')])
    service = server.load_service(str(tmp_path / 'model'))
    model, params = server.make_model(seed=0)
    expected = model.eval([1, [2, 3]], params)
    large: list[Any] = [0, 1]
    for _ in range(600):
        large = [large, 2]
    with server.serving(service) as port, server.Client(port) as client:
        assert 'over HTTP' in server.show(service, port, requests=16, seed=0)
        status, answer = client.post('[1, [2, 3]]')
        refused, error = client.post(str(large))
    assert (status, refused) == (200, 503)
    np.testing.assert_allclose(answer['logits'], expected, rtol=1e-4, atol=1e-6)
    assert error['error'].startswith('expected a batch that fits a capacity')


@pytest.mark.slow
def test_the_server_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The quick run; a tree without room has a program of its own."""
    with pytest.warns(RuntimeWarning, match='compiled the step for it too'):
        server.main(['--quick'])
    out = capsys.readouterr().out
    assert 'programs compiled meanwhile: 0\n' in out
    assert '3 programs in all' in out
