# SPDX-License-Identifier: Apache-2.0
"""A value by levels: what is of no sequence, then the items of each, with lengths."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jfold as jf
from jfold.program.result_tables import nesting
from jfold.types import SequenceType, Type, leaf_types

Rows = list[list[Any]]  # per row its tensors, a sequence's length among them


def tensors_by_level(values: Any) -> list[list[Any]]:
    """What `apply` gives: per level the tensors [rows, *shape]."""
    made, waiting = [], [values]
    for each in waiting:  # which grows meanwhile
        leaves = jax.tree.leaves(each, is_leaf=lambda x: isinstance(x, jf.Ragged))
        ragged = [isinstance(x, jf.Ragged) for x in leaves]
        waiting += [
            x.values for x, is_one in zip(leaves, ragged, strict=True) if is_one
        ]
        pairs = zip(leaves, ragged, strict=True)
        made.append([x.lengths if is_one else x for x, is_one in pairs])
    return made


def rows_by_level(type_: Type, value: Any) -> list[Rows]:
    """What `eval` gives: per level the rows, whose tensors are the objects in there."""
    made, waiting = [], [[value]]
    for level, rows in zip(nesting(type_), waiting, strict=False):
        leaves = [
            jax.tree.leaves(row, is_leaf=lambda x: isinstance(x, list)) for row in rows
        ]
        for k, each in enumerate(leaf_types(level)):
            if isinstance(each, SequenceType):
                waiting.append([item for row in leaves for item in row[k]])
        made.append([[_tensor(x) for x in row] for row in leaves])
    return made


def _tensor(leaf: Any) -> Any:
    return np.int32(len(leaf)) if isinstance(leaf, list) else leaf
