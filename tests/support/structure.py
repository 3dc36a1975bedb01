# SPDX-License-Identifier: Apache-2.0
"""What the code of the package looks like, in numbers.

    python tests/support/structure.py

prints three tables in Markdown: how long files and functions are, what they are called
and import, and how their docstrings begin; lines by folder; and how many places know of
a thing: what somebody would touch who adds another of its kind. A place is a function,
or what else stands at the top of a file, that names one of the words of the thing; its
definition counts too.
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
PRAGMAS = '# noqa', '# type:', '# SPDX', '# ----'


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
        for token in _tokens(file)
        if token.type not in layout
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - texts)


def comments(file: File) -> int:
    """Lines of comments that explain something."""
    found = (x.string for x in _tokens(file) if x.type == tokenize.COMMENT)
    return sum(not text.startswith(PRAGMAS) for text in found)


def _tokens(file: File) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(file.text).readline)


# ---- annotations ---------------------------------------------------------------------


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Those of arguments, results and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, FUNCTIONS) and node.returns:
            yield node.returns


def says_any(annotation: ast.expr) -> bool:
    """Whether an annotation says nothing: `Any` and nothing else."""
    return isinstance(annotation, ast.Name) and annotation.id == 'Any'


# ---- names and texts -----------------------------------------------------------------

CLAUSES = set(
    'What How As Of Whether Where Which Who Whose That Those These It'.split()
)
WEAK = 'each', 'given', 'made', 'found'  # variables that do not say what is in them


def first_lines(tree: ast.AST) -> Iterator[str]:
    """Those of docstrings."""
    kinds = ast.Module, ast.ClassDef, *FUNCTIONS
    nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
    texts = (ast.get_docstring(node) for node in nodes)
    return (text.partition('\n\n')[0].partition('. ')[0] for text in texts if text)


def weak_names(tree: ast.AST) -> int:
    """How often a variable has a name of `WEAK`."""
    nodes = ast.walk(tree)
    names = (getattr(x, 'arg', getattr(x, 'id', None)) for x in nodes)
    return sum(name in WEAK for name in names)


def named_twice(among: Sequence[File]) -> list[str]:
    """The names that several files or folders of the package have."""
    names = [file.path.stem for file in among if file.path.stem != '__init__']
    names += [x.name for x in PACKAGE.rglob('*') if (x / '__init__.py').exists()]
    return sorted(name for name, n in collections.Counter(names).items() if n > 1)


# ---- imports -------------------------------------------------------------------------


@functools.cache
def imported(file: File, inside: bool = False) -> frozenset[str]:
    """The modules of the package that a file imports, for more than types.

    Args:
      inside: whether those within functions are meant, or all.
    """
    skipped = {
        id(node)
        for test in ast.walk(file.tree)
        if isinstance(test, ast.If) and 'TYPE_CHECKING' in ast.dump(test.test)
        for node in ast.walk(test)
    }
    roots = functions(file.tree) if inside else [file.tree]
    nodes = [
        node for root in roots for node in ast.walk(root) if id(node) not in skipped
    ]
    found = [x for x in nodes if isinstance(x, ast.ImportFrom) and x.module]
    names = {name for x in found for name in _within(x)}
    own = (module(x.path) for x in files() if x.path.stem != '__init__')
    return frozenset(name for name in own if f'jfold.{name}' in names)


def _within(statement: ast.ImportFrom) -> list[str]:
    """A module that is imported from, and what of it, as modules in it."""
    names = [f'{statement.module}.{alias.name}' for alias in statement.names]
    return [str(statement.module), *names]


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


# ---- places --------------------------------------------------------------------------


def places(words: Sequence[str], among: Sequence[File]) -> list[tuple[str, str]]:
    """The files, and what at the top of them or in their classes, that name a word."""
    return [
        (file.name, name)
        for file in among
        for name, node in _parts(file.tree)
        if not set(words).isdisjoint(_names(node))
    ]


def defined(words: Sequence[str], among: Sequence[File]) -> list[str]:
    """The classes with one of the words as their name."""
    nodes = (node for file in among for node in ast.walk(file.tree))
    return [x.name for x in nodes if isinstance(x, ast.ClassDef) and x.name in words]


def _parts(tree: ast.AST, inside: str = '') -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods, and other statements outside them, but imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield f'{inside}{node.name}', ast.Name(node.name)
            yield from _parts(node, f'{node.name}.')
        elif isinstance(node, FUNCTIONS):
            yield f'{inside}{node.name}', node
        elif isinstance(node, ast.stmt) and not isinstance(
            node, ast.Import | ast.ImportFrom
        ):
            yield f'{inside}line {node.lineno}', node


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, FUNCTIONS):
            yield each.name
        elif isinstance(each, ast.Attribute):
            yield each.attr


# ---- tables --------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join(f'| {" | ".join(map(str, line))} |' for line in lines)


def share(found: Sequence[File]) -> float:
    """The part of annotations that are `Any` alone."""
    all_of_them = [x for file in found for x in annotations(file.tree)]
    return sum(map(says_any, all_of_them)) / len(all_of_them)


def numbers(found: Sequence[File]) -> list[tuple[str, object]]:
    """The rows of the first table."""
    bodies = sorted(body_lines(x) for file in found for x in functions(file.tree))
    code = sum(map(code_lines, found))
    explained = 100 * sum(map(comments, found)) / code
    largest = max(found, key=lambda file: file.lines)
    typed = [file for file in found if file.path.name != 'jaxprs.py']
    lines = [line for file in found for line in first_lines(file.tree)]
    long = [line for line in lines if len(line.split()) > 15]
    clauses = [line for line in lines if line.split()[0].strip(',') in CLAUSES]
    inside = [file for file in found if imported(file, inside=True)]
    return [
        ('files', len(found)),
        ('lines', sum(file.lines for file in found)),
        ('lines of code', code),
        ('median body of a function', statistics.median(bodies)),
        ('90 % of bodies have at most', bodies[int(0.9 * len(bodies))]),
        ('longest body', bodies[-1]),
        ('longest file', f'{largest.lines} ({largest.name})'),
        ('comments per 100 lines of code', f'{explained:.1f}'),
        ('annotations that are `Any`', f'{100 * share(typed):.1f} %'),
        ('names at the top', len(list(PACKAGE.glob('[a-z]*')))),
        ('names that several files have', ' '.join(named_twice(found)) or 'none'),
        ('files that import each other in circles', len(in_circles(found))),
        ('files that import the package inside functions', len(inside)),
        ('docstrings', len(lines)),
        ('first lines of more than 15 words', len(long)),
        ('first lines that open with a clause', len(clauses)),
        (f'variables named {", ".join(WEAK)}', sum(weak_names(x.tree) for x in found)),
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
    """Prints all tables."""
    found = files()
    print(table(['', ''], numbers(found)), end='\n\n')
    print(table(['folder', 'files', 'lines', 'of code'], by_folder(found)), end='\n\n')
    head = 'to add another', 'like', 'places', 'files', 'classes'
    rows = []
    for thing, words in THINGS.items():
        known = places(words, found)
        kinds = ', '.join(f'`{word}`' for word in words)
        of_files, classes = {file for file, _ in known}, defined(words, found)
        rows.append((thing, kinds, len(known), len(of_files), len(classes)))
    print(table(head, rows))


THINGS = {
    'block': ('NGrams',),
    'block that makes a tensor': ('Length',),
    'section of the index array': ('consumers',),
    'kind of result': ('EXAMPLE_ROWS',),
    'fact of kinds of results': ('is_counted', 'is_packed'),
    'loop strategy': ('Fixed', 'FixedLoops'),
}


if __name__ == '__main__':
    main()
