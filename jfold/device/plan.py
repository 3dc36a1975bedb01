# SPDX-License-Identifier: Apache-2.0
"""What an execution does, apart from arrays: tiles, and what the reverse pass pulls.

Cotangents flow from the results that the loss uses, and nowhere else: what is not used
in the expression, or not by the loss, has no reverse, so that neither a zero times
infinity nor a function without a gradient can harm there.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jfold.components import first_results, sources
from jfold.device.reverse import Reverse, make_reverse
from jfold.device.tile import Tile, make_tile
from jfold.language.layers import Varying
from jfold.operations import Makers, Operations
from jfold.planning.layout import RECOMPUTE_ALL, Spec, active_types, has_gradient


@dataclass(frozen=True)
class Pull:
    """What the reverse of an operation does.

    Attributes:
      live: the outputs that have a cotangent.
      active: per input, whether it gets one.
    """

    live: tuple[int, ...]
    active: tuple[bool, ...]


Pulls = tuple[Pull | None, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """One way to run a program.

    Attributes:
      tiles: per operation; `None` where there is no room for it.
      varying: over which axes of an enclosing `jax.shard_map` the arrays vary.
    """

    spec: Spec
    tiles: tuple[Tile | None, ...]
    varying: Varying | None

    @property
    def program(self) -> Operations:
        """What is run."""
        return self.spec.program

    def tile(self, o: int) -> Tile:
        """The tile of an operation that there is room for."""
        tile = self.tiles[o]
        assert tile is not None
        return tile

    def reverse(self, o: int, pull: Pull) -> Reverse:
        """The reverse of an operation.

        Raises:
          Exception: whatever a function without a gradient does; a note names it.
        """
        try:
            return make_reverse(self.tile(o), pull.live, pull.active)
        except Exception as error:
            name = self.program.operations[o].layer.name
            error.add_note(
                f'expected a gradient of layer {name!r}, got this error; use lax.scan '
                'or lax.fori_loop with fixed bounds, or give '
                'the function one by jax.custom_vjp'
            )
            raise

    def trains(self, o: int) -> bool:
        """Whether the weights of an operation get gradients, if its outputs do."""
        if self.tiles[o] is None or not self.tile(o).trained_count:
            return False
        operation = self.program.operations[o]
        moves = active_types(self.program).intersection(operation.inputs)
        return bool(moves) or has_gradient(operation)

    @functools.cached_property
    def all_pulls(self) -> Pulls:
        """If the loss uses all results."""
        return self.pulls([[True for _ in x.tensors] for x in self.program.results])

    @functools.cached_property
    def kept(self) -> tuple[Reverse | None, ...]:
        """Per operation, the reverse for which the forward pass keeps products; `None`
        for none, of functions without a gradient too: who asks for one is told then."""
        if self.spec.residuals == RECOMPUTE_ALL:
            return tuple(None for _ in self.tiles)
        return tuple(map(self._kept, range(len(self.tiles)), self.all_pulls))

    def _kept(self, o: int, pull: Pull | None) -> Reverse | None:
        try:
            return None if pull is None else self.reverse(o, pull)
        except Exception:  # whatever a function of the user raises
            return None

    def pulls(self, results: Sequence[Sequence[bool]]) -> Pulls:
        """What the reverse pass does, given which tensors of each result have a
        cotangent."""
        flows = sources(self.program)
        used = [
            flow
            for result, wanted in zip(flows.results, results, strict=True)
            for flow, yes in zip(result, wanted, strict=True)
            if yes
        ]
        live, before = _union(used), 0
        pulls: list[Pull | None] = [None for _ in self.tiles]
        while live != before:
            before = live
            for o in range(len(pulls)):
                pulls[o] = pull = self._pull(o, live)
                if pull is not None:
                    pairs = zip(flows.inputs[o], pull.active, strict=True)
                    live |= _union(flow for flow, active in pairs if active)
        return tuple(pulls)

    def _pull(self, o: int, live: Makers) -> Pull | None:
        """What an operation's reverse does, given all results with a cotangent."""
        if self.tiles[o] is None:
            return None
        operation, active = self.program.operations[o], active_types(self.program)
        first = first_results(self.program)[o]
        outputs = tuple(
            k
            for k, t in enumerate(operation.outputs)
            if live >> first + k & 1 and t in active
        )
        if not outputs:
            return None
        read = set().union(*(self.tile(o).reads[k] for k in outputs))
        given = enumerate(operation.inputs)
        inputs = tuple(a in read and t in active for a, t in given)
        return Pull(outputs, inputs) if any(inputs) or self.trains(o) else None


def _union(sets: Iterable[Makers]) -> Makers:
    return functools.reduce(operator.or_, sets, 0)


def make_plan(
    spec: Spec, params: Mapping[str, Any], varying: Varying | None = None
) -> Plan:
    """The plan for parameters, or what looks like them, by layer."""
    program = spec.program
    return Plan(
        spec,
        tuple(
            make_tile(
                operation,
                params.get(operation.layer.name),
                tuple(program.types[t] for t in operation.inputs),
                varying,
            )
            if rows
            else None
            for operation, rows in zip(
                program.operations, spec.capacity.rows, strict=True
            )
        ),
        varying,
    )
