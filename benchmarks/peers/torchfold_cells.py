# SPDX-License-Identifier: Apache-2.0
"""torchfold: PyTorch with dynamic batching of cells by their depth.

torchfold 0.1.0 is from 2018; two names of PyTorch that are gone are put in their place,
its own code runs as it is.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from protocol import Clock, Tree, serve
from torch_sgd import TorchProgram
from torchfold import torchfold


class Variable(torch.Tensor):
    """As it was: a wrapper that gives back the tensor."""

    def __new__(cls, tensor: torch.Tensor, volatile: bool) -> Any:
        return tensor


torchfold.Variable = Variable
torchfold.torch = SimpleNamespace(
    tensor=SimpleNamespace(_TensorBase=torch.Tensor),
    LongTensor=torch.LongTensor,
    cat=torch.cat,
    chunk=torch.chunk,
)


class Cells(TorchProgram):
    """One call of `leaf` or `cell` for each depth."""

    packages = ('torch', 'torchfold')

    def roots(self, trees: list[Tree], clock: Clock) -> torch.Tensor:
        fold = torchfold.Fold()
        roots = [self.state(fold, tree)[1] for tree in trees]
        clock.built()
        return fold.apply(self, [roots])[0]

    def state(self, fold: Any, tree: Tree) -> tuple[Any, Any]:
        """Nodes for c and h of a node of a tree."""
        if not isinstance(tree, tuple):
            return fold.add('leaf', tree).split(2)
        left, right = (self.state(fold, child) for child in tree)
        return fold.add('cell', *left, *right).split(2)

    def leaf(self, words: torch.Tensor) -> Any:
        """c and h [n, H] of words [n]."""
        return torch.nn.functional.embedding(words, self.tensors.table).chunk(2, 1)

    def cell(self, c_left: Any, h_left: Any, c_right: Any, h_right: Any) -> Any:
        """c and h [n, H] of n nodes from those of their children."""
        both = torch.cat([h_left, h_right], 1)
        z = torch.addmm(self.tensors.bias, both, self.tensors.kernel)
        i, o, u, forget, keep = z.chunk(5, 1)
        c = i.sigmoid() * u.tanh() + forget.sigmoid() * c_left
        c = c + keep.sigmoid() * c_right
        return c, o.sigmoid() * c.tanh()


if __name__ == '__main__':
    serve(Cells)
