# SPDX-License-Identifier: Apache-2.0
"""Errors of examples, in notebooks: the example as a tree, the bad value marked."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from shown import html, read, small_model, words

import jfold as jf

SHELL = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config, colors='nocolor')
shell.run_cell('import jfold as jf; m = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())')
for types in ['text/html', 'text/plain'], ['text/plain']:
    shell.display_formatter.active_types = types
    shell.execution_count = 1
    with capture_output() as out:
        shell.run_cell('m.schedule([[1, 2], [3, "x"]])', store_history=True)
    print([sorted(x.data) for x in out.outputs])
    print([x for x in out.stdout.splitlines() if x])
"""


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Node:
    value: Any
    children: Any


def error_of(model: Any, *examples: Any) -> jf.InputError:
    with pytest.raises(jf.InputError) as raised:
        model.schedule([*examples])
    return raised.value


def marked(error: jf.InputError) -> str:
    root = read(html(error))
    outer = [x for x in root.iter() if any('jf-mark' in y.get('class', '') for y in x)]
    (line,) = outer
    return words(line)


def test_the_bad_value_is_marked_on_its_way() -> None:
    error = error_of(small_model(), (1, 2), ((3, 4), ((5, 'six'), 7)))
    assert error.data == (((3, 4), ((5, 'six'), 7)),)
    root = read(html(error))
    assert marked(error) == "[1] 'six'"
    opened = [words(x[0]) for x in root.iter('details') if x.get('open') == 'open']
    assert opened == ['(…, …)', '[1] (…, 7)', "[0] (5, 'six')"]
    closed = [words(x[0]) for x in root.iter('details') if x.get('open') is None]
    assert closed == ['[0] (3, 4)']
    shown = words(root)
    assert 'example 1, at [1][0][1]' in shown.replace(' · ', ', ')
    assert 'expected one of the keys' in shown
    assert 'What to do: give it a case, or pass `default=`' in shown


SLICED = jf.GetItem(slice(1, 3)) >> jf.Map(jf.Scalar()) >> jf.Sum()


@pytest.mark.parametrize(
    ('block', 'example', 'text'),
    [
        (jf.GetItem('a b') >> jf.Scalar(), {'a b': 'x', 'c': 1}, "['a b'] 'x'"),
        (jf.GetItem('left') >> jf.Scalar(), Pair('x', 1), ".left 'x'"),
        (jf.GetItem('value') >> jf.Scalar(), Node('x', []), ".value 'x'"),
        (jf.Map(jf.Scalar()) >> jf.Sum(), [1.0] * 20 + ['x'], "[20] 'x'"),
        (SLICED, [0, 1, 'x'], "[0, 1, 'x'] what is at [1:3][1] of it"),
        (jf.Scalar(), 'x', "'x'"),
    ],
)
def test_steps_of_all_kinds(block: jf.Block, example: Any, text: str) -> None:
    error = error_of(jf.compile(block), example)
    assert marked(error) == text


def test_the_items_around_a_bad_one_are_cut_short() -> None:
    error = error_of(jf.compile(jf.Map(jf.Scalar()) >> jf.Sum()), [1.0] * 20 + ['x', 2])
    shown = words(read(html(error)))
    assert "[7] 1.0…[20] 'x'… 13 more items" in shown


def test_errors_of_all_calls_have_their_example() -> None:
    block = jf.Map(jf.Scalar()) >> jf.Sum()
    model = jf.compile(block)
    calls: list[Any] = [
        lambda: block.eval([1, 'x']),
        lambda: model.eval([1, 'x']),
        lambda: model.trace([[1]] * 200 + [[1, 'x']], progress=False),
        lambda: next(model.batches([[1, 'x']], 1)),
        lambda: model.predict({}, [[1, 'x']], progress=False),
        lambda: model.tracer()([[1, 'x']]),
    ]
    for call in calls:
        with pytest.raises(jf.InputError) as raised:
            call()
        assert raised.value.data == ([1, 'x'],)
        assert marked(raised.value) == "[1] 'x'"


def test_a_copy_from_elsewhere_has_no_example() -> None:
    error = error_of(jf.compile(jf.Scalar()), 'x')
    for other in pickle.loads(pickle.dumps(error)), copy.copy(error):
        assert str(other) == str(error)
        assert other.data == ()
        shown = words(read(html(other)))
        assert "expected float32[], got 'x'" in shown
    assert error.renumbered(3).data == ('x',)


def test_ipython_shows_the_example_once_above_the_traceback(tmp_path: Path) -> None:
    """A terminal shows the traceback alone."""
    command = [sys.executable, '-c', SHELL]
    env = os.environ | {'PYTHONPATH': str(Path(jf.__file__).parents[1])}
    options: Any = {'capture_output': True, 'cwd': tmp_path, 'env': env}
    done = subprocess.run(command, check=True, text=True, **options)
    shown, printed, *of_terminal = done.stdout.splitlines()[-4:]
    assert shown == "[['text/html', 'text/plain']]"
    assert "InputError: example 1, at [1]: expected float32[], got 'x'" in printed
    assert 'm.schedule' in printed
    assert of_terminal == ['[]', printed]


def test_the_lines_without_ipython() -> None:
    error = error_of(jf.compile(jf.Scalar()), 'x')
    lines = error._render_traceback_()
    assert lines[-2:] == [
        "jfold.base.errors.InputError: example 0: expected float32[], got 'x'; in "
        "Scalar('float32')\n",
        "What to do: look up a number for it before: `InputTransform({'x': 0, ...})`\n",
    ]
