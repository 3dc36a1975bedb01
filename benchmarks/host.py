# SPDX-License-Identifier: Apache-2.0
"""The host side: from examples to schedules, from a corpus, and beside a device.

    python benchmarks/host.py [--quick] [--trees PATH]

Every rate is printed beside that of a yardstick in the same run: a hand-written Python
recursion which does nothing but count the nodes of the same trees. `--trees` names the
archive of the Stanford Sentiment Treebank; without it, made-up sentences stand in.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from timing import interleaved
from trees import Tree, Workload, cell, expression, init_cell

import jfold as jf

sys.path.append(str(Path(__file__).parents[1] / 'examples'))

import function_names
import sentiment
import treebank
from syntax_trees import Labels, library_files, read_functions

LARGE = Workload(trees=256, leaves=128, hidden=8)
SINGLE = Workload(trees=1, leaves=128, hidden=8)
BATCH = 256  # examples of the treebank
TEN_MILLION = 10_000_000


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--quick', action='store_true', help='a fifth of the repeats')
    parser.add_argument('--trees', type=Path, help='the treebank: a zip or a folder')
    parser.add_argument('--memory', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        trace_ten_million()
        return
    repeats = 8 if options.quick else 40
    print(
        f'jax {jax.__version__} on {jax.devices()[0].device_kind}, medians of one run'
    )
    examples_to_schedules(repeats)
    corpora(repeats)
    epochs(options.trees, max(repeats // 8, 3))
    prefetching(32, repeats)
    prefetching(256, max(repeats // 8, 4))
    memory()


# ---- from examples -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """An inner node as an object."""

    left: Any
    right: Any


def as_dicts(tree: Tree) -> Any:
    """Inner nodes as dicts."""
    if isinstance(tree, int):
        return tree
    return {'left': as_dicts(tree[0]), 'right': as_dicts(tree[1])}


def as_objects(tree: Tree) -> Any:
    """Inner nodes as dataclasses."""
    return tree if isinstance(tree, int) else Node(*map(as_objects, tree))


def as_is(tree: Tree) -> Any:
    """Inner nodes as pairs."""
    return tree


def keyed(kind: type) -> jf.Block:
    """The model of `trees.expression` on nodes with a left and a right."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(_embed, _init_table)
    parts = jf.Record({'left': tree(), 'right': tree()})
    tree.resolve_to(
        jf.OneOf(type, {int: leaf, kind: parts >> jf.Function(cell, init_cell)})
    )
    return tree()


def _init_table(key: jax.Array, word: Any) -> jax.Array:
    return jax.random.uniform(key, (128, 16))


def _embed(table: jax.Array, word: jax.Array) -> jax.Array:
    return table[word]


def count(tree: Any) -> int:
    """The yardstick: nodes of nested tuples, one Python call a node."""
    return 1 if isinstance(tree, int) else 1 + sum(map(count, tree))


def examples_to_schedules(repeats: int) -> None:
    """Nodes per second from Python objects to a schedule."""
    print('\nfrom examples to a schedule, M nodes/s, and times a counting recursion')
    kinds: list[tuple[str, jf.Block, Callable[[Tree], Any]]] = [
        ('tuples', expression(8), as_is),
        ('dicts', keyed(dict), as_dicts),
        ('dataclasses', keyed(Node), as_objects),
    ]
    for workload in (LARGE, SINGLE):
        batches = workload.batches(min(repeats, 10) + 2)
        for name, block, convert in kinds:
            given = [[convert(tree) for tree in batch] for batch in batches]
            schedules(f'{name}, {workload}', block, given, batches, repeats)
    trees = library_trees()
    for size in (64, 256):
        given = [
            trees[i : i + size] for i in range(0, len(trees) - size, max(size, 512))
        ]
        block = function_names.make_block(2_000, 8, 100)
        schedules(f'{size} functions of the library', block, given, given, repeats)


def schedules(
    title: str, block: jf.Block, batches: Any, plain: Any, repeats: int
) -> None:
    """One line: the rate of `model.schedule`."""
    model = jf.compile(block, max_programs=64)
    rounds = len(batches)
    nodes = [sum(map(count_any, batch)) for batch in plain]
    for batch in batches:
        model.schedule(batch)  # so that capacities are settled
    times = interleaved(
        {
            'schedule': lambda i: model.schedule(batches[i % rounds]).indices[:0],
            'count': lambda i: np.array(sum(map(count_any, plain[i % rounds]))),
        },
        repeats,
    )
    rate = statistics.median(nodes) / times['schedule']
    share = times['count'] / times['schedule']
    print(f'  {title:44} {rate / 1e6:6.2f} {share:6.2f}')


def count_any(tree: Any) -> int:
    """Nodes of a pair or of `(label, [subtrees])`."""
    if isinstance(tree, tuple) and isinstance(tree[1], list):
        return 1 + sum(map(count_any, tree[1]))
    return count(tree)


def library_trees(limit: int = 6_000) -> list[Any]:
    """Functions of the standard library as `(label, [subtrees])`."""
    found: list[Any] = []
    for path in library_files():
        found += read_functions(path, 2_500)
        if len(found) >= limit:
            break
    labels = Labels.of(found, 10)
    trees = [labels.tree(function) for function in found]
    return [tree for tree in trees if tree[1]]


# ---- from a corpus -------------------------------------------------------------------


