# SPDX-License-Identifier: Apache-2.0
"""The places of calls in lazy functions: their order, and their lines for errors."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from jfold import blocks as b
from jfold.base.tracebacks import is_of_user, line_text
from jfold.blocks.lazy import CallPlace, Node, PlacedNode, Value
from jfold.language import lazy_recording
from jfold.language.lazy_recording import Recording
from jfold.language.lazy_registry import Registry

RUNS = 'run', 'shared', '_shared_steps'  # methods that run functions of the user
FILES = __file__, lazy_recording.__file__


class PlacedRecording(Recording):
    """A recording whose nodes know their places, to name the line of a call.

    Attributes:
      count: the number of calls so far.
      place: the place of the last call.
      faulty: the place of a call that raises the error `fault`, if any does.
      nodes: the nodes of the calls, in order.
    """

    __slots__ = ('count', 'fault', 'faulty', 'nodes', 'place')

    def __init__(
        self, registry: Registry, faulty: CallPlace | None = None, message: str = ''
    ) -> None:
        super().__init__(registry)
        self.count, self.faulty, self.fault = 0, faulty, TypeError(message)
        self.place: CallPlace | None = None
        self.nodes: list[Node] = []

    def _begin(self) -> None:
        self.count += 1
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not is_of_user(frame):
            frame = frame.f_back
        self.place = frame and CallPlace(self.count, frame.f_code, frame.f_lineno)
        if self.place is not None and self.place == self.faulty:
            raise self.fault

    def call(self, block: b.Block, arguments: tuple[Any, ...]) -> Any:
        """Record a block's call, as `Recording.call` does."""
        self._begin()
        return self._call(block, arguments)

    def constant(self, value: object, dtype: object) -> Any:
        """Return the `Value` of a number or array `value`, as `dtype` if not `None`."""
        self._begin()
        return self._value(self._constant(value, dtype))

    def observe(self, name: str, value: object, label: tuple[Any, ...]) -> None:
        """Record a value for metric `name`; `label` is `(label,)`, or `()` if none."""
        self._begin()
        super().observe(name, value, label)
        self.observed[-1] = PlacedNode.at(self.place, self.observed[-1])

    def _node(self, number: int, *operands: Any) -> Node:
        node = PlacedNode.at(self.place, (number, *operands))
        self.nodes.append(node)
        return node

    def _value(self, node: Node) -> Value:
        if not isinstance(node, PlacedNode):
            node = PlacedNode.at(self.place, node)
        return super()._value(node)


def line_of(error: BaseException | None) -> str:
    """Return ', in line 3 of f.py, `...`', the user's line from which `error` comes.

    It is the last one above the call of a block that raised the error; '' without one.
    """
    line = ''
    while error is not None and not line:
        traceback = error.__traceback__
        while traceback is not None:
            frame, code = traceback.tb_frame, traceback.tb_frame.f_code
            is_call = code.co_filename in FILES and code.co_name not in RUNS
            if is_call:  # below it are frames of layers
                break
            if is_of_user(frame):
                line = line_text(code, traceback.tb_lineno)
            traceback = traceback.tb_next
        error = error.__cause__
    return line
