# SPDX-License-Identifier: Apache-2.0
"""The types of registers, inferred; whoever makes a program has it checked by them.

A body states the types of its inputs and results. Those of all other registers follow,
instruction by instruction, from the signature of each kind; a signature that does not
fit its operands, and results that are not as stated, are refused.

    Select takes x[a] positions[b of a], gives x[b]      Select r8 r3, where
      x[a]              is r8: tensors[c, float32[4]]    so a is c, and x tensors
      positions[b of a] is r3: positions[b of a]         refused: they are not of c
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jfold import instructions as ir
from jfold.operations import Operations
from jfold.registers import (
    BODY_ROWS,
    ITEM_ROWS,
    LENGTHS,
    PLACES,
    POSITIONS,
    SEQUENCES,
    TENSORS,
    WAVES,
    Match,
    RegisterType,
    Signature,
    Term,
    TypeClash,
    expanded,
    items_of,
    parts_of,
    row_names,
    signature,
)
from jfold.types import KeyType

Terms = list[tuple[RegisterType, int]]
_WRONG = 'jfold made a wrong program, please report it'


@dataclass(eq=False)
class Checked:
    """A body as far as it has been checked.

    Attributes:
      operations: those of its program.
      declarations: the bodies that calls refer to.
      registers: the types of those that may be read.
      written: those that have been, also by calls that have not returned.
      names: gives names of rows that no input has.
      parts: the rows that others have been cut into, and these.
      promised, fulfilled: of each declaration, the numbers of the types of its results.
    """

    operations: Operations
    declarations: Sequence[ir.Body]
    registers: dict[int, RegisterType]
    written: set[int]
    names: Iterator[str]
    parts: set[tuple[tuple[str, ...], str]] = field(default_factory=set)
    promised: dict[int, tuple[int, ...]] = field(default_factory=dict)
    fulfilled: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def read(self, registers: Iterable[int]) -> list[RegisterType]:
        """The types of registers that are read."""
        registers = list(registers)
        for register in registers:
            if register not in self.registers:
                raise TypeClash(f'a register written before, got r{register}')
        return [self.registers[register] for register in registers]


def infer(
    body: ir.Body, operations: Operations, declarations: Sequence[ir.Body]
) -> dict[int, RegisterType]:
    """The type of every register of a body.

    Takes time in proportion to the registers that are read and written.

    Raises:
      AssertionError: an instruction, or what the body returns, does not fit.
    """
    taken = {name for each in body.inputs for name in (each.rows, each.of)}
    names = itertools.filterfalse(taken.__contains__, row_names())
    registers = dict(enumerate(body.inputs))
    state = Checked(operations, declarations, registers, set(registers), names)
    for stage in body.stages:
        for i in stage.instructions:
            registers |= _outputs(i, body, state, waits=False)
        # No call has returned while others of its stage are made.
        made = [_outputs(call, body, state, waits=True) for call in stage.calls]
        for each in made:
            registers |= each
    try:
        stated = [(each, 0) for each in body.results]
        match = Match(names, rows={BODY_ROWS: BODY_ROWS})
        _take(stated, body.outputs, match, state, 'results')
        if body.writer != {r: i for i in body.instructions for r in i.outputs}:
            raise TypeClash('to know which instruction writes what, got others')
        if broken := sorted(state.promised.items() - state.fulfilled.items()):
            raise TypeClash(f'promises to be kept, got {broken}')
    except TypeClash as clash:
        text = f'{_WRONG}: {body}: return: expected {clash}'
        raise AssertionError(text) from None
    return registers


def _outputs(
    i: ir.Instruction, body: ir.Body, state: Checked, waits: bool
) -> dict[int, RegisterType]:
    """The types of what an instruction writes; those that wait are calls."""
    try:
        if isinstance(i, ir.Call) != waits:
            raise TypeClash('calls behind all else of a stage, got them mixed')
        for register in i.outputs:
            if register in state.written or not 0 <= register < body.registers:
                raise TypeClash(f'a new register to write, got r{register}')
            state.written.add(register)
        return dict(zip(i.outputs, _infer(i, state), strict=True))
    except TypeClash as clash:
        raise AssertionError(f'{_WRONG}: {body}: {i}: expected {clash}') from None


def _infer(i: ir.Instruction, state: Checked) -> list[RegisterType]:
    """The types of the results of an instruction, whose operands are checked."""
    _check_options(i, state.operations)
    taken, given = _tensors(i, state.operations)
    types, chosen = state.operations.types, _signature(i, state)
    # In this order: what operands bind decides how many results there are.
    match = Match(state.names, i.times, only=i.chosen)
    terms = _filled(expanded(chosen.takes, i.repeats, i.chosen or 0), taken, types)
    if not terms and chosen.takes:
        raise TypeClash('inputs, got none')
    operands = _take(terms, i.inputs, match, state, 'inputs')
    if isinstance(i, ir.FoldLoop):  # of what it gives of items, its body alone tells
        for k, each in enumerate(i.combine.results[i.states :]):
            match.columns[f'Z{k}'] = each.kind, each.tensor
    counts = [_count(t, len(i.outputs), match) for t in chosen.gives if t.many]
    results = _filled(expanded(chosen.gives, counts, i.chosen or 0), given, types)
    if len(results) != len(i.outputs):
        raise TypeClash(f'{len(results)} outputs, got {len(i.outputs)}')
    made = [match.give(term, number) for term, number in results]
    _check_parts(i, chosen, operands, made, state)
    for name, text in i.traits.holds.items():
        _check_held(getattr(i, name), signature(text), match)
    return made


def _signature(i: ir.Instruction, state: Checked) -> Signature:
    """The signature that fits the first operand; of a call, that of its body."""
    if isinstance(i, ir.Call | ir.Send | ir.Waves):
        # As it is stated: a recursion is called before its own body has been checked.
        body = _numbered(state.declarations, i.declaration, 'declarations')
        if isinstance(i, ir.Call):
            _check_called(body)
            if i.owners != body.owners:
                raise TypeClash(f'owners {body.owners}, got {i.owners}')
        return Signature(_terms(body.inputs), _terms(_given(i, body, state)))
    if isinstance(i, ir.Wrap | ir.Unwrap):
        return _of_sequence(i)
    first, *others = i.traits.signatures
    kinds = [each.kind for each in state.read(i.inputs[:1])]
    fitting = [each for each in others if each.takes[0].type.kind in kinds]
    return fitting[0] if fitting else first


def _of_sequence(i: ir.Wrap | ir.Unwrap) -> Signature:
    """The signature for sequences of the type that is stated."""
    lengths = RegisterType(LENGTHS, BODY_ROWS, ITEM_ROWS)
    apart = _terms([lengths, *items_of(i.sequence)])
    whole = _terms([RegisterType(SEQUENCES, BODY_ROWS, tensor=i.sequence)])
    return Signature(*((apart, whole) if isinstance(i, ir.Wrap) else (whole, apart)))


def _check_called(body: ir.Body) -> None:
    """Refuses a body that is given no places, or gives items of which nothing tells
    which are of which of those that it is given."""
    if not body.arity or body.inputs[0].kind != PLACES:
        raise TypeClash(f'{body} to take places first, got others')
    rows = {BODY_ROWS}
    for each in body.results:
        if each.rows not in rows:
            raise TypeClash(f'{body} to give lengths before items, got {each}')
        rows |= {each.of}


def _terms(types: Iterable[RegisterType]) -> tuple[Term, ...]:
    return tuple(map(Term, types))


def _given(
    i: ir.Call | ir.Send | ir.Waves, body: ir.Body, state: Checked
) -> Iterable[RegisterType]:
    """What an instruction gives that has a declaration's body run."""
    if isinstance(i, ir.Call):
        return body.results
    if isinstance(i, ir.Send):
        return [RegisterType(POSITIONS, BODY_ROWS, f'{WAVES}{i.declaration}')]
    sent = (each for one in state.declarations for each in one.instructions)
    if any(isinstance(x, ir.Send) and x.declaration == i.declaration for x in sent):
        raise TypeClash(f'nothing sent to declaration {i.declaration}, got some')
    # So its items are those that it is given here, and no others.
    rows = [f'{WAVES}{d}' for d in range(len(state.declarations))]
    rows[i.declaration] = BODY_ROWS
    return itertools.chain.from_iterable(
        (RegisterType(PLACES, row), *(_of_all_waves(x, row, d) for x in each.results))
        for d, (row, each) in enumerate(zip(rows, state.declarations, strict=True))
    )


