# SPDX-License-Identifier: Apache-2.0
"""The growth of programs whose lazy functions make calls never seen before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from jfold.base.errors import InputError
from jfold.language.lazy_registry import NewCall
from jfold.lower import lower
from jfold.models.compile_times import LOG

if TYPE_CHECKING:
    from jfold.models.model import Model

T = TypeVar('T')


def growing(model: Model, batches: Iterable[object], record: Callable[[], T]) -> T:
    """Return `record()`; if that meets calls that the program lacks, after growth.

    The program is then lowered again with the calls of all batches that are lists.
    Schedules and corpora of before stay with the old program.
    """
    try:
        return record()
    except InputError as error:
        lists = [x for x in batches if isinstance(x, list)]
        if model.recorded is None or not isinstance(error.__cause__, NewCall):
            raise
        if not lists:
            raise
    model.recorded.learn(example for examples in lists for example in examples)
    before = len(model.program.operations)
    model.block = model.recorded.expression()
    model.program = lower(model.block, unrolls=not model.reproducible)
    model.begin()
    root, after = model.recorded.root, len(model.program.operations)
    LOG.info(f'{root!r} calls what `like=` lacks: {before} operations, now {after}')
    return record()
