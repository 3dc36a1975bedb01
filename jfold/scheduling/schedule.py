# SPDX-License-Identifier: Apache-2.0
"""`Schedule`: a batch as arrays, all that the device sees of it.

The arrays are one int32 array of indices, and one array of constants for each tensor
type. Trip counts of loops are among the indices, so compiled programs depend on the
`Spec` alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding

from jfold.base.arguments import expect
from jfold.base.functions import mean_of_rows
from jfold.base.late import Displayed
from jfold.base.tracebacks import api_boundary
from jfold.graph import Array
from jfold.ragged import Ragged
from jfold.scheduling.index_array import Sections
from jfold.scheduling.layout import layout
from jfold.scheduling.shards import EVERYWHERE
from jfold.scheduling.spec import Capacity, Spec, SpecKey, of_one_shard
from jfold.scheduling.targets import lay_out_targets
from jfold.scheduling.tiles import strategy_at
from jfold.types import TypeLike

T = TypeVar('T')


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False, repr=False)
class Schedule(Displayed):
    """A batch, ready for the device: a pytree with a static, hashable spec.

    Attributes:
      indices: [size] int32, all indices and counts, in `sections`; [shards, size] if
        examples are split over shards.
      constants: per tensor type [capacity, *shape], or [shards, capacity, *shape].
      spec: all that a compiled program depends on.
      seconds: the time that building took; `None` after a pytree transformation.
      labels: by name of a `Metric` with labels, the labels of its real rows in order,
        [rows] object; of the shards that this process holds. `None` after a pytree
        transformation, since labels are no part of what is compiled.
    """

    indices: Array | jax.Array
    constants: tuple[Array | jax.Array, ...]
    spec: Spec
    seconds: float | None = None
    labels: Mapping[str, Array] | None = None

    def tree_flatten(self) -> tuple[tuple[Any, ...], SpecKey]:
        """Return the arrays, and the key of the spec as the static part, for JAX."""
        return (self.indices, self.constants), self.spec.key

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], SpecKey]:
        """Return the arrays beside keys of their attributes, and the spec's key."""
        names = map(jax.tree_util.GetAttrKey, ('indices', 'constants'))
        parts, key = self.tree_flatten()
        return tuple(zip(names, parts, strict=True)), key

    @classmethod
    def tree_unflatten(cls, key: SpecKey, children: tuple[Any, Any]) -> Schedule:
        """Return a schedule of static part `key` and arrays `children`, for JAX."""
        indices, constants = children
        return cls(indices, constants, key.spec)

    @staticmethod
    @api_boundary
    def stack(schedules: Sequence[Schedule]) -> Schedule:
        """Stack schedules of one capacity on a leading axis, for `lax.scan` or `vmap`.

        `Model.schedules` makes schedules of one capacity; so does `Model.schedule` if
        the model has `precompile`d the capacity. `stack` also works under `jit`.

        Raises:
          TypeError: `schedules` is no list of schedules.
          ValueError: the list is empty, or capacities or models differ.

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
        specs = list(dict.fromkeys(x.spec for x in schedules))
        if len(specs) != 1:
            raise ValueError(
                'expected schedules of one model and capacity, got '
                f'{_diff(specs)}: make them together, by `model.schedules(batches)`'
            )
        host = all(isinstance(x, np.ndarray) for x in jax.tree.leaves(schedules))
        put = np.stack if host else jnp.stack
        stacked: Schedule = jax.tree.map(lambda *x: put(x), *schedules)
        return stacked

    @property
    def sections(self) -> Sections:
        """The place and shape of each section of `indices`."""
        return layout(self.spec).sections

    @property
    def capacity(self) -> Capacity:
        """The capacity that the schedule was made for, to pass to `Model.reserve`."""
        return self.spec.capacity

    @property
    def examples(self) -> int:
        """The number of rows of the results: examples, and spare ones if asked for."""
        return self.spec.capacity.results

    @functools.cached_property
    def parts(self) -> tuple[Schedule, ...]:
        """The schedules of this process's shards; without shards, the schedule alone.

        With shards, arrays are NumPy's, to look at, and number the examples of each
        shard from 0. Raises ValueError if the schedule is stacked.
        """
        check_not_stacked(self)
        if self.spec.shards is None:
            return (self,)
        arrays = zip(_parts(self.indices), *map(_parts, self.constants), strict=True)
        spec = of_one_shard(self.spec)
        return tuple(Schedule(x, tuple(others), spec) for x, *others in arrays)

    @property
    @api_boundary
    def mask(self) -> jax.Array:
        """A mask [examples] bool of result rows that are real examples, not spare rows.

        Spare rows repeat the last example, without its gradient; see `mean`. Raises
        ValueError if the schedule is stacked.
        """

        def of_one(one: Schedule) -> jax.Array:
            rows = jnp.arange(one.examples, dtype=jnp.int32)
            return rows < one.sections.examples.of(one.indices)

        return shard_mapped(of_one, self)

    @api_boundary
    def mean(self, losses: object) -> Any:
        """Return the mean of `losses` over real examples, also under `jit` and `grad`.

        Args:
          losses: [examples, ...], or a pytree of such arrays; a row for each row of the
            results.

        Returns:
          The mean over the first axis [...], or a pytree of means; zero if there is no
          example.

        Raises:
          ValueError: the number of rows differs, or the schedule is stacked.

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
        """Arrange targets, one per sequence item, in the rows of the result's items.

        Targets are no part of examples, so a model that learns to label sequences can
        be applied to sequences without labels.

        Args:
          lists: for each example a list with the target of each item, nested where
            items are sequences; one list per row of the results, or per example without
            spare rows. With batches, `[tags[i] for i in batch.indices]`.
          type: the type of a target; inferred if left out, float32 without targets.

        Returns:
          NumPy arrays whose rows match those of the result, spare ones included. If
          the result has several sequences, they match the first one whose lengths are
          those of `lists`.

        Raises:
          TypeError: items are no numbers of one shape, `type` is no tensor's, the
            result has no sequence, or the schedule is traced by JAX.
          ValueError: the numbers of lists or of items differ from those of the result,
            or other processes have a part of the batch.

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
        constants = [x.constants for x in self.parts]
        return lay_out_targets(of_one_shard(spec), parts, constants, lists, type)

    def owners(self, result: int) -> jax.Array:
        """Return the index of the example of each row of a result [rows] int32.

        Spare rows have the index `examples`.

        Args:
          result: the number of a result whose number of rows differs between batches.
        """
        shards = self.spec.shards

        def of_one(one: Schedule) -> jax.Array:
            owners = jnp.asarray(one.sections.owners[result].of(one.indices))
            if shards is None:
                return owners
            before = lax.axis_index(shards.axes) * one.examples
            return jnp.where(owners < one.examples, owners + before, self.examples)

        return shard_mapped(of_one, self)

    @property
    def depth(self) -> int:
        """The levels of all components together; steps if the strategy is 'fixed'."""
        return int(self.depths.sum())

    @property
    def depths(self) -> Array:
        """The levels per component, or steps if 'fixed' [components] int32.

        Over shards it is the maximum.
        """
        of_parts = [x.sections.depths.of(x.indices) for x in self.parts]
        return np.asarray(np.max(of_parts, axis=0))

    @property
    def counts(self) -> Array:
        """The number of nodes of each operation, in this process's shards.

        [operations] int; a node is one application of an operation.
        """
        of_parts = [x.sections.counts.of(x.indices) for x in self.parts]
        return np.asarray(np.sum(of_parts, axis=0))

    def tiles(self, operation: int) -> Array:
        """Return which rows an operation runs on each level, and in how many tiles.

        [depth, 2 + widths] int: first row, end row, number of tiles of each width;
        no rows if the capacity has none of the operation. Only without shards.

        Raises ValueError if there is no such operation.
        """
        count = len(self.spec.program.operations)
        if operation not in range(count):
            raise ValueError(f'expected one of {count} operations, got {operation!r}')
        places = layout(self.spec)
        widths, c = places.widths[operation], places.component[operation]
        if not self.spec.capacity.rows[operation]:
            return np.zeros((0, 2 + len(widths)), np.int32)
        table = np.asarray(self.sections.tiles[c].of(self.indices))
        first = places.column[operation]
        table = table[: int(self.depths[c]), first : first + 2]
        (empty,) = np.asarray(self.sections.empty.of(self.indices)).tolist()
        strategy = strategy_at(self.spec, operation)
        tiles = strategy.tiles(table, widths, places.trips[c], empty)
        return np.concatenate([table, tiles], axis=1)

    @property
    def stacked(self) -> tuple[int, ...]:
        """The shape of the leading axes that `stack` has added; () if none."""
        axes = 1 if self.spec.shards is None else 2
        return np.shape(self.indices)[:-axes]

    def __repr__(self) -> str:
        shards = f', {shards.count} shards' if (shards := self.spec.shards) else ''
        return f'Schedule({self.examples} examples{shards}, {self._summary()})'

    def _summary(self) -> str:
        """Return a phrase for `repr`: nodes and depth, 'traced', or 'stacked ...'."""
        if self.stacked:
            return f'stacked {list(self.stacked)}'
        try:
            return f'{int(self.counts.sum())} nodes, depth {self.depth}'
        except (TypeError, ValueError, jax.errors.JAXTypeError):
            return 'traced'


def check_not_stacked(schedule: Schedule) -> None:
    """Raise ValueError if a schedule has leading axes that `stack` has added."""
    if schedule.stacked:
        got = f'{list(schedule.stacked)} of them stacked'
        raise ValueError(
            f'expected `schedule` as that of one batch, got {got}: take one after '
            'another by `jax.lax.scan`, or all at once by `jax.vmap`'
        )


def check_known(schedule: Schedule) -> None:
    """Raise TypeError if the values of a schedule are not known, as under `jit`.

    Raise ValueError if it is stacked.
    """
    check_not_stacked(schedule)
    is_traced = isinstance(schedule.indices, jax.core.Tracer)
    if is_traced or not isinstance(schedule.indices, np.ndarray | jax.Array):
        raise TypeError(
            'expected a schedule with known values, got '
            f'{"a traced one" if is_traced else "shapes alone"}: call this outside of '
            '`jax.jit`'
        )


def _mean(losses: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean [...] of losses [examples, ...] in the rows of a mask [examples].

    Raises ValueError if the numbers of rows differ.
    """
    if losses.shape[:1] != mask.shape:
        raise ValueError(
            f'expected losses [{len(mask)}, ...], one for each row of the results, got '
            f'{losses.dtype}{list(losses.shape)}: leave the mean to `mean`; items of '
            'sequences have one of their own, `Ragged.mean`'
        )
    real = mask.reshape(mask.shape + (1,) * (losses.ndim - 1))
    return mean_of_rows(jnp.where(real, losses, 0), mask.sum())


