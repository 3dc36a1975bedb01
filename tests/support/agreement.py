# SPDX-License-Identifier: Apache-2.0
"""Comparing a model with its eager twin: values, metrics and gradients."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from typing import Any
from unittest import mock

import chex
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
from expression_parts import tables
from jax.sharding import NamedSharding

import jfold as jf
from jfold.base.arrays import masked
from jfold.language import eager_twin

SALTS = 97  # how many ways of weighing there are


def projection(shape: tuple[int, ...], dtype: Any) -> Any:
    """Weights that differ from entry to entry, the same at every call."""
    size = math.prod(shape)
    return jnp.asarray(np.cos(1.7 * np.arange(size)).reshape(shape), dtype)


def weighted(tree: Any, salt: int = 0) -> Any:
    """A number that depends on every float of a value in its own way, and in a list on
    the place of each item."""
    leaves, lists = parted(tree)
    total = jnp.zeros(())  # as wide as JAX has floats, though there be none to add
    for i, x in enumerate(leaves):
        weights = projection((SALTS, *jnp.shape(x)), x.dtype)
        total += jnp.sum(jnp.asarray(x) * weights[(salt + i) % SALTS])
    for items in lists:
        for place, item in enumerate(items):
            total += weighted(item, salt + 3 * place + 1)
    return total


def weighted_rows(tree: Any, salts: Any, real: Any) -> Any:
    """The sum of that over the rows of a batch that are real [rows], each with a salt
    [rows]."""
    leaves, lists = parted(tree)
    total = jnp.zeros(())
    for i, x in enumerate(leaves):
        weights = projection((SALTS, *x.shape[1:]), x.dtype)
        total += jnp.sum(masked(x * weights[(salts + i) % SALTS], real))
    for each in lists:
        total += weighted_rows(each.values, salts_of_items(each, salts), each.mask)
    return total


def salts_of_items(sequences: jf.Ragged, salts: Any) -> Any:
    """The salts of the items [rows] of sequences with salts [sequences]."""
    ends = jnp.cumsum(sequences.lengths)
    rows = jnp.arange(len(sequences.mask))
    owner = jnp.searchsorted(ends, rows, side='right', method='compare_all')
    first = (ends - sequences.lengths).at[owner].get(mode='fill', fill_value=0)
    return salts.at[owner].get(mode='fill', fill_value=0) + 3 * (rows - first) + 1


def parted(tree: Any) -> tuple[list[Any], list[Any]]:
    """The floats of a value, and the sequences in it."""
    leaves = jax.tree.leaves(tree, is_leaf=is_sequence)
    lists = [x for x in leaves if is_sequence(x)]
    return [x for x in leaves if not is_sequence(x) and is_float(x)], lists


def is_sequence(x: Any) -> bool:
    """Whether `eval`, or `apply`, gives this for sequences."""
    return isinstance(x, list | jf.Ragged)


def is_float(x: Any) -> bool:
    """Whether an array, or what is to be one, holds floats."""
    dtype = x.dtype if hasattr(x, 'dtype') else jnp.asarray(x).dtype
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def of_metrics(metrics: Any, axes: int) -> Any:
    """A number made of rows of metrics, which stand along the first axes."""
    floats = [x for x in jax.tree.leaves(metrics) if is_float(x)]
    parts = [jnp.sum(x * projection(jnp.shape(x)[axes:], x.dtype)) for x in floats]
    return sum(parts, jnp.zeros(()))


def batched_loss(
    params: Any,
    model: jf.Model,
    schedule: jf.Schedule,
    rngs: Any = None,
    external: Any = None,
    salts: Any = None,
) -> Any:
    """A number made of everything that `apply` returns, and what it returns.

    Its rows are weighed by the numbers of their examples, `salts` [examples], if those
    are not 0, 1, ...
    """
    made = model.apply(params, schedule, external, rngs=rngs)
    values, metrics = made if model.program.metric_results else (made, {})
    if salts is None:
        salts = jnp.arange(schedule.examples)
    total = weighted_rows(values, salts, schedule.mask)
    total += of_metrics([metric.values for metric in metrics.values()], 1)
    return total, (values, metrics)


def eager_loss(
    params: Any,
    model: jf.Model,
    example: Any,
    i: int,
    rngs: Any = None,
    external: Any = None,
) -> Any:
    """What the example at place `i` of a batch adds to that, by evaluating it."""
    made = model.eval(example, params, external, rngs=rngs, id=i)
    value, metrics = made if model.program.metric_results else (made, {})
    metrics = {name: values_of(rows) for name, rows in metrics.items()}
    return weighted(value, i) + of_metrics(metrics, 0), (value, metrics)


# Of parameters and arrays from elsewhere, of which some are ints. Compiling dominates
# these tests, so it is asked not to try hard.
_options: Any = {'xla_backend_optimization_level': 0}
_batched = jax.jit(batched_loss, static_argnums=1, compiler_options=_options)
_batched_grad = jax.jit(
    jax.value_and_grad(batched_loss, (0, 4), has_aux=True, allow_int=True),
    static_argnums=1,
    compiler_options=_options,
)
_eager = jax.value_and_grad(eager_loss, (0, 5), has_aux=True, allow_int=True)


def _eager_grad(
    params: Any, model: jf.Model, example: Any, i: int, rngs: Any, external: Any
) -> Any:
    """The same of one example, by NumPy, for XLA would compile every operation."""
    with mock.patch.object(eager_twin.Arrays, 'call', _traced_once):
        return interpreter.called(
            lambda p, r, x: _eager(p, model, example, i, r, x), params, rngs, external
        )


_call = eager_twin.Arrays.call


def _traced_once(self: eager_twin.Arrays, node: Any, x: Any) -> Any:
    """Calls a layer, of which JAX keeps what it traced for inputs of a type."""
    names = [name for name in ('call', 'evaluating') if getattr(node.layer, name)]
    calls = {name: jax.jit(getattr(node.layer, name)) for name in names}
    traced = copy.copy(node)
    traced.layer = dataclasses.replace(node.layer, **calls)
    return _call(self, traced, x)


def parameters(model: jf.Model) -> Any:
    """Parameters that are drawn by NumPy, for XLA would compile each draw."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(x.dtype), shapes)


