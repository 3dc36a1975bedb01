# SPDX-License-Identifier: Apache-2.0
"""The reverse of a kernel, split by dependence, so that nothing runs in two places.

Products of the forward pass are stored, elementwise values computed again. The jaxpr of
the reverse takes the stored products as arguments; it is split into what the cotangents
of inputs need and the rest. What crosses is mostly the cotangents of products.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax.extend import core

from jfold.base import jaxprs
from jfold.base.arrays import Arrays, Spec, Specs, one_row, row_axis
from jfold.base.jaxprs import is_inexact
from jfold.base.memo import Memoized, memoized
from jfold.device import xla
from jfold.device.activity import Activity, Rows, Stash
from jfold.device.hoisting import is_worth_it
from jfold.device.kernel import Kernel, Products, Weights
from jfold.device.split import Split, split

if TYPE_CHECKING:
    from jfold.base.jaxprs import Rule


@dataclass(frozen=True, eq=False)
class SplitReverse(Memoized):
    """The split form; see `Reverse`."""

    hoists: ClassVar[bool] = True
    kernel: Kernel
    flow: Activity

    @functools.cached_property
    def is_possible(self) -> bool:
        """Whether all that crosses has an axis of rows."""
        return None not in self._crossing_axes

    def residuals(self, known: Collection[int] = ()) -> Specs:
        """The products that the reverse reads."""
        return [
            self.kernel.product_row(k) for k in self.products_read if k not in known
        ]

    @functools.cached_property
    def crossing(self) -> list[Stash]:
        """As found by dependence; each takes the place of a product of the same shape
        that has been read by then, if there is one left."""
        halves, rows = self._split(2), self.residuals()
        places = list(map(self._place, self.products_read))
        found, taken = list[Stash](), set[int | None]()
        # A product is stored for the derivatives of what reads it. Once its own
        # cotangent is there they have been taken, and the one may lie where the other
        # lay.
        for variable, axis in zip(halves.crossing, self._crossing_axes, strict=True):
            row = one_row(jaxprs.spec(variable), axis or 0)
            fit = (
                j
                for j, place in enumerate(places)
                if rows[j] == row and j not in taken
                if halves.is_read_before(place, variable)
                and not halves.reads_late(place)
            )
            found.append(Stash(row, variable in halves.linear, next(fit, None)))
            taken.add(found[-1].replaces)
        return found

    @functools.cached_property
    def cotangents_read(self) -> dict[int, set[int]]:
        """As found by dependence."""
        closed = self._reverse(2)
        used = jaxprs.depends(closed)[self.kernel.trained_count :]
        first = len(closed.in_avals) - len(self.flow.live)
        found = [{i - first for i in places if i >= first} for places in used]
        return dict(zip(self.flow.places, found, strict=True))

    @functools.cached_property
    def late_inputs(self) -> tuple[int, ...]:
        """Those from outside of the recurrence alone whose cotangents take products
        that the others do not."""
        closed, kernel = self._reverse(2), self.kernel
        jaxpr, _ = jaxprs.opened(closed)
        if not jaxprs.is_straight(kernel.forward(2)):
            return ()
        found = jaxpr.outvars[kernel.trained_count :]
        made = {
            a: set(jaxprs.needed(jaxpr.eqns, [v]))
            for a, v in zip(self.flow.places, found, strict=True)
        }
        own = [steps for a, steps in made.items() if not kernel.external[a]]
        products = set(filter(is_worth_it, jaxprs.products(closed))).difference(*own)
        return tuple(
            a for a, steps in made.items() if kernel.external[a] and steps & products
        )

    @functools.cached_property
    def early_inputs(self) -> tuple[int, ...]:
        """The other active ones."""
        return tuple(a for a in self.flow.places if a not in self.late_inputs)

    def weights(self, arrays: Arrays) -> Weights:
        """Arrays [*shape each], with what the early half reads."""
        # What is transposed in one pass is mostly not so in the other.
        forward, reverse = self.kernel.forward(2), self._split(2).closed
        parts = (self.kernel.transposes(each, arrays) for each in (forward, reverse))
        return Weights(arrays, *parts)

    def save_residuals(
        self, weights: Weights, inputs: Arrays, rows: int, known: Products
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and the products that the reverse reads [rows, *shape] each."""
        wanted = [k for k in self.products_read if k not in known]
        return self.kernel.with_products(weights, inputs, rows, wanted, known)

    def joined(self, known: Products, own: Arrays) -> Arrays:
        """All that the reverse reads [rows, ...] each, given known and other ones."""
        rest = iter(own)
        return [known[k] if k in known else next(rest) for k in self.products_read]

    def pull_to_inputs(self, given: Rows) -> tuple[Arrays, Arrays]:
        """The early half: cotangents of inputs, what crosses [rows, *shape] each."""
        halves, arguments = self._split(given.count), self._arguments(given)
        known = self.kernel.shared(halves.closed, given.weights.reverse, given.count)
        moving, crossing = halves.run_early(arguments, known, self.kernel.rules)
        pairs = zip(crossing, self._crossing_axes, strict=True)
        return moving, [jnp.moveaxis(x, axis or 0, 0) for x, axis in pairs]

    def pull_to_weights(self, given: Rows, crossing: Arrays) -> tuple[Arrays, Arrays]:
        """The late half: gradients [*shape each] and cotangents of the late inputs, of
        what crosses [rows, *shape each]."""
        pairs = zip(crossing, self._crossing_axes, strict=True)
        crossed = [jnp.moveaxis(x, 0, axis or 0) for x, axis in pairs]
        halves, arguments = self._split(given.count), self._arguments(given)
        made = halves.run_late(arguments, crossed, self.kernel.rules)
        count = self.kernel.trained_count
        return made[:count], made[count:]

    # ---- products

    @functools.cached_property
    def products_read(self) -> tuple[int, ...]:
        """Those with rows that the reverse reads, by number."""
        halves = self._split(2)
        return tuple(k for k in self.kernel.row_axes if halves.reads(self._place(k)))

    def _place(self, product: int) -> int:
        """Which argument of the reverse a product is."""
        first = self.kernel.weight_count + len(self.kernel.types) + 1
        return first + list(self.kernel.row_axes).index(product)

    # ---- the two halves

    def _arguments(self, given: Rows) -> Arrays:
        """Of the jaxpr of the reverse, weights [*shape] each, then others [rows, ...]
        each; products that it does not read are zeros."""
        # The zeros are read by nothing, so XLA never makes them.
        read = dict(zip(self.products_read, given.residuals, strict=True))
        specs = list(map(jaxprs.spec, self.kernel.products(given.count)))
        made = [
            jnp.moveaxis(read[k], 0, axis)
            if k in read
            else jnp.zeros(specs[k].shape, specs[k].dtype)
            for k, axis in self.kernel.row_axes.items()
        ]
        rows = [*given.inputs, given.real, *made, *given.cotangents]
        return [*given.weights.arrays, *rows]

    @memoized
    def _split(self, rows: int) -> Split:
        trained = self.kernel.trained_count
        late = [trained + self.flow.places.index(a) for a in self.late_inputs]
        fixed, cotangents = self.kernel.weight_count, len(self.flow.live)
        return split(self._reverse(rows), [*range(trained), *late], fixed, cotangents)

    @memoized
    def _reverse(self, rows: int) -> core.ClosedJaxpr:
        """The jaxpr of gradients of weights, then cotangents of active inputs."""
        specs, structure = jax.tree.flatten(self._argument_specs(rows))
        numbers = list(self.kernel.row_axes)
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
        # Of two equations that say the same each place would have its own.
        return jaxprs.without_repeats(closed)

    def _argument_specs(self, rows: int) -> list[Specs]:
        """The arguments of the reverse, by kind."""
        kernel = self.kernel
        made = list(map(jaxprs.spec, kernel.products(rows)))
        *rest, real = kernel.row_specs(rows)
        outputs = kernel.forward(rows).out_avals
        return [
            rest[: kernel.trained_count],
            rest[kernel.trained_count : kernel.weight_count],
            rest[kernel.weight_count :],
            [real],
            [kernel.spec(made[k].shape, made[k].dtype) for k in kernel.row_axes],
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
