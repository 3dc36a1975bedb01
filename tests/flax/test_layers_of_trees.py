# SPDX-License-Identifier: Apache-2.0
"""Ready layers over trees and graphs by hand: recursion, and dropout of candidates."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close
from binary_trees import binary
from checking import refuses
from layer_checks import RNG, affine, same, vectors

import jfold as jf
from jfold import layers

# ---- equations: gates, the candidate, and what is kept of memories -------------------

sigmoid = jax.nn.sigmoid


def leaf_by_hand(p: Any, x: Any) -> Any:
    """Tai et al. 2015, equations 2 to 6 without children."""
    i, o, u = jnp.split(affine(p['leaf']['Dense_0'], x), 3)
    return i, o, jnp.tanh(u), 0.0


def cell_by_hand(p: Any, left: Any, right: Any, *x: Any, bias: float = 1.0) -> Any:
    """Equations 9 to 12, with an input at inner nodes or without."""
    gates = affine(p['cell']['Dense_0'], *x, left[1], right[1])
    i, o, u, f, g = jnp.split(gates, 5)
    kept = sigmoid(f + bias) * left[0] + sigmoid(g + bias) * right[0]
    return i, o, jnp.tanh(u), kept


def children_by_hand(p: Any, x: Any, children: Any) -> Any:
    """Equations 2 to 6 with any number of children."""
    zeros = jnp.zeros_like(p['forget']['Dense_0']['bias'])
    heard = sum((h for _, h in children), zeros)
    i, o, u = jnp.split(affine(p['join']['Dense_0'], x, heard), 3)
    forget = functools.partial(affine, p['forget']['Dense_0'], x)
    kept = sum((sigmoid(forget(h) + 1) * c for c, h in children), zeros)
    return i, o, jnp.tanh(u), kept


def step_by_hand(p: Any, x: Any, before: Any) -> Any:
    """One step of an LSTM along a sequence."""
    (c, h), p = before, p['cell']['inner']

    def gate(name: str) -> Any:
        return x @ p[f'i{name}']['kernel'] + affine(p[f'h{name}'], h)

    return gate('i'), gate('o'), jnp.tanh(gate('g')), sigmoid(gate('f')) * c


def state(i: Any, o: Any, new: Any, kept: Any) -> tuple[Any, Any]:
    """A memory and an output: equations 7 and 8."""
    c = sigmoid(i) * new + kept
    return c, sigmoid(o) * jnp.tanh(c)


# ---- trees ---------------------------------------------------------------------------

H = 3


def test_binary_tree_lstm() -> None:
    """Tai et al. 2015, equations 9 to 14, without an input at inner nodes."""
    word = jf.Vector(2) >> jf.Function(layers.TreeLSTMLeaf(H), name='leaf')
    cell = jf.Function(layers.TreeLSTMCell(H, forget_bias=0.5), name='cell')

    def by_hand(params: Any, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return state(*leaf_by_hand(params, tree))
        states = (by_hand(params, each) for each in tree)
        return state(*cell_by_hand(params, *states, bias=0.5))

    a, b, c, d = vectors(4, 2)
    trees = [a, (a, b), ((a, b), (c, (d, a)))]
    same(binary(word, cell) >> jf.GetItem(1), trees, lambda p, x: by_hand(p, x)[1])


def test_missing_children_and_inputs() -> None:
    """Of two children either may be none, and each node has a vector of its own."""
    cell = jf.Function(layers.TreeLSTMCell(H), name='cell')
    tree = jf.ForwardDeclaration(output_type=([H], [H]))
    child = jf.Optional(tree())
    tree.resolve_to(jf.Record((jf.Vector(2), child, child)) >> cell)

    def by_hand(params: Any, node: Any) -> Any:
        if node is None:
            return jnp.zeros(H), jnp.zeros(H)
        x, *children = node
        states = (by_hand(params, each) for each in children)
        return state(*cell_by_hand(params, *states, x))

    a, b, c, d = vectors(4, 2)
    trees = [
        (a, None, None),
        (a, (b, None, None), None),
        (c, None, (d, (a, None, None), None)),
    ]
    same(tree() >> jf.GetItem(1), trees, lambda p, x: by_hand(p, x)[1])


VALUE, CHILDREN = jf.GetItem(0) >> jf.Vector(2), jf.GetItem(1)


def drawn_trees() -> list[Any]:
    """Nodes with none to three children."""
    a, b, c, d = vectors(4, 2)
    small = (b, [(c, []), (d, []), (a, [])])
    return [(a, []), small, (d, [small, (a, [(b, [])]), small])]


def test_child_sum_tree_lstm() -> None:
    block = layers.Tree(VALUE, CHILDREN, layers.ChildSumTreeLSTM(H), ([H], [H]))

    def by_hand(params: Any, tree: Any) -> Any:
        x, children = tree
        states = [by_hand(params, each) for each in children]
        return state(*children_by_hand(params, x, states))

    same(block >> jf.GetItem(1), drawn_trees(), lambda p, x: by_hand(p, x)[1])


def test_child_sum_tree_gru() -> None:
    block = layers.Tree(VALUE, CHILDREN, layers.ChildSumTreeGRU(H), [H])

    def by_hand(params: Any, tree: Any) -> Any:
        x, children = tree
        states = [by_hand(params, each) for each in children]
        reset = functools.partial(affine, params['reset']['Dense_0'], x)
        total = sum(states, jnp.zeros(H))
        heard = sum((sigmoid(reset(h)) * h for h in states), jnp.zeros(H))
        one, other = (params['update'][f'Dense_{n}'] for n in range(2))
        z, new = sigmoid(affine(one, x, total)), jnp.tanh(affine(other, x, heard))
        return z * total + (1 - z) * new

    same(block, drawn_trees(), by_hand)


# ---- dropout of candidates (Semeniuta et al. 2016) -----------------------------------

WIDE, RATE, ROWS = 16, 0.25, 24
VECTOR = jf.Vector(WIDE)
STATE = jf.Record((VECTOR, VECTOR))
DROPPED: dict[str, tuple[jf.Block, Any, tuple[int, ...]]] = {
    'leaf': (
        jf.Record((VECTOR,))
        >> jf.Function(layers.TreeLSTMLeaf(WIDE, RATE), name='leaf'),
        leaf_by_hand,
        (1,),
    ),
    'pair': (
        jf.Record((STATE, STATE))
        >> jf.Function(layers.TreeLSTMCell(WIDE, recurrent_dropout=RATE), name='cell'),
        cell_by_hand,
        (2, 2),
    ),
    'children': (
        jf.Record((VECTOR, jf.Map(STATE)))
        >> layers.ChildSumTreeLSTM(WIDE, recurrent_dropout=RATE),
        children_by_hand,
        (1, 3),
    ),
    'step': (
        jf.Record((VECTOR, STATE))
        >> layers.LSTM(WIDE, recurrent_dropout=RATE, name='cell').cell,  # type: ignore[attr-defined]
        step_by_hand,
        (1, 2),
    ),
}


def drawn(*shapes: int) -> Any:
    """Vectors, pairs of them where a shape is 2, lists of these where it is 3."""
    made: dict[int, Any] = {
        1: lambda: vectors(1, WIDE)[0],
        2: lambda: tuple(vectors(2, WIDE)),
        3: lambda: [made[2](), made[2]()],
    }
    return tuple(made[each]() for each in shapes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', DROPPED)
def test_the_candidate_alone_is_dropped(name: str) -> None:
    """Every number of it is gone, or there and scaled; all else is by the equations."""
    block, by_hand, shapes = DROPPED[name]
    examples = [drawn(*shapes) for _ in range(ROWS)]
    model = jf.compile(block)
    params, schedule = model.init(jax.random.key(0)), model.schedule(examples)

    def found(**options: Any) -> Any:
        made = model.apply(params, schedule, **options)
        return made[1] if name == 'step' else made

    c, h = found(rngs=jax.random.key(3))
    gates = [by_hand(params, *each) for each in examples]
    i, o, new, kept = (jnp.stack(each) for each in zip(*gates, strict=True))
    kept = kept if kept.ndim == 2 else jnp.zeros_like(c)
    factor = (c - kept) / (sigmoid(i) * new)
    is_there = np.asarray(factor > 0.5)
    close(factor, jnp.asarray(is_there / (1 - RATE), 'float32'), 2e-3)
    close(h, sigmoid(o) * jnp.tanh(c), 1e-5)
    # Five standard deviations of the mean of 384 numbers.
    spread = (RATE * (1 - RATE) / is_there.size) ** 0.5
    assert abs(is_there.mean() - (1 - RATE)) < 5 * spread
    assert len({row.tobytes() for row in is_there}) > ROWS / 2
    close(found(deterministic=True), state(i, o, new, kept), 1e-5)


def test_along_a_sequence_nothing_is_dropped_in_evaluation() -> None:
    """The parameters are those of Flax's cell, as without dropout."""
    blocks = [layers.LSTM(4, recurrent_dropout=rate, name='l') for rate in (0.5, 0.0)]
    one, other = (jf.compile(jf.Map(jf.Vector(3)) >> block) for block in blocks)
    params, plain = (model.init(jax.random.key(0)) for model in (one, other))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, plain)
    items = [vectors(n, 3) for n in (3, 0, 1)]
    expected = interpreter.called(other.apply, params, other.schedule(items))
    schedule = one.schedule(items)
    evaluated = functools.partial(one.apply, deterministic=True)
    close(interpreter.called(evaluated, params, schedule), expected, 1e-6)
    _, (c, _) = one.apply(params, schedule, rngs=jax.random.key(3))
    assert not np.allclose(c, expected[1][0])


