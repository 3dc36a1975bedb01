# SPDX-License-Identifier: Apache-2.0
"""Lines of code of three models, beside Table 3 of Looks et al. 2017.

    python benchmarks/lines_of_code/table.py

The protocol is that of the paper's appendix C: a file for what is compared and
nothing else, of 80 columns; imports, blank lines and comments do not count.
Docstrings are comments to `cloc`, by which the paper counted.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}

# The model, its file, and what the paper counts: its authors' code, and Fold's.
MODELS = (
    ('feed-forward attention', 'attention', 71, 26),
    ('tree-LSTM', 'tree_lstm', 219, 119),
    ('graph convolution', 'weave', 44, 32),
)


@dataclass(frozen=True)
class Lines:
    """How many lines of a file hold code.

    Attributes:
      imports: those that import.
      others: all others.
    """

    imports: int
    others: int


def count(text: str) -> Lines:
    """Counts the lines of a program.

    >>> count(
    ...     'import re  # patterns\\n\\nwords = re.split(\\n    " ", text\\n)'
    ... )
    Lines(imports=1, others=3)
    """
    numbered = enumerate(text.splitlines(), 1)
    blank = {number for number, line in numbered if not line.strip()}
    imports, others = set(), set()
    for statement in statements(text):
        if not is_docstring(statement):
            kind = imports if is_import(statement) else others
            kind |= held(statement) - blank
    return Lines(len(imports), len(others))


def statements(text: str) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each statement, or of the head of a block."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            yield found
            found = []
        elif token.type not in LAYOUT:
            found.append(token)


def is_docstring(statement: list[tokenize.TokenInfo]) -> bool:
    """Whether it is a string alone."""
    return all(token.type == tokenize.STRING for token in statement)


def is_import(statement: list[tokenize.TokenInfo]) -> bool:
    """Whether it imports."""
    return statement[0].string in ('import', 'from')


def held(statement: list[tokenize.TokenInfo]) -> set[int]:
    """The numbers of the lines with tokens of a statement."""
    return {
        line
        for token in statement
        for line in range(token.start[0], token.end[0] + 1)
    }


def table() -> str:
    """All models as a table in Markdown."""
    lines = [
        '| model | its authors | Fold | jfold | jfold with imports |',
        '|---|---:|---:|---:|---:|',
    ]
    for model, file, authors, fold in MODELS:
        found = count((FOLDER / f'{file}.py').read_text(encoding='utf-8'))
        whole = found.imports + found.others
        lines.append(
            f'| {model} | {authors} | {fold} | {found.others} | {whole} |'
        )
    return '\n'.join(lines)


if __name__ == '__main__':
    print(table())
