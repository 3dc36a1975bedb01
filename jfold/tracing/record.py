# SPDX-License-Identifier: Apache-2.0
"""Examples → a `Graph`, by a function that records them."""

from __future__ import annotations

import functools
import linecache
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jfold.base.errors import BadItem, InputError, reason
from jfold.base.memo import Memoized, memoized
from jfold.graph import Graph
from jfold.program.operations import Operations
from jfold.tracing import deep
from jfold.tracing.helpers import HELPERS
from jfold.tracing.recorder import Recording, graph_of

Tapes = tuple[list[tuple[int, ...]], tuple[list[Any], ...]]


@dataclass(frozen=True, eq=False)
class Source(Memoized):
    """The text of a function `record(examples)`, and where it puts what it records.

    Attributes:
      text: Python; printed, it can be read.
      names: what it is given besides: functions of the data, tables.
      recording: where everything stands on its tapes.
      where: what wrote a line, or has a name, which prints as its path.
    """

    text: str
    names: Mapping[str, Any]
    recording: Recording = field(repr=False)
    where: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def record(self) -> Callable[[Sequence[Any]], Any]:
        """The function."""
        file = f'<jfold source {id(self):x}>'
        lines = self.text.splitlines(keepends=True)
        linecache.cache[file] = len(self.text), None, lines, file
        weakref.finalize(self, linecache.cache.pop, file, None)
        names = {**HELPERS, **self.names, '__name__': 'jfold.source'}
        exec(compile(self.text, file, 'exec'), names)
        made: Callable[[Sequence[Any]], Any] = names['record']
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {x: getattr(self, x) for x in ('text', 'names', 'recording')}

    def __str__(self) -> str:
        return self.text


class Expression(Protocol):
    """What a source was written for."""

    def deep(self) -> Source:
        """The same source with calls that are yielded."""

    def explain(self, example: object) -> InputError | None:
        """What is wrong with an example, as example 0; `None` if nothing is."""


UNSTEADY = (
    'expected functions that give the same results on the same data, got examples that '
    'did not fit the expression, and did when they were read again; make what '
    '`InputTransform` and `OneOf` call depend on nothing else'
)


def trace(program: Any, examples: Sequence[Any]) -> Graph:
    """Records a batch.

    Raises:
      InputError: an example does not fit the expression. Nothing is kept of the batch.
      RuntimeError: an example did not fit, and did when it was read again.
    """
    source: Source = program.source
    try:
        try:
            found: Tapes = source.record(examples)
        except RecursionError:
            source = _deep(program)
            found = deep.run(source.record(examples))
        return graph_of(program, source.recording, len(examples), *found)
    except Exception as error:
        failed = error
    # Not while it is handled: what walking meets would be told as met beside it.
    try:
        raise _explained(program, source, examples, failed) from _cause(failed)
    finally:
        del failed  # whose traceback holds this frame


def _cause(error: Exception) -> BaseException | None:
    return getattr(error, 'explained_cause', None)


@memoized
def _deep(program: Operations) -> Source:
    made: Source = program.expression.deep()  # type: ignore[attr-defined]
    return made


def _explained(
    program: Any, source: Source, examples: Sequence[Any], error: Exception
) -> Exception:
    """What is wrong with which example, and where in it."""
    number = _example_of(source, error)
    for k in [number] if number is not None else range(len(examples)):
        found: InputError | None = program.expression.explain(examples[k])
        if found is not None:
            error.explained_cause = found.__cause__  # type: ignore[attr-defined]
            return found.renumbered(k)
    unsteady = RuntimeError(f'{UNSTEADY}; it was {reason(error)}')
    error.explained_cause = error  # type: ignore[attr-defined]
    return unsteady


def _example_of(source: Source, error: Exception) -> int | None:
    """The number of the example that was recorded when an error was raised."""
    if isinstance(error, BadItem):
        return error.example
    traceback: types.TracebackType | None = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name == 'record' and 'ends' in frame.f_locals:
            return len(frame.f_locals['ends'])
        traceback = traceback.tb_next
    return None
