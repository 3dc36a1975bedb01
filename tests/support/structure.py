# SPDX-License-Identifier: Apache-2.0
"""What the code of the package looks like: its files, and what they import."""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / 'jfold'
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
# What is at the top of the package; each imports from itself and those before it.
ROOMS = (
    *('base', 'types', 'program', 'graph', 'ragged', 'combinators', 'blocks'),
    *('tracing', 'language', 'lower', 'files', 'scheduling', 'device', 'runtime'),
    *('data', 'models', 'debug', 'display', 'flax'),
)


@dataclass(frozen=True)
class File:
    """A file of the package.

    Attributes:
      path: where it is.
      text: what it says.
      tree: its syntax tree.
    """

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Its path in the package."""
        return str(self.path.relative_to(PACKAGE))


@functools.cache
def files(folder: Path = PACKAGE) -> tuple[File, ...]:
    """The files of a folder and of those in it, by name."""
    paths = sorted(folder.rglob('*.py'))
    return tuple(File(x, t := x.read_text(), ast.parse(t)) for x in paths)


# ---- functions -----------------------------------------------------------------------


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """All functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


# ---- annotations ---------------------------------------------------------------------


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Those of arguments, results and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, FUNCTIONS) and node.returns:
            yield node.returns


# ---- names ---------------------------------------------------------------------------


def named_twice(among: Sequence[File]) -> list[str]:
    """The names that several files or folders of the package have."""
    names = [file.path.stem for file in among if file.path.stem != '__init__']
    names += [x.name for x in PACKAGE.rglob('*') if (x / '__init__.py').exists()]
    return sorted(name for name, n in collections.Counter(names).items() if n > 1)


# ---- imports -------------------------------------------------------------------------


@functools.cache
def imported(file: File) -> frozenset[str]:
    """The modules of the package that a file imports, for more than types."""
    skipped = {
        id(node)
        for test in ast.walk(file.tree)
        if isinstance(test, ast.If) and 'TYPE_CHECKING' in ast.dump(test.test)
        for node in ast.walk(test)
    }
    names = set()
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
            names |= {node.module, *(f'{node.module}.{x.name}' for x in node.names)}
    own = (module(x.path) for x in files() if x.path.stem != '__init__')
    return frozenset(name for name in own if f'jfold.{name}' in names)


def module(path: Path) -> str:
    """The dotted name of a file, after that of the package."""
    package = PACKAGE if path.is_relative_to(PACKAGE) else path.parent
    return '.'.join(path.relative_to(package).with_suffix('').parts)


def _imports(among: Sequence[File]) -> dict[str, set[str]]:
    """By module what it imports; but for the faces of packages, which gather."""
    own = [file for file in among if file.path.stem != '__init__']
    return {module(file.path): {*imported(file)} for file in own}


def in_circles(among: Sequence[File]) -> list[str]:
    """The modules that import themselves, by way of others."""
    reached = _imports(among)
    for middle, further in reached.items():
        for own in reached.values():
            if middle in own:
                own.update(further)
    return sorted(name for name, own in reached.items() if name in own)


def between_rooms(among: Sequence[File]) -> dict[str, set[str]]:
    """By room the others from which it imports."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, needs in _imports(among).items():
        room = name.split('.')[0]
        found[room] |= {other.split('.')[0] for other in needs} - {room}
    return found


def out_of_order(among: Sequence[File]) -> list[str]:
    """The rooms that import from one behind them."""
    return [
        f'{room} imports {other}'
        for room, needs in between_rooms(among).items()
        for other in sorted(needs, key=ROOMS.index)
        if ROOMS.index(other) > ROOMS.index(room)
    ]