def _of_all_waves(type_: RegisterType, items: str, declaration: int) -> RegisterType:
    """The type of a result of a body, whose items of all waves are given.

    What was joined in each wave is not in the order of what is joined of all: its rows
    are others than those of a `Join` in the second pass.
    """

    def named(match: re.Match[str]) -> str:
        rows = match[0]
        if rows.startswith(WAVES):
            return rows
        return items if rows == BODY_ROWS else f'{rows}{WAVES}{declaration}'

    parts = (each.replace('+', '&') for each in (type_.rows, type_.of))
    rows, of = (_ROWS.sub(named, each) for each in parts)
    return replace(type_, rows=rows, of=of)


_ROWS = re.compile(rf'{WAVES}\d+|[a-z]+')


def _take(
    terms: Terms, registers: Sequence[int], match: Match, state: Checked, what: str
) -> list[RegisterType]:
    """Matches registers that are read; their types."""
    given = state.read(registers)
    if len(terms) != len(given):
        raise TypeClash(f'{len(terms)} {what}, got {len(given)}')
    for register, (term, number), got in zip(registers, terms, given, strict=True):
        try:
            match.take(term, number, got)
        except TypeClash as clash:
            raise TypeClash(f'r{register} to be {clash}') from None
    return given


def _count(term: Term, outputs: int, match: Match) -> int:
    """How many registers a term that is given stands for."""
    letter = term.type.kind
    return match.count(letter) if letter.isupper() else outputs


