# SPDX-License-Identifier: Apache-2.0
"""What the example programs share.

A training run compiled ahead, a clock, losses, simpler models to compare with, tables.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import groupby
from operator import or_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from tqdm import tqdm

import jfold as jf

Params = Any


@dataclass
class Clock:
    """Seconds spent in each part of the work, and the nodes worked on.

    Attributes:
      trace: reading all examples, before training.
      compile: making the programs, before training.
      schedule: building schedules, on a thread beside the rest.
      wait: until the next schedule was there.
      device: training steps.
      nodes: of the examples in these.
    """

    trace: float = 0.0
    compile: float = 0.0
    schedule: float = 0.0
    wait: float = 0.0
    device: float = 0.0
    nodes: int = 0

    @property
    def rate(self) -> float:
        """Nodes per second of training."""
        return self.nodes / max(self.wait + self.device, 1e-9)

    def waiting(self, batches: jf.Batches) -> Iterator[jf.Batch]:
        """The same batches; counts how long each takes to come."""
        while True:
            batch, seconds = timed(next, batches, None)
            if batch is None:
                return
            self.wait += seconds
            self.schedule += batch.schedule.seconds
            yield batch

    def __str__(self) -> str:
        whole = self.wait + self.device
        return (
            f'training: {self.rate:,.0f} nodes/s, of which waiting for schedules takes '
            f'{self.wait / whole:.1%} (building them {self.schedule / whole:.1%}, on a '
            f'thread)\nbefore it: tracing {self.trace:.1f} s, compiling '
            f'{self.compile:.1f} s'
        )


@dataclass(frozen=True)
class Examples:
    """Examples, with what belongs to each.

    Attributes:
      items: what the model takes.
      nodes: [examples] how many nodes they have.
      targets: [examples] what the model should find.
    """

    items: list[Any]
    nodes: np.ndarray
    targets: np.ndarray


# From some examples, their places and the epoch to what a loss is given of them.
Given = Callable[[Examples, np.ndarray, int], tuple[Any, ...]]


def targets_of(part: Examples, indices: np.ndarray, epoch: int) -> tuple[np.ndarray]:
    """What the model should find."""
    return (part.targets[indices],)


@dataclass(frozen=True)
class Trainer:
    """A training run, compiled and ready to begin; made by `make_trainer`.

    Attributes:
      model: what `jf.compile` gave.
      parts: of the data.
      corpora: the same, traced.
      batches: of the whole run.
      loss: what is made smaller.
      optimizer: how.
      step: from parameters, state, schedule and targets to new ones, and the loss.
      predict: from parameters and schedule to rows.
      init: from a key to parameters.
      given: what `loss` gets besides parameters and schedule.
      sharding: of the examples of a batch, over several devices.
      clock: gets the times of all steps.
    """

    model: jf.Model
    parts: dict[str, Examples]
    corpora: dict[str, jf.Corpus]
    batches: jf.Batches
    loss: Callable[..., jax.Array]
    optimizer: optax.GradientTransformation
    step: jf.CompiledStep
    predict: jf.CompiledStep
    init: Callable[[jax.Array], Params]
    given: Given
    sharding: NamedSharding | None
    clock: Clock = field(default_factory=Clock)

    def epochs(self, seed: int) -> Iterator[tuple[str, Params, list[float]]]:
        """Trains, one step a batch, with a progress bar.

        Yields:
          After each epoch its name, the parameters, and the loss of every batch. With
          the next step these parameters are gone: `copy` what is to be kept.
        """
        params = self.init(jax.random.key(seed))
        params, state = everywhere(
            (params, self.optimizer.init(params)), self.sharding, jax.device_put
        )
        batches = self.clock.waiting(self.batches)
        for number, epoch in groupby(batches, lambda batch: batch.epoch):
            name, losses = f'epoch {number + 1:2}', []
            bar = tqdm(epoch, name, leave=False)
            for batch in bar:
                params, state, loss = self._take(params, state, batch)
                losses.append(loss)
                shown = f'loss {np.mean(losses):.2f}, {self.clock.rate:,.0f} nodes/s'
                bar.set_postfix_str(shown, False)
            yield name, params, losses

    def _take(
        self, params: Params, state: Any, batch: jf.Batch
    ) -> tuple[Params, Any, float]:
        train = self.parts['train']
        given = self.given(train, batch.indices, batch.epoch)
        result, seconds = timed(self.step, params, state, batch.schedule, *given)
        self.clock.device += seconds
        self.clock.nodes += train.nodes[batch.indices[batch.mask]].sum()
        params, state, loss = result
        return params, state, float(loss)

    def predictions(self, params: Params, part: str) -> np.ndarray:
        """The rows of all examples of a part."""
        shards = 1 if self.sharding is None else self.sharding.mesh.size
        size = self.predict.specs[0].capacity.examples * shards
        run = self.model.batches(self.corpora[part], size, sharding=self.sharding)
        places, rows = [], []
        for batch in run:
            found = np.asarray(self.predict(params, batch.schedule))
            places.append(batch.indices[batch.mask])
            rows.append(found[batch.mask])
        # Examples that are dealt to devices come in another order.
        return np.concatenate(rows)[np.argsort(np.concatenate(places))]


def make_trainer(
    model: jf.Model,
    parts: dict[str, Examples],
    loss: Callable[..., jax.Array],
    predict: Callable[..., jax.Array],
    optimizer: optax.GradientTransformation,
    options: argparse.Namespace,
    init: Callable[[jax.Array], Params] | None = None,
    given: Given = targets_of,
    sharding: NamedSharding | None = None,
) -> Trainer:
    """Does all that can be done before training: traces, plans, compiles.

    Args:
      model: what `jf.compile` gave.
      parts: of the data; `train` is trained on, predictions are made for the others.
      loss: `loss(model, params, schedule, *given) -> scalar`.
      predict: `predict(model, params, schedule) -> rows`, one for each example.
      optimizer: applied to the gradients of `loss`.
      options: `batch_size`, `epochs`, `seed`.
      init: from a key to parameters, the model's own if left out.
      given: what `loss` gets besides, the targets if left out.
      sharding: of the examples of a batch, over several devices; see `make_sharding`.
    """
    init = init or model.init
    corpora, tracing = timed(
        lambda: {name: model.trace(part.items) for name, part in parts.items()}
    )
    size, train = options.batch_size, parts['train']
    run = {'shuffle': options.seed, 'epochs': options.epochs}
    batches_of = partial(model.batches, batch_size=size, sharding=sharding)
    batches = batches_of(corpora['train'], **run)
    others = [batches_of(corpora[name]) for name in corpora if name != 'train']
    # Room for every batch there will be, so that nothing compiles in the loop.
    capacity = reduce(or_, (each.capacities for each in (batches, *others)))
    params = jax.eval_shape(init, jax.random.key(0))
    state = jax.eval_shape(optimizer.init, params)
    params, state = everywhere((params, state), sharding, _spec)
    loss, predict = partial(loss, model), partial(predict, model)
    first = given(train, np.zeros(size, int), 0)
    taken = params, state, capacity, *first
    step, seconds = timed(model.precompile, make_step(loss, optimizer), *taken)
    rows, more = timed(model.precompile, predict, params, capacity)
    clock, made = (
        Clock(trace=tracing, compile=seconds + more),
        (step, rows, init, given, sharding),
    )
    return Trainer(model, parts, corpora, batches, loss, optimizer, *made, clock)


# ---- several devices -----------------------------------------------------------------


def make_sharding(devices: int) -> NamedSharding | None:
    """Of examples over devices: those there are, or the cores of the CPU; none if that
    is one. To be called before JAX has looked for devices.

    Args:
      devices: how many; 0 for all.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1
    jax.config.update('jax_num_cpu_devices', devices or cores)
    devices = devices or jax.device_count()
    if devices == 1:
        return None
    mesh = jax.make_mesh((devices,), ('data',), (AxisType.Auto,))
    return NamedSharding(mesh, jax.P('data'))


