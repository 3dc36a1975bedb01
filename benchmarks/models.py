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
- `library`: the syntax trees of the standard library, as `examples/function_names.py`;
- `treebank`: the sentiment treebank at `--trees`, as `examples/sentiment.py`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from measuring import (
    MODES,
    Contenders,
    Params,
    Times,
    agree_with,
    begin,
    in_plain_jax,
    jax_parser,
    perfect_batch,
    ratio_row,
    set_up,
    take_turns,
)
from options import among, fill, say
from report import Row
from trees import VOCABULARY, Tree, Workload, cell, init_cell, random_tree

import jfold as jf

sys.path.append(str(Path(__file__).parents[1] / 'examples'))

POOL = 4  # batches that take turns
REAL = 8  # the same where their sizes differ much
CLASSES = 5
SHORTEST = 5

whole = jf.Scalar('int32')


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


def init_table(hidden: int, key: jax.Array, word: Any) -> jax.Array:
    """Initial states of words [VOCABULARY, 2H]."""
    return jax.random.uniform(key, (VOCABULARY, 2 * hidden), minval=-0.5, maxval=0.5)


def embed(table: jax.Array, word: jax.Array) -> jax.Array:
    """The state of a word."""
    return table[word]


def words(hidden: int) -> jf.Block:
    """A word's number to its state [2H]."""
    return whole >> jf.Function(embed, functools.partial(init_table, hidden))


