# SPDX-License-Identifier: Apache-2.0
"""Sums over the uses of values that have many, in a fixed order.

A use of a value leaves its cotangent in an edge row of its own. Of a value with few
uses the edge rows are gathered and added where the cotangent is needed. Of one with
many they are added up in between, four at a time, round after round, in edge rows that
are there for sums:

    uses    e0 e1 e2 e3   e4 e5 e6 e7   e8 e9
              └──┬──┘       └──┬──┘      └┬┘
    round 0      s0            s1        s2
                  └────────────┴──────────┘
    gathered             s0 + s1 + s2

So nothing is scattered, and the order of additions is that of the schedule. All uses of
what a level makes are reversed before the level: its sums are taken right then.

An operation that adds up its inputs runs forward alone. Each of these has the cotangent
of what was made, so whoever gathers it is pointed to where that is: the edge row of the
one use, or the last sum over several.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array, lax

from jfold.device.batch import Number
from jfold.device.buffers import Edges, added, write
from jfold.device.execution import Execution
from jfold.device.loops import Loops


def has_sums(execution: Execution, operations: Sequence[int]) -> bool:
    """Whether there is room for sums over what one of the operations makes."""
    made = (t for o in operations for t in execution.operations[o].outputs)
    return any(execution.spec.capacity.sums[t] for t in made)


def sum_uses(
    execution: Execution, loops: Loops, c: int, level: Number, edges: Edges
) -> Edges:
    """The edges, with the sums of what a level of a component made."""
    operations = [execution.operations[o] for o in execution.components[c].operations]
    made = {t for each in operations for t in each.outputs}
    # Sums are filed under levels counted through all components.
    before = sum(levels for levels, _ in execution.layout.tables[:c])
    buffers = dict(edges.buffers)
    for t in sorted(made & buffers.keys()):
        if execution.spec.capacity.sums[t]:
            buffers[t] = _sum_type(execution, loops, t, before + level, buffers[t])
    return Edges(buffers)


def _sum_type(
    execution: Execution, loops: Loops, t: int, step: Number, buffer: Array
) -> Array:
    """An edge buffer [uses, *shape], round after round: later ones add up sums."""
    batch, base, width = (
        loops.batch,
        execution.layout.edge_sums[t],
        execution.layout.sum_width[t],
    )

    # A tile may run past the last sum of a round. What it writes there is made again by
    # the rounds that follow; of later levels, whose edges are there, it is the same.
    def tile(i: Number, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        """The first sum of the round [], and edges [uses, *shape]."""
        first, buffer = carry
        row = first + i * width
        sums = batch.sections.sums[t].rows
        summands = [batch.read(each, row, width) for each in sums]
        return first, write(buffer, added(loops.gather(buffer, summands)), base + row)

    def stage(s: Array, buffer: Array) -> Array:
        """The edges [uses, *shape] with the sums of a round."""
        first, count = batch.sums(t, step, s)
        return loops.sums(t, count, tile, (first, buffer))[1]

    done: Array = lax.fori_loop(0, execution.spec.capacity.stages, stage, buffer)
    return done
