# SPDX-License-Identifier: Apache-2.0
"""What a mistake in the tables is, what its message tells, and what they share."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import jax.numpy as jnp

import jfold as jf

USERS = str(Path(__file__).parents[2])  # where a user's files are
OPEN = '…'  # in a message: anything, such as a path or the words of JAX


@dataclass(frozen=True)
class Mistake:
    """Something that a user does wrong.

    Attributes:
      provoke: does it.
      message: the text of the exception and its notes; `OPEN` stands for what is not
        ours to promise.
      error: its exact class.
    """

    provoke: Callable[[], Any]
    message: str
    error: type[Exception] = TypeError


InputMistake = functools.partial(Mistake, error=jf.InputError)  # in an example
ValueMistake = functools.partial(Mistake, error=ValueError)


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

NO_BLOCK = (
    'expected a block, a callable, an array, or a dict, list or tuple of blocks, got'
)
NO_TENSORS = 'expected tensors or tuples of tensors, got'
TO_TENSORS = 'turn objects into tensors by Scalar, Vector or Tensor'
BY_INIT = '; `model.init(key)` makes them'
OF_ANOTHER = (
    'expected a schedule made by this model, got one of another: call '
    '`model.schedule(examples)` of the model that is applied'
)
OTHER_CORPUS = (
    'expected a corpus of the expression of this model, got one of another, with '
    '`operation add(float32, float32) -> float32, a sum` instead of nothing; `data '
    "float32[]` instead of `data float32[3]` in Vector(3, 'float32'). Trace the "
    'examples again with `model.trace`'
)

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
