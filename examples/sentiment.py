# SPDX-License-Identifier: Apache-2.0
"""Sentiment of phrases: a binary tree-LSTM with a softmax at every node of a treebank.

The model of section 3.5 of "Deep Learning with Dynamic Computation Graphs" (Looks et
al. 2017), after Tai et al. 2015, without dropout. Give it the Stanford Sentiment
Treebank with `--trees`; without, it makes up a small treebank of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm
from training import (
    Examples,
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

CLASSES = 5  # from very negative to very positive; 2 is neutral

# ---- the model -----------------------------------------------------------------------
# A state [2, hidden] is the hidden state and the memory of a node.


def embed(table: jax.Array, word: jax.Array) -> jax.Array:
    """The vector of a word."""
    return table[word]


def leaf_cell(params: Params, x: jax.Array) -> jax.Array:
    """Eqs. 9-14 of Tai et al. where both child states are zero."""
    write, show, update = jnp.split(x @ params['w'] + params['b'], 3)
    memory = jax.nn.sigmoid(write) * jnp.tanh(update)
    return jnp.stack([jax.nn.sigmoid(show) * jnp.tanh(memory), memory])


def inner_cell(params: Params, left: jax.Array, right: jax.Array) -> jax.Array:
    """Eqs. 9-14 with N = 2 where the word vector is zero."""
    hidden = jnp.concatenate([left[0], right[0]])
    gates = jnp.split(hidden @ params['w'] + params['b'], 5)
    write, show, keep_left, keep_right = map(jax.nn.sigmoid, gates[:4])
    memory = write * jnp.tanh(gates[4]) + keep_left * left[1] + keep_right * right[1]
    return jnp.stack([show * jnp.tanh(memory), memory])


def logits(params: Params, state: jax.Array) -> jax.Array:
    """Scores of the classes, from the hidden state."""
    return state[0] @ params['w'] + params['b']


def cross_entropy(scores: jax.Array, label: jax.Array) -> jax.Array:
    """The loss at one node."""
    return optax.softmax_cross_entropy_with_integer_labels(scores, label)


def dense(key: jax.Array, size: int, bias: np.ndarray) -> Params:
    """The parameters of an affine map from `size` numbers."""
    weights = jax.nn.initializers.glorot_uniform()(key, (size, len(bias)))
    return {'w': weights, 'b': jnp.asarray(bias, 'float32')}


def make_block(vocabulary: Vocabulary, hidden: int) -> jf.Block:
    """Root scores [5] of a tree; the loss of every node as the metric `loss`."""
    word = jf.Function(embed, lambda key, spec: jnp.array(vocabulary.vectors), 'embed')
    leaf = jf.Function(leaf_cell, partial(init_leaf, hidden), 'leaf')
    inner = jf.Function(inner_cell, partial(init_inner, hidden), 'inner')
    softmax = jf.Function(logits, init_logits, 'logits')

    tree, number = jf.ForwardDeclaration(), jf.Scalar('int32')
    cases = {
        2: jf.GetItem(1) >> number >> word >> leaf,
        3: jf.Record({1: tree(), 2: tree()}) >> inner,
    }
    labelled = jf.AllOf(jf.OneOf(len, cases), jf.GetItem(0) >> number)
    loss = jf.Record((softmax, jf.Identity())) >> cross_entropy >> jf.Metric('loss')
    tree.resolve_to(labelled >> jf.AllOf(jf.GetItem(0), loss) >> jf.GetItem(0))
    return tree() >> softmax


def init_leaf(hidden: int, key: jax.Array, x: Any) -> Params:
    """For `leaf_cell`."""
    return dense(key, x.shape[0], np.zeros(3 * hidden))


def init_inner(hidden: int, key: jax.Array, left: Any, right: Any) -> Params:
    """For `inner_cell`; at first it keeps most of the memories of both children."""
    return dense(key, 2 * hidden, np.repeat([0, 0, 1, 1, 0], hidden))


def init_logits(key: jax.Array, state: Any) -> Params:
    """For `logits`."""
    return dense(key, state.shape[1], np.zeros(CLASSES))


def make_optimizer(rate: float) -> optax.GradientTransformation:
    """Adagrad, with a tenth of the gradient for word vectors."""
    slow = optax.chain(optax.scale(0.1), optax.adagrad(rate))
    return optax.multi_transform(
        {'word': slow, 'other': optax.adagrad(rate)},
        lambda params: {k: 'word' if k == 'embed' else 'other' for k in params},
    )


# ---- training and scores -------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Accuracy at the roots, in the paper's sense.

    Attributes:
      fine: of all trees, among five classes.
      binary: of the trees that are not neutral, negative against positive.
    """

    fine: float
    binary: float

    @classmethod
    def of(cls, scores: np.ndarray, labels: np.ndarray) -> Scores:
        """From root scores [trees, 5] and root labels [trees]."""
        chances = np.asarray(jax.nn.softmax(scores))
        positive = chances[:, 3:].sum(1) > chances[:, :2].sum(1)
        right = (positive == (labels > 2))[labels != 2]
        return cls(float(np.mean(scores.argmax(1) == labels)), float(np.mean(right)))

    def __str__(self) -> str:
        return f'fine {self.fine:.1%}, binary {self.binary:.1%}'


