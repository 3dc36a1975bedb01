# SPDX-License-Identifier: Apache-2.0
"""The growth of programs whose lazy functions make calls never seen before.

Schedules and corpora that exist stay with the program that they were built for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

from jfold.base.errors import InputError
from jfold.language.lazy_expression import Recorded
from jfold.language.lazy_registry import MET_NEW, NewCall
from jfold.models.compile_times import LOG

T = TypeVar('T')


def growing(
    recorded: Recorded | None,
    lower: Callable[[Recorded], None],
    batches: Iterable[object],
    record: Callable[[], T],
) -> T:
    """Return `record()`; if lazy functions make new calls, lower again and retry.

    Args:
      recorded: the calls met so far; `None` without lazy functions.
      lower: lowers the expression for all calls met so far to a new program. If it
        raises, or is interrupted, nothing was learned.
      batches: lists of examples, or iterators. An iterator cannot be read twice, so a
        new call of its examples is an error.
    """
    if recorded is None:
        return record()
    lists = [x for x in batches if isinstance(x, list)]
    new: BaseException | None = None
    token = MET_NEW.set(False)  # a function may schedule with another model
    try:
        result = record()
        if not (lists and MET_NEW.get()):  # an example with new calls was left out
            return result
    except InputError as error:
        new = error.__cause__
        if not (lists and isinstance(new, NewCall)):
            raise
    finally:
        MET_NEW.reset(token)
    examples = itertools.chain.from_iterable(lists)
    with recorded.registry.lock:  # other threads may find new calls as well
        draft = recorded.draft()
        draft.learn(examples, skip_errors=True)  # `record` raises these errors
        if draft.registry.version != recorded.closed.version:
            more = draft.registry.entries[len(recorded.closed.entries) :]
            lower(draft)
            recorded.accept(draft)
            names = ', '.join(dict.fromkeys(x.name for x in more)) or 'in a new order'
            lacked = f'for calls that `like=` lacks: {names}'
            LOG.info(f'{recorded.root!r}: lowered again, {lacked}')
        elif isinstance(new, NewCall) and new.version == draft.registry.version:
            raise TypeError(
                f'{recorded.root!r}: expected a lazy function that makes the same '
                'calls each time, got new ones that were gone when it ran again; copy '
                'what it changes of its data, as in `items = [*x]`; if it draws at '
                'random, give `like=` more examples'
            ) from new
    return record()
