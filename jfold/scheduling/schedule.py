# SPDX-License-Identifier: Apache-2.0
"""The `Schedule`: what the host makes of a batch, and all that the device sees of it.

One array of indices and the constants of each type. Trip counts are among the indices:
which programs are compiled depends on the `Spec` alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

from jfold.base.errors import expect
from jfold.base.functions import ratio
from jfold.base.tracebacks import api_boundary
from jfold.graph import Array
from jfold.ragged import Ragged
from jfold.scheduling.layout import layout
from jfold.scheduling.sections import Sections
from jfold.scheduling.shards import EVERYWHERE
from jfold.scheduling.spec import Capacity, Spec, SpecKey, of_one_shard
from jfold.scheduling.targets import lay_out
from jfold.scheduling.tiles import strategy_of
from jfold.types import TypeLike

T = TypeVar('T')


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """A batch, ready for the device: a pytree with a static, hashable spec.

    Attributes:
      indices: [size] int32, all indices and counts, in `sections`; [shards, size] if
        its examples are dealt to shards.
      constants: per type [capacity, *shape], or [shards, capacity, *shape].
      spec: what a compiled program depends on.
      seconds: how long building took; `None` after a pytree transformation.
      labels: by name of a `Metric` that is given labels, those of its rows in order
        [rows] object, real rows alone; of the shards that this process holds. `None`
        after a pytree transformation: they are no part of what is compiled.
    """

    indices: Array | jax.Array
    constants: tuple[Array | jax.Array, ...]
    spec: Spec
    seconds: float | None = None
    labels: Mapping[str, Array] | None = None

    def tree_flatten(self) -> tuple[tuple[Any, ...], SpecKey]:
        """For JAX: the arrays, and what is static."""
        return (self.indices, self.constants), self.spec.key

    @classmethod
    def tree_unflatten(cls, key: SpecKey, children: tuple[Any, Any]) -> Schedule:
        """For JAX: the inverse of `tree_flatten`."""
        indices, constants = children
        return cls(indices, constants, key.spec)

    @staticmethod
    @api_boundary
    def stack(schedules: Sequence[Schedule]) -> Schedule:
        """Schedules of one capacity with a leading axis, for `lax.scan` or `vmap`.

        `Model.schedules` makes such; others are of one capacity if their model has
        `precompile`d it. Works under `jit`, too.

        Raises:
          TypeError: `schedules` are none.
          ValueError: there are none, or their capacities, or models, differ.

        >>> import jax, jfold as jf
        >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
        >>> stacked = jf.Schedule.stack(model.schedules([[[1], [2, 3]], [[], [4]]]))
        >>> jax.vmap(lambda schedule: model.apply({}, schedule))(stacked).tolist()
        [[1.0, 5.0], [0.0, 4.0]]
        """
        is_several = isinstance(schedules, Sequence)
        fits = is_several and all(isinstance(x, Schedule) for x in schedules)
        hint = 'pass what `model.schedules(batches)` returns'
        expect('schedules', schedules, fits, 'a list of schedules', hint)
        kinds = list(dict.fromkeys(x.spec for x in schedules))
        if len(kinds) != 1:
            raise ValueError(
                'expected schedules of one model and capacity, got '
                f'{_unlike(kinds)}: make them together, by `model.schedules(batches)`'
            )
        host = all(isinstance(x, np.ndarray) for x in jax.tree.leaves(schedules))
        put = np.stack if host else jnp.stack
        made: Schedule = jax.tree.map(lambda *x: put(x), *schedules)
        return made

    @property
    def sections(self) -> Sections:
        """Where each part of `indices` lies."""
        return layout(self.spec).sections

    @property
    def capacity(self) -> Capacity:
        """How much has room in it, for `Model.reserve`."""
        return self.spec.capacity

    @property
    def examples(self) -> int:
        """How many rows the results have: examples, and spare rows if asked for."""
        return self.spec.capacity.results

    @functools.cached_property
    def parts(self) -> tuple[Schedule, ...]:
        """The schedules of the shards that this process holds; itself if it has none.

        Arrays of the host, to look at. What a part says of examples counts from its
        first.
        """
        check_one(self)
        if self.spec.shards is None:
            return (self,)
        arrays = zip(_parts(self.indices), *map(_parts, self.constants), strict=True)
        spec = of_one_shard(self.spec)
        return tuple(Schedule(x, tuple(others), spec) for x, *others in arrays)

    @property
    @api_boundary
    def mask(self) -> jax.Array:
        """Which rows of the results are examples [examples] bool.

        The others repeat the last example, without its gradient; see `mean`.
        """
        return shard_mapped(_mask, self)

    @api_boundary
    def mean(self, losses: object) -> Any:
        """The mean over the real examples alone, under `jit` and `grad` too.

        Args:
          losses: [examples, ...], or arrays of such shapes in a pytree: a row for each
            of the results.

        Returns:
          The mean over the first axis [...]; zero if there is no example.

        Raises:
          ValueError: there are not as many rows.

        >>> import jfold as jf
        >>> model = jf.compile(jf.Scalar())
        >>> schedule = model.schedule([1, 2], size=4)
        >>> float(schedule.mean(model.apply({}, schedule)))
        1.5
        """
        mask = self.mask
        return jax.tree.map(lambda x: _mean(jnp.asarray(x), mask), losses)

    @api_boundary
    def ragged(
        self, lists: Iterable[Iterable[Any]], type: TypeLike | None = None
    ) -> Ragged:
        """Lays out what goes with each item of a result that is a sequence: targets.

        So a model that learns to label sequences labels those that have no labels, too.

        Args:
          lists: for each example what goes with its items, lists of lists where items
            are sequences; for each row, or without spare rows. With batches,
            `[tags[i] for i in batch.indices]`.
          type: of what goes with an item; that of what is given when left out, and of a
            number of float32 where there is nothing.

        Returns:
          Arrays of NumPy with rows as those of the result, spare ones included. Where
          the result has several sequences, as those of the first that has such lengths.

        Raises:
          TypeError: items are no numbers of one shape, or the result has no sequence.
          ValueError: there are other numbers of lists or of items; or other processes
            have a part of the batch.

        >>> import jax, jfold as jf
        >>> model = jf.compile(jf.Map(jf.Scalar() >> jf.Function(jnp.square)))
        >>> schedule = model.schedule([[1, 2], [], [3]])
        >>> targets = schedule.ragged([[1, 3], [], [8]])
        >>> (model.apply({}, schedule) - targets).to_list()[2]
        [array(1., dtype=float32)]
        """
        if isinstance(self.indices, jax.core.Tracer):
            raise TypeError(
                'expected a schedule with known values, got a traced one: call '
                '`ragged` before, and pass what it returns to the function under `jit`'
            )
        spec = self.spec
        if spec.shards is not None and not spec.shards.is_local:
            raise ValueError(
                'expected a schedule of this process alone, got one of which others '
                'have a part: give targets with the data, in a field of each example'
            )
        parts = [np.asarray(x.indices) for x in self.parts]
        return lay_out(of_one_shard(spec), parts, lists, type)

    def owners(self, result: int) -> jax.Array:
        """Of each row of a result with any number of them, which row of the others its
        example is [rows] int32; `examples` for spare rows."""
        shards = self.spec.shards

        def of_one(one: Schedule) -> jax.Array:
            found = jnp.asarray(one.sections.owners[result].of(one.indices))
            if shards is None:
                return found
            before = lax.axis_index(shards.axes) * one.examples
            return jnp.where(found < one.examples, found + before, self.examples)

        return shard_mapped(of_one, self)

    @property
    def depth(self) -> int:
        """How many levels run, those of one component after those of another."""
        return int(self.depths.sum())

    @property
    def depths(self) -> Array:
        """How many levels of each component run [components], in the shard that has
        most; of steps, if their number is fixed."""
        of_parts = [x.sections.header.depths.of(x.indices) for x in self.parts]
        return np.asarray(np.max(of_parts, axis=0))

    @property
    def counts(self) -> Array:
        """Nodes per operation [operations]; of the shards that this process holds."""
        of_parts = [x.sections.header.counts.of(x.indices) for x in self.parts]
        return np.asarray(np.sum(of_parts, axis=0))

    def tiles(self, operation: int) -> Array:
        """Per level of its component [depth, 2 + widths]: first row, end, then tiles
        per width; of a schedule without shards."""
        places = layout(self.spec)
        widths, c = places.widths[operation], places.component[operation]
        if not self.spec.capacity.rows[operation]:
            return np.zeros((0, 2 + len(widths)), np.int32)
        table = np.asarray(self.sections.tiles[c].of(self.indices))
        first = places.column[operation]
        table = table[: int(self.depths[c]), first : first + 2]
        (empty,) = np.asarray(self.sections.header.empty.of(self.indices)).tolist()
        tiles = strategy_of(self.spec).tiles(table, widths, places.trips[c], empty)
        return np.concatenate([table, tiles], axis=1)

    @property
    def stacked(self) -> tuple[int, ...]:
        """The leading axes that `stack` has made; none of the schedule of a batch."""
        own = 1 if self.spec.shards is None else 2
        return np.shape(self.indices)[:-own]

    def __repr__(self) -> str:
        shards = f', {shards.count} shards' if (shards := self.spec.shards) else ''
        return f'Schedule({self.examples} examples{shards}, {self._told()})'

    def _told(self) -> str:
        """What it prints of its arrays."""
        if self.stacked:
            return f'stacked {list(self.stacked)}'
        try:
            return f'{int(self.counts.sum())} nodes, depth {self.depth}'
        except (TypeError, ValueError, jax.errors.JAXTypeError):
            return 'traced'


def check_one(schedule: Schedule) -> None:
    """Refuses what `Schedule.stack` has made.

    Raises:
      ValueError: it is of several batches.
    """
    if schedule.stacked:
        got = f'{list(schedule.stacked)} of them stacked'
        raise ValueError(
            f'expected `schedule` as that of one batch, got {got}: take one after '
            'another by `jax.lax.scan`, or all at once by `jax.vmap`'
        )


def _mean(losses: jax.Array, mask: jax.Array) -> jax.Array:
    """Of losses [examples, ...], whose real rows are in a mask [examples]."""
    if losses.shape[:1] != mask.shape:
        raise ValueError(
            f'expected losses [{len(mask)}, ...], one for each row of the results, got '
            f'{losses.dtype}{list(losses.shape)}: leave the mean to `mean`'
        )
    real = mask.reshape(mask.shape + (1,) * (losses.ndim - 1))
    return ratio(jnp.where(real, losses, 0).sum(0), mask.sum())


def _mask(schedule: Schedule) -> jax.Array:
    rows = jnp.arange(schedule.examples, dtype=jnp.int32)
    return rows < schedule.sections.header.examples.of(schedule.indices)


def on_device(schedule: Schedule) -> Schedule:
    """With arrays where they are used, but for those of 64 bits, which JAX may know in
    the caller's thread alone."""
    shards = schedule.spec.shards
    where = None if shards is None else shards.sharding

    def moved(x: jax.Array | Array) -> jax.Array | Array:
        wide = x.dtype.name.endswith(('64', '128'))
        is_there = where is not None and isinstance(x, jax.Array)
        return x if wide or is_there else jax.device_put(x, where)

    result: Schedule = jax.tree.map(moved, schedule)
    return replace(result, seconds=schedule.seconds, labels=schedule.labels)