def test_what_is_no_probability() -> None:
    for rate in (1.5, -0.1):
        cell = jf.Function(layers.TreeLSTMLeaf(WIDE, recurrent_dropout=rate))
        message = f'expected `recurrent_dropout` from 0 to below 1, got {rate}'
        with pytest.raises((TypeError, ValueError), match=message):
            jf.compile(VECTOR >> cell)


# ---- graphs --------------------------------------------------------------------------


def drawn_graphs() -> list[Any]:
    """Some nodes and edges; one graph without edges."""
    graphs = []
    for nodes, edges in ((3, 4), (1, 0), (4, 6)):
        ends = RNG.integers(0, nodes, size=(2, edges)).tolist()
        graphs.append((vectors(nodes, 4), *ends, vectors(edges, 2)))
    return graphs


def test_gated_graph() -> None:
    states = jf.GetItem(0) >> jf.Map(jf.Vector(4))
    parts = jf.AllOf(states, jf.GetItem(1), jf.GetItem(2))
    block = parts >> layers.GatedGraph(4, 2) >> jf.Sum()

    def by_hand(params: Any, graph: Any) -> Any:
        h, of, to, _ = graph
        h = jnp.stack(h)
        for _ in range(2):
            sent = affine(params['message']['Dense_0'], h[np.array(of, int)])
            around = jax.ops.segment_sum(sent, np.array(to, int), len(h))
            gru = {'params': params['update']['GRUCell_0']}
            h, _ = nn.GRUCell(4).apply(gru, h, around)
        return h.sum(0)

    same(block, drawn_graphs(), by_hand)


