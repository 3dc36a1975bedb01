# SPDX-License-Identifier: Apache-2.0
"""The names of a source: what they stand for, and which are still free."""

from __future__ import annotations

import builtins
import functools
import keyword
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jfold.tracing.helpers import HELPERS

# Names that rules write unchanged: `TAKEN` anywhere, `WRITTEN` as local variables.
TAKEN = (
    *('examples', 'ends', 'kept', 'record', 'LEVEL', 'LEVELS', 'MAKER'),
    *('y', 'z', 'u', 'v', 'k', 'key', 'group', 'entries'),
)
WRITTEN = 'x', 'n', 'items', 'made'
PLAIN = str, bool, type(None)  # classes whose `repr` is source, beside numbers
WORDS = re.compile(r'\w+')
OF_ROWS = re.compile(r' *(row\d*) = len\(\w+\)(?: // \d+)?')


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

    def new(self, wanted: str) -> str:
        """Reserve and return a lower-case name: `step` or, if taken, `step2`."""
        return self.constant(identifier(wanted))

    def constant(self, wanted: str) -> str:
        """Reserve and return a constant's name: `EMBED` or, if taken, `EMBED2`."""
        name, k = wanted, self._used.get(wanted, 1)
        while self.is_taken(name) or name in self.local:
            k += 1
            name = f'{wanted}{k}'
        self._used[wanted] = k
        self.taken.add(name)
        return name

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
        """Return a copy of a dict; dicts with the same items share one copy.

        Values are the same if their literals are equal; without literals, if they are
        one object.
        """
        key = tuple((type(k), k, literal_of(v) or id(v)) for k, v in table.items())
        return self._tables.setdefault(key, dict(table))


def literal_of(value: Any) -> str | None:
    """Return the literal of a value of a plain class; `None` for other values."""
    # Infinities and NaN have no literal, nor have ints too long for `repr`.
    is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max
    return repr(value) if is_number or type(value) in PLAIN else None


@functools.cache
def identifier(wanted: str) -> str:
    """Return a lower-case Python identifier that resembles a text: 'A b' -> 'a_b'."""
    name = re.sub(r'\W+', '_', wanted, flags=re.ASCII).strip('_').lower() or 'value'
    if name[0].isdigit():
        # A letter first: constants differ from variables by upper case.
        name = f'key_{name}'
    if keyword.iskeyword(name) or hasattr(builtins, name):
        name = f'{name}_'
    return name


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
