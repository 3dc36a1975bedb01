# SPDX-License-Identifier: Apache-2.0
"""Detection of recursions that never end, whatever the data are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from jfold import blocks as b
from jfold.language.typed import TypedUse
from jfold.types import ObjectType, Type

Calls = Mapping[Hashable, Iterable[tuple[Hashable, str]]]


def endless_recursion(calls: Calls) -> str:
    """Return the error for declarations that call themselves on the same input.

    '' if there is none.

    Args:
      calls: of each declaration, those that it calls on its own input, unchanged, and
        the paths of these calls.
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
    """Return the calls of declarations on their own input, where types clash.

    Args:
      nodes: all uses of blocks so far.
      cases: of the type variable of a case, that of the value which the choice is for.
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
        # All objects have one type, so that equal types do not mean the same value.
        for caller in [] if isinstance(value, ObjectType) else by_input.get(value, []):
            calls.setdefault(caller, []).append((id(_declaration(node)), str(node)))
    return calls


def _declaration(node: TypedUse) -> b.ForwardDeclaration:
    assert isinstance(node.block, b.Reference)
    return node.block.declaration