def agree_in_processes(
    model: jf.Model, params: Any, examples: list[Any], own: list[Any], sharding: Any
) -> float:
    """What several processes give of a batch, each of its own examples of it, equals
    what one device gives of all, in float64; the first of them compares it.

    Returns a number made of all.
    """
    given = None, tables(model)
    dealt = model.schedule(own, size=8, sharding=sharding)
    mask = _from_all(_mask(dealt))
    found = _batched_grad(params, model, dealt, *given, np.cumsum(mask) - 1)
    (total, results), grads = jax.tree.map(_from_all, found)
    if jax.process_index():
        return float(total)
    schedule = model.schedule(examples, size=8)
    (wanted, alone), want = _batched_grad(params, model, schedule, *given)
    close(total, wanted, 1e-11)
    close(floats(grads), floats(want), 1e-12)
    rows = of_rows(*results, np.flatnonzero(mask).tolist())
    same_results(*alone, rows, 1e-12)
    return float(total)


_mask = jax.jit(lambda schedule: schedule.mask)


def _from_all(x: Any) -> Any:
    """An array of which this process has a part, as it is in all."""
    if x.dtype == jax.dtypes.float0:
        return x
    if not x.is_fully_replicated:
        whole = NamedSharding(x.sharding.mesh, jax.P())
        x = jax.jit(jnp.copy, out_shardings=whole)(x)
    return np.asarray(x)


def agree(
    model: jf.Model,
    params: Any,
    examples: list[Any],
    rtol: float = 1e-5,
    forward: bool = False,
    rngs: Any = None,
    **options: Any,
) -> Any:
    """Values, metrics and gradients equal those of the eager twin, also the gradients
    of what `External` blocks pick rows of, for which there are tables.

    With `forward`, also those of `apply` where no gradient is asked for. `rngs` are
    what functions draw with. The options are those of `Model.schedule`. Returns what
    `apply` gives.
    """
    schedule = model.schedule(examples, **options)
    given = rngs, tables(model)
    same_labels(model, params, examples, schedule, *given)
    (total, results), grads = _batched_grad(params, model, schedule, *given)
    each = [_eager_grad(params, model, x, i, *given) for i, x in enumerate(examples)]
    found = [made for (_, made), _ in each]
    same_results(*jax.device_get(results), found, rtol)
    add_up(total, [loss for (loss, _), _ in each], 10 * rtol)
    add_up(floats(grads), [floats(grad) for _, grad in each], rtol)
    if forward:
        _, made = _batched(params, model, schedule, *given)
        same_results(*jax.device_get(made), found, rtol)
    return results if model.program.metric_results else results[0]