def corpora(repeats: int) -> None:
    """Nodes per second from a corpus to a schedule, and its size."""
    print('\nfrom a corpus to a schedule, M nodes/s, and times the same from examples')
    model = jf.compile(expression(8))
    examples = [tree for batch in LARGE.batches(8) for tree in batch]
    corpus = model.trace(examples)
    rng = np.random.default_rng(0)
    chosen = [rng.permutation(len(corpus))[: LARGE.trees] for _ in range(repeats + 2)]
    for indices in chosen:
        corpus.schedule(indices)
    times = interleaved(
        {
            'corpus': lambda i: corpus.schedule(chosen[i]).indices[:0],
            'examples': lambda i: model.schedule(
                [examples[k] for k in chosen[i]]
            ).indices[:0],
        },
        repeats,
    )
    rate = LARGE.nodes / times['corpus'] / 1e6
    times_faster = times['examples'] / times['corpus']
    print(f'  {LARGE!s:44} {rate:6.1f} {times_faster:6.1f}')
    constants = sum(x.columns[0].nbytes for x in corpus.graph.constants)
    nodes = int(corpus.nodes.sum())
    print(
        f'  {(corpus.nbytes - constants) / nodes:.1f} bytes a node and '
        f'{constants / nodes:.1f} of constants'
    )


def epochs(path: Path | None, repeats: int) -> None:
    """Host time of a whole epoch over the treebank, merged from a corpus."""
    lines = treebank.read_lines(path) if path else treebank.made_up_lines(0)
    train = lines['train']
    vocabulary = treebank.make_vocabulary(train, {}, 8, 0)
    trees = [treebank.parse(line, vocabulary.__getitem__) for line in train]
    model = jf.compile(sentiment.make_block(vocabulary, 8), max_programs=64)
    begin = time.perf_counter()
    corpus = model.trace(trees)
    tracing = time.perf_counter() - begin
    name = 'the treebank' if path else 'made-up sentences'
    print(f'\nan epoch over {name}: {corpus}, traced in {tracing:.2f} s')
    for size in (32, 64, BATCH):
        times = [one_epoch(model, corpus, size) for _ in range(repeats + 1)][1:]
        print(f'  batches of {size:4}: merged in {statistics.median(times):.3f} s')


def one_epoch(model: jf.Model, corpus: jf.Corpus, size: int) -> float:
    """Seconds to build all schedules of an epoch."""
    order = np.random.default_rng(0).permutation(len(corpus))
    begin = time.perf_counter()
    for first in range(0, len(order), size):
        corpus.schedule(order[first : first + size], size=size)
    return time.perf_counter() - begin


# ---- beside the device ---------------------------------------------------------------


def prefetching(hidden: int, repeats: int) -> None:
    """A training epoch with prefetched schedules over one with schedules at hand."""
    workload = Workload(trees=64, leaves=64, hidden=hidden)
    model = jf.compile(expression(hidden))
    corpus = model.trace([t for batch in workload.batches(24) for t in batch])
    params = model.init(jax.random.key(0))

    def loss(params: Any, schedule: jf.Schedule) -> jax.Array:
        return model.apply(params, schedule).sum(-1).mean()

    @jax.jit
    def step(params: Any, schedule: jf.Schedule) -> Any:
        grads = jax.grad(loss)(params, schedule)
        return jax.tree.map(lambda x, y: x - 1e-3 * y, params, grads)

    compiled = model.precompile(step, params, corpus.capacities(workload.trees))

    def train(batches: Any) -> Any:
        new = params
        for batch in batches:
            new = compiled(new, batch)
        return new

    ready = [jax.device_put(s) for s in _schedules(model, corpus, workload.trees)]
    times = interleaved(
        {
            'at hand': lambda i: train(ready),
            'prefetched': lambda i: train(_schedules(model, corpus, workload.trees)),
            'in turn': lambda i: train(_schedules(model, corpus, workload.trees, 0)),
        },
        repeats,
    )
    alone = times['at hand']
    print(
        f'\ntraining on {workload}, {len(ready)} batches in {1e3 * alone:.0f} ms: '
        f'{times["prefetched"] / alone:.3f} of that with schedules built on a thread, '
        f'{times["in turn"] / alone:.3f} built in turn'
    )


def _schedules(
    model: jf.Model, corpus: jf.Corpus, size: int, prefetch: int = 2
) -> Iterator[jf.Schedule]:
    with model.batches(corpus, size, shuffle=0, prefetch=prefetch) as batches:
        for batch in batches:
            yield batch.schedule


# ---- memory --------------------------------------------------------------------------


def memory() -> None:
    """The largest memory of a process that traces ten million nodes."""
    command = [sys.executable, __file__, '--memory']
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(f'\n{result.stdout.strip()}')


def trace_ten_million() -> None:
    """Traces examples as they are made, and says how much memory that took."""
    model = jf.compile(expression(8))
    before = peak_memory()
    trees = -(-TEN_MILLION // (2 * LARGE.leaves))
    workload = Workload(trees=256, leaves=LARGE.leaves, hidden=8)
    stream = (
        tree
        for seed in range(-(-trees // 256))
        for tree in workload.batches(1, seed=seed)[0]
    )
    corpus = model.trace(stream, progress=False)
    peak = peak_memory()
    print(f'{corpus} traced from a stream: {peak:.2f} GB at most, {before:.2f} before')


def peak_memory() -> float:
    """The most memory this program has held so far, in GB; on Linux."""
    # Not `resource`, which starts from the peak of the process before `exec`.
    status = Path('/proc/self/status').read_text()
    (kilobytes,) = re.findall(r'VmHWM:\s*(\d+) kB', status)
    return int(kilobytes) / 1e6


if __name__ == '__main__':
    main()
