# SPDX-License-Identifier: Apache-2.0
"""Writing source: the rule of each kind of block, and what several rules write."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, SupportsIndex, cast

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.lines import RETURNED, Lines
from jfold.language.typed import Typed
from jfold.language.values import blank
from jfold.types import Product, SequenceType, TensorType, Type

PLAIN = int, str, bool, type(None)  # values that are written as they print
# Functions that take nothing out of an iterator, so that all may be given one.
READS_NO_ITEMS = type, len, bool, int, float, str, repr, id, abs


@functools.singledispatch
def write(block: b.Block, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
    """Writes one use of a block; the symbol of what it gives, or `RETURNED`."""
    raise NotImplementedError(f'writing has no rule for {block!r}')


def reads_no_items(fn: object) -> bool:
    """Whether a function leaves the items of an iterator alone."""
    return any(fn is each for each in READS_NO_ITEMS)


def read_by(fn: object, text: str) -> str:
    """The text of what a function is given, which it must not use up for others."""
    if reads_no_items(fn):
        return text
    return f'{text} if type({text}) in PLAIN else readable({text})'


def as_object(value: s.Symbol, w: Lines) -> s.Object:
    """A value made of objects as one object, or as a list of objects."""
    if isinstance(value, s.Object):
        return value
    if w.count is None:
        return s.Object(s.packed(value))
    assert isinstance(value, tuple)
    return s.Object(s.packed(s.Items(value, w.count)))


def zeros_written(type_: Type, w: Lines) -> s.Symbol:
    """The zero of a type."""
    if isinstance(type_, Product):
        return tuple(zeros_written(each, w) for each in type_)
    if isinstance(type_, TensorType):
        return w.constant(w.g.tables.zeros(type_), 'ZEROS')
    if isinstance(type_, SequenceType):
        empty = w.g.template(type_)
        assert isinstance(empty, s.Items)
        return s.renamed(empty, itertools.repeat('()'), '0')
    return None


def looked_up(table: str, x: str, default: list[str], w: Lines) -> s.Object:
    """The entries of a table, or the default, if there is one."""
    other = braced(default[0]) if default else ''
    text = f'{table}.get({{}}, {other})' if default else f'{table}[{{}}]'
    if w.count is None:
        return w.held(s.Object(text.format(x)), 'value')  # type: ignore[return-value]
    return listed(f'[{text.format("y")} for y in {x}]', w)


def listed(text: str, w: Lines) -> s.Object:
    """A list that a text makes, in a variable."""
    name = w.variable('values')
    w.line(f'{name} = {text}')
    return s.Object(name)


def literal(value: object, w: Lines) -> str:
    """A value as it is written, or its name."""
    return repr(value) if type(value) in PLAIN else w.g.given('default', value)


def number(value: SupportsIndex) -> str:
    """A whole number as it is written; what else a file may have said is refused."""
    return str(operator.index(value))


def braced(text: str) -> str:
    """A text in which braces stand for themselves when it is formatted."""
    return text.replace('{', '{{').replace('}', '}}')


def item_at(value: s.Items, index: str, w: Lines) -> s.Symbol:
    """The item of a sequence at an index, which is a text."""
    names = []
    if not any(s.leaves(value.items)):
        w.line(f'range({value.n})[{index}]  # there is one')
    for each in s.leaves(value.items):
        names.append(w.variable('item'))
        w.line(f'{names[-1]} = {each.text}[{index}]')
    return w.element(value.items, iter(names))


def sliced(value: s.Items, key: slice, w: Lines) -> s.Items:
    """Some neighbours of a sequence."""
    parts = [key.start, key.stop] + ([] if key.step is None else [key.step])
    text = ':'.join('' if x is None else number(x) for x in parts)
    return cut(value, text, w)


def cut(value: s.Items, text: str, w: Lines, n: str = '') -> s.Items:
    """The lists of a sequence, each cut in one way."""
    names = []
    for each in s.leaves(value.items):
        names.append(w.variable('part'))
        w.line(f'{names[-1]} = {each.text}[{text}]')
    if not n:
        n = f'len({names[0]})' if names else f'len(range({value.n})[{text}])'
    made = s.renamed(s.Items(value.items), iter(names), n)
    assert isinstance(made, s.Items)
    return made


def sequence(value: s.Symbol, w: Lines) -> s.Items | s.Endless:
    """Any value that has items: lists of their leaves."""
    if isinstance(value, s.Items | s.Endless):
        return value
    if isinstance(value, tuple):
        return s.Items(side_by_side(value, 'items', s.packed, w), str(len(value)))
    assert isinstance(value, s.Object)
    if value.kind in (list, tuple) and value.text.isidentifier():
        return s.Items(value, f'len({value.text})')
    x = value.text
    name = w.variable(f'items_of_{x}' if x.isidentifier() else 'items')
    if x.isidentifier():
        w.line(f'{name} = {x} if type({x}) is list else sequence({x})')
    else:
        w.line(f'{name} = sequence({x})')
    return s.Items(s.Object(name), f'len({name})')


def finite(value: s.Symbol, w: Lines) -> s.Items:
    """The same of a value whose items end."""
    made = sequence(value, w)
    assert isinstance(made, s.Items)
    return made


def parts_of(value: s.Symbol) -> tuple[s.Symbol, ...]:
    """The parts of a tuple."""
    assert isinstance(value, tuple)
    return value


def side_by_side(
    parts: tuple[s.Symbol, ...], wanted: str, text: Callable[[Any], str], w: Lines
) -> Any:
    """Lists, of what `text` says of a leaf in several values of one type."""
    head = parts[0]
    if isinstance(head, tuple):
        columns = zip(*cast(Any, parts), strict=True)
        return tuple(side_by_side(each, wanted, text, w) for each in columns)
    if isinstance(head, s.Endless):
        items = tuple(cast(s.Endless, each).item for each in parts)
        return s.Endless(side_by_side(items, wanted, text, w))
    if head is None:
        return None
    name = w.variable(wanted)
    w.line(f'{name} = [{", ".join(map(text, parts))}]')
    found = [list(s.makers(each)) for each in parts]
    both = iter([union(each) for each in zip(*found, strict=True)])
    if isinstance(head, s.Items):
        return s.Nested(name, cast(s.Items, s.with_makers(blank(head), both)))
    return s.with_makers(s.renamed(head, iter([name])), both)


def union(found: tuple[int, ...]) -> int:
    """All makers of several values."""
    made = 0
    for each in found:
        made |= each
    return made


def counted(value: s.Items, w: Lines) -> s.Items:
    """The sequence, with its length in a variable."""
    if value.n.isidentifier() or value.n.isdigit():
        return value
    name = w.variable('n')
    w.line(f'{name} = {value.n}')
    return s.Items(value.items, name)


class Branches:
    """Cases, each of which assigns its value to the same variables, or returns it."""

    def __init__(self, node: Typed, w: Lines) -> None:
        self.node, self.w = node, w
        self.tail = w.tail
        self.like: s.Symbol = None
        if not self.tail:
            self.like = variables(w.g.template(node.output), w)

    def add(self, case: Typed | None, value: s.Symbol) -> None:
        """Writes a case."""
        w = self.w
        tail = self.tail
        with w.case():
            w.tail = tail
            before = len(w.lines)
            made = (
                zeros_written(self.node.output, w)
                if case is None
                else w.part(case, value, tail=True)
            )
            if tail:
                if made is not RETURNED:
                    w.g.returned(w, made)
            else:
                assign_last(self.like, made, w)
                self.like = w.joined(
                    (self.node, 'cases'), with_makers_of(self.like, made)
                )
            if len(w.lines) == before:
                w.line('pass')
        w.tail = tail

    def result(self) -> s.Symbol:
        """What all cases give."""
        return RETURNED if self.tail else self.like


def variables(like: s.Symbol, w: Lines) -> s.Symbol:
    """New variables for a value like a template."""
    if isinstance(like, tuple):
        return tuple(variables(each, w) for each in like)
    if isinstance(like, s.Endless):
        return s.Endless(variables(like.item, w))
    if isinstance(like, s.Items):
        return s.Items(variables(like.items, w), w.variable('n'))
    return None if like is None else s.renamed(like, iter([w.variable('result')]))


def assign_last(target: s.Symbol, value: s.Symbol, w: Lines) -> None:
    """Assigns a value that nothing else reads, by the line that makes it."""
    if isinstance(target, s.Object | s.Tensor) and not isinstance(value, tuple):
        assert isinstance(value, s.Object | s.Tensor)
        if w.renamed_last(value.text, target.text):
            return
    assign_each(target, value, w)


def assign_each(target: Any, value: Any, w: Lines) -> None:
    """Assigns leaf by leaf."""
    if isinstance(target, tuple):
        for a, b in zip(target, value, strict=True):
            assign_each(a, b, w)
    elif isinstance(target, s.Endless):
        assign_each(target.item, value.item, w)
    elif isinstance(target, s.Items):
        w.line(f'{target.n} = {value.n}')
        assign_each(target.items, value.items, w)
    elif target is not None:
        w.line(f'{target.text} = {value.text}')


def with_makers_of(target: s.Symbol, value: s.Symbol) -> s.Symbol:
    """The variables, with the makers of what they are assigned too, and its levels."""
    both = zip(s.makers(target), s.makers(value), strict=True)
    made = s.with_makers(target, (a | b for a, b in both))
    return s.with_levels(made, s.levels(value))


def one_of_lists(items: s.Symbol) -> s.Symbol:
    """The template of one item of lists."""
    if isinstance(items, tuple):
        return tuple(map(one_of_lists, items))
    if isinstance(items, s.Endless):
        return s.Endless(one_of_lists(items.item))
    return items.item if isinstance(items, s.Nested) else items


def in_lists_of(value: s.Symbol) -> s.Symbol:
    """The template of lists of such values."""

    def listed(each: s.Symbol) -> s.Symbol:
        if isinstance(each, tuple):
            return tuple(map(listed, each))
        if isinstance(each, s.Endless):
            return s.Endless(listed(each.item))
        return s.Nested('', each) if isinstance(each, s.Items) else each

    return listed(blank(value))
