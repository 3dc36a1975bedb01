# SPDX-License-Identifier: Apache-2.0
"""The source that jfold writes of nine models, as a page.

python tests/support/source_pages.py           # prints the page
python tests/support/source_pages.py --write   # puts it into docs/source.md
"""

from __future__ import annotations

import sys
import textwrap
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

HEAD = """\
# The source of a model

`jfold.compile` writes one function in Python, which records examples: it visits each
once, and notes which operation is applied to what. `print(model.source)`
shows it; it is plain Python, to be read beside the expression, and a debugger steps
into it.

How to read it:

- Each list at the top of `record` is a *tape*. An operation has a tape for each input,
  named by the comment behind it, and each row of the operation is an entry on all of
  them. A tape of constants holds what was read from the data, the tape of results the
  values of examples.
- A tensor is an int, the *number* of the row that makes it. The low bits are the place
  of the row on the tape, the bits above say who makes it (`EMBED = 2 << 30`). In a
  recursion the highest bits are the level, so of two numbers the greater has the higher
  level: `& LEVELS` leaves the level of the highest input, and the maker of the result
  adds one (`PAIR = LEVEL + (3 << 30)`).
- Small numbers (`ZEROS = 1`) are constants of the program. `n` is the length of a
  sequence; a sequence of tensors is a list of numbers, or a `range` where rows follow
  each other.
- `ends` notes after each example how long the tapes are. Functions that are not
  Python's own are those of the expression, or of `jfold/tracing/helpers.py`, which read
  data strictly: `x if type(x) is tuple else items(x, 2)` takes two items, whatever
  holds them; `readable(x)` refuses an iterator, which can be read only once.

Data that do not fit make this function fail somewhere; the example is then walked
block by block, to say what was expected and where. If data are deeper than Python's
stack, the whole batch is recorded again, by the same source with `yield` before each
call; your functions are then called again. `python
tests/support/source_pages.py --write` brings this page up to date.
"""


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


MODELS: dict[str, tuple[Callable[[], jf.Block], str]] = {
    'Binary trees': (
        binary_trees,
        'A recursion is a function that returns the number of its row. `OneOf(type, '
        '...)` has become a chain of `if`, and a pair is taken apart and called for '
        'twice.',
    ),
    'Syntax trees': (
        syntax_trees,
        'A node has any number of children: the numbers of their values come in a '
        'list, which `sum_of` reduces by groups of up to eight neighbours. The `1` of '
        'a node without children is a constant of the program, the zero of the sum.',
    ),
    'Sentiment': (
        sentiment,
        'A value of two tensors, here the two halves of the state of an LSTM, is two '
        'numbers, which one row of `inner` makes. Each node adds a row of '
        '`cross_entropy` too; what the metric of it collects are all of them, so it '
        'needs no tape.',
    ),
    'Names': (
        names,
        'The letters of a word go onto their tape at once, by `extend`, since none '
        'depends on the one before. Both recurrent networks are loops that carry the '
        'number of the state.',
    ),
    'Molecules': (
        molecules,
        'Atoms hold their neighbours, so that data are graphs: what an object gives is '
        'remembered by its identity for as long as an example is recorded. A round of '
        'messages is a function, which calls that of the round before.',
    ),
    'A pipeline': (
        pipeline,
        'The first of four models of Looks et al. 2017 (figure 2, section 3.3): a text '
        'is split, words become vectors, and a loop of one layer carries a state. A '
        'word that is not known is `None`, for which `Optional` gives zeros.',
    ),
    'Feed-forward attention': (
        feed_forward_attention,
        'Section 3.4: a composition, whose parts stand in the order of what they read. '
        'The leaky rectifier stands behind two layers, of which the second reads what '
        'came of the first: all between them is a recursion, in which levels count.',
    ),
    'Binary tree-LSTM': (
        binary_tree_lstm,
        'Section 3.5: a recursion whose cases give a word and two states; the cell '
        'reads them behind the cases, so each of their five tensors has a variable. '
        'Levels are read of one number of each state, since c and h are of one row.',
    ),
    'The weave module': (
        weave,
        'Section 3.6: sequences of sequences. Features of an atom meet those of all '
        'others, which is a loop in a loop; two parts that are strict compare lengths.',
    ),
}


def page() -> str:
    """The whole page in Markdown."""
    parts = [HEAD]
    for title, (make, text) in MODELS.items():
        source = str(jf.compile(make()).program.source).strip()
        said = textwrap.fill(text, 88)
        parts.append(f'## {title}\n\n{said}\n\n```python\n{source}\n```\n')
    return '\n'.join(parts)


def main() -> None:
    """Prints or writes the page."""
    # Not when this file is imported: the benchmarks have modules of the same names.
    sys.path += [str(ROOT / 'examples'), str(ROOT / 'benchmarks')]
    if '--write' in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end='')


if __name__ == '__main__':
    main()
