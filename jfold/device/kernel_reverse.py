# SPDX-License-Identifier: Apache-2.0
"""The reverse of a kernel, for any function of the user, in two halves.

`pull_to_inputs` runs in the loop: from the cotangents of a tile's outputs to those of
its inputs. `pull_to_weights` runs after the loop, over all rows of the operation: the
gradients of its weights, as a few large products, and cotangents of inputs that no loop
waits for, since they come from outside of it alone.

    forward   inputs ─▶ products ─▶ elementwise ─▶ outputs
                           │ residuals, stored        │
    reverse   inputs ◀─ pull_to_inputs ◀──────────── cotangents of outputs
                           │ stashes, stored
              weights ◀─ pull_to_weights

Products of the forward pass are stored, elementwise values computed again. The jaxpr of
the reverse takes the stored products as arguments. It is split by dependence into the
equations that cotangents of inputs need and the rest, so that little runs twice. An
equation that both halves need runs in the loop, and its result is stashed, unless it is
cheaper to run it twice; stashes are mostly cotangents of products. `whole_reverse` is
the reverse of functions that cannot be split.

In shapes, `rows` is the number of rows of a tile (neighbouring rows of one level) or of
a chunk (rows of any levels), and `*shape` the shape of one row or weight. Inputs,
outputs and products are numbered, products by their order in the kernel's jaxpr; those
computed before the loop are `known`.
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
from jfold.device.hoisting import is_worth_storing
from jfold.device.kernel import Kernel, Products, Weights
from jfold.device.linear import partition, replace_list

if TYPE_CHECKING:
    from jfold.base.jaxprs import Atom, Rule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """The operands of an operation's reverse on some of its rows.

    Attributes:
      inputs: list of arrays, each [rows, *shape].
      residuals: list of arrays that the forward pass stored or that were recomputed,
        each [rows, ...].
      cotangents: list of arrays, each [rows, *shape], of the outputs that have one.
      real: [rows] bool, whether the row counts in gradients of weights.
    """

    weights: Weights
    inputs: Arrays
    residuals: Arrays
    cotangents: Arrays
    real: jax.Array


@dataclass(frozen=True)
class Activity:
    """The inputs and outputs of an operation that cotangents flow through.

    Attributes:
      live: the outputs that have a cotangent.
      active: by input, whether its cotangent is computed.
    """

    live: tuple[int, ...]
    active: tuple[bool, ...]

    @property
    def places(self) -> list[int]:
        """The active inputs, those whose cotangent is computed."""
        return [a for a, is_active in enumerate(self.active) if is_active]


@dataclass(frozen=True)
class Stash:
    """A value that the reverse loops store for the gradients of weights.

    Attributes:
      row: the spec (shape and dtype) of one row.
      is_linear: whether it depends on the cotangents; a norm of an input does not.
      replaces: number of a residual in whose buffer it is stored, since only
        `pull_to_inputs` reads that residual; `None` if it has a buffer of its own.
    """

    row: Spec
    is_linear: bool
    replaces: int | None


@dataclass(frozen=True, eq=False)
class Halves:
    """The jaxpr of a reverse in two halves.

    Attributes:
      early: the equations that the loop runs, for early outputs and stashes, in order.
      late: the equations that run after the loop.
      early_outputs: the cotangents of `early_inputs`.
      late_outputs: the gradients of trained weights, then cotangents of `late_inputs`.
      crossing: stashes, variables that the early half computes and the late one reads.
      pulled: variables that depend on cotangents.
    """

    early: list[core.JaxprEqn]
    late: list[core.JaxprEqn]
    early_outputs: list[Atom]
    late_outputs: list[Atom]
    crossing: list[core.Var]
    pulled: set[core.Var]


@dataclass(frozen=True, eq=False)
class SplitReverse(Memoized):
    """The reverse of a kernel in two halves, one in loops and one after."""

    hoists: ClassVar[bool] = True
    kernel: Kernel
    flow: Activity

    @functools.cached_property
    def is_possible(self) -> bool:
        """Return whether the reverse can be split: each stash has an axis of rows."""
        return None not in self._crossing_axes

    def residuals(self, known: Collection[int] = ()) -> Specs:
        """Return the spec of a row of each of `products_read`, except for `known`."""
        wanted = [k for k in self.products_read if k not in known]
        return list(map(self.kernel.product_row, wanted))

    @functools.cached_property
    def crossing(self) -> list[Stash]:
        """The stashes: values that the reverse loop stores for gradients of weights.

        Each takes the place of a product of the same shape that has been read by then,
        if there is one left.
        """
        halves, rows = self._split(2), self.residuals()
        products = [self._products[k] for k in self.products_read]
        outputs = [*halves.early_outputs, *halves.crossing]
        late = set(jaxprs.read_by(halves.late, halves.late_outputs))
        stashes, taken = list[Stash](), set[int | None]()
        # A product is stored because the derivatives of its readers need it. Its
        # cotangent is the result of these derivatives, so it may overwrite the product.
        for variable, axis in zip(halves.crossing, self._crossing_axes, strict=True):
            row = one_row(jaxprs.spec(variable), axis or 0)
            fit = (
                j
                for j, product in enumerate(products)
                if rows[j] == row and j not in taken and product not in late
                if xla.is_read_before(product, variable, halves.early, outputs)
            )
            stashes.append(Stash(row, variable in halves.pulled, next(fit, None)))
            taken.add(stashes[-1].replaces)
        return stashes

    @functools.cached_property
    def cotangents_read(self) -> dict[int, set[int]]:
        """The outputs whose cotangents the cotangent of each active input depends on.

        By number of the input; an output is numbered by its index in `flow.live`.
        """
        closed = self._reverse(2)
        used = jaxprs.depends(closed)[self.kernel.trained_count :]
        first = len(closed.in_avals) - len(self.flow.live)
        outputs_read = [{i - first for i in places if i >= first} for places in used]
        return dict(zip(self.flow.places, outputs_read, strict=True))

    @functools.cached_property
    def late_inputs(self) -> tuple[int, ...]:
        """The inputs whose cotangents can wait until after the loop.

        They come from outside of the recurrence alone, and their cotangents take matrix
        products that the cotangents of other inputs do not take.
        """
        closed, kernel = self._reverse(2), self.kernel
        jaxpr, _ = jaxprs.open_jaxpr(closed)
        if not jaxprs.is_straight(kernel.forward(2)):
            return ()
        cotangents = jaxpr.outvars[kernel.trained_count :]
        needed = {
            a: set(jaxprs.slice_for(jaxpr.eqns, [v]))
            for a, v in zip(self.flow.places, cotangents, strict=True)
        }
        early = [steps for a, steps in needed.items() if not kernel.external[a]]
        # To wait is worth while only for a cotangent that has a large product to
        # itself: without one it costs the loop little.
        products = set(filter(is_worth_storing, jaxprs.products(closed))).difference(
            *early
        )
        return tuple(
            a for a, steps in needed.items() if kernel.external[a] and steps & products
        )

    @functools.cached_property
    def early_inputs(self) -> tuple[int, ...]:
        """The inputs whose cotangents are computed in the loop."""
        return tuple(a for a in self.flow.places if a not in self.late_inputs)

    def weights(self, arrays: Arrays) -> Weights:
        """Bundle `arrays`, weights [*shape], with transposes that both passes read."""
        return self.kernel.weights(arrays, self._reverse(2))

    def save_residuals(
        self, weights: Weights, inputs: Arrays, rows: int, known: Products
    ) -> tuple[Arrays, Arrays]:
        """Run the operation; return outputs, and `products_read` except for `known`."""
        wanted = [k for k in self.products_read if k not in known]
        return self.kernel.run(weights, inputs, rows, wanted, known)

    def pull_to_inputs(self, rows: Rows) -> tuple[Arrays, Arrays]:
        """Run the reverse's half in the loop; return input cotangents, and stashes.

        The cotangents are those of `early_inputs`. Each array is [rows, ...].
        """
        count = len(rows.real)
        halves, closed = self._split(count), self._reverse(count)
        env = jaxprs.environment(closed, self._arguments(rows))
        env |= self.kernel.shared(closed, rows.weights.reverse, count)
        wanted = [*halves.early_outputs, *halves.crossing]
        values = jaxprs.run(halves.early, env, wanted, self.kernel.rules)
        first = len(halves.early_outputs)
        pairs = zip(values[first:], self._crossing_axes, strict=True)
        return values[:first], [jnp.moveaxis(x, axis or 0, 0) for x, axis in pairs]

    def pull_to_weights(self, rows: Rows, crossing: Arrays) -> tuple[Arrays, Arrays]:
        """Run the reverse's half after the loop, on the stashes `crossing` [rows, ...].

        Return gradients of weights, each [*shape], and the cotangents of `late_inputs`,
        each [rows, *shape].
        """
        pairs = zip(crossing, self._crossing_axes, strict=True)
        crossed = [jnp.moveaxis(x, 0, axis or 0) for x, axis in pairs]
        halves, closed = self._split(len(rows.real)), self._reverse(len(rows.real))
        env = jaxprs.environment(closed, self._arguments(rows))
        env |= zip(halves.crossing, crossed, strict=True)
        results = jaxprs.run(halves.late, env, halves.late_outputs, self.kernel.rules)
        count = self.kernel.trained_count
        return results[:count], results[count:]

    # ---- products

    @functools.cached_property
    def products_read(self) -> tuple[int, ...]:
        """The products with an axis of rows that the reverse reads."""
        halves = self._split(2)
        steps, outputs = halves.early + halves.late, halves.early_outputs
        read = set(jaxprs.read_by(steps, [*outputs, *halves.late_outputs]))
        return tuple(k for k, v in self._products.items() if v in read)

    @functools.cached_property
    def _products(self) -> dict[int, core.Var]:
        """The arguments of the reverse's jaxpr that are products, by number."""
        jaxpr, _ = jaxprs.open_jaxpr(self._reverse(2))
        first = self.kernel.weight_count + len(self.kernel.types) + 1
        return dict(zip(self.kernel.row_axes, jaxpr.invars[first:], strict=False))

    # ---- the two halves

    def _arguments(self, rows: Rows) -> Arrays:
        """Flatten the operands `rows` to the arguments of the jaxpr of the reverse.

        Products that the reverse does not read are zeros, which XLA never computes.
        """
        read = dict(zip(self.products_read, rows.residuals, strict=True))
        specs = list(map(jaxprs.spec, self.kernel.products(len(rows.real))))
        products = [
            jnp.moveaxis(read[k], 0, axis)
            if k in read
            else jnp.zeros(specs[k].shape, specs[k].dtype)
            for k, axis in self.kernel.row_axes.items()
        ]
        per_row = [*rows.inputs, rows.real, *products, *rows.cotangents]
        return [*rows.weights.arrays, *per_row]

    @memoized
    def _split(self, rows: int) -> Halves:
        """Split the reverse on `rows` rows in two halves, by dependence."""
        jaxpr, _ = jaxprs.open_jaxpr(self._reverse(rows))
        trained, cotangents = self.kernel.trained_count, len(self.flow.live)
        late = {trained + self.flow.places.index(a) for a in self.late_inputs}
        late.update(range(trained))
        late_outputs = [jaxpr.outvars[i] for i in sorted(late)]
        early_outputs = [v for i, v in enumerate(jaxpr.outvars) if i not in late]
        first = len(jaxpr.invars) - cotangents
        _, pulled = jaxprs.reachable(jaxpr, jaxpr.invars[first:])
        # Outputs that the loop wants are early, with all equations that they need.
        early = jaxprs.slice_for(jaxpr.eqns, early_outputs)
        # The results of these equations may be stashed if they have rows, unless they
        # are cheaper to compute twice.
        varying, _ = jaxprs.reachable(jaxpr, jaxpr.invars[self.kernel.weight_count :])
        repeated = _repeated(jaxpr, pulled)
        shared = {e for e in early if e in varying and e not in repeated}
        needed = jaxprs.slice_for(jaxpr.eqns, late_outputs)
        late_steps = [e for e in needed if e not in shared]
        computed = {v for e in shared for v in e.outvars}
        read = jaxprs.read_by(late_steps, late_outputs)
        crossing = list(dict.fromkeys(v for v in read if v in computed))
        # Equations that `late_steps` need only through stashes drop out.
        late_steps = jaxprs.slice_for(late_steps, late_outputs, known=computed)
        return Halves(early, late_steps, early_outputs, late_outputs, crossing, pulled)

    @functools.cached_property
    def _crossing_axes(self) -> list[int | None]:
        """The axis of rows of each stash; `None` for a stash that has none."""
        pairs = zip(self._split(2).crossing, self._split(3).crossing, strict=True)
        return [row_axis(*map(jaxprs.spec, pair)) for pair in pairs]

    @memoized
    def _reverse(self, rows: int) -> core.ClosedJaxpr:
        """Return the jaxpr of the reverse on `rows` rows, before it is split.

        Its results are gradients of trained weights, each [*shape], then cotangents of
        active inputs, each [rows, *shape].
        """
        specs, structure = jax.tree.flatten(self._argument_specs(rows))
        numbers = list(self.kernel.row_axes)
        forward = self.kernel.forward(rows)

        def reverse(*arguments: jax.Array) -> Arrays:
            parts = jax.tree.unflatten(structure, arguments)
            trained, others, inputs, real, products, cotangents = parts
            known = dict(zip(numbers, products, strict=True))

            def live_outputs(trained: Arrays, moving: Arrays) -> Arrays:
                all_inputs = replace_list(inputs, moving, self.flow.active)
                rules = {'dot_general': _stored_products(known)}
                operands = [*trained, *others, *all_inputs, *real]
                outputs = jaxprs.evaluate(forward, operands, rules)
                return [outputs[k] for k in self.flow.live]

            # Only outputs with a cotangent are reversed. Products are read from the
            # arguments, all else is computed again.
            moving = partition(inputs, self.flow.active)
            pull = jax.vjp(live_outputs, trained, moving)[1]
            of_weights, of_inputs = pull(cotangents)
            return [*of_weights, *of_inputs]

        closed = jaxprs.trace(reverse, specs)
        jaxprs.check_rules(closed)
        fixed, shares = self.kernel.weight_count, self.kernel.shares(rows)
        # The reverse has further products, of cotangents, to be written rows first as
        # well.
        closed = xla.rows_first(closed, fixed, shares)
        # Each half could otherwise keep its own of two equal equations.
        return jaxprs.without_repeats(closed)

    def _argument_specs(self, rows: int) -> list[Specs]:
        """Return specs of `_reverse`'s arguments, in the six groups that it unpacks."""
        kernel, trained = self.kernel, self.kernel.trained_count
        stored = list(map(jaxprs.spec, kernel.products(rows)))
        outputs = kernel.forward(rows).out_avals
        return [
            kernel.weight_specs[:trained],
            kernel.weight_specs[trained:],
            kernel.inputs(rows),
            [kernel.spec((rows,), bool)],  # the mask of real rows
            [kernel.spec(stored[k].shape, stored[k].dtype) for k in kernel.row_axes],
            [kernel.spec(outputs[k].shape, outputs[k].dtype) for k in self.flow.live],
        ]


