# SPDX-License-Identifier: Apache-2.0
"""Wrong examples: recording refuses those that `eval` refuses, in the same words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

import jfold as jf
from fuzz.near import Mismatch
from jfold.language import eager_twin
from jfold.language.walk import in_tuples
from jfold.tracing.record import trace
from jfold.types import leaf_types

# What stands for a part of an example.
WRONG: tuple[Callable[[Any], Any], ...] = (
    lambda part: None,
    lambda part: 'nothing',
    lambda part: -1,
    lambda part: 2.5,
    lambda part: 1 << 40,
    lambda part: float('inf'),
    lambda part: [],
    lambda part: {},
    lambda part: [part],
    lambda part: (part, part),
    lambda part: iter([part]),
    lambda part: [*part][:-1] if isinstance(part, list | tuple) else [part, part],
    lambda part: np.zeros((2, 2)),
)
Step = tuple[Any, Any]  # what holds a part, and its place there


def steps(value: Any) -> Iterator[Step]:
    """The places of all parts, however deep."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, list):
            places: Sequence[Any] = range(len(holder))
        elif isinstance(holder, dict):
            places = [*holder]
        else:
            continue
        for place in places:
            yield holder, place
            waiting.append(holder[place])


def in_lists(value: Any) -> Any:
    """Data whose tuples are lists, so that their parts can be replaced."""
    if isinstance(value, list | tuple):
        return [in_lists(part) for part in value]
    if isinstance(value, Mapping):
        return {key: in_lists(part) for key, part in value.items()}
    return copy.copy(value)


def as_before(value: Any, before: Any) -> Any:
    """The same with tuples where there were some."""
    if isinstance(value, list) and isinstance(before, list | tuple):
        if len(value) != len(before):
            return value
        pairs = zip(value, before, strict=True)
        return type(before)(as_before(part, other) for part, other in pairs)
    if isinstance(value, dict) and isinstance(before, Mapping):
        return {k: as_before(part, before.get(k)) for k, part in value.items()}
    return value


def spoilt(example: Any, rng: np.random.Generator) -> Any:
    """An example of which a part is another, or lacks."""
    data = [in_lists(example)]
    places = [*steps(data)]
    holder, place = places[rng.integers(len(places))]
    if isinstance(holder, dict) and rng.integers(3) == 0:
        del holder[place]
    else:
        holder[place] = WRONG[rng.integers(len(WRONG))](holder[place])
    return as_before(data[0], example)


def refusal(run: Callable[[], object]) -> tuple[str, ...] | None:
    """What an error says, apart from the number of the example; `None` without one."""
    try:
        run()
    except jf.InputError as error:
        return error.message, error.path, error.block, error.hint
    return None


def zeros(arrays: eager_twin.Arrays, node: Any, x: Any) -> Any:
    """What a layer gives but for its numbers, on which no error of data depends."""
    results = (np.zeros(t.shape, t.dtype) for t in leaf_types(node.output))
    return in_tuples(node.output, results)


def compare_errors(
    model: jf.Model,
    params: Mapping[str, Any],
    examples: Sequence[Any],
    rng: np.random.Generator,
) -> bool:
    """A spoilt example, recorded behind good ones, and evaluated.

    Returns whether it was refused.

    Raises:
      Mismatch: one refuses what the other does not, or says something else.
    """
    bad = spoilt(examples[rng.integers(len(examples))], rng)
    recorded = refusal(lambda: trace(model.program, [*examples, bad]))
    with mock.patch.object(eager_twin.Arrays, 'call', zeros):
        evaluated = refusal(lambda: model.eval(bad, params))
    if recorded != evaluated:
        raise Mismatch('errors', f'of {bad!r}:\n{recorded}\nis not\n{evaluated}')
    return recorded is not None