def logits(params: Params, state: jax.Array) -> jax.Array:
    """Scores of the classes from the h of a state."""
    return state[len(state) // 2 :] @ params['w'] + params['b']


def init_logits(key: jax.Array, state: Any) -> Params:
    """For `logits`."""
    w = jax.random.normal(key, (state.shape[0] // 2, CLASSES))
    return {'w': w * (2 / state.shape[0]) ** 0.5, 'b': jnp.zeros(CLASSES)}


def labelled(tree: Tree, rng: random.Random) -> Any:
    """A tree of (label, word) and (label, left, right)."""
    parts = tree if isinstance(tree, tuple) else ()
    label = rng.randrange(CLASSES)
    return (label, *(labelled(x, rng) for x in parts)) if parts else (label, tree)


def labelled_block(hidden: int, has_outputs: bool) -> jf.Block:
    """The h [H] of the root; with outputs, the loss of every node as a metric."""
    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record({1: tree(), 2: tree()}) >> jf.Function(cell, init_cell)
    state = jf.OneOf(len, {2: jf.GetItem(1) >> words(hidden), 3: pair})
    if has_outputs:
        scores = jf.Function(logits, init_logits)
        entropy = jf.Function(
            optax.softmax_cross_entropy_with_integer_labels, name='entropy'
        )
        loss = jf.Record((scores, jf.Identity())) >> entropy >> jf.Metric('loss')
        both = jf.AllOf(state, jf.GetItem(0) >> whole)
        state = both >> jf.AllOf(jf.GetItem(0), loss) >> jf.GetItem(0)
    tree.resolve_to(state)
    return tree() >> jf.GetItem(slice(hidden, None))


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


def labelled_size(tree: Any) -> int:
    """Nodes of a tree of (label, word) and (label, left, right)."""
    return 1 + sum(map(labelled_size, tree[1:])) if len(tree) == 3 else 1


# ---- several kinds of cells ----------------------------------------------------------


def of_kinds(tree: Tree, kinds: int, rng: random.Random) -> Any:
    """A tree of words and (kind, left, right)."""
    if not isinstance(tree, tuple):
        return tree
    return rng.randrange(kinds), *(of_kinds(part, kinds, rng) for part in tree)


def kind_of(tree: Any) -> int:
    """The kind of a node, -1 for words."""
    return tree[0] if isinstance(tree, tuple) else -1


def kind_size(tree: Any) -> int:
    """Nodes of a tree of words and (kind, left, right)."""
    return 1 + sum(map(kind_size, tree[1:])) if isinstance(tree, tuple) else 1


def kinds_block(hidden: int, kinds: int) -> jf.Block:
    """The h [H] of the root of a tree whose nodes name one of so many cells."""
    tree = jf.ForwardDeclaration(name='tree')
    parts = jf.Record({1: tree(), 2: tree()})
    cases: dict[int, jf.Block] = {-1: words(hidden)}
    for kind in range(kinds):
        cases[kind] = parts >> jf.Function(cell, init_cell, f'cell {kind}')
    tree.resolve_to(jf.OneOf(kind_of, cases))
    return tree() >> jf.GetItem(slice(hidden, None))


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


# ---- products ------------------------------------------------------------------------

WAYS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    'x @ W': lambda weights, x: x @ weights,
    'x @ W.T': lambda weights, x: x @ weights.T,
    'W @ x': lambda weights, x: weights @ x,
    'W.T @ x': lambda weights, x: weights.T @ x,
}


def ways_block(hidden: int, way: str) -> jf.Block:
    """The state [2H] of the root of a tree, by a cell with one product."""

    def init(key: jax.Array, left: Any, right: Any) -> jax.Array:
        shape = left.size + right.size, left.size
        shape = shape if way in ('x @ W', 'W.T @ x') else shape[::-1]
        return jax.random.normal(key, shape) / left.size

    def join(weights: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.tanh(WAYS[way](weights, jnp.concatenate([left, right])))

    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> jf.Function(join, init)
    tree.resolve_to(jf.OneOf(type, {int: words(hidden), tuple: pair}))
    return tree()


def products(options: argparse.Namespace) -> Iterator[Row]:
    """The same cell, written in each way."""
    rng, batches = random.Random(1), random_trees(options)
    checks = few(batches, lambda: random_tree(7, rng))
    nodes = 2 * options.leaves - 1
    setups = [
        set_up(way, ways_block(options.hidden, way), batches, checks, lambda _: nodes)
        for way in WAYS
    ]
    times = timed(setups, options)
    yield from rows_of(setups, times)
    first, *others = WAYS
    for way, mode in itertools.product(others, MODES):
        ratios = times[f'{way}: {mode}'] / times[f'{first}: {mode}']
        yield ratio_row(f'{way} / {first}', mode, ratios)


# ---- many children -------------------------------------------------------------------


def bush(nodes: int, most: int, rng: random.Random) -> Any:
    """A tree of words and lists of at most so many children."""
    if nodes <= 1:
        return rng.randrange(VOCABULARY)
    count = rng.randint(1, min(most, nodes - 1))
    cuts = sorted(rng.sample(range(1, nodes - 1), count - 1))
    ends = zip([0, *cuts], [*cuts, nodes - 1], strict=True)
    return [bush(end - begin, most, rng) for begin, end in ends]


def bush_size(tree: Any) -> int:
    """Nodes of a tree of words and lists."""
    return 1 + sum(map(bush_size, tree)) if isinstance(tree, list) else 1


def keep(params: Params, state: jax.Array) -> jax.Array:
    """What a child hands on: its h, and its c as far as its forget gate lets it."""
    c, h = jnp.split(state, 2)
    return jnp.concatenate([jax.nn.sigmoid(h @ params['w'] + params['b']) * c, h])


def join(params: Params, total: jax.Array) -> jax.Array:
    """The state of a node from the sum over its children."""
    c, h = jnp.split(total, 2)
    i, o, u = jnp.split(h @ params['w'] + params['b'], 3)
    c = c + jax.nn.sigmoid(i) * jnp.tanh(u)
    return jnp.concatenate([c, jax.nn.sigmoid(o) * jnp.tanh(c)])


def init_dense(times: int, key: jax.Array, state: Any) -> Params:
    """An affine map from h [H] to `times` as many numbers."""
    hidden = state.shape[0] // 2
    w = jax.random.normal(key, (hidden, times * hidden)) * hidden**-0.5
    return {'w': w, 'b': jnp.zeros(times * hidden)}


def bush_block(hidden: int) -> jf.Block:
    """Child-sum tree-LSTM (Tai et al. 2015, eqs. 2-8, no input at inner nodes)."""
    tree = jf.ForwardDeclaration(name='tree')
    child = tree() >> jf.Function(keep, functools.partial(init_dense, 1))
    inner = jf.Function(join, functools.partial(init_dense, 3))
    node = jf.Map(child) >> jf.Sum() >> inner
    tree.resolve_to(jf.OneOf(type, {int: words(hidden), list: node}))
    return tree() >> jf.GetItem(slice(hidden, None))


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


def project(weights: jax.Array, x: jax.Array) -> jax.Array:
    """What an input adds to the gates."""
    return x @ weights


def init_project(key: jax.Array, x: Any) -> jax.Array:
    """For `project`."""
    return jax.random.normal(key, (x.shape[0], 4 * x.shape[0])) * x.shape[0] ** -0.5


def lstm(params: Params, state: Any, added: jax.Array) -> Any:
    """One step: the state is (c, h), each [..., H]."""
    c, h = state
    gates = jnp.split(added + h @ params['w'] + params['b'], 4, -1)
    i, f, g, o = (
        jnp.tanh(x) if k == 2 else jax.nn.sigmoid(x) for k, x in enumerate(gates)
    )
    c = f * c + i * g
    return c, o * jnp.tanh(c)


def init_lstm(key: jax.Array, state: Any, added: Any) -> Params:
    """For `lstm`."""
    hidden = added.shape[0] // 4
    w = jax.random.normal(key, (hidden, 4 * hidden)) * hidden**-0.5
    return {'w': w, 'b': jnp.zeros(4 * hidden)}


def chain_block(hidden: int) -> jf.Block:
    """The last h [H] of a list of words."""

    def init_words(key: jax.Array, word: Any) -> jax.Array:
        return jax.random.normal(key, (VOCABULARY, hidden))

    item = whole >> jf.Function(embed, init_words) >> jf.Function(project, init_project)
    step = jf.Function(lstm, init_lstm)
    start = jf.Zeros((hidden, hidden))
    return jf.Map(item) >> jf.Fold(step, start) >> jf.GetItem(1)


def padded(longest: int, chains: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Words [chains, longest] and lengths [chains], int32."""
    lengths = np.array([len(chain) for chain in chains], np.int32)
    rows = np.zeros((len(chains), longest), np.int32)
    rows[np.arange(longest) < lengths[:, None]] = [x for chain in chains for x in chain]
    return rows, lengths


def scanned(params: Params, rows: jax.Array, lengths: jax.Array) -> jax.Array:
    """The last h by a loop over padded sequences; inputs are projected at once."""
    added = project(params['project'], embed(params['embed'], rows.T))
    zeros = jnp.zeros((len(rows), added.shape[-1] // 4))

    def step(state: Any, given: Any) -> tuple[Any, None]:
        added, is_real = given
        new = lstm(params['lstm'], state, added)
        return tuple(
            jnp.where(is_real[:, None], a, b) for a, b in zip(new, state, strict=True)
        ), None

    is_real = jnp.arange(rows.shape[1])[:, None] < lengths
    return jax.lax.scan(step, (zeros, zeros), (added, is_real))[0][1]


GATES = 'ifgo'


def to_linen(params: Params) -> Params:
    """The parameters as Flax names them."""
    inputs, recurrent, biases = (
        jnp.split(x, 4, -1)
        for x in (params['project'], params['lstm']['w'], params['lstm']['b'])
    )
    cells: Params = {}
    for k, gate in enumerate(GATES):
        cells[f'i{gate}'] = {'kernel': inputs[k]}
        cells[f'h{gate}'] = {'kernel': recurrent[k], 'bias': biases[k]}
    return {'embed': params['embed'], 'cell': cells}


def from_linen(params: Params) -> Params:
    """The inverse of `to_linen`."""
    cells = params['cell']
    inputs, recurrent, biases = (
        jnp.concatenate([cells[side + gate][name] for gate in GATES], -1)
        for side, name in (('i', 'kernel'), ('h', 'kernel'), ('h', 'bias'))
    )
    own = {'w': recurrent, 'b': biases}
    return {'embed': params['embed'], 'project': inputs, 'lstm': own}


def by_linen(hidden: int) -> Callable[..., jax.Array]:
    """The last h by `flax.linen.RNN`."""
    rnn = nn.RNN(nn.OptimizedLSTMCell(hidden), return_carry=True)

    def run(params: Params, rows: jax.Array, lengths: jax.Array) -> jax.Array:
        inputs = embed(params['embed'], rows)
        given = {'params': {'cell': params['cell']}}
        (_, h), _ = rnn.apply(given, inputs, seq_lengths=lengths)
        return h

    return run


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


def value(params: Params, x: jax.Array) -> jax.Array:
    """The value that many read."""
    return jnp.tanh(x @ params['w'] + params['b'])


def read(params: Params, value: jax.Array, item: jax.Array) -> jax.Array:
    """One reading."""
    return jnp.tanh((value * item) @ params['w'] + params['b'])


def init_square(key: jax.Array, x: Any, *others: Any) -> Params:
    """A square affine map."""
    (size,) = x.shape
    w = jax.random.normal(key, (size, size)) * size**-0.5
    return {'w': w, 'b': jnp.zeros(size)}


def fan_out_block(items: np.ndarray) -> jf.Block:
    """The sum [H] of as many readings of one value as there are items [n, H]."""
    readers = [jf.AllOf(jf.Identity(), jf.FromTensor(item)) for item in items]
    reading = jf.Map(jf.Function(read, init_square)) >> jf.Sum()
    own = jf.Vector(items.shape[1]) >> jf.Function(value, init_square)
    return own >> jf.AllOf(*readers) >> reading


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