def floats(grads: Any) -> list[Any]:
    """The gradients of floats."""
    leaves = jax.tree.leaves(grads)
    return [x for x in leaves if x.dtype != jax.dtypes.float0]


def same_results(values: Any, metrics: Any, found: list[Any], rtol: float) -> None:
    """A batch's values and metrics are those of its examples."""
    rows = of_rows(values, metrics, range(len(found)))
    for (mine, own), (value, theirs) in zip(rows, found, strict=True):
        close(mine, value, rtol)
        for name, each in own.items():
            same_rows(each, values_of(theirs[name]), rtol)


def of_rows(values: Any, metrics: Any, rows: Iterable[int]) -> list[Any]:
    """Of some rows of a batch the value, and the rows of each metric in order."""
    for metric in metrics.values():
        assert (np.diff(np.asarray(metric.example)[metric.mask]) >= 0).all()
    lists = by_example(values)
    return [
        (
            jax.tree.map(lambda x, i=i: x[i], lists, is_leaf=is_sequence),
            {name: _rows_of(metric, i) for name, metric in metrics.items()},
        )
        for i in rows
    ]


def _rows_of(metric: Any, i: int) -> list[Any]:
    """Those of one example."""
    mine = np.asarray(metric.mask & (metric.example == i))
    here = jax.tree.map(lambda x: np.asarray(x)[mine], metric.values)
    return [jax.tree.map(lambda x, k=k: x[k], here) for k in range(mine.sum())]


def values_of(rows: list[Any]) -> list[Any]:
    """What a metric was given, without labels, which are words."""
    return [row[0] if _has_label(row) else row for row in rows]


def labels_of(rows: list[Any]) -> list[str]:
    """The labels."""
    return [row[1] for row in rows if _has_label(row)]


def _has_label(row: Any) -> bool:
    return isinstance(row, tuple) and isinstance(row[-1], str)


def same_labels(
    model: jf.Model,
    params: Any,
    examples: list[Any],
    schedule: jf.Schedule,
    rngs: Any,
    external: Any,
) -> None:
    """Labels are those of the examples, one after another."""
    if not schedule.labels:
        return
    found = [
        model.eval(x, params, external, rngs=rngs, id=i)[1]
        for i, x in enumerate(examples)
    ]
    for name, labels in schedule.labels.items():
        assert labels.tolist() == [x for rows in found for x in labels_of(rows[name])]


def by_example(values: Any) -> Any:
    """What `apply` gives, with a list by example in the place of each leaf."""

    def listed(x: Any) -> list[Any]:
        return x.to_list() if isinstance(x, jf.Ragged) else [*np.asarray(x)]

    return jax.tree.map(listed, values, is_leaf=is_sequence)


def same_rows(left: list[Any], right: list[Any], rtol: float) -> None:
    """Both hold the same rows, in the same order."""
    assert len(left) == len(right)
    for row, other in zip(left, right, strict=True):
        close(row, other, 10 * rtol)


def add_up(total: Any, terms: list[Any], rtol: float) -> None:
    """A pytree is the sum of others, of which much may cancel, but for rounding."""
    expected = jax.tree.map(lambda *x: sum(x[1:], x[0]), *terms)
    sizes = jax.tree.map(lambda *x: sum(map(np.abs, x)), *terms)
    close(total, expected, rtol, sizes)


def close(left: Any, right: Any, rtol: float, sizes: Any = None) -> None:
    """Two pytrees agree, relative to the largest entry of each array (of `sizes`)."""
    left, right = (jax.tree.map(np.asarray, x) for x in (left, right))
    chex.assert_trees_all_equal_shapes_and_dtypes(left, right)
    lefts, rights = map(jax.tree.leaves, (left, right))
    scales = jax.tree.leaves(right if sizes is None else sizes)
    for a, b, size in zip(lefts, rights, scales, strict=True):
        if a.dtype.kind in 'iub':
            np.testing.assert_array_equal(a, b)
            continue
        scale = max(float(np.abs(size).max(initial=0)), 1e-2)
        wide = 'complex128' if a.dtype.kind == 'c' else 'float64'
        difference = np.abs(a.astype(wide) - b.astype(wide)).max(initial=0)
        assert difference <= rtol * scale, f'{a} is not {b}'  # nor if it is no number
