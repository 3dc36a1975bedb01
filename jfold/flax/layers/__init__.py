# SPDX-License-Identifier: Apache-2.0
"""Ready layers, of Flax modules: what models of the literature are put together from.

What begins with a capital and is no class of Flax is a function that gives a block.
Flax is imported with this module, and not before.
"""

from jfold.flax.layers.attention import Attend, Attention
from jfold.flax.layers.dense import FC, Categorical, Embed
from jfold.flax.layers.graphs import GatedGraph, MessagePassing, Weave
from jfold.flax.layers.records import RecordEncoder
from jfold.flax.layers.recurrent import GRU, LSTM, Bidirectional, Cell
from jfold.flax.layers.trees import (
    ChildSumTreeGRU,
    ChildSumTreeLSTM,
    Tree,
    TreeLSTMCell,
    TreeLSTMLeaf,
)

__all__ = [
    'FC',
    'GRU',
    'LSTM',
    'Attend',
    'Attention',
    'Bidirectional',
    'Categorical',
    'Cell',
    'ChildSumTreeGRU',
    'ChildSumTreeLSTM',
    'Embed',
    'GatedGraph',
    'MessagePassing',
    'RecordEncoder',
    'Tree',
    'TreeLSTMCell',
    'TreeLSTMLeaf',
    'Weave',
]
