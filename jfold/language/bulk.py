# SPDX-License-Identifier: Apache-2.0
"""Sequences all at once: lists that are extended, and folds as ranges.

One form of each that benchmarks ask for: a block that does the same to each item, step
by step, and a fold of one operation. Rows stay in the order of evaluation, item after
item: so nothing that makes rows may be met twice on the way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from jfold import combinators as c
from jfold.language import symbols as s
from jfold.language.lines import Lines, Region
from jfold.language.typed import Typed
from jfold.types import KeyType, ObjectType, SequenceType, TensorType, TupleType

IN_LISTS = (
    *(c.Tensor, c.InputTransform, c.OneHotFromList, c.FromTensor, c.Void, c.Function),
    *(c.Identity, c.Pipe, c.AllOf, c.Record, c.GetItem, c.Reference, c.Share),
)


def in_lists(node: Typed, items: Any, w: Lines) -> bool:
    """Whether a block can be applied to lists at once, part after part."""
    leaves = list(s.leaves(items))
    if not leaves or any(isinstance(x, s.Nested) for x in leaves):
        return False
    if not _is_simple(node, w):
        return False
    made = list(_makers(node, w))
    calls = [x for x in made if isinstance(x, c.Reference)]
    return len({*made}) == len(made) and (not calls or len(made) == 1)


def _is_simple(node: Typed | None, w: Lines) -> bool:
    if node is None or not isinstance(node.block, IN_LISTS):
        return False
    if any(isinstance(x, SequenceType) for x in (node.input, node.output)):
        return False
    if node.observes or node.draws:
        return False
    if isinstance(node.block, c.Reference | c.Share):
        is_plain = isinstance(node.input, ObjectType | TensorType)
        is_tensor = isinstance(node.output, TensorType)
        return is_plain and is_tensor and not w.g.deep
    if (o := _computing(node, w)) is not None and w.g.reads_own_level(o):
        return False
    return all(_is_simple(part, w) for part in node.parts)


def _computing(node: Typed, w: Lines) -> int | None:
    """The operation that is applied."""
    if node.layer is None or node.origins is None or not node.origins.computed:
        return None
    return w.g.tables.computing(node)


def _makers(node: Typed | None, w: Lines) -> Iterator[Hashable]:
    """What makes rows, as often as it is met; calls."""
    assert node is not None
    block = node.block
    if isinstance(block, c.Reference):
        yield block
    elif isinstance(block, c.Share):
        yield node.parts[0] and node.parts[0].block
    elif isinstance(block, c.Tensor):
        yield block.type, block.below
    elif (o := _computing(node, w)) is not None:
        assert node.layer is not None
        yield w.g.chosen.number.get(o, o) if o not in w.g.inside else object()
        yield from map(KeyType, node.layer.rngs)
    else:
        for part in node.parts:
            yield from _makers(part, w)


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


__all__ = ['TupleType', 'fold_at_once', 'in_lists', 'map_at_once']
