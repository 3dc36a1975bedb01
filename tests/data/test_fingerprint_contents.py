# SPDX-License-Identifier: Apache-2.0
"""What data say in a fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jfold as jf
from jfold.data.fingerprint import contents, differences, fingerprint


def endless() -> list[Any]:
    """A list that contains itself."""
    result: list[Any] = [1]
    result.append(result)
    return result


def test_contents_of_deep_and_large_data() -> None:
    """Depth is no matter, nor is what contains itself."""
    deep: Any = 1
    for _ in range(20_000):
        deep = [deep]
    assert contents(deep) != contents([deep])
    assert contents(endless()) == contents(endless())
    assert contents({i: str(i) for i in range(1000)}) != contents(
        {i: str(i) for i in range(1001)}
    )
    assert contents('\ud800') != contents('\ud801')


def test_contents_tell_where_things_are() -> None:
    """Nesting and order count."""
    values = [[1, 2], [[1, 2]], [[1], 2], [1, [2]], [2, 1], [1, 2, []], [], [[]], 1]
    assert len({contents(value) for value in values}) == len(values)
    assert contents(1, [2]) != contents([1, 2])
    assert contents([1], [1]) != contents([1])


def test_shared_and_equal_parts_are_the_same() -> None:
    """Containers count by what is in them."""
    part = [[1], {2: [3]}]
    assert contents([part, part]) == contents([part, [[1], {2: [3]}]])


class Words:
    """A vocabulary as an object."""

    def __init__(self, known: dict[str, int]) -> None:
        self.known = known

    def __call__(self, word: str) -> int:
        return self.known[word]

    def get(self, word: str) -> int:
        """The number of a word."""
        return self.known.get(word, 0)


def test_data_of_objects_count() -> None:
    """A vocabulary is told by its words, called or through a method."""

    def of(words: Words) -> list[dict[str, Any]]:
        keys = (words, words.get)
        blocks = [jf.InputTransform(fn) >> jf.Scalar('int32') for fn in keys]
        return [fingerprint(jf.compile(block).program) for block in blocks]

    same, other = of(Words({'a': 1})), of(Words({'a': 5}))
    assert same == of(Words({'a': 1}))
    assert all(map(differences, same, other))


def test_functions_of_modules_of_ones_own_count(tmp_path: Path) -> None:
    """What a helper of another file says matters; an installed one is told by name."""
    found = []
    for text in ('return 1', 'return 2', 'return 1'):
        scope: dict[str, Any] = {}
        code = f'def number(word):\n    {text}\n'
        exec(compile(code, str(tmp_path / 'helper.py'), 'exec'), scope)
        names = {'number': scope['number']}
        exec('def look(word):\n    return number(word)\n', names)
        block = jf.InputTransform(names['look']) >> jf.Scalar('int32')
        found.append(fingerprint(jf.compile(block).program))
    assert found[0] == found[2]
    assert differences(found[0], found[1])
