# SPDX-License-Identifier: Apache-2.0
"""Where in an example, and in which block, a row of its graph was made.

Graphs say nothing of it. So the example is traced again, until the row is made; that is
treated as an error about its data, of which the way is known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.errors import BadItem, InputError
from jfold.graph import Array, concatenated
from jfold.host.cycles import Watch
from jfold.host.deferred import by_need
from jfold.host.evaluation import graph_of
from jfold.host.promises import Tokens
from jfold.host.trace import Chunk, Trace
from jfold.program import Program, shares

CONSTANTS, NODES = 'constants', 'nodes'  # the tables of a graph


@dataclass(frozen=True)
class _Making:
    """The making of rows: which call of those for a table, and the row in it."""

    table: tuple[str, int]
    call: int
    row: int


def where_made(
    program: Program, example: Any, kind: str, number: int, row: int
) -> InputError | None:
    """Names the path in an example, and the block, that a row was made of; as example
    0. `None` if it cannot be told.

    Args:
      kind: 'constants', of a type, or 'nodes', of an operation.
      number: that of the type or operation.
      row: of its table in the graph of the example alone.
    """
    first = _Stopping(program, None)
    first.run(example)
    making = _Making((kind, number), *first.found(kind, number, row))
    try:
        _Stopping(program, making).run(example)
    except InputError as error:
        return error
    return None


class _Stopping(Trace):
    """A trace of one example that stops where rows are made, if some are named."""

    def __init__(self, program: Program, making: _Making | None) -> None:
        tokens = Tokens(by_need) if shares(program) else None
        super().__init__(program, 1, tokens=tokens)
        self.making = making
        self.calls: Counter[tuple[str, int]] = Counter()

    def apply(self, o: int, places: Array, inputs: list[Array]) -> list[Array]:
        """As of any trace, unless it is to stop there."""
        self._count(NODES, o)
        return super().apply(o, places, inputs)

    def constants(self, t: int, places: Array, values: Array) -> Array:
        """As of any trace, unless it is to stop there."""
        self._count(CONSTANTS, t)
        return super().constants(t, places, values)

    def _count(self, kind: str, number: int) -> None:
        table = kind, number
        call, self.calls[table] = self.calls[table], self.calls[table] + 1
        if self.making and (self.making.table, self.making.call) == (table, call):
            raise BadItem(self.making.row, 'is made here')

    def run(self, example: Any) -> None:
        """Traces the example."""
        graph_of(self.program, [example], self, Watch())

    def found(self, kind: str, number: int, row: int) -> tuple[int, int]:
        """The call that made a row of a table, and the row among those made by it."""
        chunks: list[Chunk] = getattr(self.made, kind)[number]
        order, _ = self.sort(concatenated([x.places for x in chunks]))
        made = row if order is None else int(order[row])
        ends = np.cumsum([len(chunk.places) for chunk in chunks])
        call = int(np.searchsorted(ends, made, side='right'))
        return call, made - int(ends[call]) + len(chunks[call].places)
