# SPDX-License-Identifier: Apache-2.0
"""One operation on a tile of rows, for any function of the user.

A tile takes *weights*, what the function reads of its parameters: what depends on these
alone is computed once, before all tiles. Its jaxpr depends on shapes alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jfold.device import jaxprs
from jfold.device.jaxprs import is_inexact
from jfold.device.stages import Staged, stage
from jfold.kept import kept
from jfold.language.layers import Varying, array_spec, pack, varied
from jfold.operations import Operation
from jfold.planning.layout import NARROW
from jfold.types import TensorType, TupleType

Arrays = list[Any]
Specs = list[jax.ShapeDtypeStruct]


Owner = TypeVar('Owner')
Result = TypeVar('Result')


def per_rows(
    method: Callable[[Owner, int], Result],
) -> Callable[[Owner, int], Result]:
    """Computes a method once per object and number of rows; freed with the object."""

    @functools.wraps(method)
    def cached(self: Owner, rows: int) -> Result:
        key = f'{method.__name__}({rows})'
        if key not in vars(self):
            vars(self)[key] = method(self, rows)
        result: Result = vars(self)[key]
        return result

    return cached


@dataclass(eq=False)
class Tile:
    """An operation at given shapes; inputs and outputs are flat lists of arrays.

    Attributes:
      params: specs of its parameters, a pytree of `jax.ShapeDtypeStruct`.
      types: of its inputs.
      varying: over which axes of an enclosing `jax.shard_map` all arrays vary.
      reverses: made so far.
    """

    operation: Operation
    params: Any
    types: tuple[TensorType, ...]
    varying: Varying | None
    reverses: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def outputs(self, weights: Weights, inputs: Arrays, rows: int) -> Arrays:
        """Runs the operation on `rows` rows."""
        closed = self.forward(rows)
        known = self.known(closed, weights.forward, rows)
        arguments = [*weights.leaves, *inputs, self.all_real(rows)]
        return jaxprs.evaluate(closed, arguments, known=known)

    # The jaxprs here and below depend on shapes alone. Their arguments are flat:
    # trained weights, other weights, inputs, which rows are real; then products, then
    # cotangents.

    @functools.cached_property
    def weight_specs(self) -> Specs:
        """The weights, the trained ones first."""
        return [self.spec(v.aval.shape, v.aval.dtype) for v in self.staged(2).frontier]

    @property
    def weight_count(self) -> int:
        """How many weights there are."""
        return len(self.weight_specs)

    @functools.cached_property
    def trained_count(self) -> int:
        """How many of the weights are trained."""
        return sum(map(is_inexact, self.weight_specs))

    def hoisted(self, params: Any) -> Arrays:
        """The weights: parameters, and what is computed of them alone."""
        return self.staged(2).run_early(*jax.tree.leaves(params))

    @per_rows
    def staged(self, rows: int) -> Staged:
        """The layer's function on a row, in two stages; on `rows` rows if it takes
        whole tiles."""
        layer, (leaves, structure) = self.operation.layer, jax.tree.flatten(self.params)
        if not layer.batched and rows != 2:
            return self.staged(2)
        rest = self.inputs(rows if layer.batched else None)

        def outputs(*given: Any) -> Arrays:
            params = jax.tree.unflatten(structure, given[: len(leaves)])
            arguments = TupleType(self.operation.arguments)
            packed = pack(arguments, given[len(leaves) :])
            return list(jax.tree.leaves(layer.call(params, *packed)))

        staged = stage(jaxprs.trace(outputs, [*leaves, *rest]), len(leaves))
        if layer.batched and rows != 2:
            self._check_weights(staged, rows)
        return staged

    def _check_weights(self, staged: Staged, rows: int) -> None:
        leaves = jax.tree.leaves(self.params)
        stages = staged, self.staged(2)
        one, other = (str(jaxprs.trace(s.run_early, leaves)) for s in stages)
        if one != other:
            raise TypeError(
                f'expected {self.operation!r}, a function of whole tiles, to compute '
                f'the same of its parameters for any number of rows, got something '
                f'else for 2 and for {rows}: let it not depend on the number of rows'
            )

    @per_rows
    def forward(self, rows: int) -> Any:
        """The jaxpr of the operation on `rows` rows."""
        batched, count = self.operation.layer.batched, self.weight_count
        staged, many = self.staged(rows), self.row_specs(rows)
        once = many if batched else self.row_specs(None)

        def outputs(*leaves: Any) -> Arrays:
            rules = staged.dropping(leaves[-1])
            return staged.run_late(leaves[:count], leaves[count:-1], rules)

        closed = jaxprs.trace(outputs, once)
        closed = jaxprs.rows_first(closed, once, count, self.shares(rows))
        if batched:
            return closed

        def of_rows(*leaves: Any) -> Arrays:
            def of_row(*given: Any) -> Arrays:
                return jaxprs.evaluate(closed, [*leaves[:count], *given])

            return list(jax.vmap(of_row, axis_size=rows)(*leaves[count:]))

        return jaxprs.trace(of_rows, many)

    def weights(self, leaves: Arrays) -> Weights:
        """Weights for tiles of all widths, in the forward pass."""
        return Weights(leaves, self.prepared(self.forward(2), leaves))

    def shares(self, rows: int) -> bool:
        """Whether tiles of so many rows share transposed matrices; functions of whole
        tiles may do something else for each number of rows."""
        return rows < NARROW and not self.operation.layer.batched

    def prepared(self, closed: Any, leaves: Arrays) -> Arrays:
        """What narrow tiles share, of the jaxpr of one of them."""
        if not self.shares(2):
            return []
        variables = jaxprs.turned(closed, self.weight_count)
        return jaxprs.prepared(closed, variables, leaves)

    def known(self, closed: Any, prepared: Arrays, rows: int) -> dict[Any, Any]:
        """What a jaxpr of a tile need not compute."""
        if not self.shares(rows):
            return {}
        pairs = zip(jaxprs.turned(closed, self.weight_count), prepared, strict=True)
        # A constant may have rows, as cotangents that are zero do.
        return {v: x for v, x in pairs if v.aval.shape == x.shape}

    def all_real(self, rows: int) -> Any:
        """A mask of rows that are all real [rows]."""
        return varied(jnp.ones(rows, bool), self.varying)

    def spec(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """Stands for an array of a tile."""
        return array_spec(shape, dtype, self.varying)

    def inputs(self, rows: int | None) -> Specs:
        """The inputs of a tile, or of one row, as specs."""
        leading = () if rows is None else (rows,)
        return [self.spec((*leading, *t.shape), t.dtype) for t in self.types]

    def row_specs(self, rows: int | None) -> Specs:
        """Weights, inputs, and which rows are real, or whether the one is."""
        real = self.spec(() if rows is None else (rows,), np.dtype(bool))
        return [*self.weight_specs, *self.inputs(rows), real]

    @functools.cached_property
    def reads(self) -> list[set[int]]:
        """The inputs that each output depends on."""
        first, end = self.weight_count, self.weight_count + len(self.types)
        return [
            {place - first for place in places if first <= place < end}
            for places in self._depends
        ]

    def reads_weight(self, output: int, weight: int) -> bool:
        """Whether an output depends on a weight."""
        return weight in self._depends[output]

    @functools.cached_property
    def _depends(self) -> list[set[int]]:
        return jaxprs.depends(self.forward(2))


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights as tiles take them.

    Attributes:
      leaves: the trained ones, then the others.
      forward: transposed matrices that narrow tiles share in the forward pass.
      reverse: the same in the reverse pass, if there is one.
    """

    leaves: Arrays
    forward: Arrays
    reverse: Arrays = field(default_factory=list)


def make_tile(
    operation: Operation, params: Any, types: tuple[TensorType, ...], varying: Any
) -> Tile:
    """The tile of an operation whose parameters look like `params`; made once."""
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple((np.shape(x), x.dtype) for x in leaves)
    context = (
        jax.dtypes.canonicalize_dtype(float),
        jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
    )
    return _make_tile(operation, structure, shapes, types, varying, context)


@kept
def _make_tile(
    operation: Operation, structure: Any, shapes: Any, types: Any, varying: Any, _: Any
) -> Tile:
    specs = [array_spec(shape, dtype, varying) for shape, dtype in shapes]
    return Tile(operation, jax.tree.unflatten(structure, specs), types, varying)


# ---- rows ----------------------------------------------------------------------------


def spec_of(x: Any) -> jax.ShapeDtypeStruct:
    """The spec of an array, or of what stands for one."""
    return array_spec(np.shape(x), x.dtype)
