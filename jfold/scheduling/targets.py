# SPDX-License-Identifier: Apache-2.0
"""The layout of targets: a row for each item of a sequence, like results.

The items of a sequence are the rows of a further entry of `Program.results`. If they
are sequences too, their items are the rows of another entry, and so on. In arguments,
`spec` is that of each shard's schedule, `parts` the index array [size] of each shard,
`constants` its constants by type.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import jax
import numpy as np

from jfold.base.arguments import expect
from jfold.base.errors import BadItem, has_masked, short_repr
from jfold.graph import Array, shared_counts
from jfold.ragged import Ragged
from jfold.scheduling.layout import layout
from jfold.scheduling.read_modes import ReadMode, mode_at
from jfold.scheduling.spec import Spec
from jfold.tracing.convert import as_numpy, to_array
from jfold.types import SequenceType, TensorType, TypeLike, convert_to_type, leaf_types

Arrays: TypeAlias = Sequence[Any]  # by type, [rows, *shape]


def lay_out_targets(
    spec: Spec,
    parts: Sequence[Array],
    constants: Sequence[Arrays],
    lists: Iterable[Iterable[Any]],
    type_: TypeLike | None,
) -> Ragged:
    """Arrange targets, one per sequence item.

    For `lists`, `type_` and errors, see `Schedule.ragged`.
    """
    item: Any = None if type_ is None else convert_to_type(type_)
    if item is not None:
        is_tensor = isinstance(item, TensorType)
        expect('type', type_, is_tensor, 'that of a tensor')
        narrow = _kept(item.dtype)
        hint = "set jax.config.update('jax_enable_x64', True) to keep others"
        is_kept, wanted = item.dtype == narrow, f'that of a dtype such as {narrow.name}'
        expect('type', type_, is_kept, wanted, hint)
    targets = _lists_by_row(spec, parts, [*map(_as_list, lists)])
    return _ragged(targets, _rows_of_levels(spec, parts, constants, targets), item)


def _as_list(items: Any) -> list[Any]:
    """Return `items`, an example's targets, as a list; raise TypeError if unordered."""
    if isinstance(items, list):
        return items
    is_list = isinstance(items, Iterable) and not isinstance(items, str | Mapping | Set)
    is_list = is_list and getattr(items, 'ndim', 1) > 0  # arrays [] only look iterable
    expect('lists', items, is_list, 'a list for each example')
    return list(items)


def _ragged(
    lists: Sequence[Sequence[Any]], rows: Sequence[int], type_: TensorType | None
) -> Ragged:
    """Make a `Ragged` from lists of items, padded to `rows[k]` rows on nesting level k.

    Raises TypeError if items are no numbers, have different shapes, or do not fit the
    type.
    """
    lengths: Any = np.array([*map(len, lists)], np.int32)
    items = [*itertools.chain.from_iterable(lists)]
    spare = rows[0] - len(items)
    if len(rows) > 1:
        return Ragged(_ragged([*items, *[()] * spare], rows[1:], type_), lengths)
    type_ = type_ or _inferred(items)
    values = np.zeros((rows[0], *type_.shape), type_.dtype)
    try:
        values[: len(items)] = to_array(items, type_)
    except BadItem as error:
        raise TypeError(f'target {error.index}: {error}') from None
    return Ragged(values, lengths)


def _inferred(items: list[Any]) -> TensorType:
    """Infer the type of items, in a dtype that JAX keeps; float32[] without items.

    Raise TypeError if they are no numbers, masked, or differ in shape.
    """
    with contextlib.suppress(TypeError, ValueError):
        array = np.asarray(None if has_masked(items, depth=1) else as_numpy(items))
        return TensorType(array.shape[1:], _kept(array.dtype))
    some = ', '.join([*map(short_repr, items[:3]), *['...'] * (len(items) > 3)])
    raise TypeError(
        f'expected numbers, or arrays of one shape, as items, got {some}: turn them '
        'into numbers before'
    )


