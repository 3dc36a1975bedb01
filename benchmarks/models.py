# SPDX-License-Identifier: Apache-2.0
"""Models of many kinds: each beside what it should cost, as ratios of one run.

    python benchmarks/models.py [--quick] [--only outputs,chains] [--trees PATH]

- `outputs`: trees with an output and a loss at every node, over the same trees without
  them and the perfect batch of the outputs;
- `kinds`: trees of two kinds of cells at random, over the same trees of one kind;
- `children`: child-sum trees over many children;
- `chains`: LSTMs over sequences of unequal length, beside loops over padded sequences;
- `fan-out`: one value that hundreds of operations read, beside plain JAX;
- `unused`: a model of sixteen cells of which batches use four, over one of just these;
- `products`: a cell's product of weights and state written in four ways, over `x @ W`;
- `gates`: a tree-LSTM whose gates are slices, or products of their own, over one
  that splits one product;
- `library`: the syntax trees of the standard library, as `examples/function_names.py`;
- `treebank`: the sentiment treebank at `--trees`, as `examples/sentiment.py`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measuring import MODES, agree_with, begin, in_plain_jax, jax_parser, set_up
from model_kinds import (
    GATES_IN_WAYS,
    SHORTEST,
    WAYS,
    bush,
    bush_block,
    bush_size,
    by_linen,
    chain_block,
    fan_out_block,
    from_linen,
    gates_block,
    kind_size,
    kinds_block,
    labelled,
    labelled_block,
    labelled_size,
    of_kinds,
    padded,
    read,
    scanned,
    to_linen,
    value,
    ways_block,
)
from options import among, fill, say
from perfect import perfect_batch
from report import Row
from trees import VOCABULARY, Params, Tree, Workload, random_tree
from turns import Contenders, Times, ratio_row, take_turns

import jfold as jf

sys.path.append(str(Path(__file__).parents[1] / 'examples'))

POOL = 4  # batches that take turns
REAL = 8  # the same where their sizes differ much


class Skipped(Exception):
    """A benchmark cannot run; says why."""


# ---- rows ----------------------------------------------------------------------------


def rows_of(setups: list[Any], times: dict[str, Times]) -> Iterator[Row]:
    """The times of each model in each mode."""
    for mode in MODES:
        for setup in setups:
            yield setup.row(mode, times)


def timed(
    setups: list[Any], options: argparse.Namespace, others: Contenders | None = None
) -> dict[str, Times]:
    """Times of all parts of some models, and of other contenders."""
    found: dict[str, Callable[[int], Any]] = dict(others or {})
    for setup in setups:
        found |= setup.contenders()
    say(f'timing {", ".join(setup.name for setup in setups)}')
    return take_turns(found, options.repeats, options.limit)


def random_trees(options: argparse.Namespace) -> list[list[Tree]]:
    """Batches of random trees, all different."""
    return Workload(options.batch, options.leaves, options.hidden).batches(POOL)


def few(batches: list[list[Any]], make: Callable[[], Any]) -> list[Any]:
    """Two small examples, or one, for checks of batches of that size."""
    return [make() for _ in batches[0][:2]]


# ---- outputs at every node -----------------------------------------------------------


def outputs(options: argparse.Namespace) -> Iterator[Row]:
    """Trees with outputs and a loss at every node, and without."""
    rng = random.Random(1)
    batches = [[labelled(t, rng) for t in b] for b in random_trees(options)]
    checks = few(batches, lambda: labelled(random_tree(7, rng), rng))
    without, having = (
        set_up(
            name, labelled_block(options.hidden, has), batches, checks, labelled_size
        )
        for name, has in (('no outputs', False), ('outputs', True))
    )
    added = {'logits', 'entropy'}
    ideal = perfect_batch(having.model, having.params, having.schedules, added)
    others = {f'ideal {mode}': lambda i, m=mode: ideal.run(m) for mode in MODES}
    times = timed([without, having], options, others)
    yield from rows_of([without, having], times)
    for mode in MODES:
        least = times[f'no outputs: {mode}'] + times[f'ideal {mode}']
        name = 'outputs at every node / none, and the perfect batch of the outputs'
        yield ratio_row(name, mode, times[f'outputs: {mode}'] / least)


# ---- several kinds of cells ----------------------------------------------------------


def kinds(options: argparse.Namespace) -> Iterator[Row]:
    """Two kinds of cells at random, and one."""
    rng, shapes = random.Random(1), random_trees(options)
    setups = []
    for name, count in (('one kind', 1), ('two kinds', 2)):
        batches = [[of_kinds(t, count, rng) for t in b] for b in shapes]
        checks = few(batches, lambda n=count: of_kinds(random_tree(7, rng), n, rng))
        block = kinds_block(options.hidden, count)
        setups.append(set_up(name, block, batches, checks, kind_size))
    times = timed(setups, options)
    yield from rows_of(setups, times)
    for mode in MODES:
        ratios = times[f'two kinds: {mode}'] / times[f'one kind: {mode}']
        yield ratio_row('two kinds of cells / one', mode, ratios)


def unused(options: argparse.Namespace) -> Iterator[Row]:
    """Many kinds, of which batches use four, and just these."""
    rng = random.Random(1)
    batches = [[of_kinds(t, 4, rng) for t in b] for b in random_trees(options)]
    checks = few(batches, lambda: of_kinds(random_tree(7, rng), 4, rng))
    few_kinds, many = 'four kinds', f'four of {options.kinds} kinds'
    setups = [
        set_up(name, kinds_block(options.hidden, n), batches, checks, kind_size)
        for name, n in ((few_kinds, 4), (many, options.kinds))
    ]
    times = timed(setups, options)
    yield from rows_of(setups, times)
    for mode in MODES:
        ratios = times[f'{many}: {mode}'] / times[f'{few_kinds}: {mode}']
        yield ratio_row(f'{many} / a model of just these four', mode, ratios)


# ---- ways of writing a cell ----------------------------------------------------------


def in_ways(
    options: argparse.Namespace, block: Callable[..., Any], ways: Iterable[str]
) -> Iterator[Row]:
    """The same cell, written in each way; all over the first."""
    rng, batches = random.Random(1), random_trees(options)
    checks = few(batches, lambda: random_tree(7, rng))
    nodes = 2 * options.leaves - 1
    setups = [
        set_up(way, block(options.hidden, way), batches, checks, lambda _: nodes)
        for way in ways
    ]
    times = timed(setups, options)
    yield from rows_of(setups, times)
    first, *others = ways
    for way, mode in itertools.product(others, MODES):
        ratios = times[f'{way}: {mode}'] / times[f'{first}: {mode}']
        yield ratio_row(f'{way} / {first}', mode, ratios)


def products(options: argparse.Namespace) -> Iterator[Row]:
    """A product of weights and state."""
    return in_ways(options, ways_block, WAYS)


def gates(options: argparse.Namespace) -> Iterator[Row]:
    """A tree-LSTM."""
    return in_ways(options, gates_block, GATES_IN_WAYS)


# ---- many children -------------------------------------------------------------------


def children(options: argparse.Namespace) -> Iterator[Row]:
    """Child-sum trees."""
    rng, nodes = random.Random(1), 2 * options.leaves - 1
    batches = [
        [bush(nodes, options.children, rng) for _ in range(options.batch)]
        for _ in range(POOL)
    ]
    checks = few(batches, lambda: bush(13, options.children, rng))
    setup = set_up('child sums', bush_block(options.hidden), batches, checks, bush_size)
    times = timed([setup], options)
    yield from rows_of([setup], times)
    for mode in MODES:
        ratios = times[f'child sums: {mode}'] / times[f'child sums: perfect {mode}']
        yield ratio_row('child-sum trees / their perfect batch', mode, ratios)


# ---- chains --------------------------------------------------------------------------


def chains(options: argparse.Namespace) -> Iterator[Row]:
    """LSTMs over sequences of unequal length."""
    rng = random.Random(0)

    def chain(longest: int) -> list[int]:
        length = rng.randint(min(SHORTEST, longest), longest)
        return [rng.randrange(VOCABULARY) for _ in range(length)]

    batches = [
        [chain(options.longest) for _ in range(options.batch)] for _ in range(POOL)
    ]
    checks = few(batches, lambda: chain(SHORTEST))
    fold = set_up('Fold', chain_block(options.hidden), batches, checks, len)
    prepare = functools.partial(padded, options.longest)
    scan = in_plain_jax('lax.scan, padded', scanned, fold.params, prepare, fold)
    own = to_linen(fold.params)
    linen = in_plain_jax(
        'linen.RNN, padded', by_linen(options.hidden), own, prepare, fold
    )
    agree_with(fold, scan)
    agree_with(fold, linen, from_linen)
    times = timed([fold, scan, linen], options)
    yield from rows_of([fold, scan, linen], times)
    for mode in MODES:
        for other in (scan, linen):
            ratios = times[f'Fold: {mode}'] / times[f'{other.name}: {mode}']
            yield ratio_row(f'chains by Fold / {other.name}', mode, ratios)


# ---- fan-out -------------------------------------------------------------------------


def fan_out(options: argparse.Namespace) -> Iterator[Row]:
    """One value that many operations read."""
    rng = np.random.default_rng(0)
    count, hidden = options.readers, options.hidden
    items = rng.uniform(-1, 1, (count, hidden)).astype(np.float32)
    drawn = rng.uniform(-1, 1, (POOL, options.batch, hidden)).astype(np.float32)
    batches = [list(batch) for batch in drawn]

    def by_hand(params: Params, x: jax.Array) -> jax.Array:
        values = value(params['value'], x)[:, None]
        return read(params['read'], values, items).sum(1)

    wide = set_up(
        'fan-out', fan_out_block(items), batches, batches[0][:2], lambda x: 1 + count
    )
    plain = in_plain_jax(
        'fan-out, by hand', by_hand, wide.params, lambda b: (np.stack(b),), wide
    )
    agree_with(wide, plain)
    times = timed([wide, plain], options)
    yield from rows_of([wide, plain], times)
    for mode in MODES:
        ratios = times[f'fan-out: {mode}'] / times[f'fan-out, by hand: {mode}']
        yield ratio_row(f'{count} readers of one value / plain JAX', mode, ratios)


# ---- real trees ----------------------------------------------------------------------


def library(options: argparse.Namespace) -> Iterator[Row]:
    """The syntax trees of the standard library."""
    try:
        import function_names
    except ModuleNotFoundError as error:  # it draws a picture
        raise Skipped(f'needs the package {error.name}') from None
    from syntax_trees import Labels, library_files, read_functions

    files = library_files()
    random.Random(0).shuffle(files)
    functions = [f for x in files[: options.files] for f in read_functions(x, 500)]
    labels = Labels.of(functions, 10)
    trees = [labels.tree(f) for f in functions]
    width = min(options.hidden, 64)
    block = function_names.make_block(len(labels), width, 20)
    yield from real('library', block, trees, syntax_size, options)


def syntax_size(tree: Any) -> int:
    """Nodes of a tree of (label, [subtrees])."""
    return 1 + sum(map(syntax_size, tree[1]))


def treebank(options: argparse.Namespace) -> Iterator[Row]:
    """The sentiment treebank."""
    if options.trees is None:
        raise Skipped('needs the treebank: --trees PATH')
    import sentiment
    from treebank import make_vocabulary, parse, read_lines

    try:
        lines = read_lines(options.trees)['train']
    except OSError as error:
        raise Skipped(str(error)) from None
    vocabulary = make_vocabulary(lines, {}, options.sentiment_hidden, 0)
    trees = [parse(line, vocabulary.__getitem__) for line in lines]
    block = sentiment.make_block(vocabulary, options.sentiment_hidden)
    yield from real('treebank', block, trees, labelled_size, options)


def real(
    name: str,
    block: jf.Block,
    trees: list[Any],
    size: Callable[[Any], int],
    options: argparse.Namespace,
) -> Iterator[Row]:
    """Random batches of given trees."""
    order = np.random.default_rng(0).permutation(len(trees))
    count = min(REAL, len(trees) // options.batch)
    if not count:
        raise Skipped(f'{len(trees)} trees are less than a batch')
    batches = [
        [trees[k] for k in order[i * options.batch : (i + 1) * options.batch]]
        for i in range(count)
    ]
    larger = iter(sorted(trees, key=size)[len(trees) // 4 :])  # than a quarter
    setup = set_up(name, block, batches, few(batches, larger.__next__), size)
    times = timed([setup], options)
    yield from rows_of([setup], times)
    for mode in MODES:
        ratios = times[f'{name}: {mode}'] / times[f'{name}: perfect {mode}']
        yield ratio_row(f'{name} / its perfect batch', mode, ratios)


# ---- command line --------------------------------------------------------------------

BENCHMARKS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    'outputs': outputs,
    'kinds': kinds,
    'children': children,
    'chains': chains,
    'fan-out': fan_out,
    'unused': unused,
    'products': products,
    'gates': gates,
    'library': library,
    'treebank': treebank,
}

NOTE = (
    'operations: how many run in a batch, at so many levels (depth); launches: pairs '
    'of an operation and a level. schedule: from examples to indices, or padding; '
    'merge: from a corpus instead; device: with the schedule on the device; whole: '
    'from examples to results; nodes/s of that. spread: the middle half of device '
    'times in percent of the median. share of perfect: the time of the perfect batch, '
    'the same operations each once on as many rows that lie side by side, over '
    'device. Ratios of device times are medians of rounds, with quartiles. Before it '
    'was timed, every compiled step has given values, loss and gradients of the eager '
    'twin on small examples, and those of plain JAX on a batch where there is such a '
    'contender.'
)


def main() -> None:
    """Runs the benchmarks; files are complete after each."""
    options = arguments()
    report = begin('Models of many kinds', options)
    report.note(about(options))
    report.note(NOTE)
    found: list[Row] = []
    for name in options.only:
        say(f'{name}: compiling and checking')
        try:
            found += [{'benchmark': name} | row for row in BENCHMARKS[name](options)]
        except Skipped as reason:
            report.absent[name] = str(reason)
        report.rows = sorted(found, key=lambda row: 'ratio' not in row)
        report.write()
    report.close()


def about(options: argparse.Namespace) -> str:
    """The sizes."""
    return (
        f'Batches of {options.batch}; H = {options.hidden}, '
        f'{options.sentiment_hidden} in treebank, at most 64 in library. Trees of '
        f'{options.leaves} leaves, at most {options.children} children; chains of '
        f'{SHORTEST} to {options.longest}.'
    )


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    names = ', '.join(BENCHMARKS)
    add('--only', type=among(list(BENCHMARKS)), default=list(BENCHMARKS), help=names)
    add('--batch', type=int, help='examples in a batch (default 64)')
    add('--leaves', type=int, help='of a random tree (default 64)')
    add('--hidden', type=int, help='size of states (default 128)')
    add('--sentiment-hidden', type=int, help='the same in treebank (default 300)')
    add('--children', type=int, default=16, help='of a node at most')
    add('--longest', type=int, default=50, help='items of a chain at most')
    add('--kinds', type=int, help='of cells in unused (default 16)')
    add('--readers', type=int, help='of one value (default 300)')
    add('--files', type=int, help='of the standard library (default 200)')
    add('--trees', type=Path, help='the treebank: a zip or a folder')
    full = {'batch': 64, 'leaves': 64, 'hidden': 128, 'sentiment_hidden': 300}
    quick = {'batch': 16, 'leaves': 16, 'hidden': 32, 'sentiment_hidden': 32}
    return fill(
        parser.parse_args(),
        full | {'readers': 300, 'files': 200, 'kinds': 16},
        quick | {'readers': 100, 'files': 40, 'kinds': 5},
    )


if __name__ == '__main__':
    main()
