# SPDX-License-Identifier: Apache-2.0
"""One operation on a tile of rows, and its reverse, for any function of the user.

The reverse has two halves. `move` runs in the loop: from the cotangents of a tile's
outputs to those of its inputs. `train` runs after the loop, over all rows of the
operation: the gradients of its parameters, as a few large products. Matrix products of
the forward pass are stored; elementwise values are computed again. Two forms give the
same gradients:

- `SplitTile` cuts the jaxpr of the reverse by dependence, so that nothing runs in both
  halves; the values that cross (mostly cotangents of products) are stored.
- `WholeTile` runs the whole reverse in both halves, each of which XLA frees from what
  it is not asked for. It serves functions whose reverse cannot be cut: with loops or
  conditionals in which parameters and inputs meet.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import jaxprs
from jfold.layers import array_spec, pack, to_spec
from jfold.layout import NARROW
from jfold.program import Operation, kept
from jfold.types import TensorType, TupleType

Arrays = list[Any]
Specs = list[jax.ShapeDtypeStruct]


def per_tile(method: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Computes a method once per tile and number of rows; freed with the tile."""

    @functools.wraps(method)
    def cached(self: Any, rows: int) -> Any:
        key = f'{method.__name__}({rows})'
        if key not in self.__dict__:
            self.__dict__[key] = method(self, rows)
        return self.__dict__[key]

    return cached


@dataclass(eq=False)
class Tile:
    """An operation at given shapes; inputs and outputs are flat lists of arrays.

    Attributes:
      specs: of its parameters, a pytree of `jax.ShapeDtypeStruct`.
      types: of its inputs.
      active: per input, whether a gradient flows into it.
    """

    operation: Operation
    specs: Any
    types: tuple[TensorType, ...]
    active: tuple[bool, ...]

    @property
    def moves(self) -> bool:
        """Whether a gradient flows through it."""
        return any(self.active)

    @functools.cached_property
    def reverse(self) -> Reverse:
        """The split form where it is possible, the whole form elsewhere.

        Looked for only when a gradient is taken: some functions have none.
        """
        split = SplitTile(self.operation, self.specs, self.types, self.active)
        whole = WholeTile(self.operation, self.specs, self.types, self.active)
        return split if split.possible else whole

    def outputs(self, weights: Weights, inputs: Arrays, rows: int) -> Arrays:
        """Runs the operation on `rows` rows."""
        closed = self.forward(rows)
        known = self.known(closed, weights.forward, rows)
        return jaxprs.evaluate(closed, [*weights.leaves, *inputs], known=known)

    # The jaxprs here and below depend on shapes alone. Their arguments are flat:
    # trained parameters, other parameters, inputs; then products, then cotangents.

    @functools.cached_property
    def fixed(self) -> tuple[Specs, Specs]:
        """The trained parameters and the others."""
        return partition(self.specs)

    @property
    def fixed_count(self) -> int:
        """How many parameters there are."""
        return len(flat(self.specs))

    @per_tile
    def forward(self, rows: int) -> Any:
        """The jaxpr of the operation on `rows` rows."""
        layer, count = self.operation.layer, self.fixed_count
        fixed = flat(self.specs)
        specs = [*fixed, *self.inputs(rows)]
        once = specs if layer.batched else [*fixed, *map(to_spec, self.types)]

        def outputs(*leaves: Any) -> Arrays:
            cut = len(self.fixed[0])
            params = combine(list(leaves[:cut]), list(leaves[cut:count]), self.specs)
            return self.call(layer.call, params, leaves[count:])

        closed = jaxprs.trace(outputs, once)
        closed = jaxprs.rows_first(closed, once, count, self.shares(rows))
        if layer.batched:
            return closed

        def of_rows(*leaves: Any) -> Arrays:
            def of_row(*inputs: Any) -> Arrays:
                return jaxprs.evaluate(closed, [*leaves[:count], *inputs])

            return list(jax.vmap(of_row, axis_size=rows)(*leaves[count:]))

        return jaxprs.trace(of_rows, specs)

    def call(
        self, fn: Callable[..., Any], params: Any, inputs: Sequence[Any]
    ) -> Arrays:
        """Runs a layer's function on what it takes: a row, or a whole tile."""
        packed = pack(TupleType(self.operation.arguments), list(inputs))
        return list(jax.tree.leaves(fn(params, *packed)))

    def weights(self, params: Any) -> Weights:
        """Parameters for tiles of all widths, in the forward pass."""
        return Weights(params, self.prepared(self.forward(2), params))

    def shares(self, rows: int) -> bool:
        """Whether tiles of so many rows share transposed matrices; functions of whole
        tiles may do something else for each number of rows."""
        return rows < NARROW and not self.operation.layer.batched

    def prepared(self, closed: Any, params: Any) -> Arrays:
        """What narrow tiles share, of the jaxpr of one of them."""
        if not self.shares(2):
            return []
        variables = jaxprs.turned(closed, self.fixed_count)
        return jaxprs.prepared(closed, variables, flat(params))

    def known(self, closed: Any, prepared: Arrays, rows: int) -> dict[Any, Any]:
        """What a jaxpr of a tile need not compute."""
        if not self.shares(rows):
            return {}
        pairs = zip(jaxprs.turned(closed, self.fixed_count), prepared, strict=True)
        # A constant may have rows, as cotangents that are zero do.
        return {v: x for v, x in pairs if v.aval.shape == x.shape}

    def merge(self, moving: Sequence[Any], inputs: Sequence[Any]) -> Arrays:
        """The inputs, with the active ones from `moving`."""
        rest = iter(moving)
        pairs = zip(inputs, self.active, strict=True)
        return [next(rest) if active else x for x, active in pairs]

    def moving(self, inputs: Sequence[Any]) -> Arrays:
        """The active ones of the inputs."""
        return [x for x, active in zip(inputs, self.active, strict=True) if active]

    def inputs(self, rows: int) -> Specs:
        """The inputs of a tile, as specs."""
        return [to_spec(t, rows) for t in self.types]

    @functools.cached_property
    def reads(self) -> list[set[int]]:
        """The inputs that each output depends on."""
        first = self.fixed_count
        used = jaxprs.depends(self.forward(2))
        return [
            {place - first for place in places if place >= first} for places in used
        ]


