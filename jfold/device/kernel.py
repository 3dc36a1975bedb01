# SPDX-License-Identifier: Apache-2.0
"""The kernel of an operation: a user's function, run on many rows at once.

A kernel takes *weights* in place of parameters: functions of parameters alone are
computed once, before all tiles. Its jaxpr depends on shapes alone, so one kernel serves
all batches and both passes.

In shapes, `rows` counts the rows of a tile, and `*shape` is that of one value or
weight. *Products* are the results of the `dot_general`s of a kernel's jaxpr, numbered
in order. *Real* rows are not padding.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.typing import DTypeLike

from jfold.base import jaxprs
from jfold.base.arrays import (
    Arrays,
    Spec,
    Specs,
    Varying,
    array_spec,
    cast_varying,
    one_row,
    row_axis,
    spec_of,
)
from jfold.base.errors import naming_batched
from jfold.base.jaxprs import is_inexact
from jfold.base.memo import Memoized, memoized
from jfold.device import fixed_order, xla
from jfold.device.analyses import is_defined
from jfold.device.parameter_stages import Hoisted, hoist_from_checkpoints, stage
from jfold.device.rewriting import rewritten
from jfold.program.operations import PROBES, Operation
from jfold.types import TensorType, TupleType, pack

if TYPE_CHECKING:
    from chex import ArrayTree

    from jfold.base.jaxprs import Environment, Rules

# Products, each [rows, ...], by number: their order in the jaxpr of an operation.
Products: TypeAlias = Mapping[int, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    """The weights of an operation, with transposed matrices for narrow tiles.

    Attributes:
      arrays: list of arrays, each [*shape]: the trained ones, then the others.
      forward: transposes, each [n, m], for narrow tiles of the forward pass.
      reverse: transposes, each [n, m], for the reverse pass, if there is one.
    """

    arrays: Arrays
    forward: Arrays
    reverse: Arrays


@dataclass(frozen=True, eq=False)
class Kernel(Memoized):
    """An operation at given shapes; inputs and outputs are flat lists of arrays.

    Attributes:
      params: specs of its parameters, a pytree.
      types: the types of its inputs.
      varying: the axes of an enclosing `jax.shard_map` that all arrays vary over.
      reproducible: whether sums have a fixed order.
      external: by input, whether it only comes from outside of the recurrence.
    """

    operation: Operation
    params: ArrayTree
    types: tuple[TensorType, ...]
    varying: Varying | None
    reproducible: bool
    external: tuple[bool, ...]

    def run(
        self,
        weights: Weights,
        inputs: Arrays,
        rows: int,
        wanted: Sequence[int] = (),
        known: Products | None = None,
        real: jax.Array | None = None,
        outputs: bool = True,
    ) -> tuple[Arrays, Arrays]:
        """Run the operation; return its outputs and the `wanted` products.

        Args:
          inputs: each [rows, *shape]; those that no wanted result needs are not read.
          known: by number, products [rows, ...] that are computed already.
          real: [rows] bool, which rows are real; all if left out.
          outputs: whether outputs, each [rows, *shape], are wanted.
        """
        closed, products = self.forward(rows), self.products(rows)
        # Other numbers of rows are traced only if a product is known or wanted.
        axes = self.row_axes if wanted or known else {}
        jaxpr, _ = jaxprs.open_jaxpr(closed)
        real = self.all_real(rows) if real is None else real
        env = jaxprs.environment(closed, [*weights.arrays, *inputs, real])
        env |= self.shared(closed, weights.forward, rows)
        # Products are stored rows first; the jaxpr may have rows on another axis.
        pairs = (known or {}).items()
        env |= {products[k]: jnp.moveaxis(x, 0, axes[k]) for k, x in pairs}
        atoms = [*(jaxpr.outvars if outputs else ()), *(products[k] for k in wanted)]
        # Equations with effects are run too, though nothing reads their results.
        effects = {e for e in jaxpr.eqns if e.effects}
        steps = jaxprs.slice_for(jaxpr.eqns, atoms, env, keep=effects)
        values = jaxprs.run(steps, env, atoms, self.rules)
        count = len(values) - len(wanted)
        stored = zip(wanted, values[count:], strict=True)
        return values[:count], [jnp.moveaxis(x, axes[k], 0) for k, x in stored]

    @memoized
    def products(self, rows: int) -> list[core.Var]:
        """Return the result variables of `dot_general`s in the jaxpr on `rows` rows."""
        return [e.outvars[0] for e in jaxprs.products(self.forward(rows))]

    @functools.cached_property
    def row_axes(self) -> dict[int, int]:
        """The axis of rows of each matrix product that has one, by its number."""
        pairs = zip(self.products(2), self.products(3), strict=True)
        axes = [row_axis(*map(jaxprs.spec, pair)) for pair in pairs]
        return {k: axis for k, axis in enumerate(axes) if axis is not None}

    def product_row(self, number: int) -> Spec:
        """Return the spec of one row of the `number`-th matrix product."""
        return one_row(jaxprs.spec(self.products(2)[number]), self.row_axes[number])

    @property
    def rules(self) -> Rules:
        """The rewrite rules that fix the order of sums if `reproducible`, else none."""
        return fixed_order.RULES if self.reproducible else {}

    # Arguments of the jaxprs here and in the reverse are flat: trained weights, other
    # weights, inputs, mask of real rows; in the reverse products and cotangents follow.

    @functools.cached_property
    def weight_specs(self) -> Specs:
        """The specs of the weights, the trained ones first."""
        # Two rows stand for any number. One would not: an axis of length 1 need not be
        # one of rows.
        specs = map(jaxprs.spec, self.staged(2).frontier)
        return [self.spec(x.shape, x.dtype) for x in specs]

    @property
    def weight_count(self) -> int:
        """The number of weights."""
        return len(self.weight_specs)

    @functools.cached_property
    def trained_count(self) -> int:
        """The number of trained weights, which are all floats and come first."""
        return sum(map(is_inexact, self.weight_specs))

    def weights_of(self, params: ArrayTree) -> Arrays:
        """Compute the weights, each [*shape]: parameters or functions of them."""
        leaves, option = jax.tree.leaves(params), self.reproducible
        return self.staged(2).run_early(*leaves, reproducible=option)

    @functools.cached_property
    def takes_tiles(self) -> bool:
        """Return whether the layer's function gets whole tiles, not single rows."""
        return self.operation.layer.batched and self._staged(2).has_linear_rules

    def staged(self, rows: int) -> Hoisted:
        """Return the layer's function in two stages, the first of parameters alone.

        The first stage computes the weights, the second the outputs: of a tile of
        `rows` rows if `takes_tiles`, else of one row.
        """
        return self._staged(rows if self.takes_tiles else None)

    @memoized
    def _staged(self, rows: int | None) -> Hoisted:
        count, name = len(jax.tree.leaves(self.params)), self.operation.layer.name
        if rows is None:
            return stage(self._trace(None), count, name)
        # A second number of rows, from `PROBES`, shows which equations depend on it.
        other = PROBES[rows == PROBES[0]]
        staged = stage(self._trace(rows), count, name, self._trace(other))
        if rows != 2:  # the weights for two rows serve all widths
            self._check_weights(staged, rows)
        return staged

    @memoized
    def _trace(self, rows: int | None) -> core.ClosedJaxpr:
        """Return the layer's jaxpr on `rows` rows, on one row if `rows` is `None`."""
        layer, (leaves, structure) = self.operation.layer, jax.tree.flatten(self.params)
        alone = layer.batched and rows is None

        def outputs(*arguments: jax.Array) -> Arrays:
            params = jax.tree.unflatten(structure, arguments[: len(leaves)])
            inputs = arguments[len(leaves) :]
            # A function of whole tiles runs on a row as on a tile of one row.
            tile = [x[None] for x in inputs] if alone else inputs
            packed = pack(TupleType(self.operation.arguments), tile)
            results = jax.tree.leaves(self.operation.call(params, *packed))
            if layer.batched and not alone:
                self._check_rows(results, rows)
            return [x[0] for x in results] if alone else list(results)

        inputs = self.inputs(rows)
        closed = jaxprs.trace(outputs, [*leaves, *inputs])
        # The number of rows must not decide what is split: other numbers are compared.
        closed = rewritten(closed, len(leaves), first=0 if rows is None else 1)
        return hoist_from_checkpoints(
            closed, [False] * len(leaves) + [True] * len(inputs)
        )

    def _check_rows(self, outputs: Arrays, rows: int | None) -> None:
        """Raise TypeError unless all outputs of a tile are [rows, *shape]."""
        for x in outputs:
            if x.shape[:1] != (rows,):
                raise TypeError(
                    f'expected {self.operation!r}, a function of whole tiles, to give '
                    f'arrays with a leading axis of {rows} rows, got {x.shape}: give a '
                    'row for each row, or leave out `batched=True`'
                )

    def _check_weights(self, staged: Hoisted, rows: int) -> None:
        """Raise TypeError if weights that `staged` computes depend on `rows`."""
        leaves = jax.tree.leaves(self.params)
        stages = staged, self._staged(2)
        one, other = (str(jaxprs.trace(s.run_early, leaves)) for s in stages)
        if one != other:
            raise TypeError(
                f'expected {self.operation!r}, a function of whole tiles, to compute '
                f'the same of its parameters for any number of rows, got something '
                f'else for 2 and for {rows}: let it not depend on the number of rows'
            )

    @memoized
    def forward(self, rows: int) -> core.ClosedJaxpr:
        """Return the jaxpr of the operation on `rows` rows.

        It maps weights, inputs and a mask of real rows to the outputs.
        """
        count, staged = self.weight_count, self.staged(rows)
        specs = [*self.weight_specs, *self.inputs(rows), self.spec((rows,), bool)]
        # Products are rewritten on one row: `vmap` would hide which operands have rows.
        in_order = xla.row_rules(staged.varying, self.shares(rows))

        def outputs(*arguments: jax.Array) -> Arrays:
            rules = {**in_order, **staged.dropping(arguments[-1])}
            return staged.run_late(arguments[:count], arguments[count:-1], rules)

        def of_rows(*arguments: jax.Array) -> Arrays:
            of_row = functools.partial(outputs, *arguments[:count])
            return list(jax.vmap(of_row, axis_size=rows)(*arguments[count:]))

        if self.takes_tiles:
            return jaxprs.trace(outputs, specs)
        with naming_batched(self.operation.layer.name):
            return jaxprs.trace(of_rows, specs)

    @memoized
    def is_defined(self, rows: int) -> bool:
        """Return whether outputs and derivatives are surely finite on finite inputs."""
        return is_defined(self.forward(rows))

    # ---- transposed matrices that narrow tiles share

    def weights(
        self, arrays: Arrays, reverse: core.ClosedJaxpr | None = None
    ) -> Weights:
        """Bundle the weights `arrays` with transposes of them that narrow tiles read.

        Args:
          reverse: the jaxpr of the reverse of a narrow tile, if that reads transposes.
        """
        # Each pass has transposes of its own: a matrix that one of them reads
        # transposed, the other mostly reads as it is.
        passes = [self.forward(2), reverse] if self.shares(2) else [None, None]
        read = ([] if x is None else xla.transposes(x, arrays) for x in passes)
        return Weights(arrays, *read)

    def shares(self, rows: int) -> bool:
        """Return whether tiles of `rows` rows read weights transposed before the loops.

        A function of whole tiles may depend on the number of rows, so it reads none.
        """
        return xla.shares_transposes(rows) and not self.takes_tiles

    def shared(
        self, closed: core.ClosedJaxpr, transposes: Arrays, rows: int
    ) -> Environment:
        """Map variables of a tile's jaxpr `closed` to values in `transposes` [n, m].

        None are mapped if tiles of `rows` rows transpose weights themselves.
        """
        if not self.shares(rows):
            return {}
        return xla.shared(closed, self.weight_count, transposes)

    # ---- specs

    def all_real(self, rows: int) -> jax.Array:
        """Return a mask [rows] bool that is true: all rows are real."""
        return cast_varying(jnp.ones(rows, bool), self.varying)

    def spec(self, shape: tuple[int, ...], dtype: DTypeLike) -> Spec:
        """Return the spec of an array, with the mesh axes over which it varies."""
        return array_spec(shape, dtype, self.varying)

    def inputs(self, rows: int | None) -> Specs:
        """Return the specs of a tile's inputs, or of one row's if `rows` is `None`."""
        leading = () if rows is None else (rows,)
        return [self.spec((*leading, *t.shape), t.dtype) for t in self.types]

    # ---- dependence

    @functools.cached_property
    def depends(self) -> list[set[int]]:
        """The numbers of the arguments of `forward` that each output depends on."""
        return jaxprs.depends(self.forward(2))

    @functools.cached_property
    def reads(self) -> list[set[int]]:
        """The numbers of the inputs that each output depends on."""
        first, end = self.weight_count, self.weight_count + len(self.types)
        return [
            {place - first for place in places if first <= place < end}
            for places in self.depends
        ]


def make_kernel(
    operation: Operation,
    params: ArrayTree,
    types: tuple[TensorType, ...],
    varying: Varying | None,
    reproducible: bool,
    external: tuple[bool, ...],
) -> Kernel:
    """Return the kernel of an operation for parameters like `params`, memoized.

    Args:
      params: a pytree of arrays or specs; all else is as in `Kernel`.
    """
    leaves, structure = jax.tree.flatten(params)
    specs = tuple(map(spec_of, leaves))
    # Kernels are memoized; settings of JAX that a trace depends on are in the key.
    context = (
        jax.dtypes.canonicalize_dtype(float),
        jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        jax.sharding.get_abstract_mesh(),
    )
    options = types, varying, reproducible, external
    return _make_kernel(operation, structure, specs, options, context)


@memoized
def _make_kernel(
    operation: Operation,
    structure: jax.tree_util.PyTreeDef,
    leaves: Sequence[Spec],
    options: tuple[tuple[TensorType, ...], Varying | None, bool, tuple[bool, ...]],
    _: tuple[Any, ...],
) -> Kernel:
    specs = [array_spec(x.shape, x.dtype, options[1]) for x in leaves]
    return Kernel(operation, jax.tree.unflatten(structure, specs), *options)