def loss(model: jf.Model, params: Params, schedule: Any, roots: Any) -> jax.Array:
    """Cross entropy summed over all nodes; their labels, `roots` too, are in trees."""
    _, metrics = model.apply(params, schedule)
    return metrics['loss'].sum()


def root_scores(model: jf.Model, params: Params, schedule: Any) -> jax.Array:
    """Scores of the classes [trees, 5]."""
    return model.apply(params, schedule)[0]


def scores_of(trainer: Trainer, params: Params, part: str) -> Scores:
    """Accuracy on one part of the treebank."""
    return Scores.of(trainer.predictions(params, part), trainer.parts[part].targets)


def train(trainer: Trainer, seed: int) -> Params:
    """The parameters of the epoch with the best fine accuracy on dev."""
    nodes = trainer.parts['train'].nodes.sum()
    best, best_params = -1.0, None
    for epoch, params, losses in trainer.epochs(seed):
        scores = scores_of(trainer, params, 'dev')
        print(f'{epoch}: loss {sum(losses) / nodes:.3f} a node; dev {scores}')
        if scores.fine > best:
            best, best_params = scores.fine, copy(params)
    return best_params


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
      params: of the model.
      words: [leaves] rows of the embedding.
      lefts: [inner nodes, 2, hidden] given states instead of the children's.
      rights: likewise.
      labels: [leaves + inner nodes].
    """
    vectors = jax.vmap(partial(embed, params['embed']))(words)
    leaves = jax.vmap(partial(leaf_cell, params['leaf']))(vectors)
    inner = jax.vmap(partial(inner_cell, params['inner']))(lefts, rights)
    states = jnp.concatenate([leaves, inner])
    scores = jax.vmap(partial(logits, params['logits']))(states)
    return jax.vmap(cross_entropy)(scores, labels).sum()


def measure(trainer: Trainer, params: Params, options: argparse.Namespace) -> Rates:
    """An epoch, with the perfect batch of the same mean size beside every batch."""
    corpus, train = trainer.corpora['train'], trainer.parts['train']
    batches = [
        *trainer.model.batches(
            corpus, options.batch_size, shuffle=options.seed, prefetch=0
        )
    ]
    inputs = perfect_inputs(params, train.nodes, len(batches), options)
    update = jax.jit(partial(apply_gradients, trainer.optimizer))
    state = trainer.optimizer.init(params)
    gradient = jax.jit(jax.value_and_grad(trainer.loss))
    perfect = jax.jit(jax.value_and_grad(perfect_batch, argnums=(0, 2, 3)))
    seconds = []
    # The first batch comes twice: the first time compiles, and does not count.
    for batch in tqdm([batches[0], *batches], 'measuring', leave=False):
        roots = train.targets[batch.indices]
        (_, grads), running = timed(gradient, params, batch.schedule, roots)
        _, updating = timed(update, grads, state, params)
        _, ideal = timed(perfect, params, *inputs)
        seconds.append((batch.schedule.seconds, running, updating, ideal))
    return Rates(len(train.items), train.nodes.sum(), np.array(seconds[1:]))


def perfect_inputs(
    params: Params, nodes: np.ndarray, batches: int, options: argparse.Namespace
) -> tuple[Any, ...]:
    """Random inputs of `perfect_batch` for as many nodes as a batch has on average."""
    rng = np.random.default_rng(options.seed)
    trees, total = round(len(nodes) / batches), round(nodes.sum() / batches)
    inner = (total - trees) // 2  # a binary tree has one leaf more than inner nodes
    hidden = params['inner']['w'].shape[0] // 2
    states = rng.uniform(-1, 1, (2, inner, 2, hidden)).astype('float32')
    words = rng.integers(len(params['embed']), size=total - inner)
    return words, *states, rng.integers(CLASSES, size=total)


# ---- the command line ----------------------------------------------------------------


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; where none is given, the treebank decides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
    add('--seed', type=int, default=0, help='repeats a run (default %(default)s)')
    add('--limit', type=int, help='use only the first trees of each part')
    options = parser.parse_args(argv)
    usual = (300, 6, 96) if options.trees else (32, 15, 25)
    for name, value in zip(('hidden', 'epochs', 'batch_size'), usual, strict=True):
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
    model = jf.compile(make_block(vocabulary, options.hidden))
    optimizer = make_optimizer(options.rate)
    return make_trainer(model, parts, loss, root_scores, optimizer, options)


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
    params = train(trainer, options.seed)
    for part in ('dev', 'test'):
        print(f'{part} roots: {scores_of(trainer, params, part)}')
    print(trainer.clock)
    print(measure(trainer, params, options))
    print(f'shapes of schedules: {trainer.model.programs}')


if __name__ == '__main__':
    main()
