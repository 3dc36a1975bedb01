# SPDX-License-Identifier: Apache-2.0
"""Which blocks are constants."""

from __future__ import annotations

from collections.abc import Iterable

from jfold import combinators as c


def is_constant(block: c.Block) -> bool:
    """Whether a block takes no input, so that a `Record` reads no field for it."""
    return _is_constant(block, {})


def _is_constant(block: c.Block, known: dict[c.ForwardDeclaration, bool]) -> bool:
    if isinstance(block, c.Reference):
        return _is_resolved_to_constant(block.declaration, known)
    if isinstance(block, c.Pipe):
        return bool(block.blocks) and _is_constant(block.blocks[0], known)
    parts: Iterable[c.Block] = ()
    if isinstance(block, c.Record):
        parts = [part for _, part in block.fields]
    elif isinstance(block, c.AllOf):
        parts = block.blocks
    constant = isinstance(block, c.FromTensor | c.Zeros | c.Void)
    return constant or (bool(parts) and all(_is_constant(x, known) for x in parts))


def _is_resolved_to_constant(
    declaration: c.ForwardDeclaration, known: dict[c.ForwardDeclaration, bool]
) -> bool:
    if declaration.target is None:
        return False
    if declaration not in known:
        known[declaration] = False  # until more is known: what takes itself is none
        known[declaration] = _is_constant(declaration.target, known)
    return known[declaration]
