# SPDX-License-Identifier: Apache-2.0
"""Facts about the blocks of an expression that need no types.

No function here recurses on Python's stack, so blocks may be nested deeper than it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from jfold import blocks as b
from jfold.base.operands import leaves
from jfold.base.trampoline import Steps, in_turn, run
from jfold.blocks.compose import Composition

T = TypeVar('T')
Users = dict[b.Block, list[b.Block]]


def users(root: b.Block) -> Users:
    """Return, for each block in `root`, the blocks that directly contain it.

    A block that contains another twice is listed twice.
    """
    # Blocks compare by identity: one that is used in many places is visited once.
    result: Users = {root: []}
    waiting = [root]
    while waiting:
        block = waiting.pop()
        for part in _inside(block):
            if part not in result:
                result[part] = []
                waiting.append(part)
            result[part].append(block)
    return result


def _inside(block: b.Block) -> Iterable[b.Block]:
    """Return the blocks directly inside a block; for a reference, its target."""
    if isinstance(block, b.Reference):
        target = block.declaration.target
        return () if target is None else (target,)
    kind: type[b.Block] = type(block)
    if kind._pieces is b.Block._pieces and kind.__repr__ is not b.Block.__repr__:
        return ()  # a quick exit: this class has no inner blocks
    return (piece for piece in block._pieces() if isinstance(piece, b.Block))


def with_users(nodes: Iterable[T], users: Mapping[T, Sequence[T]]) -> set[T]:
    """Return `nodes` and what contains one of them at any depth, as `users` tells."""
    result, waiting = set[T](), [*nodes]
    while waiting:
        node = waiting.pop()
        if node not in result:
            result.add(node)
            waiting += users.get(node, ())
    return result


def constants(users: Users) -> set[b.Block]:
    """Return those keys of `users` that take no input, as `Zeros([3]) >> Function(f)`.

    A `Pipe`, `AllOf`, `Record`, `Reference` or composition takes no input if none of
    the inner blocks that get its input, or a field of it, takes one. A declaration that
    refers to itself takes an input.
    """
    known: dict[b.Block, bool] = {}
    return {block for block in users if run(_is_constant(block, known))}


def _is_constant(block: b.Block, known: dict[b.Block, bool]) -> Steps[bool]:
    """Return whether a block takes no input; `known` is a memo."""
    if block not in known:
        known[block] = False  # the result if the block contains itself
        readers = _input_readers(block)
        parts = yield in_turn(_is_constant(part, known) for part in readers)
        reads_nothing = isinstance(block, b.FromTensor | b.Zeros | b.Void)
        if isinstance(block, Composition):
            reads_nothing = 0 not in block.wiring.read
        known[block] = all(parts) if parts else reads_nothing
    return known[block]


def _input_readers(block: b.Block) -> tuple[b.Block, ...]:
    """Return the inner blocks that take `block`'s input, or a field of that input."""
    if isinstance(block, b.Pipe):
        return block.blocks[:1]
    if isinstance(block, b.AllOf):
        return block.blocks
    if isinstance(block, b.Record):
        return tuple(part for _, part in block.fields)
    if isinstance(block, Composition):
        readers = (
            part for part, operands in block.wiring.steps if 0 in leaves(operands)
        )
        # A returned input counts as taken: as its own reader, a block is no constant.
        returns_input = 0 in leaves(block.wiring.output)
        return (*readers, block) if returns_input else tuple(readers)
    return tuple(_inside(block)) if isinstance(block, b.Reference) else ()
