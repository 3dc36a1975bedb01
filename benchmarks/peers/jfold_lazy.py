# SPDX-License-Identifier: Apache-2.0
"""jfold: the model written in plain Python, for one tree."""

from __future__ import annotations

from typing import Any

import jfold_trees
from protocol import Tree, Weights, serve

import jfold as jf

# Trees whose nodes have all pairs of leaves and nodes below them.
PAIRS: list[Tree] = [0, (0, 0), ((0, 0), 0), (0, (0, 0)), ((0, 0), (0, 0))]


class Trees(jfold_trees.Trees):
    """Running the function, and building the schedule, are parts of each step."""

    def compiled(self, weights: Weights) -> jf.Model:
        return jf.compile(expression(weights), like=PAIRS)


def expression(weights: Weights) -> jf.Block:
    """Tree to the h [H] of its root."""
    embed, cell, root = jfold_trees.layers(weights)

    @jf.lazy
    def encode(tree: Tree) -> Any:
        if isinstance(tree, int):
            return embed(jf.int32(tree))
        return cell(encode(tree[0]), encode(tree[1]))

    return encode >> root


if __name__ == '__main__':
    serve(Trees)
