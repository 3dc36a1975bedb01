# SPDX-License-Identifier: Apache-2.0
"""What models, programs and schedules print."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shown import EXAMPLES, small_model

import jfold as jf


@pytest.fixture(name='model', scope='module')
def model_of_trees() -> jf.Model:
    return small_model()


def test_a_model_prints_its_result_and_layers(model: jf.Model) -> None:
    assert str(model) == 'Model((float32[4], void), layers: embed, cell)'
    assert str(jf.compile(jf.Scalar())) == 'Model(float32[], layers: none)'


def test_a_program_prints_its_operations_and_source(model: jf.Model) -> None:
    """Which is as that of `docs/source.md`."""
    operations = (
        'operations\n  0: embed(int32[]) -> float32[4]\n'
        '  1: cell(float32[4], float32[4]) -> float32[4]\n\n'
    )
    text = str(model.program)
    assert text == operations + str(model.program.source)
    assert model.explain() == text


def test_the_source_of_loops_is_the_same_in_every_process() -> None:
    """Nothing that it is given prints with its address."""
    numbers = jf.Map(jf.Scalar())
    text = str(jf.compile(numbers >> jf.Fold(jnp.add, jf.Zeros([]))).program)
    assert 'for ' in text and '0x' not in text
    text = str(jf.compile(numbers >> jf.Reduce(jnp.maximum) >> (lambda x: x)).program)
    assert 'def ' in text and '0x' not in text


def columns(text: str, count: int) -> list[list[str]]:
    """The first cells of each line of a table."""
    return [re.split(r' {2,}', line)[:count] for line in text.splitlines()]


def test_explain_a_schedule(model: jf.Model) -> None:
    text = model.explain(model.schedule(EXAMPLES))
    summary, operations, levels, memory = text.split('\n\n')
    assert re.fullmatch(
        r'3 examples, 13 nodes, depth 4, built in [\d.]+ m?s; programs so far: 1',
        summary,
    )
    assert columns(operations, 3) == [
        ['operation', 'nodes', 'capacity'],
        ['embed(int32[]) -> float32[4]', '8', '128'],
        ['cell(float32[4], float32[4]) -> float32[4]', '5', '128'],
    ]
    assert levels == (
        'level  embed  cell\n'
        '1          8     .\n'
        '2          .     2\n'
        '3          .     2\n'
        '4          .     1'
    )
    assert columns(memory, 2)[:3] == [
        ['buffer of', 'constants'],
        ['int32[]', '128'],
        ['float32[4]', '0'],
    ]
    residuals, together, indices = memory.splitlines()[-3:]
    # Products of five rows [4] with room for 128 and two tiles of 128.
    assert residuals == 'residuals of training (save products): 6.14 kB'
    assert re.fullmatch(r'together: [\d.]+ kB, in training [\d.]+ kB', together)
    assert re.fullmatch(r'indices: [\d.]+ k?B', indices)


def test_explain_without_a_gradient() -> None:
    """What training takes is not told of a function that cannot be trained."""

    def called(p: Any, x: Any) -> Any:
        spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(np.sin, spec, p * x, vmap_method='sequential')

    model = jf.compile(jf.Vector(2) >> jf.Function(called, lambda key, x: jnp.ones(2)))
    memory = model.explain(model.schedule([[1, 2]])).split('\n\n')[3]
    assert 'residuals' not in memory


def test_explain_leaves_out_the_middle_of_many_levels(model: jf.Model) -> None:
    chain: Any = 1
    for _ in range(30):
        chain = (chain, 2)
    text = model.explain(model.schedule([chain]))
    levels = text.split('\n\n')[2].splitlines()
    assert [line.split()[0] for line in levels] == [
        'level', *map(str, range(1, 7)), '...', *map(str, range(26, 32))
    ]  # fmt: skip


def test_operations_of_one_name_are_told_apart() -> None:
    """A sum has one for two items, for four and for eight."""
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    _, _, levels, _ = model.explain(model.schedule([[1, 2, 3]])).split('\n\n')
    assert levels.split()[:4] == ['level', 'add/2', 'add/4', 'add/8']


def test_explain_a_schedule_without_operations() -> None:
    model = jf.compile(jf.Scalar())
    summary, operations, levels, _ = model.explain(model.schedule([1, 2])).split('\n\n')
    assert summary.startswith('2 examples, 0 nodes, depth 0, built in ')
    assert len(operations.splitlines()) == len(levels.splitlines()) == 1