def test_messages_over_edges_with_values() -> None:
    states = jf.GetItem(0) >> jf.Map(jf.Vector(4))
    edges = jf.GetItem(3) >> jf.Map(jf.Vector(2))
    parts = jf.AllOf(states, jf.GetItem(1), jf.GetItem(2), edges)
    message = jf.Concat() >> layers.FC(4, jnp.tanh, name='say')
    block = parts >> layers.MessagePassing(message, jnp.add, 2, edges=True) >> jf.Sum()

    def by_hand(params: Any, graph: Any) -> Any:
        h, of, to, values = graph
        h, values = jnp.stack(h), jnp.array(values).reshape(-1, 2)
        for _ in range(2):
            own = h[np.array(of, int)]
            sent = jnp.tanh(affine(params['say']['Dense_0'], own, values))
            h += jax.ops.segment_sum(sent, np.array(to, int), len(h))
        return h.sum(0)

    same(block, drawn_graphs(), by_hand)


def test_weave() -> None:
    nodes = jf.GetItem(0) >> jf.Map(jf.Vector(3))
    pairs = jf.GetItem(1) >> jf.Map(jf.Map(jf.Vector(2)))
    both = jf.AllOf(nodes, pairs) >> layers.Weave(4)
    block = both >> jf.Record((jf.Sum(), jf.Map(jf.Sum()) >> jf.Sum())) >> jf.Concat()
    examples = [(vectors(n, 3), [vectors(n, 2) for _ in range(n)]) for n in (2, 1, 3)]

    def by_hand(params: Any, example: Any) -> Any:
        a, p = (jnp.array(x) for x in example)
        n = len(a)
        fc = lambda name, *x: nn.relu(affine(params[f'weave_{name}']['Dense_0'], *x))  # noqa: E731
        new_a = fc('a', fc('aa', a), fc('pa', p).sum(1))
        one, other = (jnp.repeat(a[:, None], n, 1), jnp.repeat(a[None], n, 0))
        said = fc('ap', one, other) + fc('ap', other, one)
        new_p = fc('p', said, fc('pp', p))
        return jnp.concatenate([new_a.sum(0), new_p.sum((0, 1))])

    same(block, examples, by_hand)


@pytest.mark.parametrize(
    ('rows', 'where', 'got'),
    [
        ([2, 2, 2], 'x6.Pipe[0]', '2 items beside 3'),
        ([2], 'x6.Pipe[0]', '2 items beside 1'),
        ([2, 1], 'x10.Pipe[1].Map.Pipe[0]', '2 items beside 1'),
    ],
)
def test_pairs_of_a_weave_are_square(rows: list[int], where: str, got: str) -> None:
    nodes = jf.GetItem(0) >> jf.Map(jf.Vector(3))
    pairs = jf.GetItem(1) >> jf.Map(jf.Map(jf.Vector(2)))
    model = jf.compile(jf.AllOf(nodes, pairs) >> layers.Weave(4) >> jf.GetItem(0))
    example = vectors(2, 3), [vectors(n, 2) for n in rows]
    with refuses(
        f'example 0: expected sequences of one length, got {got}; in '
        f'Pipe[1].weave.{where}.Zip(strict=True)',
        jf.InputError,
    ):
        model.schedule([example])


def test_edges_have_a_value_each() -> None:
    parts = jf.GetItem('x') >> jf.Map(jf.Scalar()), jf.GetItem('of'), jf.GetItem('to')
    values = jf.GetItem('values') >> jf.Map(jf.Scalar())
    passing = layers.MessagePassing(jnp.add, jnp.add, edges=True)
    model = jf.compile(jf.AllOf(*parts, values) >> passing)
    graph = {'x': [1, 2], 'of': [0, 1], 'to': [1, 0], 'values': [1, 2, 3]}
    with refuses(
        'example 0: expected sequences of one length, got 2 items beside 3; '
        'in Pipe[1].with_edges.x7.Pipe[0].Zip(strict=True)',
        jf.InputError,
    ):
        model.schedule([graph])
