# SPDX-License-Identifier: Apache-2.0
"""Detection of recursions that never end, whatever the data are."""

from __future__ import annotations

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

    Used where typing fails, before there is a source to look at.

    Args:
      nodes: all uses of blocks typed so far.
      cases: by the variable of the input of a case, the variable of the value that its
        `OneOf` or `Optional` chooses for.
    """
    by_input: dict[Type, list[int]] = {}
    references = [node for node in nodes if isinstance(node.block, b.Reference)]
    targets = {_declaration(x).target: id(_declaration(x)) for x in references}
    for node in nodes:
        if node.block in targets:
            by_input.setdefault(node.input, []).append(targets[node.block])
    calls: dict[Hashable, list[tuple[Hashable, str]]] = {}
    for node in references:
        value = node.input
        while value in cases:
            value = cases[value]
        # All objects share one type, which does not tell whether two are the same.
        for caller in [] if isinstance(value, ObjectType) else by_input.get(value, []):
            calls.setdefault(caller, []).append((id(_declaration(node)), str(node)))
    return calls


def _declaration(node: TypedUse) -> b.ForwardDeclaration:
    assert isinstance(node.block, b.Reference)
    return node.block.declaration
