# SPDX-License-Identifier: Apache-2.0
"""One round of writing a source: the facts it starts from, and those it finds."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jfold.language import symbols as s
from jfold.language.names import Names, identifier
from jfold.language.tables import Tables
from jfold.language.tapes import ROW, Maker, Rows, Tape, Use
from jfold.language.typed import TypedUse
from jfold.program.components import component_of, components, results_in
from jfold.program.operations import Operation, Operations, Producers, ProducerSet
from jfold.program.result_tables import Result, tensors_in_row
from jfold.types import KeyType, TensorType, Type

FEW_SITES = 4


@dataclass(frozen=True)
class Facts:
    """The facts that a round finds, and the next one starts from.

    Attributes:
      places: the number of places that make rows, by the keys of the rows.
      joined: the makers of values where paths meet, by place.
      levels: for each tensor of such a value, the first that is always on its level.
      inputs: per operation and input, the outputs that it may be.
      results: per result and tensor, the outputs that it may be.
      split: the operation of each place, where each place has one of its own.
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
    """A call in one function of the source to another.

    Attributes:
      tensors: whether tensors are among the arguments.
    """

    caller: Hashable
    callee: Hashable
    tensors: bool


@dataclass(frozen=True, eq=False)
class OperationChoice:
    """The operations of a program, after fusion and unrolling.

    Attributes:
      operations: in the order of their numbers.
      number: by the number in the expression, the number here; of a fused part, that of
        the fusion.
      feeds: per operation with others fused into it, the part that makes each input;
        `None` for inputs from outside.
      inside: the operations that are fused into others.
      split: whether each place has an operation of its own.
      kinds: the operation of each place, where rounds are unrolled.
    """

    operations: tuple[Operation, ...] | None = None
    number: Mapping[int, int] = field(default_factory=dict)
    feeds: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    inside: frozenset[int] = frozenset()
    split: bool = False
    kinds: tuple[int, ...] | None = None


