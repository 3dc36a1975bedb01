# SPDX-License-Identifier: Apache-2.0
"""jfold: the model written with ordinary blocks, for one tree."""

from __future__ import annotations

from typing import Any

import jax
import jax_sgd
from protocol import Tree, Weights, Workload, serve

import jfold as jf


class Trees(jax_sgd.JaxProgram):
    """Building the schedule is part of each step."""

    packages = ('jax', 'jaxlib', 'jfold')

    def __init__(self, workload: Workload, weights: Weights, threads: int) -> None:
        super().__init__(workload, weights, threads)
        self.model = self.compiled(weights)

    def compiled(self, weights: Weights) -> jf.Model:
        return jf.compile(expression(weights))

    def plan(self, trees: list[Tree]) -> jf.Schedule:
        return self.model.schedule(trees)

    def roots(self, params: Weights, plan: jf.Schedule) -> jax.Array:
        layers = {'embed': params.table, 'cell': (params.kernel, params.bias)}
        return self.model.apply(layers, plan)


def expression(weights: Weights) -> jf.Block:
    """Tree to the h [H] of its root."""
    table, kernel, bias = weights
    width = kernel.shape[0] // 2

    def embed(table: jax.Array, word: jax.Array) -> jax.Array:
        return table[word]

    def cell(params: Any, left: jax.Array, right: jax.Array) -> jax.Array:
        return jax_sgd.cell(Weights(None, *params), left, right)

    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(embed, lambda *_: table)
    pair = jf.Record((tree(), tree())) >> jf.Function(cell, lambda *_: (kernel, bias))
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree() >> jf.GetItem(slice(width, None))


if __name__ == '__main__':
    serve(Trees)
