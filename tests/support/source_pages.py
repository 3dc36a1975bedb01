# SPDX-License-Identifier: Apache-2.0
"""The source that jfold writes of the nine models of a page.

python tests/support/source_pages.py           # prints the page
python tests/support/source_pages.py --write   # puts it into docs/source.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

import jfold as jf

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'source.md'


def binary_trees() -> jf.Block:
    """Numbers at the leaves, pairs above them."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(nn.Embed(100, 16), name='word')
    pair = jf.Record((tree(), tree())) >> jf.Concat()
    pair >>= jf.Function(nn.Dense(16), name='pair')
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree() >> jf.Function(nn.Dense(10), name='answer')


def syntax_trees() -> jf.Block:
    """Those of `examples/function_names.py`."""
    import function_names

    return function_names.make_block(50, 64, 20)


def sentiment() -> jf.Block:
    """That of `examples/sentiment.py`."""
    import sentiment as example

    vocabulary = SimpleNamespace(vectors=np.zeros((50, 8), 'float32'))
    return example.make_block(vocabulary, 32)  # type: ignore[arg-type]


def names() -> jf.Block:
    """That of `examples/names.py`."""
    import names as example

    return example.make_block('abcdefghijklmnopqrstuvwxyz', 96, 5)


def molecules() -> jf.Block:
    """That of `benchmarks/molecules.py`."""
    sys.modules.pop('molecules', None)  # the examples have one of that name
    sys.path.insert(0, str(ROOT / 'benchmarks'))
    import molecules as benchmark

    return benchmark.expression(64, 3)


# ---- the four of figure 2 of Looks et al. 2017 ---------------------------------------


def words(size: int) -> jf.Block:
    """A word to its vector; one that is not known to zeros."""
    known = {'a': 0, 'good': 1, 'film': 2}
    number = jf.InputTransform(known.get)
    embed = jf.Function(nn.Embed(len(known), size), name='word')
    return number >> jf.Optional(jf.Scalar('int32') >> embed)


def pipeline() -> jf.Block:
    """Section 3.3: the loss of a text, split into words, and its label."""
    cell = jf.Concat() >> jf.Function(nn.Dense(16), name='cell') >> nn.relu
    texts = jf.InputTransform(str.split) >> jf.Map(words(8))
    logits = texts >> jf.Fold(cell, jf.Zeros(16)) >> jf.Function(nn.Dense(2), name='fc')
    pair = jf.Record({'text': logits, 'label': jf.Scalar('int32')})
    loss = optax.softmax_cross_entropy_with_integer_labels
    return pair >> jf.Function(loss, name='loss')


def feed_forward_attention() -> jf.Block:
    """Section 3.4: that of `examples/attention.py`."""
    import attention as example

    return example.make_block(32, bounded=True)


class TreeCell(nn.Module):
    """A cell of two states (c, h), and a word."""

    @nn.compact
    def __call__(self, word: Any, left: Any, right: Any) -> Any:
        gates = nn.Dense(5 * 16)(jnp.concatenate([word, left[1], right[1]]))
        i, o, u, f, g = jnp.split(gates, 5)
        i, o, f, g = (nn.sigmoid(x) for x in (i, o, f, g))
        c = i * jnp.tanh(u) + f * left[0] + g * right[0]
        return c, o * jnp.tanh(c)


def binary_tree_lstm() -> jf.Block:
    """Section 3.5: words are lists of one item, pairs of two."""
    tree = jf.ForwardDeclaration(name='tree')
    state = jf.Zeros((16, 16))
    word = jf.AllOf(jf.GetItem(0) >> words(8), state, state)
    pair = jf.AllOf(jf.Zeros(8), jf.GetItem(0) >> tree(), jf.GetItem(1) >> tree())
    cell = jf.Function(TreeCell(), name='cell')
    tree.resolve_to(jf.OneOf(len, {1: word, 2: pair}) >> cell)
    return tree() >> jf.GetItem(1) >> jf.Function(nn.Dense(5), name='logits')


def weave() -> jf.Block:
    """Section 3.6: features of atoms, and of all pairs of them."""
    atoms, pairs = jf.Map(jf.Vector(4)), jf.Map(jf.Map(jf.Vector(3)))
    module = jf.Record({'atoms': atoms, 'pairs': pairs}) >> jf.layers.Weave(16)
    return module >> jf.GetItem(0) >> jf.Sum()


MODELS: tuple[Callable[[], jf.Block], ...] = (
    *(binary_trees, syntax_trees, sentiment, names, molecules, pipeline),
    *(feed_forward_attention, binary_tree_lstm, weave),
)


def page() -> str:
    """Return the page, with the source of each model as it is now."""
    # Not when this file is imported: the benchmarks have modules of the same names.
    sys.path += [str(ROOT / 'examples'), str(ROOT / 'benchmarks')]
    parts = PAGE.read_text().split('```')
    sources = (str(jf.compile(make()).program.source).strip() for make in MODELS)
    parts[1::2] = [f'python\n{source}\n' for source in sources]
    return '```'.join(parts)


if __name__ == '__main__':
    if '--write' in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end='')
