# SPDX-License-Identifier: Apache-2.0
"""jfold on as many devices as it may use threads, each with a part of the batch."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, NamedSharding
from jfold_trees import Trees
from protocol import Tree, Weights, Workload, serve

import jfold as jf


class Devices(Trees):
    """As `Trees`, with batches dealt to devices."""

    def __init__(self, workload: Workload, weights: Weights, threads: int) -> None:
        jax.config.update('jax_num_cpu_devices', threads)
        super().__init__(workload, weights, threads)
        mesh = jax.make_mesh((threads,), ('data',), (AxisType.Auto,))
        self.sharding = NamedSharding(mesh, jax.P('data'))
        self.params = jax.device_put(self.params, NamedSharding(mesh, jax.P()))

    def plan(self, trees: list[Tree]) -> jf.Schedule:
        return self.model.schedule(trees, sharding=self.sharding)


if __name__ == '__main__':
    serve(Devices)
