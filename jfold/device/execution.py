# SPDX-License-Identifier: Apache-2.0
"""What an execution does, apart from arrays: kernels, loops and results.

Cotangents flow from the results that the loss uses, and nowhere else: what is not used
in the expression, or not by the loss, has no reverse, so that neither a zero times
infinity nor a function without a gradient can harm there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import jax

from jfold.base.arrays import Varying
from jfold.base.errors import gradient_of
from jfold.device import xla
from jfold.device.activity import Activity
from jfold.device.hoisting import ROOM, hoisted_bytes
from jfold.device.kernel import Kernel, make_kernel
from jfold.device.kernel_reverse import Reverse, make_reverse
from jfold.device.residuals import Policy, RecomputeAll, SaveProducts
from jfold.device.results import Returned, returned
from jfold.program.components import (
    Component,
    external_inputs,
    first_results,
    sources,
    union,
)
from jfold.program.operations import Operation, Operations, ProducerSet
from jfold.scheduling.layout import Layout, active_types, has_gradient, layout, running
from jfold.scheduling.slots import sum_operations
from jfold.scheduling.spec import RECOMPUTE_ALL, Spec
from jfold.scheduling.tiles import strategy_of

if TYPE_CHECKING:
    from chex import ArrayTree

T = TypeVar('T')


@dataclass(frozen=True, eq=False)
class Execution:
    """One way to run a program.

    Attributes:
      layout: where everything lies.
      components: in their order, with the operations that there is room for.
      kernels: by operation, of those that there is room for; of no sums that are taken
        at once.
      tensors: what is returned.
      varying: over which axes of an enclosing `jax.shard_map` the arrays vary.
    """

    spec: Spec
    layout: Layout
    components: tuple[Component, ...]
    kernels: Mapping[int, Kernel]
    tensors: tuple[Returned, ...]
    varying: Varying | None

    @property
    def program(self) -> Operations:
        """What is run."""
        return self.spec.program

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Of the program, whether there is room for them or not."""
        return self.program.operations

    def shift(self, o: int) -> int:
        """How many rows further on what crosses takes the place of products: as many as
        the widest tile has, where tiles overlap."""
        recurrent = self.components[self.layout.component[o]].recurrent
        return max(self.layout.widths[o]) if recurrent else 0

    def apart(self, tree: T) -> T:
        """Arrays, of which XLA does not see how they were made, if that is to make no
        difference to what is made of them."""
        leaves, structure = jax.tree.flatten(tree)
        if not (self.spec.reproducible and leaves):
            return tree
        made: T = jax.tree.unflatten(structure, xla.materialized(leaves))
        return made

    def is_trained(self, o: int) -> bool:
        """Whether the weights of an operation get gradients, if its outputs have."""
        if o not in self.kernels or not self.kernels[o].trained_count:
            return False
        # A value that a function closes over, traced outside, is a weight as well.
        operation = self.operations[o]
        active = active_types(self.program).intersection(operation.inputs)
        return bool(active) or has_gradient(operation)

    @functools.cached_property
    def forward_alone(self) -> dict[int, RecomputeAll]:
        """By operation, the policy that stores nothing for the reverse."""
        return {o: self._recompute(o) for o in self.kernels}

    def _recompute(self, o: int) -> RecomputeAll:
        # Sums in a fixed order are to be the same whatever the capacity.
        if self.spec.reproducible or strategy_of(self.spec).fixed:
            return RecomputeAll(hoists=True)
        size = self.layout.region[o] * hoisted_bytes(self.kernels[o])
        return RecomputeAll(hoists=size <= ROOM)

    @functools.cached_property
    def policies(self) -> dict[int, Policy]:
        """By operation, what the forward pass stores if the loss uses all results.

        Nothing of functions without a gradient: who asks for one is told then.
        """
        if self.spec.residuals == RECOMPUTE_ALL:
            return dict(self.forward_alone)
        flows = self.flows([True for _ in self.tensors])
        return {o: self._policy(o, flows.get(o)) for o in self.kernels}

    def _policy(self, o: int, flow: Activity | None) -> Policy:
        try:
            reverse = None if flow is None else self._reverse(o, flow)
        except Exception:  # whatever a function of the user's raises
            reverse = None
        return self._recompute(o) if reverse is None else SaveProducts(reverse)

    # ---- the reverse

    def flows(self, used: Sequence[bool]) -> dict[int, Activity]:
        """By operation, how cotangents flow through those that they reach.

        Args:
          used: which of the returned tensors have a cotangent.
        """
        made, inputs = (
            zip(self.tensors, used, strict=True),
            sources(self.program).inputs,
        )
        live, before = union(tensor.makers for tensor, yes in made if yes), 0
        flows: dict[int, Activity] = {}
        # A result of a recurrence may flow into itself: until nothing changes.
        while live != before:
            before, found = live, ((o, self._flow(o, live)) for o in self.kernels)
            flows = {o: flow for o, flow in found if flow is not None}
            for o, flow in flows.items():
                live |= union(flow.chosen(inputs[o]))
        return flows

    def _flow(self, o: int, live: ProducerSet) -> Activity | None:
        """What flows through an operation, given all results with a cotangent."""
        operation, active = self.operations[o], active_types(self.program)
        first = first_results(self.program)[o]
        outputs = tuple(
            k
            for k, t in enumerate(operation.outputs)
            if live >> first + k & 1 and t in active
        )
        if not outputs:
            return None
        # An input that no live output depends on has a cotangent of zero, not worth an
        # edge; without inputs there may still be weights to train.
        read = set().union(*(self.kernels[o].reads[k] for k in outputs))
        given = enumerate(operation.inputs)
        inputs = tuple(a in read and t in active for a, t in given)
        return Activity(outputs, inputs) if any(inputs) or self.is_trained(o) else None

    def pullbacks(self, used: Sequence[bool]) -> dict[int, Pullback]:
        """By operation, what the reverse pass does with those that cotangents reach.

        Args:
          used: which of the returned tensors have a cotangent.

        Raises:
          Exception: whatever a function without a gradient does; a note names it.
        """
        return {o: self._pullback(o, flow) for o, flow in self.flows(used).items()}

    def _pullback(self, o: int, flow: Activity) -> Pullback:
        reverse, policy = self._reverse(o, flow), self.policies[o]
        if isinstance(policy, SaveProducts) and policy.reverse is not reverse:
            # What was saved is for more cotangents than there are.
            policy = self._recompute(o)
        recurrent = self.components[self.layout.component[o]].recurrent
        return Pullback(reverse, policy, self.is_trained(o), recurrent)

    def _reverse(self, o: int, flow: Activity) -> Reverse:
        with gradient_of(self.operations[o].layer.name):
            return make_reverse(self.kernels[o], flow)


