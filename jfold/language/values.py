# SPDX-License-Identifier: Apache-2.0
"""What values consist of: texts, templates, what a call passes, results in rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jfold.language import symbols as s
from jfold.types import SequenceType, Type, leaf_types


def texts(value: s.Symbol) -> Iterator[str]:
    """The texts of the leaves of a value, and of lengths."""
    if isinstance(value, tuple):
        for each in value:
            yield from texts(each)
    elif isinstance(value, s.Items):
        yield value.n
        yield from texts(value.items)
    elif isinstance(value, s.Endless):
        yield from texts(value.item)
    elif value is not None:
        yield value.text


def blank(value: s.Symbol) -> s.Symbol:
    """The template of a value."""

    def leaf(each: s.Leaf) -> s.Symbol:
        if isinstance(each, s.Tensor):
            return s.Tensor('', each.type, each.makers)
        return s.Nested('', each.item) if isinstance(each, s.Nested) else s.Object()

    return s.mapped(leaf, value)


def blank_items(value: s.Items) -> s.Items:
    """The template of a sequence."""
    made = blank(value)
    assert isinstance(made, s.Items)
    return made


def template_of(value: s.Symbol) -> s.Symbol:
    """The template of a value, with the classes of objects that are known."""

    def leaf(each: s.Leaf) -> s.Symbol:
        if isinstance(each, s.Tensor):
            return s.Tensor('', each.type, each.makers, level=each.level)
        return replace(each, text='')

    return s.mapped(leaf, value)


def arguments(value: s.Symbol) -> Iterator[Any]:
    """What is passed to a function: leaves, and sequences."""
    if isinstance(value, tuple):
        for each in value:
            yield from arguments(each)
    elif isinstance(value, s.Endless):
        yield from arguments(value.item)
    elif value is not None:
        yield value


def with_arguments(value: s.Symbol, fn: Any) -> Any:
    """The same structure with `fn` of each argument in its place."""
    if isinstance(value, tuple):
        return tuple(with_arguments(each, fn) for each in value)
    if isinstance(value, s.Endless):
        return s.Endless(with_arguments(value.item, fn))
    return None if value is None else fn(value)


def row_leaves(value: s.Symbol) -> Iterator[Any]:
    """What of a value stands in a row of a result: leaves, and sequences."""
    if isinstance(value, tuple):
        for each in value:
            yield from row_leaves(each)
    elif value is not None:
        yield value


def inside(type_: Type, numbers: list[int]) -> list[Any]:
    """Per sequence in a value, the result of its items and those inside of these.

    Sequences are numbered level by level, as
    `jfold.program.result_tables.levels` meets them.
    """
    rest = iter(numbers[1:])
    root: list[Any] = []
    waiting = [(type_, root)]
    for each, into in waiting:
        for leaf in leaf_types(each):
            if isinstance(leaf, SequenceType):
                made: list[Any] = []
                into.append((next(rest), made))
                waiting.append((leaf.item, made))
    return root