def _filled(terms: Terms, numbers: Sequence[int], types: Sequence[Any]) -> Terms:
    """The terms, with types of the given numbers where they are of tensors."""
    open_ = [t.kind == TENSORS and t.tensor is None for t, _ in terms]
    if sum(open_) != len(numbers):
        raise TypeClash(f'{len(numbers)} tensors, got {sum(open_)}')
    rest = iter(numbers)
    return [
        (replace(t, tensor=_numbered(types, next(rest), 'types')) if is_open else t, n)
        for is_open, (t, n) in zip(open_, terms, strict=True)
    ]


def _numbered(items: Sequence[Any], number: int, what: str) -> Any:
    if not 0 <= number < len(items):
        raise TypeClash(f'one of {len(items)} {what}, got number {number}')
    return items[number]


# ---- what a signature does not tell --------------------------------------------------


@functools.singledispatch
def _tensors(
    i: ir.Instruction, operations: Operations
) -> tuple[Sequence[int], Sequence[int]]:
    """The numbers of the types of tensors that an instruction takes, and gives."""
    return (), ()


@_tensors.register
def _(
    i: ir.ConstantMaker, operations: Operations
) -> tuple[Sequence[int], Sequence[int]]:
    return (), (i.type,)


@_tensors.register
def _(i: ir.Promise, operations: Operations) -> tuple[Sequence[int], Sequence[int]]:
    return (), i.types


@_tensors.register
def _(i: ir.Fulfil, operations: Operations) -> tuple[Sequence[int], Sequence[int]]:
    return i.types, ()


@_tensors.register
def _(i: ir.Constant, operations: Operations) -> tuple[Sequence[int], Sequence[int]]:
    number, _ = _numbered(operations.constants, i.index, 'constants')
    return (), (number,)


@_tensors.register
def _(i: ir.Choose, operations: Operations) -> tuple[Sequence[int], Sequence[int]]:
    chosen = {*i.table.values(), *i.default}
    types = {_numbered(operations.constants, x, 'constants')[0] for x in chosen}
    if len(types) != 1:
        raise TypeClash(f'constants of one type, got those of types {sorted(types)}')
    return (), tuple(types)


@_tensors.register
def _(i: ir.Apply, operations: Operations) -> tuple[Sequence[int], Sequence[int]]:
    operation = _numbered(operations.operations, i.operation, 'operations')
    return operation.inputs, operation.outputs


@_tensors.register
def _(i: ir.Observe, operations: Operations) -> tuple[Sequence[int], Sequence[int]]:
    return _numbered(operations.results, i.result, 'results').tensors, ()


@functools.singledispatch
def _check_options(i: ir.Instruction, operations: Operations) -> None:
    """Refuses options that contradict each other."""


@_check_options.register
def _check_made(i: ir.ConstantMaker, operations: Operations) -> None:
    type_ = _numbered(operations.types, i.type, 'types')
    if type_ != i.tensor:
        raise TypeClash(f'type {i.type} to be {type_}, got {i.tensor}')
    if isinstance(i, ir.Draw) != isinstance(type_, KeyType):
        kind = 'a key' if isinstance(i, ir.Draw) else 'no key, which none is made of'
        raise TypeClash(f'{kind}, got type {i.type}, {type_}')


@_check_options.register
def _(i: ir.Observe, operations: Operations) -> None:
    result = _numbered(operations.results, i.result, 'results')
    has_labels = isinstance(i, ir.ObserveLabelled)
    if wrong := result.kind.refused(i.result, has_labels):
        raise TypeClash(wrong)


@_check_options.register
def _(i: ir.Cases, operations: Operations) -> None:
    numbers = [1] if i.case_of is None else list(i.case_of.values())
    numbers += [] if i.default is None else [i.default]
    if i.cases <= (highest := max(numbers, default=0)):
        raise TypeClash(f'more than {highest} cases, got {i.cases}')
    if min(numbers, default=0) < 0:
        raise TypeClash(f'cases from 0 on, got {min(numbers)}')


@_check_options.register
def _(i: ir.Fields, operations: Operations) -> None:
    if len(i.keys) != len(i.outputs):
        raise TypeClash(f'{len(i.outputs)} keys, got {len(i.keys)}')


@_check_options.register
def _(i: ir.Numbers, operations: Operations) -> None:
    _check_made(i, operations)
    if i.tensor.shape:
        raise TypeClash(f'a tensor [] of each length, got {i.tensor}')


