# SPDX-License-Identifier: Apache-2.0
"""Each block of TensorFlow Fold: its types, values, edges and errors, as said there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from agreement import agree
from checking import refuses, same
from parity import composition, sequences, tensors
from parity.common import Row

import jfold as jf

ROOT = Path(__file__).parents[2]
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
# All else that it makes public.
OTHERS = """
    TensorType VoidType PyObjectType TupleType SequenceType BroadcastSequenceType
    Compiler eval max_depth Plan TrainPlan EvalPlan InferPlan define_plan_flags
    plan_default_params convert_to_block convert_to_type canonicalize_type
    EdibleIterator group_by_batches epochs parse_spec build_optimizer_from_params
    create_variable_scope IOBase Layer ResultType TypeShape LoomOp PassThroughLoomOp
    Loom Weaver for_each_terminal terminal_types flatten unflatten size input_type
    output_type set_input_type set_output_type infer_output_type reads connect scope
    resolve_to build_feed_dict build_loom_inputs build_loom_input_batched
    multiprocessing_pool init_loom is_loom_initialized input_tensor loom_input_tensor
    output_tensors metric_tensors parallel_iterations back_prop swap_memory
""".split()
# What takes its place is in docs/from-fold.md.
NOT_HERE = {'SerializedMessageToTree', 'FractalNet', 'ScopedLayer'}


def name(row: Row) -> str:
    return row.name


def test_every_block_has_a_row() -> None:
    assert {row.name.partition(' ')[0] for row in ROWS} == {*NAMES} - NOT_HERE
    assert all(row.values and row.refused for row in ROWS)


def test_the_way_from_fold_has_every_name() -> None:
    text = (ROOT / 'docs' / 'from-fold.md').read_text(encoding='utf8')
    shown = set(re.findall(r'\w+', ' '.join(re.findall(r'`([^`]+)`', text))))
    assert {*NAMES, *OTHERS} <= shown


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
