# SPDX-License-Identifier: Apache-2.0
"""Training with optax, step by step as the eager twin would, and what tables cost."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from agreement import close
from binary_trees import binary, binary_tree, dense_cell
from hlo import compiled_text, in_loops, parse

import jfold as jf
from jfold.scheduling.layout import layout

WORDS, SIZE = 5003, 3  # no buffer, tile or chunk of a small batch has as many rows


def trees_of_words(count: int, seed: int = 0) -> list[Any]:
    """Trees of seven words each, among all there are."""
    rng = np.random.default_rng(seed)
    return [binary_tree(rng, 7, WORDS) for _ in range(count)]


def model_of_words(**options: Any) -> jf.Model:
    """A cell over trees of embedded words."""
    words = jf.Scalar('int32') >> jf.layers.Embed(WORDS, SIZE)
    return jf.compile(binary(words, dense_cell(SIZE)), **options)


def slower_words() -> optax.GradientTransformation:
    """Gradients clipped, a rate that falls, words at a tenth of it."""
    rate = optax.exponential_decay(0.1, 1, 0.8)

    def kinds(params: Any) -> Any:
        return {k: 'words' if k == 'embed' else 'others' for k in params}

    slow = optax.chain(optax.adam(rate), optax.scale(0.1))
    parts = {'words': slow, 'others': optax.adam(rate)}
    return optax.chain(
        optax.clip_by_global_norm(0.5), optax.multi_transform(parts, kinds)
    )


def trained(loss: Any, batches: Any, params: Any) -> Any:
    """Parameters after a step for every two batches."""
    steps = optax.MultiSteps(slower_words(), 2)
    state, update = steps.init(params), jax.jit(steps.update)
    for batch in batches:
        updates, state = update(jax.grad(loss)(params, batch), state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_steps_are_those_of_the_twin() -> None:
    """Clipping, a schedule of rates, another rate for words, sums over batches."""
    model = model_of_words()
    batches = [trees_of_words(2, seed) for seed in range(4)]
    params = model.init(jax.random.key(0))
    assert 'embed' in params

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return schedule.mean(((model.apply(params, schedule) - 1) ** 2).sum(-1))

    def twin(params: Any, trees: list[Any]) -> Any:
        losses = [((model.eval(tree, params) - 1) ** 2).sum() for tree in trees]
        return sum(losses) / len(trees)

    found = trained(jax.jit(loss), map(model.schedule, batches), params)
    want = trained(twin, batches, params)
    close(found, want, 1e-5)
    moved = jax.tree.map(lambda x, y: float(abs(x - y).max()), params, found)
    assert 0 < max(jax.tree.leaves(moved['embed'])) < moved['cell']['weight'] / 5


# ---- what tables cost ----------------------------------------------------------------


def test_loops_make_no_gradient_of_a_table() -> None:
    """One that is dense is taken behind them, however many levels and tiles."""
    model = model_of_words(strategy='fixed')
    params = model.init(jax.random.key(0))

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return (model.apply(params, schedule) ** 2).sum()

    schedule = model.schedule(trees_of_words(4))
    module = parse(compiled_text(jax.grad(loss), params, schedule))
    assert any(WORDS in i.rows for each in module.values() for i in each)
    within = list(in_loops(module))
    assert within
    assert not [i for i in within if WORDS in i.rows]


def test_all_rows_of_a_table_are_one_chunk() -> None:
    """Loops that ask the batch how often they run make one gradient of it as well."""
    model = model_of_words(strategy='counted')
    spec = model.schedule(trees_of_words(64)).spec
    names = [operation.layer.name for operation in spec.program.operations]
    word = names.index('embed')
    assert layout(spec).chunk[word] == spec.capacity.rows[word] >= 64 * 7
