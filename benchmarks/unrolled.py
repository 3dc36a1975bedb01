# SPDX-License-Identifier: Apache-2.0
"""Programs that run outside of loops, in part or whole, beside the same in loops.

    python benchmarks/unrolled.py [--quick] [--only attention,kinds]

Batches of a model differ in size and share one capacity, all of which is computed where
there are no loops. `widest` is the case where that costs most: large weights, few rows.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from compile import FEATURES, kinds_expression
from measuring import MODES, Setup, report_cases, set_up, timed_in_turns
from options import say
from report import Row
from turns import ratio_row

import jfold as jf
from jfold.combinators import convert_to_block
from jfold.lower import lower

sys.path.append(str(Path(__file__).parents[1] / 'examples'))

POOL = 6  # batches that take turns
Examples = list[Any]
Sizes = tuple[int, int, int]  # width, examples of a batch, the most items of each


def in_loops(block: Any, max_programs: int) -> jf.Model:
    """The model of a block, of which nothing is unrolled."""
    root = convert_to_block(block)
    return jf.Model(root, lower(root), max_programs)


def lists(sizes: Sizes, item: Callable[[np.random.Generator], Any]) -> list[Examples]:
    """Batches of lists of items, as many as `POOL`."""
    rng, (_, count, most) = np.random.default_rng(0), sizes
    return [
        [[item(rng) for _ in range(rng.integers(1, most + 1))] for _ in range(count)]
        for _ in range(POOL)
    ]


def attention(sizes: Sizes) -> tuple[jf.Block, list[Examples]]:
    """A mean of the steps of sequences, weighed by scores."""
    import attention as example

    width, count, most = sizes
    shortest = max(most // 10, 22)  # the task marks one of the first ten of them
    draw = functools.partial(example.draw, 'add', count, shortest, max(most, shortest))
    batches = [list(draw(seed).items) for seed in range(POOL)]
    # Unbounded scores have a bias whose gradient is nothing but rounding.
    return example.make_block(width, bounded=True), batches


def kinds(sizes: Sizes) -> tuple[jf.Block, list[Examples]]:
    """Sums of items of five kinds, each through the layer of its kind."""

    def item(rng: np.random.Generator) -> Any:
        return int(rng.integers(5)), rng.normal(size=FEATURES).astype('float32')

    return kinds_expression(5, sizes[0]), lists(sizes, item)


def words(sizes: Sizes) -> tuple[jf.Block, list[Examples]]:
    """Means of embedded words."""
    word = jf.Scalar('int32') >> jf.Function(nn.Embed(5000, sizes[0]))
    block = jf.Map(word) >> jf.Mean() >> jf.Function(nn.Dense(1))
    return block, lists(sizes, lambda rng: int(rng.integers(5000)))


def layers(sizes: Sizes) -> tuple[jf.Block, list[Examples]]:
    """Sums of items, each through two layers."""
    width = sizes[0]
    item = jf.Vector(width)
    for _ in range(2):
        item = item >> jf.Function(nn.Dense(width)) >> nn.relu
    block = jf.Map(item) >> jf.Sum() >> jf.Function(nn.Dense(1))
    return block, lists(sizes, lambda rng: rng.normal(size=width).astype('float32'))


def phases(sizes: Sizes) -> tuple[jf.Block, list[Examples]]:
    """Rounds of messages below trees, attention above: only the trees take turns."""
    width, count, most = sizes

    def cell(name: str) -> jf.Function:
        def joined(p: Any, x: Any, y: Any) -> Any:
            return jnp.tanh(p[0] @ x + p[1] @ y)

        def init(key: Any, *_: Any) -> Any:
            return nn.initializers.normal(0.1)(key, (2, width, width))

        return jf.Function(joined, init, name=name)

    node, word = jf.ForwardDeclaration(name='tree'), jf.Scalar('int32')
    embed, update = jf.Function(nn.Embed(1000, width)), cell('update')
    score, weigh = jf.Function(nn.Dense(1)), jf.Function(jnp.multiply)

    @jf.compose
    def rounds(xs: Any) -> Any:
        for _ in range(3):
            xs = jf.ZipWith(update)(xs, jf.Broadcast()(jf.Sum()(xs)))
        return jf.Sum()(xs)

    @jf.compose
    def attention(xs: Any) -> Any:
        scores = jf.Softmax()(jf.Map(score)(xs))
        return jf.Sum()(jf.ZipWith(weigh)(scores, xs))

    bag = jf.Map(word >> embed) >> rounds
    pair = jf.Record((node(), node())) >> cell('cell')
    node.resolve_to(jf.OneOf(type, {list: bag, tuple: pair}))

    def tree(rng: np.random.Generator, leaves: int) -> Any:
        if leaves == 1:
            return rng.integers(1000, size=rng.integers(1, most + 1)).tolist()
        left = int(rng.integers(1, leaves))
        return tree(rng, left), tree(rng, leaves - left)

    def item(rng: np.random.Generator) -> Any:
        return tree(rng, int(rng.integers(4, 17)))

    batches = lists((width, count, 4), item)
    return jf.Map(node()) >> attention >> jf.Function(nn.Dense(1)), batches


CASES: dict[str, tuple[Callable[[Sizes], tuple[jf.Block, list[Examples]]], Sizes]] = {
    'attention': (attention, (100, 50, 500)),
    'kinds': (kinds, (64, 64, 29)),
    'words': (words, (64, 64, 39)),
    'narrow': (layers, (64, 64, 29)),
    'wide': (layers, (512, 64, 29)),
    'widest': (layers, (1024, 8, 9)),
    'phases': (phases, (64, 32, 8)),
}
QUICK = 4, 2, 3


def compare(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of both, then ratios of steps on the device and of compiling."""
    make, sizes = CASES[name]
    block, batches = make(QUICK if options.quick else sizes)
    setups: list[Setup] = []
    for kind, compiles in (('no loops', jf.compile), ('in loops', in_loops)):
        say(f'{name}, {kind}: compiling and checking')
        checks, own = [min(batches[0], key=len)], f'{name}, {kind}'
        setups.append(set_up(own, block, batches, checks, len, compiles=compiles))
    say(f'{name}: timing')
    times = timed_in_turns(setups, options)
    for mode in MODES:
        yield from (setup.row(mode, times) for setup in setups)
        one, other = (times[f'{setup.name}: {mode}'] for setup in setups)
        yield ratio_row(f'{name}: no loops / in loops', mode, one / other)


def main() -> None:
    """Measures, and prints tables."""
    note = 'Width, examples of a batch, most items of each'
    report_cases(__doc__ or '', 'Programs without loops', note, CASES, compare)


if __name__ == '__main__':
    main()
