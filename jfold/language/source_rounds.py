# SPDX-License-Identifier: Apache-2.0
"""One round of writing a source: the facts it starts from, and those it finds.

`o` numbers operations, `k` their inputs or outputs, `r` results. *Places*, *producers*
and *joins* are explained in `facts`.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jfold.language import symbols as s
from jfold.language.facts import Facts, OperationChoice, unions
from jfold.language.names import Names, identifier
from jfold.language.symbols import Maker, Rows, Tape, Use
from jfold.language.tables import Tables
from jfold.language.typed import TypedUse
from jfold.program.components import (
    are_recurrent,
    component_of,
    output_places,
    results_in,
)
from jfold.program.operations import Operation, Operations, Producers, ProducerSet
from jfold.program.result_tables import Result, tensors_in_row
from jfold.tracing.tape_reader import ROW
from jfold.types import KeyType, SequenceType, TensorType, Type, leaf_types

FEW_SITES = 4


class Round:
    """The state of one round of source generation.

    Attributes:
      facts: the facts that the round before found.
      seen: the facts of this round so far.
      uses: the applications of operations.
      reads: per place, the producers of its inputs.
      renamed: from sets of place outputs to sets of operation outputs, by `facts`.
      alone: the keys of those `Rows` to which one statement appends, by `facts`.
      part, loops, outputs: the results of `_recurrence`.
      untouched: per function, its calls that pass on its own arguments unchanged.
      node: the use of a block that is being written.
      where: by line or name in the source, the use that wrote it; `None` if several.
      bits: per place, the number of its first output among all outputs.
      masks: by recurrent component, the name of the set of its makers' numbers.
      functions: the lines of all functions.
      written: the name of each function in the source, by its key.
      memos: the names of the memo dicts of functions whose results are shared.
      by_identity: by the key of a function, the name of its memo if keyed by `id`.
      calls: the names of the functions that record calls of lazy functions, by entry.
      runs_lazy: whether the source runs a lazy function.
    """

    def __init__(
        self, tables: Tables, chosen: OperationChoice, facts: Facts, deep: bool = False
    ) -> None:
        self.tables, self.typing = tables, tables.typing
        self.chosen, self.facts, self.deep = chosen, facts, deep
        self.seen = Facts()
        self.uses: list[Use] = []
        self.reads: list[tuple[ProducerSet, ...]] = []
        self.untouched = defaultdict[Hashable, list[tuple[Hashable, str]]](list)
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
        self.calls: dict[int, str] = {}
        self.runs_lazy = False
        by_groups, applied = facts.reductions, Counter[Hashable]()
        applied.update(('operation', o) for o in facts.operations if o not in by_groups)
        self.alone = {x for x, n in (facts.statements + applied).items() if n == 1}
        self.renamed = facts.renaming(self.operations)
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
        output of all operations, its operation and its index there.
        """
        if not self.facts.operations:
            return (), (), ()
        program = self.program()
        return component_of(program), are_recurrent(program), output_places(program)

    def is_settled_by(self, facts: Facts) -> bool:
        """Set `facts`; return whether another round would write the same source."""
        before, self.facts = self.facts, facts
        # Producers change the text only by deciding which operations are recurrent.
        known = replace(facts, sources=before.sources, summands=before.summands)
        return known == before and self._recurrence() == (
            self.part,
            self.loops,
            self.outputs,
        )

    def program(self) -> Operations:
        """Return the program so far, with each operand's known producers."""
        return Operations(
            types=tuple(self.tables.types),
            layers=self.typing.layers,
            operations=tuple(self.operations),
            constants=tuple(self.tables.constants),
            results=tuple(self.results),
            sources=self.facts.merged(self.operations),
        )

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations of the program, indexed by their numbers."""
        chosen = self.chosen.operations
        return self.tables.listed if chosen is None else chosen

    def is_recurrent(self, o: int) -> bool:
        """Return whether operation `o` is known to depend on its own results."""
        return o < len(self.loops) and self.loops[o]

    def applied(
        self, o: int, inputs: Sequence[s.Tensor], reader: Use | None = None
    ) -> tuple[int, int]:
        """Add a place that applies `o` to `inputs`; return it and its operation.

        The operation is `o` or, after unrolling, what replaces `o` at this place. The
        application is `reader`; `None` keeps makers of `inputs` from being fused.
        """
        place = len(self.seen.operations)
        if self.chosen.kinds is not None:
            before, now = self.chosen.kinds[place]
            assert before == o, 'jfold told places apart wrongly, please report it'
            o = now
        self.seen.operations.append(o)
        self.rows_of('operation', o, len(inputs))
        self.reads.append(self.read(inputs, reader))
        return place, o

    def read(
        self, operands: Sequence[s.Tensor], reader: Use | None
    ) -> tuple[ProducerSet, ...]:
        """Add `reader` to the readers of some operands; return their producers."""
        for tensor in operands:
            if tensor.use is not None:
                tensor.use[0].readers.add(reader)
        return tuple(tensor.makers for tensor in operands)

    def bit(self, place: int, output: int) -> ProducerSet:
        """Return a bit set with one member: output number `output` of a place."""
        while len(self.bits) <= place:
            last = self.operations[self.seen.operations[len(self.bits) - 1]]
            self.bits.append(self.bits[-1] + len(last.outputs))
        return 1 << self.bits[place] + output

    def level_text(self, o: int, tensor: s.Tensor) -> str:
        """Return the source text for the level of `tensor`, an input of operation `o`.

        It is '' if `tensor` comes from outside the component of `o`, within which
        levels are counted.
        """
        part = self.part[o]
        (makers,) = self.renamed([tensor.makers])
        owners = {self.outputs[number][0] for number in results_in(makers)}
        if part not in {self.part[x] for x in owners}:
            return ''
        if not any(self.loops[x] and self.part[x] != part for x in owners):
            return tensor.name
        # The input may come from another recurrence, whose levels do not count here: so
        # the source looks at the maker in the row number.
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

    def tape(self, about: object, *wanted: str, width: int = 1) -> Tape:
        """Add and return a `Tape` of `width` entries per row, commented by `about`.

        Its name is the first of `wanted` that is free, or the last, numbered.
        """
        tape = Tape(self.names.new(*wanted), _one_line(str(about)), width)
        self.tapes.append(tape)
        return tape

    # ---- rows and makers

    def is_alone(self, key: Hashable) -> bool:
        """Return whether exactly one statement of the source appends to table `key`."""
        return key in self.alone

    def maker(
        self, wanted: str, type_: int, output: int = 0, recurrent: bool = False
    ) -> Maker:
        """Add and return a `Maker`, `wanted`, of tensors of type number `type_`."""
        upper = self.names.constant(identifier(wanted).rstrip('_').upper())
        number = 1 + len(self.makers)
        self.makers.append(Maker(upper, type_, number, output, recurrent))
        return self.makers[-1]

    def rows_of(self, kind: str, number: int, width: int) -> Rows:
        """Return table `(kind, number)`; on first use make its `width` columns."""
        key = kind, number
        if key not in self.rows:
            self.rows[key] = Rows(key, [None] * width, (0,) * width)
        return self.rows[key]

    def makers_of(self, o: int) -> list[Maker]:
        """Return the `Maker` of each output of operation `o`."""
        if o not in self.made_by:
            operation = self.operations[o]
            name = identifier(operation.layer.name)
            if operation.from_left:
                name = f'{name}_of_{len(operation.arguments)}'
            self.rows_of('operation', o, len(operation.inputs))  # in this order
            self.made_by[o] = [
                self.maker(wanted, type_, k, self.is_recurrent(o))
                for k, type_ in enumerate(operation.outputs)
                for wanted in [f'{name}_{k}' if len(operation.outputs) > 1 else name]
            ]
        return self.made_by[o]

    def own_constants(
        self, type_: TensorType, below: int | None, site: object, text: str
    ) -> tuple[Maker, Rows, Tape]:
        """Return maker, table and tape of the constants that use `site` reads.

        Up to `FEW_SITES` uses with the same `type_` and `below` have a tape each, to
        be in step; more share one tape. If `numbers` is taken, a tape is called by
        `text`, the source of the object.
        """
        t = self.tables.type_number(type_)
        site_key = 'sites', t, below
        self.seen.sites.setdefault(site_key, {})[site] = None
        is_joint = len(self.facts.sites.get(site_key, ())) > FEW_SITES
        key = 'constants', t, below, None if is_joint else site
        if key not in self.own:
            rows = self.rows[key] = Rows(key, [], ())
            wanted = 'vectors' if type_.shape else 'numbers'
            if isinstance(type_, KeyType):
                wanted = f'{type_.name}_keys'
            elif isinstance(site, tuple):  # of sequences in the rows of a result
                wanted = 'lengths'
            limit = '' if below is None else f' below {below}'
            of = f'{text.removeprefix("item_of_")}_' if text.isidentifier() else ''
            tape = self.tape(f'{type_}{limit}', wanted, f'{of}{wanted}')
            self.own[key] = self.maker(tape.name, t), rows, tape
        return self.own[key]

    def constant_name(self, index: int, *wanted: str) -> str:
        """Return a new name in the source for the program's constant number `index`.

        Each statement has its own, even if constants are equal: so the source stays as
        it is when widths change, and a corpus stays valid.
        """
        (name,) = self.constant_names_for([index], *wanted)
        return name

    def constant_names_for(self, indices: list[int], *wanted: str) -> list[str]:
        """Return new names, as `constant_name` does, for constants `indices`."""
        names = self.names.constants(len(indices), *wanted)
        self.constant_names.update(zip(names, indices, strict=True))
        return names

    def joined(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """Return `value` with the producers of all values that meet at join `key`.

        Its own producers are added to those of the join. Its tensors share a level if
        they do in every value at the join.
        """
        makers, levels = tuple(s.makers(value)), self.seen.levels
        known = self.seen.joined.get(key)
        self.seen.joined[key] = makers if known is None else unions(known, makers)
        aliases = first_of_each(s.levels(value))
        levels[key] = both_same(levels.get(key, aliases), aliases)
        return self._with_facts(key, value, levels[key])

    def known(self, key: Hashable, value: s.Symbol) -> s.Symbol:
        """Return `value` with the producers and levels known so far at join `key`."""
        # Until something else is seen, all tensors are assumed to be on one level.
        assumed = (0,) * len(list(s.levels(value)))
        return self._with_facts(key, value, self.seen.levels.get(key, assumed))

    def _with_facts(
        self, key: Hashable, value: s.Symbol, aliases: tuple[int, ...]
    ) -> s.Symbol:
        """Return `value` with producers known at join `key` added, and with new levels.

        Facts of this round count too; else producers would reach one more function in
        each round. `aliases` has, per tensor, the index of the first one that shares
        its level in this round.
        """
        for facts in self.facts, self.seen:
            if key in facts.joined:
                both = unions(facts.joined[key], s.makers(value))
                value = s.with_makers(value, iter(both))
        aliases = both_same(self.facts.levels.get(key, aliases), aliases)
        levels = [object() for _ in aliases]  # tokens: one per level, by identity
        return s.with_levels(value, (levels[k] for k in aliases))

    def template(self, type_: Type) -> s.Symbol:
        """Return an abstract value of a type: its structure, without source text."""
        return s.template(type_, self.tables.type_number)

    # ---- new facts

    def new_facts(self) -> Facts:
        """Return the facts that this round has found."""
        widths = enumerate(len(result.tensors) for result in self.results)
        results = (tuple(self.rows_of('result', r, n).makers) for r, n in widths)
        return replace(self.seen, sources=Producers(tuple(self.reads), tuple(results)))

    def counters(self) -> list[Tape]:
        """Return the tapes, each once, whose lengths are noted after each example."""
        rows = sorted(self.rows.values(), key=lambda x: x.key[0] == 'result')
        constants = [tape for *_, tape in self.own.values()]
        used = [x.counter for x in rows if x.counter is not None]
        return list(dict.fromkeys([*constants, *used, *self.labels.values()]))

    def sites_in_order(self) -> dict[int, list[tuple[Any, ...]]]:
        """Return, by type number, the uses that append to each tape of constants.

        A tape is given as `(below, site)`, in the order of the tapes: the bound of its
        ints, and the use of a block, `None` if more than `FEW_SITES` share the tape.
        """
        result: dict[int, list[tuple[Any, ...]]] = {}
        for _, t, below, site in self.own:
            result.setdefault(t, []).append((below, site))
        return result


@functools.lru_cache(1)  # an operation of a thousand inputs has as many tapes
def _one_line(text: str) -> str:
    """Return a text for a comment, which is one line whatever names are in it."""
    return text if text.isprintable() else ascii(text)


def items_of(program: Operations) -> dict[int, list[int]]:
    """Return, by result table of the value, the tables of the sequences in its rows."""
    results = program.value_results  # of examples, then of items, level by level
    rows = [leaf_types(program.results[r].type) for r in results]
    items = iter(results[1:])
    return {
        r: [next(items) for leaf in row if isinstance(leaf, SequenceType)]
        for r, row in zip(results, rows, strict=True)
    }


def first_of_each(levels: Iterable[Any]) -> tuple[int, ...]:
    """Return, per item of `levels`, the first equal item's index: 'aba' -> (0, 1, 0).

    `None` equals no other item.
    """
    first: dict[Any, int] = {}
    pairs = enumerate(levels)
    return tuple(k if x is None else first.setdefault(x, k) for k, x in pairs)


def both_same(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return, per index k, the first index that has the pair `(a[k], b[k])`."""
    return first_of_each(zip(a, b, strict=True))
