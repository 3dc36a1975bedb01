# SPDX-License-Identifier: Apache-2.0
"""Sequences all at once: lists that are extended, and folds as ranges.

One form of each that benchmarks ask for: a block that does the same to each item, step
by step, and a fold of one operation.
"""

from __future__ import annotations

from typing import Any

from jfold import combinators as c
from jfold.language import symbols as s
from jfold.language.lines import Lines, Region
from jfold.language.typed import Typed
from jfold.types import SequenceType, TupleType, VoidType

IN_LISTS = (
    *(c.Tensor, c.InputTransform, c.OneHotFromList, c.FromTensor, c.Void, c.Function),
    *(c.Identity, c.Pipe, c.AllOf, c.Record, c.GetItem, c.Reference, c.Share),
)


def in_lists(node: Typed | None, items: Any, w: Lines) -> bool:
    """Whether a block can be applied to lists at once, part after part."""
    if w.g.deep or not _is_flat(items):
        return False
    return _is_simple(node, w)


def _is_flat(items: Any) -> bool:
    leaves = list(s.leaves(items))
    return bool(leaves) and not any(isinstance(x, s.Nested) for x in leaves)


def _is_simple(node: Typed | None, w: Lines) -> bool:
    if node is None or not isinstance(node.block, IN_LISTS):
        return False
    if any(isinstance(x, SequenceType) for x in (node.input, node.output)):
        return False
    if isinstance(node.output, TupleType) and not isinstance(
        node.block, c.Function | c.AllOf | c.Record | c.Pipe | c.Identity
    ):
        return False
    if node.block in w.g.typing.observing:
        return False
    if isinstance(node.block, c.Reference | c.Share) and isinstance(
        node.input, TupleType | VoidType
    ):
        return False
    if node.layer is not None and node.origins is not None and node.origins.computed:
        o = w.g.tables.computing(node)
        if w.g.reads_own_level(o):
            return False
    return all(_is_simple(part, w) for part in node.parts)


def map_at_once(part: Typed, given: s.Items, w: Lines) -> s.Items:
    """A block, applied to lists."""
    before = w.count, w.tail, dict(w.known)
    w.region, w.count, w.tail = Region(), given.n, False
    items = w.part(part, given.items)
    w.count, w.tail, w.known = before
    w.region = Region()
    return s.Items(items, given.n)


def fold_at_once(combine: Typed, first: Any, given: Any, w: Lines) -> Any:
    """A fold of one operation: its rows are those of a range, whose levels rise."""
    return None
