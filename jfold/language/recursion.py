# SPDX-License-Identifier: Apache-2.0
"""Recursions that never end, whatever the data are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from jfold import blocks as b
from jfold.language.typed import Typed
from jfold.types import ObjectType, Type

Calls = Mapping[Hashable, Iterable[tuple[Hashable, str]]]


def endless(calls: Calls) -> str:
    """What is wrong with declarations that reach themselves on the same input; '' if
    none does.

    Args:
      calls: of each declaration, those that it calls on what it is given, untouched,
        and where.
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


def calls_of(nodes: Iterable[Typed], cases: Mapping[Type, Type]) -> Calls:
    """The calls on what declarations are given, of expressions whose types clash.

    Args:
      nodes: all uses of blocks so far.
      cases: of each variable of a case, that of the value that there is a choice for.
    """
    given: dict[Type, list[int]] = {}
    references = [each for each in nodes if isinstance(each.block, b.Reference)]
    targets = {_declaration(x).target: id(_declaration(x)) for x in references}
    for each in nodes:
        if each.block in targets:
            given.setdefault(each.input, []).append(targets[each.block])
    calls: dict[Hashable, list[tuple[Hashable, str]]] = {}
    for each in references:
        value = each.input
        while value in cases:
            value = cases[value]
        # Of data nothing is known but that they are, wherever they come from.
        for caller in [] if isinstance(value, ObjectType) else given.get(value, []):
            calls.setdefault(caller, []).append((id(_declaration(each)), str(each)))
    return calls


def _declaration(node: Typed) -> b.ForwardDeclaration:
    assert isinstance(node.block, b.Reference)
    return node.block.declaration
