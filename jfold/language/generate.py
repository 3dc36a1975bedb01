# SPDX-License-Identifier: Apache-2.0
"""A typed expression → the source of the function that records its graphs.

The source is written in rounds. What values may be in a place that several of them
reach, which operations read their own results, and what stands in one place alone is
taken from the round before; nothing of it is known in the first one. Once a round finds
what it was told, its text is the source.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.lines import INDENT, RETURNED, Lines, Writer
from jfold.language.names import WORDS, without_unused
from jfold.language.rounds import Call, Chosen, Facts
from jfold.language.tables import Tables
from jfold.language.tapes import ROW, Region, Rows
from jfold.language.typed import Typed
from jfold.language.values import (
    arguments,
    inside,
    row_leaves,
    template_of,
    with_arguments,
)
from jfold.language.writing import write
from jfold.program.result_tables import LENGTH
from jfold.types import Type

MOST_ROUNDS = 64


class Generator(Writer):
    """Writes a source, in one round."""

    def rule(self, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
        """Writes one use of a block; the symbol of what it gives, or `RETURNED`."""
        return write(node.block, node, value, w)

    # ---- functions

    def call(
        self, key: Hashable, name: str, node: Typed, value: s.Symbol, w: Lines
    ) -> s.Symbol:
        """A call of the function that evaluates a block; it is written once."""
        flat = list(arguments(value))
        if isinstance(key, b.ForwardDeclaration) and key.key is not None:
            flat = [w.held(flat[0], 'value')]
        for k, each in enumerate(flat):
            self.joined((key, 'argument', k), each)
        if key not in self.written:
            self.written[key] = self.names.new(name)
            self._function(key, node, value)
        name = self.written[key]
        tensors = any(isinstance(x, s.Tensor | s.Items) for x in flat)
        self.calls.append(Call(w.key, key, str(node), tensors))
        # A call on what a function was given, as it is, takes no data apart.
        leaves = [
            x.name if isinstance(x, s.Tensor) else getattr(x, 'text', '') for x in flat
        ]
        if w.count is None and leaves and w.arguments.issuperset(leaves):
            edges = self.untouched.setdefault(w.key, [])
            edges.append((key, str(self.node)))
        if w.count is not None:
            return self._call_each(key, name, node, flat, w)
        text = w.call(f'{name}({", ".join(map(s.packed, flat))})')
        if key in self.by_identity:
            x = s.packed(flat[0])
            text = f'{self.by_identity[key]}.get(id({x})) or {text}'
        if w.tail and not self.deep:
            self.joined((w.key, 'result'), self._result(key, node.output))
            w.line(f'return {text}')
            return RETURNED
        like = self._result(key, node.output)
        if isinstance(like, tuple) and any(s.leaves(like)):
            return s.with_levels(w.unpacked(like, text), s.levels(like))
        result = w.variable(of(name, s.packed(flat[0]) if flat else ''))
        w.line(f'{result} = {text}')
        return w.unpacked(like, result)

    def _call_each(
        self,
        key: Hashable,
        name: str,
        node: Typed,
        flat: list[s.Leaf | s.Items],
        w: Lines,
    ) -> s.Symbol:
        """Calls for each item of lists."""
        texts = [s.packed(each) for each in flat]
        args = ', '.join(['y', 'z', 'u', 'v'][: len(texts)])
        over = texts[0] if len(texts) == 1 else f'zip({", ".join(texts)})'
        call = f'{name}({args})'
        if key in self.by_identity:
            call = f'{self.by_identity[key]}.get(id({args})) or {call}'
        result = w.variable(of(name, texts[0]))
        w.line(f'{result} = [{call} for {args} in {over}]')
        w.region = Region()
        like = self._result(key, node.output)
        listed = s.Nested('', like) if isinstance(like, s.Items) else like
        return w.columns(listed, result)

    def _result(self, key: Hashable, type_: Type) -> s.Symbol:
        return self.known((key, 'result'), self.template(type_))

    def _function(self, key: Hashable, node: Typed, value: s.Symbol) -> None:
        """Writes the function of a block."""
        name = self.written[key]
        w = Lines(self, name, 2, key)
        names: list[str] = []

        def argument(each: Any) -> Any:
            k = len(names)
            names.append(w.variable('number' if isinstance(each, s.Tensor) else 'x'))
            like = self.joined((key, 'argument', k), template_of(each))
            return _Argument(like, names[-1])

        given = _opened(with_arguments(value, argument), w)
        w.arguments = {*names}
        shares = isinstance(key, b.ForwardDeclaration) and key.key is not None
        memo = self._remembering(key, names[0], w) if shares else None  # type: ignore[arg-type]
        w.tail = memo is None
        made = w.part(node, given, tail=True)
        if made is not RETURNED:
            self.joined((key, 'result'), template_of(made))
            text = s.packed(made)
            if memo:
                w.line(f'{memo} = made = {text}')
                text = 'made'
            w.line(f'return {text}')
        if self.deep and not any('(yield ' in x for x in w.lines):
            w.line('yield  # never: what is called here is a generator')
        head = f'{INDENT}def {name}({", ".join(names)}):'
        self.functions += [head, *without_unused(w.lines), '']

    def _remembering(self, declaration: b.ForwardDeclaration, x: str, w: Lines) -> str:
        """Writes the beginning of a function that runs once for each object."""
        memo = self.names.new(f'{w.name}_known')
        self.memos.append(memo)
        w.variables |= {'key', 'made'}
        if declaration.key is id:  # whoever calls has looked
            self.by_identity[declaration] = memo
            w.line(f'kept.append({x})  # so that no other object gets its id')
            return f'{memo}[id({x})]'
        w.line(f'key = {self.given("key_of", declaration.key)}({x})')
        w.line(f'if key in {memo}:')
        w.line(f'{INDENT}return made_before({memo}, key)')
        w.line(f'{memo}[key] = {memo}')
        return f'{memo}[key]'

    # ---- the whole

    def write(self) -> str:
        """The source."""
        w = Lines(self, 'record', 2)
        w.variables.add('x')
        value = w.part(self.typing.root, s.Object('x'))
        numbers = list(self.program(()).value_results)  # its own, then items by level
        self._write_row(value, numbers[0], inside(self.typing.root.output, numbers), w)
        for memo in self.memos:
            w.line(f'{memo}.clear()')
        if self.memos:
            w.line('kept.clear()')
        ends = s.in_parentheses([f'len({each.name})' for each in self.counters()])
        w.line(f'ends.append({ends})')
        lines = list(self._record(w))
        used = set(WORDS.findall('\n'.join(lines)))
        constants = [line for name, line in self._constants() if name in used]
        return '\n'.join([*constants, '', *lines, ''])

    def _constants(self) -> Iterator[tuple[str, str]]:
        """The constants of the source: names that use them, and lines."""
        yield 'record', '# A value is a number: its level, who makes it, its row there.'
        yield 'LEVELS', '# In a recursion that is one LEVEL above the highest input.'
        yield 'LEVELS', f'LEVEL = 1 << {self.level}'
        yield 'LEVELS', 'LEVELS = (1 << 63) - LEVEL'
        yield 'MAKER', f'MAKER = {(1 << self.level - ROW) - 1}'
        for each in itertools.chain(*self.makers):
            begins = f'{each.number} << {ROW}'
            begins = f'LEVEL + ({begins})' if each.recurrent else begins
            yield each.name, f'{each.name} = {begins}'
        for name, index in self.constant_names.items():
            _, number = self.constant_place(index)
            yield name, f'{name} = {number}'

    def _record(self, w: Lines) -> Iterator[str]:
        yield 'def record(examples):'
        for each in self.tapes:
            yield f'{INDENT}{each.name} = []  # {each.about}'
        yield f'{INDENT}ends = []  # of each example: how long the tapes are behind it'
        for memo in self.memos:
            yield f'{INDENT}{memo} = {{}}  # by the key of an object: what it gave'
        if self.memos:
            yield f'{INDENT}kept = []  # the objects whose ids are keys'
        yield ''
        yield from self.functions
        yield f'{INDENT}for x in examples:'
        yield from without_unused(w.lines)
        if self.deep and not any('(yield ' in x for x in w.lines):
            yield f'{INDENT}yield from ()'
        tapes = s.in_parentheses([each.name for each in self.tapes])
        yield f'{INDENT}return ends, {tapes}'

    def _write_row(self, value: s.Symbol, r: int, inside: list[Any], w: Lines) -> None:
        """Writes a row of a result; of sequences in it, rows of their items."""
        texts: list[s.Tensor] = []
        inner = iter(inside)
        for leaf in row_leaves(value):
            if not isinstance(leaf, s.Items):
                texts.append(leaf)
                continue
            texts.append(w.constants(LENGTH, leaf.n, None, ('length', r)))
            number, more = next(inner)
            w.loop(leaf, 'item', functools.partial(self._write_item, number, more, w))
        self.observe(r, texts, w)

    def _write_item(self, r: int, inside: list[Any], w: Lines, item: s.Symbol) -> None:
        self._write_row(item, r, inside, w)

    def observe(self, r: int, leaves: Sequence[s.Tensor], w: Lines) -> None:
        """Writes that a row of a result is made of tensors."""
        key = 'result', r
        if r not in self.result_rows:
            self.result_rows[r] = Rows(key, columns=[None] * len(leaves))
        found = self.row_makers.setdefault(r, [0] * len(leaves))
        for k, each in enumerate(leaves):
            found[k] |= each.makers
            if each.use is not None:
                each.use[0].readers.add(None)
        if leaves:
            rows = self.result_rows[r]
            name = self.results[r].kind.name or ('items' if r else 'results')
            entries = w.entries(rows, leaves, name, str(self.results[r]))
            w.row(rows, entries[0][0] if entries else None)
            for tape, text in entries:
                w.add(tape, text)


def of(name: str, text: str) -> str:
    """A name for what a function gives of a variable."""
    return f'{name}_of_{text}' if text.isidentifier() and len(text) < 16 else name


@dataclass(frozen=True, eq=False)
class _Argument:
    """What a function is given in a variable."""

    like: s.Symbol
    name: str


def _opened(value: s.Symbol, w: Lines) -> s.Symbol:
    if isinstance(value, tuple):
        return tuple(_opened(each, w) for each in value)
    if isinstance(value, s.Endless):
        return s.Endless(_opened(value.item, w))
    if isinstance(value, _Argument):
        return w.unpacked(value.like, value.name)
    return value


# ---- rounds --------------------------------------------------------------------------


def settled(
    tables: Tables, chosen: Chosen, deep: bool = False
) -> tuple[Generator, str]:
    """The last round, and the text that it wrote."""
    facts = Facts()
    for _ in range(MOST_ROUNDS):
        round_ = Generator(tables, chosen, facts, deep)
        text = round_.write()
        found = round_.found()
        if round_.is_told_by(found):
            return round_, text
        facts = found
    raise AssertionError('jfold found no source, please report it')
