# SPDX-License-Identifier: Apache-2.0
"""A typed expression → the source of the function that records examples.

The source is written in rounds, up to a fixed point. A round starts from facts that the
round before found: the producers of tensors where several control paths meet; which
operations read their own results; and to which tables one statement alone appends rows.
Once a round finds the facts that it started from, its text is the source.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from jfold import blocks as b
from jfold.language import symbols as s
from jfold.language.facts import Facts, OperationChoice, unions
from jfold.language.lines import RETURNED, Lines
from jfold.language.names import INDENT, WORDS, commented, without_unused, wrapped
from jfold.language.source_rounds import Round, items_of
from jfold.language.symbols import Maker, Region, Tape
from jfold.language.tables import Tables
from jfold.language.typed import TypedUse
from jfold.language.writing import argument_text
from jfold.program.result_tables import LENGTH
from jfold.tracing.record import Source
from jfold.tracing.tape_reader import ROW, Column, Place, Recording

MOST_ROUNDS = 64
NO_FACTS = Facts()


class Generator(Round):
    """A round of writing the source of the function that records examples."""

    def call(
        self, key: Hashable, name: str, node: TypedUse, value: s.Symbol, w: Lines
    ) -> s.Symbol:
        """Write a call of a block's function on `value` into `w`; return the result.

        The function is written at the first call with this `key`, and gets `name`,
        numbered if it is taken. The result is `RETURNED` if the call is in a `return`
        statement.
        """
        flat = list(s.parts(value))
        if isinstance(key, b.ForwardDeclaration) and key.key is not None:
            flat = [w.held(flat[0])]
        for k, argument in enumerate(flat):
            self.joined((key, 'argument', k), argument)
        if key not in self.written:
            self.written[key] = self.names.new(name)
            self._function(key, node, value)
        name = self.written[key]
        # A call on the caller's own arguments: a cycle of such calls never ends.
        leaves = [
            x.name if isinstance(x, s.Tensor) else getattr(x, 'text', '') for x in flat
        ]
        if leaves and w.arguments.issuperset(leaves):
            self.untouched[w.key].append((key, str(self.node)))
        argument = ', '.join(map(s.packed, flat))
        w.region = Region()  # the call may append rows
        text = f'(yield {name}({argument}))' if self.deep else f'{name}({argument})'
        like = self.known((key, 'result'), self.template(node.output))
        if key in self.by_identity:
            memo, entry = self.by_identity[key], f'id({argument})'
            # Row numbers and non-empty tuples are true, for `or`; lists may be empty.
            if isinstance(like, s.Tensor) or (isinstance(like, tuple) and like):
                text = f'{memo}.get({entry}) or {text}'
            else:
                text = f'{memo}[{entry}] if {entry} in {memo} else {text}'
        of = s.packed(flat[0]) if flat else ''
        of = 'item' if of.startswith('item_of_') else of
        wanted = f'{name}_of_{of}' if of.isidentifier() and len(of) < 16 else name
        if w.tail and not self.deep:
            self.joined((w.key, 'result'), like)
            w.line(f'return {text}')
            return RETURNED
        if isinstance(like, tuple) and any(s.leaves(like)):
            return s.with_levels(w.unpacked(like, text, wanted), s.levels(like))
        result = w.variable(wanted)
        w.line(f'{result} = {text}')
        return w.unpacked(like, result)

    def recorded(self, declaration: b.ForwardDeclaration) -> s.Symbol:
        """Return the template of the results of calls that a declaration evaluates.

        When first asked, write the function that records such a call: from the nodes of
        its operands to the row numbers of the result.
        """
        assert declaration.calls is not None
        number, operands, of, place = declaration.calls
        if of is not None:
            items: Any = self.recorded(of)
            return items[place]  # type: ignore[no-any-return]
        key, body = ('calls', declaration), self.typing.declarations[declaration]
        if key not in self.written:
            self.written[key] = self.calls[number] = self.names.new(declaration.name)
            # A node of its own is a tuple: the number of the entry, and the operands.
            node = (None, *[s.Object('x')] * operands)
            self._function(key, body.parts[0], node)
        return self.known((key, 'result'), self.template(body.output))

    def _function(self, key: Hashable, node: TypedUse, value: s.Symbol) -> None:
        """Write function `key` with body `node`; its first call is on `value`."""
        name = self.written[key]
        w = Lines(self, name, key)
        # `tracing.deep` tells objects from row numbers by the `x` in their names.
        names = [
            w.variable('number' if isinstance(part, s.Tensor) else 'x')
            for part in s.parts(value)
        ]
        numbered = enumerate(names)

        def parameter(part: Any) -> s.Symbol:
            k, name = next(numbered)
            return w.unpacked(self.joined((key, 'argument', k), part), name)

        parameters = s.map_parts(parameter, value)
        w.arguments = {*names}
        memo = None
        if isinstance(key, b.ForwardDeclaration) and key.key is not None:
            memo = self._memo_head(key, names[0], w)
        w.tail = memo is None
        result = w.part(node, parameters, tail=True)
        if result is not RETURNED:
            self.returned(w, result, memo)
        if self.deep and not any('(yield ' in x for x in w.lines):
            w.line('yield  # never: what is called here is a generator')
        head = f'{INDENT}def {name}({", ".join(names)}):'
        self.functions += [head, *without_unused(w.lines), '']

    def _memo_head(self, declaration: b.ForwardDeclaration, x: str, w: Lines) -> str:
        """Write code that looks `x` up in a declaration's memo, by the key of `x`.

        Return the source text of the entry of `x`, to assign the result to. If the key
        is `id`, no look-up is written, since each call of the function looks `x` up.
        """
        memo = self.names.new(f'{w.name}_known')
        self.memos.append(memo)
        w.variables |= {'key', 'made'}
        if declaration.key is id:  # the caller has looked it up
            self.by_identity[declaration] = memo
            w.line(f'kept.append({x})  # so that no other object gets its id')
            return f'{memo}[id({x})]'
        argument = argument_text(declaration.key, x)
        w.line(f'key = {self.name_for("key_of", declaration.key)}({argument})')
        w.line(f'if key in {memo}:')
        w.line(f'{INDENT}return made_before({memo}, key)')
        # Marks the entry as being computed, so that `made_before` refuses a cycle.
        w.line(f'{memo}[key] = {memo}')
        return f'{memo}[key]'

    def returned(self, w: Lines, value: s.Symbol, memo: str | None = None) -> None:
        """Write `return <value>` into `w`; store the value in entry `memo` if given."""
        self.joined((w.key, 'result'), value)
        text = s.packed(value)
        if memo:
            w.line(f'{memo} = made = {text}')
            text = 'made'
        w.line(f'return {text}')

    # ---- the text

    def write(self) -> str:
        """Return the source text: the function `record` and all that it calls."""
        w = Lines(self, 'record')
        w.variables.add('x')
        value = w.part(self.typing.root, s.Object('x'))
        inside = items_of(self.program())
        self._write_row(value, next(iter(inside)), inside, w)
        for memo in self.memos:
            w.line(f'{memo}.clear()')
        if self.memos:
            w.line('kept.clear()')
        ends = [f'len({tape.name})' for tape in self.counters()]
        for line in wrapped('ends.append((', ends, '))', INDENT * w.depth):
            w.line(line)
        lines = list(self._record(w))
        # Only constants that the lines name are written.
        used = set(WORDS.findall('\n'.join(lines)))
        constants = [line for name, line in self._constants() if name in used]
        return '\n'.join([*constants, '', *lines, ''])

    def _constants(self) -> Iterator[tuple[str, str]]:
        """Yield pairs (name, line): the source needs `line` where it uses `name`."""
        about = f'bits 0 to {ROW - 1} are its row, then comes who makes it'
        yield 'record', f'# A value is a number: {about},'
        about = (
            f'from bit {self.level} on its level: in a recursion one above its inputs'
        )
        yield 'record', f'# {about}.'
        yield 'LEVELS', f'LEVEL = 1 << {self.level}'
        yield 'LEVELS', 'LEVELS = (1 << 63) - LEVEL'
        yield 'MAKER', f'MAKER = {(1 << self.level - ROW) - 1}'
        for maker in sorted(self.makers, key=lambda x: x.type):
            base = f'{maker.number} << {ROW}'
            base = f'LEVEL + ({base})' if maker.recurrent else base
            yield maker.name, f'{maker.name} = {base}'
        types = [*self.tables.types]
        for name, index in self.constant_names.items():
            t, _ = self.tables.constants[index]
            about = f'constant {self.tables.places[index]} of {types[t]}'
            yield name, f'{name} = {self.tables.places[index]}  # {about}'

    def _record(self, w: Lines) -> Iterator[str]:
        """Yield the lines of `record`; `w` is the body of its loop over examples."""
        yield 'def record(examples):'
        for about, tapes in itertools.groupby(self.tapes, lambda x: x.about):
            lines = [f'{INDENT}{tape.name} = []' for tape in tapes]
            yield from commented(lines, about, INDENT)
        yield f'{INDENT}ends = []  # the lengths of the tapes after each example'
        for memo in self.memos:
            yield f'{INDENT}{memo} = {{}}  # results, by the key of an object'
        if self.memos:
            yield f'{INDENT}kept = []  # the objects whose ids are keys'
        yield ''
        yield from self.functions
        if self.runs_lazy:
            items = [
                f'{number}: {f"by_steps({name})" if self.deep else name}'
                for number, name in sorted(self.calls.items())
            ]
            head = f'{INDENT}calls = {{'
            about = 'by number, what records a call in a lazy function'
            yield from commented(wrapped(head, items, '}', INDENT), about, INDENT)
        yield f'{INDENT}for x in examples:'
        yield from without_unused(w.lines)
        if self.deep and not any('(yield ' in x for x in w.lines):
            yield f'{INDENT}yield from ()'
        names = [tape.name for tape in self.tapes]
        for line in wrapped('return ends, (', names, ')', INDENT):
            yield INDENT + line

    def _write_row(
        self, value: s.Symbol, r: int, inside: Mapping[int, Sequence[int]], w: Lines
    ) -> None:
        """Write code to add `value` as a row of result table `r`.

        Args:
          inside: by result table, the tables for items of the sequences in its rows.
        """
        texts, inner = list[s.Tensor](), iter(inside[r])
        for leaf in s.parts(value):
            if not isinstance(leaf, s.Items):
                texts.append(leaf)
                continue
            texts.append(w.constants(LENGTH, leaf.n, None, ('length', r)))
            row = functools.partial(self._write_row, r=next(inner), inside=inside, w=w)
            w.loop(leaf, row)
        self.observe(r, texts, w)

    def observe(self, r: int, leaves: Sequence[s.Tensor], w: Lines) -> None:
        """Write code that adds a row, an entry for each of `leaves`, to result `r`."""
        rows = self.rows_of('result', r, len(leaves))
        rows.makers = unions(rows.makers, self.read(leaves, None))
        if leaves:
            self.seen.statements[rows.key] += 1
            name = self.results[r].kind.name or ('items' if r else 'results')
            entries = w.entries(rows, leaves, name, str(self.results[r]))
            w.row(rows, entries)
            for tape, text in entries:
                w.add(tape, text)

    def label(self, r: int, text: str, w: Lines) -> None:
        """Write code that appends object `text` to the labels of metric `r`."""
        if r not in self.labels:
            name = f'{self.results[r].kind.name}_labels'
            self.labels[r] = self.tape('labels', name)
        w.add(self.labels[r], text)

    def source(self, text: str) -> Source:
        """Return the `Source` of `text`, with the layout of the tapes that it fills."""
        tape_index = {tape: k for k, tape in enumerate(self.tapes)}
        end_index = {tape: k for k, tape in enumerate(self.counters())}

        def place(kind: str, number: int) -> Place | None:
            """Return the tapes of table `(kind, number)`; `None` if it gets no row."""
            rows = self.rows.get((kind, number))
            if rows is None or rows.counter is None:
                return None
            columns = []
            for k, column in enumerate(rows.columns):
                if isinstance(column, Maker):
                    columns.append(Column(maker=column.number))
                elif isinstance(column, Tape):
                    # One tape of a group of items has the entries of all its inputs.
                    inner = k if column.width > 1 else 0
                    columns.append(Column(tape_index[column], inner, column.width))
            return Place(end_index[rows.counter], rows.counter.width, tuple(columns))

        constants: list[list[Any]] = [[] for _ in self.tables.types]
        for (_, _, below, _), (maker, _, tape) in self.own.items():
            where = tape_index[tape], end_index[tape]
            constants[maker.type].append((*where, below, maker.number))
        every, numbers = range(len(self.operations)), range(len(self.results))
        recording = Recording(
            ends=len(end_index),
            level=self.level,
            constants=tuple(map(tuple, constants)),
            makers=tuple(
                (maker.number, o, maker.output)
                for o, of_operation in self.made_by.items()
                for maker in of_operation
            ),
            operations=tuple(place('operation', o) for o in every),
            results=tuple(place('result', r) for r in numbers),
            labels=tuple(
                tape_index[self.labels[r]] if r in self.labels else -1
                for r in numbers
                if self.results[r].kind.labelled
            ),
            shared=tuple(self.constant_names.values()),
            prunes=self.runs_lazy,
        )
        return Source(text, self.names.values, recording, self.where)


def generate_source(
    tables: Tables, chosen: OperationChoice, deep: bool = False, facts: Facts = NO_FACTS
) -> tuple[Generator, str]:
    """Generate the source that records examples, round by round up to a fixed point.

    Return the last round, a `Generator`, and the source.

    Args:
      chosen: the operations to record, after fusion or unrolling.
      deep: whether calls in the source are yielded, for data deeper than the stack.
      facts: the facts that the first round starts from; fewer facts take more rounds.
    """
    for number in itertools.count(1):
        round_ = Generator(tables, chosen, facts, deep)
        text, facts = round_.write(), round_.new_facts()
        if round_.is_settled_by(facts):
            break
        # A round may carry facts only from a function to the functions that it calls.
        most = MOST_ROUNDS + len(round_.written)
        if number >= most:
            why = f'jfold found no source in {most} rounds, please report it'
            raise AssertionError(why)
    return round_, text
