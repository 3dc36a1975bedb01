# SPDX-License-Identifier: Apache-2.0
"""The host side: from examples to schedules, from a corpus, and beside a device.

    python benchmarks/host.py [--quick] [--trees PATH]

Every rate stands beside that of a yardstick in the same run: a hand-written Python
recursion which does nothing but count the nodes of the same trees. `--trees` names the
archive of the Stanford Sentiment Treebank; without it, made-up sentences stand in.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measuring import begin, jax_parser, loss
from options import fill, numbers, say
from report import Row
from trees import Params, Tree, Workload, cell, comb, expression, init_cell
from turns import clocked, take_turns

import jfold as jf
from jfold.tracing.check_graph import check_graph

sys.path.append(str(Path(__file__).parents[1] / 'examples'))

import function_names
import sentiment
import treebank
from syntax_trees import Labels, library_files, read_functions

LARGE = Workload(trees=256, leaves=128, hidden=8)
SINGLE = Workload(trees=1, leaves=128, hidden=8)
DEEP = (8, 150), (1, 400)  # chains of so many leaves
POOL = 10  # batches that take turns


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


def from_examples(options: argparse.Namespace) -> Iterator[Row]:
    """Nodes per second from Python objects to a schedule."""
    kinds: list[tuple[str, jf.Block, Callable[[Tree], Any]]] = [
        ('tuples', expression(8), as_is),
        ('dicts', keyed(dict), as_dicts),
        ('dataclasses', keyed(Node), as_objects),
    ]
    for workload in (LARGE, SINGLE):
        batches = workload.batches(POOL)
        for name, block, convert in kinds:
            given = [[convert(tree) for tree in batch] for batch in batches]
            yield scheduled(f'{name}, {workload}', block, given, batches, options)
    rng = random.Random(0)
    for chains, leaves in DEEP:
        deep = [[comb(leaves, rng) for _ in range(chains)] for _ in range(POOL)]
        title = f'tuples, {chains} chains of {leaves} leaves'
        yield scheduled(title, expression(8), deep, deep, options)
    trees = library_trees(options.functions)
    for size in (64, 256):
        starts = range(0, len(trees) - size, max(size, 512))
        given = [trees[i : i + size] for i in starts]
        block = function_names.make_block(2_000, 8, 100)
        yield scheduled(
            f'{size} functions of the library', block, given, given, options
        )


def scheduled(
    title: str, block: jf.Block, batches: Any, plain: Any, options: argparse.Namespace
) -> Row:
    """The rate of `model.schedule`."""
    say(title)
    model = jf.compile(block, max_programs=64)
    rounds = len(batches)
    nodes = np.mean([sum(map(count_any, batch)) for batch in plain])
    for batch in batches:
        model.schedule(batch)  # so that capacities are settled
    contenders: dict[str, Callable[[int], Any]] = {
        'schedule': lambda i: model.schedule(batches[i % rounds]),
        'count': lambda i: sum(map(count_any, plain[i % rounds])),
    }
    times = take_turns(contenders, options.repeats, options.limit)
    return {
        'from examples': title,
        'M nodes/s': nodes / times['schedule'].median / 1e6,
        'times the recursion': (times['count'] / times['schedule']).median,
        'spread %': times['schedule'].spread,
    }


def count_any(tree: Any) -> int:
    """Nodes of a pair or of `(label, [subtrees])`."""
    if isinstance(tree, tuple) and isinstance(tree[1], list):
        return 1 + sum(map(count_any, tree[1]))
    return count(tree)


def library_trees(limit: int) -> list[Any]:
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


def from_corpus(options: argparse.Namespace) -> Iterator[Row]:
    """Nodes per second from a corpus to a schedule, and its size."""
    say(f'a corpus, {LARGE}')
    model = jf.compile(expression(8))
    examples = [tree for batch in LARGE.batches(8) for tree in batch]
    corpus = model.trace(examples, progress=False)
    rng = np.random.default_rng(0)
    chosen = [rng.permutation(len(corpus))[: LARGE.trees] for _ in range(POOL)]
    for indices in chosen:
        corpus.schedule(indices)
    contenders: dict[str, Callable[[int], Any]] = {
        'corpus': lambda i: corpus.schedule(chosen[i % POOL]),
        'examples': lambda i: model.schedule([examples[k] for k in chosen[i % POOL]]),
        'check': lambda i: check_graph(model.program, corpus.graph),
        'trace': lambda i: model.trace(examples, progress=False),
    }
    times = take_turns(contenders, options.repeats, options.limit)
    constants = sum(x.columns[0].nbytes for x in corpus.graph.constants)
    nodes = int(corpus.nodes.sum())
    yield {
        'from a corpus': str(LARGE),
        'M nodes/s': LARGE.nodes / times['corpus'].median / 1e6,
        'times from examples': (times['examples'] / times['corpus']).median,
        'spread %': times['corpus'].spread,
        'bytes a node': (corpus.nbytes - constants) / nodes,
        'bytes of constants': constants / nodes,
        'us a node, checked': times['check'].median / nodes * 1e6,
        'checked / traced': (times['check'] / times['trace']).median,
    }


def epochs(options: argparse.Namespace) -> Iterator[Row]:
    """Host time of a whole epoch over the treebank, merged from a corpus."""
    name = 'the treebank' if options.trees else 'made-up sentences'
    say(f'an epoch over {name}')
    found = treebank.read_lines(options.trees) if options.trees else None
    lines = (found or treebank.made_up_lines(0))['train']
    vocabulary = treebank.make_vocabulary(lines, {}, 8, 0)
    trees = [treebank.parse(line, vocabulary.__getitem__) for line in lines]
    model = jf.compile(sentiment.make_block(vocabulary, 8), max_programs=64)
    corpus, tracing = clocked(functools.partial(model.trace, trees, progress=False))
    for size in (32, 64, 256):
        epoch = functools.partial(one_epoch, corpus, size)
        times = take_turns({'epoch': epoch}, options.repeats, options.limit)['epoch']
        yield {
            'an epoch over': name,
            'corpus': repr(corpus),
            'traced s': tracing,
            'batch': size,
            'merged s': times.median,
            'spread %': times.spread,
        }


def one_epoch(corpus: jf.Corpus, size: int, _: int) -> None:
    """Builds all schedules of an epoch."""
    order = np.random.default_rng(0).permutation(len(corpus))
    for first in range(0, len(order), size):
        corpus.schedule(order[first : first + size], size=size)


# ---- beside the device ---------------------------------------------------------------


def prefetching(hidden: int, options: argparse.Namespace) -> Iterator[Row]:
    """A training epoch with prefetched schedules over one with schedules at hand."""
    workload = Workload(trees=64, leaves=64, hidden=hidden)
    say(f'training on {workload}')
    model = jf.compile(expression(hidden))
    examples = [t for batch in workload.batches(options.batches) for t in batch]
    corpus = model.trace(examples, progress=False)
    params = model.init(jax.random.key(0))

    gradient = jax.grad(functools.partial(loss, model))

    @jax.jit
    def step(params: Params, schedule: jf.Schedule) -> Params:
        grads = gradient(params, schedule)
        return jax.tree.map(lambda x, y: x - 1e-3 * y, params, grads)

    compiled = model.precompile(step, params, corpus.capacities(workload.trees))

    def train(batches: Any) -> Params:
        return functools.reduce(compiled, batches, params)

    ready = [jax.device_put(s) for s in _schedules(model, corpus, workload.trees)]
    contenders: dict[str, Callable[[int], Any]] = {
        'at hand': lambda i: train(ready),
        'prefetched': lambda i: train(_schedules(model, corpus, workload.trees)),
        'in turn': lambda i: train(_schedules(model, corpus, workload.trees, 0)),
    }
    times = take_turns(contenders, options.repeats, options.limit)
    alone = times['at hand']
    yield {
        'training on': str(workload),
        'batches': len(ready),
        'at hand ms': alone.ms,
        'spread %': alone.spread,
        'on a thread': (times['prefetched'] / alone).median,
        'in turn': (times['in turn'] / alone).median,
    }


def _schedules(
    model: jf.Model, corpus: jf.Corpus, size: int, prefetch: int = 2
) -> Iterator[jf.Schedule]:
    with model.batches(corpus, size, shuffle=0, prefetch=prefetch) as batches:
        for batch in batches:
            yield batch.schedule


# ---- memory --------------------------------------------------------------------------


def memory(options: argparse.Namespace) -> Iterator[Row]:
    """The largest memory of a process that traces so many nodes."""
    say(f'memory to trace {options.nodes:,} nodes')
    command = [sys.executable, __file__, '--memory', '--nodes', str(options.nodes)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    yield json.loads(run.stdout)


def trace_stream(nodes: int) -> Row:
    """Traces examples as they are made, and tells how much memory that took."""
    model = jf.compile(expression(8))
    before = peak_memory()
    batches = -(-nodes // LARGE.nodes)
    stream = (
        tree for seed in range(batches) for tree in LARGE.batches(1, seed=seed)[0]
    )
    corpus = model.trace(stream, progress=False)
    peak = peak_memory()
    return {'traced from a stream': repr(corpus), 'GB': peak, 'GB before': before}


def peak_memory() -> float:
    """The most memory this program has held so far, in GB; on Linux."""
    # Not `resource`, which starts from the peak of the process before `exec`.
    status = Path('/proc/self/status').read_text()
    (kilobytes,) = re.findall(r'VmHWM:\s*(\d+) kB', status)
    return int(kilobytes) / 1e6


# ---- command line --------------------------------------------------------------------

NOTE = (
    'Medians. times the recursion: the rate over that of a Python recursion which only '
    'counts the nodes of the same trees. times from examples: how much faster than '
    '`model.schedule` of the same examples. checked: the graph of a whole corpus, as '
    'where it comes from a file; over tracing it. merged: all schedules of an epoch. '
    'on a thread, in turn: an epoch of training whose schedules are built on a thread, '
    'or in turn, over one with all schedules at hand. GB: the most memory of a process '
    'that traces a stream, and what it had held before.'
)


def main() -> None:
    """Measures table by table; files are complete after each."""
    options = arguments()
    if options.memory:
        print(json.dumps(trace_stream(options.nodes)))
        return
    report = begin('The host', options)
    report.note(NOTE)
    training = [prefetching(hidden, options) for hidden in options.hidden]
    tables = from_examples(options), from_corpus(options), epochs(options)
    for rows in (*tables, *training, memory(options)):
        report.rows += rows
        report.write()
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    add('--trees', type=Path, help='the treebank: a zip or a folder')
    add('--functions', type=int, help='of the standard library (default 6,000)')
    add('--hidden', type=numbers, help='sizes of states in training (default 32,256)')
    add('--batches', type=int, help='of an epoch of training (default 24)')
    add('--nodes', type=int, help='traced from a stream (default 10,000,000)')
    add('--memory', action='store_true', help=argparse.SUPPRESS)
    full = {'functions': 6_000, 'hidden': [32, 256], 'batches': 24}
    quick = {'functions': 2_000, 'hidden': [32], 'batches': 8}
    return fill(parser.parse_args(), full | {'nodes': 10**7}, quick | {'nodes': 10**6})


if __name__ == '__main__':
    main()
