# SPDX-License-Identifier: Apache-2.0
"""The programs whose kernels are counted, with a batch of each."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import molecules
import numpy as np
from jax import lax
from model_kinds import bush, bush_block, chain_block, words
from trees import VOCABULARY, Params, Workload, expression

import jfold as jf
from jfold.tracing.record import trace

sys.path.append(str(Path(__file__).parents[1] / 'examples'))

Batch = list[Any]


@dataclass(frozen=True, eq=False)
class Program:
    """A model with a batch.

    Attributes:
      levels: of its deepest example.
    """

    model: jf.Model
    params: Params
    schedule: jf.Schedule
    levels: int

    def infer(self, params: Params, schedule: jf.Schedule) -> Any:
        """The results."""
        return self.model.apply(params, schedule)

    def train(self, params: Params, schedule: jf.Schedule) -> Any:
        """A loss and its gradients."""

        def loss(params: Params) -> jax.Array:
            results = jax.tree.leaves(self.model.apply(params, schedule))
            return sum(((x**2).sum() for x in results), jnp.zeros(()))

        return jax.value_and_grad(loss)(params)

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows are computed, and how many stand for nodes."""
        from jfold.scheduling.layout import layout

        places = layout(self.schedule.spec)
        trips = [places.trips[c] for c in places.component]
        room = self.schedule.spec.capacity.rows
        tiles = zip(trips, places.widths, room, strict=True)
        computed = sum(np.dot(n, widths) for n, widths, rows in tiles if rows)
        return int(computed), int(self.schedule.counts.sum())


@functools.cache
def program(name: str, residuals: str) -> Program:
    """One of `PROGRAMS`, as accelerators run it."""
    block, batch = PROGRAMS[name]()
    model = jf.compile(block, residuals=residuals, strategy='fixed')
    levels = trace(model.program, batch).depth
    schedule = jax.device_put(model.schedule(batch))
    return Program(model, model.init(jax.random.key(0)), schedule, levels)


# ---- models --------------------------------------------------------------------------


def tree_lstm(trees: int, leaves: int, hidden: int) -> tuple[jf.Block, Batch]:
    """Random binary trees."""
    workload = Workload(trees, leaves, hidden)
    return expression(hidden), workload.batches(1)[0]


def child_sums() -> tuple[jf.Block, Batch]:
    """Trees of nodes with at most eight children."""
    rng = random.Random(0)
    return bush_block(128), [bush(63, 8, rng) for _ in range(64)]


def chains() -> tuple[jf.Block, Batch]:
    """An LSTM over 5 to 50 words."""
    rng = random.Random(0)
    lengths = [rng.randint(5, 50) for _ in range(64)]
    batch = [[rng.randrange(VOCABULARY) for _ in range(n)] for n in lengths]
    return chain_block(128), batch


def messages() -> tuple[jf.Block, Batch]:
    """Three rounds over molecules."""
    rng = np.random.default_rng(0)
    return molecules.expression(64, 3), [molecules.molecule(rng) for _ in range(128)]


def names() -> tuple[jf.Block, Batch]:
    """The model of `make demo`, on trees that are made up."""
    import function_names

    rng = random.Random(0)

    def labelled(tree: Any) -> Any:
        parts = tree if isinstance(tree, list) else []
        return rng.randrange(500), [labelled(part) for part in parts]

    trees = [bush(rng.randint(10, 150), 6, rng) for _ in range(64)]
    return function_names.make_block(500, 64, 20), list(map(labelled, trees))


def looped() -> tuple[jf.Block, Batch]:
    """A cell with a loop in which weights and inputs meet: its reverse is whole."""
    hidden = 64

    def init(key: jax.Array, left: Any, right: Any) -> jax.Array:
        return jax.random.normal(key, (2 * hidden, 2 * hidden)) / hidden

    def cell(weights: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
        def step(state: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(state @ weights + right), None

        return lax.scan(step, left, None, 3)[0]

    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> jf.Function(cell, init)
    tree.resolve_to(jf.OneOf(type, {int: words(hidden), tuple: pair}))
    return tree(), Workload(32, 32, hidden).batches(1)[0]


PROGRAMS: dict[str, Callable[[], tuple[jf.Block, Batch]]] = {
    'small': functools.partial(tree_lstm, 32, 32, 128),
    'middle': functools.partial(tree_lstm, 64, 128, 256),
    'large': functools.partial(tree_lstm, 256, 128, 1024),
    'child-sums': child_sums,
    'chains': chains,
    'messages': messages,
    'names': names,
    'whole-reverse': looped,
}
ABOUT = (
    'small, middle, large: tree-LSTMs on 32 trees of 32 leaves, H = 128; 64 of 128, '
    '256; 256 of 128, 1024. child-sums: 64 trees of 63 nodes with up to 8 children, '
    'H = 128. chains: an LSTM over 64 lists of 5 to 50 words, H = 128. messages: three '
    'rounds over 128 molecules, 64 wide. names: the model of `make demo`, 64 wide, on '
    '64 made-up trees. whole-reverse: 32 trees of 32 leaves whose cell has a loop.'
)
