# SPDX-License-Identifier: Apache-2.0
"""Writing one function of the source: lines, variables, and what it records.

Rows that are made in straight lines (a *region*) which stand at no other place have one
number: they are *in step*. Only the first of them asks a tape for it, and what one
reads of another is not written down.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence, Set

from jfold.language import symbols as s
from jfold.language.names import identifier
from jfold.language.rounds import Round
from jfold.language.tapes import Maker, Region, Rows, Tape, Use
from jfold.language.typed import Typed
from jfold.language.values import blank_items, template_of, texts
from jfold.types import KeyType, TensorType, VoidType

INDENT = '    '
MOST_NESTED = 12  # loops and cases inside each other, of which Python allows 20

GROUND = 'ground'  # the level of constants
RETURNED: s.Symbol = s.Object('return')  # of what stands behind a `return`


class Writer(Round, abc.ABC):
    """A round that writes blocks, by the rule of each and as functions."""

    @abc.abstractmethod
    def rule(self, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
        """Writes one use of a block; the symbol of what it gives, or `RETURNED`."""

    @abc.abstractmethod
    def call(
        self, key: Hashable, name: str, node: Typed, value: s.Symbol, w: Lines
    ) -> s.Symbol:
        """A call of the function that evaluates a block; it is written once."""

    def outlined(self, node: Typed, value: s.Symbol, w: Lines) -> s.Symbol:
        """Writes a block as a function of its own, and calls it."""
        key = 'outlined', node, w.name
        return self.call(key, type(node.block).__name__, node, value, w)

    @abc.abstractmethod
    def observe(self, r: int, leaves: Sequence[s.Tensor], w: Lines) -> None:
        """Writes that a row of a result is made of tensors."""

    def returned(self, w: Lines, value: s.Symbol) -> None:
        """Writes that a value is that of a function."""
        self.joined((w.key, 'result'), template_of(value))
        w.line(f'return {s.packed(value)}')

    def label(self, r: int, text: str, w: Lines) -> None:
        """Writes that a row of a result has a label."""
        if r not in self.labels:
            name = f'{self.results[r].kind.name}_labels'
            self.labels[r] = self.tape(name, 'labels')
        w.add(self.labels[r], text)


class Lines:
    """The lines of one function.

    Attributes:
      count: the number of items, where what is written is done for all items of lists.
      tail: whether the value of what is written is that of the function.
      known: values of blocks that are used more than once.
      key: of the function, as the generator has it.
      arguments: the variables that the function is given.
      of_cases: those that were assigned to in cases, whose names are free again.
    """

    def __init__(self, g: Writer, name: str, depth: int, key: Hashable = None) -> None:
        self.g, self.name, self.depth, self.key = g, name, depth, key
        self.used: dict[str, int] = {}
        self.lines: list[str] = []
        self.variables: set[str] = set()
        self.arguments: set[str] = set()
        self.of_cases: set[str] = set()
        self.known: dict[Hashable, tuple[s.Symbol, s.Symbol]] = {}
        self.region = Region()
        self.count: str | None = None
        self.tail = False

    # ---- lines and variables

    def line(self, text: str) -> None:
        """Appends a line."""
        self.lines.append(INDENT * self.depth + text)
        where, node = self.g.where, self.g.node
        where[text] = node if where.setdefault(text, node) is node else None

    def renamed_last(self, old: str, new: str) -> bool:
        """Whether the last line assigns to a variable: it then is to another one."""
        head = INDENT * self.depth + f'{old} = '
        if not self.lines or not self.lines[-1].startswith(head):
            return False
        node = self.g.where.get(f'{old} = {self.lines[-1][len(head) :]}')
        text = f'{new} = {self.lines.pop()[len(head) :]}'
        outer, self.g.node = self.g.node, node
        self.line(text)
        self.g.node = outer
        return True

    def variable(self, wanted: str, others: Set[str] = frozenset()) -> str:
        """A variable of the function that nothing has been assigned to."""
        wanted = identifier(wanted)
        name, k = wanted, self.used.get(wanted, 1)
        taken = self.variables | others
        while name in taken or self.g.names.is_taken(name):
            k += 1
            name = f'{wanted}{k}'
        self.used[wanted] = k
        self.variables.add(name)
        self.g.names.local.add(name)
        return name

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Lines that are run as often as something else decides."""
        before = self.region, self.count, self.tail, dict(self.known)
        self.region, self.count = Region(), None
        self.depth += 1
        yield
        self.depth -= 1
        _, self.count, self.tail, self.known = before
        # What has been recorded in between has moved the tapes on.
        self.region = Region()

    @contextlib.contextmanager
    def case(self) -> Iterator[None]:
        """Lines of one case, of which others may name their variables alike."""
        before = {*self.variables}, dict(self.used)
        with self.nested():
            yield
        self.of_cases |= self.variables
        self.variables, self.used = before

    def assigned(self, wanted: str, value: s.Symbol) -> s.Symbol:
        """The value in variables of its own, which may be assigned to again."""
        return self._assign(value, lambda: self.variable(wanted))

    def _assign(self, value: s.Symbol, new: Callable[[], str]) -> s.Symbol:
        if isinstance(value, tuple):
            return tuple(self._assign(each, new) for each in value)
        if isinstance(value, s.Endless):
            return s.Endless(self._assign(value.item, new))
        if value is None:
            return None
        if isinstance(value, s.Items):
            n = self.variable('n')
            self.line(f'{n} = {value.n}')
            return s.Items(self._assign(value.items, new), n)
        name = new()
        self.line(f'{name} = {value.text}')
        return next(iter([s.renamed(value, iter([name]))]))

    def assign(self, targets: s.Symbol, value: s.Symbol) -> None:
        """Assigns a value to the variables of another, all at once."""
        pairs = [
            (target, given)
            for target, given in zip(texts(targets), texts(value), strict=True)
            if target != given
        ]
        if pairs:
            left, right = (', '.join(x) for x in zip(*pairs, strict=True))
            self.line(f'{left} = {right}')

    def held(self, value: s.Symbol, wanted: str) -> s.Symbol:
        """The value, in a variable if it is an object that a text computes."""
        if isinstance(value, s.Object) and not value.text.isidentifier():
            name = self.variable(wanted)
            self.line(f'{name} = {value.text}')
            return s.Object(name, value.kind)
        return value

    def unpacked(self, like: s.Symbol, text: str, wanted: str = 'part') -> s.Symbol:
        """What stands in one Python object, given the template of it."""
        if isinstance(like, tuple):
            names = [
                self.variable(wanted)
                if any(s.leaves(x)) or isinstance(x, s.Items)
                else '_'
                for x in like
            ]
            if any(x != '_' for x in names):
                self.line(f'{_targets(names)} = {text}')
            pairs = zip(like, names, strict=True)
            return tuple(self.unpacked(x, name, wanted) for x, name in pairs)
        if isinstance(like, s.Items):
            if not text.isidentifier():
                name = self.variable(wanted)
                self.line(f'{name} = {text}')
                text = name
            return s.Items(self.columns(like.items, text), f'len({text})')
        if isinstance(like, s.Endless):
            return s.Endless(self.unpacked(like.item, text, wanted))
        return None if like is None else s.renamed(like, iter([text]))

    def columns(self, like: s.Symbol, text: str) -> s.Symbol:
        """A list of packed values as lists of their leaves."""
        if isinstance(like, tuple):
            names = [self.variable('column') if any(s.leaves(x)) else '_' for x in like]
            if any(x != '_' for x in names):
                none = s.in_parentheses(['()' for _ in names])
                found = f'zip(*{text}) if {text} else {none}'
                self.line(f'{_targets(names)} = {found}')
            return tuple(
                self.columns(x, name) for x, name in zip(like, names, strict=True)
            )
        if isinstance(like, s.Endless):
            return s.Endless(self.columns(like.item, text))
        return None if like is None else s.renamed(like, iter([text]))

    # ---- values that several lines reach

    def joined(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """The value with all makers known of a place; adds its own to these."""
        return self.g.joined((self.name, key), value)

    # ---- loops

    def each(self, given: s.Items, wanted: str) -> s.Symbol:
        """Begins a loop over a sequence; the item."""
        lists = list(texts(given.items))
        names = [self.variable(wanted) for _ in lists]
        if not lists:
            self.line(f'for _ in range({given.n}):')
        elif len(lists) == 1:
            self.line(f'for {names[0]} in {lists[0]}:')
        else:
            self.line(f'for {", ".join(names)} in zip({", ".join(lists)}):')
        return self.element(given.items, iter(names))

    def element(self, items: s.Symbol, names: Iterator[str]) -> s.Symbol:
        """One item, given the variables of its leaves; sequences in it are packed."""
        if isinstance(items, tuple):
            return tuple(self.element(each, names) for each in items)
        if isinstance(items, s.Endless):
            return s.Endless(self.element(items.item, names))
        if isinstance(items, s.Nested):
            return s.Nested(next(names), items.item)
        return None if items is None else s.renamed(items, names)

    def opened(self, value: s.Symbol) -> s.Symbol:
        """An item, in which sequences are unpacked."""
        if isinstance(value, tuple):
            return tuple(map(self.opened, value))
        if isinstance(value, s.Endless):
            return s.Endless(self.opened(value.item))
        if isinstance(value, s.Nested):
            return self.unpacked(value.item, value.text)
        return value

    def collected(self, at: int, value: s.Symbol, wanted: str) -> s.Symbol:
        """Appends a value to lists, which are made above line `at`; the lists."""
        if isinstance(value, tuple):
            return tuple(self.collected(at, each, wanted) for each in value)
        if isinstance(value, s.Endless):
            return s.Endless(self.collected(at, value.item, wanted))
        if value is None:
            return None
        wanted = f'{wanted}s' if not wanted.endswith('s') else wanted
        name = self.variable(wanted, self.of_cases)  # it is there before the cases
        self.lines.insert(at, INDENT * (self.depth - 1) + f'{name} = []')
        self.line(f'{name}.append({s.packed(value)})')
        if isinstance(value, s.Items):
            return s.Nested(name, blank_items(value))
        return s.renamed(value, iter([name]))

    def loop(
        self,
        given: s.Items,
        wanted: str,
        body: Callable[[s.Symbol], s.Symbol],
        result: str = '',
        then: Callable[[], None] = lambda: None,
    ) -> s.Symbol:
        """A loop: `body` of an item, and `then`; what the body gives of each item, in
        lists, if that has a name."""
        at, before = len(self.lines), len(self.lines)
        item = self.each(given, wanted)
        made = None
        with self.nested():
            value = body(self.opened(item))
            if result:
                made = self.collected(at, value, result)
            then()
            if len(self.lines) == before + 1:
                self.line('pass')
        return made

    # ---- blocks inside

    def part(self, node: Typed | None, value: s.Symbol, tail: bool = False) -> s.Symbol:
        """Writes a block inside another; what is written already is used again."""
        assert node is not None
        given = None if isinstance(node.input, VoidType) else value
        key = node, _identity(given), self.count
        if node.shared and key in self.known:
            return self.known[key][1]
        before, self.tail = self.tail, self.tail and tail
        outer, self.g.node = self.g.node, node
        if self.depth > MOST_NESTED:
            made = self.g.outlined(node, given, self)
        else:
            made = self.g.rule(node, given, self)
        self.tail, self.g.node = before, outer
        if node.shared and not node.draws and made is not RETURNED:
            made = self.held(made, 'value')
            self.known[key] = given, made
        return made

    def call(self, text: str) -> str:
        """The text of a call of a function of the source."""
        self.region = Region()  # the call has moved the tapes on
        return f'(yield {text})' if self.g.deep else text

    # ---- rows

    def row(self, rows: Rows, tape: Tape | None) -> str:
        """The number of the next row, or of the next rows; rows of makers that stand in
        one place alone are in step.

        Args:
          tape: one of the tapes of these rows, if they have any.
        """
        self.g.places[rows.key] = self.g.places.get(rows.key, 0) + 1
        region = self.region
        is_alone = self.g.is_alone(rows.key)
        if is_alone and region.counter is not None:
            rows.counter = region.counter
            return region.row
        assert tape is not None
        rows.counter = tape
        if not is_alone and self.count is None:
            return tape.rows
        name = self.variable('row')
        self.line(f'{name} = {tape.rows}')
        if is_alone:
            region.row, region.counter = name, tape
        return name

    def add(self, tape: Tape, text: str) -> None:
        """Puts an entry on a tape, or one for each item of lists."""
        self.line(f'{tape.name}.{"append" if self.count is None else "extend"}({text})')

    def numbers(self, base: str, row: str) -> str:
        """The text of numbers that begin with `base`."""
        if self.count is None:
            return f'{base} + {row}'
        return f'range({base} + {row}, {base} + {row} + {self.count})'

    def constant(self, index: int, wanted: str = 'CONSTANT') -> s.Tensor:
        """One of the program's constants."""
        type_, _ = self.g.constant_place(index)
        name = self.g.constant_name(index, wanted)
        text = name if self.count is None else f'([{name}] * {self.count})'
        return s.Tensor(text, type_, level=GROUND)

    def constants(
        self,
        type_: TensorType,
        text: str,
        below: int | None = None,
        site: object = None,
    ) -> s.Tensor:
        """A constant of the example, or one of each item; `site` is the use of a block
        that makes it."""
        maker, tape = self.g.own_constants(type_, below, site)
        row = self.row(maker.rows, tape)
        number, step = self._numbered(maker, maker.name, row, 'number')
        self.add(tape, text)
        return s.Tensor(number, maker.type, 0, step, level=GROUND)

    def _numbered(
        self, maker: Maker, base: str, row: str, wanted: str
    ) -> tuple[str, tuple[Region, Maker] | None]:
        """The text of the number of a row, and its step; in a variable, unless in
        step."""
        number = self.numbers(base, row)
        if self.region.row == row and not maker.recurrent:
            return number, (self.region, maker)
        name = self.variable(wanted)
        self.line(f'{name} = {number}')
        return name, None

    def keys(self, streams: Sequence[str]) -> list[s.Tensor]:
        """Keys to draw with, one of each stream."""
        none = 'None' if self.count is None else f'[None] * {self.count}'
        return [self.constants(KeyType(name), none) for name in streams]

    def apply(self, o: int, given: list[s.Tensor]) -> list[s.Tensor]:
        """The outputs of an operation, which is recorded."""
        g, use = self.g, Use(o, given)
        types = g.outputs_of(o)
        if o in g.inside:  # a part of the one operation that reads it
            return [s.Tensor('', t, 0, None, (use, k)) for k, t in enumerate(types)]
        if g.inside:
            o, given = g.expanded(use)
        for each in given:
            if each.use is not None:
                each.use[0].readers.add(use)
        g.uses.append(use)
        outputs = self._record(o, given)
        return [
            s.Tensor(x.name, x.type, x.makers, x.step, (use, k), use)
            for k, x in enumerate(outputs)
        ]

    def _record(self, o: int, given: list[s.Tensor]) -> list[s.Tensor]:
        g = self.g
        o = g.applied(o, given, self.key)
        rows, made = g.rows_of(o, len(given)), g.makers_of(o)
        name = g.operation_name(o)
        entries = self.entries(rows, given, name, g.about(o))
        tape = entries[0][0] if entries else None
        if tape is None and not self.is_in_step(
            rows
        ):  # nothing is read that tells rows
            tape = rows.counter or g.tape(name, g.about(o))
            entries = [(tape, '0' if self.count is None else f'[0] * {self.count}')]
        row = self.row(rows, tape)
        outputs = []
        for maker, base in zip(made, self._bases(o, given, made), strict=True):
            number, step = self._numbered(maker, base, row, name)
            bit = g.bit(o, maker.output)
            outputs.append(s.Tensor(number, maker.type, bit, step))
        for each, text in entries:
            self.add(each, text)
        return outputs

    def is_in_step(self, rows: Rows) -> bool:
        """Whether the next row has the number of the rows of the region."""
        return self.g.is_alone(rows.key) and self.region.counter is not None

    def entries(
        self, rows: Rows, given: Sequence[s.Tensor], name: str, about: str
    ) -> list[tuple[Tape, str]]:
        """What a row puts on which tapes: all that is not made in step."""
        in_step, made = self.is_in_step(rows), []
        for k, each in enumerate(given):
            if in_step and each.step is not None and each.step[0] is self.region:
                rows.columns[k] = each.step[1]
                continue
            column = rows.columns[k]
            if not isinstance(column, Tape):
                wanted = f'{name}_{_letter(k)}'
                column = rows.columns[k] = self.g.tape(wanted, about)
            made.append((column, each.name))
        return made

    def _bases(self, o: int, given: list[s.Tensor], made: Sequence[Maker]) -> list[str]:
        """What the numbers of the outputs begin with: the level of the inputs, and the
        maker, whose name stands for one level more."""
        g = self.g
        if not g.is_recurrent(o):
            return [each.name for each in made]
        # One number of each level will do, as of the outputs of one row.
        levels: dict[object, str] = {}
        for each in given:
            if text := g.level_text(o, each):
                levels.setdefault(text if each.level is None else each.level, text)
        own = list(dict.fromkeys(levels.values()))
        if not own:
            return [each.name for each in made]
        assert self.count is None
        top = own[0]
        if len(own) == 2:
            top = f'({own[0]} if {own[0]} > {own[1]} else {own[1]})'
        elif len(own) > 2:
            top = f'max({", ".join(own)})'
        above = f'({top} & LEVELS)'
        if len(made) > 1:
            name = self.variable('level')
            self.line(f'{name} = {top} & LEVELS')
            above = name
        return [f'{above} + {each.name}' for each in made]


def _targets(names: list[str]) -> str:
    """The left side of an assignment."""
    return f'{", ".join(names)}{"," if len(names) == 1 else ""}'


def _letter(k: int) -> str:
    """A name for one of several inputs."""
    return 'abcdefghijkl'[k] if k < 12 else str(k)


def _identity(value: s.Symbol) -> Hashable:
    return value.name if isinstance(value, s.Tensor) else id(value)
