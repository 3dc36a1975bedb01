# SPDX-License-Identifier: Apache-2.0
"""What the code of the package looks like, in numbers.

    python tests/support/structure.py

prints two tables in Markdown: how long files and functions are, and how their
docstrings begin; and lines by folder.
"""

from __future__ import annotations

import ast
import collections
import functools
import io
import statistics
import tokenize
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

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return len(self.text.splitlines())


@functools.cache
def files(folder: Path = PACKAGE) -> tuple[File, ...]:
    """The files of a folder and of those in it, by name."""
    paths = sorted(folder.rglob('*.py'))
    return tuple(File(x, t := x.read_text(), ast.parse(t)) for x in paths)


# ---- length --------------------------------------------------------------------------


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """All functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def body_lines(function: ast.FunctionDef) -> int:
    """The lines of a function below its head and docstring."""
    body = [x for x in function.body if not _is_text(x)]
    if not body:
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def _is_text(statement: ast.stmt) -> bool:
    value = getattr(statement, 'value', None)
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def code_lines(file: File) -> int:
    """Lines that hold code, not only a comment or a part of a docstring."""
    texts = {
        line
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Expr) and _is_text(node)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}
    layout |= {tokenize.DEDENT, tokenize.ENDMARKER}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline)
        if token.type not in layout
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - texts)


# ---- annotations ---------------------------------------------------------------------


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Those of arguments, results and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, FUNCTIONS) and node.returns:
            yield node.returns


# ---- names and texts -----------------------------------------------------------------

CLAUSES = set(
    'What How As Of Whether Where Which Who Whose That Those These It'.split()
)


def first_lines(tree: ast.AST) -> Iterator[str]:
    """Those of docstrings."""
    kinds = ast.Module, ast.ClassDef, *FUNCTIONS
    nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
    texts = (ast.get_docstring(node) for node in nodes)
    return (text.partition('\n\n')[0].partition('. ')[0] for text in texts if text)


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


def in_cycles(among: Sequence[File]) -> list[str]:
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


# ---- tables --------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join(f'| {" | ".join(map(str, line))} |' for line in lines)


def numbers(found: Sequence[File]) -> list[tuple[str, object]]:
    """The rows of the first table."""
    bodies = sorted(body_lines(x) for file in found for x in functions(file.tree))
    code = sum(map(code_lines, found))
    largest = max(found, key=lambda file: file.lines)
    lines = [line for file in found for line in first_lines(file.tree)]
    long = [line for line in lines if len(line.split()) > 15]
    clauses = [line for line in lines if line.split()[0].strip(',') in CLAUSES]
    return [
        ('files', len(found)),
        ('lines', sum(file.lines for file in found)),
        ('lines of code', code),
        ('median body of a function', statistics.median(bodies)),
        ('90 % of bodies have at most', bodies[int(0.9 * len(bodies))]),
        ('longest body', bodies[-1]),
        ('longest file', f'{largest.lines} ({largest.name})'),
        ('docstrings', len(lines)),
        ('first lines of more than 15 words', len(long)),
        ('first lines that open with a clause', len(clauses)),
    ]


def by_folder(found: Sequence[File]) -> list[tuple[object, ...]]:
    """The rows of the second table."""
    folders: dict[str, list[File]] = {}
    for file in found:
        folders.setdefault(f'{file.path.parent.relative_to(PACKAGE)}', []).append(file)
    counts = (
        (len(x), sum(f.lines for f in x), sum(map(code_lines, x)))
        for x in folders.values()
    )
    return [(name, *count) for name, count in zip(folders, counts, strict=True)]


def main() -> None:
    """Prints both tables."""
    found = files()
    print(table(['', ''], numbers(found)), end='\n\n')
    print(table(['folder', 'files', 'lines', 'of code'], by_folder(found)))


if __name__ == '__main__':
    main()