@_check_options.register
def _(i: ir.Lookup | ir.Choose, operations: Operations) -> None:
    if len(i.default) > 1:
        raise TypeClash(f'one default at most, got {len(i.default)}')


@_check_options.register
def _(i: ir.Fixed, operations: Operations) -> None:
    if i.length < 0:
        raise TypeClash(f'a length from 0 on, got {i.length}')


@_check_options.register
def _(i: ir.ReduceGroups, operations: Operations) -> None:
    # Each is for what the one before is too small for, and the first is for pairs.
    if i.sizes[:1] != (2,) or list(i.sizes) != sorted({*i.sizes}):
        raise TypeClash(f'sizes from 2 on, each above the one before, got {i.sizes}')
    if len(i.operations) != len(i.sizes):
        raise TypeClash(f'{len(i.sizes)} operations, got {len(i.operations)}')
    found = [_numbered(operations.operations, o, 'operations') for o in i.operations]
    for size, each in zip(i.sizes, found, strict=True):
        if each.inputs != each.outputs * size:
            raise TypeClash(f'an operation of {size} items, got {each!r}')
    filled = [_numbered(operations.constants, k, 'constants')[0] for k in i.fill]
    if filled and filled != [*found[0].outputs]:
        raise TypeClash(f'constants of types {found[0].outputs}, got {filled}')


@_check_options.register
def _(i: ir.Cut, operations: Operations) -> None:
    if not isinstance(i.key, slice):
        raise TypeClash(f'a slice, got {i.key!r}')


def _check_parts(
    i: ir.Instruction,
    chosen: Signature,
    operands: list[RegisterType],
    made: list[RegisterType],
    state: Checked,
) -> None:
    """Refuses to put together what has not been taken apart so, or promised so."""
    if isinstance(i, ir.Promise | ir.Fulfil):
        _check_promised(i, operands[0].of or operands[0].rows, state)
    if isinstance(i, ir.ReduceGroups):
        outputs = state.operations.operations[i.operations[0]].outputs
        of_groups = [state.operations.types[t] for t in outputs]
        if of_groups != (got := [each.tensor for each in made]):
            raise TypeClash(f'items that operations give, {of_groups}, got {got}')
    if isinstance(i, ir.Positions) and len(made) != _cases_of(operands[0]):
        raise TypeClash(f'an output for each case of {operands[0]}, got {len(made)}')
    if isinstance(i, ir.Among) and not 0 <= i.case < _cases_of(operands[1]):
        raise TypeClash(f'a case of {operands[1]}, got number {i.case}')
    # Rows that are put together have to be all that were cut apart, in the order of
    # cases: else items would be lost or swapped, which no type of theirs would tell.
    if isinstance(i, ir.Positions):
        state.parts.add((tuple(each.rows for each in made), made[0].of))
    elif chosen.takes and chosen.takes[0] == _PARTS:
        cut = [each for each in operands if each.kind == POSITIONS]
        rows = tuple(each.rows for each in cut)
        if (rows, cut[0].of) not in state.parts:
            all_ = f'the positions of all cases of {cut[0].of}'
            raise TypeClash(f'{all_} in their order, got {", ".join(map(str, cut))}')


def _check_promised(i: ir.Promise | ir.Fulfil, items: str, state: Checked) -> None:
    """Refuses results of other items than those of the declaration, or of other types
    than are promised elsewhere."""
    if items != (own := f'{WAVES}{i.declaration}'):
        raise TypeClash(f'items {own} of declaration {i.declaration}, got {items}')
    known = state.promised if isinstance(i, ir.Promise) else state.fulfilled
    if (types := known.setdefault(i.declaration, i.types)) != i.types:
        raise TypeClash(f'types {types} of declaration {i.declaration}, got {i.types}')


def _cases_of(type_: RegisterType) -> int:
    return len(parts_of(type_.of))


_PARTS = Term(RegisterType(POSITIONS, 'B', 'a'), many=True)


def _check_held(body: ir.Body, wanted: Signature, match: Match) -> None:
    """Refuses a body of another type than the instruction that it is in asks for."""
    # Its rows are its own, of the sequences that are left in a round; it shares kinds
    # and tensor types of columns alone.
    inner = Match(match.names, 0, {BODY_ROWS: BODY_ROWS}, match.columns)
    for terms, got, what in (
        (wanted.takes, body.inputs, 'take'),
        (wanted.gives, body.results, 'give'),
    ):
        counts = [match.count(term.type.kind) for term in terms if term.many]
        expected = [inner.give(*each) for each in expanded(terms, counts)]
        if expected != [*got]:
            texts = [' '.join(map(str, each)) for each in (expected, got)]
            raise TypeClash(f'{body} to {what} {texts[0]}, got {texts[1]}')
