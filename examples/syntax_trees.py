# SPDX-License-Identifier: Apache-2.0
"""Functions of Python's own standard library as plain trees, their names hidden."""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_LIBRARY = {'site-packages', 'dist-packages', 'test', 'tests', 'idle_test'}
HIDDEN = '<its own name>'

# An identifier, by the type of the node that holds it.
IDENTIFIERS = {
    'Name': 'id',
    'Attribute': 'attr',
    'arg': 'arg',
    'keyword': 'arg',
    'alias': 'name',
    'FunctionDef': 'name',
    'AsyncFunctionDef': 'name',
    'ClassDef': 'name',
    'ExceptHandler': 'name',
}

Label = tuple[str, str | None]  # node type; identifier or kind of constant
Tree = tuple[int, list[Any]]  # label id; subtrees


@dataclass(frozen=True)
class NamedFunction:
    """One function.

    Attributes:
      file: where it is defined.
      word: the first word of its name.
      nodes: (label, number of children) of every node, in preorder.
    """

    file: str
    word: str
    nodes: tuple[tuple[Label, int], ...]


def library_files() -> list[Path]:
    """The modules of the standard library, without its tests."""
    root = Path(sysconfig.get_paths()['stdlib'])
    found = (path.relative_to(root) for path in root.rglob('*.py'))
    return sorted(root / path for path in found if not NOT_LIBRARY & set(path.parts))


def read_functions(path: Path, max_nodes: int) -> Iterator[NamedFunction]:
    """The functions of a file that have a word in their name and at most `max_nodes`.

    A file that this Python cannot parse has none.
    """
    try:
        with warnings.catch_warnings(action='ignore'):
            module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes = tuple(_preorder(node, max_nodes))
            word = first_word(node.name)
            if word and len(nodes) <= max_nodes:
                yield NamedFunction(str(path), word, nodes)


def first_word(name: str) -> str:
    """The first word of an identifier, lower-cased; '' when it has none.

    >>> [first_word(name) for name in ('__init__', 'getName', 'HTTPError', 'is_2d')]
    ['init', 'get', 'http', 'is']
    """
    found = re.match(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+', name.lstrip('_'))
    return found.group().lower() if found else ''


def _preorder(
    function: ast.FunctionDef | ast.AsyncFunctionDef, max_nodes: int
) -> Iterator[tuple[Label, int]]:
    """Labels and numbers of children; stops soon after `max_nodes`."""
    stack: list[ast.AST] = [function]
    seen = 0
    while stack and seen <= max_nodes:
        node = stack.pop()
        children = _children(node)
        yield _label(node, function.name), len(children)
        stack.extend(reversed(children))
        seen += 1


def _children(node: ast.AST) -> list[ast.AST]:
    # Load or Store follows from the parent: a fifth of all nodes, and no news.
    found = ast.iter_child_nodes(node)
    return [child for child in found if not isinstance(child, ast.expr_context)]


def _label(node: ast.AST, own_name: str) -> Label:
    kind = type(node).__name__
    if isinstance(node, ast.Constant):
        value = node.value
        named = value is None or value is ... or isinstance(value, bool)
        return kind, repr(value) if named else type(value).__name__
    identifier = getattr(node, IDENTIFIERS.get(kind, ''), None)
    return kind, HIDDEN if identifier == own_name else identifier


def without_copies(functions: Iterable[NamedFunction]) -> list[NamedFunction]:
    """Keeps the first of equal functions, so that no held-out one was trained on."""
    return list({(f.word, f.nodes): f for f in reversed(list(functions))}.values())[
        ::-1
    ]


@dataclass(frozen=True)
class Labels:
    """Numbers for labels: one for every frequent label and for every node type."""

    ids: dict[Label, int]

    @classmethod
    def of(cls, functions: Iterable[NamedFunction], min_count: int) -> Labels:
        """Those of the training functions; `min_count` makes a label frequent."""
        counts = Counter(label for f in functions for label, _ in f.nodes)
        frequent = [label for label, n in counts.most_common() if n >= min_count]
        types = sorted({kind for kind, _ in counts})
        known = dict.fromkeys([('', None), *((kind, None) for kind in types)])
        known |= dict.fromkeys(frequent)
        return cls({label: i for i, label in enumerate(known)})

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def types(self) -> int:
        """How many of the numbers, the first ones, stand for bare node types."""
        return sum(detail is None for _, detail in self.ids)

    def __getitem__(self, label: Label) -> int:
        """The number of a label, of its type when rare, 0 for an unseen type."""
        return self.ids.get(label, self.type_of(label))

    def type_of(self, label: Label) -> int:
        """The number of the bare node type."""
        return self.ids.get((label[0], None), 0)

    def tree(self, function: NamedFunction) -> Tree:
        """Nested `(number, [subtrees])`, built from the last node to the first."""
        done: list[Tree] = []
        for label, arity in reversed(function.nodes):
            at = len(done) - arity
            done[at:] = [(self[label], done[at:][::-1])]
        return done[0]


def count_numbers(
    functions: Iterable[NamedFunction], number: Callable[[Label], int], size: int
) -> Iterator[list[int]]:
    """How often each number in `range(size)` occurs in each function: a bag."""
    for function in functions:
        counts = Counter(number(label) for label, _ in function.nodes)
        yield [counts[i] for i in range(size)]
