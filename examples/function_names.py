# SPDX-License-Identifier: Apache-2.0
"""Guesses the first word of a function's name from its syntax tree.

The data are the functions of the running Python's own standard library, so nothing is
downloaded. Every tree has a shape of its own, yet all of them are trained in batches:
the model says what happens at one node, and jfold does the rest.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from syntax_trees import (
    Labels,
    NamedFunction,
    count_numbers,
    library_files,
    read_functions,
    without_copies,
)
from tqdm import tqdm
from training import (
    Clock,
    Examples,
    Params,
    accuracy,
    fit_logistic,
    make_parser,
    make_sharding,
    make_trainer,
    table,
)

import jfold as jf

# ---- the model -----------------------------------------------------------------------


# A state [2 width] is what a node shows, and the memory it hands to its parent.


class Leaf(nn.Module):
    """The state of a node without children, from the vector of its label."""

    width: int

    @nn.compact
    def __call__(self, label: jax.Array) -> jax.Array:
        return next_state(nn.Dense(4 * self.width)(label), jnp.zeros(self.width))


class Inner(nn.Module):
    """The state of a node from its label and the sum of its children's states."""

    width: int

    @nn.compact
    def __call__(self, label: jax.Array, children: jax.Array) -> jax.Array:
        shown, memory = jnp.split(children, 2)
        gates = nn.Dense(4 * self.width)(jnp.concatenate([label, shown]))
        return next_state(gates, memory)


def next_state(gates: jax.Array, memory: jax.Array) -> jax.Array:
    """A child-sum tree-LSTM, where a node says itself how much is kept of its memory.

    In Tai et al. 2015 the parent decides that for each child; here a sum is enough.
    """
    write, update, show, keep = jnp.split(gates, 4)
    memory = memory + nn.sigmoid(write) * jnp.tanh(update)
    shown = nn.sigmoid(show) * jnp.tanh(memory)
    return jnp.concatenate([shown, nn.sigmoid(keep + 1) * memory])


