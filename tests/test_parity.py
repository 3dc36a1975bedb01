# SPDX-License-Identifier: Apache-2.0
"""Each block of TensorFlow Fold: its types, values, edges and errors, as said there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import pytest
from agreement import agree
from checking import refuses, same
from parity import composition, sequences, tensors
from parity.common import Row

import jfold as jf

FAMILIES = [tensors, composition, sequences]
ROWS = [row for family in FAMILIES for row in family.ROWS]
ERRORS = [
    pytest.param(*each, id=f'{row.name}-{i}')
    for row in ROWS
    for i, each in enumerate(row.refused)
]

# All that Fold calls a block or a layer.
NAMES = """
    Tensor Scalar Vector InputTransform SerializedMessageToTree OneHot OneHotFromList
    Optional Composition Pipe Record AllOf FromTensor Function Concat Zeros Map Fold RNN
    Reduce Sum Min Max Mean Broadcast Zip ZipWith NGrams Nth GetItem Length Slice
    ForwardDeclaration OneOf Metric Identity Void FC Embedding FractalNet ScopedLayer
""".split()
# What takes its place is in docs/from-fold.md.
NOT_HERE = {'SerializedMessageToTree', 'FractalNet', 'ScopedLayer'}


def name(row: Row) -> str:
    return row.name


def test_every_block_has_a_row() -> None:
    assert {row.name.partition(' ')[0] for row in ROWS} == {*NAMES} - NOT_HERE
    assert all(row.values and row.refused for row in ROWS)


@pytest.mark.parametrize('row', ROWS, ids=name)
def test_types(row: Row) -> None:
    found = str(row.alone.input_type), str(row.alone.output_type)
    assert found == row.types


@pytest.mark.parametrize('row', ROWS, ids=name)
def test_values(row: Row) -> None:
    params = jf.compile(row.block).init(jax.random.key(0))
    for example, want in row.values + row.edges:
        same(row.block.eval(example, params), want)


@pytest.mark.parametrize(('run', 'error', 'message'), ERRORS)
def test_what_is_refused(
    run: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with refuses(message, error):
        run()


@pytest.mark.parametrize('family', FAMILIES, ids=lambda family: family.__name__)
def test_compiled_values_and_gradients_are_those_of_the_twin(family: Any) -> None:
    model = jf.compile(jf.Record(tuple(row.block for row in family.ROWS)))
    given = [[x for x, _ in row.values + row.edges] for row in family.ROWS]
    size = max(map(len, given))
    columns = [list(itertools.islice(itertools.cycle(x), size)) for x in given]
    batch = list(zip(*columns, strict=True))
    agree(model, model.init(jax.random.key(0)), batch, forward=True)
