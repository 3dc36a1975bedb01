# SPDX-License-Identifier: Apache-2.0
"""Models of many kinds: their blocks, their data, and some of them in plain JAX."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from trees import VOCABULARY, Params, Tree, cell, init_cell

import jfold as jf

CLASSES = 5
SHORTEST = 5  # items of a chain

whole = jf.Scalar('int32')


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


# ---- gates ---------------------------------------------------------------------------


def sliced(x: jax.Array, count: int) -> list[jax.Array]:
    """What `jnp.split` gives, as slices."""
    size = len(x) // count
    return [x[k * size : (k + 1) * size] for k in range(count)]


def gates_one_by_one(params: Params, h: jax.Array) -> list[jax.Array]:
    """The gates of `trees.cell`, from a matrix and a bias each."""
    return [h @ w + b for w, b in zip(*params, strict=True)]


def init_one_by_one(key: jax.Array, left: Any, right: Any) -> Params:
    """The weights of `trees.cell`, by gate."""
    params = init_cell(key, left, right)
    return jnp.split(params['weights'], 5, 1), jnp.split(params['bias'], 5)


def split_if_joint(x: Any, count: int) -> Any:
    """An array split, and a list as it is."""
    return x if isinstance(x, list) else jnp.split(x, count)


one_by_one = functools.partial(cell, split=split_if_joint, gates=gates_one_by_one)
GATES_IN_WAYS: dict[str, tuple[Any, Any]] = {
    'gates by jnp.split': (cell, init_cell),
    'gates by slices': (functools.partial(cell, split=sliced), init_cell),
    'gates by a product each': (one_by_one, init_one_by_one),
}


def gates_block(hidden: int, way: str) -> jf.Block:
    """The state [2H] of the root of a tree, by the tree-LSTM with gates in one way."""
    join, init = GATES_IN_WAYS[way]
    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> jf.Function(join, init, 'cell')
    tree.resolve_to(jf.OneOf(type, {int: words(hidden), tuple: pair}))
    return tree()


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
