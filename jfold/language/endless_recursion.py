# SPDX-License-Identifier: Apache-2.0
"""Detection of recursions that never end, whatever the data are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from jfold import blocks as b
from jfold.language.typed import TypedUse
from jfold.types import ObjectType, Type

Calls = Mapping[Hashable, Iterable[tuple[Hashable, str]]]


def endless_recursion(calls: Calls) -> str:
    """Return the error text for a recursion that never ends; '' if there is none.

    It never ends where a declaration, directly or through others, calls itself on its
    own input unchanged.

    Args:
      calls: per declaration, (callee, path of the call) for each call that passes on
        the caller's own input unchanged.
    """
    for start in calls:
        seen: set[Hashable] = set()
        waiting = [start]
        while waiting:
            for callee, where in calls.get(waiting.pop(), []):
                if callee == start:
                    return (
                        f'{where}: expected a recursion on a part of its input, got '
                        'one on the same input, without end; take a field or an item '
                        'of it first'
                    )
                if callee not in seen:
                    seen.add(callee)
                    waiting.append(callee)
    return ''


def calls_of(nodes: Iterable[TypedUse], cases: Mapping[Type, Type]) -> Calls:
    """Return, per declaration, the calls that pass on the caller's own input unchanged.

    It serves where typing fails; else source generation notes them, as `untouched`.

    Args:
      nodes: all uses of blocks typed so far.
      cases: from the type variable of a case's input to that of the value that the
        `OneOf` or `Optional` passes to the case.
    """
    references = [
        (node, node.block.declaration)
        for node in nodes
        if isinstance(node.block, b.Reference)
    ]
    targets = {x.target: id(x) for _, x in references}
    by_input = defaultdict[Type, list[int]](list)
    calls = defaultdict[Hashable, list[tuple[Hashable, str]]](list)
    for node in nodes:
        if node.block in targets:
            by_input[node.input].append(targets[node.block])
    for node, declaration in references:
        value = node.input
        while value in cases:
            value = cases[value]
        # A type variable stands for one value; type `object` may stand for several.
        for caller in [] if isinstance(value, ObjectType) else by_input[value]:
            calls[caller].append((id(declaration), str(node)))
    return calls
