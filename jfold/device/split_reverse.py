# SPDX-License-Identifier: Apache-2.0
"""The reverse of a kernel, split by dependence, so that nothing runs in two places.

Products of the forward pass are stored, elementwise values computed again. The jaxpr of
the reverse takes the stored products as arguments; it is split into what the cotangents
of inputs need and the rest. What crosses is mostly the cotangents of products.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.extend import core

from jfold.device import jaxprs, xla
from jfold.device.arrays import Arrays, Spec, Specs
from jfold.device.jaxprs import is_inexact
from jfold.device.kernel import Kernel, Weights
from jfold.device.rows import Crossing, Flow, Rows, one_row, row_axis
from jfold.device.split import Split, split
from jfold.kept import Owner, kept

if TYPE_CHECKING:
    from jfold.device.jaxprs import Rule


@dataclass(frozen=True, eq=False)
class SplitReverse(Owner):
    """The split form; see `Reverse`."""

    kernel: Kernel
    flow: Flow

    @functools.cached_property
    def is_possible(self) -> bool:
        """Whether all that crosses has an axis of rows."""
        return None not in self._crossing_axes

    @functools.cached_property
    def residuals(self) -> Specs:
        """The products that the reverse reads."""
        two = self._products(2)
        return [one_row(two[i], axis) for i, axis in self._products_read]

    @functools.cached_property
    def crossing(self) -> list[Crossing]:
        """As found by dependence; each takes the place of a product of the same shape
        that has been read by then, if there is one left."""
        halves, first = self._split(2), self._first_product
        places = [first + self._row_products.index(x) for x in self._products_read]
        found, taken = list[Crossing](), set[int | None]()
        # A product is stored for the derivatives of what reads it. Once its own
        # cotangent is there they have been taken, and the one may lie where the other
        # lay.
        for variable, axis in zip(halves.crossing, self._crossing_axes, strict=True):
            row = one_row(jaxprs.spec(variable), axis or 0)
            fit = (
                j
                for j, place in enumerate(places)
                if self.residuals[j] == row and j not in taken
                if halves.is_read_before(place, variable)
                and not halves.reads_late(place)
            )
            found.append(Crossing(row, variable in halves.linear, next(fit, None)))
            taken.add(found[-1].replaces)
        return found

    @functools.cached_property
    def cotangents_read(self) -> list[set[int]]:
        """As found by dependence."""
        closed = self._split(2).closed
        used = jaxprs.depends(closed)[self.kernel.trained_count :]
        first = len(closed.in_avals) - len(self.flow.live)
        return [{i - first for i in places if i >= first} for places in used]

    def weights(self, arrays: Arrays) -> Weights:
        """Arrays [*shape each], with what the early half reads."""
        # What is transposed in one pass is mostly not so in the other.
        forward, reverse = self.kernel.forward(2), self._split(2).closed
        parts = (self.kernel.transposes(each, arrays) for each in (forward, reverse))
        return Weights(arrays, *parts)

    def save_residuals(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and the products that the reverse reads [rows, *shape] each."""
        outputs, made = self._with_products(weights, inputs, rows)
        axes = self._products_read
        return outputs, [jnp.moveaxis(made[i], axis, 0) for i, axis in axes]

    def pull_to_inputs(self, given: Rows) -> tuple[Arrays, Arrays]:
        """The early half: cotangents of inputs, what crosses [rows, *shape] each."""
        halves, arguments = self._split(given.count), self._arguments(given)
        known = self.kernel.shared(halves.closed, given.weights.reverse, given.count)
        moving, crossing = halves.run_early(arguments, known, self.kernel.rules)
        pairs = zip(crossing, self._crossing_axes, strict=True)
        return moving, [jnp.moveaxis(x, axis or 0, 0) for x, axis in pairs]

    def pull_to_weights(self, given: Rows, crossing: Arrays) -> Arrays:
        """The late half: gradients [*shape each], of crossing [rows, *shape each]."""
        pairs = zip(crossing, self._crossing_axes, strict=True)
        crossed = [jnp.moveaxis(x, 0, axis or 0) for x, axis in pairs]
        halves, arguments = self._split(given.count), self._arguments(given)
        return halves.run_late(arguments, crossed, self.kernel.rules)

    # ---- products

    def _with_products(
        self, weights: Weights, inputs: Arrays, rows: int
    ) -> tuple[Arrays, Arrays]:
        """Outputs [rows, *shape] each, and all products of the forward pass in their
        order [rows, ...] each, some without rows."""
        # Known by their order: every run of the jaxpr makes them in the same one.
        made: Arrays = []

        def product(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
            """A product [rows, ...], or [...] of weights alone."""
            made.append(self.kernel.product(equation, operands))
            return made[-1]

        closed = self.kernel.forward(rows)
        rules = {**self.kernel.rules, 'dot_general': product}
        arguments = [*weights.arrays, *inputs, self.kernel.all_real(rows)]
        known = self.kernel.shared(closed, weights.forward, rows)
        return jaxprs.evaluate(closed, arguments, rules, known), made

    @kept
    def _products(self, rows: int) -> Specs:
        """All products of the forward pass."""

        def made(arrays: Arrays, inputs: Arrays) -> Arrays:
            """Of weights [*shape each] and inputs [rows, *shape each]."""
            return self._with_products(self.kernel.weights(arrays), inputs, rows)[1]

        inputs = self.kernel.inputs(rows)
        found: Specs = jax.eval_shape(made, self.kernel.weight_specs, inputs)
        # Of shapes beside axes that are not manual JAX forgets on which mesh they are.
        return [self.kernel.spec(x.shape, x.dtype) for x in found]

    @functools.cached_property
    def _row_products(self) -> list[tuple[int, int]]:
        """Number and row axis of the products that have rows."""
        pairs = zip(self._products(2), self._products(3), strict=True)
        axes = [row_axis(*pair) for pair in pairs]
        return [(i, axis) for i, axis in enumerate(axes) if axis is not None]

    @functools.cached_property
    def _products_read(self) -> list[tuple[int, int]]:
        """Those of them that the reverse reads."""
        halves = self._split(2)
        found = enumerate(self._row_products, self._first_product)
        return [product for place, product in found if halves.reads(place)]

    @property
    def _first_product(self) -> int:
        """Which argument of the reverse is the first product."""
        return self.kernel.weight_count + len(self.kernel.types) + 1

    # ---- the two halves

    def _arguments(self, given: Rows) -> Arrays:
        """Of the jaxpr of the reverse, weights [*shape] each, then others [rows, ...]
        each; products that it does not read are zeros."""
        # The zeros are read by nothing, so XLA never makes them.
        read, specs = iter(given.residuals), self._products(given.count)
        made = [
            jnp.moveaxis(next(read), 0, axis)
            if (i, axis) in self._products_read
            else jnp.zeros(specs[i].shape, specs[i].dtype)
            for i, axis in self._row_products
        ]
        rows = [*given.inputs, given.real, *made, *given.cotangents]
        return [*given.weights.arrays, *rows]

    @kept
    def _split(self, rows: int) -> Split:
        specs, structure = jax.tree.flatten(self._argument_specs(rows))
        numbers = [i for i, _ in self._row_products]
        forward = self.kernel.forward(rows)

        def reverse(*arguments: jax.Array) -> Arrays:
            """Gradients [*shape each], then cotangents [rows, *shape each]."""
            parts = jax.tree.unflatten(structure, arguments)
            trained, others, inputs, real, made, cotangents = parts
            known = dict(zip(numbers, made, strict=True))

            def live_outputs(trained: Arrays, moving: Arrays) -> Arrays:
                """The outputs that are live [rows, *shape each]."""
                given = self.flow.merged(inputs, moving)
                rules = {'dot_general': _stored_products(known)}
                outputs = jaxprs.evaluate(
                    forward, [*trained, *others, *given, *real], rules
                )
                return [outputs[k] for k in self.flow.live]

            # Products come from the arguments; elementwise values are computed again.
            moving = self.flow.chosen(inputs)
            of_weights, of_inputs = jax.vjp(live_outputs, trained, moving)[1](
                cotangents
            )
            return [*of_weights, *of_inputs]

        fixed, closed = self.kernel.weight_count, jaxprs.trace(reverse, specs)
        jaxprs.check_rules(closed)
        shares = self.kernel.shares(rows)
        # It has products of its own, of cotangents.
        closed = xla.rows_first(closed, specs, fixed, shares)
        late = self.kernel.trained_count
        return split(closed, late, fixed, cotangents=len(self.flow.live))

    def _argument_specs(self, rows: int) -> list[Specs]:
        """The arguments of the reverse, by kind."""
        kernel, made = self.kernel, self._products(rows)
        *rest, real = kernel.row_specs(rows)
        outputs = kernel.forward(rows).out_avals
        return [
            rest[: kernel.trained_count],
            rest[kernel.trained_count : kernel.weight_count],
            rest[kernel.weight_count :],
            [real],
            [made[i] for i, _ in self._row_products],
            [kernel.spec(outputs[k].shape, outputs[k].dtype) for k in self.flow.live],
        ]

    @functools.cached_property
    def _crossing_axes(self) -> list[int | None]:
        """The row axis of each that crosses; `None` if one has no clear one."""
        pairs = zip(_specs(self._split(2)), _specs(self._split(3)), strict=True)
        return [row_axis(two, three) for two, three in pairs]


def _specs(halves: Split) -> list[Spec]:
    """Shapes and dtypes of what crosses."""
    return list(map(jaxprs.spec, halves.crossing))


def _stored_products(known: dict[int, jax.Array]) -> Rule:
    """A rule that gives products as stored [rows, ...] each, by number, with the
    derivatives of the product."""
    count = itertools.count()

    def product(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
        number = next(count)

        def multiply(*operands: jax.Array) -> jax.Array:
            return jaxprs.apply(equation, operands)

        # A product without rows, of weights alone, is not stored.
        if number not in known or not all(map(is_inexact, operands)):
            return multiply(*operands)
        # `operands` take part for their tangents alone, `value` for itself alone.
        stored = jax.custom_jvp(lambda left, right, value: value)

        def tangent(
            primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
        ) -> tuple[jax.Array, jax.Array]:
            (left, right, value), (d_left, d_right, _) = primals, tangents
            return value, multiply(d_left, right) + multiply(left, d_right)

        stored.defjvp(tangent)
        value: jax.Array = stored(*operands, known[number])
        return value

    return product