def on_device(schedule: Schedule) -> Schedule:
    """Return a schedule with all arrays but 64-bit ones moved to its devices."""
    # JAX may allow 64 bits in the caller's thread alone, and this may be another.
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
    """Return the rows of `x` [shards, ...] that this process holds, in order."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return list(np.asarray(x))
    parts = {part.index[0].start or 0: part.data for part in x.addressable_shards}
    return [row for _, data in sorted(parts.items()) for row in np.asarray(data)]


def shard_mapped(fn: Callable[..., T], schedule: Schedule, *others: Any) -> T:
    """Apply a function to the schedule of each shard, on the devices of that shard.

    Args:
      fn: called as `fn(schedule of one shard, *others)`; returns a pytree of arrays,
        each [rows, ...].
      others: arguments that all shards get whole.

    Returns:
      The results of `fn`, each [shards * rows, ...], shard after shard.

    Raises:
      ValueError: the schedule is stacked.
    """
    check_not_stacked(schedule)
    shards, spec = schedule.spec.shards, schedule.spec
    if shards is None:
        return _replicated(fn, schedule, *others)

    def of_one(others: Any, indices: jax.Array, constants: tuple[jax.Array, ...]) -> T:
        parts = tuple(x[0] for x in constants)
        return fn(Schedule(indices[0], parts, of_one_shard(spec)), *others)

    run = jax.shard_map(
        of_one,
        mesh=shards.mesh,
        in_specs=(EVERYWHERE, shards.split, shards.split),
        out_specs=shards.split,
        axis_names=set(shards.axes),
    )
    arrays = jax.tree.map(shards.parted, (schedule.indices, schedule.constants))
    others = jax.tree.map(lambda x: shards.alike(shards.replicated(x)), others)
    result = run(others, *arrays)
    split: T = jax.tree.map(lambda x: shards.alike(x, shards.split), result)
    return split


def _replicated(fn: Callable[..., T], *arguments: Any) -> T:
    """Call `fn`, under a `shard_map` if the mesh in use has explicit axes.

    The mesh is that of `jax.set_mesh`, else one that arguments are placed on.
    """
    placed = (jax.typeof(x).sharding.mesh for x in jax.tree.leaves(arguments))
    meshes = itertools.chain([jax.sharding.get_abstract_mesh()], placed)
    mesh: Any = next((x for x in meshes if not x.empty), None)
    # JAX refuses to write rows into a buffer whose type has explicit axes of a mesh.
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True) if mesh else ()
    axes = {axis for axis, type_ in pairs if type_ == AxisType.Explicit}
    if not axes:
        return fn(*arguments)
    run = jax.shard_map(
        fn, mesh=mesh, in_specs=EVERYWHERE, out_specs=EVERYWHERE, axis_names=axes
    )
    everywhere = NamedSharding(mesh, EVERYWHERE)
    alike = jax.sharding.reshard(arguments, everywhere)  # type: ignore[no-untyped-call]
    result: T = run(*alike)
    return result


def abstract(spec: Spec) -> Schedule:
    """Return a schedule of `jax.ShapeDtypeStruct`s, for compiling ahead of time."""
    struct: Any = jax.ShapeDtypeStruct
    if (shards := spec.shards) is not None:
        struct = functools.partial(struct, sharding=shards.sharding)
    before = () if shards is None else (shards.count,)
    constants = tuple(
        struct((*before, rows, *t.shape), jax.dtypes.canonicalize_dtype(t.dtype))
        for rows, t in zip(spec.capacity.constants, spec.program.types, strict=True)
    )
    size = layout(spec).sections.size
    return Schedule(struct((*before, size), np.int32), constants, spec)


def _diff(specs: list[Spec]) -> str:
    """Return, for errors, how the first two specs differ; 'none' without specs."""
    if not specs:
        return 'none'
    first, other = specs[:2]
    if first.program is not other.program:
        return 'those of two models'
    dimensions = first.capacity.dimensions(), other.capacity.dimensions()
    pairs = zip(*dimensions, strict=True)
    differences = [f'{name} {a} and {b}' for (name, a), (_, b) in pairs if a != b]
    return f'some with {", ".join(differences[:4]) or "other shards"}'
