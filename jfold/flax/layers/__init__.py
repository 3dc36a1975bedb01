# SPDX-License-Identifier: Apache-2.0
"""Ready layers, made of Flax modules: the parts of models in the literature.

A capitalized name that is no Flax module is a function that returns a block. Flax is
imported with this module, not with `jfold`.
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
__dir__ = __all__.copy  # what completion shows
