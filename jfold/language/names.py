# SPDX-License-Identifier: Apache-2.0
"""The names of a source: what they mean, and which are free."""

from __future__ import annotations

import builtins
import functools
import keyword
import re
from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Any

from jfold.tracing.helpers import HELPERS

# Names that rules write as they are: in any line, and as variables of a function.
TAKEN = (
    *('examples', 'ends', 'kept', 'record', 'LEVEL', 'LEVELS', 'MAKER'),
    *('y', 'z', 'u', 'v', 'k', 'key', 'group', 'entries'),
)
WRITTEN = 'x', 'n', 'items', 'made'
WORDS = re.compile(r'\w+')
OF_ROWS = re.compile(r' *(row\d*) = len\(\w+\)(?: // \d+)?')


class Names:
    """The names of a source.

    Attributes:
      values: what the source is given, by name.
      local: the variables of functions.
      taken: all other names that mean something.
    """

    def __init__(self) -> None:
        self.values: dict[str, object] = dict(HELPERS)
        self.local: set[str] = {*WRITTEN}
        self.taken: set[str] = {*TAKEN}
        self._used: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._tables: dict[Hashable, dict[Any, Any]] = {}

    def is_taken(self, name: str) -> bool:
        """Whether a name means something already."""
        return name in self.taken or name in self.values or hasattr(builtins, name)

    def new(self, wanted: str) -> str:
        """A name that means nothing yet, in any function."""
        made = self._unused(identifier(wanted), self.local)
        self.taken.add(made)
        return made

    def constant(self, wanted: str) -> str:
        """The same for a constant of the source, which no variable is named like."""
        made = self._unused(wanted, ())
        self.taken.add(made)
        return made

    def _unused(self, wanted: str, others: Container[str]) -> str:
        """The name, with a number if it means something already."""
        made, k = wanted, self._used.get(wanted, 1)
        while self.is_taken(made) or made in others:
            k += 1
            made = f'{wanted}{k}'
        self._used[wanted] = k
        return made

    def given(self, wanted: str, value: object) -> str:
        """The name of a value that the source is given."""
        if isinstance(value, type | type(len)) and value.__module__ == 'builtins':
            own: str = value.__name__
            if getattr(builtins, own, None) is value:
                return own
        if id(value) not in self._name_of:  # which `values` keeps its own
            name = self._name_of[id(value)] = self.new(wanted)
            self.values[name] = value
        return self._name_of[id(value)]

    def copied(self, table: Mapping[Any, Any]) -> dict[Any, Any]:
        """A copy of a table, always the same one of equal ones of a round."""
        key = tuple((type(k), k, type(v), _key(v)) for k, v in table.items())
        return self._tables.setdefault(key, dict(table))


def _key(value: object) -> Hashable:
    """What tells a value of a table from others."""
    return value if isinstance(value, Hashable) else id(value)


@functools.cache
def identifier(wanted: str) -> str:
    """A name of Python, as near to another text as can be."""
    name = re.sub(r'\W+', '_', wanted, flags=re.ASCII).strip('_').lower() or 'value'
    if name[0].isdigit():
        name = f'_{name}'
    if keyword.iskeyword(name) or hasattr(builtins, name):
        name = f'{name}_'
    return name


def without_unused(lines: Sequence[str]) -> list[str]:
    """The lines of a function, but for numbers of rows that nothing reads."""
    kept, read = list[str](), set[str]()
    for line in reversed(lines):
        number = OF_ROWS.fullmatch(line)
        if number is None:
            read.update(WORDS.findall(line))
        elif number[1] in read:
            read.remove(number[1])  # a number before has the same name
        else:
            continue
        kept.append(line)
    return kept[::-1]
