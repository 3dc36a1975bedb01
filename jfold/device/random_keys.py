# SPDX-License-Identifier: Apache-2.0
"""The random keys of a batch: one for every node that asks for one.

A key is derived from the seed of its stream (a name such as 'dropout'), the identity of
its example, and its number among the keys of that stream in the example, which the
example alone decides. So no draw depends on other examples of the batch, nor on how the
batch is run.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from jfold.base.arguments import expect
from jfold.base.keys import Rngs, check_key, node_key
from jfold.base.memo import memoized
from jfold.program.operations import Layer, Operations
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.shards import Shards
from jfold.scheduling.spec import Spec
from jfold.types import KeyType


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Draws:
    """The seeds and the identities of examples that random keys are derived from.

    Attributes:
      seeds: by name of the stream [2] uint32.
      ids: [examples] uint32, the identity of each example; if left out, its row index.
      evaluates: whether nothing is drawn.
    """

    seeds: Mapping[str, Array]
    ids: Array | None = None
    evaluates: bool = field(default=False, metadata={'static': True})


def make_draws(
    layers: Sequence[Layer],
    examples: int,
    rngs: Rngs,
    ids: ArrayLike | None = None,
    deterministic: bool = False,
) -> Draws | None:
    """Check the arguments; return the `Draws`, or `None` if no layer draws.

    Args:
      layers: of the program, with the names of the streams that they draw from.
      examples: number of rows of the results.
      rngs: one key, or a key by name of the stream.
      ids: [examples] integers, the identity of each example; by default its row index.
      deterministic: whether nothing is drawn.

    Raises:
      TypeError: a stream has no key, `rngs` holds something else, `ids` are no
        integers, or `deterministic` is no bool.
      ValueError: there are more or fewer `ids` than `examples`.
    """
    # All are checked even if no layer draws: a mistake shows before dropout is added.
    layers = [layer for layer in layers if layer.rngs]
    for key in rngs.values() if isinstance(rngs, Mapping) else (rngs,):
        if key is not None:
            check_key('rngs', key, 'a PRNG key, or a dict of keys')
    known_ids = None if ids is None else _identities(ids, examples)
    is_known = isinstance(deterministic, bool | np.bool_)
    unread = not layers and isinstance(deterministic, jax.core.Tracer)
    hint = 'pass `functools.partial(model.apply, deterministic=True)`'
    expect(
        'deterministic', deterministic, is_known or unread, 'a bool, not traced', hint
    )
    if not layers:
        return None
    if deterministic:
        return Draws({}, None, evaluates=True)
    seeds = {name: _seed(layer, name, rngs) for layer in layers for name in layer.rngs}
    # Identities of 64 bits, which JAX may not have, are taken modulo 2**32.
    return Draws(
        seeds, None if known_ids is None else jnp.asarray(known_ids.astype('uint32'))
    )


def _seed(layer: Layer, name: str, rngs: Rngs) -> Array:
    """Return the seed [2] uint32 of the stream `name` of random numbers.

    Raises:
      TypeError: `rngs` has no key for the stream; the message names the layer.
    """
    key = rngs.get(name, rngs.get('default')) if isinstance(rngs, Mapping) else rngs
    if key is None:
        got = 'none' if rngs is None else f'those of {list(rngs)}'
        raise TypeError(
            f'layer {layer.name!r}: expected a key for what it draws of {name!r}, got '
            f'{got}: pass `rngs=jax.random.key(0)`, or one a stream, '
            f'`rngs={{{name!r}: key}}`; or `deterministic=True` to draw nothing'
        )
    if not isinstance(rngs, Mapping):  # so that streams differ
        key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    # Two numbers, not a key: the key data of some implementations are larger, but rows
    # of buffers have a fixed size.
    return jax.random.bits(key, (2,), 'uint32')


def _identities(ids: ArrayLike, examples: int) -> Array | np.ndarray[Any, Any]:
    """Return `ids` as an array of integers [examples], checked.

    Raises:
      TypeError: they are no integers.
      ValueError: their shape is not [examples].
    """
    identities = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    if not jnp.issubdtype(identities.dtype, np.integer):
        got = f'{identities.dtype}{list(identities.shape)}'
        raise TypeError(f'expected `ids` as integers, got {got}')
    if identities.shape != (examples,):
        raise ValueError(
            f'expected `ids` of {examples} rows, spare ones too, got '
            f'{list(identities.shape)}: pass `batch.indices`'
        )
    return identities


def with_keys(
    schedule: Schedule, draws: Draws | None, shards: Shards | None
) -> Schedule:
    """Return a shard's `schedule`, with random keys put in as constants.

    Args:
      draws: `None` to return `schedule` as it is; if `draws.evaluates`, its program is
        replaced by one that draws nothing.
    """
    if draws is None:
        return schedule
    if draws.evaluates:
        return replace(schedule, spec=evaluating(schedule.spec))
    # A shard counts its rows from 0; those of two shards must not draw the same.
    before = 0 if shards is None else lax.axis_index(shards.axes) * schedule.examples
    constants = tuple(
        _keys(x, draws.seeds[t.name], draws.ids, before)
        if isinstance(t, KeyType)
        else x
        for t, x in zip(schedule.spec.program.types, schedule.constants, strict=True)
    )
    return replace(schedule, constants=constants)


def _keys(
    places: ArrayLike, seed: Array, ids: Array | None, before: ArrayLike
) -> Array:
    """Derive random keys [n, 2] uint32, one for each of `places`, from a seed.

    Args:
      places: [n, 2], row of the example, and number of the key in it.
      ids: [examples] uint32, or `None` for row indices.
      before: [] number of examples in the shards before this one.
    """
    #     places [row, number]        key
    #     0 0   0 1   0 2             seed + id of row 0 + 0, 1, 2
    #     1 0   1 1                   seed + id of row 1 + 0, 1
    # so an example draws the same wherever it stands, if it has an id of its own.
    rows, numbers = jnp.asarray(places).T
    rows = rows + jnp.asarray(before, rows.dtype)
    # All rows that are used are within `ids`; mode 'clip' saves the checks of the
    # default.
    of = rows if ids is None else ids.at[rows].get(mode='clip')
    return jax.vmap(node_key, (None, 0, 0))(seed, of, numbers)


@memoized
def evaluating(spec: Spec) -> Spec:
    """Return a spec of the same shapes, whose program draws no random numbers."""
    return spec.replaced(program=without_draws(spec.program))


@memoized
def without_draws(program: Operations) -> Operations:
    """Return `program` with layers that draw no random numbers."""
    operations = tuple(
        replace(
            operation, layer=replace(operation.layer, call=operation.layer.evaluating)
        )
        if operation.layer.evaluating is not None
        else operation
        for operation in program.operations
    )
    return replace(program, operations=operations)
