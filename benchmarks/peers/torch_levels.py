# SPDX-License-Identifier: Apache-2.0
"""PyTorch, batched by hand: levels by distance from the root, then autograd.

The children of a level's pairs are exactly the next level, in order, so the input of
the matrix product is a view and no value is ever fetched from another level.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from protocol import Clock, Tree, Weights, serve
from torch_sgd import TorchProgram


class Level(NamedTuple):
    """One distance from the root.

    Attributes:
      leaves: how many of its nodes have no children.
      places: [nodes], for each node its place among the others followed by the leaves.
    """

    leaves: int
    places: torch.Tensor


def plan(trees: list[Tree]) -> tuple[list[Level], torch.Tensor]:
    """Levels, the deepest first, and the words of their leaves in that order."""
    levels: list[Level] = []
    words: list[list[int]] = []
    while trees:
        pairs = [tree for tree in trees if type(tree) is tuple]
        words.append([tree for tree in trees if type(tree) is not tuple])
        paired = np.fromiter((type(tree) is tuple for tree in trees), bool, len(trees))
        places = np.where(paired, paired.cumsum(), len(pairs) + (~paired).cumsum()) - 1
        levels.append(Level(len(words[-1]), torch.from_numpy(places)))
        trees = [child for pair in pairs for child in pair]
    ordered = [word for level in reversed(words) for word in level]
    return levels[::-1], torch.tensor(ordered)


def cells(weights: Weights, c: Any, h: Any) -> tuple[Any, Any]:
    """States [n, H] of nodes from those of their children, [2n, H] side by side."""
    width = c.shape[1]
    z = torch.addmm(weights.bias, h.view(-1, 2 * width), weights.kernel)
    i, o, u, forget, keep = z.split(width, dim=1)
    left, right = c.view(-1, 2 * width).split(width, dim=1)
    kept = forget.sigmoid() * left + keep.sigmoid() * right
    c = torch.addcmul(kept, i.sigmoid(), u.tanh())
    return c, o.sigmoid() * c.tanh()


class Levels(TorchProgram):
    """One matrix product for each level."""

    def roots(self, trees: list[Tree], clock: Clock) -> torch.Tensor:
        levels, words = plan(trees)
        clock.built()
        sizes = [level.leaves for level in levels]
        leaf_c, leaf_h = (
            torch.nn.functional.embedding(words, half.contiguous()).split(sizes)
            for half in self.tensors.table.chunk(2, dim=1)
        )
        c, h = leaf_c[0], leaf_h[0]
        for k, level in enumerate(levels[1:], start=1):
            c, h = cells(self.tensors, c, h)
            if level.leaves:
                c = torch.cat([c, leaf_c[k]]).index_select(0, level.places)
                h = torch.cat([h, leaf_h[k]]).index_select(0, level.places)
        return h


if __name__ == '__main__':
    serve(Levels)
