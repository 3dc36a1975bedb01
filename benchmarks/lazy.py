# SPDX-License-Identifier: Apache-2.0
"""Models in plain Python beside the same of blocks: recording, and whole steps.

    python benchmarks/lazy.py [--quick] [--only trees,graphs]

Both have the same operations, so steps on the device are the same programs. A whole
step goes from examples to gradients. A call of a block in a lazy function is counted as
an operation if it has a row; constants have none. For trees, the least that calls in
Python can do is timed too: they find the example that is recorded, append one row, and
return an object that tells its row, level and example.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from measuring import report_cases, set_up, timed_in_turns
from options import say
from report import Row
from turns import ratio_row

import jfold as jf

POOL = 4  # batches that take turns
WORDS = 200
Examples = list[Any]
Sizes = tuple[int, int, int]  # width, examples of a batch, leaves or nodes of each


def layers(width: int) -> tuple[jf.Function, jf.Function]:
    """An embedding, and a cell of two vectors."""
    return jf.Function(nn.Embed(WORDS, width), name='embed'), cell_of(width, join)


def join(p: Any, a: Any, b: Any) -> Any:
    """A vector of two."""
    return jnp.tanh(p[0] @ a + p[1] @ b)


def step(p: Any, state: Any, x: Any) -> Any:
    """The next two states, as an LSTM has them."""
    memory, hidden = state
    memory = memory + join(p, hidden, x)
    return memory, jnp.tanh(memory)


def cell_of(width: int, fn: Callable[..., Any]) -> jf.Function:
    """A function with two matrices."""

    def init(key: Any) -> Any:
        return nn.initializers.normal(0.1)(key, (2, width, width))

    return jf.Function(fn, init, name='cell')


def trees(sizes: Sizes) -> tuple[jf.Block, jf.Lazy, list[Examples]]:
    """Binary trees with words at the leaves."""
    width, count, leaves = sizes
    embed, cell = layers(width)
    tree = jf.ForwardDeclaration(name='tree')
    leaf, node = jf.Scalar('int32') >> embed, jf.Record((tree(), tree())) >> cell
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: node}))

    @jf.lazy
    def encode(x: Any) -> Any:
        if isinstance(x, int):
            return embed(jf.int32(x))
        return cell(encode(x[0]), encode(x[1]))

    def draw(rng: np.random.Generator, n: int) -> Any:
        if n == 1:
            return int(rng.integers(WORDS))
        left = int(rng.integers(1, n))
        return draw(rng, left), draw(rng, n - left)

    return tree(), encode, batches(count, lambda rng: draw(rng, leaves))


def graphs(sizes: Sizes) -> tuple[jf.Block, jf.Lazy, list[Examples]]:
    """Directed graphs without cycles, whose nodes have up to three children."""
    width, count, nodes = sizes
    embed, cell = layers(width)
    total, word = jf.Sum(), jf.GetItem('word') >> jf.Scalar('int32') >> embed
    node = jf.ForwardDeclaration(name='node')
    children = jf.GetItem('children') >> jf.Map(node()) >> total
    shared = jf.Share(jf.OneOf(is_leaf, [word, jf.AllOf(word, children) >> cell]))
    node.resolve_to(shared)

    @jf.lazy(share=True)
    def encode(x: Any) -> Any:
        value = embed(jf.int32(x['word']))
        if not x['children']:
            return value
        return cell(value, total([encode(child) for child in x['children']]))

    def draw(rng: np.random.Generator) -> Any:
        made: Examples = []
        for n in range(nodes):
            near = rng.integers(max(n - 6, 0), n, min(n, int(rng.integers(1, 4))))
            below = [made[k] for k in near.tolist()]
            made.append({'word': int(rng.integers(WORDS)), 'children': below})
        return made[-1]

    return node(), encode, batches(count, draw)


def is_leaf(x: Any) -> int:
    """0 for a node without children, 1 for others."""
    return int(bool(x['children']))


def lists(sizes: Sizes) -> tuple[jf.Block, jf.Lazy, list[Examples]]:
    """Lists of words, one state after another."""
    width, count, words = sizes
    embed, cell = layers(width)
    block = jf.Map(jf.Scalar('int32') >> embed) >> jf.Fold(cell, jf.Zeros([width]))
    zeros = np.zeros(width, 'float32')

    @jf.lazy
    def encode(xs: Any) -> Any:
        state = jf.tensor(zeros)
        for x in xs:
            state = cell(state, embed(jf.int32(x)))
        return state

    return block, encode, texts(count, words)


def states(sizes: Sizes) -> tuple[jf.Block, jf.Lazy, list[Examples]]:
    """Lists of words, with a pair of states after another."""
    width, count, words = sizes
    embed, cell = layers(width)[0], cell_of(width, step)
    start = jf.AllOf(jf.Zeros([width]), jf.Zeros([width]))
    read = jf.Map(jf.Scalar('int32') >> embed)
    block = read >> jf.Fold(cell, start) >> jf.GetItem(1)
    zeros = np.zeros(width, 'float32')

    @jf.lazy
    def encode(xs: Any) -> Any:
        state = jf.tensor(zeros), jf.tensor(zeros)
        for x in xs:
            state = cell(state, embed(jf.int32(x)))
        return state[1]

    return block, encode, texts(count, words)


def texts(count: int, words: int) -> list[Examples]:
    """Batches of lists of 1 to `words` words."""

    def draw(rng: np.random.Generator) -> Any:
        return rng.integers(WORDS, size=rng.integers(1, words + 1)).tolist()

    return batches(count, draw)


def batches(count: int, draw: Callable[[np.random.Generator], Any]) -> list[Examples]:
    """Batches of examples, as many as `POOL`."""
    rng = np.random.default_rng(0)
    return [[draw(rng) for _ in range(count)] for _ in range(POOL)]


# ---- the least that calls can do -----------------------------------------------------

Rows = list[Any]
EXAMPLE: ContextVar[list[Rows]] = ContextVar('EXAMPLE')


class Recorded:
    """A row of one of an example's lists."""

    __slots__ = 'example', 'level', 'row'

    def __init__(self, example: list[Rows], row: int, level: int) -> None:
        self.example, self.row, self.level = example, row, level


