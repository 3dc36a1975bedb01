# SPDX-License-Identifier: Apache-2.0
"""The names of a source: what they stand for, and which are still free."""

from __future__ import annotations

import builtins
import functools
import keyword
import re
import sys
import textwrap
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from jfold.tracing.strict_reading import HELPERS

INDENT = '    '
WIDTH = 88  # columns of the source, where names are not too long
# Names that rules write unchanged: `TAKEN` anywhere, `WRITTEN` as local variables.
TAKEN = (
    *('examples', 'ends', 'kept', 'calls', 'record', 'LEVEL', 'LEVELS', 'MAKER'),
    *('y', 'z', 'u', 'v', 'k', 'key', 'group', 'entries'),
)
WRITTEN = 'x', 'n', 'items', 'made'
PLAIN = str, bool, type(None)  # classes whose `repr` is source, beside numbers
WORDS = re.compile(r'\w+')
OF_ROWS = re.compile(r' *((?:\w+_)?row\d*) = len\(\w+\)(?: // \d+)?')


class Names:
    """The names used in generated source code, and the objects that they stand for.

    Attributes:
      values: the objects that the source refers to, by name.
      local: the variables of all functions.
      taken: all other names in use: of functions, tapes and constants.
    """

    def __init__(self) -> None:
        self.values: dict[str, object] = dict(HELPERS)
        self.local: set[str] = {*WRITTEN}
        self.taken: set[str] = {*TAKEN}
        self._used: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._tables: dict[Hashable, dict[Any, Any]] = {}

    def is_taken(self, name: str) -> bool:
        """Return whether a name is a global of generated source, or a builtin."""
        return name in self.taken or name in self.values or hasattr(builtins, name)

    def _is_used(self, name: str) -> bool:
        return name in self.local or self.is_taken(name)

    def new(self, *wanted: str) -> str:
        """Reserve and return a lower-case name: the first free one of `wanted`.

        If none is free, the last is numbered: `step2`.
        """
        return self.constant(*map(identifier, wanted))

    def constant(self, *wanted: str) -> str:
        """Reserve and return a constant's name, chosen as `new` does: `EMBED2`."""
        (name,) = self.constants(1, *wanted)
        return name

    def constants(self, count: int, *wanted: str) -> list[str]:
        """Reserve and return names for `count` parts of a value, by `free_names`."""
        names = free_names(count, wanted, self._is_used, self._used)
        self.taken.update(names)
        return names

    def name_for(self, wanted: str, value: object) -> str:
        """Return the name of `value` in generated source; new names resemble `wanted`.

        An object of `builtins` keeps its own name there.
        """
        if isinstance(value, type | type(len)) and value.__module__ == 'builtins':
            builtin: str = value.__name__
            if getattr(builtins, builtin, None) is value:
                return builtin
        # `values` holds the value, so that no other object gets its id.
        if id(value) not in self._name_of:
            name = self._name_of[id(value)] = self.new(wanted)
            self.values[name] = value
        return self._name_of[id(value)]

    def copied(self, table: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a copy of `table`; tables with the same items share one copy.

        Values are the same if their literals are equal; without literals, if they are
        one object.
        """
        key = tuple((type(k), k, literal_of(v) or id(v)) for k, v in table.items())
        return self._tables.setdefault(key, dict(table))


def free_names(
    count: int,
    wanted: Sequence[str],
    is_taken: Callable[[str], bool],
    used: dict[str, int],
) -> list[str]:
    """Return names for the `count` parts of a value, by the first free of `wanted`.

    If all are taken (`is_taken`), the last gets a number behind it; `used` has the
    numbers given so far, by name without number.
    """
    for stem in wanted:
        names = part_names(stem, count)
        if not any(map(is_taken, names)):
            return names
    joint, k = '_' if stem[-1].isdigit() else '', used.get(stem, 1)
    while any(map(is_taken, names)):
        k += 1
        names = part_names(f'{stem}{joint}{k}', count)
    used[stem] = k
    return names


def part_names(stem: str, count: int) -> list[str]:
    """Return `count` names for parts of a value: `stem`, or `stem_0`, `stem_1`, ..."""
    return [stem] if count == 1 else [f'{stem}_{k}' for k in range(count)]


@functools.cache
def list_name(item: str) -> str:
    """Return a name for a list of values that `item`, a source text, stands for.

    'WORD + row' -> 'word_values', 'tree_of_x' -> 'tree_values', and for a list of such
    lists 'word_values' -> 'word_value_lists'.
    """
    stem = re.sub(r'_of_(x|item)\d*$', '', identifier(item.split(' ', maxsplit=1)[0]))
    if re.search(r'_(value|list)s\d*$', stem):
        return f'{_without_number(stem)[:-1]}_lists'
    if item.isidentifier() and _without_number(stem) == 'value':
        return 'values'
    # Tapes of constants are called `numbers` or `vectors`, or `label_numbers`.
    stem = re.sub(r'(number|vector)s(_?\d*)$', r'\1\2', stem)
    return f'{stem.removesuffix("_value")}_values'


def _without_number(name: str) -> str:
    return re.sub(r'_?\d+$', '', name)


@functools.cache
def item_name(of: str) -> str:
    """Return a name for an item of list `of`: 'word_values' -> 'word_value'."""
    of = of.removeprefix('some_')
    if of.startswith('items_of_'):
        return f'item_of_{of.removeprefix("items_of_")}'
    stem = _without_number(of)
    if stem.endswith(('values', '_lists')):
        return stem[:-1]
    if stem.endswith('_list'):
        return stem.removesuffix('_list')
    if stem.startswith('repeated_'):
        return f'same_{stem.removeprefix("repeated_")}'
    return f'item_of_{stem}'


def literal_of(value: Any) -> str | None:
    """Return the literal of a value of a plain class; `None` for other values."""
    # Infinities and NaN have no literal, nor have ints too long for `repr`.
    is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max
    return repr(value) if is_number or type(value) in PLAIN else None


@functools.cache
def identifier(wanted: str) -> str:
    """Return a lower-case Python identifier that resembles `wanted`: 'A b' -> 'a_b'."""
    name = re.sub(r'\W+', '_', wanted, flags=re.ASCII).strip('_').lower() or 'value'
    if name[0].isdigit():
        # A letter first: constants differ from variables by upper case.
        name = f'key_{name}'
    if keyword.iskeyword(name) or hasattr(builtins, name):
        name = f'{name}_'
    return name


def wrapped(head: str, items: Sequence[str], tail: str, indent: str) -> list[str]:
    """Return the lines of `head`, `items` and `tail`, in `WIDTH` columns.

    They are not indented, but leave room for `indent`.
    """
    is_tuple = tail.startswith(')')
    text = ', '.join(items) + (',' if is_tuple and len(items) == 1 else '')
    if len(indent + head + text + tail) <= WIDTH:
        return [head + text + tail]
    room = WIDTH - len(indent) - len(INDENT)
    lines = textwrap.wrap(f'{text},', room, break_long_words=False)
    return [head, *(INDENT + line for line in lines), tail]


def commented(lines: Sequence[str], about: str, indent: str) -> Iterator[str]:
    """Yield `lines` with comment `about` behind each or, if long, above at `indent`."""
    if max(map(len, lines)) + len(about) + 4 <= WIDTH:
        yield from (f'{line}  # {about}' for line in lines)
        return
    first, more = f'{indent}# ', f'{indent}#     '
    head, arrow, result = about.rpartition(' -> ')
    texts = [f'{first}{head}', f'{more}-> {result}'] if arrow else [first + about]
    for text in texts:
        yield from textwrap.wrap(text, WIDTH, subsequent_indent=more)
    yield from lines


def without_unused(lines: Sequence[str]) -> list[str]:
    """Return source lines, less each `row = len(...)` whose variable no line reads."""
    kept, read = list[str](), set[str]()
    # From the last line up, a liveness analysis; loops do not carry row indices over.
    for line in reversed(lines):
        number = OF_ROWS.fullmatch(line)
        if number is None:
            read.update(WORDS.findall(line))
        elif number[1] in read:
            read.remove(number[1])  # not live above this line
        else:
            continue
        kept.append(line)
    return kept[::-1]
