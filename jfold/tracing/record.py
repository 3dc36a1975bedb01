# SPDX-License-Identifier: Apache-2.0
"""The recording of examples: generated source → lists → a `Graph`."""

from __future__ import annotations

import functools
import linecache
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jfold.base.errors import BadItem, InputError, describe_error
from jfold.base.memo import Memoized, memoized
from jfold.graph import Graph
from jfold.program.operations import Operations
from jfold.tracing import deep
from jfold.tracing.helpers import HELPERS
from jfold.tracing.recorder import Recording, graph_of

Tapes = tuple[list[tuple[int, ...]], tuple[list[Any], ...]]


@dataclass(frozen=True, eq=False)
class Source(Memoized):
    """The text of a function `record(examples)`, and the layout of its tapes.

    Attributes:
      text: readable Python.
      names: the objects that it refers to: users' functions, tables.
      recording: the layout of its tapes.
      where: the block that wrote a line or refers to a name; prints as its path.
    """

    text: str
    names: Mapping[str, Any]
    recording: Recording = field(repr=False)
    where: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def record(self) -> Callable[[Sequence[Any]], Any]:
        """The compiled function."""
        file = f'<jfold source {id(self):x}>'
        lines = self.text.splitlines(keepends=True)
        linecache.cache[file] = len(self.text), None, lines, file
        weakref.finalize(self, linecache.cache.pop, file, None)
        names = {**HELPERS, **self.names, '__name__': 'jfold.source'}
        exec(compile(self.text, file, 'exec'), names)
        function: Callable[[Sequence[Any]], Any] = names['record']
        return function

    def __getstate__(self) -> dict[str, Any]:
        return {x: getattr(self, x) for x in ('text', 'names', 'recording')}

    def __str__(self) -> str:
        return self.text


class Expression(Protocol):
    """The expression that a source was generated from."""

    def deep(self) -> Source:
        """Return the source in the form whose calls are yielded."""

    def explain(self, example: object) -> InputError | None:
        """Return what is wrong with an example, as example 0; `None` if nothing is."""


UNSTEADY = (
    'expected functions that give the same results on the same data, got examples that '
    'did not fit the expression, and did when they were read again; make what '
    '`InputTransform` and `OneOf` call depend on nothing else'
)


def trace(program: Any, examples: Sequence[Any]) -> Graph:
    """Record a batch.

    Raises:
      InputError: an example does not fit the expression. No part of the batch is kept.
      RuntimeError: an example did not fit, and did when it was read again.
    """
    source: Source = program.source
    try:
        try:
            recorded: Tapes = source.record(examples)
        except RecursionError:
            source = _deep(program)
            recorded = deep.run(source.record(examples))
        return graph_of(program, source.recording, len(examples), *recorded)
    except Exception as error:
        failed = error
    # Outside the handler, so that errors of the walk do not name it as their context.
    try:
        raise _explained(program, source, examples, failed) from getattr(
            failed, 'explained_cause', None
        )
    finally:
        del failed  # its traceback holds this frame: a reference cycle


@memoized
def _deep(program: Operations) -> Source:
    source: Source = program.expression.deep()  # type: ignore[attr-defined]
    return source


def _explained(
    program: Any, source: Source, examples: Sequence[Any], error: Exception
) -> Exception:
    """Return the error that says which example is wrong, and where."""
    number = _example_of(source, error)
    for k in [number] if number is not None else range(len(examples)):
        explanation: InputError | None = program.expression.explain(examples[k])
        if explanation is not None:
            error.explained_cause = explanation.__cause__  # type: ignore[attr-defined]
            return explanation.renumbered(k)
    unsteady = RuntimeError(f'{UNSTEADY}; it was {describe_error(error)}')
    error.explained_cause = error  # type: ignore[attr-defined]
    return unsteady


def _example_of(source: Source, error: Exception) -> int | None:
    """Return the number of the example that was recorded when an error came."""
    if isinstance(error, BadItem):
        return error.example
    traceback: types.TracebackType | None = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name == 'record' and 'ends' in frame.f_locals:
            return len(frame.f_locals['ends'])
        traceback = traceback.tb_next
    return None