@dataclass(frozen=True, eq=False)
class Pullback:
    """What the reverse pass does with an operation.

    Attributes:
      policy: where residuals come from.
      to_weights: whether the weights get gradients.
      is_recurrent: whether the operation is of a recurrent component.
    """

    reverse: Reverse
    policy: Policy
    to_weights: bool
    is_recurrent: bool

    @property
    def to_inputs(self) -> bool:
        """Whether inputs get cotangents of their own, in loops if there are any; those
        of a sum have its own."""
        is_sum = self.reverse.kernel.operation.is_sum
        return bool(self.reverse.early_inputs) and not is_sum

    @property
    def runs_at_once(self) -> bool:
        """Whether weights and inputs get theirs together, from all rows."""
        return self.to_weights and not self.is_recurrent

    @property
    def defers(self) -> bool:
        """Whether something waits for what crosses from the loops."""
        waits = self.to_weights or bool(self.reverse.late_inputs)
        return waits and self.is_recurrent and self.policy.stores


def make_execution(
    spec: Spec, params: Mapping[str, ArrayTree], varying: Varying | None = None
) -> Execution:
    """The plan for parameters, or what looks like them, by layer."""
    program, sums = spec.program, sum_operations(spec.program)
    # What leaves a loop is stored, and that is not wanted.
    stores = spec.residuals != RECOMPUTE_ALL
    external = external_inputs(program) if stores else [()] * len(program.operations)
    kernels = {
        o: make_kernel(
            operation,
            operation.layer.own(params),
            tuple(program.types[t] for t in operation.inputs),
            varying,
            spec.reproducible,
            external[o],
        )
        for o, operation in enumerate(program.operations)
        if spec.capacity.rows[o] and o not in sums
    }
    places = layout(spec), running(spec)
    return Execution(spec, *places, kernels, returned(spec), varying)
