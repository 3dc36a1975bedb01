# SPDX-License-Identifier: Apache-2.0
"""What data say in a fingerprint, and fingerprints of other versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from binary_trees import tree_block
from fingerprinted import adder, number, of

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


# ---- other versions ------------------------------------------------------------------

FUNCTION = 'in Pipe[0].InputTransform(function)'


def test_code_of_another_python_is_not_compared() -> None:
    """What functions hold besides is."""
    saved = of(number(adder(1))) | {'python': '3.10'}
    saved['functions'] = [
        [text, 'other', place] for text, _, place in saved['functions']
    ]
    assert differences(saved, of(number(adder(1)))) == []
    assert differences(saved, of(number(lambda number: number + 1))) != []
    assert differences(saved, of(number(adder(2)))) == [
        f'a different `function = <lambda>` {FUNCTION}'
    ]


def test_graphs_of_another_format() -> None:
    """Nothing else is compared then."""
    current = of(tree_block(4))
    assert differences({'format': 0}, current) == ['graphs of format 0, not 4']
    assert differences({}, current) == ['graphs of format None, not 4']


def test_graphs_of_a_sum_are_of_no_other_function() -> None:
    """In the reverse a sum leaves nothing, where another function leaves cotangents."""

    def model(fn: Callable[..., Any]) -> jf.Model:
        twice = jf.Vector(2) >> jf.AllOf(jf.Identity(), jf.Identity())
        return jf.compile(twice >> jf.Function(fn, name='add'))

    plain, summed = model(lambda a, b: a + b), model(jnp.add)
    found = differences(fingerprint(plain.program), fingerprint(summed.program))
    assert any(', a sum' in line for line in found)
    for one, other in ((plain, summed), (summed, plain)):
        with pytest.raises(ValueError, match='got those of another'):
            other.join([one.tracer()([[1.0, 2.0]])])
