# SPDX-License-Identifier: Apache-2.0
"""Models with sums in a fixed order, and their results to the last bit.

    python tests/support/reproducible_models.py [batches]

prints of some models a digest of results and gradients, for processes to compare, and
how many results of random batches are not those of the examples alone.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from binary_trees import Rng, binary, binary_tree, dense_cell
from compiler import AS_USERS_HAVE_IT

import jfold as jf

WIDTH = 33  # no multiple of what a processor adds at once


def _embedded(size: int) -> Any:
    return jf.Scalar('int32') >> jf.Function(nn.Embed(500, size), name='embed')


def _tree_lstm() -> Any:
    state = _embedded(WIDTH) >> jf.layers.TreeLSTMLeaf(WIDTH)
    tree = binary(state, jf.Function(jf.layers.TreeLSTMCell(WIDTH)))
    return tree >> jf.GetItem(1) >> jf.Function(nn.Dense(5), name='logits')


def _trees() -> Any:
    return binary(_embedded(WIDTH), dense_cell(WIDTH))


def _labelled(rng: Rng, size: int) -> Any:
    """A node of any number of children."""
    parts = [int(n) for n in rng.multinomial(size - 1, [0.4, 0.3, 0.2, 0.1])]
    children = [_labelled(rng, n) for n in rng.permutation(parts).tolist() if n]
    return {'word': int(rng.integers(500)), 'children': children}


def _child_sums() -> Any:
    value = jf.GetItem('word') >> _embedded(WIDTH)
    cell = jf.layers.ChildSumTreeLSTM(WIDTH)
    state = ([WIDTH], [WIDTH])
    tree = jf.layers.Tree(value, jf.GetItem('children'), cell, state)
    return tree >> jf.GetItem(1)


def _graph(rng: Rng, size: int) -> Any:
    edges = rng.integers(size, size=(2, 4 * size)).tolist()
    return {'x': rng.integers(500, size=size).tolist(), 'of': edges[0], 'to': edges[1]}


def _messages() -> Any:
    nodes = jf.GetItem('x') >> jf.Map(_embedded(WIDTH))
    parts = jf.AllOf(nodes, jf.GetItem('of'), jf.GetItem('to'))
    return parts >> jf.layers.GatedGraph(WIDTH, 2) >> jf.Mean()


def _shared() -> Any:
    """A value that all items use, many more than are gathered at once."""
    items = jf.GetItem('x') >> jf.Map(_embedded(WIDTH))
    total = items >> jf.Map(jf.Function(nn.Dense(WIDTH), name='item')) >> jf.Sum()
    pairs = jf.ZipWith(jf.Function(lambda s, x: jnp.tanh(s) * x + s))
    return (
        jf.AllOf(total >> jf.Broadcast(), items)
        >> pairs
        >> jf.AllOf(jf.Sum(), jf.Max(), jf.Softmax() >> jf.Identity())
    )


def _ragged() -> Any:
    """Items of a sequence, each with the state of a recurrence, and metrics."""
    items = jf.GetItem('x') >> jf.Map(_embedded(WIDTH))
    states = items >> jf.layers.LSTM(WIDTH)
    scored = jf.Map(
        jf.Function(nn.Dense(3), name='score')
        >> jf.AllOf(jf.Identity(), jf.Metric('score'))
        >> jf.GetItem(0)
    )
    return states >> jf.GetItem(0) >> scored


def _gram() -> Any:
    """A product of parameters alone, which sums over many rows."""

    def init(key: Any, _: Any) -> Any:
        return jax.random.normal(key, (2048, WIDTH)) / 30

    def layer(p: Any, x: Any) -> Any:
        return jnp.tanh(p.T @ p @ x)

    return (
        jf.GetItem('x')
        >> jf.Map(_embedded(WIDTH) >> jf.Function(layer, init))
        >> jf.Sum()
    )


# What makes a block, and what draws an example of a size.
CASES: dict[str, tuple[Callable[[], Any], Callable[[Rng, int], Any]]] = {
    'tree-LSTM': (_tree_lstm, functools.partial(binary_tree, words=500)),
    'child sums': (_child_sums, _labelled),
    'messages': (_messages, _graph),
    'shared': (_shared, _graph),
    'gram': (_gram, _graph),
    'ragged': (_ragged, _graph),
    'trees': (_trees, functools.partial(binary_tree, words=500)),
}


def examples_of(name: str, rng: Rng, count: int, most: int = 40) -> list[Any]:
    """Examples of all sizes."""
    _, sample = CASES[name]
    return [sample(rng, int(rng.integers(1, most + 1))) for _ in range(count)]


def model_of(name: str, **options: Any) -> jf.Model:
    """A model of a case."""
    options = {'reproducible': True, 'max_programs': 100} | options
    return jf.compile(CASES[name][0](), **options)


users_have_it = functools.partial(
    jax.jit, static_argnums=0, compiler_options=AS_USERS_HAVE_IT
)


@users_have_it
def applied(
    model: jf.Model, params: Any, schedule: jf.Schedule, external: Any = None
) -> Any:
    """What `apply` gives, with all fusions that users have."""
    return model.apply(params, schedule, external)


@users_have_it
def trained(model: jf.Model, params: Any, schedule: jf.Schedule) -> Any:
    """Gradients of a loss of all real examples, and the values beside them."""

    def loss(params: Any) -> Any:
        values = model.apply(params, schedule)
        return jnp.where(schedule.mask[:, None], values**2, 0).sum(), values

    return jax.grad(loss, has_aux=True)(params)


def bits_of(tree: Any) -> list[bytes]:
    """All arrays, to the bit."""
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def bits(
    model: jf.Model, params: Any, schedule: jf.Schedule, external: Any = None
) -> list[list[bytes]]:
    """What each example gives: values, items of sequences, rows of metrics."""
    given = applied(model, params, schedule, external)
    values, metrics = given if model.program.metric_results else (given, {})
    count = int(schedule.mask.sum())
    found: list[list[bytes]] = [[] for _ in range(count)]
    is_ragged = lambda x: isinstance(x, jf.Ragged)  # noqa: E731
    for each in jax.tree.leaves(values, is_leaf=is_ragged):
        rows = each.to_list() if is_ragged(each) else np.asarray(each)
        for i in range(count):
            found[i] += bits_of(rows[i])
    for _, each in sorted(metrics.items()):
        owner = np.asarray(each.example)
        for x in map(np.asarray, jax.tree.leaves(each.values)):
            for i in range(count):
                found[i].append(x[owner == i].tobytes())
    return found


def digest(name: str, strategy: str) -> str:
    """Of the results and gradients of a batch."""
    model, rng = model_of(name, strategy=strategy), np.random.default_rng(0)
    params = model.init(jax.random.key(0))
    found = trained(model, params, model.schedule(examples_of(name, rng, 40)))
    return hashlib.sha256(b''.join(bits_of(found))).hexdigest()


def changed(name: str, batches: int, most: int = 40, **options: Any) -> int:
    """How many results of examples in random batches, of any size and in any order, are
    not to the bit those of the examples alone."""
    model, rng = model_of(name, **options), np.random.default_rng(1)
    params = model.init(jax.random.key(0))
    corpus = model.trace(examples_of(name, rng, 50, most))
    alone = [bits(model, params, corpus.schedule([i]))[0] for i in range(50)]
    model.reserve(corpus.capacities(50))
    count = 0
    for number in range(batches):
        chosen = rng.choice(50, int(rng.integers(1, 50)), replace=number % 3 == 0)
        found = bits(model, params, corpus.schedule(chosen, size=50))
        count += sum(x != alone[i] for x, i in zip(found, chosen, strict=True))
    return count


BATCHES = {('tree-LSTM', 'counted'): 1000, ('messages', 'fixed'): 50}

if __name__ == '__main__':
    for (name, strategy), count in BATCHES.items():
        print(digest(name, strategy))
        if sys.argv[1:] == ['batches']:
            print(f'{name} {strategy}: {changed(name, count, strategy=strategy)}')
