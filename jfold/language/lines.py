# SPDX-License-Identifier: Apache-2.0
"""The writer of one function of the source: its lines, variables and entries on tapes.

Source appends to *tapes*: lists, with an entry per row and operand. A *region* is code
without loops, cases or calls inside. Operations that are applied in one region alone
are *in step*: a run of the region adds one row to each, so all have one row index. The
first operation takes it from the length of a tape; an operand that the region made
needs no entry.

Values are symbols, `like` is a template (`symbols`). To write something is to append
its lines to a `Lines`, here `w`; `text` is a Python expression, and `wanted` a name,
numbered if it is taken. Each class of blocks has one rule, registered with `write`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.names import INDENT, free_names, identifier, item_name, list_name
from jfold.language.symbols import Maker, Region, Rows, Tape, Use
from jfold.language.typed import TypedUse
from jfold.types import TensorType, VoidType

if TYPE_CHECKING:
    from jfold.language.generate import Generator

LONG = 40  # characters of the text of a level, from which it has a line
MOST_NESTED = 12  # nested loops and cases, of which Python allows 20

GROUND = 'ground'  # `s.Tensor.level` of all constants
RETURNED: s.Symbol = s.Object('return')  # stands for a value after its `return`


class Lines:
    """A writer of one generated Python function, with its lines so far.

    Attributes:
      g: the round that the function is written in.
      key: the key of the function in `g.written`; `None` for `record`.
      variables: the names of all variables of the function.
      arguments: the names of its parameters.
      of_cases: the variables of cases already written, which later code may reuse.
      known: a memo of blocks with several uses: (operand, value) by use and operand.
      region: the straight-line code that the next line belongs to.
      tail: whether the function returns the value of the block that is being written.
    """

    def __init__(self, g: Generator, name: str, key: Hashable = None) -> None:
        self.g, self.name, self.key = g, name, key
        self.depth = 2
        self.used: dict[str, int] = {}
        self.lines: list[str] = []
        self.variables: set[str] = set()
        self.arguments: set[str] = set()
        self.of_cases: set[str] = set()
        self.known: dict[Hashable, tuple[s.Symbol, s.Symbol]] = {}
        self.region = Region()
        self.tail = False

    # ---- lines and variables

    def line(self, text: str) -> None:
        """Append line `text`, indented by `depth`; note which block writes it."""
        self.lines.append(INDENT * self.depth + text)
        # If several blocks write this line, it names none of them.
        where, node = self.g.where, self.g.node
        where[text] = node if where.setdefault(text, node) is node else None

    def renamed_last(self, old: str, new: str) -> bool:
        """Rename `old` to `new` if the last line assigns it; return whether it does."""
        head = INDENT * self.depth + f'{old} = '
        if not self.lines or not self.lines[-1].startswith(head):
            return False
        node = self.g.where.get(f'{old} = {self.lines[-1][len(head) :]}')
        text = f'{new} = {self.lines.pop()[len(head) :]}'
        outer, self.g.node = self.g.node, node
        self.line(text)
        self.g.node = outer
        return True

    def variable(self, *wanted: str, others: Set[str] = frozenset()) -> str:
        """Return a new variable name: the first of `wanted` that is not taken.

        If all are, the last is numbered: `word2`. Names in `others` are taken too.
        """
        (name,) = self.variables_for(1, *wanted, others=others)
        return name

    def variables_for(
        self, count: int, *wanted: str, others: Set[str] = frozenset()
    ) -> list[str]:
        """Return new names for `count` parts of a value, as `variable` does for one."""

        def is_taken(name: str) -> bool:
            return name in self.variables or name in others or of_source(name)

        of_source = self.g.names.is_taken
        names = free_names(count, [*map(identifier, wanted)], is_taken, self.used)
        self.variables.update(names)
        self.g.names.local.update(names)
        return names

    @contextlib.contextmanager
    def indented(self) -> Iterator[None]:
        """Indent lines written in a `with` block."""
        self.depth += 1
        yield
        self.depth -= 1

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Indent lines written in a `with` block: the body of a loop or case.

        The memo `known` is empty in the body, and restored behind it: a body that does
        not run computes nothing.
        """
        before = self.tail, self.known
        self.region, self.known = Region(), {}
        with self.indented():
            yield
        self.tail, self.known = before
        # The nested lines may have appended rows: indices from before do not hold.
        self.region = Region()

    def variables_like(self, value: s.Symbol, wanted: str) -> s.Symbol:
        """Return `value` with each leaf and length a new variable, called `wanted`."""
        names = iter(self.variables_for(len([*s.leaves(value)]), wanted))

        def part(x: s.Leaf | s.Items) -> s.Symbol:
            if isinstance(x, s.Items):
                n = self.variable('n', f'n_of_{wanted}')
                return s.Items(s.renamed(x.items, names), n)
            return s.renamed(x, names)

        return s.map_parts(part, value)

    def assigned(self, wanted: str, value: s.Symbol) -> s.Symbol:
        """Write code that assigns `value` to new variables `wanted`; return these."""
        result = self.variables_like(value, wanted)
        for name, text in zip(s.texts(result), s.texts(value), strict=True):
            self.line(f'{name} = {text}')
        return result

    def assign(self, targets: s.Symbol, value: s.Symbol) -> None:
        """Write a line `a, b = c, d` that assigns `value` to variables `targets`."""
        texts = zip(s.texts(targets), s.texts(value), strict=True)
        if pairs := [pair for pair in texts if pair[0] != pair[1]]:
            left, right = (', '.join(x) for x in zip(*pairs, strict=True))
            self.line(f'{left} = {right}')

    def held(self, value: Any) -> Any:
        """Write code that puts an object into a variable; return the variable.

        A variable, or a value that is no object, is returned as it is.
        """
        if isinstance(value, s.Object) and not value.text.isidentifier():
            name = self.variable('value')
            self.line(f'{name} = {value.text}')
            return s.Object(name, value.kind)
        return value

    def unpacked(
        self, like: s.Symbol, text: str, wanted: str = 'part', zipped: bool = False
    ) -> s.Symbol:
        """Write code to unpack `text` into `wanted` variables, nested as `like`.

        Return these. If `zipped`, `text` is a list of items: a variable gets one leaf
        of all of them.
        """
        if isinstance(like, tuple):
            filled = [any(s.parts(x)) for x in like]
            new = iter(self.variables_for(sum(filled), wanted))
            names = [next(new) if x else '_' for x in filled]
            if any(x != '_' for x in names):
                none = s.in_parentheses(['()' for _ in names])
                right = f'zip(*{text}) if {text} else {none}' if zipped else text
                self.line(f'{s.unpacking(names)} = {right}')
            pairs = zip(like, names, strict=True)
            return tuple(self.unpacked(x, name, name, zipped) for x, name in pairs)
        if isinstance(like, s.Items):
            if not text.isidentifier():
                name = self.variable(wanted)
                self.line(f'{name} = {text}')
                text = name
            items = self.unpacked(like.items, text, list_name(text), zipped=True)
            return s.Items(items, f'len({text})')
        if isinstance(like, s.Endless):
            return s.Endless(self.unpacked(like.item, text, wanted, zipped))
        return None if like is None else s.renamed(like, iter([text]))

    def joined(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """Return `value` with the producers of all values that meet at join `key`."""
        return self.g.joined((self.name, key), value)

    def opened(self, value: s.Symbol) -> s.Symbol:
        """Write code that unpacks lists nested in item `value`; return it unpacked."""

        def leaf(x: s.Leaf) -> s.Symbol:
            return self.unpacked(x.item, x.text) if isinstance(x, s.Nested) else x

        return s.map_leaves(leaf, value)

    def collected(self, at: int, value: s.Symbol) -> s.Symbol:
        """Write code that appends a value to lists, made at line `at`; return these."""

        def part(x: s.Leaf | s.Items) -> s.Symbol:
            # The list is made above the loop, so no case in the loop may use its name.
            text = s.packed(x)
            name = self.variable(list_name(text), others=self.of_cases)
            self.lines.insert(at, INDENT * (self.depth - 1) + f'{name} = []')
            self.line(f'{name}.append({text})')
            return s.in_list(x, name)

        return s.map_parts(part, value)

    def loop(
        self,
        sequence: s.Items,
        body: Callable[[s.Symbol], s.Symbol],
        collects: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> Any:
        """Write a loop over a sequence: `body(item)` writes its lines, then `then()`.

        Return lists of the values of `body` if it `collects` them, else `None`.
        """
        at, lists = len(self.lines), list(s.texts(sequence.items))
        names, collected = [self.variable(item_name(x)) for x in lists], None
        several = f'zip({", ".join(lists)})' if len(lists) > 1 else ''.join(lists)
        left, right = ', '.join(names) or '_', several or f'range({sequence.n})'
        self.line(f'for {left} in {right}:')
        with self.nested():
            # Sequences in an item are packed.
            value = body(self.opened(s.renamed(sequence.items, iter(names))))
            if collects:
                collected = self.collected(at, value)
            then()
            if len(self.lines) == at + 1:
                self.line('pass')
        return collected

    # ---- blocks inside

    def part(self, node: TypedUse, value: s.Symbol, tail: bool = False) -> Any:
        """Return an inner block's result on `value`; write its code if not yet written.

        With `tail`, where the outer block returns the value unchanged, the code may end
        in a `return` statement; then `RETURNED` is returned.
        """
        read = None if isinstance(node.input, VoidType) else value
        identity = read.name if isinstance(read, s.Tensor) else id(read)
        key = node, identity
        if node.shared and key in self.known:
            return self.known[key][1]
        before, self.tail = self.tail, self.tail and tail
        outer, self.g.node = self.g.node, node
        if self.depth > MOST_NESTED:
            name = type(node.block).__name__
            result = self.g.call(('outlined', node, self.name), name, node, read, self)
        else:
            result = write(node.block, node, read, self)
        self.tail, self.g.node = before, outer
        if node.shared and not node.draws and result is not RETURNED:
            result = self.held(result)
            self.known[key] = read, result
        return result

    # ---- rows

    def row(self, rows: Rows, entries: Sequence[tuple[Tape, str]]) -> str:
        """Return source text for the index of the next row in `rows`.

        It is the row index of the region if in step, else the length of the first tape
        in `entries`.
        """
        region, is_alone = self.region, self.g.is_alone(rows.key)
        # In step: the index of the region's rows, which is in a variable, holds here.
        if is_alone and region.counter is not None:
            rows.counter = region.counter
            return region.row
        rows.counter = tape = entries[0][0]
        if not is_alone:
            return tape.rows
        own = f'{re.sub("_[a-l]$", "", tape.name)}_row'  # less the letter of an input
        region.row, region.counter = self.variable('row', own), tape
        self.line(f'{region.row} = {tape.rows}')
        return region.row

    def add(self, tape: Tape, text: str) -> None:
        """Write `tape.append(text)`."""
        self.line(f'{tape.name}.append({text})')

    def constant(self, index: int, *wanted: str) -> s.Tensor:
        """Return the program's constant `index` as an expression; write no code."""
        (result,) = self.constants_for([index], *wanted or ('CONSTANT',))
        return result

    def constants_for(self, indices: list[int], *wanted: str) -> list[s.Tensor]:
        """Return the program's constants `indices`, the parts of one value."""
        names = self.g.constant_names_for(indices, *wanted)
        types = [self.g.tables.constants[index][0] for index in indices]
        pairs = zip(names, types, strict=True)
        return [s.Tensor(name, type_, level=GROUND) for name, type_ in pairs]

    def constants(
        self,
        type_: TensorType,
        text: str,
        below: int | None = None,
        site: object = None,
    ) -> s.Tensor:
        """Write code that records object `text` as a constant; return its row number.

        Ints must be in `[0, below)`, if given; `site` is the block use that reads it.
        """
        maker, rows, tape = self.g.own_constants(type_, below, site, text)
        self.g.seen.statements[rows.key] += 1
        row = self.row(rows, [(tape, text)])
        (number,) = self._numbers([maker], [maker.name], row, 'number')
        self.add(tape, text)
        return replace(number, level=GROUND)

    def _numbers(
        self, makers: list[Maker], bases: list[str], row: str, wanted: str
    ) -> list[s.Tensor]:
        """Return row numbers, `base + row`; if not in step, in variables `wanted`."""
        texts = [f'{base} + {row}' for base in bases]
        if self.region.row == row and not makers[0].recurrent:
            pairs = zip(makers, texts, strict=True)
            return [s.Tensor(x, m.type, step=(self.region, m)) for m, x in pairs]
        names = self.variables_for(len(makers), wanted)
        for name, text in zip(names, texts, strict=True):
            self.line(f'{name} = {text}')
        return [s.Tensor(x, m.type) for m, x in zip(makers, names, strict=True)]

    def apply(self, o: int, inputs: list[s.Tensor]) -> list[s.Tensor]:
        """Write code that records operation `o` on `inputs`; return its outputs."""
        g, use, chosen = self.g, Use(o, inputs), self.g.chosen
        if o in chosen.inside:  # fused into its reader, which records both
            types = enumerate(g.tables.listed[o].outputs)
            return [s.Tensor('', type_, use=(use, k)) for k, type_ in types]
        if chosen.inside:
            inputs = chosen.outside_inputs(o, inputs, lambda _, x: x.use[0].inputs)
            o = chosen.number.get(o, o)
        g.uses.append(use)
        place, o = g.applied(o, inputs, use)
        rows, makers = g.rows_of('operation', o, len(inputs)), g.makers_of(o)
        name, about = identifier(g.operations[o].layer.name), g.operations[o]
        entries = self.entries(rows, inputs, name, about)
        # Without any entry nothing would count the rows: a tape of zeros does.
        if not entries and not self.is_in_step(rows):
            tape = rows.counter or g.tape(about, name)
            entries = [(tape, '0')]
        row, outputs = self.row(rows, entries), []
        bases = self._bases(o, inputs, makers)
        numbers = self._numbers(makers, bases, row, name) if makers else []
        for maker, number in zip(makers, numbers, strict=True):
            k = maker.output
            made = replace(number, makers=g.bit(place, k), use=(use, k), level=use)
            outputs.append(made)
        for column, text in entries:
            self.add(column, text)
        return outputs

    def is_in_step(self, rows: Rows) -> bool:
        """Return whether a new row of `rows` has the index of the region's rows."""
        return self.g.is_alone(rows.key) and self.region.counter is not None

    def entries(
        self, rows: Rows, inputs: Sequence[s.Tensor], name: str, about: object
    ) -> list[tuple[Tape, str]]:
        """Return (tape, expression) for each input that has to be put on a tape.

        `rows` is the table of the inputs; new tapes get `name` and the comment `about`.
        """
        in_step, result = self.is_in_step(rows), []
        for k, tensor in enumerate(inputs):
            if in_step and tensor.step is not None and tensor.step[0] is self.region:
                rows.columns[k] = tensor.step[1]
                continue
            column = rows.columns[k]
            if not isinstance(column, Tape):
                wanted = f'{name}_{"abcdefghijkl"[k] if k < 12 else k}'
                about = str(about)  # once: it may name a thousand inputs
                column = rows.columns[k] = self.g.tape(about, wanted)
            result.append((column, tensor.name))
        return result

    def _bases(
        self, o: int, inputs: list[s.Tensor], makers: Sequence[Maker]
    ) -> list[str]:
        """Return, for each of `makers`, the text `base` of row numbers `base + row`."""
        g = self.g
        # The level is one above the highest input; the constant `maker.name` adds the
        # one. Of inputs on one level, such as outputs of one row, one number will do.
        levels: dict[object, str] = {}
        for tensor in inputs if g.is_recurrent(o) else ():
            if text := g.level_text(o, tensor):
                levels.setdefault(text if tensor.level is None else tensor.level, text)
        highest = list(dict.fromkeys(levels.values()))
        if not highest:
            return [maker.name for maker in makers]
        top = highest[0]
        if len(highest) == 2:
            top = f'({highest[0]} if {highest[0]} > {highest[1]} else {highest[1]})'
        elif len(highest) > 2:
            top = f'max({", ".join(highest)})'
        above = f'({top} & LEVELS)'
        if len(makers) > 1 or len(above) > LONG:
            above = self.variable('level')
            self.line(f'{above} = {top} & LEVELS')
        return [f'{above} + {maker.name}' for maker in makers]


@functools.singledispatch
def write(block: b.Block, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    """Write source that evaluates a block on `value` into `w`; return its result.

    The result is a symbol; `RETURNED` if the source has returned it.
    """
    raise NotImplementedError(f'writing has no rule for {block!r}')
