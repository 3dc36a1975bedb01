# SPDX-License-Identifier: Apache-2.0
"""How the tapes of a source are read, once a round has written it."""

from __future__ import annotations

from typing import Any

from jfold.language.rounds import Round
from jfold.language.tapes import Maker, Rows, Tape
from jfold.tracing.recorder import Column, Place, Recording


def recording(of: Round) -> Recording:
    """How the tapes of the source are read."""
    tape = {id(each): k for k, each in enumerate(of.tapes)}
    end = {id(each): k for k, each in enumerate(of.counters())}

    def place(rows: Rows | None) -> Place | None:
        if rows is None or rows.counter is None:
            return None
        columns = []
        for k, each in enumerate(rows.columns):
            if isinstance(each, Maker):
                columns.append(Column(maker=each.number))
            elif isinstance(each, Tape):
                inner = k if each.width > 1 else 0
                columns.append(Column(tape[id(each)], inner, each.width))
        return Place(end[id(rows.counter)], rows.counter.width, tuple(columns))

    makers: list[list[Any]] = [[] for _ in of.tables.types]
    for (o, k), maker in of.by_output.items():
        makers[maker.type].append((maker.number, 'operation', o, k))
    constants: list[list[Any]] = [[] for _ in of.tables.types]
    for key, (maker, each) in of.own.items():
        makers[maker.type].append((maker.number, 'constants', end[id(each)], 0))
        own = tape[id(each)], end[id(each)], key[2]
        constants[maker.type].append(own)
    operations = range(len(of.operations))
    numbers = range(len(of.results))
    labelled = [r for r in numbers if of.results[r].kind.labelled]
    return Recording(
        tapes=len(of.tapes),
        ends=len(end),
        level=of.level,
        constants=tuple(map(tuple, constants)),
        makers=tuple(map(tuple, makers)),
        operations=tuple(place(of.rows.get(('operation', o))) for o in operations),
        results=tuple(place(of.result_rows.get(r)) for r in numbers),
        labels=tuple(
            tape[id(of.labels[r])] if r in of.labels else -1 for r in labelled
        ),
        shared=tuple(of.constant_names.values()),
    )