# Functions that cost less than storing and reading their results.
_CHEAP = xla.REPEATED | frozenset(
    'acos acosh asin asinh atan atan2 atanh cbrt cos cosh div erf erf_inv erfc exp '
    'exp2 expm1 log log1p logistic pow reduce_and reduce_max reduce_min reduce_or '
    'reduce_sum rem round rsqrt sin sinh sqrt tan tanh'.split()
)


def _repeated(jaxpr: core.Jaxpr, pulled: set[core.Var]) -> set[core.JaxprEqn]:
    """Return equations of `jaxpr` that are cheaper to run in both halves than to store.

    They read only arguments and results of other such equations. They are all moves of
    data, and cheap equations that depend on no cotangent (no variable in `pulled`).
    """
    at_hand, repeated = {*jaxpr.invars, *jaxpr.constvars}, set[core.JaxprEqn]()
    for equation in jaxpr.eqns:
        inputs = jaxprs.variables(equation.invars)
        # Of equations on cotangents only moves of data are repeated: with all cheap
        # ones most of the reverse would run twice.
        chosen = jaxprs.MOVES if pulled.intersection(inputs) else _CHEAP
        if equation.primitive.name in chosen and at_hand.issuperset(inputs):
            at_hand.update(equation.outvars)
            repeated.add(equation)
    return repeated


def _stored_products(known: dict[int, jax.Array]) -> Rule:
    """Return a rule that replaces `dot_general`s by their stored results in `known`.

    The derivatives are still those of the product.
    """
    # Numbers follow the order of the jaxpr, as in `Kernel.products`.
    count = itertools.count()

    def product(equation: core.JaxprEqn, operands: Arrays) -> jax.Array:
        number = next(count)

        def multiply(*operands: jax.Array) -> jax.Array:
            return jaxprs.apply(equation, operands)

        # A product of weights alone has no rows, and is not stored.
        if number not in known or not all(map(is_inexact, operands)):
            return multiply(*operands)
        # The value is the stored product; `operands` are there only for their tangents.
        stored = jax.custom_jvp(lambda left, right, value: value)

        def tangent(
            primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
        ) -> tuple[jax.Array, jax.Array]:
            (left, right, value), (d_left, d_right, _) = primals, tangents
            # The product rule; `value` needs none, since it is the product itself.
            return value, multiply(d_left, right) + multiply(left, d_right)

        stored.defjvp(tangent)
        value: jax.Array = stored(*operands, known[number])
        return value

    return product
