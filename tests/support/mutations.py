# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the source of programs, at each place where one can be made."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

Lines = list[str]
Mistake = Callable[[Lines, list[str]], Iterator[Lines]]
APPEND = re.compile(r'( +)(\w+)\.(append|extend)\(')
TAPE = re.compile(r'    (\w+) = \[\]  #')
MADE = re.compile(r'\b([A-Z][A-Z0-9]*) \+ (row\d*|len\()')


def mutants(text: str, mistake: Mistake) -> Iterator[str]:
    """The source with a mistake of one kind, once for each place where it fits."""
    constants, head, body = text.partition('\ndef record(')
    number = r'\(?\d+ << 30\)?'
    text = rf'^([A-Z]\w*) = (?:LEVEL \+ )?{number}$'
    makers = re.findall(text, constants, re.MULTILINE)
    lines = body.split('\n')
    for changed in mistake(lines, makers):
        if changed != lines:
            yield constants + head + '\n'.join(changed)


def _with(lines: Lines, k: int, *made: str) -> Lines:
    return [*lines[:k], *made, *lines[k + 1 :]]


def _appended(lines: Lines) -> Iterator[tuple[int, str]]:
    """The lines that append to tapes, with how far they are indented."""
    tapes = {found[1] for found in map(TAPE.match, lines) if found}
    for k, found in enumerate(map(APPEND.match, lines)):
        if found and found[2] in tapes:
            yield k, found[1]


def dropped(lines: Lines, makers: list[str]) -> Iterator[Lines]:
    """What is not appended to a tape."""
    for k, indent in _appended(lines):
        yield _with(lines, k, f'{indent}pass')


def doubled(lines: Lines, makers: list[str]) -> Iterator[Lines]:
    """What is appended to a tape twice."""
    for k, _ in _appended(lines):
        yield _with(lines, k, f'{lines[k]}; {lines[k].strip()}')


def swapped(lines: Lines, makers: list[str]) -> Iterator[Lines]:
    """The first and the second input of an operation in each other's places."""
    for k, (one, two) in enumerate(itertools.pairwise(lines)):
        first = re.fullmatch(r'( +\w+_a\.append\()(.+)\)', one)
        second = re.fullmatch(r'( +\w+_b\.append\()(.+)\)', two)
        if first and second and first[2] != second[2]:
            made = f'{first[1]}{second[2]})', f'{second[1]}{first[2]})'
            yield [*lines[:k], *made, *lines[k + 2 :]]


def other_maker(lines: Lines, makers: list[str]) -> Iterator[Lines]:
    """The number of a row of another table."""
    for k, line in enumerate(lines):
        for name in sorted({found[1] for found in MADE.finditer(line)}):
            other = makers[(makers.index(name) + 1) % len(makers)]
            if name != other:  # both ends of a range, or it were one without an end
                yield _with(lines, k, re.sub(rf'\b{name}\b', other, line))


def next_row(lines: Lines, makers: list[str]) -> Iterator[Lines]:
    """The number of the row behind that which is meant."""
    for k, line in enumerate(lines):
        if re.match(r' +row\d* = len\(\w+\)', line):
            yield _with(lines, k, f'{line} + 1')


def wrong_level(lines: Lines, makers: list[str]) -> Iterator[Lines]:
    """A level that is not above that of what is read, or too high."""
    for k, line in enumerate(lines):
        if ' & LEVELS' in line:
            yield _with(lines, k, line.replace(' & LEVELS', ' & 0'))
            yield _with(
                lines, k, line.replace('& LEVELS', '+ (LEVELS & -LEVELS) & LEVELS')
            )


def reordered(lines: Lines, makers: list[str]) -> Iterator[Lines]:
    """Inputs of a call in each other's places: `tree4 = tree(tree2)` and the next."""
    call = re.compile(r'( +\w+ = )(\w+)\((\w+)\)')
    for k, (one, two) in enumerate(itertools.pairwise(lines)):
        first, second = call.fullmatch(one), call.fullmatch(two)
        if first and second and first[2] == second[2] != 'len':
            given = [
                f'{x[1]}{x[2]}({y[3]})' for x, y in ((first, second), (second, first))
            ]
            yield [*lines[:k], *given, *lines[k + 2 :]]


# Wherever the line is run; numbers that nobody reads may be any.
ALWAYS_CAUGHT: tuple[Mistake, ...] = dropped, swapped, other_maker, reordered
MISTAKES = *ALWAYS_CAUGHT, doubled, next_row, wrong_level
