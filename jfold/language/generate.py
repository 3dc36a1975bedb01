# SPDX-License-Identifier: Apache-2.0
"""A typed expression → the source of the function that records its graphs.

The source is written in rounds. What values may be in a place that several of them
reach, which operations read their own results, and what stands in one place alone is
taken from the round before; nothing of it is known in the first one. Once a round finds
what it was told, its text is the source.
"""

from __future__ import annotations

import builtins
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jfold import combinators as c
from jfold.language import symbols as s
from jfold.language.lines import (
    INDENT,
    RETURNED,
    ROW,
    Lines,
    Maker,
    Rows,
    Tape,
    Use,
    identifier,
)
from jfold.language.tables import Tables
from jfold.language.typed import Typed
from jfold.operations import Makers, Operation, Operations, Sources
from jfold.recurrence import component_of, components, results_in
from jfold.result_tables import LENGTH, Result, in_row
from jfold.tracing.helpers import HELPERS
from jfold.tracing.recorder import Column, Place, Recording
from jfold.types import KeyType, SequenceType, TensorType, Type, terminals

MOST_ROUNDS = 64
FEW_SITES = 4
LEVELS = 20  # bits of a level at least


@dataclass(frozen=True)
class Facts:
    """What a round has found, and the next one is told.

    Attributes:
      places: how often makers stand in the text, by the keys of their rows.
      joined: the makers of values that several lines reach, by place.
      inputs: per operation and input, the outputs that it may be.
      results: the same per result and tensor.
      split: the operation of each place, where each has one of its own.
      sites: by type and bound, the uses of blocks that make constants.
    """

    places: Mapping[Hashable, int] = field(default_factory=dict)
    joined: Mapping[Hashable, tuple[Makers, ...]] = field(default_factory=dict)
    inputs: tuple[tuple[Makers, ...], ...] = ()
    results: tuple[tuple[Makers, ...], ...] = ()
    split: tuple[int, ...] = ()
    sites: Mapping[Hashable, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A place where a function calls another.

    Attributes:
      where: the path of the block.
      tensors: whether it is given any.
    """

    caller: Hashable
    callee: Hashable
    where: str
    tensors: bool


@dataclass(frozen=True, eq=False)
class Chosen:
    """Which operations there are, of those that the expression applies.

    Attributes:
      operations: in the order that numbers them.
      number: by the number of one that is applied; of a part that of the whole.
      feeds: per one that is applied, who makes its inputs inside of it, if anybody.
      inside: those that are parts of others.
      split: whether each place has an operation of its own.
      kinds: the operation of each place, where places are told apart.
    """

    operations: tuple[Operation, ...] | None = None
    number: Mapping[int, int] = field(default_factory=dict)
    feeds: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    inside: frozenset[int] = frozenset()
    split: bool = False
    kinds: tuple[int, ...] | None = None


# Names that rules write as they are: in any line, and as variables of a function.
TAKEN = (
    *('examples', 'ends', 'kept', 'record', 'LEVEL', 'LOW', 'MAKER'),
    *('y', 'z', 'u', 'v', 'k', 'key', 'group', 'entries'),
)
WRITTEN = 'x', 'n', 'items', 'made'


class Generator:
    """One round: writes the source with what is known, and finds out more.

    Attributes:
      places, joins, inputs, row_makers: what is found; see `Facts`.
      uses: the applications of operations.
      grouped: operations that are applied to groups of items.
      where: what wrote a line, or has a name; `None` if several did.
    """

    def __init__(
        self, tables: Tables, chosen: Chosen, facts: Facts, deep: bool = False
    ) -> None:
        self.tables, self.typing = tables, tables.typing
        self.chosen, self.facts, self.deep = chosen, facts, deep
        self.inside = chosen.inside
        self.places: dict[Hashable, int] = {}
        self.joins: dict[Hashable, list[Makers]] = {}
        self.inputs: dict[int, list[Makers]] = {}
        self.row_makers: dict[int, list[Makers]] = {}
        self.uses: list[Use] = []
        self.calls: list[Call] = []
        self.applied_in: dict[Hashable, set[int]] = {}
        self.loops_written: list[str] = []
        self.groups_written: list[tuple[str, int]] = []
        self.split_of: Sequence[int] = ()
        self.untouched: dict[Hashable, list[tuple[Hashable, str]]] = {}
        self.grouped: set[int] = set()
        self.node: Typed | None = None  # what is being written
        self.where: dict[str, Typed | None] = {}
        self.bits = [0]  # per operation, that of its first output
        self.local: set[str] = {*WRITTEN}
        self.constant_names: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.name_of: dict[int, str] = {}
        self.tables_of: dict[Any, dict[Any, Any]] = {}
        self.names: dict[str, Any] = dict(HELPERS)
        self.taken: set[str] = {*TAKEN}
        self.tapes: list[Tape] = []
        self.rows: dict[Hashable, Rows] = {}
        self.makers: list[list[Maker]] = []
        self.by_output: dict[tuple[int, int], Maker] = {}
        self.own: dict[tuple[Any, ...], tuple[Maker, Tape]] = {}
        self.sites: dict[Hashable, dict[Any, None]] = {}
        self.result_rows: dict[int, Rows] = {}
        self.labels: dict[int, Tape] = {}
        self.functions: list[str] = []
        self.written: dict[Hashable, str] = {}
        self.header: list[str] = []
        self.memos: list[str] = []
        self.applications = 0
        self.results = [
            Result(kind, row, tuple(map(tables.type_number, in_row(row))))
            for kind, row in self.typing.results
        ]
        self._recurrence()

    # ---- what is known of operations

    def _recurrence(self) -> None:
        """The components of the operations that are known."""
        self.part: tuple[int, ...] = ()
        self.loops: tuple[bool, ...] = ()
        known = len(self.facts.inputs)
        if not known:
            return
        operations = self._operations()[:known]
        made = self.program(operations)
        self.part = component_of(made)
        self.loops = tuple(components(made)[x].recurrent for x in self.part)
        outputs = [len(each.outputs) for each in operations]
        self.owner = [o for o, n in enumerate(outputs) for _ in range(n)]
        self.first = [0, *itertools.accumulate(outputs)]
        in_part: dict[int, Makers] = {}
        recurrent = 0
        for bit, o in enumerate(self.owner):
            in_part[self.part[o]] = in_part.get(self.part[o], 0) | 1 << bit
            recurrent |= self.loops[o] << bit
        self.in_part, self.in_loops = in_part, recurrent

    def program(self, operations: Sequence[Operation]) -> Operations:
        """What the device is to run, as far as it is known."""
        return Operations(
            types=tuple(self.tables.types),
            layers=self.typing.layers,
            operations=tuple(operations),
            constants=tuple(self.tables.constants),
            results=tuple(self.results),
            sources=Sources(self.facts.inputs, self.facts.results),
        )

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations there are."""
        return self._operations()

    def _operations(self) -> Sequence[Operation]:
        if self.chosen.split:
            assert self.chosen.operations is not None
            places = max(self.split_of, self.facts.split, key=len)
            return [self.chosen.operations[o] for o in places]
        if self.chosen.operations is not None:
            return self.chosen.operations
        return self.tables.listed

    def is_recurrent(self, o: int) -> bool:
        """Whether an operation reads its own results, as far as is known."""
        return o < len(self.loops) and self.loops[o]

    def outputs_of(self, o: int) -> tuple[int, ...]:
        """The types of the outputs of an operation that the expression applies."""
        return self.tables.listed[o].outputs

    def operation_name(self, o: int) -> str:
        """A name for what an operation makes."""
        return identifier(self._operations()[o].layer.name)

    def about(self, o: int) -> str:
        """A comment on what an operation's tape holds."""
        return repr(self._operations()[o])

    def expanded(self, use: Use) -> tuple[int, list[s.Tensor]]:
        """The operation with all that is inside of it, and the inputs of these."""
        o, given = use.operation, use.given
        if o not in self.chosen.number:
            return o, given
        return self.chosen.number[o], self._given(o, given)

    def _given(self, o: int, given: Sequence[s.Tensor]) -> list[s.Tensor]:
        feeds = self.chosen.feeds.get(o, (None,) * len(given))
        pairs = list(zip(given, feeds, strict=True))
        made: list[s.Tensor] = []
        for use in dict.fromkeys(each.use[0] for each, feed in pairs if feed):
            made += self._given(use.operation, use.given)
        return made + [each for each, feed in pairs if not feed]

    def applied(self, o: int, given: Sequence[s.Tensor], w: Lines) -> int:
        """The operation of one place; says what it reads there."""
        if self.chosen.split:
            self.split_of = (*self.split_of, o)
            o = len(self.split_of) - 1
        elif self.chosen.kinds is not None:
            o = self.chosen.kinds[self.applications]
            self.applications += 1
        self.applied_in.setdefault(self.key_of(w), set()).add(o)
        found = self.inputs.setdefault(o, [0] * len(given))
        for k, each in enumerate(given):
            found[k] |= each.makers
        return o

    def group_operation(self, o: int, node: Typed, size: int) -> int:
        """The operation of groups of a size; one that is applied to groups is joined to
        none."""
        self.grouped.add(o)
        return self.chosen.number.get(o, o)

    def reads_own_level(self, o: int) -> bool:
        """Whether an operation's level is that of its inputs."""
        o = self.chosen.number.get(o, o)
        return self.is_recurrent(o)

    def bit(self, o: int, output: int) -> Makers:
        """The bit of an output among those of all operations."""
        while len(self.bits) <= o:
            last = self._operations()[len(self.bits) - 1]
            self.bits.append(self.bits[-1] + len(last.outputs))
        return 1 << self.bits[o] + output

    def level_text(self, o: int, each: s.Tensor) -> str:
        """The text of a number whose level counts; '' if none does."""
        own = self.in_part[self.part[o]]
        if not each.makers & own:
            return ''
        if not each.makers & self.in_loops & ~own:
            return each.name
        numbers = {
            self.by_output_bit(bit).number
            for bit in results_in(own)
            if self.by_output_bit(bit).type == each.type
        }
        name = f'makers_{self.part[o]}_{each.type}'
        self.names[name] = frozenset(numbers)
        return f'({each.name} if {each.name} >> {ROW} & MAKER in {name} else 0)'

    def by_output_bit(self, bit: int) -> Maker:
        """Who makes an output."""
        o = self.owner[bit]
        return self.makers_of(o)[bit - self.first[o]]

    # ---- names

    def is_taken(self, name: str) -> bool:
        """Whether a name means something already."""
        return name in self.taken or name in self.names or hasattr(builtins, name)

    def name(self, wanted: str) -> str:
        """A name that means nothing yet, in any function."""
        made = self.unused(identifier(wanted), lambda x: x in self.local)
        self.taken.add(made)
        return made

    def unused(self, wanted: str, known: Callable[[str], bool]) -> str:
        """The name, with a number if it means something already."""
        made, k = wanted, self.used.get(wanted, 1)
        while self.is_taken(made) or known(made):
            k += 1
            made = f'{wanted}{k}'
        self.used[wanted] = k
        return made

    def given(self, wanted: str, value: Any) -> str:
        """The name of a value that the source is given."""
        if isinstance(value, type | type(len)) and value.__module__ == 'builtins':
            if getattr(builtins, value.__name__, None) is value:
                return value.__name__
        if id(value) not in self.name_of:  # which `names` keeps its own
            name = self.name_of[id(value)] = self.name(wanted)
            self.names[name] = value
            self.where[name] = self.node
        return self.name_of[id(value)]

    def tape(self, wanted: str, about: str, width: int = 1) -> Tape:
        """A new tape."""
        # A comment is one line, whatever names are in it.
        about = about if about.isprintable() else ascii(about)
        made = Tape(self.name(wanted), about, width)
        self.tapes.append(made)
        return made

    # ---- rows and makers

    def is_alone(self, key: Hashable) -> bool:
        """Whether rows are made in one place alone."""
        return self.facts.places.get(key) == 1

    def maker(self, wanted: str, type_: int, rows: Rows, output: int = 0) -> Maker:
        """A new maker of values of a type."""
        while len(self.makers) <= type_:
            self.makers.append([])
        upper = self.unused(identifier(wanted).rstrip('_').upper(), lambda _: False)
        self.taken.add(upper)
        number = 1 + sum(map(len, self.makers))
        made = Maker(upper, type_, number, rows, output)
        self.makers[type_].append(made)
        return made

    def rows_of(self, o: int, inputs: int) -> Rows:
        """The rows of an operation."""
        key = 'operation', o
        if key not in self.rows:
            self.rows[key] = Rows(key, columns=[None] * inputs)
        return self.rows[key]

    def makers_of(self, o: int) -> list[Maker]:
        """Who makes the outputs of an operation."""
        operation = self._operations()[o]
        rows = self.rows_of(o, len(operation.inputs))
        for k, type_ in enumerate(operation.outputs):
            if (o, k) not in self.by_output:
                name = self.operation_name(o)
                wanted = name if len(operation.outputs) == 1 else f'{name}_{k}'
                self.by_output[o, k] = self.maker(wanted, type_, rows, k)
        return [self.by_output[o, k] for k in range(len(operation.outputs))]

    def own_constants(
        self, type_: TensorType, below: int | None, site: Any
    ) -> tuple[Maker, Tape]:
        """Who makes constants of examples, of a type and with a bound; and their tape.

        Those of a few uses of blocks are told apart, so that they may be in step.
        """
        t = self.tables.type_number(type_)
        kind = 'sites', t, below
        self.sites.setdefault(kind, {})[site] = None
        is_one = len(self.facts.sites.get(kind, ())) > FEW_SITES
        key = 'constants', t, below, None if is_one else site
        if key not in self.own:
            rows = self.rows[key] = Rows(key)
            if isinstance(type_, KeyType):
                wanted = f'{type_.name}_keys'
            else:
                wanted = 'vectors' if type_.shape else 'numbers'
            limit = '' if below is None else f' below {below}'
            tape = self.tape(wanted, f'{type_}{limit}')
            self.own[key] = self.maker(wanted, t, rows), tape
        return self.own[key]

    def constant_place(self, index: int) -> tuple[int, int]:
        """The type of a constant of the program, and the number that stands for it:
        from 1, so that no number is 0."""
        type_, place = self.tables.places[index]
        return type_, place + 1

    def constant_name(self, index: int, wanted: str = 'CONSTANT') -> str:
        """A new name for a constant of the program.

        Each place has its own, also where others of its type have one width by chance.
        """
        name = self.unused(wanted, lambda _: False)
        self.taken.add(name)
        self.constant_names[name] = index
        return name

    def joined(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """The value with all makers that are known of a place; adds its own to these."""
        own = list(s.makers(value))
        before = self.facts.joined.get(key, (0,) * len(own))
        found = self.joins.setdefault(key, [0] * len(own))
        for k, each in enumerate(own):
            found[k] |= each
        both = [a | b for a, b in zip(before, own, strict=True)]
        return s.with_makers(value, iter(both))

    def template(self, type_: Type) -> s.Symbol:
        """What is known of any value of a type."""
        return s.template(type_, self.tables.type_number)

    # ---- functions

    def call(
        self, key: Hashable, name: str, node: Typed, value: s.Symbol, w: Lines
    ) -> Any:
        """A call of the function that evaluates a block; it is written once."""
        flat = list(_arguments(value))
        if isinstance(key, c.ForwardDeclaration) and key.key is not None:
            flat = [w.held(flat[0], 'value')]
        for k, each in enumerate(flat):
            self.joined((key, 'argument', k), each)
        if key not in self.written:
            self.written[key] = self.name(name)
            self._function(key, node, value)
        name = self.written[key]
        tensors = any(isinstance(x, s.Tensor | s.Items) for x in flat)
        self.calls.append(Call(self.key_of(w), key, str(node), tensors))
        # A call on what a function was given, as it is, takes no data apart.
        leaves = [
            x.name if isinstance(x, s.Tensor) else getattr(x, 'text', '') for x in flat
        ]
        if w.count is None and leaves and w.arguments.issuperset(leaves):
            edges = self.untouched.setdefault(self.key_of(w), [])
            edges.append((key, str(self.node)))
        if w.count is not None:
            return self._call_each(key, name, node, flat, w)
        text = w.call(f'{name}({", ".join(map(s.packed, flat))})')
        if key in self.by_identity:
            x = s.packed(flat[0])
            text = f'{self.by_identity[key]}.get(id({x})) or {text}'
        if w.tail and not self.deep:
            self.joined((self.key_of(w), 'result'), self._result(key, node.output))
            w.line(f'return {text}')
            return RETURNED
        result = w.variable(of(name, s.packed(flat[0]) if flat else ''))
        w.line(f'{result} = {text}')
        return w.unpacked(self._result(key, node.output), result)

    def _call_each(
        self, key: Hashable, name: str, node: Typed, flat: list[Any], w: Lines
    ) -> Any:
        """Calls for each item of lists."""
        texts = [each.text for each in flat]
        args = ', '.join(['y', 'z', 'u', 'v'][: len(texts)])
        over = texts[0] if len(texts) == 1 else f'zip({", ".join(texts)})'
        call = f'{name}({args})'
        if key in self.by_identity:
            call = f'{self.by_identity[key]}.get(id({args})) or {call}'
        result = w.variable(of(name, texts[0]))
        w.line(f'{result} = [{call} for {args} in {over}]')
        w.region = type(w.region)()
        like = self._result(key, node.output)
        listed = s.Nested('', like) if isinstance(like, s.Items) else like
        return w._columns(listed, result)

    @functools.cached_property
    def by_identity(self) -> dict[Hashable, str]:
        """The tables of functions that run once for each object, by their keys."""
        return {}

    def _result(self, key: Hashable, type_: Type) -> s.Symbol:
        return self.joined((key, 'result'), self.template(type_))

    def _function(self, key: Hashable, node: Typed, value: s.Symbol) -> None:
        """Writes the function of a block."""
        name = self.written[key]
        w = Lines(self, name, 2, key)
        names: list[str] = []

        def argument(each: Any) -> Any:
            k = len(names)
            names.append(w.variable('number' if isinstance(each, s.Tensor) else 'x'))
            like = self.joined((key, 'argument', k), _template_of(each))
            return _Argument(like, names[-1])

        given = _opened(_with_arguments(value, argument), w)
        w.arguments = {*names}
        shares = isinstance(key, c.ForwardDeclaration) and key.key is not None
        memo = self._remembering(key, names[0], w) if shares else None  # type: ignore[arg-type]
        w.tail = memo is None
        made = w.part(node, given, tail=True)
        if made is not RETURNED:
            self.joined((key, 'result'), _template_of(made))
            text = s.packed(made)
            if memo:
                w.line(f'{memo} = made = {text}')
                text = 'made'
            w.line(f'return {text}')
        else:
            pass
        if self.deep and not any('(yield ' in x for x in w.lines):
            w.line('yield  # never: what is called here is a generator')
        head = f'{INDENT}def {name}({", ".join(names)}):'
        self.functions += [head, *w.lines, '']

    def returned(self, w: Lines, value: s.Symbol) -> None:
        """Writes that a value is that of a function."""
        self.joined((self.key_of(w), 'result'), _template_of(value))
        w.line(f'return {s.packed(value)}')

    def key_of(self, w: Lines) -> Hashable:
        """The key of the function whose lines these are."""
        return w.key

    def copied(self, table: Mapping[Any, Any]) -> dict[Any, Any]:
        """A copy of a table, always the same one of equal ones of a round."""
        key = tuple((type(k), k, type(v), _key(v)) for k, v in table.items())
        return self.tables_of.setdefault(key, dict(table))

    def _remembering(self, declaration: c.ForwardDeclaration, x: str, w: Lines) -> str:
        """Writes the beginning of a function that runs once for each object."""
        memo = self.name(f'{w.name}_known')
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

    def outlined(self, node: Typed, value: s.Symbol, w: Lines) -> Any:
        """Writes a block as a function of its own, and calls it."""
        key = 'outlined', node, w.name
        return self.call(key, type(node.block).__name__, node, value, w)

    # ---- the whole

    def write(self) -> str:
        """The source."""
        w = Lines(self, 'record', 2)
        w.variables.add('x')
        value = w.part(self.typing.root, s.Object('x'))
        self._write_rows(value, 0, iter(self._result_numbers()), w)
        for memo in self.memos:
            w.line(f'{memo}.clear()')
        if self.memos:
            w.line('kept.clear()')
        ends = s.in_parentheses([f'len({each.name})' for each in self.counters()])
        w.line(f'ends.append({ends})')
        return '\n'.join([*self._constants(), '', *self._record(w), ''])

    def counters(self) -> list[Tape]:
        """The tapes that tell how many rows there are."""
        rows = (*self.rows.values(), *self.result_rows.values())
        labels = [tape for tape in self.labels.values()]
        constants = [tape for _, tape in self.own.values()]
        found = [each.counter for each in rows if each.counter is not None]
        return list(dict.fromkeys([*constants, *found, *labels]))

    def _constants(self) -> Iterator[str]:
        bits = sum(map(len, self.makers)).bit_length() + 1
        self.level = ROW + bits
        yield '# With which numbers of rows begin: who makes the value.'
        for of in self.makers:
            yield from (f'{each.name} = {each.number} << {ROW}' for each in of)
        for name, index in self.constant_names.items():
            _, number = self.constant_place(index)
            yield f'{name} = {number}'
        yield f'MAKER = {(1 << bits) - 1}'
        yield f'LEVEL = 1 << {self.level}'
        yield 'LOW = LEVEL - 1'

    def _record(self, w: Lines) -> Iterator[str]:
        yield 'def record(examples):'
        for each in self.tapes:
            yield f'{INDENT}{each.name} = []  # {each.about}'
        yield f'{INDENT}ends = []'
        for memo in self.memos:
            yield f'{INDENT}{memo} = {{}}'
        if self.memos:
            yield f'{INDENT}kept = []'
        yield ''
        yield from self.functions
        yield f'{INDENT}for x in examples:'
        yield from w.lines
        if self.deep and not any('(yield ' in x for x in w.lines):
            yield f'{INDENT}yield from ()'
        tapes = s.in_parentheses([each.name for each in self.tapes])
        yield f'{INDENT}return ends, {tapes}'

    def _result_numbers(self) -> list[int]:
        """The numbers of results of the value: its own, then items by level."""
        program = self.program(())
        return list(program.value_results)

    def _write_rows(self, value: s.Symbol, level: int, results: Any, w: Lines) -> None:
        """Writes a row of a result; of sequences in it, rows of those of their items."""
        numbers = list(results)
        self._write_row(value, numbers[0], inside(self.typing.root.output, numbers), w)

    def _write_row(self, value: s.Symbol, r: int, inside: Any, w: Lines) -> None:
        texts: list[s.Tensor] = []
        inner = iter(inside)
        for leaf in _row_leaves(value):
            if not isinstance(leaf, s.Items):
                texts.append(leaf)
                continue
            texts.append(w.constants(LENGTH, leaf.n, None, ('length', r)))
            number, more = next(inner)
            w.loop(
                leaf,
                'item',
                lambda item, a=number, b=more: self._write_row(item, a, b, w),
            )
        self.observe(r, texts, w)

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

    def label(self, r: int, text: str, w: Lines) -> None:
        """Writes that a row of a result has a label."""
        if r not in self.labels:
            name = f'{self.results[r].kind.name}_labels'
            self.labels[r] = self.tape(name, 'labels')
        w.add(self.labels[r], text)

    # ---- what was found

    def found(self) -> Facts:
        """What the round has found."""
        inputs = tuple(
            tuple(self.inputs.get(o, [0] * len(each.inputs)))
            for o, each in enumerate(self._operations())
        )
        results = tuple(
            tuple(self.row_makers.get(r, [0] * len(each.tensors)))
            for r, each in enumerate(self.results)
        )
        joined = {key: tuple(each) for key, each in self.joins.items()}
        split = tuple(self.split_of)
        sites = {kind: tuple(of) for kind, of in self.sites.items()}
        return Facts(dict(self.places), joined, inputs, results, split, sites)

    def recording(self) -> Recording:
        """How the tapes of the source are read."""
        tape = {id(each): k for k, each in enumerate(self.tapes)}
        end = {id(each): k for k, each in enumerate(self.counters())}

        def place(rows: Rows | None) -> Place | None:
            if rows is None or rows.counter is None:
                return None
            columns = []
            for k, each in enumerate(rows.columns):
                if isinstance(each, Maker):
                    columns.append(Column(maker=each.number))
                elif isinstance(each, Tape):
                    inner = k if each.width > 1 else 0
                    columns.append(Column(tape[id(each)], inner, each.width))
            return Place(end[id(rows.counter)], rows.counter.width, tuple(columns))

        makers: list[list[Any]] = [[] for _ in self.tables.types]
        for (o, k), maker in self.by_output.items():
            makers[maker.type].append((maker.number, 'operation', o, k))
        constants: list[list[Any]] = [[] for _ in self.tables.types]
        for key, (maker, each) in self.own.items():
            makers[maker.type].append((maker.number, 'constants', end[id(each)], 0))
            own = tape[id(each)], end[id(each)], key[2]
            constants[maker.type].append(own)
        operations = range(len(self._operations()))
        numbers = range(len(self.results))
        labelled = [r for r in numbers if self.results[r].kind.labelled]
        return Recording(
            tapes=len(self.tapes),
            ends=len(end),
            level=self.level,
            constants=tuple(map(tuple, constants)),
            makers=tuple(map(tuple, makers)),
            operations=tuple(
                place(self.rows.get(('operation', o))) for o in operations
            ),
            results=tuple(place(self.result_rows.get(r)) for r in numbers),
            labels=tuple(
                tape[id(self.labels[r])] if r in self.labels else -1 for r in labelled
            ),
            shared=tuple(self.constant_names.values()),
        )

    def sites_in_order(self) -> dict[int, list[tuple[Any, ...]]]:
        """By type, the bound and use of the constants on each tape, in their order."""
        found: dict[int, list[tuple[Any, ...]]] = {}
        for _, t, below, site in self.own:
            found.setdefault(t, []).append((below, site))
        return found


def of(name: str, text: str) -> str:
    """A name for what a function gives of a variable."""
    return f'{name}_of_{text}' if text.isidentifier() and len(text) < 16 else name


def _key(value: Any) -> Hashable:
    """What tells a value of a table from others."""
    return value if isinstance(value, Hashable) else id(value)


# ---- values at calls -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Argument:
    like: s.Symbol
    name: str


def _arguments(value: s.Symbol) -> Iterator[Any]:
    """What is passed to a function: leaves, and sequences."""
    if isinstance(value, tuple):
        for each in value:
            yield from _arguments(each)
    elif isinstance(value, s.Endless):
        yield from _arguments(value.item)
    elif value is not None:
        yield value


def _with_arguments(value: s.Symbol, fn: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_with_arguments(each, fn) for each in value)
    if isinstance(value, s.Endless):
        return s.Endless(_with_arguments(value.item, fn))
    return None if value is None else fn(value)


def _opened(value: Any, w: Lines) -> Any:
    if isinstance(value, tuple):
        return tuple(_opened(each, w) for each in value)
    if isinstance(value, s.Endless):
        return s.Endless(_opened(value.item, w))
    if isinstance(value, _Argument):
        return w.unpacked(value.like, value.name)
    return value


def _template_of(value: Any) -> Any:
    """The template of a value."""

    def leaf(each: s.Leaf) -> s.Symbol:
        if isinstance(each, s.Tensor):
            return s.Tensor('', each.type, each.makers)
        return replace(each, text='')

    return s.mapped(leaf, value)


def _row_leaves(value: s.Symbol) -> Iterator[Any]:
    if isinstance(value, tuple):
        for each in value:
            yield from _row_leaves(each)
    elif value is not None:
        yield value


def inside(type_: Type, numbers: list[int]) -> list[Any]:
    """Per sequence in a value, the result of its items and those inside of these.

    Sequences are numbered level by level, as `jfold.types.levels` meets them.
    """
    rest = iter(numbers[1:])
    root: list[Any] = []
    waiting = [(type_, root)]
    for each, into in waiting:
        for leaf in terminals(each):
            if isinstance(leaf, SequenceType):
                made: list[Any] = []
                into.append((next(rest), made))
                waiting.append((leaf.item, made))
    return root


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
        if found == facts:
            return round_, text
        facts = found
    raise AssertionError('jfold found no source, please report it')
