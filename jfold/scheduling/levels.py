# SPDX-License-Identifier: Apache-2.0
"""In which order, and at which steps, the nodes of a batch run.

Rows of an operation in a recurrence are sorted by level and dense; those of others are
as in the graph, and run in one step, or in as many as there is room for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jfold.base.memo import memoized
from jfold.graph import Array
from jfold.program.components import Component
from jfold.scheduling.layout import Layout, layout, running
from jfold.scheduling.selections import Selection
from jfold.scheduling.spec import Spec
from jfold.scheduling.tiles import in_loops


@dataclass(frozen=True, eq=False)
class Levels:
    """In which order, and at which steps, the nodes of loops over levels run.

    Attributes:
      counts: by operation, how many nodes each level has [levels].
      nodes: by operation, its nodes in the order of their rows [nodes]; of those whose
        order is another than in the graph alone.
      last_steps: by component, the step at which each level ends [levels], from 0.
    """

    counts: dict[int, Array]
    nodes: dict[int, Array]
    last_steps: dict[int, Array]


@memoized
def in_steps(spec: Spec) -> tuple[tuple[int, Component], ...]:
    """Return the components that may take several steps, by their numbers."""
    found = zip(running(spec), layout(spec).tables, strict=True)
    return tuple((c, each) for c, (each, (rows, _)) in enumerate(found) if rows != 1)


def levels_of(selection: Selection, spec: Spec) -> Levels:
    """Return the levels of all loops."""
    found, places = Levels({}, {}, {}), layout(spec)
    for c, component in in_steps(spec):
        for o in component.operations:
            if component.recurrent:
                levels = selection.levels(o)
                counts = np.bincount(levels, minlength=1)[1:]
                if len(counts) > 1:
                    # Sixteen bits are sorted by radix.
                    short = levels.astype(np.int16) if len(counts) < 1 << 15 else levels
                    found.nodes[o] = short.argsort(kind='stable')
            else:
                number = int(selection.totals[len(spec.program.types) + o])
                counts = np.array([number] if number else [], np.intp)
            found.counts[o] = counts
        counted = [found.counts[o] for o in component.operations]
        widths = [places.widths[o] for o in component.operations]
        steps = in_loops(spec).last_steps(counted, widths, places.trips[c])
        found.last_steps[c] = steps
    return found


@dataclass(frozen=True, eq=False)
class Batch:
    """What is to be written, and where.

    Attributes:
      selection: of examples; in a program without loops with tables of sums.
      spec: which has room for it.
      places: the layout of the spec.
      levels: the nodes of the operations whose rows are sorted.
      indices: [size] int32, the index array.
    """

    selection: Selection
    spec: Spec
    places: Layout
    levels: Levels
    indices: Array