def make_block(labels: int, width: int, words: int) -> jf.Block:
    """Logits [words] of a tree `(label, [subtrees])`."""
    tree = jf.ForwardDeclaration(name='tree')
    embed = nn.Embed(labels, width // 2)
    label = jf.GetItem(0) >> jf.Scalar('int32') >> jf.Function(embed, name='label')
    children = jf.GetItem(1) >> jf.Map(tree()) >> jf.Sum()
    leaf = label >> jf.Function(Leaf(width), name='leaf')
    inner = jf.AllOf(label, children) >> jf.Function(Inner(width), name='inner')
    has_children = jf.GetItem(1) >> jf.InputTransform(bool)
    tree.resolve_to(jf.OneOf(has_children, {False: leaf, True: inner}))
    return tree() >> jf.Function(nn.Dense(words), name='word')


# ---- the data ------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What is guessed, and from what.

    Attributes:
      words: the words to choose from, the most frequent first.
      train: the functions to learn from.
      held_out: functions of other files.
      labels: the numbers of the node labels, from `train`.
    """

    words: list[str]
    train: list[NamedFunction]
    held_out: list[NamedFunction]
    labels: Labels

    def examples(self, functions: Sequence[NamedFunction]) -> Examples:
        """Trees of label numbers, and the numbers of their words."""
        trees = list(map(self.labels.tree, functions))
        nodes = np.array([len(f.nodes) for f in functions])
        return Examples(trees, nodes, self.targets(functions))

    def targets(self, functions: Sequence[NamedFunction]) -> np.ndarray:
        """The number of each function's word."""
        number = {word: i for i, word in enumerate(self.words)}
        return np.array([number[f.word] for f in functions], 'int32')

    def __str__(self) -> str:
        train, held_out = (Counter(f.word for f in p) for p in self._parts)
        rows = [(word, str(train[word]), str(held_out[word])) for word in self.words]
        total = [('functions', *(str(len(part)) for part in self._parts))]
        nodes = [('nodes', *(str(count_nodes(part)) for part in self._parts))]
        head = [('word', 'training', 'held out')]
        return table([*head, *rows, *total, *nodes])

    @property
    def _parts(self) -> tuple[list[NamedFunction], list[NamedFunction]]:
        return self.train, self.held_out


def count_nodes(functions: Sequence[NamedFunction]) -> int:
    """The nodes of all trees."""
    return sum(len(f.nodes) for f in functions)


def make_task(options: argparse.Namespace) -> Task:
    """Reads the library and splits it by file: a fifth of the files is held out."""
    files = library_files()
    np.random.default_rng(options.seed).shuffle(files)  # type: ignore[arg-type]
    files = files[: options.files]
    functions = without_copies(
        f
        for file in tqdm(files, 'reading')
        for f in read_functions(file, options.max_nodes)
    )
    last = {str(file) for file in files[: max(1, len(files) // 5)]}
    train = [f for f in functions if f.file not in last]
    counts = Counter(f.word for f in train).most_common(options.words)
    words = [word for word, _ in counts]
    train = [f for f in train if f.word in words]
    held_out = [f for f in functions if f.file in last and f.word in words]
    if not train or not held_out:
        raise SystemExit(f'nothing to learn or to hold out in {len(files)} files')
    return Task(words, train, held_out, Labels.of(train, options.min_count))


# ---- what the model has to beat ------------------------------------------------------


def baselines(task: Task) -> dict[str, float]:
    """Held-out accuracy of guesses that do not look at the structure."""
    types, labels = task.labels.types, len(task.labels)
    targets = task.targets(task.held_out)
    return {
        'most frequent word': float(np.mean(targets == 0)),
        'bag of node types': bag_accuracy(task, task.labels.type_of, types),
        'bag of labels': bag_accuracy(task, task.labels.__getitem__, labels),
    }


def bag_accuracy(task: Task, number: Callable[[Any], int], size: int) -> float:
    """Held-out accuracy of logistic regression on logarithms of counts."""

    def bag(functions: Sequence[NamedFunction]) -> np.ndarray:
        return np.log1p(np.array([*count_numbers(functions, number, size)], 'float32'))

    weights = fit_logistic(bag(task.train), task.targets(task.train), len(task.words))
    return accuracy(bag(task.held_out) @ weights, task.targets(task.held_out))


# ---- training ------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How training went.

    Attributes:
      losses: mean training loss of each epoch.
      accuracies: held-out accuracy after each epoch.
      programs: how many shapes of schedule there were.
      clock: where the time went.
    """

    losses: list[float]
    accuracies: list[float]
    programs: int
    clock: Clock

    def __str__(self) -> str:
        return f'{self.clock}\nshapes of schedules: {self.programs}'


def loss(model: jf.Model, params: Params, schedule: Any, targets: Any) -> jax.Array:
    """Mean cross entropy of a batch; its last rows may be spare."""
    logits = model.apply(params, schedule)
    # Names are a matter of taste: smoothed targets keep the model from insisting.
    wanted = optax.smooth_labels(jax.nn.one_hot(targets, logits.shape[1]), 0.1)
    return schedule.mean(optax.softmax_cross_entropy(logits, wanted))


def make_optimizer(task: Task, options: argparse.Namespace) -> Any:
    """AdamW whose rate falls to zero."""
    steps = options.epochs * -(-len(task.train) // options.batch_size)
    rate = optax.cosine_decay_schedule(options.rate, steps)
    return optax.adamw(rate, weight_decay=options.weight_decay)


def train(task: Task, options: argparse.Namespace) -> Result:
    """Trains the tree model and scores it after every epoch."""
    model = jf.compile(make_block(len(task.labels), options.width, len(task.words)))
    optimizer = make_optimizer(task, options)
    held_out = task.examples(task.held_out)
    parts = {'train': task.examples(task.train), 'held out': held_out}
    trainer = make_trainer(
        model,
        parts,
        loss,
        jf.Model.apply,
        optimizer,
        options,
        sharding=options.sharding,
    )
    losses, accuracies = [], []
    for epoch, params, found in trainer.epochs(options.seed):
        losses.append(float(np.mean(found)))
        logits = trainer.predictions(params, 'held out')
        accuracies.append(accuracy(logits, held_out.targets))
        print(f'{epoch}: loss {losses[-1]:.3f}, held out {accuracies[-1]:.1%}')
    return Result(losses, accuracies, model.programs, trainer.clock)


def draw(result: Result, others: dict[str, float], path: Path) -> None:
    """The learning curve, with the baselines as lines."""
    figure = Figure(figsize=(7, 4), layout='constrained')
    axes = figure.subplots()
    epochs = range(1, len(result.accuracies) + 1)
    axes.plot(epochs, result.accuracies, 'o-', label='tree model')
    for name, style in zip(others, (':', '-.', '--'), strict=True):
        axes.axhline(others[name], linestyle=style, color='gray', label=name)
    axes.set(xlabel='epoch', ylabel='held-out accuracy', ylim=(0, 1), xticks=epochs)
    losses = axes.twinx()
    losses.plot(epochs, result.losses, color='tab:red', label='training loss')
    losses.set_ylabel('training loss', color='tab:red')
    losses.set_ylim(bottom=0)
    axes.legend(loc='upper right')
    figure.savefig(path, dpi=120)


# ---- the command line ----------------------------------------------------------------


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=10, batch_size=64, rate=0.005)
    add = parser.add_argument
    add('--width', type=int, default=64, help='size of the states')
    add('--weight-decay', type=float, default=0.1, help='of AdamW')
    add('--words', type=int, default=20, help='how many words to choose from')
    add('--max-nodes', type=int, default=500, help='drop larger functions')
    add('--min-count', type=int, default=10, help='rarer labels become node types')
    add('--files', type=int, help='read only so many files')
    add('--devices', type=int, default=1, help='0: all there are, or all cores')
    add('--picture', type=Path, default='function_names.png', help='learning curve')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, width=16, batch_size=16, words=8, files=60)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the library, trains, and compares with the baselines."""
    options = read_options(argv)
    options.sharding = make_sharding(options.devices)
    task = make_task(options)
    print(f'{task}\n')
    others = baselines(task)
    result = train(task, options)
    rows = [*others.items(), ('tree model', result.accuracies[-1])]
    print(f'\n{table((name, f"{value:.1%}") for name, value in rows)}\n\n{result}')
    draw(result, others, options.picture)
    print(f'learning curve: {options.picture}')


if __name__ == '__main__':
    main()
