# SPDX-License-Identifier: Apache-2.0
"""Readings of symbols: texts, templates, arguments of calls, parts of results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jfold.language import symbols as s
from jfold.types import SequenceType, Type, leaf_types


def texts(value: s.Symbol) -> Iterator[str]:
    """Yield the texts of all leaves and lengths of a value, left to right."""
    if isinstance(value, tuple):
        for part in value:
            yield from texts(part)
    elif isinstance(value, s.Items):
        yield value.n
        yield from texts(value.items)
    elif isinstance(value, s.Endless):
        yield from texts(value.item)
    elif value is not None:
        yield value.text


def blank(value: s.Symbol) -> s.Symbol:
    """Return the template of a value: the types and producers of tensors alone."""

    def leaf(value: s.Leaf) -> s.Symbol:
        if isinstance(value, s.Tensor):
            return s.Tensor('', value.type, value.makers)
        return s.Nested('', value.item) if isinstance(value, s.Nested) else s.Object()

    return s.map_leaves(leaf, value)


def blank_items(value: s.Items) -> s.Items:
    """Return the template of a sequence, as `blank` does."""
    template = blank(value)
    assert isinstance(template, s.Items)
    return template


def template_of(value: s.Symbol) -> s.Symbol:
    """Return the template of a value, with classes of objects and levels of tensors."""

    def leaf(value: s.Leaf) -> s.Symbol:
        if isinstance(value, s.Tensor):
            return s.Tensor('', value.type, value.makers, level=value.level)
        return replace(value, text='')

    return s.map_leaves(leaf, value)


def arguments(value: s.Symbol) -> Iterator[Any]:
    """Yield the leaves and sequences in a value: a call passes each as one argument."""
    if isinstance(value, tuple):
        for part in value:
            yield from arguments(part)
    elif isinstance(value, s.Endless):
        yield from arguments(value.item)
    elif value is not None:
        yield value


def with_arguments(value: s.Symbol, fn: Any) -> Any:
    """Return a value with `fn` applied to what `arguments` yields."""
    if isinstance(value, tuple):
        return tuple(with_arguments(part, fn) for part in value)
    if isinstance(value, s.Endless):
        return s.Endless(with_arguments(value.item, fn))
    return None if value is None else fn(value)


def row_leaves(value: s.Symbol) -> Iterator[Any]:
    """Yield the leaves and sequences of a value, which a row of a result has."""
    if isinstance(value, tuple):
        for part in value:
            yield from row_leaves(part)
    elif value is not None:
        yield value


def inside(type_: Type, numbers: list[int]) -> list[Any]:
    """Return, for each sequence in a value, (result of its items, sequences inside).

    The sequences inside are a list of such pairs again.

    Args:
      numbers: the number of the value's result, then of the results of items, level by
        level, as `jfold.program.result_tables.nesting` yields their types.
    """
    remaining = iter(numbers[1:])
    root: list[Any] = []
    waiting = [(type_, root)]
    for item_type, siblings in waiting:
        for leaf in leaf_types(item_type):
            if isinstance(leaf, SequenceType):
                inner: list[Any] = []
                siblings.append((next(remaining), inner))
                waiting.append((leaf.item, inner))
    return root
