# SPDX-License-Identifier: Apache-2.0
"""What goes with each item of a result, laid out as the items lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jfold.base.errors import expect
from jfold.graph import Array
from jfold.program.result_tables import of_value
from jfold.ragged import Ragged, laid_out
from jfold.scheduling.layout import layout
from jfold.scheduling.spec import Spec
from jfold.types import (
    SequenceType,
    TensorType,
    TypeLike,
    convert_to_type,
    leaf_types,
)


def lay_out(
    spec: Spec,
    parts: Sequence[Array],
    lists: Iterable[Iterable[Any]],
    type_: TypeLike | None,
) -> Ragged:
    """See `Schedule.ragged`.

    Args:
      spec: of the schedule of each shard.
      parts: the index array [size] of each.
    """
    item = None
    if type_ is not None:
        made = convert_to_type(type_)
        item = made if isinstance(made, TensorType) else None
        expect('type', type_, item is not None, 'that of a tensor')
    given = _for_rows(spec, parts, [*map(_listed, lists)])
    return laid_out(given, _rows_of_fitting(spec, parts, given), item)


def _listed(items: Iterable[Any]) -> Sequence[Any]:
    expect('lists', items, isinstance(items, Iterable), 'a list for each example')
    return items if isinstance(items, list) else list(items)


def _for_rows(
    spec: Spec, parts: Sequence[Array], given: list[Sequence[Any]]
) -> list[Sequence[Any]]:
    """The lists of all rows of the results; none in spare ones."""
    header, rows = layout(spec).sections.header, spec.capacity.examples
    real = np.concatenate([np.arange(rows) < header.examples.of(x) for x in parts])
    if len(given) == real.sum():
        found = iter(given)
        return [next(found) if x else () for x in real.tolist()]
    if len(given) == len(real):
        return [x if is_real else () for x, is_real in zip(given, real, strict=True)]
    raise ValueError(
        f'expected a list for each of {real.sum()} examples, got {len(given)}'
    )


def _rows_of_fitting(
    spec: Spec, parts: Sequence[Array], given: list[Sequence[Any]]
) -> list[int]:
    """Of the first sequence in the result that has such lengths, the rows of its items,
    and of theirs if these are sequences and so are the items that are given.

    Raises:
      TypeError: there is no sequence; ValueError: none has such lengths.
    """
    results = of_value(spec.program.results)
    types = [spec.program.results[r].type for r in results]
    # Levels are in the order of the sequences that they are the items of.
    counts = [sum(isinstance(x, SequenceType) for x in leaf_types(t)) for t in types]
    first = 1 + np.cumsum([0, *counts])
    lengths = np.array([*map(len, given)])
    level = _fitting(spec, parts, [*results[1 : first[1]]], lengths)
    found, items = [results.index(level)], [*itertools.chain.from_iterable(given)]
    while isinstance(types[found[-1]], SequenceType) and _are_lists(items):
        found.append(int(first[found[-1]]))
        example = np.arange(len(given)).repeat(lengths)
        inside = np.array([*map(len, items)], int)
        lengths = np.bincount(example, inside, len(given)).astype(int)
        _fitting(spec, parts, [results[found[-1]]], lengths)
        items = [*itertools.chain.from_iterable(items)]
    return [layout(spec).results[results[k]] * len(parts) for k in found]


def _are_lists(items: list[Any]) -> bool:
    return all(isinstance(x, list | tuple) for x in items)


def _fitting(
    spec: Spec, parts: Sequence[Array], results: list[int], lengths: Array
) -> int:
    """The first of some results that has so many items [examples] of each example."""
    if not results:
        raise TypeError(
            'expected a schedule of a model whose result is, or holds, a sequence, got '
            'one of others: give targets [examples, ...] as an array'
        )
    for r in results:
        if (_lengths(spec, parts, r) == lengths).all():
            return r
    there = _lengths(spec, parts, results[0])
    k = int(np.argmax(there != lengths))
    raise ValueError(
        f'expected as many items as the result has, {there[k]} of example {k}, got '
        f'{lengths[k]}'
    )


def _lengths(spec: Spec, parts: Sequence[Array], result: int) -> Array:
    """How many items each row of the results has [examples]."""
    owners, rows = layout(spec).sections.owners[result], spec.capacity.examples
    counts = [np.bincount(owners.of(x), minlength=rows + 1)[:rows] for x in parts]
    found: Array = np.concatenate(counts)
    return found