class Round:
    """The state of a round: the facts it starts from, and those it finds.

    Attributes:
      places, joins, levels, inputs, row_makers: facts that it finds; see `Facts`.
      uses: the applications of operations.
      grouped: operations that are applied to groups of items.
      has_loops: whether a loop over a sequence runs on its own results.
      reductions: the operations that are applied to groups of items, as they run.
      applied_at: the number of places where each operation is applied.
      node: the use of a block that is being written.
      where: the use that wrote a line or refers to a name; `None` if several do.
      bits: per operation, the bit of its first output.
      functions: the lines of all functions.
      written: the names of functions, by their keys.
      memos: the tables of functions that run once for each key of an object.
      by_identity: the tables of those whose key is `id`, by the keys of the functions.
    """

    def __init__(
        self, tables: Tables, chosen: OperationChoice, facts: Facts, deep: bool = False
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
        self.has_loops = False
        self.reductions: set[int] = set()
        self.applied_at: Counter[int] = Counter()
        self.split_of: Sequence[int] = ()
        self.untouched: dict[Hashable, list[tuple[Hashable, str]]] = {}
        self.grouped: set[int] = set()
        self.node: TypedUse | None = None
        self.where: dict[str, TypedUse | None] = {}
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
        """The results of the program.

        Computed late, so that types are numbered in the order of use: of an
        accelerator's kernels a few percent depend on the order of buffers.
        """
        number = self.tables.type_number
        return [
            Result(kind, row, tuple(map(number, tensors_in_row(row))))
            for kind, row in self.typing.results
        ]

    # ---- operations

    def _recurrence(self) -> None:
        """Set the components of the operations that the facts tell of."""
        self.part: tuple[int, ...] = ()
        self.loops: tuple[bool, ...] = ()
        operations = self.operations[: len(self.facts.inputs)]
        if not operations:
            return
        self.part, self.loops = self._parts(operations)
        outputs = [len(operation.outputs) for operation in operations]
        # Per output of all operations, its operation; per operation, its first output.
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
        """Return the component of each operation, and whether it is recurrent."""
        program = self.program(operations)
        part = component_of(program)
        return part, tuple(components(program)[x].recurrent for x in part)

    def is_settled_by(self, facts: Facts) -> bool:
        """Return whether a round that starts from these facts writes the same text."""
        before, self.facts = self.facts, facts
        # The text depends on inputs and results only by what is recurrent.
        if replace(facts, inputs=before.inputs, results=before.results) != before:
            return False
        operations = self.operations[: len(facts.inputs)]
        return self._parts(operations) == (self.part, self.loops)

    def program(self, operations: Sequence[Operation]) -> Operations:
        """Return the program that the device is to run, as far as facts tell."""
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
        """The operations of the program."""
        if self.chosen.split:
            assert self.chosen.operations is not None
            places = max(self.split_of, self.facts.split, key=len)
            return [self.chosen.operations[o] for o in places]
        if self.chosen.operations is not None:
            return self.chosen.operations
        return self.tables.listed

    def is_recurrent(self, o: int) -> bool:
        """Return whether an operation reads its own results, as far as is known."""
        return o < len(self.loops) and self.loops[o]

    def operation_name(self, o: int) -> str:
        """Return a name for the results of an operation."""
        return identifier(self.operations[o].layer.name)

    def about(self, o: int) -> str:
        """Return a comment on the tapes of an operation."""
        return repr(self.operations[o])

    def expanded(self, use: Use) -> tuple[int, list[s.Tensor]]:
        """Return the operation that a use is, with fused ones, and its inputs."""
        o, inputs = use.operation, use.given
        if o not in self.chosen.number:
            return o, inputs
        return self.chosen.number[o], self._outside_inputs(o, inputs)

    def _outside_inputs(self, o: int, inputs: Sequence[s.Tensor]) -> list[s.Tensor]:
        """Return the inputs from outside of a fusion: of its parts, then its own."""
        feeds = self.chosen.feeds.get(o, (None,) * len(inputs))
        pairs = list(zip(inputs, feeds, strict=True))
        result: list[s.Tensor] = []
        for use in dict.fromkeys(tensor.use[0] for tensor, feed in pairs if feed):
            result += self._outside_inputs(use.operation, use.given)
        return result + [tensor for tensor, feed in pairs if not feed]

    def applied(self, o: int, inputs: Sequence[s.Tensor], key: Hashable) -> int:
        """Note what an operation reads in a function; return its number there."""
        if self.chosen.split:
            self.split_of = (*self.split_of, o)
            o = len(self.split_of) - 1
        elif self.chosen.kinds is not None:
            o = self.chosen.kinds[self.applications]
        self.applications += 1
        self.applied_at[o] += 1
        self.applied_in.setdefault(key, set()).add(o)
        makers = self.inputs.setdefault(o, [0] * len(inputs))
        for k, tensor in enumerate(inputs):
            makers[k] |= tensor.makers
        return o

    def group_operation(self, o: int) -> int:
        """Return the operation of groups, which is never fused."""
        self.grouped.add(o)
        return self.chosen.number.get(o, o)

    def reads_own_level(self, o: int) -> bool:
        """Return whether an operation's level depends on its inputs'."""
        if self.chosen.split or self.chosen.kinds is not None:
            return False  # where rounds are unrolled, no use reads its own results
        return self.is_recurrent(self.chosen.number.get(o, o))

    def bit(self, o: int, output: int) -> ProducerSet:
        """Return the bit of an output among those of all operations."""
        while len(self.bits) <= o:
            last = self.operations[len(self.bits) - 1]
            self.bits.append(self.bits[-1] + len(last.outputs))
        return 1 << self.bits[o] + output

    def level_text(self, o: int, tensor: s.Tensor) -> str:
        """Return the text of a number whose level counts for `o`; '' if none does."""
        component = self.in_part[self.part[o]]
        if not tensor.makers & component:
            return ''
        if not tensor.makers & self.in_loops & ~component:
            return tensor.name
        # It may be of another recurrence, whose levels mean nothing here: look at its
        # maker while recording.
        owners = [(self.owner[bit], bit) for bit in results_in(component)]
        makers = [self.makers_of(x)[bit - self.first[x]] for x, bit in owners]
        numbers = {maker.number for maker in makers if maker.type == tensor.type}
        name = f'makers_{self.part[o]}_{tensor.type}'
        self.names.values[name] = frozenset(numbers)
        return f'({tensor.name} if {tensor.name} >> {ROW} & MAKER in {name} else 0)'

    @property
    def level(self) -> int:
        """The lowest bit of the level in a number."""
        return ROW + sum(map(len, self.makers)).bit_length() + 1

    # ---- names

    def given(self, wanted: str, value: object) -> str:
        """Return the name of a value that the source refers to."""
        name = self.names.given(wanted, value)
        if name in self.names.values:
            self.where.setdefault(name, self.node)
        return name

    def copied(self, table: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a copy of a table; the same copy for equal tables of a round."""
        return self.names.copied(table)

    def tape(self, wanted: str, about: str, width: int = 1) -> Tape:
        """Return a new tape."""
        # A comment is one line, whatever names are in it.
        about = about if about.isprintable() else ascii(about)
        tape = Tape(self.names.new(wanted), about, width)
        self.tapes.append(tape)
        return tape

    # ---- rows and makers

    def is_alone(self, key: Hashable) -> bool:
        """Return whether one place alone makes these rows."""
        return self.facts.places.get(key) == 1

    def maker(
        self,
        wanted: str,
        type_: int,
        rows: Rows,
        output: int = 0,
        recurrent: bool = False,
    ) -> Maker:
        """Return a new maker of values of a type."""
        while len(self.makers) <= type_:
            self.makers.append([])
        upper = self.names.constant(identifier(wanted).rstrip('_').upper())
        number = 1 + sum(map(len, self.makers))
        maker = Maker(upper, type_, number, rows, output, recurrent)
        self.makers[type_].append(maker)
        return maker

    def rows_of(self, o: int, inputs: int) -> Rows:
        """Return the rows of an operation."""
        key = 'operation', o
        if key not in self.rows:
            self.rows[key] = Rows(key, columns=[None] * inputs)
        return self.rows[key]

    def makers_of(self, o: int) -> list[Maker]:
        """Return the makers of the outputs of an operation."""
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
        """Return the maker and tape of constants of examples, made at a `site`.

        A few uses have a tape each, so that they may be in step; many share one.
        """
        t = self.tables.type_number(type_)
        site_key = 'sites', t, below
        self.sites.setdefault(site_key, {})[site] = None
        is_joint = len(self.facts.sites.get(site_key, ())) > FEW_SITES
        key = 'constants', t, below, None if is_joint else site
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
        """Return the type and the number, from 1, of a constant of the program."""
        type_, place = self.tables.places[index]
        return type_, place + 1

    def constant_name(self, index: int, wanted: str = 'CONSTANT') -> str:
        """Return a new name for a constant of the program.

        Each place has its own, even if the constants of two places are equal.
        """
        name = self.names.constant(wanted)
        self.constant_names[name] = index
        return name

    def joined(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """Return the value with all makers of a place, to which its own are added."""
        makers = list(s.makers(value))
        known = self.joins.setdefault(key, [0] * len(makers))
        for k, bits in enumerate(makers):
            known[k] |= bits
        aliases = first_of_each(s.levels(value))
        # Two tensors stay on one level only if they are on one in every value.
        if len(aliases) < 2:
            self.levels[key] = stable = aliases
        else:
            self.levels[key] = both_same(self.levels.get(key, aliases), aliases)
            stable = both_same(self.facts.levels.get(key, aliases), aliases)
        return self._with_facts(key, value, makers, stable)

    def known(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """Return a template with all that is known of a place."""
        makers = list(s.makers(value))
        # Until a round has seen otherwise, all tensors are assumed to be on one level.
        assumed = (0,) * len(list(s.levels(value)))
        return self._with_facts(key, value, makers, self.facts.levels.get(key, assumed))

    def _with_facts(
        self,
        key: Hashable,
        value: s.Symbol,
        makers: list[ProducerSet],
        aliases: tuple[int, ...],
    ) -> s.Symbol:
        """Return a value with the makers and the levels that facts tell of."""
        before = self.facts.joined.get(key, (0,) * len(makers))
        both = (a | b for a, b in zip(before, makers, strict=True))
        levels = [object() for _ in aliases]  # equal only to themselves
        value = s.with_makers(value, both)
        return s.with_levels(value, (levels[k] for k in aliases))

    def template(self, type_: Type) -> s.Symbol:
        """Return the template of any value of a type."""
        return s.template(type_, self.tables.type_number)

    # ---- new facts

    def new_facts(self) -> Facts:
        """Return the facts that the round has found."""
        inputs = tuple(
            tuple(self.inputs.get(o, [0] * len(operation.inputs)))
            for o, operation in enumerate(self.operations)
        )
        results = tuple(
            tuple(self.row_makers.get(r, [0] * len(result.tensors)))
            for r, result in enumerate(self.results)
        )
        joined = {key: tuple(makers) for key, makers in self.joins.items()}
        split = tuple(self.split_of)
        sites = {key: tuple(uses) for key, uses in self.sites.items()}
        return Facts(
            dict(self.places), joined, self.levels, inputs, results, split, sites
        )

    def counters(self) -> list[Tape]:
        """Return the tapes whose lengths count rows."""
        rows = (*self.rows.values(), *self.result_rows.values())
        constants = [tape for _, tape in self.own.values()]
        used = [x.counter for x in rows if x.counter is not None]
        return list(dict.fromkeys([*constants, *used, *self.labels.values()]))

    def sites_in_order(self) -> dict[int, list[tuple[Any, ...]]]:
        """Return the bound and the use of the constants on each tape, by type."""
        result: dict[int, list[tuple[Any, ...]]] = {}
        for _, t, below, site in self.own:
            result.setdefault(t, []).append((below, site))
        return result


def first_of_each(levels: Iterable[Any]) -> tuple[int, ...]:
    """Return the index of the first level equal to each; its own if unknown."""
    first: dict[Any, int] = {}
    pairs = enumerate(levels)
    return tuple(k if x is None else first.setdefault(x, k) for k, x in pairs)


def both_same(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return per element the index of the first that equals it in both."""
    return first_of_each(zip(a, b, strict=True))
