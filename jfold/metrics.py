# SPDX-License-Identifier: Apache-2.0
"""What `Metric` blocks have collected in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from jfold.functions import ratio


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetricValues:
    """What a `Metric` collected in a batch; a pytree.

    Rows are ordered by example, and within one as `Block.eval` collects them, part by
    part of the data. Spare rows, at the end (of each shard), are zero, so that sums
    need no mask. Labels, if the metric is given any, are in `Schedule.labels`.

    Attributes:
      values: [rows, *shape], or a tuple of such arrays if the metric takes a tuple.
      example: [rows] int32, the example of each; the number of examples on spare rows,
        which `jax.ops.segment_sum(..., num_segments=examples)` drops.
      mask: [rows] bool, whether the row is real.
    """

    values: Any
    example: jax.Array
    mask: jax.Array

    def sum(self) -> Any:
        """The sum over all real rows."""
        return jax.tree.map(lambda x: x.sum(0), self.values)

    def mean(self) -> Any:
        """The mean over all real rows; zero if there are none."""
        count = self.mask.sum()
        return jax.tree.map(lambda x: ratio(x.sum(0), count), self.values)
