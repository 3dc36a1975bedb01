# SPDX-License-Identifier: Apache-2.0
"""The reverse of a tile, for any function of the user.

It has two halves. `move` runs in the loop: from the cotangents of a tile's outputs to
those of its inputs. `train` runs after the loop, over all rows of the operation: the
gradients of its weights, as a few large products. Matrix products of the forward pass
are stored; elementwise values are computed again. Two forms give the same gradients:

- `SplitReverse` cuts the jaxpr of the reverse by dependence, so that nothing runs in
  both halves; the values that cross (mostly cotangents of products) are stored.
- `WholeReverse` runs the whole reverse in both halves, each of which XLA frees from
  what it is not asked for. It serves functions whose reverse cannot be cut: with loops
  or conditionals in which weights and inputs meet.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.device import jaxprs
from jfold.device.jaxprs import is_inexact
from jfold.device.tile import (
    Arrays,
    Specs,
    Tile,
    Weights,
    per_rows,
    spec_of,
)
from jfold.language.layers import array_spec


@dataclass(frozen=True, eq=False)
class Rows:
    """What the reverse of a tile is given.

    Attributes:
      weights: as `both_weights` gives them.
      kept: what `keep` returned for these rows.
      cotangents: of the live outputs.
      real: [count] bool, whose contribution to gradients of weights counts.
      count: how many rows there are.
    """

    weights: Weights
    inputs: Arrays
    kept: Arrays
    cotangents: Arrays
    real: Any
    count: int


@dataclass(eq=False)
class Reverse:
    """What each form of the reverse supplies; rows come first in all that is stored.

    Attributes:
      tile: what it is the reverse of.
      live: the outputs that have a cotangent.
      active: per input, whether it gets one.
    """

    tile: Tile
    live: tuple[int, ...]
    active: tuple[bool, ...]

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
        """Of each, whether it depends on the cotangents, as not all do."""
        raise NotImplementedError

    @property
    def replaced(self) -> tuple[int | None, ...]:
        """Of each, an array of `stored` that `move` alone reads: it takes its place."""
        raise NotImplementedError

    @property
    def pulls(self) -> list[set[int]]:
        """The places in `live` that each cotangent of an active input depends on, as
        far as is known."""
        raise NotImplementedError

    def both_weights(self, leaves: Arrays) -> Weights:
        """Weights for tiles of all widths, in both passes."""
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
        """Gradients of the trained weights, summed over the rows that are real."""
        raise NotImplementedError

    def merge(self, moving: Sequence[Any], inputs: Sequence[Any]) -> Arrays:
        """The inputs, with the active ones from `moving`."""
        rest = iter(moving)
        pairs = zip(inputs, self.active, strict=True)
        return [next(rest) if active else x for x, active in pairs]

    def moving(self, inputs: Sequence[Any]) -> Arrays:
        """The active ones of the inputs."""
        return [x for x, active in zip(inputs, self.active, strict=True) if active]


def make_reverse(
    tile: Tile, live: tuple[int, ...], active: tuple[bool, ...]
) -> Reverse:
    """The split form where it is possible, the whole form elsewhere; made once.

    Looked for only when a gradient is taken: some functions have none.

    Args:
      live: the outputs that have a cotangent.
      active: per input, whether it gets one.
    """
    key = live, active
    if key not in tile.reverses:
        split = SplitReverse(tile, live, active)
        whole = WholeReverse(tile, live, active)
        tile.reverses[key] = split if split.possible else whole
    found: Reverse = tile.reverses[key]
    return found


def row_axis(two: Any, three: Any) -> int | None:
    """The axis of rows of an array whose specs at two and at three rows are given."""
    pairs = list(enumerate(zip(two.shape, three.shape, strict=True)))
    axes = [axis for axis, (a, b) in pairs if a != b]
    clean = len(axes) == 1 and pairs[axes[0]][1] == (2, 3)
    return axes[0] if clean else None


def one_row(two: Any, axis: int) -> jax.ShapeDtypeStruct:
    """The spec of one row, from that of two."""
    return array_spec(two.shape[:axis] + two.shape[axis + 1 :], two.dtype)


# ---- the split form ------------------------------------------------------------------


class SplitReverse(Reverse):
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
        first = self._first_product
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
        used = jaxprs.depends(cut.closed)[self.tile.trained_count :]
        first = len(cut.closed.in_avals) - len(self.live)
        return [{i - first for i in places if i >= first} for places in used]

    def both_weights(self, leaves: Arrays) -> Weights:
        """With what the early half reads."""
        forward, reverse = self.tile.forward(2), self._cut(2).closed
        parts = (self.tile.prepared(closed, leaves) for closed in (forward, reverse))
        return Weights(leaves, *parts)

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
        known = self.tile.known(cut.closed, given.weights.reverse, given.count)
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

        closed, rules = self.tile.forward(rows), {'dot_general': product}
        arguments = [*weights.leaves, *inputs, self.tile.all_real(rows)]
        known = self.tile.known(closed, weights.forward, rows)
        return jaxprs.evaluate(closed, arguments, rules, known), products

    @per_rows
    def _products(self, rows: int) -> Specs:
        """All products of the forward pass."""

        def products(leaves: Arrays, inputs: Arrays) -> Arrays:
            return self._with_products(self.tile.weights(leaves), inputs, rows)[1]

        found: Specs = jax.eval_shape(
            products, self.tile.weight_specs, self.tile.inputs(rows)
        )
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
        cut = self._cut(2)
        found = enumerate(self._row_products, self._first_product)
        return [product for place, product in found if cut.reads(place)]

    def _arguments(self, given: Rows) -> Arrays:
        read, specs = iter(given.kept), self._products(given.count)
        products = [
            jnp.moveaxis(next(read), 0, axis)
            if (i, axis) in self._products_read
            else jnp.zeros(specs[i].shape, specs[i].dtype)
            for i, axis in self._row_products
        ]
        rows = [*given.inputs, given.real, *products, *given.cotangents]
        return [*given.weights.leaves, *rows]

    @per_rows
    def _cut(self, rows: int) -> jaxprs.Cut:
        forward, products = self.tile.forward(rows), self._products(rows)
        *rest, real = self.tile.row_specs(rows)
        made, trained = forward.out_avals, self.tile.trained_count
        groups = (
            rest[:trained],
            rest[trained : self.tile.weight_count],
            rest[self.tile.weight_count :],
            [real],
            [products[i] for i, _ in self._row_products],
            [self.tile.spec(made[k].shape, made[k].dtype) for k in self.live],
        )
        ends = np.cumsum([0, *map(len, groups)])

        def reverse(*leaves: Any) -> Arrays:
            parts = [list(leaves[a:b]) for a, b in itertools.pairwise(ends)]
            known = dict(zip((i for i, _ in self._row_products), parts[4], strict=True))

            def differentiable(trained: Arrays, moving: Arrays) -> Arrays:
                inputs = self.merge(moving, parts[2])
                arguments = [*trained, *parts[1], *inputs, *parts[3]]
                rules = {'dot_general': _given_products(known)}
                outputs = jaxprs.evaluate(forward, arguments, rules)
                return [outputs[k] for k in self.live]

            _, pull = jax.vjp(differentiable, parts[0], self.moving(parts[2]))
            cotangents = pull(parts[5])
            return [*cotangents[0], *cotangents[1]]

        specs = [spec for group in groups for spec in group]
        fixed, closed = self.tile.weight_count, jaxprs.trace(reverse, specs)
        closed = jaxprs.rows_first(closed, specs, fixed, self.tile.shares(rows))
        return jaxprs.cut(closed, trained, fixed, cotangents=len(self.live))

    @property
    def _first_product(self) -> int:
        """Which argument of the reverse is the first product."""
        return self.tile.weight_count + len(self.tile.types) + 1

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

        if number not in known or not all(map(is_inexact, operands)):
            return multiply(*operands)
        given = jax.custom_jvp(lambda left, right, value: value)

        def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
            (left, right, value), (d_left, d_right, _) = primals, tangents
            return value, multiply(d_left, right) + multiply(left, d_right)

        given.defjvp(tangent)
        return given(*operands, known[number])

    return product


# ---- the whole form ------------------------------------------------------------------


class WholeReverse(Reverse):
    """The reverse as the pytree that `jax.vjp` returns.

    Under `jax.checkpoint`, its leaves are weights and inputs, which are at hand in the
    reverse pass, and products, which are stored.
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

    def both_weights(self, leaves: Arrays) -> Weights:
        """Nothing is known of what the reverse reads."""
        return self.tile.weights(leaves)

    def keep(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and the leaves to be stored."""
        outputs, reverse = self._linearized(
            weights.leaves, inputs, self.tile.all_real(rows), rows
        )
        pairs = zip(jax.tree.leaves(reverse), self._axes, strict=True)
        return outputs, [jnp.moveaxis(x, a, 0) for x, a in pairs if a is not None]

    def move(self, given: Rows) -> tuple[Arrays, Arrays]:
        """The whole reverse; what belongs to weights is dead code."""
        return self._revived(given)(given.cotangents)[1], []

    def train(self, given: Rows, crossing: Arrays) -> Arrays:
        """The whole reverse; what belongs to inputs alone is dead code."""
        grads: Arrays = self._revived(given)(given.cotangents)[0]
        return grads

    def _revived(self, given: Rows) -> Any:
        """The reverse around what was stored of it."""
        _, reverse = self._linearized(
            given.weights.leaves, given.inputs, given.real, given.count
        )
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

        def look(weights: Arrays, inputs: Arrays, real: Any) -> None:
            _, reverse = self._linearized(weights, inputs, real, rows)
            known = {id(x) for x in jax.tree.leaves((weights, inputs, real))}
            for leaf in jax.tree.leaves(reverse):
                found.append(None if id(leaf) in known else spec_of(leaf))

        *rest, real = self.tile.row_specs(rows)
        count = self.tile.weight_count
        jax.eval_shape(look, rest[:count], rest[count:], real)
        return found

    def _linearized(
        self, leaves: Arrays, inputs: Arrays, real: Any, rows: int
    ) -> tuple[Arrays, Any]:
        """The outputs, and the reverse of those that are live."""
        policy = jax.checkpoint_policies.dots_saveable
        forward, cut = self.tile.forward(rows), self.tile.trained_count

        @functools.partial(jax.checkpoint, policy=policy, prevent_cse=False)
        def run(*arguments: Any) -> Arrays:
            return jaxprs.evaluate(forward, arguments)

        def outputs(trained: Arrays, moving: Arrays) -> tuple[Arrays, Arrays]:
            rest = *leaves[cut:], *self.merge(moving, inputs), real
            made = run(*trained, *rest)
            return [made[k] for k in self.live], made

        _, reverse, made = jax.vjp(
            outputs, list(leaves[:cut]), self.moving(inputs), has_aux=True
        )
        return made, reverse
