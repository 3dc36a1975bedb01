# SPDX-License-Identifier: Apache-2.0
"""One round of writing a source: what it knows, and what it finds out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jfold.language import symbols as s
from jfold.language.names import Names, identifier
from jfold.language.tables import Tables
from jfold.language.tapes import ROW, Maker, Rows, Tape, Use
from jfold.language.typed import Typed
from jfold.program.components import component_of, components, results_in
from jfold.program.operations import Operation, Operations, Producers, ProducerSet
from jfold.program.result_tables import Result, in_row
from jfold.types import KeyType, TensorType, Type

FEW_SITES = 4


@dataclass(frozen=True)
class Facts:
    """What a round has found, and the next one is told.

    Attributes:
      places: how often makers stand in the text, by the keys of their rows.
      joined: the makers of values that several lines reach, by place.
      levels: of each of their tensors, the first whose level is always the same.
      inputs: per operation and input, the outputs that it may be.
      results: the same per result and tensor.
      split: the operation of each place, where each has one of its own.
      sites: by type and bound, the uses of blocks that make constants.
    """

    places: Mapping[Hashable, int] = field(default_factory=dict)
    joined: Mapping[Hashable, tuple[ProducerSet, ...]] = field(default_factory=dict)
    levels: Mapping[Hashable, tuple[int, ...]] = field(default_factory=dict)
    inputs: tuple[tuple[ProducerSet, ...], ...] = ()
    results: tuple[tuple[ProducerSet, ...], ...] = ()
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


class Round:
    """What is known while a source is written, and what is found out of it.

    Attributes:
      places, joins, levels, inputs, row_makers: what is found; see `Facts`.
      uses: the applications of operations.
      grouped: operations that are applied to groups of items.
      node: what is being written.
      where: what wrote a line, or has a name; `None` if several did.
      bits: per operation, that of its first output.
      functions: the lines of those that are written.
      written: their names, by their keys.
      memos: the tables of functions that run once for each key.
      by_identity: of these the ones of objects, by the keys of the functions.
    """

    def __init__(
        self, tables: Tables, chosen: Chosen, facts: Facts, deep: bool = False
    ) -> None:
        self.tables, self.typing = tables, tables.typing
        self.chosen, self.facts, self.deep = chosen, facts, deep
        self.inside = chosen.inside
        self.places: dict[Hashable, int] = {}
        self.joins: dict[Hashable, list[ProducerSet]] = {}
        self.levels: dict[Hashable, tuple[int, ...]] = {}
        self.inputs: dict[int, list[ProducerSet]] = {}
        self.row_makers: dict[int, list[ProducerSet]] = {}
        self.uses: list[Use] = []
        self.calls: list[Call] = []
        self.applied_in: dict[Hashable, set[int]] = {}
        self.loops_written: list[str] = []
        self.groups_written: list[tuple[str, int]] = []
        self.split_of: Sequence[int] = ()
        self.untouched: dict[Hashable, list[tuple[Hashable, str]]] = {}
        self.grouped: set[int] = set()
        self.node: Typed | None = None
        self.where: dict[str, Typed | None] = {}
        self.bits = [0]
        self.constant_names: dict[str, int] = {}
        self.names = Names()
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
        self.memos: list[str] = []
        self.by_identity: dict[Hashable, str] = {}
        self.applications = 0
        self._recurrence()

    @functools.cached_property
    def results(self) -> list[Result]:
        """What is returned; asked for late, so that types are numbered as they are met.

        An accelerator's kernels, a few percent of them, depend on the order of buffers.
        """
        number = self.tables.type_number
        return [
            Result(kind, row, tuple(map(number, in_row(row))))
            for kind, row in self.typing.results
        ]

    # ---- what is known of operations

    def _recurrence(self) -> None:
        """The components of the operations that are known."""
        self.part: tuple[int, ...] = ()
        self.loops: tuple[bool, ...] = ()
        operations = self.operations[: len(self.facts.inputs)]
        if not operations:
            return
        self.part, self.loops = self._parts(operations)
        outputs = [len(each.outputs) for each in operations]
        self.owner = [o for o, n in enumerate(outputs) for _ in range(n)]
        self.first = [0, *itertools.accumulate(outputs)]
        in_part: dict[int, ProducerSet] = {}
        recurrent = 0
        for bit, o in enumerate(self.owner):
            in_part[self.part[o]] = in_part.get(self.part[o], 0) | 1 << bit
            recurrent |= self.loops[o] << bit
        self.in_part, self.in_loops = in_part, recurrent

    def _parts(
        self, operations: Sequence[Operation]
    ) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """The component of each operation, and whether it is recurrent."""
        made = self.program(operations)
        part = component_of(made)
        return part, tuple(components(made)[x].recurrent for x in part)

    def is_told_by(self, found: Facts) -> bool:
        """Whether another round would write the same if it were told what was found."""
        before, self.facts = self.facts, found
        # Of what operations read, lines know which of them are recurrent.
        if replace(found, inputs=before.inputs, results=before.results) != before:
            return False
        operations = self.operations[: len(found.inputs)]
        return self._parts(operations) == (self.part, self.loops)

    def program(self, operations: Sequence[Operation]) -> Operations:
        """What the device is to run, as far as it is known."""
        return Operations(
            types=tuple(self.tables.types),
            layers=self.typing.layers,
            operations=tuple(operations),
            constants=tuple(self.tables.constants),
            results=tuple(self.results),
            sources=Producers(self.facts.inputs, self.facts.results),
        )

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations there are."""
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
        return identifier(self.operations[o].layer.name)

    def about(self, o: int) -> str:
        """A comment on what an operation's tape holds."""
        return repr(self.operations[o])

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

    def applied(self, o: int, given: Sequence[s.Tensor], key: Hashable) -> int:
        """The operation of one place, in the function with a key; says what it reads
        there."""
        if self.chosen.split:
            self.split_of = (*self.split_of, o)
            o = len(self.split_of) - 1
        elif self.chosen.kinds is not None:
            o = self.chosen.kinds[self.applications]
            self.applications += 1
        self.applied_in.setdefault(key, set()).add(o)
        found = self.inputs.setdefault(o, [0] * len(given))
        for k, each in enumerate(given):
            found[k] |= each.makers
        return o

    def group_operation(self, o: int) -> int:
        """The operation of groups; one that is applied to groups is joined to none."""
        self.grouped.add(o)
        return self.chosen.number.get(o, o)

    def reads_own_level(self, o: int) -> bool:
        """Whether an operation's level is that of its inputs."""
        o = self.chosen.number.get(o, o)
        return self.is_recurrent(o)

    def bit(self, o: int, output: int) -> ProducerSet:
        """The bit of an output among those of all operations."""
        while len(self.bits) <= o:
            last = self.operations[len(self.bits) - 1]
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
        self.names.values[name] = frozenset(numbers)
        return f'({each.name} if {each.name} >> {ROW} & MAKER in {name} else 0)'

    def by_output_bit(self, bit: int) -> Maker:
        """Who makes an output."""
        o = self.owner[bit]
        return self.makers_of(o)[bit - self.first[o]]

    @property
    def level(self) -> int:
        """Which bit of a number is the first of its level."""
        return ROW + sum(map(len, self.makers)).bit_length() + 1

    # ---- names

    def given(self, wanted: str, value: object) -> str:
        """The name of a value that the source is given."""
        name = self.names.given(wanted, value)
        if name in self.names.values:
            self.where.setdefault(name, self.node)
        return name

    def copied(self, table: Mapping[Any, Any]) -> dict[Any, Any]:
        """A copy of a table, always the same one of equal ones of a round."""
        return self.names.copied(table)

    def tape(self, wanted: str, about: str, width: int = 1) -> Tape:
        """A new tape."""
        # A comment is one line, whatever names are in it.
        about = about if about.isprintable() else ascii(about)
        made = Tape(self.names.new(wanted), about, width)
        self.tapes.append(made)
        return made

    # ---- rows and makers

    def is_alone(self, key: Hashable) -> bool:
        """Whether rows are made in one place alone."""
        return self.facts.places.get(key) == 1

    def maker(
        self,
        wanted: str,
        type_: int,
        rows: Rows,
        output: int = 0,
        recurrent: bool = False,
    ) -> Maker:
        """A new maker of values of a type."""
        while len(self.makers) <= type_:
            self.makers.append([])
        upper = self.names.constant(identifier(wanted).rstrip('_').upper())
        number = 1 + sum(map(len, self.makers))
        made = Maker(upper, type_, number, rows, output, recurrent)
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
        operation = self.operations[o]
        rows = self.rows_of(o, len(operation.inputs))
        for k, type_ in enumerate(operation.outputs):
            if (o, k) not in self.by_output:
                name = self.operation_name(o)
                wanted = name if len(operation.outputs) == 1 else f'{name}_{k}'
                recurrent = self.is_recurrent(o)
                self.by_output[o, k] = self.maker(wanted, type_, rows, k, recurrent)
        return [self.by_output[o, k] for k in range(len(operation.outputs))]

    def own_constants(
        self, type_: TensorType, below: int | None, site: object
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
        name = self.names.constant(wanted)
        self.constant_names[name] = index
        return name

    def joined(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """The value with all makers known of a place; adds its own to these."""
        own = list(s.makers(value))
        found = self.joins.setdefault(key, [0] * len(own))
        for k, each in enumerate(own):
            found[k] |= each
        same = first_of_each(s.levels(value))
        if len(same) < 2:
            self.levels[key] = before = same
        else:
            self.levels[key] = both_same(self.levels.get(key, same), same)
            before = both_same(self.facts.levels.get(key, same), same)
        return self._with_facts(key, value, own, before)

    def known(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """A template with all that is known of a place."""
        own = list(s.makers(value))
        one = (0,) * len(list(s.levels(value)))
        return self._with_facts(key, value, own, self.facts.levels.get(key, one))

    def _with_facts(
        self,
        key: Hashable,
        value: s.Symbol,
        own: list[ProducerSet],
        same: tuple[int, ...],
    ) -> s.Symbol:
        before = self.facts.joined.get(key, (0,) * len(own))
        both = (a | b for a, b in zip(before, own, strict=True))
        levels = [object() for _ in same]
        value = s.with_makers(value, both)
        return s.with_levels(value, (levels[k] for k in same))

    def template(self, type_: Type) -> s.Symbol:
        """What is known of any value of a type."""
        return s.template(type_, self.tables.type_number)

    # ---- what was found

    def found(self) -> Facts:
        """What the round has found."""
        inputs = tuple(
            tuple(self.inputs.get(o, [0] * len(each.inputs)))
            for o, each in enumerate(self.operations)
        )
        results = tuple(
            tuple(self.row_makers.get(r, [0] * len(each.tensors)))
            for r, each in enumerate(self.results)
        )
        joined = {key: tuple(each) for key, each in self.joins.items()}
        split = tuple(self.split_of)
        sites = {kind: tuple(of) for kind, of in self.sites.items()}
        return Facts(
            dict(self.places), joined, self.levels, inputs, results, split, sites
        )

    def counters(self) -> list[Tape]:
        """The tapes that tell how many rows there are."""
        rows = (*self.rows.values(), *self.result_rows.values())
        constants = [tape for _, tape in self.own.values()]
        found = [each.counter for each in rows if each.counter is not None]
        return list(dict.fromkeys([*constants, *found, *self.labels.values()]))

    def sites_in_order(self) -> dict[int, list[tuple[Any, ...]]]:
        """By type, the bound and use of the constants on each tape, in their order."""
        found: dict[int, list[tuple[Any, ...]]] = {}
        for _, t, below, site in self.own:
            found.setdefault(t, []).append((below, site))
        return found


def first_of_each(levels: Iterable[Any]) -> tuple[int, ...]:
    """Of each of some levels, the number of the first that is equal, if it is known."""
    first: dict[Any, int] = {}
    pairs = enumerate(levels)
    return tuple(k if x is None else first.setdefault(x, k) for k, x in pairs)


def both_same(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Of each number the first that is equal in both."""
    return first_of_each(zip(a, b, strict=True))
