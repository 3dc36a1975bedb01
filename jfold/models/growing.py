# SPDX-License-Identifier: Apache-2.0
"""The growth of programs whose lazy functions make calls never seen before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from jfold.base.errors import InputError
from jfold.combinators import Block
from jfold.language.lazy_expression import Recorded
from jfold.language.lazy_registry import NewCall
from jfold.models.compile_times import LOG

T = TypeVar('T')


def growing(
    recorded: Recorded | None,
    lower: Callable[[Block], None],
    batches: Iterable[object],
    record: Callable[[], T],
) -> T:
    """Return `record()`; if it meets calls that the program lacks, again after growth.

    Args:
      recorded: the calls met so far; `None` without lazy functions.
      lower: lowers the expression that knows the calls of all batches. Schedules and
        corpora of before stay with the old program.
      batches: lists of examples; of iterators, which cannot be read twice, a call that
        is new is an error.
    """
    try:
        return record()
    except InputError as error:
        lists = [x for x in batches if isinstance(x, list)]
        is_new = isinstance(error.__cause__, NewCall)
        if recorded is None or not is_new or not lists:
            raise
    recorded.learn(example for examples in lists for example in examples)
    lower(recorded.expression())
    LOG.info(f'{recorded.root!r} makes calls that `like=` lacks: it is lowered again')
    return record()
