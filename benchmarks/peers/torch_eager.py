# SPDX-License-Identifier: Apache-2.0
"""PyTorch as one writes it first: recursion over each tree, node by node."""

from __future__ import annotations

from typing import Any

import torch
from protocol import Clock, Tree, serve
from torch_sgd import TorchProgram


class Eager(TorchProgram):
    """No batching at all."""

    def roots(self, trees: list[Tree], clock: Clock) -> torch.Tensor:
        return torch.stack([self.state(tree)[1] for tree in trees])

    def state(self, tree: Tree) -> tuple[Any, Any]:
        """c and h [H] of a node."""
        table, kernel, bias = self.tensors
        if not isinstance(tree, tuple):
            return table[tree].chunk(2)
        (c_left, h_left), (c_right, h_right) = map(self.state, tree)
        i, o, u, forget, keep = (torch.cat([h_left, h_right]) @ kernel + bias).chunk(5)
        c = i.sigmoid() * u.tanh() + forget.sigmoid() * c_left
        c = c + keep.sigmoid() * c_right
        return c, o.sigmoid() * c.tanh()


if __name__ == '__main__':
    serve(Eager)
