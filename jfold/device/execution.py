# SPDX-License-Identifier: Apache-2.0
"""The execution of a program, without its arrays: kernels, layout, policies.

Cotangents flow from the results that the loss uses, and nowhere else. An operation that
the loss does not use has no reverse, so neither zero times infinity nor a function
without a gradient does harm there. Matrix products are stored for the reverse, unless a
user wants them recomputed, or they have to be; elementwise values are recomputed.

Products are numbered by their order in the kernel's jaxpr; hoisted ones, called
`known`, are computed before the loop. In shapes, `rows` counts the rows of a tile.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import jax

from jfold.base.arrays import Arrays, Specs, Varying
from jfold.base.errors import naming_layer
from jfold.device import xla
from jfold.device.buffers import buffer_spec
from jfold.device.hoisting import ROOM, hoisted_products
from jfold.device.kernel import Kernel, Products, Weights, make_kernel
from jfold.device.kernel_reverse import Activity
from jfold.device.linear import partition
from jfold.device.whole_reverse import Reverse, make_reverse
from jfold.program.components import (
    LEAVING,
    Component,
    Place,
    are_recurrent,
    external_inputs,
    first_results,
    outputs_of,
    phases,
    results_in,
    segment_sums,
    sources,
    union,
)
from jfold.program.operations import Operation, Operations, ProducerSet
from jfold.scheduling.layout import (
    Layout,
    active_types,
    has_gradient,
    layout,
    running_components,
)
from jfold.scheduling.spec import RECOMPUTE_ALL, Spec
from jfold.scheduling.tiles import strategy_of

if TYPE_CHECKING:
    from chex import ArrayTree

T = TypeVar('T')


@dataclass(frozen=True, eq=False)
class Policy:
    """The choice of the matrix products of an operation that the forward pass stores.

    Attributes:
      kernel: the kernel of the operation.
      reverse: the reverse whose residuals are stored; if `None`, none are, and the
        reverse pass runs the forward pass of its rows again.
      hoists: whether hoisted products may be stored while the forward pass runs.
    """

    kernel: Kernel
    reverse: Reverse | None
    hoists: bool

    @functools.cached_property
    def hoisted(self) -> tuple[int, ...]:
        """The numbers of products that are computed before the loop and read later."""
        of_reverse = self.reverse.products_read if self.reverse else ()
        return hoisted_products(self.kernel, of_reverse) if self.hoists else ()

    def rows(self, known: Collection[int] = ()) -> Specs:
        """Return the specs of one row of each residual, except products in `known`."""
        return self.reverse.residuals(known) if self.reverse else []

    def run(
        self, weights: Weights, inputs: Arrays, rows: int, known: Products
    ) -> tuple[Arrays, Arrays]:
        """Run a tile; return its outputs, and its residuals except products in `known`.

        All are [rows, ...], as are `inputs` and `known`.
        """
        if self.reverse:
            return self.reverse.save_residuals(weights, inputs, rows, known)
        return self.kernel.run(weights, inputs, rows, (), known)

    def joined(self, known: Products, others: Arrays) -> Arrays:
        """Return all residuals, each [rows, ...], in the order the reverse reads them.

        They are the products `known`, computed before the loop, and `others`.
        """
        if not self.reverse or not known:
            return others
        read, remaining = self.reverse.products_read, iter(others)
        return [known[k] if k in known else next(remaining) for k in read]


@dataclass(frozen=True, eq=False)
class Execution:
    """The static data that running a program needs: kernels, layout and tensors.

    Attributes:
      spec: the program, with capacities and options.
      layout: the places of rows in buffers, and of sections in the index array.
      components: in the order in which they run; operations whose capacity is zero are
        left out.
      kernels: by number of the operation; segment sums, and operations whose capacity
        is zero, have none.
      tensors: by place of a tensor that is returned, the outputs that it may be, as a
        bit set: tensors of results; of `loops`, the outputs that leave them.
      varying: the axes of an enclosing `jax.shard_map` that the arrays vary over.
      program_execution: the execution of the whole program, if this one is `loops`, a
        part of it; else `None`.
    """

    spec: Spec
    layout: Layout
    components: tuple[Component, ...]
    kernels: Mapping[int, Kernel]
    tensors: Mapping[Place, ProducerSet]
    varying: Varying | None
    program_execution: Execution | None = None

    @functools.cached_property
    def loops(self) -> Execution:
        """The execution of loops alone; its tensors are the values read outside."""
        applied, leaving = self.program.applied, phases(self.program).leaving
        if not applied:
            return self
        return replace(
            self,
            components=tuple(
                replace(x, operations=()) if applied.intersection(x.operations) else x
                for x in self.components
            ),
            kernels={o: x for o, x in self.kernels.items() if o not in applied},
            tensors={(LEAVING, n): 1 << n for n in results_in(leaving)},
            program_execution=self,
        )

    @property
    def program(self) -> Operations:
        """The program that is run."""
        return self.spec.program

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations of the program, also those whose capacity is zero."""
        return self.program.operations

    def shift(self, o: int) -> int:
        """Return by how many rows operation `o` shifts stashes in residual buffers.

        A stash may be written to the buffer of a residual that has been read. The shift
        is the width of the widest tile where tiles overlap, and zero elsewhere.
        """
        # Operations without recurrence defer nothing, so they stash nothing.
        return max(self.layout.widths[o]) if are_recurrent(self.program)[o] else 0

    def residual_buffers(self, o: int, rows: Specs) -> Specs:
        """Return specs of operation `o`'s residual buffers, given those of a row."""
        size = self.layout.region[o] + self.shift(o)
        return [buffer_spec(size, row) for row in rows]

    def stash_buffers(
        self, o: int, pullback: Pullback
    ) -> dict[int, jax.ShapeDtypeStruct]:
        """Map numbers of stashes of operation `o` to the specs of their buffers.

        Empty unless `pullback.defers`. Stashes in buffers of residuals are left out.
        """
        rows, stashes = self.layout.region[o], enumerate(pullback.reverse.crossing)
        specs = {k: buffer_spec(rows, x.row) for k, x in stashes if x.replaces is None}
        return specs if pullback.defers else {}

    def apart(self, tree: T) -> T:
        """Return `tree` unchanged, behind an XLA barrier if `reproducible`."""
        leaves, structure = jax.tree.flatten(tree)
        if not (self.spec.reproducible and leaves):
            return tree
        result: T = jax.tree.unflatten(structure, xla.materialized(leaves))
        return result

    def is_trained(self, o: int) -> bool:
        """Return whether operation `o` has weights that can get gradients.

        A weight gets a gradient if an output of the operation has a cotangent.
        """
        if o not in self.kernels or not self.kernels[o].trained_count:
            return False
        # A value that a function closes over, traced outside, is also a weight.
        operation = self.operations[o]
        active = active_types(self.program).intersection(operation.inputs)
        return bool(active) or has_gradient(operation)

    @functools.cached_property
    def forward_alone(self) -> dict[int, Policy]:
        """The policy of each operation for a pass without reverse: store no residuals.

        Products are hoisted out of loops where they fit in `hoisting.ROOM`; always if
        sums are reproducible or the number of steps is fixed.
        """
        # A reproducible result must not depend on the capacity.
        always = strategy_of(self.spec).fixed or self.spec.reproducible
        policies = {}
        for o, kernel in self.kernels.items():
            rows = map(kernel.product_row, hoisted_products(kernel))
            size = sum(math.prod(x.shape) * x.dtype.itemsize for x in rows)
            fits = self.layout.region[o] * size <= ROOM
            policies[o] = Policy(kernel, None, always or fits)
        return policies

    @functools.cached_property
    def policies(self) -> dict[int, Policy]:
        """The policy of each operation, which chooses the products to store.

        All results are taken to have a cotangent. A function without a gradient stores
        nothing: taking its gradient raises later.
        """
        if self.spec.residuals == RECOMPUTE_ALL:
            return self.forward_alone
        policies = dict(self.forward_alone)
        for o, flow in self.flows([True for _ in self.tensors]).items():
            with contextlib.suppress(Exception):  # whatever a user's function raises
                reverse = self._reverse(o, flow)
                policies[o] = Policy(self.kernels[o], reverse, reverse.hoists)
        return policies

    # ---- the reverse

    def flows(self, used: Sequence[bool]) -> dict[int, Activity]:
        """Return, by operation, which of its inputs and outputs cotangents reach.

        Operations that no cotangent reaches are left out.

        Args:
          used: for each of `tensors`, whether it has a cotangent.
        """
        inputs = sources(self.program).inputs
        live, before = union(partition([*self.tensors.values()], used)), 0
        flows: dict[int, Activity] = {}
        # A result of a recurrence may flow into itself: iterate to a fixed point.
        while live != before:
            before, candidates = live, ((o, self._flow(o, live)) for o in self.kernels)
            flows = {o: flow for o, flow in candidates if flow is not None}
            for o, flow in flows.items():
                live |= union(partition(inputs[o], flow.active))
            # Segment sums have no kernel; cotangents pass through.
            for o in self._ran.difference(self.kernels):
                live |= union(inputs[o]) if live & outputs_of(self.program)[o] else 0
        return flows

    @functools.cached_property
    def _ran(self) -> frozenset[int]:
        """The numbers of the operations whose capacity is above zero."""
        return frozenset(o for part in self.components for o in part.operations)

    @functools.cached_property
    def trainable(self) -> ProducerSet:
        """The bit set of all outputs that depend on a trained weight."""
        if self.program_execution is not None:
            return self.program_execution.trainable
        inputs, outputs = sources(self.program).inputs, outputs_of(self.program)
        result, before = union(outputs[o] for o in self._ran if self.is_trained(o)), -1
        while result != before:  # a fixed point, as recurrences read themselves
            before = result
            for o in self._ran:
                result |= outputs[o] if union(inputs[o]) & result else 0
        return result

    def _flow(self, o: int, live: ProducerSet) -> Activity | None:
        """Return the inputs and outputs of `o` that cotangents of outputs `live` reach.

        `None` if they reach no output, or if no input and no weight needs a gradient.
        """
        operation, active = self.operations[o], active_types(self.program)
        first = first_results(self.program)[o]
        # `live` is a bit set: bit `first + k` stands for output k.
        outputs = tuple(
            k
            for k, t in enumerate(operation.outputs)
            if live >> first + k & 1 and t in active
        )
        if not outputs:
            return None
        # No cotangent is computed of an input that no live output depends on, nor of
        # one whose value depends on no trained weight. If none is left, there may still
        # be weights to train.
        read = set().union(*(self.kernels[o].reads[k] for k in outputs))
        pairs = zip(operation.inputs, sources(self.program).inputs[o], strict=True)
        inputs = tuple(
            a in read and t in active and bool(producers & self.trainable)
            for a, (t, producers) in enumerate(pairs)
        )
        return Activity(outputs, inputs) if any(inputs) or self.is_trained(o) else None

    def pullbacks(self, used: Sequence[bool]) -> dict[int, Pullback]:
        """Map the number of each operation that cotangents reach to its `Pullback`.

        Args:
          used: for each of `tensors`, whether it has a cotangent.

        Raises:
          Exception: whatever a function without a gradient raises, with a note of its
            layer.
        """
        result: dict[int, Pullback] = {}
        for o, flow in self.flows(used).items():
            reverse = self._reverse(o, flow)
            # Reverses are memoized, so equal ones are one object. If the policy has
            # another, its residuals are for cotangents of other outputs.
            stores = self.policies[o].reverse is reverse
            places = self.is_trained(o), are_recurrent(self.program)[o]
            result[o] = Pullback(reverse, stores, *places)
        return result

    def _reverse(self, o: int, flow: Activity) -> Reverse:
        with naming_layer(self.operations[o].layer.name):
            return make_reverse(self.kernels[o], flow)


