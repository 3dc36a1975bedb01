# SPDX-License-Identifier: Apache-2.0
"""One round of writing a source: the facts it starts from, and those it finds.

*Producers* of a tensor are the operation outputs that it may be, a bit set. A *place*
is a statement that appends a row. Values of several paths meet at a *join*, such as the
result of a function. `o` numbers operations, `k` their inputs or outputs, `r` results.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from jfold.language import symbols as s
from jfold.language.names import Names, identifier
from jfold.language.symbols import Maker, Rows, Tape, Use
from jfold.language.tables import Tables
from jfold.language.typed import TypedUse
from jfold.program.components import (
    are_recurrent,
    component_of,
    first_results,
    output_places,
    results_in,
    union,
)
from jfold.program.operations import Operation, Operations, Producers, ProducerSet
from jfold.program.result_tables import Result, tensors_in_row
from jfold.tracing.tape_reader import ROW
from jfold.types import KeyType, SequenceType, TensorType, Type, leaf_types

FEW_SITES = 4
NOTHING_READ = Producers((), ())


@dataclass
class Facts:
    """The facts about a program that one pass of source generation leaves to the next.

    Attributes:
      places: by the key of a `Rows`, the number of statements that append to it.
      joined: by the key of a join, where values of several paths meet, the producers of
        each tensor of its value.
      levels: by the key of a join, per tensor of its value the index of the first one
        that always has the same level.
      sources: the producers of each input and result.
      split: if the choice is `split`, per place the operation that it applies.
      sites: by type and bound, the uses of blocks that read such constants from data.
    """

    places: Counter[Hashable] = field(default_factory=Counter)
    joined: dict[Hashable, list[ProducerSet]] = field(default_factory=dict)
    levels: dict[Hashable, tuple[int, ...]] = field(default_factory=dict)
    sources: Producers = NOTHING_READ
    split: list[int] = field(default_factory=list)
    sites: dict[Hashable, dict[Any, None]] = field(default_factory=dict)

    def renumbered(self, before: Operations, chosen: OperationChoice) -> Facts:
        """Return facts about a program `before`, as facts about operations `chosen`."""
        now = replace(before, operations=tuple(chosen.operations or ()))
        numbers = {o: n for o, n in chosen.number.items() if o not in chosen.inside}
        first, outputs = first_results(now), output_places(before)
        to = [1 << first[numbers[o]] + k if o in numbers else 0 for o, k in outputs]

        def renamed(makers: ProducerSet) -> ProducerSet:
            return union(to[bit] for bit in results_in(makers))

        places = Counter[Hashable]()
        for key, count in self.places.items():
            kind, number, *_ = cast(tuple[Any, ...], key)
            if kind != 'operation':
                places[key] += count
            elif number in numbers:
                places[kind, numbers[number]] += count
        joined = {key: list(map(renamed, x)) for key, x in self.joined.items()}
        # An operation may read what any of those that it replaces may read.
        read = self.sources.inputs
        inputs = [[0] * len(operation.inputs) for operation in now.operations]
        for o, n in numbers.items():
            makers = chosen.outside_inputs(o, read[o], lambda p, _: read[p])
            both = zip(inputs[n], map(renamed, makers), strict=True)
            inputs[n] = [a | b for a, b in both]
        results = tuple(tuple(map(renamed, row)) for row in self.sources.results)
        sources = Producers(tuple(map(tuple, inputs)), results)
        return replace(self, places=places, joined=joined, sources=sources, split=[])


@dataclass(frozen=True, eq=False)
class OperationChoice:
    """The operations of a program, after fusion and unrolling.

    Attributes:
      operations: in the order of their numbers; as in `Tables.listed` if `None`.
      number: by number in `Tables.listed`, the number here; for a fused producer, the
        number of the fused operation.
      feeds: per operation with others fused into it, for each input the operation and
        output that make it; `None` for inputs from outside.
      inside: the operations that are fused into others.
      split: whether each place has an operation of its own.
      kinds: if rounds of messages are unrolled, per place the numbers of its operation
        before and after unrolling.
      levelled: where `split` or `kinds` are set, operations that may stay recurrent.
    """

    operations: tuple[Operation, ...] | None = None
    number: Mapping[int, int] = field(default_factory=dict)
    feeds: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    inside: frozenset[int] = frozenset()
    split: bool = False
    kinds: tuple[tuple[int, int], ...] | None = None
    levelled: frozenset[int] = frozenset()

    def outside_inputs(
        self,
        o: int,
        inputs: Sequence[Any],
        inputs_of: Callable[[int, Any], Sequence[Any]],
    ) -> list[Any]:
        """Return what operation `o`, with others fused into it, reads from outside.

        Operands of fused operations come first. `inputs_of(p, x)` is what operation
        `p`, fused into `o`, reads; `x` is the one of `inputs` that it makes.
        """
        feeds = self.feeds.get(o, (None,) * len(inputs))
        pairs = list(zip(inputs, feeds, strict=True))
        result: list[Any] = []
        # Once for each fused producer, though several of its outputs may be read.
        for p, x in {feed[0]: x for x, feed in pairs if feed}.items():
            result += self.outside_inputs(p, inputs_of(p, x), inputs_of)
        return result + [x for x, feed in pairs if not feed]


class Round:
    """The state of one pass of source generation: facts from before, and new ones.

    Attributes:
      facts, seen: facts from before, and those of this pass.
      uses: the applications of operations.
      grouped: the operations in `Tables.listed` that reduce groups of items.
      reductions: the same operations, by their numbers in this round.
      chained: the reductions whose items may be results of the same reductions.
      applied_at: per operation, the number of places where it is applied.
      untouched: per function, its calls that pass on its own arguments unchanged.
      node: the use of a block that is being written.
      where: the use that wrote a line or refers to a name; `None` if several do.
      bits: per operation, the number of its first output among all outputs.
      masks: by recurrent component, the name of the set of its makers' numbers.
      functions, written: the lines of all functions; their names, by their keys.
      memos: the names of dicts with the results of functions, by a key of the argument.
      by_identity: the names of those whose key is `id`, by the key of the function.
    """

    def __init__(
        self, tables: Tables, chosen: OperationChoice, facts: Facts, deep: bool = False
    ) -> None:
        self.tables, self.typing = tables, tables.typing
        self.chosen, self.facts, self.deep = chosen, facts, deep
        self.seen = Facts()
        self.uses: list[Use] = []
        self.reductions, self.chained = set[int](), set[int]()
        self.applied_at: Counter[int] = Counter()
        self.untouched = defaultdict[Hashable, list[tuple[Hashable, str]]](list)
        self.grouped: set[int] = set()
        self.node: TypedUse | None = None
        self.where: dict[str, TypedUse | None] = {}
        self.bits = [0]
        self.constant_names: dict[str, int] = {}
        self.names = Names()
        self.tapes: list[Tape] = []
        self.rows: dict[Hashable, Rows] = {}
        self.makers: list[Maker] = []
        self.made_by: dict[int, list[Maker]] = {}
        self.masks: dict[int, str] = {}
        self.own: dict[tuple[Any, ...], tuple[Maker, Rows, Tape]] = {}
        self.labels: dict[int, Tape] = {}
        self.functions: list[str] = []
        self.written: dict[Hashable, str] = {}
        self.memos: list[str] = []
        self.by_identity: dict[Hashable, str] = {}
        self.part, self.loops, self.outputs = self._recurrence()

    @functools.cached_property
    def results(self) -> list[Result]:
        """The results of the program: its value, metrics, and the items of sequences.

        Computed late: types are numbered in the order of use, and the order of buffers
        changes the number of kernels on an accelerator by a few percent.
        """
        number = self.tables.type_number
        return [
            Result(kind, row, tuple(map(number, tensors_in_row(row))))
            for kind, row in self.typing.results
        ]

    # ---- operations

    def _recurrence(self) -> tuple[tuple[Any, ...], ...]:
        """Find from the facts which operations depend on their own results.

        Return, per operation, its component and whether it is recurrent; and, per
        output of all operations, its operation and its number there.
        """
        operations = self.operations[: len(self.facts.sources.inputs)]
        if not operations:
            return (), (), ()
        program = self.program(operations)
        return component_of(program), are_recurrent(program), output_places(program)

    def is_settled_by(self, facts: Facts) -> bool:
        """Take over `facts`; return whether another pass would repeat the source."""
        before, self.facts = self.facts, facts
        # Producers change the text only by deciding which operations are recurrent.
        is_same = replace(facts, sources=before.sources) == before
        return is_same and self._recurrence() == (self.part, self.loops, self.outputs)

    def program(self, operations: Sequence[Operation]) -> Operations:
        """Return a program of `operations`, with each operand's known producers."""
        return Operations(
            types=tuple(self.tables.types),
            layers=self.typing.layers,
            operations=tuple(operations),
            constants=tuple(self.tables.constants),
            results=tuple(self.results),
            sources=self.facts.sources,
        )

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations of the program, indexed by their numbers.

        With `OperationChoice.split`, each statement that records rows has its own.
        """
        chosen = self.chosen.operations
        operations = self.tables.listed if chosen is None else chosen
        if self.chosen.split:
            places = max(self.seen.split, self.facts.split, key=len)
            return [operations[o] for o in places]
        return operations

    def is_recurrent(self, o: int) -> bool:
        """Return whether operation `o` is known to depend on its own results."""
        return o < len(self.loops) and self.loops[o]

    def applied(
        self, o: int, inputs: Sequence[s.Tensor], reader: Use | None = None
    ) -> int:
        """Note an application of operation `o`; return the operation's new number.

        It is `o`, unless this statement, by `split` or `kinds`, has another operation.
        """
        if self.chosen.split:
            self.seen.split.append(o)
            o = len(self.seen.split) - 1
        elif self.chosen.kinds is not None:
            before, now = self.chosen.kinds[self.applied_at.total()]
            assert before == o, 'jfold told places apart wrongly, please report it'
            o = now
        self.applied_at[o] += 1
        self.read(self.rows_of('operation', o, len(inputs)), inputs, reader)
        return o

    def read(
        self, rows: Rows, operands: Sequence[s.Tensor], reader: Use | None
    ) -> None:
        """Note the operands in a new row: their producers, and who reads them."""
        for k, tensor in enumerate(operands):
            rows.makers[k] |= tensor.makers
            if tensor.use is not None:
                tensor.use[0].readers.add(reader)

    def reads_own_level(self, o: int) -> bool:
        """Return whether operation `o` may be recurrent; else each row's level is 1."""
        if self.chosen.split or self.chosen.kinds is not None:
            return self.chosen.number.get(o, o) in self.chosen.levelled
        return self.is_recurrent(self.chosen.number.get(o, o))

    def bit(self, o: int, output: int) -> ProducerSet:
        """Return a bit set with one member: output number `output` of operation `o`."""
        while len(self.bits) <= o:
            last = self.operations[len(self.bits) - 1]
            self.bits.append(self.bits[-1] + len(last.outputs))
        return 1 << self.bits[o] + output

    def level_text(self, o: int, tensor: s.Tensor) -> str:
        """Return the source text for the level of an input of operation `o`.

        It is '' if the component of `o`, within which levels are counted, does not make
        the input.
        """
        part = self.part[o]
        known = (bit for bit in results_in(tensor.makers) if bit < len(self.outputs))
        owners = {self.outputs[bit][0] for bit in known}
        if part not in {self.part[x] for x in owners}:
            return ''
        if not any(self.loops[x] and self.part[x] != part for x in owners):
            return tensor.name
        # It may come from another recurrence, whose levels do not count here: so the
        # source looks at the maker in the number.
        if part not in self.masks:
            own = (place for place in self.outputs if self.part[place[0]] == part)
            numbers = frozenset(self.makers_of(x)[k].number for x, k in own)
            self.masks[part] = self.names.name_for(f'makers_{part}', numbers)
        mask = self.masks[part]
        return f'({tensor.name} if {tensor.name} >> {ROW} & MAKER in {mask} else 0)'

    @property
    def level(self) -> int:
        """The position of the lowest bit of the level in a row number."""
        return ROW + len(self.makers).bit_length() + 1

    # ---- names

    def name_for(self, wanted: str, value: object) -> str:
        """Return the name of `value` in the source; a new one is made of `wanted`."""
        name = self.names.name_for(wanted, value)
        if name in self.names.values:
            self.where.setdefault(name, self.node)
        return name

    def tape(self, wanted: str, about: object, width: int = 1) -> Tape:
        """Add and return a `Tape` of `width` entries per row, commented by `about`."""
        # A comment is one line, whatever names are in it.
        text = str(about)
        text = text if text.isprintable() else ascii(text)
        tape = Tape(self.names.new(wanted), text, width)
        self.tapes.append(tape)
        return tape

    # ---- rows and makers

    def is_alone(self, key: Hashable) -> bool:
        """Return whether exactly one statement of the source appends to table `key`."""
        return self.facts.places.get(key) == 1

    def maker(
        self, wanted: str, type_: int, output: int = 0, recurrent: bool = False
    ) -> Maker:
        """Add and return a `Maker`: an origin of tensors of type number `type_`."""
        upper = self.names.constant(identifier(wanted).rstrip('_').upper())
        number = 1 + len(self.makers)
        self.makers.append(Maker(upper, type_, number, output, recurrent))
        return self.makers[-1]

    def rows_of(self, kind: str, number: int, width: int) -> Rows:
        """Return the table of an operation or result, on first use with new columns."""
        key = kind, number
        if key not in self.rows:
            self.rows[key] = Rows(key, [None] * width, [0] * width)
        return self.rows[key]

    def makers_of(self, o: int) -> list[Maker]:
        """Return the `Maker` of each output of operation `o`."""
        if o not in self.made_by:
            operation = self.operations[o]
            name = identifier(operation.layer.name)
            self.rows_of('operation', o, len(operation.inputs))  # in this order
            self.made_by[o] = [
                self.maker(wanted, type_, k, self.is_recurrent(o))
                for k, type_ in enumerate(operation.outputs)
                for wanted in [f'{name}_{k}' if len(operation.outputs) > 1 else name]
            ]
        return self.made_by[o]

    def own_constants(
        self, type_: TensorType, below: int | None, site: object
    ) -> tuple[Maker, Rows, Tape]:
        """Return maker, table and tape of constants of `site`: ints, if `below` is set.

        Up to `FEW_SITES` uses have a tape each, to be in step; more share one tape.
        """
        t = self.tables.type_number(type_)
        site_key = 'sites', t, below
        self.seen.sites.setdefault(site_key, {})[site] = None
        is_joint = len(self.facts.sites.get(site_key, ())) > FEW_SITES
        key = 'constants', t, below, None if is_joint else site
        if key not in self.own:
            rows = self.rows[key] = Rows(key, [], [])
            wanted = 'vectors' if type_.shape else 'numbers'
            if isinstance(type_, KeyType):
                wanted = f'{type_.name}_keys'
            limit = '' if below is None else f' below {below}'
            tape = self.tape(wanted, f'{type_}{limit}')
            self.own[key] = self.maker(wanted, t), rows, tape
        return self.own[key]

    def constant_name(self, index: int, wanted: str = 'CONSTANT') -> str:
        """Return a new name in the source for the program's constant number `index`.

        Each place has its own, even if the constants of two places are equal: so the
        source stays as it is when widths change, and a corpus stays valid.
        """
        name = self.names.constant(wanted)
        self.constant_names[name] = index
        return name

    def joined(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """Return `value` with the producers of all values that meet at join `key`.

        Its own producers are noted. Its tensors share a level if they do in every value
        that gets there.
        """
        makers, levels = list(s.makers(value)), self.seen.levels
        known = self.seen.joined.get(key, [0] * len(makers))
        self.seen.joined[key] = [a | b for a, b in zip(known, makers, strict=True)]
        aliases = first_of_each(s.levels(value))
        levels[key] = both_same(levels.get(key, aliases), aliases)
        return self._with_facts(key, value, levels[key])

    def known(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """Return `value` with the producers and levels known at join `key`."""
        # Until something else is seen, all tensors are assumed to be on one level.
        assumed = (0,) * len(list(s.levels(value)))
        return self._with_facts(key, value, self.seen.levels.get(key, assumed))

    def _with_facts(
        self, key: Hashable, value: s.Symbol, aliases: tuple[int, ...]
    ) -> s.Symbol:
        """Return `value` with producers known at join `key` added, and with new levels.

        Facts of this pass count too; else producers would reach one more function in
        each pass. `aliases` has, per tensor, the index of the first one that shares its
        level in this pass.
        """
        for facts in self.facts, self.seen:
            if key in facts.joined:
                both = zip(facts.joined[key], s.makers(value), strict=True)
                value = s.with_makers(value, (a | b for a, b in both))
        aliases = both_same(self.facts.levels.get(key, aliases), aliases)
        levels = [object() for _ in aliases]  # tokens: one per level, by identity
        return s.with_levels(value, (levels[k] for k in aliases))

    def template(self, type_: Type) -> s.Symbol:
        """Return an abstract value of a type: its structure, without source text."""
        return s.template(type_, self.tables.type_number)

    # ---- new facts

    def new_facts(self) -> Facts:
        """Return the facts that this pass has found."""
        inputs, results = (
            tuple(tuple(self.rows_of(kind, k, n).makers) for k, n in enumerate(widths))
            for kind, widths in (
                ('operation', [len(x.inputs) for x in self.operations]),
                ('result', [len(x.tensors) for x in self.results]),
            )
        )
        return replace(self.seen, sources=Producers(inputs, results))

    def counters(self) -> list[Tape]:
        """Return the tapes, each once, whose lengths are noted after each example."""
        rows = sorted(self.rows.values(), key=lambda x: x.key[0] == 'result')
        constants = [tape for *_, tape in self.own.values()]
        used = [x.counter for x in rows if x.counter is not None]
        return list(dict.fromkeys([*constants, *used, *self.labels.values()]))

    def sites_in_order(self) -> dict[int, list[tuple[Any, ...]]]:
        """Return, per type number, `(below, site)` of each tape of constants."""
        result: dict[int, list[tuple[Any, ...]]] = {}
        for _, t, below, site in self.own:
            result.setdefault(t, []).append((below, site))
        return result


def items_of(program: Operations) -> dict[int, list[int]]:
    """Return, by result of the value, the results of the sequences in its rows."""
    results = program.value_results  # of examples, then of items, level by level
    rows = [leaf_types(program.results[r].type) for r in results]
    items = iter(results[1:])
    return {
        r: [next(items) for leaf in row if isinstance(leaf, SequenceType)]
        for r, row in zip(results, rows, strict=True)
    }


def first_of_each(levels: Iterable[Any]) -> tuple[int, ...]:
    """Return, for each item, the index of the first equal: 'aba' -> (0, 1, 0).

    `None` equals no other item.
    """
    first: dict[Any, int] = {}
    pairs = enumerate(levels)
    return tuple(k if x is None else first.setdefault(x, k) for k, x in pairs)


def both_same(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return, per index k, the first index that has the pair `(a[k], b[k])`."""
    return first_of_each(zip(a, b, strict=True))