@dataclass(frozen=True, eq=False)
class Weights:
    """Parameters as tiles take them.

    Attributes:
      params: as the layer takes them.
      forward: transposed matrices that narrow tiles share in the forward pass.
      reverse: the same in the reverse pass, if there is one.
    """

    params: Any
    forward: Arrays
    reverse: Arrays = field(default_factory=list)

    @property
    def leaves(self) -> Arrays:
        """As jaxprs of tiles take them."""
        return flat(self.params)


@dataclass(frozen=True, eq=False)
class Rows:
    """What the reverse of a tile is given.

    Attributes:
      weights: as `both_weights` gives them.
      kept: what `keep` returned for these rows.
      cotangents: of the outputs.
      count: how many rows there are.
    """

    weights: Weights
    inputs: Arrays
    kept: Arrays
    cotangents: Arrays
    count: int


class Reverse(Tile):
    """What each form of the reverse supplies; rows come first in all that is stored."""

    @property
    def stored(self) -> Specs:
        """One row of each array that `keep` returns."""
        raise NotImplementedError

    @property
    def crossing(self) -> Specs:
        """One row of each array that crosses from `move` to `train`."""
        raise NotImplementedError

    @property
    def linear(self) -> tuple[bool, ...]:
        """Of each, whether it is linear in the cotangents, as not all are."""
        raise NotImplementedError

    @property
    def replaced(self) -> tuple[int | None, ...]:
        """Of each, an array of `stored` that `move` alone reads: it takes its place."""
        raise NotImplementedError

    @property
    def pulls(self) -> list[set[int]]:
        """The outputs whose cotangents each cotangent of an active input depends on, as
        far as is known."""
        raise NotImplementedError

    def both_weights(self, params: Any) -> Weights:
        """Parameters for tiles of all widths, in both passes."""
        raise NotImplementedError

    def keep(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and what the reverse needs stored."""
        raise NotImplementedError

    def move(self, given: Rows) -> tuple[Arrays, Arrays]:
        """Cotangents of the active inputs, and what crosses."""
        raise NotImplementedError

    def train(self, given: Rows, crossing: Arrays) -> Arrays:
        """Gradients of the trained parameters, summed over the rows."""
        raise NotImplementedError


def make_tile(
    operation: Operation,
    params: Any,
    types: tuple[TensorType, ...],
    active: tuple[bool, ...],
) -> Tile:
    """The tile of an operation whose parameters look like `params`; made once."""
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple((np.shape(x), x.dtype) for x in leaves)
    context = (
        jax.dtypes.canonicalize_dtype(float),
        jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
    )
    return _make_tile(operation, structure, shapes, types, active, context)


@kept
def _make_tile(
    operation: Operation, structure: Any, shapes: Any, types: Any, active: Any, _: Any
) -> Tile:
    specs = [array_spec(*shape) for shape in shapes]
    return Tile(operation, jax.tree.unflatten(structure, specs), types, active)


# ---- rows ----------------------------------------------------------------------------


def row_axis(two: Any, three: Any) -> int | None:
    """The axis of rows of an array whose specs at two and at three rows are given."""
    pairs = list(enumerate(zip(two.shape, three.shape, strict=True)))
    axes = [axis for axis, (a, b) in pairs if a != b]
    clean = len(axes) == 1 and pairs[axes[0]][1] == (2, 3)
    return axes[0] if clean else None


def one_row(two: Any, axis: int) -> jax.ShapeDtypeStruct:
    """The spec of one row, from that of two."""
    return array_spec(two.shape[:axis] + two.shape[axis + 1 :], two.dtype)


def spec_of(x: Any) -> jax.ShapeDtypeStruct:
    """The spec of an array, or of what stands for one."""
    return array_spec(np.shape(x), x.dtype)


# ---- the split form ------------------------------------------------------------------


class SplitTile(Reverse):
    """The reverse cut by dependence."""

    @functools.cached_property
    def possible(self) -> bool:
        """Whether all that crosses has an axis of rows."""
        return None not in self._crossing_axes

    @functools.cached_property
    def stored(self) -> Specs:
        two = self._products(2)
        return [one_row(two[i], axis) for i, axis in self._products_read]

    @functools.cached_property
    def crossing(self) -> Specs:
        two = [v.aval for v in self._cut(2).crossing]
        axes = self._crossing_axes
        return [one_row(x, a) for x, a in zip(two, axes, strict=True) if a is not None]

    @property
    def linear(self) -> tuple[bool, ...]:
        """As found by dependence."""
        linear: tuple[bool, ...] = self._cut(2).linear
        return linear

    @functools.cached_property
    def replaced(self) -> tuple[int | None, ...]:
        """Products of the same shape that have been read by then, each at most once."""
        cut, found = self._cut(2), list[int | None]()
        first = self.fixed_count + len(self.types)
        places = [first + self._row_products.index(x) for x in self._products_read]
        for variable, spec in zip(cut.crossing, self.crossing, strict=True):
            fit = (
                j
                for j, place in enumerate(places)
                if self.stored[j] == spec and j not in found
                if cut.used_up(place, variable) and not cut.reads_late(place)
            )
            found.append(next(fit, None))
        return tuple(found)

    @functools.cached_property
    def pulls(self) -> list[set[int]]:
        """As found by dependence."""
        cut = self._cut(2)
        used = jaxprs.depends(cut.closed)[len(self.fixed[0]) :]
        first = len(cut.closed.in_avals) - sum(self._inexact)
        outputs = [k for k, inexact in enumerate(self._inexact) if inexact]
        return [{outputs[i - first] for i in places if i >= first} for places in used]

    def both_weights(self, params: Any) -> Weights:
        """With what the early half reads."""
        forward, reverse = self.forward(2), self._cut(2).closed
        parts = (self.prepared(closed, params) for closed in (forward, reverse))
        return Weights(params, *parts)

    def keep(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and the products that the reverse reads."""
        outputs, products = self._with_products(weights, inputs, rows)
        axes = self._products_read
        return outputs, [jnp.moveaxis(products[i], axis, 0) for i, axis in axes]

    def move(self, given: Rows) -> tuple[Arrays, Arrays]:
        """The early half."""
        cut, arguments = self._cut(given.count), self._arguments(given)
        known = self.known(cut.closed, given.weights.reverse, given.count)
        moving, crossing = cut.run_early(arguments, known)
        pairs = zip(crossing, self._crossing_axes, strict=True)
        return moving, [jnp.moveaxis(x, axis, 0) for x, axis in pairs]

    def train(self, given: Rows, crossing: Arrays) -> Arrays:
        """The late half."""
        pairs = zip(crossing, self._crossing_axes, strict=True)
        crossed = [jnp.moveaxis(x, 0, axis) for x, axis in pairs]
        grads: Arrays = self._cut(given.count).run_late(self._arguments(given), crossed)
        return grads

    def _with_products(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        products: Arrays = []

        def product(equation: Any, operands: Arrays) -> Any:
            products.append(jaxprs.apply(equation, operands))
            return products[-1]

        closed, arguments = self.forward(rows), [*weights.leaves, *inputs]
        known = self.known(closed, weights.forward, rows)
        rules = {'dot_general': product}
        return jaxprs.evaluate(closed, arguments, rules, known), products

    @per_tile
    def _products(self, rows: int) -> Specs:
        """All products of the forward pass."""

        def products(params: Any, inputs: Arrays) -> Arrays:
            return self._with_products(self.weights(params), inputs, rows)[1]

        found: Specs = jax.eval_shape(products, self.specs, self.inputs(rows))
        return found

    @functools.cached_property
    def _row_products(self) -> list[tuple[int, int]]:
        """Number and row axis of the products that have rows."""
        pairs = zip(self._products(2), self._products(3), strict=True)
        axes = [row_axis(*pair) for pair in pairs]
        return [(i, axis) for i, axis in enumerate(axes) if axis is not None]

    @functools.cached_property
    def _products_read(self) -> list[tuple[int, int]]:
        """Those of them that the reverse reads."""
        first = self.fixed_count + len(self.types)
        cut = self._cut(2)
        found = enumerate(self._row_products, first)
        return [product for place, product in found if cut.reads(place)]

    def _arguments(self, given: Rows) -> Arrays:
        read, specs = iter(given.kept), self._products(given.count)
        products = [
            jnp.moveaxis(next(read), 0, axis)
            if (i, axis) in self._products_read
            else jnp.zeros(specs[i].shape, specs[i].dtype)
            for i, axis in self._row_products
        ]
        wanted = [x for x in given.cotangents if x.dtype != jax.dtypes.float0]
        return [*given.weights.leaves, *given.inputs, *products, *wanted]

    @functools.cached_property
    def _inexact(self) -> list[bool]:
        """Of each output, whether it has a cotangent."""
        outputs = self.forward(2).out_avals
        return [bool(jnp.issubdtype(x.dtype, jnp.inexact)) for x in outputs]

    @per_tile
    def _cut(self, rows: int) -> jaxprs.Cut:
        trained, rest = self.fixed
        forward, products = self.forward(rows), self._products(rows)
        outputs, inexact = list(map(spec_of, forward.out_avals)), self._inexact
        groups = (
            trained,
            rest,
            self.inputs(rows),
            [products[i] for i, _ in self._row_products],
            [spec for spec, yes in zip(outputs, inexact, strict=True) if yes],
        )
        ends = np.cumsum([0, *map(len, groups)])

        def reverse(*leaves: Any) -> Arrays:
            parts = [list(leaves[a:b]) for a, b in itertools.pairwise(ends)]
            known = dict(zip((i for i, _ in self._row_products), parts[3], strict=True))

            def differentiable(trained: Arrays, moving: Arrays) -> Arrays:
                inputs = self.merge(moving, parts[2])
                rules = {'dot_general': _given_products(known)}
                made = jaxprs.evaluate(forward, [*trained, *parts[1], *inputs], rules)
                return [x for x, yes in zip(made, inexact, strict=True) if yes]

            _, pull = jax.vjp(differentiable, parts[0], self.moving(parts[2]))
            cotangents = pull(parts[4])
            return [*cotangents[0], *cotangents[1]]

        specs = [spec for group in groups for spec in group]
        fixed, closed = self.fixed_count, jaxprs.trace(reverse, specs)
        closed = jaxprs.rows_first(closed, specs, fixed, self.shares(rows))
        return jaxprs.cut(closed, len(trained), fixed, cotangents=len(groups[4]))

    @functools.cached_property
    def _crossing_axes(self) -> list[Any]:
        pairs = zip(self._cut(2).crossing, self._cut(3).crossing, strict=True)
        return [row_axis(a.aval, b.aval) for a, b in pairs]


def _given_products(known: dict[int, Any]) -> jaxprs.Rule:
    """Stands in for products: values as stored, derivatives those of the product."""
    count = iter(range(1 << 30))

    def product(equation: Any, operands: Arrays) -> Any:
        number = next(count)

        def multiply(*operands: Any) -> Any:
            return jaxprs.apply(equation, operands)

        if number not in known or not all(map(is_trained, operands)):
            return multiply(*operands)
        given = jax.custom_jvp(lambda left, right, value: value)

        def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
            (left, right, value), (d_left, d_right, _) = primals, tangents
            return value, multiply(d_left, right) + multiply(left, d_right)

        given.defjvp(tangent)
        return given(*operands, known[number])

    return product


# ---- the whole form ------------------------------------------------------------------


class WholeTile(Reverse):
    """The reverse as the pytree that `jax.vjp` returns.

    Under `jax.checkpoint`, its leaves are parameters and inputs, which are at hand in
    the reverse pass, and products, which are stored.
    """

    @property
    def crossing(self) -> Specs:
        """Nothing crosses."""
        return []

    @property
    def linear(self) -> tuple[bool, ...]:
        """Nothing crosses."""
        return ()

    @property
    def replaced(self) -> tuple[int | None, ...]:
        """Nothing crosses."""
        return ()

    @property
    def pulls(self) -> list[set[int]]:
        """Nothing is known."""
        return [set() for active in self.active if active]

    @functools.cached_property
    def stored(self) -> Specs:
        pairs = zip(self._leaves(2), self._axes, strict=True)
        return [one_row(two, axis) for two, axis in pairs if axis is not None]

    def both_weights(self, params: Any) -> Weights:
        """Nothing is known of what the reverse reads."""
        return Weights(params, [])

    def keep(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and the leaves to be stored."""
        outputs, reverse = self._linearized(weights.params, inputs, rows)
        pairs = zip(jax.tree.leaves(reverse), self._axes, strict=True)
        return outputs, [jnp.moveaxis(x, a, 0) for x, a in pairs if a is not None]

    def move(self, given: Rows) -> tuple[Arrays, Arrays]:
        """The whole reverse; what belongs to parameters is dead code."""
        return self._revived(given)(given.cotangents)[1], []

    def train(self, given: Rows, crossing: Arrays) -> Arrays:
        """The whole reverse; what belongs to inputs alone is dead code."""
        grads: Arrays = self._revived(given)(given.cotangents)[0]
        return grads

    def _revived(self, given: Rows) -> Any:
        """The reverse around what was stored of it."""
        _, reverse = self._linearized(given.weights.params, given.inputs, given.count)
        leaves, structure = jax.tree.flatten(reverse)
        rest = iter(given.kept)
        revived = [
            leaf if axis is None else jnp.moveaxis(next(rest), 0, axis)
            for leaf, axis in zip(leaves, self._axes, strict=True)
        ]
        return jax.tree.unflatten(structure, revived)

    @functools.cached_property
    def _axes(self) -> list[int | None]:
        """Of each leaf, the row axis if it is to be stored."""
        two, three = self._leaves(2), self._leaves(3)
        return [
            None if a is None else row_axis(a, b)
            for a, b in zip(two, three, strict=True)
        ]

    def _leaves(self, rows: int) -> list[Any]:
        """Of each leaf of the reverse, its spec, or `None` if it is at hand."""
        found: list[Any] = []

        def look(params: Any, inputs: Arrays) -> None:
            _, reverse = self._linearized(params, inputs, rows)
            known = {id(x) for x in jax.tree.leaves((params, inputs))}
            for leaf in jax.tree.leaves(reverse):
                found.append(None if id(leaf) in known else spec_of(leaf))

        jax.eval_shape(look, self.specs, self.inputs(rows))
        return found

    def _linearized(
        self, params: Any, inputs: Sequence[Any], rows: int
    ) -> tuple[Arrays, Any]:
        policy = jax.checkpoint_policies.dots_saveable
        layer = self.operation.layer
        fn = jax.checkpoint(layer.call, policy=policy, prevent_cse=False)
        trained, rest = partition(params)

        def outputs(trained: Arrays, moving: Arrays) -> Arrays:
            joined = combine(trained, rest, params)

            def call(*inputs: Any) -> Arrays:
                return self.call(fn, joined, inputs)

            of_rows = call if layer.batched else jax.vmap(call, axis_size=rows)
            return list(of_rows(*self.merge(moving, inputs)))

        made, reverse = jax.vjp(outputs, trained, self.moving(inputs))
        return made, reverse


# ---- parameters: what is trained, and the rest ---------------------------------------


def is_trained(x: Any) -> bool:
    """Whether a parameter has a gradient; integers have none."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def partition(params: Any) -> tuple[Arrays, Arrays]:
    """The leaves that are trained, and the others."""
    leaves = jax.tree.leaves(params)
    trained = [x for x in leaves if is_trained(x)]
    return trained, [x for x in leaves if not is_trained(x)]


def flat(params: Any) -> Arrays:
    """The leaves that are trained, then the others."""
    trained, rest = partition(params)
    return [*trained, *rest]


def combine(trained: Arrays, rest: Arrays, params: Any) -> Any:
    """The inverse of `partition`, in the structure of `params`."""
    leaves, structure = jax.tree.flatten(params)
    parts = {True: iter(trained), False: iter(rest)}
    return jax.tree.unflatten(structure, [next(parts[is_trained(x)]) for x in leaves])
