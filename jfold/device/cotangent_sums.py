# SPDX-License-Identifier: Apache-2.0
"""The sums of the cotangents of values that have many uses, in a fixed order.

Each use of a value leaves its cotangent in an edge row of its own. If there are few
uses, their edge rows are gathered and added where the cotangent is needed. If there are
many, they are added up before, four at a time, round after round, in edge rows for
sums:

    uses    e0 e1 e2 e3   e4 e5 e6 e7   e8 e9
              └──┬──┘       └──┬──┘      └┬┘
    round 0      s0            s1        s2
                  └────────────┴──────────┘
    gathered             s0 + s1 + s2

So nothing is scattered, and the order of additions is that of the schedule. All uses of
a level's results are reversed before the level, so its sums run right before it.

An operation that adds up its inputs has no reverse of its own. The cotangent of each
input is the cotangent of the sum, so the consumer index of an input points to the edge
row of the sum's only use, or to the last round's sum over its uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array, lax

from jfold.device.buffers import Buffers, Number, sum_arrays, write
from jfold.device.execution import Execution
from jfold.device.loops import Loops
from jfold.scheduling.layout import running_components


def has_sums(execution: Execution, operations: Sequence[int]) -> bool:
    """Return whether buffers have rows for sums of the operations' cotangents."""
    types = (t for o in operations for t in execution.operations[o].outputs)
    return any(execution.spec.capacity.sums[t] for t in types)


def sum_uses(loops: Loops, c: int, level: Number, edges: Buffers) -> Buffers:
    """Add up the cotangents of often-used values of a level of component `c`.

    Return the buffers `edges`, with the sums in rows of their own.
    """
    spec, operations = loops.execution.spec, loops.execution.operations
    running = running_components(spec)[c].operations
    types = {t for o in running for t in operations[o].outputs}
    # The tables of sums count levels through all components.
    before = sum(table.shape[0] for table in loops.batch.sections.tiles[:c])
    summed = {t for t in types & edges.keys() if spec.capacity.sums[t]}
    new = {t: _sum_type(loops, t, before + level, edges[t]) for t in sorted(summed)}
    return edges | new


def _sum_type(loops: Loops, t: int, step: Number, buffer: Array) -> Array:
    """Sum the cotangents of often-used values of type `t`; return the new buffer.

    `step` is the level, counted through all components. The buffer [edge rows, *shape]
    has the cotangent of each use of a value, then sums.
    """
    batch = loops.batch
    base, width = batch.layout.edge_sums[t], batch.layout.sum_width[t]

    # A tile may run past the last sum of a round. It then writes sums of later rounds,
    # which are computed again in their turn; or sums of later levels, which are
    # complete and get the same numbers. Fixed loops may run all sums in each round:
    # those of levels that are not complete yet are computed again before they are read.
    def tile(row: Number, buffer: Array) -> Array:
        """Write the sums of a tile, the first of them sum `row`; return the buffer."""
        sums = batch.sections.sums[t].rows
        summands = [batch.read(section, row, width) for section in sums]
        return write(buffer, sum_arrays(loops.gather(buffer, summands)), base + row)

    def stage(s: Array, buffer: Array) -> Array:
        """Write the sums of the `s`-th round; return the buffer."""
        return loops.sums(t, step, s, tile, buffer)

    stages = loops.execution.spec.capacity.stages
    done: Array = lax.fori_loop(0, stages, stage, buffer)
    return done
