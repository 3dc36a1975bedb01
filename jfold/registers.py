# SPDX-License-Identifier: Apache-2.0
"""The types of registers, and signatures: what a kind of instruction takes and gives.

    objects[a] -> lengths[a: b] objects[b]          Iterate
    x[a] positions[b of a] -> x[b]                  Select
    positions[B of a]* x[B]* -> x[a]                Merge
    cases[a: /B] -> positions[B of a]*              Positions

Letters name *rows*: all registers of rows `a` have an item for the same things, in the
same order. `positions[b of a]` are numbers of items of `a`, `lengths[a: b]` those of
sequences that have the items `b`, one after another. `x` is any column of values, the
same wherever it stands. A term with a star stands for any number of registers, in each
of which a capital letter is another. `+B` are the rows of all of them, one after
another, `n*a` those of n columns in turns, item by item. `cases[a: /B]` are numbers of
cases, of which each has rows of its own. `sequences[a]` are whole sequences, each as
one value. Rows `@0` are the items of the first
declaration, of all waves in which data is taken apart.
"""

from __future__ import annotations

import functools
import itertools
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jfold.trampoline import Steps, in_turn, run
from jfold.types import (
    BroadcastType,
    Nested,
    Product,
    SequenceType,
    TensorType,
    Type,
    VoidType,
)

# What columns hold: Python objects, value ids, places, numbers of cases, sequences.
OBJECTS, TENSORS, PLACES, CASES = 'objects', 'tensors', 'places', 'cases'
SEQUENCES = 'sequences'
VALUES = OBJECTS, TENSORS, PLACES, CASES, SEQUENCES
LISTED = OBJECTS, SEQUENCES  # in lists rather than arrays
POSITIONS, LENGTHS = 'positions', 'lengths'


@dataclass(frozen=True)
class Wrapped(Type):
    """A sequence as one value, as loops carry it along."""

    sequence: SequenceType


def wrapped(type_: Type) -> Type:
    """A type with each sequence in it as one value."""
    return run(_wrapped(type_))


def _wrapped(type_: Type) -> Steps[Type]:
    if isinstance(type_, SequenceType):
        return Wrapped(type_)
    if isinstance(type_, Nested):
        return type_.around((yield in_turn(map(_wrapped, type_.parts))))
    return type_


@dataclass(frozen=True)
class RegisterType:
    """What a register holds.

    Attributes:
      kind: objects, tensors, places, cases, sequences, positions or lengths.
      rows: the name of its rows.
      of: of positions, the rows that they number; of lengths, those of the items; of
        cases, those of each, with '/' between.
      tensor: of value ids, the type; of sequences, theirs.
    """

    kind: str
    rows: str
    of: str = ''
    tensor: TensorType | SequenceType | None = None

    def __str__(self) -> str:
        if self.kind == POSITIONS:
            return f'positions[{self.rows} of {self.of}]'
        if self.of:
            return f'{self.kind}[{self.rows}: {self.of}]'
        more = f', {self.tensor!r}' if self.tensor else ''
        return f'{self.kind}[{self.rows}{more}]'


BODY_ROWS = 'a'  # of the items that a body is given
WAVES = '@'  # before the number of a declaration: its items of all waves


def row_names() -> Iterator[str]:
    """a, b, ..., z, aa, ab, ..."""
    for size in itertools.count(1):
        letters = itertools.product(string.ascii_lowercase, repeat=size)
        yield from map(''.join, letters)


def types_of(type_: Type, names: Iterator[str], rows: str) -> Iterator[RegisterType]:
    """The types of the registers that a value of a type has, a sequence's lengths
    before its items."""
    waiting = [(type_, rows)]
    while waiting:
        type_, rows = waiting.pop()
        if isinstance(type_, Product):
            waiting += [(part, rows) for part in reversed(tuple(type_))]
        elif isinstance(type_, SequenceType):
            items = next(names)
            yield RegisterType(LENGTHS, rows, items)
            waiting.append((type_.item, items))
        elif isinstance(type_, BroadcastType):
            waiting.append((type_.item, rows))
        elif isinstance(type_, TensorType):
            yield RegisterType(TENSORS, rows, tensor=type_)
        elif isinstance(type_, Wrapped):
            yield RegisterType(SEQUENCES, rows, tensor=type_.sequence)
        elif not isinstance(type_, VoidType):
            yield RegisterType(OBJECTS, rows)


ITEM_ROWS = 'b'  # of the items of a sequence that is unwrapped


@functools.cache
def items_of(sequence: SequenceType) -> tuple[RegisterType, ...]:
    """The types of the registers that the items of a wrapped sequence have."""
    return tuple(types_of(wrapped(sequence.item), iter(()), ITEM_ROWS))


def owners_of(types: Sequence[RegisterType]) -> tuple[int, ...]:
    """Of each register, which one holds the lengths of its sequence, or -1."""
    lengths = {x.of: k for k, x in enumerate(types) if x.kind == LENGTHS}
    return tuple(lengths.get(each.rows, -1) for each in types)


# ---- signatures ----------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """A register, or `many`, of a signature, whose type has letters for rows."""

    type: RegisterType
    many: bool = False


