# SPDX-License-Identifier: Apache-2.0
"""DGL: all trees of a batch as one graph, messages passed up frontier by frontier.

DGL 2.1.0 loads its graphbolt library on import, which no recent PyTorch fits; nothing
here needs it, so an empty module stands in for it.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import torch


class Absent(ModuleType):
    """A module in which every name is there and nothing can be used."""

    def __getattr__(self, name: str) -> type:
        if name.startswith('__'):
            raise AttributeError(name)
        return object


os.environ.setdefault('DGLBACKEND', 'pytorch')  # else DGL writes to the home folder
sys.modules['dgl.graphbolt'] = Absent('dgl.graphbolt')

import dgl  # noqa: E402
from protocol import Clock, Tree, serve  # noqa: E402
from torch_sgd import TorchProgram  # noqa: E402


class Levels(TorchProgram):
    """Messages from children to parents, one frontier after another."""

    packages = ('torch', 'dgl')

    def roots(self, trees: list[Tree], clock: Clock) -> torch.Tensor:
        words, edges, roots = graph_of(trees)
        graph = dgl.graph(edges, num_nodes=len(words))
        frontiers = dgl.topological_nodes_generator(graph)[1:]  # the first are leaves
        clock.built()
        states = torch.nn.functional.embedding(torch.tensor(words), self.tensors.table)
        graph.ndata['state'] = states
        graph.prop_nodes(frontiers, send, self.reduce)
        return graph.ndata['state'][roots, self.hidden :]

    def reduce(self, nodes: Any) -> dict[str, torch.Tensor]:
        """c beside h [n, 2H] of nodes, from [n, 2, 2H] in the mailbox."""
        c, h = nodes.mailbox['state'].chunk(2, dim=2)
        z = torch.addmm(self.tensors.bias, h.flatten(1), self.tensors.kernel)
        i, o, u, forget, keep = z.chunk(5, dim=1)
        c = (
            i.sigmoid() * u.tanh()
            + forget.sigmoid() * c[:, 0]
            + keep.sigmoid() * c[:, 1]
        )
        return {'state': torch.cat([c, o.sigmoid() * c.tanh()], dim=1)}


def send(edges: Any) -> dict[str, torch.Tensor]:
    """What a child tells its parent."""
    return {'state': edges.src['state']}


def graph_of(trees: list[Tree]) -> tuple[list[int], Any, list[int]]:
    """The word of each node (0 for inner ones), edges to parents, and roots."""
    words: list[int] = []
    children: list[int] = []
    parents: list[int] = []

    def visit(tree: Tree) -> int:
        if not isinstance(tree, tuple):
            words.append(tree)
            return len(words) - 1
        pair = visit(tree[0]), visit(tree[1])
        words.append(0)
        children.extend(pair)
        parents.extend([len(words) - 1] * 2)
        return len(words) - 1

    roots = [visit(tree) for tree in trees]
    return words, (torch.tensor(children), torch.tensor(parents)), roots


if __name__ == '__main__':
    serve(Levels)
