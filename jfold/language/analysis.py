# SPDX-License-Identifier: Apache-2.0
"""What an expression tells of its blocks before any type is known.

Both questions run against the direction in which blocks hold each other: a fact of one
block may settle that of the blocks that use it. Each is answered in one pass over the
uses, off Python's stack, however deep blocks are nested.
"""

from __future__ import annotations

from collections.abc import Iterable

from jfold import blocks as b
from jfold.base.operands import leaves
from jfold.blocks.compose import Composition, Wiring

Users = dict[b.Block, list[b.Block]]


def users(root: b.Block) -> Users:
    """Every block of an expression, and those that hold it, once for each use."""
    # By identity, as blocks compare: one that is used in many places is visited once.
    found: Users = {root: []}
    waiting = [root]
    while waiting:
        block = waiting.pop()
        for part in _inside(block):
            if part not in found:
                found[part] = []
                waiting.append(part)
            found[part].append(block)
    return found


def _inside(block: b.Block) -> Iterable[b.Block]:
    """The blocks that a block is made of; of a reference, what it stands for."""
    if isinstance(block, b.Reference):
        target = block.declaration.target
        return () if target is None else (target,)
    if type(block)._pieces is b.Block._pieces:  # the only piece is its own text
        return ()
    return (piece for piece in block._pieces() if isinstance(piece, b.Block))


def _of_kind(users: Users, *kinds: type[b.Block]) -> list[b.Block]:
    return [block for block in users if isinstance(block, kinds)]


def observing(users: Users) -> set[b.Block]:
    """The blocks with a `Metric` inside, every use of which counts."""
    found: set[b.Block] = set()
    waiting = _of_kind(users, b.Metric)
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting += users[block]
    return found


def constants(users: Users) -> set[b.Block]:
    """The blocks that take no input, so that a `Record` reads no field for them.

    What is made of others takes none if all of these take none. Of a declaration that
    refers to itself this never becomes known: it takes an input.
    """
    waiting = _of_kind(users, b.FromTensor, b.Zeros, b.Void)
    compositions = (each for each in users if isinstance(each, Composition))
    waiting += (each for each in compositions if 0 not in each.wiring.read)
    # As in a topological sort: how many answers a block still waits for.
    missing = {block: len(_takers(block)) for block in users}
    givers: Users = {block: [] for block in users}
    for block in users:
        for part in _takers(block):
            givers[part].append(block)
    found: set[b.Block] = set()
    while waiting:
        block = waiting.pop()
        found.add(block)
        for giver in givers[block]:
            missing[giver] -= 1
            if not missing[giver]:
                waiting.append(giver)
    return found


def _takers(block: b.Block) -> tuple[b.Block, ...]:
    """The parts of a block that are given its input, or a field of it."""
    if isinstance(block, b.Pipe):
        return block.blocks[:1]
    if isinstance(block, b.AllOf):
        return block.blocks
    if isinstance(block, b.Record):
        return tuple(part for _, part in block.fields)
    if isinstance(block, Composition):
        # What gives its input on is no constant: it would wait for itself.
        gives = (block,) if 0 in leaves(block.wiring.output) else ()
        return _readers(block.wiring) + gives
    return tuple(_inside(block)) if isinstance(block, b.Reference) else ()


def _readers(wiring: Wiring) -> tuple[b.Block, ...]:
    """The blocks that read the input of a composition."""
    return tuple(each for each, source in wiring.steps if 0 in leaves(source))