def leaf_row(x: int) -> Recorded:
    """A row of a number, and one of an operation on it."""
    example = EXAMPLE.get()
    example[0].append(x)
    return embed_row(Recorded(example, len(example[0]), 0))


def embed_row(x: Recorded) -> Recorded:
    """A row of an operation on one value."""
    example = EXAMPLE.get()
    assert x.example is example
    example[1].append(x.row)
    return Recorded(example, len(example[1]), 1)


def cell_row(x: Recorded, y: Recorded) -> Recorded:
    """A row of an operation on two values."""
    example = EXAMPLE.get()
    assert x.example is example is y.example
    example[2].append(x.row)
    example[3].append(y.row)
    level = (x.level if x.level > y.level else y.level) + 1
    return Recorded(example, len(example[2]), level)


def least(batch: Examples) -> None:
    """Records trees by calls that do nothing else."""

    def encode(x: Any) -> Recorded:
        if isinstance(x, int):
            return leaf_row(x)
        return cell_row(encode(x[0]), encode(x[1]))

    for example in batch:
        token = EXAMPLE.set([[], [], [], []])
        encode(example)
        EXAMPLE.reset(token)


CASES: dict[str, tuple[Any, Sizes]] = {
    'trees': (trees, (128, 64, 64)),
    'graphs': (graphs, (128, 64, 40)),
    'lists': (lists, (128, 64, 60)),
    'states': (states, (128, 64, 60)),
}
QUICK = 4, 2, 3


def compare(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """A row of each form, then ratios of recording and of whole steps."""
    make, sizes = CASES[name]
    block, lazy, pool = make(QUICK if options.quick else sizes)
    like = [x for batch in pool for x in batch]

    def learned(block: jf.Block, programs: int) -> jf.Model:
        return jf.compile(block, programs, like=like)

    setups = []
    for kind, root, compiles in (
        ('blocks', block, jf.compile),
        ('lazy', lazy, learned),
    ):
        say(f'{name}, {kind}: compiling and checking')
        own = f'{name}, {kind}'
        setups.append(set_up(own, root, pool, pool[0][:2], len, compiles=compiles))
    say(f'{name}: timing')
    others = {'least': lambda turn: least(pool[turn % len(pool)])}
    times = timed_in_turns(setups, options, others if name == 'trees' else None)
    for setup in setups:
        recording, whole = (
            times[f'{setup.name}: {part}'] for part in ('schedule', 'whole train')
        )
        yield {
            'form': setup.name,
            'operations': setup.operations,
            'schedule ms': recording.ms,
            'M operations/s': setup.operations / recording.median / 1e6,
            'whole training step ms': whole.ms,
        }
    if name == 'trees':
        blocks = times['trees, blocks: schedule']
        yield ratio_row('trees: least / blocks', 'schedule', times['least'] / blocks)
    for part in 'schedule', 'train', 'whole train':
        blocks, python = (times[f'{setup.name}: {part}'] for setup in setups)
        yield ratio_row(f'{name}: lazy / blocks', part, python / blocks)


def main() -> None:
    """Measures, and prints tables."""
    note = 'Width, examples of a batch, leaves, nodes or words of each'
    report_cases(__doc__ or '', 'Models in plain Python', note, CASES, compare)


if __name__ == '__main__':
    main()
