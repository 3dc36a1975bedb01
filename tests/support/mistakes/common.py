# SPDX-License-Identifier: Apache-2.0
"""What a mistake in the tables is, what its message tells, and what they share."""

from __future__ import annotations

import builtins
import functools
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import jax.numpy as jnp

import jfold as jf

USERS = str(Path(__file__).parents[2])  # where a user's files are
OPEN = '…'  # in a message: anything, such as a path or the words of JAX


@dataclass(frozen=True)
class Mistake:
    """Something that a user does wrong.

    Attributes:
      code: does it.
      error: its exact class.
      message: the text of the exception and its notes; `OPEN` stands for what is not
        ours to promise.
      names: what the code knows.
    """

    code: str
    error: type[Exception]
    message: str
    names: dict[str, Any]

    def __str__(self) -> str:
        return self.code.partition('\n')[0]

    def provoke(self, **names: Any) -> None:
        """Run the code, perhaps with other names, as a part of the file it is in."""
        file = self.names['__file__']
        before = Path(file).read_text().partition(f'>>> {self}')[0].count('\n')
        exec(compile('\n' * before + self.code, file, 'exec'), self.names | names)


def mistakes_of(module: ModuleType) -> list[Mistake]:
    """Read the `TABLE` of a module.

    Code stands behind `>>>` and `...`; then comes its error, in as many lines as it
    takes, whose own line breaks are written as backslash and n.
    """
    found, names = [], vars(module)
    for text in module.TABLE.split('\n>>> ')[1:]:
        first, *lines = text.splitlines()
        code = [first, *(x[4:] for x in lines if x.startswith('... '))]
        error = ' '.join(lines[len(code) - 1 :])
        kind, _, message = error.partition(': ')
        message = message.replace(r'\n', '\n')
        known = names.get(kind) or getattr(builtins, kind, None) or getattr(jf, kind)
        found.append(Mistake('\n'.join(code), known, message, names))
    return found


# ---- what a message tells ------------------------------------------------------------

BLOCKS = '|'.join(
    name
    for name in dir(jf)
    if isinstance(getattr(jf, name), type) and issubclass(getattr(jf, name), jf.Block)
)
VERBS = (
    'call|cast|choose|collect|drop|end|give|leave|make|pass|put|raise|reduce|return|say|set|'
    'take|trace|turn|use|write'
)
PARTS = {
    'expected': re.compile(r'\bexpected\b'),
    'got': re.compile(r'\bgot\b'),
    'where': re.compile(
        # An example, a block, a declaration, a layer, an argument, a file.
        rf'\bexample \d|(^|in |\.)({BLOCKS}|Scalar|Vector|ForwardDeclaration)[\[(.:]'
        r'|(^|in )lazy\('
        r"|^tree[.(]|\blayer '|`\w+`|\.npz\b",
        re.MULTILINE,
    ),
    # A clause that begins with a verb, and names what to write or to take.
    'do': re.compile(rf'[:;.,] (?:{VERBS})\b \S', re.IGNORECASE),
}


def missing(message: str) -> list[str]:
    """The parts that a message is without."""
    return [name for name, pattern in PARTS.items() if not pattern.search(message)]


def text_of(error: Exception) -> str:
    """What is read below a traceback: the message, and notes that are not JAX's."""
    notes = [x for x in getattr(error, '__notes__', []) if 'JAX has removed' not in x]
    return '\n'.join([str(error), *notes])


# ---- tracebacks ----------------------------------------------------------------------


def modules(error: BaseException) -> list[str]:
    """The module of every frame, of causes too."""
    found: list[str] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None:
            continue
        trace: TracebackType | None = each.__traceback__
        while trace is not None:
            found.append(str(trace.tb_frame.f_globals.get('__name__')))
            trace = trace.tb_next
        waiting += [each.__cause__]
        waiting += [] if each.__suppress_context__ else [each.__context__]
    return found


def lines_beside(error: Exception) -> list[str]:
    """The lines of a printed traceback but for those of a user's frames."""
    result: list[str] = []
    is_users = False
    for line in ''.join(traceback.format_exception(error)).splitlines():
        if line.startswith('  File '):
            is_users = f'"{USERS}' in line
        elif not line.startswith('    '):
            is_users = False
        if not is_users:
            result.append(line)
    return result


# ---- what the tables share -----------------------------------------------------------

number = jf.Scalar()
vector = jf.Vector(3)
numbers = jf.Map(number)
add = jf.Function(jnp.add)
pair = jf.AllOf(number, number)


def scaled(w: Any, x: Any) -> Any:
    """A layer with a parameter."""
    return w * x


linear = jf.Function(scaled, init=lambda key, x: jnp.ones(2), name='linear')


def compiled(*blocks: Any, **options: Any) -> jf.Model:
    """A model of blocks, one after another."""
    return jf.compile(jf.Pipe(*blocks), **options)


@functools.cache
def model_of(block: Any) -> jf.Model:
    """That of a block, compiled once."""
    return jf.compile(block)


def scheduled(block: Any, *examples: Any, **options: Any) -> jf.Schedule:
    """A schedule of examples by the model of a block."""
    return model_of(block).schedule(list(examples), **options)
