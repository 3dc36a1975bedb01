# SPDX-License-Identifier: Apache-2.0
"""DyNet with automatic batching: one graph per batch, written node by node."""

from __future__ import annotations

from typing import Any

import dynet_config

dynet_config.set(mem=2048, autobatch=1, random_seed=1)  # before dynet is imported

import dynet as dy  # noqa: E402
import numpy as np  # noqa: E402
from protocol import RATE, Clock, Program, Tree, Weights, Workload, serve  # noqa: E402


class Autobatch(Program):
    """Runs on one thread, as its wheel does."""

    packages = ('dynet38',)

    def __init__(self, workload: Workload, weights: Weights, threads: int) -> None:
        self.hidden = workload.hidden
        self.collection = dy.ParameterCollection()
        self.trainer = dy.SimpleSGDTrainer(self.collection, RATE)
        self.trainer.set_clip_threshold(-1)  # none
        tables = np.split(weights.table, 2, axis=1)
        self.tables = [
            self.collection.lookup_parameters_from_numpy(np.ascontiguousarray(x))
            for x in tables
        ]
        self.kernel = self.collection.parameters_from_numpy(weights.kernel.T)
        self.bias = self.collection.parameters_from_numpy(weights.bias)

    def roots(self, trees: list[Tree]) -> list[Any]:
        """Nodes of the graph, for the h of the roots."""
        dy.renew_cg()
        return [self.state(tree)[1] for tree in trees]

    def state(self, tree: Tree) -> tuple[Any, Any]:
        """Nodes of the graph, for c and h [H] of a node of a tree."""
        if not isinstance(tree, tuple):
            return self.tables[0][tree], self.tables[1][tree]
        (c_left, h_left), (c_right, h_right) = map(self.state, tree)
        both, width = dy.concatenate([h_left, h_right]), self.hidden
        z = dy.affine_transform([self.bias, self.kernel, both])
        i, o, u, forget, keep = (
            dy.pick_range(z, k * width, (k + 1) * width) for k in range(5)
        )
        c = (
            dy.cmult(dy.logistic(i), dy.tanh(u))
            + dy.cmult(dy.logistic(forget), c_left)
            + dy.cmult(dy.logistic(keep), c_right)
        )
        return c, dy.cmult(dy.logistic(o), dy.tanh(c))

    def infer(self, trees: list[Tree], clock: Clock) -> Any:
        roots = dy.concatenate_cols(self.roots(trees))
        clock.built()
        return roots.npvalue().T

    def train(self, trees: list[Tree], clock: Clock) -> float:
        loss = dy.sum_elems(dy.average(self.roots(trees)))
        clock.built()
        value = loss.value()
        loss.backward()
        self.trainer.update()
        return float(value)

    def weights(self) -> Weights:
        halves = [table.as_array() for table in self.tables]
        kernel, bias = self.kernel.as_array().T, self.bias.as_array()
        return Weights(np.hstack(halves), kernel.copy(), bias.copy())


if __name__ == '__main__':
    serve(Autobatch)