@dataclass(frozen=True)
class Signature:
    """What is taken and what is given."""

    takes: tuple[Term, ...]
    gives: tuple[Term, ...]

    def gives_any(self, kind: str) -> bool:
        """Whether a result is of a kind."""
        return any(term.type.kind == kind for term in self.gives)


_TERM = re.compile(r'(\w+)\[([\w+*]+)(?:(?: of |: )([\w+*/]+))?\](\*?)')


@functools.cache
def signature(text: str) -> Signature:
    """Reads a signature, as in the documentation of this module.

    Raises:
      ValueError: it is none.
    """
    if rest := _TERM.sub('', text).replace('->', '').strip():
        raise ValueError(f'expected terms as `objects[a]` in a signature, got {rest!r}')
    takes, gives = (
        tuple(
            Term(RegisterType(kind, rows, of), bool(star))
            for kind, rows, of, star in _TERM.findall(part)
        )
        for part in text.partition('->')[::2]
    )
    return Signature(takes, gives)


class TypeClash(Exception):
    """What was expected, and what was got."""


@dataclass(eq=False)
class Match:
    """What the letters of a signature stand for in one use of it.

    Attributes:
      names: gives names for rows that nothing has yet.
      times: the n of `n*a`, and how many `/B` are.
      only: the one of `/B` that matters, if one does.
      rows: by letter, with the number of the repetition where it is a capital one.
      columns: by letter, the kind and tensor type of a column.
    """

    names: Iterator[str]
    times: int = 0
    rows: dict[str, str] = field(default_factory=dict)
    columns: dict[str, tuple[str, TensorType | SequenceType | None]] = field(
        default_factory=dict
    )
    only: int | None = None

    def take(self, term: RegisterType, number: int, got: RegisterType) -> None:
        """Matches an operand, which must not contradict those before it.

        Raises:
          TypeClash: it does; tells what was expected.
        """
        column = term.kind, term.tensor
        if _is_variable(term.kind):
            if got.kind not in VALUES:
                raise TypeClash(f'a column of values, got {got}')
            key = _key(term.kind, number)
            column = self.columns.setdefault(key, (got.kind, got.tensor))
        # What is bound here stays so where the operand is refused: nobody goes on.
        rows = self._bound(term.rows, number, got.rows)
        of = self._bound(term.of, number, got.of)
        expected = RegisterType(column[0], rows, of, column[1])
        if expected != got:
            raise TypeClash(f'{expected}, got {got}')

    def give(self, term: RegisterType, number: int) -> RegisterType:
        """The type of a result."""
        kind, tensor = term.kind, term.tensor
        if _is_variable(kind):
            kind, tensor = self.columns[_key(kind, number)]
        rows, of = (self._named(each, number) for each in (term.rows, term.of))
        return RegisterType(kind, rows, of, tensor)

    def count(self, letter: str) -> int:
        """How many columns a capital letter stands for."""
        keys = (f'{letter}{number}' for number in itertools.count())
        return sum(1 for _ in itertools.takewhile(self.columns.__contains__, keys))

    def _bound(self, letter: str, number: int, got: str) -> str:
        """What a letter stands for, which is what it meets first."""
        if '/' in letter:
            parts = parts_of(got)
            if self.only is not None:  # each case once, and not all for each
                for part in parts[self.only : self.only + 1]:
                    self._bound(letter[1:], self.only, part)
                return got
            letters = self._cases(letter, len(parts))
            pairs = zip(letters, parts, strict=False)
            return '/'.join(self._bound(x, k, y) for k, (x, y) in enumerate(pairs))
        if letter.startswith(WAVES):
            return letter
        return self.rows.setdefault(_key(letter, number), got or letter)

    def _cases(self, letter: str, count: int) -> list[str]:
        """The letters of the cases that `/B`, or `b/c`, are."""
        return [letter[1:]] * count if letter.startswith('/') else letter.split('/')

    def _named(self, letter: str, number: int) -> str:
        if '/' in letter:
            cases = self._cases(letter, self.times)
            return '/'.join(map(self._named, cases, range(len(cases))))
        if letter.startswith(WAVES):
            return letter
        if letter.startswith('+'):
            keys = (f'{letter[1:]}{each}' for each in itertools.count())
            known = itertools.takewhile(self.rows.__contains__, keys)
            return '+'.join(map(self.rows.__getitem__, known))
        if '+' in letter:
            return '+'.join(self._named(each, number) for each in letter.split('+'))
        if '*' in letter:
            times, _, rows = letter.partition('*')
            return (
                f'{self.times if times == "n" else times}*{self._named(rows, number)}'
            )
        key = _key(letter, number)
        if key and key not in self.rows:
            self.rows[key] = next(self.names)
        return self.rows.get(key, '')


@functools.lru_cache(maxsize=16)
def parts_of(rows: str) -> list[str]:
    """The rows of each case."""
    return rows.split('/')


def _key(letter: str, number: int) -> str:
    return f'{letter}{number}' if letter.isupper() else letter


def _is_variable(kind: str) -> bool:
    return len(kind) == 1


def expanded(
    terms: Iterable[Term], counts: Iterable[int], case: int = 0
) -> list[tuple[RegisterType, int]]:
    """Terms, those with a star as often as `counts` say, numbered from 0; the others
    have the number of a case."""
    rest = iter(counts)
    return [
        (term.type, number)
        for term in terms
        for number in (range(next(rest)) if term.many else (case,))
    ]