# ---- shards --------------------------------------------------------------------------


def _parts(x: Array | jax.Array) -> list[Array]:
    """What this process holds of an array [shards, ...], a shard each."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return list(np.asarray(x))
    found = {each.index[0].start or 0: each.data for each in x.addressable_shards}
    return [row for _, data in sorted(found.items()) for row in np.asarray(data)]


def shard_mapped(fn: Callable[..., T], schedule: Schedule, *others: Any) -> T:
    """A function of the schedule of each shard, run where that is.

    Args:
      fn: takes a schedule, and the others as they are; gives arrays [rows, ...].

    Returns:
      What it gives [shards * rows, ...], those of one shard after those of another.
    """
    check_one(schedule)
    shards, spec = schedule.spec.shards, schedule.spec
    if shards is None:
        return _alike(fn, schedule, *others)

    def of_one(others: Any, indices: jax.Array, constants: tuple[jax.Array, ...]) -> T:
        own = tuple(x[0] for x in constants)
        return fn(Schedule(indices[0], own, of_one_shard(spec)), *others)

    run = jax.shard_map(
        of_one,
        mesh=shards.mesh,
        in_specs=(EVERYWHERE, shards.split, shards.split),
        out_specs=shards.split,
        axis_names=set(shards.axes),
    )
    arrays = jax.tree.map(shards.parted, (schedule.indices, schedule.constants))
    others = jax.tree.map(lambda x: shards.alike(shards.whole(x)), others)
    result = run(others, *arrays)
    made: T = jax.tree.map(lambda x: shards.alike(x, shards.split), result)
    return made


def _alike(fn: Callable[..., T], *given: Any) -> T:
    """What a function gives, on all devices of a mesh whose types say how arrays lie:
    with such types JAX would not let rows be written into buffers."""
    mesh = jax.sharding.get_abstract_mesh()
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    axes = {axis for axis, type_ in pairs if type_ == AxisType.Explicit}
    if not axes:
        return fn(*given)
    run = jax.shard_map(fn, in_specs=EVERYWHERE, out_specs=EVERYWHERE, axis_names=axes)
    alike = jax.sharding.reshard(given, EVERYWHERE)  # type: ignore[no-untyped-call]
    result: T = run(*alike)
    return result


def abstract(spec: Spec) -> Schedule:
    """A schedule of shapes and types alone, for compiling ahead of time."""
    struct: Any = jax.ShapeDtypeStruct
    shards = spec.shards
    if shards is not None:
        struct = functools.partial(struct, sharding=shards.sharding)
    before = () if shards is None else (shards.count,)
    constants = tuple(
        struct((*before, rows, *t.shape), jax.dtypes.canonicalize_dtype(t.dtype))
        for rows, t in zip(spec.capacity.constants, spec.program.types, strict=True)
    )
    size = layout(spec).sections.size
    return Schedule(struct((*before, size), np.int32), constants, spec)


def _unlike(kinds: list[Spec]) -> str:
    """In what the first two of several kinds of schedules differ, in a line."""
    if not kinds:
        return 'none'
    first, other = kinds[:2]
    if first.program is not other.program:
        return 'those of two models'
    dimensions = first.capacity.dimensions(), other.capacity.dimensions()
    pairs = zip(*dimensions, strict=True)
    found = [f'{name} {a} and {b}' for (name, a), (_, b) in pairs if a != b]
    return f'some with {", ".join(found[:4]) or "other shards"}'
