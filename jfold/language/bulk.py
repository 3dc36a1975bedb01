# SPDX-License-Identifier: Apache-2.0
"""Sequences all at once: lists that are extended.

One form, which benchmarks ask for: a block that does the same to each item, step by
step. Rows stay in the order of evaluation, item after item, so nothing that makes rows
may be met twice on the way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.lines import Lines
from jfold.language.tapes import Region
from jfold.language.typed import Typed
from jfold.types import KeyType, ObjectType, SequenceType, TensorType

IN_LISTS = (
    *(b.Tensor, b.InputTransform, b.OneHotFromList, b.FromTensor, b.Void, b.Function),
    *(b.Identity, b.Pipe, b.AllOf, b.Record, b.GetItem, b.Reference, b.Share),
)


def in_lists(node: Typed, items: Any, w: Lines) -> bool:
    """Whether a block can be applied to lists at once, part after part."""
    leaves = list(s.leaves(items))
    if not leaves or any(isinstance(x, s.Nested) for x in leaves):
        return False
    once, again = list[Typed](), list[Typed]()
    for each in _reached([node], again):
        if not _is_simple(each, w):  # what is inside is not looked at
            return False
        once.append(each)
    made = [x for each in once for x in _makers(each, w)]
    if len({*made}) != len(made) or any(_made_again(again, w)):
        return False
    return len(made) == 1 or not any(isinstance(x, b.Reference) for x in made)


def _reached(nodes: Iterable[Typed], again: list[Typed]) -> Iterator[Typed]:
    """What is evaluated of blocks, each once; what is met `again` is put there."""
    found, waiting = set[Typed](), [*nodes]
    while waiting:
        node = waiting.pop()
        if node in found:
            again.append(node)
            continue
        found.add(node)
        yield node
        if not isinstance(node.block, b.Reference | b.Share):
            waiting += [each for each in node.parts if each is not None]


def _made_again(again: Iterable[Typed], w: Lines) -> Iterator[Hashable]:
    """What makes rows in what is met again."""
    for node in _reached(again, []):
        yield from _makers(node, w)


def _is_simple(node: Typed, w: Lines) -> bool:
    """Whether a block is, apart from what is inside."""
    if not isinstance(node.block, IN_LISTS) or None in node.parts:
        return False
    if any(isinstance(x, SequenceType) for x in (node.input, node.output)):
        return False
    if node.observes or node.draws:
        return False
    if isinstance(node.block, b.Reference | b.Share):
        is_plain = isinstance(node.input, ObjectType | TensorType)
        is_tensor = isinstance(node.output, TensorType)
        return is_plain and is_tensor and not w.g.deep
    o = _computing(node, w)
    return o is None or not w.g.reads_own_level(o)


def _computing(node: Typed, w: Lines) -> int | None:
    """The operation that is applied."""
    if node.layer is None or node.origins is None or not node.origins.computed:
        return None
    return w.g.tables.computing(node)


def _makers(node: Typed, w: Lines) -> Iterator[Hashable]:
    """What makes rows in a block itself; calls."""
    block = node.block
    if isinstance(block, b.Reference):
        yield block
    elif isinstance(block, b.Share):
        yield node.parts[0] and node.parts[0].block
    elif isinstance(block, b.Tensor):
        yield block.type, block.below
    elif (o := _computing(node, w)) is not None:
        assert node.layer is not None
        yield w.g.chosen.number.get(o, o) if o not in w.g.inside else object()
        yield from map(KeyType, node.layer.rngs)


def map_at_once(part: Typed, given: s.Items, w: Lines) -> s.Items:
    """A block, applied to lists."""
    before = w.count, w.tail, dict(w.known)
    w.region, w.count, w.tail = Region(), given.n, False
    items = w.part(part, given.items)
    w.count, w.tail, w.known = before
    w.region = Region()
    return s.Items(items, given.n)