def everywhere(
    tree: Any, sharding: NamedSharding | None, place: Callable[..., Any]
) -> Any:
    """A tree with a copy of each leaf on all devices of a sharding; as it is without.

    Args:
      place: from a leaf and its sharding to the same, so placed.
    """
    if sharding is None:
        return tree
    whole = NamedSharding(sharding.mesh, jax.P())
    return jax.tree.map(lambda leaf: place(leaf, whole), tree)


def _spec(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


# ---- losses, scores and what models have to beat -------------------------------------


def clipped_adam(
    options: argparse.Namespace, examples: int
) -> optax.GradientTransformation:
    """Adam on clipped gradients, whose rate falls to zero.

    Args:
      options: `batch_size`, `epochs`, and the `rate` at first.
      examples: how many there are to learn from.
    """
    steps = options.epochs * -(-examples // options.batch_size)
    rate = optax.cosine_decay_schedule(options.rate, steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def cross_entropy(
    model: jf.Model, params: Params, schedule: Any, targets: Any
) -> jax.Array:
    """Mean cross entropy of a batch; its last rows may be spare."""
    logits = model.apply(params, schedule)
    errors = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return schedule.mean(errors)


def accuracy(logits: Any, targets: np.ndarray) -> float:
    """The fraction of rows whose largest logit is right."""
    return float(np.mean(np.argmax(logits, -1) == targets))


def fit_logistic(
    inputs: np.ndarray, targets: np.ndarray, classes: int, decay: float = 0.3
) -> np.ndarray:
    """Weights [features, classes]; the loss is convex, so the start does not matter."""
    optimizer = optax.adamw(0.02, weight_decay=decay)

    def loss(weights: jax.Array) -> jax.Array:
        logits = inputs @ weights
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def step(_: Any, carry: Any) -> Any:
        weights, state = carry
        updates, state = optimizer.update(jax.grad(loss)(weights), state, weights)
        return optax.apply_updates(weights, updates), state

    weights = jnp.zeros((inputs.shape[1], classes))
    run = jax.jit(partial(jax.lax.fori_loop, 0, 300, step))
    return np.asarray(run((weights, optimizer.init(weights)))[0])


# ---- the command line, times and tables ----------------------------------------------


def make_parser(
    description: str | None, epochs: int, batch_size: int, rate: float
) -> argparse.ArgumentParser:
    """A parser with the options of all training runs and their defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=_Help, allow_abbrev=False
    )
    add = parser.add_argument
    add('--epochs', type=int, default=epochs, help='passes over the examples')
    add('--batch-size', type=int, default=batch_size, help='examples in a batch')
    add('--rate', type=float, default=rate, help='of learning, at first')
    add('--seed', type=int, default=0, help='repeats a run')
    add('--quick', action='store_true', help='a small run that only shows it works')
    return parser


class _Help(
    argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter
):
    """Keeps the lines of the description and shows defaults."""


def make_step(
    loss: Callable[..., jax.Array], optimizer: optax.GradientTransformation
) -> Callable[..., Any]:
    """`step(params, state, *batch)`: new parameters, a new state, and the loss."""

    # The old parameters are dead after a step, so their memory is used again.
    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, *batch: Any) -> tuple[Params, Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return *apply_gradients(optimizer, grads, state, params), value

    return step


def mean_square(
    model: jf.Model, params: Params, schedule: Any, targets: Any
) -> jax.Array:
    """The loss of a batch of numbers; its last rows may be spare."""
    errors = model.apply(params, schedule) - targets
    return schedule.mean(errors**2)


def timed(run: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """A result, waited for, and how many seconds it took."""
    start = time.perf_counter()
    result = jax.block_until_ready(run(*args))
    return result, time.perf_counter() - start


def apply_gradients(
    optimizer: optax.GradientTransformation, grads: Params, state: Any, params: Params
) -> tuple[Params, Any]:
    """New parameters and a new state of the optimizer."""
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def copy(params: Params) -> Params:
    """A copy that survives the donation of the original."""
    return jax.tree.map(jnp.copy, params)


def train_classifier(
    model: jf.Model,
    parts: dict[str, Examples],
    examples: int,
    options: argparse.Namespace,
) -> list[float]:
    """Trains a model of logits, and gives the accuracies on all parts but `train`.

    Args:
      examples: how many there are to learn from.
    """
    optimizer = clipped_adam(options, examples)
    trainer = make_trainer(
        model, parts, cross_entropy, jf.Model.apply, optimizer, options
    )
    scores: list[float] = []
    for epoch, params, losses in trainer.epochs(options.seed):
        found = {
            name: accuracy(trainer.predictions(params, name), part.targets)
            for name, part in parts.items()
            if name != 'train'
        }
        text = ', '.join(f'{name} {score:.1%}' for name, score in found.items())
        print(f'{epoch}: loss {np.mean(losses):.4f}, {text}')
        scores = [*found.values()]
    print(trainer.clock)
    return scores


def print_shares(head: Sequence[str], rows: Mapping[str, Iterable[float]]) -> None:
    """Prints a table of shares in percent, a row for each name."""
    body = ((name, *(f'{x:.1%}' for x in row)) for name, row in rows.items())
    print(f'\n{table([head, *body])}')


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as text: the first column flush left, the others right."""
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join('  '.join(_cells(row, widths)) for row in rows)


def _cells(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    yield row[0].ljust(widths[0])
    yield from (text.rjust(n) for text, n in zip(row[1:], widths[1:], strict=True))
