# SPDX-License-Identifier: Apache-2.0
"""The check that an expression's value can be returned as tables of rows.

Tensors outside sequences have one row an example. The items of each sequence are a
result of their own, with rows example by example, in order. The row that a sequence is
in holds the length of the sequence:

    (float32[], [(int32[], [float32[2]])])     float32[], int32[]     per example
                                               int32[], int32[]       per item
                                               float32[2]             per item of items
"""

from __future__ import annotations

from collections.abc import Collection

from jfold.language.paths import fail
from jfold.language.typed import TypedUse
from jfold.program.result_tables import nesting
from jfold.types import (
    BroadcastType,
    SequenceType,
    TensorType,
    Type,
    count_leaves,
    leaf_types,
)

MOST_TENSORS = 1 << 16  # each is an array of its own, and a line of the program
EXPECTED = 'a result of tensors, in tuples and sequences'


def check_output(root: TypedUse, metrics: Collection[str]) -> None:
    """Raise TypeError unless an expression's value is tensors or, with metrics, void.

    The tensors may be in tuples and sequences, at most `MOST_TENSORS` per row.
    """
    if not metrics and not any(leaf_types(root.output)):
        hint = 'end with tensors, or collect them by a Metric'
        fail(root, 'a result of tensors, or a Metric', str(root.output), hint)
    for number, level in enumerate(nesting(root.output)):
        if (count := count_leaves(level)) > MOST_TENSORS:
            hint = 'take what is wanted by GetItem or a Function'
            limit = f'a result of at most {MOST_TENSORS:,} tensors'
            fail(root, limit, f'{count:,}', hint)
        for leaf in leaf_types(level):
            if hint := _why_no_result(leaf, inside=bool(number)):
                fail(root, EXPECTED, str(root.output), hint)


def _why_no_result(leaf: Type, inside: bool) -> str:
    """Return advice on a leaf of a result, `inside` a sequence; '' if it may be one."""
    if isinstance(leaf, TensorType):
        return ''
    if isinstance(leaf, SequenceType):
        empty = not any(leaf_types(leaf.item))
        return 'drop what a sink leaves by `>> Void()`' if empty else ''
    if isinstance(leaf, BroadcastType):
        return 'put it beside a sequence, by ZipWith'
    if inside:
        return 'make tensors of the items, as `Map(Scalar())` does'
    return 'end with Scalar, Vector, Tensor or a Function'
