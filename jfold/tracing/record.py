# SPDX-License-Identifier: Apache-2.0
"""The recording of examples: generated source fills lists, which become a `Graph`."""

from __future__ import annotations

import contextlib
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
from jfold.tracing import deep
from jfold.tracing.strict_reading import HELPERS
from jfold.tracing.tape_reader import Recording, TapeReader
from jfold.tracing.unread_rows import without_unread

# The result of `record`: `ends` and tapes, as `tape_reader.py` describes them.
Tapes = tuple[list[tuple[int, ...]], tuple[list[Any], ...]]


@dataclass(frozen=True, eq=False)
class Source(Memoized):
    """The generated source of `record(examples)`, and the layout of the lists it fills.

    Attributes:
      text: readable Python.
      names: by name, the objects that the text refers to: users' functions, tables.
      recording: the layout of the tapes, the lists that `record` fills.
      where: by line of the text and by name, the use of the block that wrote the line
        or needs the name, which prints as its path; `None` if several uses do.
    """

    text: str
    names: Mapping[str, Any]
    recording: Recording = field(repr=False)
    where: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def record(self) -> Callable[[Sequence[Any]], Any]:
        """The compiled function `record`, from examples to `ends` and filled tapes.

        In deep form it is a generator, to be run by `deep.run`.
        """
        file = f'<jfold source {id(self):x}>'
        # With an entry in `linecache`, tracebacks and debuggers show the text.
        lines = self.text.splitlines(keepends=True)
        linecache.cache[file] = len(self.text), None, lines, file
        weakref.finalize(self, linecache.cache.pop, file, None)
        names = {**HELPERS, **self.names, '__name__': 'jfold.source'}
        try:
            code = compile(self.text, file, 'exec')
        except SyntaxError as error:
            raise TypeError(
                'expected sequences nested up to 19 deep, and results that are tuples '
                'nested up to 150 deep, got an expression whose source Python refuses: '
                f'{error.msg}; nest data deeper by a declaration that refers to itself'
            ) from error
        exec(code, names)
        function: Callable[[Sequence[Any]], Any] = names['record']
        return function

    def __str__(self) -> str:
        return self.text


class Expression(Protocol):
    """The methods of a lowered expression that tracing calls if recording failed."""

    def deep(self) -> Source:
        """Return the source in deep form, for data deeper than Python's stack."""

    def explain(self, example: object) -> InputError | None:
        """Return the error of an example, counted as example 0; `None` if it fits."""


def trace(program: Any, examples: Sequence[Any]) -> Graph:
    """Record examples by the source of a `Program`; return their graph.

    Raises:
      InputError: an example does not fit the expression. No part of the batch is kept.
      RuntimeError: recording failed, but each example fitted when it was read again.
      ValueError: a chain of operations is longer than row numbers can tell.
    """
    source: Source = program.source
    record = source.record  # which Python may refuse: that is no fault of the data
    recorded: Tapes | None = None
    call: Any = None
    try:
        with contextlib.suppress(RecursionError):
            recorded = record(examples)
        if recorded is None:
            source = _deep(program)
            call = source.record(examples)
            recorded = deep.run(call)
        recording, count = source.recording, len(examples)
        reader = TapeReader(program, recording, count, *recorded)
        graph = reader.graph()
        if not recording.prunes or reader.reads_all():
            return graph
        return without_unread(program, graph)
    except MemoryError:  # for which no example is to blame
        raise
    except Exception as error:
        failed = error
    # Outside the handler, so that errors raised here do not get `failed` as context.
    try:
        raise _explained(program, examples, failed, call)
    finally:
        del failed  # its traceback holds this frame: a reference cycle


@memoized
def _deep(program: Any) -> Source:
    return program.expression.deep()  # type: ignore[no-any-return]


def _explained(
    program: Any, examples: Sequence[Any], error: Exception, call: Any
) -> Exception:
    """Return an InputError if an example caused `error`, else a RuntimeError.

    Of several examples that do not fit, the first is named.

    Args:
      error: what recording raised.
      call: the call of `record` in deep form, or `None`.
    """
    number = _example_of(error, call)
    if number and not isinstance(error, BadItem):
        # Numbers are converted after all examples are read, so a number of an earlier
        # example may not fit. To trace these examples alone tells.
        try:
            trace(program, [examples[k] for k in range(number)])
        except InputError as earlier:
            return earlier
        except RuntimeError:  # they fail where the first recording did not
            pass
    for k in [number] if number is not None else range(len(examples)):
        explanation: InputError | None = program.expression.explain(examples[k])
        if explanation is not None:
            result = explanation.renumbered(k).on(examples[k])
            result.__cause__ = explanation.__cause__
            return result
    if isinstance(
        error, OverflowError
    ):  # of row numbers, whose highest bits are levels
        most = (1 << 63 - program.source.recording.level) - 1
        return ValueError(
            f'expected chains of at most {most:,} operations, got longer ones; cut '
            'sequences, or reduce them in parts'
        )
    unsteady = RuntimeError(
        'expected functions that give the same results on the same data, got examples '
        'that did not fit the expression, and did when they were read again; make what '
        '`InputTransform` and `OneOf` call depend on nothing else, and change no data '
        'that a block was called on; it was '
        f'{error if isinstance(error, BadItem) else describe_error(error)}'
    )
    unsteady.__cause__ = error
    return unsteady


def _example_of(error: Exception, call: Any) -> int | None:
    """Return the index of the example at which `error` arose; `None` if unknown."""
    if isinstance(error, BadItem):
        return error.example
    # In deep form `record` waits outside of the traceback, unless it raised itself.
    frames = [] if call is None or call.gi_frame is None else [call.gi_frame]
    traceback: types.TracebackType | None = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in frames:
        if frame.f_code.co_name == 'record' and 'ends' in frame.f_locals:
            return len(frame.f_locals['ends'])
    return None
