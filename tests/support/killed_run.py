# SPDX-License-Identifier: Apache-2.0
"""A training run in one process that goes on from its last checkpoint, by orbax.

    python tests/support/killed_run.py FOLDER

Parameters, the state of the optimizer and the place in the data are kept after every
step. Prints a line before each; at the end it writes the parameters to `params.npz`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from binary_trees import binary

import jfold as jf

EPOCHS, SIZE = 2, 4


def noisy(params: Any, left: Any, right: Any, *, dropout: Any) -> Any:
    """A cell, of whose state a part is dropped."""
    state = jnp.tanh(params['w'] @ jnp.concatenate([left, right]))
    if dropout is None:
        return state
    return state * jax.random.bernoulli(dropout, 0.5, state.shape)


def weights(key: jax.Array) -> Any:
    """Of `noisy`."""
    return {'w': jax.random.normal(key, (SIZE, 2 * SIZE))}


def make_model() -> jf.Model:
    """Trees of numbers."""
    leaf = jf.Scalar() >> (lambda x: x * jnp.arange(1.0, SIZE + 1))
    tree = binary(leaf, jf.Function(noisy, weights, rngs='dropout'))
    return jf.compile(tree >> jnp.sum)


def random_tree(rng: random.Random, depth: int) -> Any:
    """A number, or a pair of trees."""
    if depth == 0 or rng.random() < 0.3:
        return rng.random()
    return random_tree(rng, depth - 1), random_tree(rng, depth - 1)


def main(folder: Path) -> int:
    """Trains, from where it was left; returns how many steps that makes in all."""
    model, rng = make_model(), random.Random(0)
    corpus = model.trace([random_tree(rng, 4) for _ in range(24)])
    batches = model.batches(corpus, 4, shuffle=jax.random.key(1), epochs=EPOCHS)
    optimizer = optax.adam(0.01)
    params = model.init(jax.random.key(0))
    now: Any = params, optimizer.init(params)

    @jax.jit
    def step(now: Any, schedule: Any, ids: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            found = model.apply(params, schedule, rngs=key, ids=ids)
            return schedule.mean((found - 1) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(now[0]), now[1])
        return optax.apply_updates(now[0], updates), state

    with ocp.CheckpointManager(folder / 'checkpoints') as manager:
        before = manager.latest_step() or 0
        if before:
            like = {'now': now, 'data': batches.state()}
            found = manager.restore(before, args=ocp.args.StandardRestore(like))
            now = found['now']
            batches.restore(found['data'])
        number = before
        for number, batch in enumerate(batches, before + 1):
            print('step', number, flush=True)
            key = jax.random.fold_in(jax.random.key(2), batch.epoch)
            now = step(now, batch.schedule, batch.indices, key)
            kept = {'now': now, 'data': batches.state()}
            manager.save(number, args=ocp.args.StandardSave(kept))
    leaves = jax.tree.leaves(now)
    np.savez(folder / 'params.npz', *leaves)
    return number


if __name__ == '__main__':
    main(Path(sys.argv[1]))
