# SPDX-License-Identifier: Apache-2.0
"""What the example programs share: batches, a training step, a clock and tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import jfold as jf

Params = Any


@dataclass
class Clock:
    """Seconds spent in each part of the work, and the nodes worked on.

    Steps that compile are counted apart: they say nothing of the speed.
    """

    schedule: float = 0.0
    device: float = 0.0
    compile: float = 0.0
    nodes: int = 0

    @property
    def whole(self) -> float:
        """What recurs with every batch."""
        return self.schedule + self.device


@dataclass(frozen=True)
class Batch:
    """Examples to train on together.

    Attributes:
      examples: what `model.schedule` takes.
      nodes: how many nodes they have in all.
      targets: what the loss takes besides.
    """

    examples: list[Any]
    nodes: int
    targets: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Trainer:
    """A model, its loss and an optimizer as one compiled step.

    Args:
      model: what `jf.compile` gave.
      loss: `loss(params, schedule, *targets) -> scalar`.
      optimizer: applied to the gradients of `loss`.
      clock: gets the times of all steps.
    """

    model: jf.Model
    loss: Callable[..., jax.Array]
    optimizer: optax.GradientTransformation
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        # The old parameters are dead after a step, so their memory is used again.
        step = jax.jit(self._step, donate_argnums=(0, 1))
        object.__setattr__(self, '_compiled', step)
        object.__setattr__(self, '_signatures', set())

    def _step(self, params: Params, state: Any, schedule: Any, *targets: Any) -> Any:
        loss, grads = jax.value_and_grad(self.loss)(params, schedule, *targets)
        return *apply_gradients(self.optimizer, grads, state, params), loss

    def epoch(
        self, params: Params, state: Any, batches: Sequence[Batch], title: str
    ) -> tuple[Params, Any, list[float]]:
        """Takes one step a batch, with a progress bar; donates `params` and `state`.

        Returns:
          The new parameters, the new state, and the loss of every batch.
        """
        losses: list[float] = []
        bar = tqdm(batches, title, leave=False)
        for batch in bar:
            params, state, loss = self._take(params, state, batch)
            losses.append(loss)
            rate = self.clock.nodes / max(self.clock.whole, 1e-9)
            bar.set_postfix_str(
                f'loss {np.mean(losses):.2f}, {rate:,.0f} nodes/s', False
            )
        return params, state, losses

    def _take(
        self, params: Params, state: Any, batch: Batch
    ) -> tuple[Params, Any, float]:
        schedule, scheduling = timed(self.model.schedule, batch.examples)
        known = _signature(schedule) in self._signatures
        self._signatures.add(_signature(schedule))
        result, running = timed(self._compiled, params, state, schedule, *batch.targets)
        if known:
            self.clock.nodes += batch.nodes
            self.clock.schedule += scheduling
            self.clock.device += running
        else:
            self.clock.compile += scheduling + running
        params, state, loss = result
        return params, state, float(loss)


def _signature(schedule: Any) -> Hashable:
    """What decides whether a compiled step fits."""
    leaves, structure = jax.tree.flatten(schedule)
    return structure, *map(np.shape, leaves)


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


def shuffled_batches(
    count: int, size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """A random order of `range(count)` in batches of exactly `size`, or all in one.

    The rest is left for another epoch: one batch size is one compiled program.
    """
    size = min(size, count)
    order = rng.permutation(count)
    return [order[i : i + size] for i in range(0, count - size + 1, size)]


def predict(
    model: jf.Model,
    run: Callable[..., jax.Array],
    params: Params,
    examples: Sequence[Any],
    size: int,
) -> np.ndarray:
    """The rows of `run(params, schedule)` for all examples, `size` at a time.

    The last batch is filled up with its first example, so that all have one shape.
    """
    results = []
    for i in range(0, len(examples), size):
        batch = list(examples[i : i + size])
        full = batch + batch[:1] * (size - len(batch))
        results.append(np.asarray(run(params, model.schedule(full)))[: len(batch)])
    return np.concatenate(results)


def copy(params: Params) -> Params:
    """A copy that survives the donation of the original."""
    return jax.tree.map(jnp.copy, params)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as text: the first column flush left, the others right."""
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join('  '.join(_cells(row, widths)) for row in rows)


def _cells(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    yield row[0].ljust(widths[0])
    yield from (text.rjust(n) for text, n in zip(row[1:], widths[1:], strict=True))