@dataclass(frozen=True, eq=False)
class Pullback:
    """The reverse of an operation, and where it runs.

    Attributes:
      reverse: the reverse of the kernel, in two halves.
      stores: whether the forward pass has stored the residuals; else they are
        recomputed.
      to_weights: whether the weights get gradients.
      is_recurrent: whether the operation belongs to a recurrent component.
    """

    reverse: Reverse
    stores: bool
    to_weights: bool
    is_recurrent: bool

    @property
    def to_inputs(self) -> bool:
        """Return whether the reverse writes cotangents of `early_inputs` to buffers.

        Sums write none, since all inputs have the cotangent of the output.
        """
        is_sum = self.reverse.kernel.operation.is_sum
        return bool(self.reverse.early_inputs) and not is_sum

    @property
    def runs_at_once(self) -> bool:
        """Return whether one pass over chunks computes gradients of weights and inputs.

        In a recurrence, the loop computes the cotangents of inputs first.
        """
        return self.to_weights and not self.is_recurrent

    @property
    def defers(self) -> bool:
        """Return whether gradients of weights are taken after the loops, from stashes.

        Cotangents of late inputs, which no loop waits for, are computed there as well.
        """
        waits = self.to_weights or bool(self.reverse.late_inputs)
        return waits and self.is_recurrent and self.stores


def make_execution(
    spec: Spec, params: Mapping[str, ArrayTree], varying: Varying | None = None
) -> Execution:
    """Return the `Execution` of a spec's program.

    Args:
      params: by layer name, parameters or specs of them.
      varying: the axes of an enclosing `jax.shard_map` that all arrays vary over.
    """
    program, sums = spec.program, segment_sums(spec.program)
    # Products hoisted from a loop are stored, which `recompute all` forbids.
    stores = spec.residuals != RECOMPUTE_ALL
    external = external_inputs(program)
    kernels = {
        o: make_kernel(
            operation,
            operation.layer.own(params),
            tuple(program.types[t] for t in operation.inputs),
            varying,
            spec.reproducible,
            external[o] if stores else (False,) * len(operation.inputs),
        )
        for o, operation in enumerate(program.operations)
        if spec.capacity.rows[o] and o not in sums
    }
    results = enumerate(sources(program).results, len(program.operations))
    tensors = {(r, j): x for r, row in results for j, x in enumerate(row)}
    places = layout(spec), running_components(spec)
    return Execution(spec, *places, kernels, tensors, varying)
