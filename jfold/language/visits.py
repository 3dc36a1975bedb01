# SPDX-License-Identifier: Apache-2.0
"""In which order the uses of blocks are evaluated, where metrics are inside."""

from __future__ import annotations

import itertools

from jfold import combinators as c
from jfold.language.typed import Typed, Typing


def number_visits(typing: Typing) -> dict[Typed, int]:
    """The uses of blocks with a metric inside, each numbered before what is in it.

    So the numbers of what is inside a use lie together, and in order.
    """
    found: dict[Typed, int] = {}
    numbers = itertools.count()
    targets = (body.parts[0] for body in typing.declarations.values())
    waiting: list[Typed | None] = [typing.root, *targets][::-1]
    while waiting:
        node = waiting.pop()
        if node is not None and _observes(node.block, typing):
            found[node] = next(numbers)
            waiting += node.parts[::-1]
    return found


def _observes(block: c.Block, typing: Typing) -> bool:
    if isinstance(block, c.Reference):  # that in a Share is none of the user's blocks
        return block.declaration.target in typing.observing
    return block in typing.observing
