# SPDX-License-Identifier: Apache-2.0
"""Functions told by their source, as those of notebooks are in files of models."""

from __future__ import annotations

import linecache
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from checking import refuses

import jfold as jf
from jfold.data.by_source import made_of, said_of
from jfold.data.fingerprint import contents

LIMIT = 3


def limited(x: int, least: int = 0, *, most: int = 5) -> int:
    """Uses a global, and has defaults."""
    return min(max(x, least), most, LIMIT)


def factorial(x: int) -> int:
    return x * factorial(x - 1) if x else 1


def closing(by: int) -> Callable[[int], int]:
    def times(x: int) -> int:
        return x * by

    return times


def local_recursion() -> Callable[[int], int]:
    def inner(x: int) -> int:
        return 1 + inner(x - 1) if x else 0

    return inner


def decorated(fn: Callable[[int], int]) -> Callable[[int], int]:
    def wrapper(*args: int) -> int:
        return fn(*args) + 1

    return wrapper


@decorated
def behind_a_decorator(x: int) -> int:
    return [y + x for y in range(3)][-1]


def storing(x: int) -> int:
    def inside() -> None:
        global LIMIT  # noqa: PLW0603
        LIMIT = x

    inside()
    return x


two_in_a_line = (lambda x: x + 1), (lambda x: x + 2)


@pytest.mark.parametrize(
    'fn',
    [
        limited,
        factorial,
        closing(7),
        local_recursion(),
        behind_a_decorator,
        *two_in_a_line,
        lambda x, *more, by=2: math.sqrt(x) * by + sum(more),
    ],
)
def test_what_is_made_again_is_the_same(fn: FunctionType) -> None:
    said = said_of(fn)
    made = made_of(*said)
    assert contents(made) == contents(fn)
    assert made.__name__ == fn.__name__
    assert [made(x) for x in range(6)] == [fn(x) for x in range(6)]
    assert '@' not in said[0]
    assert ': int' not in said[0]


def test_to_make_one_runs_nothing() -> None:
    """Whatever stands in the text besides the function."""
    given = 'one', None, None, (), (), {}, {}, ()
    made = made_of('@undefined\ndef one(x: undefined = undefined): return x', *given)
    assert made(3) == 3
    for text in ('undefined()', 'x = 1', 'def one(): 0\ndef two(): 0', ''):
        with refuses('expected the text of a function, got another', ValueError):
            made_of(text, *given)


def test_what_source_does_not_tell() -> None:
    with refuses('which changes its module', ValueError):
        said_of(storing)
    names: dict[str, Any] = {}
    exec('def unknown(x): return x', names)
    with refuses('whose source is not known', ValueError):
        said_of(names['unknown'])
    linecache.cache['<old>'] = 0, None, ['def unknown(x): return x + 1\n'], '<old>'
    exec(compile('def unknown(x): return x', '<old>', 'exec'), names)
    with refuses('which is not as its source says now', ValueError):
        said_of(names['unknown'])


# ---- in files of models --------------------------------------------------------------

CELLS = [
    """
import jfold as jf
import numpy as np

WORDS = {'a': 1, 'b': 2}


def of_word(word, *, default: int = 9):
    return np.int32(WORDS.get(word, default))


class Node:
    pass
""",
    """
# Another cell, in which `depth` calls itself.
def depth(x):
    return 1 + max(map(depth, x), default=0) if isinstance(x, tuple) else 0


kind = lambda x: type(x).__name__
number = jf.OneOf(kind, {
    'str': jf.InputTransform(of_word) >> jf.Scalar('int32'),
    'tuple': jf.InputTransform(lambda x: depth(x) + of_word('a')) >> jf.Scalar('int32'),
})
""",
]


def run(*cells: str) -> dict[str, Any]:
    """The names that cells of a notebook define, whose text IPython keeps like this."""
    names: dict[str, Any] = {'__name__': '__main__'}
    for number, text in enumerate(cells):
        file = f'/tmp/ipykernel_1/{hash(cells)}{number}.py'
        linecache.cache[file] = len(text), None, text.splitlines(True), file
        exec(compile(text, file, 'exec'), names)
    return names


def test_a_model_of_a_notebook(tmp_path: Path) -> None:
    """It predicts where the notebook is not."""
    model = jf.compile(jf.Map(run(*CELLS)['number']) >> jf.Sum())
    data = [['a', 'z'], [((), ()), 'b']]
    want = model.predict({}, data)
    assert want.tolist() == [10, 5]
    path = tmp_path / 'model.jfold'
    jf.save(path, model, {}, model.trace(data).capacities(2))
    assert jf.load(path).predict(data).tolist() == want.tolist()
    code = (
        f'import jfold as jf; loaded = jf.load({str(path)!r}); '
        f'print(loaded.predict({data!r}).tolist())'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True
    )
    assert done.stdout == '[10, 5]\n'


def test_what_a_notebook_has_that_cannot_be_written(tmp_path: Path) -> None:
    names = run(*CELLS, 'node = Node()\nfn = lambda x: node')
    block = jf.InputTransform(names['fn']) >> jf.OneOf(
        type, {names['Node']: jf.Zeros([])}
    )
    model = jf.compile(block)
    room = model.trace([1]).capacities(1)
    with pytest.raises(TypeError) as caught:
        jf.save(tmp_path / 'm', model, {}, room)
    message = str(caught.value)
    assert 'got: an object of __main__.Node, in `<lambda>` of Pipe[0].Input' in message
    assert '; `Node` of the program that runs, `__main__`, in Pipe[1].OneOf' in message
    assert message.endswith(
        'Define such functions and classes at the top of a module that can be imported'
    )


def test_other_data_than_a_function_was_saved_with(tmp_path: Path) -> None:
    """A file has its own, which nothing here changes."""
    names = run(*CELLS)
    model = jf.compile(names['number'])
    room = model.trace(['a']).capacities(1)
    jf.save(tmp_path / 'm', model, {}, room)
    names['WORDS']['a'] = 100
    np.testing.assert_array_equal(jf.load(tmp_path / 'm').predict(['a']), [1])
    np.testing.assert_array_equal(model.predict({}, ['a']), [100])
