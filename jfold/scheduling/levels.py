# SPDX-License-Identifier: Apache-2.0
"""The order of the nodes of a batch, and the steps at which they run.

A node is one application of an operation, and has one row. Rows of an operation in a
recurrence are sorted by level, without gaps; rows of other operations are in the order
of the graph, and run in one step, or in as many steps as the capacity has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array
from jfold.program.components import Component
from jfold.scheduling.layout import Layout, layout, running_components
from jfold.scheduling.selections import Selection
from jfold.scheduling.spec import Spec
from jfold.scheduling.tiles import strategy_of


@dataclass(frozen=True, eq=False)
class Batch:
    """A selection of examples, and the index array that it is written into.

    Attributes:
      selection: the examples; its graph may have the tables of `with_pair_tables`.
      spec: of a capacity that holds the selection.
      indices: [size] int32, the index array.
      counts: by operation that may take several steps, the number of nodes on each
        level [levels].
      nodes: by operation, the node of each row [nodes], numbered as in the graph; only
        of operations whose rows are in another order than the graph.
      last_steps: by component that may take several steps, that at which each level
        ends [levels], from 0.
    """

    selection: Selection
    spec: Spec
    places: Layout
    indices: Array
    counts: dict[int, Array] = field(default_factory=dict)
    nodes: dict[int, Array] = field(default_factory=dict)
    last_steps: dict[int, Array] = field(default_factory=dict)


@memoized
def in_steps(spec: Spec) -> tuple[tuple[int, Component], ...]:
    """Return (index, component) of each component that may run in several steps."""
    pairs = zip(running_components(spec), layout(spec).tables, strict=True)
    return tuple((c, part) for c, (part, (rows, _)) in enumerate(pairs) if rows != 1)


def make_batch(selection: Selection, spec: Spec) -> Batch:
    """Make a batch: sort its nodes by level, assign steps, leave its indices unset."""
    places = layout(spec)
    result = Batch(selection, spec, places, np.empty(places.sections.size, np.int32))
    for c, component in in_steps(spec):
        for o in component.operations:
            if component.recurrent:
                levels = selection.levels(o)
                counts = np.bincount(levels, minlength=1)[1:]
                if len(counts) > 1:
                    # NumPy sorts 16 bits by radix, which is faster.
                    short = levels.astype(np.int16) if len(counts) < 1 << 15 else levels
                    result.nodes[o] = short.argsort(kind='stable')
            else:
                number = int(selection.totals[len(spec.program.types) + o])
                counts = np.array([number] if number else [], np.intp)
            result.counts[o] = counts
        counted = [result.counts[o] for o in component.operations]
        widths = [places.widths[o] for o in component.operations]
        steps = strategy_of(spec).last_steps(counted, widths, places.trips[c])
        result.last_steps[c] = steps
    return result