def _kept(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that JAX makes of another: int64 -> int32, unless x64 is on."""
    kept: np.dtype[Any] = jax.dtypes.canonicalize_dtype(dtype)
    return kept


def _lists_by_row(
    spec: Spec, parts: Sequence[Array], lists: list[Sequence[Any]]
) -> list[Sequence[Any]]:
    """Return a list for each row of the results, with empty ones for spare rows.

    Raises ValueError unless there is a list for each row, or for each real row.
    """
    examples, rows = layout(spec).sections.examples, spec.capacity.examples
    real = np.concatenate([np.arange(rows) < examples.of(x) for x in parts])
    if len(lists) == real.sum():
        items = iter(lists)
        return [next(items) if is_real else () for is_real in real.tolist()]
    if len(lists) == len(real):
        return [x if is_real else () for x, is_real in zip(lists, real, strict=True)]
    raise ValueError(
        f'expected a list for each of {real.sum()} examples, got {len(lists)}'
    )


def _rows_of_levels(
    spec: Spec,
    parts: Sequence[Array],
    constants: Sequence[Arrays],
    lists: list[Sequence[Any]],
) -> list[int]:
    """Return the result's numbers of item rows, one per nesting level of `lists`.

    The first number is of the first sequence in the result whose lengths are those of
    `lists`; the next ones are of its items, as long as these are sequences and `lists`
    are nested.

    Raises:
      TypeError, ValueError: as of `_find_result`; ValueError if inner lists have other
        lengths than the sequences.
    """
    results = spec.program.value_results
    types = [spec.program.results[r].type for r in results]
    # The results of items stand in the order of their sequences: see `nesting`.
    counts = [sum(isinstance(x, SequenceType) for x in leaf_types(t)) for t in types]
    first = 1 + np.cumsum([0, *counts])
    lengths = np.array([*map(len, lists)])
    outer = _find_result(spec, parts, [*results[1 : first[1]]], lengths)
    levels, items = [results.index(outer)], [*itertools.chain.from_iterable(lists)]
    while isinstance(types[levels[-1]], SequenceType) and all(
        isinstance(x, list | tuple) for x in items
    ):
        levels.append(int(first[levels[-1]]))
        example = np.arange(len(lists)).repeat(lengths)
        inner = np.array([*map(len, items)], int)
        lengths = np.bincount(example, inner, len(lists)).astype(int)
        _find_result(spec, parts, [results[levels[-1]]], lengths)
        expected = _inner_lengths(spec, parts, constants, results[levels[-2]])
        if (wrong := np.flatnonzero(inner != expected)).size:
            k = int(wrong[0])
            raise ValueError(
                f'expected inner lists as long as the sequences in the result, one of '
                f'{expected[k]} items in example {example[k]}, got one of {inner[k]}'
            )
        items = [*itertools.chain.from_iterable(items)]
    return [layout(spec).results[results[k]] * len(parts) for k in levels]


def _find_result(
    spec: Spec, parts: Sequence[Array], results: list[int], lengths: Array
) -> int:
    """Return the first of `results` whose sequences have `lengths` items [examples].

    Raises:
      TypeError: `results` is empty.
      ValueError: no result has such numbers of items.
    """
    if not results:
        raise TypeError(
            'expected a schedule of a model whose result is, or holds, a sequence, got '
            'one of others: give targets [examples, ...] as an array'
        )
    for r in results:
        if (_lengths(spec, parts, r) == lengths).all():
            return r
    expected = _lengths(spec, parts, results[0])
    k = int(np.argmax(expected != lengths))
    raise ValueError(
        f'expected as many items as the result has, {expected[k]} of example {k}, got '
        f'{lengths[k]}'
    )


def _lengths(spec: Spec, parts: Sequence[Array], result: int) -> Array:
    """Return, per row of the batch, its number of items in `result` [examples]."""
    owners, rows = layout(spec).sections.owners[result], spec.capacity.examples
    counts = [np.bincount(owners.of(x), minlength=rows + 1)[:rows] for x in parts]
    lengths: Array = np.concatenate(counts)
    return lengths


def _inner_lengths(
    spec: Spec, parts: Sequence[Array], constants: Sequence[Arrays], result: int
) -> Array:
    """Return, per item in `result`, the length [items] of the first sequence in it."""
    program, sections = spec.program, layout(spec).sections
    leaves = leaf_types(program.results[result].type)
    column = [isinstance(x, SequenceType) for x in leaves].index(True)
    t, place = program.results[result].tensors[column], len(program.operations) + result
    lengths = []
    for indices, of_types in zip(parts, constants, strict=True):
        # Lengths are constants of the examples, which come behind those of the program.
        rows = sections.reads[place, column].of(indices)
        if mode_at(spec, (place, column)) is not ReadMode.INDEXED:
            rows = np.arange(shared_counts(program)[t], len(of_types[t]))
        owners = sections.owners[result].of(indices)
        real = rows[: len(owners)][owners < spec.capacity.examples]
        lengths.append(np.asarray(of_types[t])[real])
    return np.concatenate(lengths)
