# SPDX-License-Identifier: Apache-2.0
"""The layout of the tapes of a source, as the recorder needs it."""

from __future__ import annotations

from typing import Any

from jfold.language.rounds import Round
from jfold.language.tapes import Maker, Rows, Tape
from jfold.tracing.recorder import Column, Place, Recording


def recording(of: Round) -> Recording:
    """Return the layout of a round's tapes: which holds which operand of what."""
    tape_index = {id(tape): k for k, tape in enumerate(of.tapes)}
    end_index = {id(tape): k for k, tape in enumerate(of.counters())}

    def place(rows: Rows | None) -> Place | None:
        """Return where rows are on tapes; `None` if nothing appends such rows."""
        if rows is None or rows.counter is None:
            return None
        columns = []
        for k, column in enumerate(rows.columns):
            if isinstance(column, Maker):
                columns.append(Column(maker=column.number))
            elif isinstance(column, Tape):
                # One tape of a group of items has the entries of all its inputs.
                inner = k if column.width > 1 else 0
                columns.append(Column(tape_index[id(column)], inner, column.width))
        return Place(end_index[id(rows.counter)], rows.counter.width, tuple(columns))

    makers: list[list[Any]] = [[] for _ in of.tables.types]
    for (o, k), maker in of.by_output.items():
        makers[maker.type].append((maker.number, 'operation', o, k))
    constants: list[list[Any]] = [[] for _ in of.tables.types]
    for (_, _, below, _), (maker, tape) in of.own.items():
        end = end_index[id(tape)]
        makers[maker.type].append((maker.number, 'constants', end, 0))
        constants[maker.type].append((tape_index[id(tape)], end, below))
    operations = range(len(of.operations))
    numbers = range(len(of.results))
    labelled = [r for r in numbers if of.results[r].kind.labelled]
    return Recording(
        tapes=len(of.tapes),
        ends=len(end_index),
        level=of.level,
        constants=tuple(map(tuple, constants)),
        makers=tuple(map(tuple, makers)),
        operations=tuple(place(of.rows.get(('operation', o))) for o in operations),
        results=tuple(place(of.result_rows.get(r)) for r in numbers),
        labels=tuple(
            tape_index[id(of.labels[r])] if r in of.labels else -1 for r in labelled
        ),
        shared=tuple(of.constant_names.values()),
    )
