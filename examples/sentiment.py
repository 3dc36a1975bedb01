# SPDX-License-Identifier: Apache-2.0
"""Sentiment of phrases: a binary tree-LSTM with a softmax at every node of a treebank.

The model of section 3.5 of "Deep Learning with Dynamic Computation Graphs" (Looks et
al. 2017), after Tai et al. 2015, with recurrent dropout (Semeniuta et al. 2016).
Several of it (`--seeds`), which differ in what is drawn, are trained at once. Give it
the Stanford Sentiment Treebank with `--trees` and word vectors with `--vectors`;
without, it makes up a small treebank of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm
from training import (
    Examples,
    Given,
    Params,
    Trainer,
    apply_gradients,
    copy,
    make_trainer,
    table,
    timed,
)
from treebank import (
    PARTS,
    Tree,
    Vocabulary,
    made_up_lines,
    make_vocabulary,
    parse,
    read_lines,
    read_vectors,
    sizes,
)

import jfold as jf
from jfold import layers

CLASSES = 5  # from very negative to very positive; 2 is neutral
USUAL = {  # options, with the treebank and without
    True: dict(
        hidden=300,
        epochs=8,
        batch_size=96,
        dropout=0.25,
        recurrent_dropout=0.25,
        seeds=5,
    ),
    False: dict(
        hidden=32, epochs=15, batch_size=25, dropout=0.0, recurrent_dropout=0.0, seeds=1
    ),
}

# ---- the model -----------------------------------------------------------------------


@dataclass(frozen=True)
class Dropout:
    """How much is dropped in training, and scaled up again.

    Attributes:
      around: of word vectors, and of states before the softmax.
      inside: of the candidates of the tree-LSTM (Semeniuta et al. 2016).
    """

    around: float = 0.0
    inside: float = 0.0


class Logits(nn.Module):
    """Scores of the classes, from the state of a node, its memory and its output."""

    dropout: float

    @nn.compact
    def __call__(self, memory: jax.Array, output: jax.Array) -> jax.Array:
        return nn.Dense(CLASSES)(dropped(self.dropout, output))


class Leaf(nn.Module):
    """The state of a word, from its vector."""

    hidden: int
    dropout: Dropout

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = dropped(self.dropout.around, x)
        return layers.TreeLSTMLeaf(self.hidden, self.dropout.inside, name='lstm')(x)


def dropped(rate: float, x: jax.Array) -> jax.Array:
    """Without some of its numbers, unless nothing is ever to be drawn."""
    return nn.Dropout(rate)(x) if rate else x


def cross_entropy(scores: jax.Array, label: jax.Array) -> jax.Array:
    """The loss at one node."""
    return optax.softmax_cross_entropy_with_integer_labels(scores, label)


def make_block(
    vocabulary: Vocabulary, hidden: int, dropout: Dropout = Dropout()
) -> jf.Block:
    """Root scores [5] of a tree; the loss of every node as the metric `loss`."""
    vectors = vocabulary.vectors
    word = layers.Embed(*vectors.shape, table=vectors)
    leaf = jf.Function(Leaf(hidden, dropout), name='leaf')
    inner = layers.TreeLSTMCell(hidden, recurrent_dropout=dropout.inside)
    inner, softmax = jf.Function(inner, name='inner'), Logits(dropout.around)
    softmax = jf.Function(softmax, name='logits')

    tree = jf.ForwardDeclaration(name='tree')
    number = jf.Scalar('int32')
    cases = {
        2: jf.GetItem(1) >> number >> word >> leaf,
        3: jf.Record({1: tree(), 2: tree()}) >> inner,
    }
    labelled = jf.AllOf(jf.OneOf(len, cases), jf.GetItem(0) >> number)
    loss = jf.Record((softmax, jf.Identity())) >> cross_entropy >> jf.Metric('loss')
    tree.resolve_to(labelled >> jf.AllOf(jf.GetItem(0), loss) >> jf.GetItem(0))
    return tree() >> softmax


def make_optimizer(rate: float, slower: float) -> optax.GradientTransformation:
    """Adagrad; its gradients are `slower` for word vectors."""
    slow = optax.chain(optax.scale(slower), optax.adagrad(rate))
    return optax.multi_transform(
        {'word': slow, 'other': optax.adagrad(rate)},
        lambda params: {k: 'word' if k == 'embed' else 'other' for k in params},
    )


# ---- training and scores -------------------------------------------------------------
# Models that differ in what is drawn are trained as one, by `vmap` over their
# parameters: those of all, in arrays [models, ...], go through one program.


@dataclass(frozen=True)
class Scores:
    """Accuracy at the roots, in the paper's sense, of one or more models [models].

    Attributes:
      fine: of all trees, among five classes.
      binary: of the trees that are not neutral, negative against positive.
    """

    fine: np.ndarray
    binary: np.ndarray

    @classmethod
    def of(cls, chances: np.ndarray, labels: np.ndarray) -> Scores:
        """From chances of the classes [trees, models, 5] and root labels [trees]."""
        positive = chances[..., 3:].sum(-1) > chances[..., :2].sum(-1)
        labels = labels[:, None]
        right = (positive == (labels > 2))[labels[:, 0] != 2]
        return cls((chances.argmax(-1) == labels).mean(0), right.mean(0))

    def __str__(self) -> str:
        return f'fine {_mean(self.fine)}, binary {_mean(self.binary)}'


def _mean(values: np.ndarray) -> str:
    """The mean, and the standard deviation of several as the paper gives it."""
    spread = f' ({100 * values.std(ddof=1):.1f})' if len(values) > 1 else ''
    return f'{100 * values.mean():.1f}{spread}'


def ensemble_loss(
    model: jf.Model, params: Params, schedule: Any, ids: Any, keys: jax.Array
) -> jax.Array:
    """Cross entropy summed over all nodes and models.

    Args:
      model: what `jf.compile` gave.
      params: of all models, [models, ...].
      schedule: of a batch.
      ids: [trees] of which trees.
      keys: [models] what is dropped follows from one of these, from the tree and the
        node, however trees come together in batches.
    """

    def loss(params: Params, key: jax.Array) -> jax.Array:
        rngs = {'dropout': jax.random.wrap_key_data(key)}
        _, metrics = model.apply(params, schedule, rngs=rngs, ids=ids)
        return metrics['loss'].sum()

    return jax.vmap(loss)(params, keys).sum()


def ensemble_chances(model: jf.Model, params: Params, schedule: Any) -> jax.Array:
    """Chances of the classes at roots [trees, models, 5]."""

    def scores(params: Params) -> jax.Array:
        return model.apply(params, schedule, deterministic=True)[0]

    return jax.nn.softmax(jax.vmap(scores, out_axes=1)(params))


def batch_inputs(models: int, seed: int) -> Given:
    """What `ensemble_loss` is given: which trees, and keys for every epoch."""

    def given(part: Examples, indices: np.ndarray, epoch: int) -> tuple[Any, ...]:
        key = jax.random.fold_in(jax.random.key(seed), epoch)
        return indices, np.asarray(jax.random.key_data(jax.random.split(key, models)))

    return given


@dataclass(frozen=True)
class Curve:
    """What a run came to, epoch by epoch.

    Attributes:
      best: the parameters of all models, each from its best epoch on dev.
      epochs: [models] which these are, from 1.
    """

    best: Params
    epochs: np.ndarray


def train(trainer: Trainer, seed: int) -> Curve:
    """Each model as it was after the epoch with its best fine accuracy on dev."""
    nodes = trainer.parts['train'].nodes.sum()
    labels = trainer.parts['dev'].targets
    best, fine, chosen = None, -1.0, 0
    for epoch, (name, params, losses) in enumerate(trainer.epochs(seed), 1):
        scores = Scores.of(trainer.predictions(params, 'dev'), labels)
        models = len(scores.fine)
        print(f'{name}: loss {sum(losses) / nodes / models:.3f} a node; dev {scores}')
        better = scores.fine > fine
        best = params if best is None else choose(better, params, best)
        best = copy(best)
        fine, chosen = np.maximum(scores.fine, fine), np.where(better, epoch, chosen)
    return Curve(best, chosen)


def choose(which: np.ndarray, these: Params, others: Params) -> Params:
    """Of each model its parameters among `these`, where `which` says so."""

    def leaf(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.where(which.reshape(-1, *[1] * (one.ndim - 1)), one, other)

    return jax.tree.map(leaf, these, others)


# ---- how fast is it? -----------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """Seconds for one epoch, part by part.

    Attributes:
      trees: how many there were.
      nodes: how many they had.
      seconds: [batches, 4]: building the schedule; loss and gradients on the device,
        the schedule at hand; the optimizer; the perfect batch.
    """

    trees: int
    nodes: int
    seconds: np.ndarray

    def __str__(self) -> str:
        schedule, gradient, update, perfect = self.seconds.sum(0)
        rows = [
            ('', 'seconds', 'nodes/s'),
            self._row(
                'whole: schedule, gradients, update', schedule + gradient + update
            ),
            self._row('schedule', schedule),
            self._row('gradients (device only)', gradient),
            self._row('perfect batch', perfect),
        ]
        # Batch by batch, side by side: another load on the machine counts for less.
        ratios = self.seconds[:, 1] / self.seconds[:, 3]
        low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
        return (
            f'an epoch of {self.trees:,} trees, {self.nodes:,} nodes\n{table(rows)}\n'
            f'gradients take {middle:.2f} times as long as the perfect batch '
            f'({low:.2f} to {high:.2f}, leaving out a tenth at either end)'
        )

    def _row(self, name: str, seconds: float) -> tuple[str, str, str]:
        return name, f'{seconds:.2f}', f'{self.nodes / seconds:,.0f}'


def perfect_batch(
    params: Params, words: Any, lefts: Any, rights: Any, labels: Any
) -> jax.Array:
    """The same cells without any structure: each in one plain call.

    Args:
      params: of one model.
      words: [leaves] rows of the embedding.
      lefts: two arrays [inner nodes, hidden], given instead of the children's states.
      rights: likewise.
      labels: [leaves + inner nodes].
    """
    hidden = lefts[0].shape[1]

    def run(name: str, module: nn.Module, *rows: Any) -> Any:
        cell = partial(module.apply, {'params': params[name]})
        return jax.vmap(cell)(*rows)

    vectors = params['embed']['embedding'][words]
    leaves = run('leaf', Leaf(hidden, Dropout()), vectors)
    inner = run('inner', layers.TreeLSTMCell(hidden), lefts, rights)
    states = jax.tree.map(lambda *each: jnp.concatenate(each), leaves, inner)
    scores = run('logits', Logits(0), *states)
    return jax.vmap(cross_entropy)(scores, labels).sum()


def measure(trainer: Trainer, params: Params, options: argparse.Namespace) -> Rates:
    """An epoch of one model without dropout, with a perfect batch beside every batch.

    The perfect batch has the mean size of the others.
    """
    corpus, train = trainer.corpora['train'], trainer.parts['train']
    batches = [
        *trainer.model.batches(
            corpus, options.batch_size, shuffle=options.seed, prefetch=0
        )
    ]
    inputs = perfect_inputs(params, train.nodes, len(batches), options)
    update = jax.jit(partial(apply_gradients, trainer.optimizer))
    state = trainer.optimizer.init(params)
    gradient = jax.jit(jax.value_and_grad(partial(loss_of_one, trainer.model)))
    perfect = jax.jit(jax.value_and_grad(perfect_batch, argnums=(0, 2, 3)))
    seconds = []
    # The first batch comes twice: the first time compiles, and does not count.
    for batch in tqdm([batches[0], *batches], 'measuring', leave=False):
        (_, grads), running = timed(gradient, params, batch.schedule)
        _, updating = timed(update, grads, state, params)
        _, ideal = timed(perfect, params, *inputs)
        seconds.append((batch.schedule.seconds, running, updating, ideal))
    return Rates(len(train.items), train.nodes.sum(), np.array(seconds[1:]))


def loss_of_one(model: jf.Model, params: Params, schedule: Any) -> jax.Array:
    """Cross entropy summed over all nodes, where nothing is dropped."""
    return model.apply(params, schedule, deterministic=True)[1]['loss'].sum()


def perfect_inputs(
    params: Params, nodes: np.ndarray, batches: int, options: argparse.Namespace
) -> tuple[Any, ...]:
    """Random inputs of `perfect_batch` for as many nodes as a batch has on average."""
    rng = np.random.default_rng(options.seed)
    trees, total = round(len(nodes) / batches), round(nodes.sum() / batches)
    inner = (total - trees) // 2  # a binary tree has one leaf more than inner nodes
    states = rng.uniform(-1, 1, (2, 2, inner, options.hidden)).astype('float32')
    words = rng.integers(len(params['embed']['embedding']), size=total - inner)
    lefts, rights = map(tuple, states)
    return words, lefts, rights, rng.integers(CLASSES, size=total)


# ---- the command line ----------------------------------------------------------------


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; where none is given, the treebank decides."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('--trees', type=Path, help='trainDevTestTrees_PTB.zip, or its unpacked folder')
    add('--vectors', type=Path, help='an .npz file with the arrays words and vectors')
    add('--hidden', type=int, help='size of the states (300 with --trees, else 32)')
    add('--epochs', type=int, help='passes over the trees (6 with --trees, else 15)')
    add(
        '--batch-size',
        type=int,
        help='trees in a batch (96 with --trees, else 25); both 96 and 32 divide '
        '8,544, and 32 is slower but scores a little better',
    )
    add('--rate', type=float, default=0.05, help='of Adagrad (default %(default)s)')
    add(
        '--slower',
        type=float,
        default=0.1,
        help='what gradients of word vectors are multiplied by (default %(default)s)',
    )
    add('--dropout', type=float, help='of word vectors, and before the softmax')
    add('--recurrent-dropout', type=float, help='of candidates in the tree-LSTM')
    add('--seeds', type=int, help='models trained at once')
    add('--seed', type=int, default=0, help='repeats a run (default %(default)s)')
    add('--limit', type=int, help='use only the first trees of each part')
    options = parser.parse_args(argv)
    usual = USUAL[options.trees is not None]
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def set_up(options: argparse.Namespace) -> Trainer:
    """Reads or makes up the trees, and compiles the model."""
    lines = read_lines(options.trees) if options.trees else made_up_lines(options.seed)
    lines = {part: lines[part][: options.limit] for part in PARTS}
    given = read_vectors(options.vectors) if options.vectors else {}
    size = len(next(iter(given.values()), range(options.hidden)))
    vocabulary = make_vocabulary(lines['train'], given, size, options.seed)
    parts = {
        p: examples([parse(line, vocabulary.__getitem__) for line in lines[p]])
        for p in PARTS
    }
    print(', '.join(f'{p} {len(parts[p].items):,} trees' for p in PARTS))
    print(f'{len(vocabulary.vectors):,} words, vectors of {size}: {_source(options)}')
    dropout = Dropout(options.dropout, options.recurrent_dropout)
    model = jf.compile(make_block(vocabulary, options.hidden, dropout))
    optimizer = make_optimizer(options.rate, options.slower)
    init = lambda key: jax.vmap(model.init)(jax.random.split(key, options.seeds))  # noqa: E731
    given = batch_inputs(options.seeds, options.seed)
    how = optimizer, options, init, given
    return make_trainer(model, parts, ensemble_loss, ensemble_chances, *how)


def examples(trees: list[Tree]) -> Examples:
    """Trees with their sizes and the labels of their roots."""
    nodes = np.array([sum(sizes(tree)) for tree in trees])
    return Examples(trees, nodes, np.array([tree[0] for tree in trees]))


def _source(options: argparse.Namespace) -> str:
    if options.vectors:
        return f'{options.vectors.name}, which are not GloVe'
    return 'random at first, not GloVe'


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, selects on dev, scores dev and test, and measures the speed."""
    options = read_options(argv)
    trainer = set_up(options)
    curve = train(trainer, options.seed)
    print(f'best epochs on dev: {curve.epochs.tolist()}')
    for part in ('dev', 'test'):
        chances = trainer.predictions(curve.best, part)
        labels = trainer.parts[part].targets
        print(f'{part} roots: {Scores.of(chances, labels)}')
        if options.seeds > 1:
            together = chances.mean(1, keepdims=True)
            print(f'{part} roots, ensemble: {Scores.of(together, labels)}')
    print(trainer.clock)
    first = jax.tree.map(lambda x: x[0], curve.best)
    print(measure(trainer, first, options))
    print(f'shapes of schedules: {trainer.model.programs}')


if __name__ == '__main__':
    main()
