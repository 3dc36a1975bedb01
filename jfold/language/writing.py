# SPDX-License-Identifier: Apache-2.0
"""Functions with which the rules of several blocks write source, by `Lines`."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, cast

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.lines import RETURNED, Lines
from jfold.language.names import item_name, literal_of
from jfold.language.typed import TypedUse
from jfold.program.components import union
from jfold.tracing.strict_reading import reads_no_items
from jfold.types import Product, SequenceType, TensorType, Type, leaf_types


def argument_text(fn: object, text: str) -> str:
    """Return source of argument `text`; it refuses iterators that `fn` would use up."""
    if reads_no_items(fn):
        return text
    return f'{text} if type({text}) in PLAIN else readable({text})'


def as_object(value: Any) -> s.Object:
    """Return the symbol of the one Python object that a value is, packed if needed."""
    return value if isinstance(value, s.Object) else s.Object(s.packed(value))


def zeros_written(type_: Type, w: Lines) -> s.Symbol:
    """Return the zero of a type in the source: tensors are 0, sequences are empty."""
    tensors = [x for x in leaf_types(type_) if isinstance(x, TensorType)]
    wanted = 'ZEROS', f'{w.name}_zeros'.upper()
    zeros = iter(w.constants_for([*map(w.g.tables.zeros, tensors)], *wanted))

    def written(type_: Type) -> s.Symbol:
        if isinstance(type_, Product):
            return tuple(map(written, type_))
        if isinstance(type_, TensorType):
            return next(zeros)
        if isinstance(type_, SequenceType):
            empty = s.renamed(w.g.template(type_), itertools.repeat('()'))
            return replace(cast(s.Items, empty), n='0')
        return None

    return written(type_)


def write_lookup(table: str, x: str, default: list[str], w: Lines) -> s.Object:
    """Write the look-up of `x` in dict `table`, with any default; return the entry.

    Without a default, the source raises `KeyError` for a key that is absent.
    """
    return in_variable(
        f'{table}.get({x}, {default[0]})' if default else f'{table}[{x}]', w
    )


def in_variable(text: str, w: Lines) -> s.Object:
    """Write `value = <text>`; return the variable."""
    name = w.variable('value')
    w.line(f'{name} = {text}')
    return s.Object(name)


def literal(value: object, w: Lines, wanted: str = 'default') -> str:
    """Return source text for a value: its literal, or else a name like `wanted`."""
    return literal_of(value) or w.g.name_for(wanted, value)


def number(value: SupportsIndex) -> str:
    """Return an int as text, or raise `TypeError` for a value of another class."""
    return str(operator.index(value))


def item_at(value: s.Items, index: str, w: Lines) -> s.Symbol:
    """Write code that indexes `value`; return the item, with its sequences as lists."""
    if not any(s.leaves(value.items)):
        w.line(f'range({value.n})[{index}]  # there is one')
    return for_each_leaf(
        value.items, lambda x: item_name(x.text), lambda x: f'{x.text}[{index}]', w
    )


def for_each_leaf(
    value: s.Symbol,
    wanted: Callable[[s.Leaf], str],
    text: Callable[[s.Leaf], str],
    w: Lines,
) -> s.Symbol:
    """Write `variable = text(leaf)` for each leaf; return the value in variables.

    The variable is called `wanted(leaf)`, numbered if that is taken.
    """
    names = []
    for leaf in s.leaves(value):
        names.append(w.variable(wanted(leaf)))
        w.line(f'{names[-1]} = {text(leaf)}')
    return s.renamed(value, iter(names))


def some_name(items: s.Leaf) -> str:
    """Return a variable name for a list of some of the items of a list."""
    return f'some_{items.text.removeprefix("some_")}'


def cut(value: s.Items, text: str, w: Lines, n: str = '') -> s.Items:
    """Write the slice `value[text]`; return it, with length `n` or its `len`."""
    items = for_each_leaf(value.items, some_name, lambda x: f'{x.text}[{text}]', w)
    first = next(s.leaves(items), None)
    rest = f'range({value.n})[{text}]' if first is None else first.text
    return s.Items(items, n or f'len({rest})')


def sequence(value: Any, w: Lines) -> Any:
    """Return a value as the symbol of a sequence, `Items` or `Endless`.

    For a tuple or an object this writes source that makes the lists of its leaves, and
    that raises `TypeError` on an object that is no sequence.
    """
    if isinstance(value, s.Items | s.Endless):
        return value
    if isinstance(value, tuple):
        return s.Items(side_by_side(value, 'items', s.packed, w), str(len(value)))
    name = x = value.text
    if not x.isidentifier():
        name = w.variable('items')
        w.line(f'{name} = sequence({x})')
    elif value.kind not in (list, tuple):
        name = w.variable(f'items_of_{"item" if x.startswith("item_of_") else x}')
        w.line(f'{name} = {x} if type({x}) is list else sequence({x})')
    # The class of the sequence is not that of its items.
    return s.Items(s.Object(name), f'len({name})')


def side_by_side(
    parts: tuple[Any, ...], wanted: str, text: Callable[[Any], str], w: Lines
) -> Any:
    """Write, for each leaf, a list `wanted` of `text(leaf)` over all values `parts`.

    Return the lists, nested as one of the values, which have one structure.
    """
    head = parts[0]
    if isinstance(head, tuple):
        columns = zip(*parts, strict=True)
        return tuple(side_by_side(part, wanted, text, w) for part in columns)
    if isinstance(head, s.Endless):
        items = tuple(part.item for part in parts)
        return s.Endless(side_by_side(items, wanted, text, w))
    if head is None:
        return None
    name = w.variable(wanted)
    w.line(f'{name} = [{", ".join(map(text, parts))}]')
    makers = [list(s.makers(part)) for part in parts]
    both = iter([union(part) for part in zip(*makers, strict=True)])
    return s.with_makers(s.in_list(head, name), both)


def counted(value: s.Items, w: Lines) -> s.Items:
    """Return `value` with its length an int or a variable, assigned if needed."""
    if value.n.isidentifier() or value.n.isdigit():
        return value
    of = value.n.removeprefix('len(').removesuffix(')').removeprefix('items_of_')
    name = w.variable('n', f'n_of_{of if of.isidentifier() else "all"}')
    w.line(f'{name} = {value.n}')
    return s.Items(value.items, name)


def recorded_kinds(nodes: Sequence[TypedUse]) -> list[b.ForwardDeclaration]:
    """Return the declarations of `nodes` if all are of calls in lazy functions.

    Return an empty list if one is another block, which is evaluated when it is read.
    """
    blocks = [x.block for x in nodes]
    kinds = [x.declaration for x in blocks if isinstance(x, b.Reference)]
    is_all = len(kinds) == len(nodes) and all(x.calls is not None for x in kinds)
    return kinds if is_all else []


def write_recorded(
    kinds: Sequence[b.ForwardDeclaration], node: TypedUse, call: s.Object, w: Lines
) -> Any:
    """Write code that reads the results of `call`, of one of `kinds`; return them."""
    like: s.Symbol = None
    for kind in kinds:
        like = w.joined((node, 'cases'), w.g.recorded(kind))
    one = f'{kinds[0].name}_of_{call.text}'
    name = w.variable(one if len(kinds) == 1 else 'result')
    w.line(f'{name} = {call.text}[1]')
    return s.with_levels(w.unpacked(like, name), s.levels(like))


class Branches:
    """A writer of the cases of one `if`, `elif`, `else` chain.

    Each case assigns to the same variables or, if `returns`, returns its value from the
    function. The caller writes the lines `if ...:` and `else:` before each case.
    """

    def __init__(self, node: TypedUse, w: Lines, returns: bool) -> None:
        self.node, self.w, self.tail = node, w, returns
        self.like: s.Symbol = None
        if not returns:
            self.like = w.variables_like(w.g.template(node.output), 'result')

    def add(self, case: TypedUse | None, value: s.Symbol) -> None:
        """Write a case: the block `case` on `value`, or zeros if `case` is `None`."""
        if case is None:
            self.add_value(lambda: zeros_written(self.node.output, self.w))
        else:
            self.add_value(lambda: self.w.part(case, value, tail=True))

    def add_value(self, written: Callable[[], s.Symbol]) -> None:
        """Write a case: the lines that `written()` writes, whose value it returns."""
        w = self.w
        # Behind a case, the names of its variables are free again.
        before, known = ({*w.variables}, dict(w.used)), dict(w.known)
        with w.nested():
            w.tail, w.known = self.tail, known
            lines = len(w.lines)
            result = written()
            if not self.tail:
                self._assign(result)
                both = zip(s.makers(self.like), s.makers(result), strict=True)
                like = s.with_makers(self.like, (a | b for a, b in both))
                like = s.with_levels(like, s.levels(result))
                self.like = w.joined((self.node, 'cases'), like)
            elif result is not RETURNED:
                w.g.returned(w, result)
            if len(w.lines) == lines:
                w.line('pass')
        w.of_cases |= w.variables
        w.variables, w.used = before

    def result(self) -> s.Symbol:
        """Return the value that the cases assign, or `RETURNED` if cases return."""
        return RETURNED if self.tail else self.like

    def _assign(self, value: s.Symbol) -> None:
        """Assign a value to the variables; rename the variable of the last line."""
        pairs = list(zip(s.texts(self.like), s.texts(value), strict=True))
        is_one = isinstance(self.like, s.Object | s.Tensor)
        if not is_one or not self.w.renamed_last(*reversed(pairs[0])):
            for name, text in pairs:
                self.w.line(f'{name} = {text}')
