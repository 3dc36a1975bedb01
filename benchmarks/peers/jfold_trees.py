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


def layers(weights: Weights) -> tuple[jf.Function, jf.Function, jf.Block]:
    """What embeds a word, what joins two states [2 H], and what takes the h [H]."""
    table, kernel, bias = weights

    def embed(table: jax.Array, word: jax.Array) -> jax.Array:
        return table[word]

    def cell(params: Any, left: jax.Array, right: jax.Array) -> jax.Array:
        return jax_sgd.cell(Weights(None, *params), left, right)

    root = jf.GetItem(slice(kernel.shape[0] // 2, None))
    return (
        jf.Function(embed, lambda *_: table),
        jf.Function(cell, lambda *_: (kernel, bias)),
        root,
    )


def expression(weights: Weights) -> jf.Block:
    """Tree to the h [H] of its root."""
    embed, cell, root = layers(weights)
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> embed
    pair = jf.Record((tree(), tree())) >> cell
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree() >> root


if __name__ == '__main__':
    serve(Trees)
