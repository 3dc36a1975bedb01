# SPDX-License-Identifier: Apache-2.0
"""Sequences without a loop: one `extend` of a tape records all items.

    words.extend(items)                     instead of     for item in items: ...

Only for blocks that do the same to every item. Rows have to be recorded in the order of
evaluation, item after item, so no operation may be applied twice to an item.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.lines import Lines
from jfold.language.tapes import Region
from jfold.language.typed import TypedUse
from jfold.types import KeyType, ObjectType, SequenceType, TensorType

IN_LISTS = (
    *(b.Tensor, b.InputTransform, b.OneHotFromList, b.FromTensor, b.Void, b.Function),
    *(b.Identity, b.Pipe, b.AllOf, b.Record, b.GetItem, b.Reference, b.Share),
)


def can_map_lists(node: TypedUse, items: Any, w: Lines) -> bool:
    """Return whether source can run a block on lists of items without a loop."""
    leaves = list(s.leaves(items))
    if not leaves or any(isinstance(x, s.Nested) for x in leaves):
        return False
    nodes, repeated = list[TypedUse](), list[TypedUse]()
    for part in _reached([node], repeated):
        if not _is_simple(part, w):  # its inner blocks are not looked at
            return False
        nodes.append(part)
    makers = [x for part in nodes for x in _makers(part, w)]
    if len({*makers}) != len(makers):
        return False
    # What is evaluated a second time must make no rows, nor must anything inside it.
    if any(x for part in _reached(repeated, []) for x in _makers(part, w)):
        return False
    # A called function may append rows to the same tables as the other uses, whose rows
    # would then be out of order.
    return len(makers) == 1 or not any(isinstance(x, b.Reference) for x in makers)


def _reached(nodes: Iterable[TypedUse], repeated: list[TypedUse]) -> Iterator[TypedUse]:
    """Yield every block use in the trees `nodes` once; append repeats to `repeated`.

    The bodies of functions that the source calls are not entered.
    """
    seen, waiting = set[TypedUse](), [*nodes]
    while waiting:
        node = waiting.pop()
        if node in seen:
            repeated.append(node)
            continue
        seen.add(node)
        yield node
        if not isinstance(node.block, b.Reference | b.Share):
            waiting += [part for part in node.parts if part is not None]


def _is_simple(node: TypedUse, w: Lines) -> bool:
    """Return whether a block, inner blocks aside, can process a whole list at once."""
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


def _computing(node: TypedUse, w: Lines) -> int | None:
    """Return the number of the operation that computes a block's output, if any."""
    if node.layer is None or node.origins is None or not node.origins.computed:
        return None
    return w.g.tables.computing(node)


def _makers(node: TypedUse, w: Lines) -> Iterator[Hashable]:
    """Yield a key for each operation, constant type or call whose rows a block records.

    Inner blocks are left out. Equal keys mean that rows go to the same table.
    """
    block = node.block
    if isinstance(block, b.Reference):
        yield block
    elif isinstance(block, b.Share):
        yield node.parts[0] and node.parts[0].block
    elif isinstance(block, b.Tensor):
        yield block.type, block.below
    elif (o := _computing(node, w)) is not None:
        assert node.layer is not None
        # A fused operation has no rows of its own: its key equals no other.
        yield w.g.chosen.number.get(o, o) if o not in w.g.chosen.inside else object()
        yield from map(KeyType, node.layer.rngs)


def map_lists(part: TypedUse, sequence: s.Items, w: Lines) -> s.Items:
    """Write code that runs block `part` on whole lists of items; return the results."""
    before = w.count, w.tail, dict(w.known)
    w.region, w.count, w.tail = Region(), sequence.n, False
    items = w.part(part, sequence.items)
    w.count, w.tail, w.known = before
    w.region = Region()
    return s.Items(items, sequence.n)
