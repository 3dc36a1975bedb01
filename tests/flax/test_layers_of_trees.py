# SPDX-License-Identifier: Apache-2.0
"""Ready layers over trees and graphs, beside plain recursion."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary
from checking import refuses
from layer_checks import RNG, affine, same, vectors

import jfold as jf
from jfold import layers

# ---- trees ---------------------------------------------------------------------------

State = tuple[Any, Any]
H = 3


def gated(i: Any, o: Any, u: Any, kept: Any) -> State:
    """A memory and an output."""
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + kept
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def test_binary_tree_lstm() -> None:
    """Tai et al. 2015, equations 9 to 14, without an input at inner nodes."""
    word = jf.Vector(2) >> jf.Function(layers.TreeLSTMLeaf(H), name='leaf')
    cell = jf.Function(layers.TreeLSTMCell(H, forget_bias=0.5), name='cell')

    def by_hand(params: Any, tree: Any) -> State:
        if not isinstance(tree, tuple):
            gates = affine(params['leaf']['Dense_0'], tree)
            return gated(*jnp.split(gates, 3), 0.0)
        (c, h), (d, k) = (by_hand(params, each) for each in tree)
        gates = affine(params['cell']['Dense_0'], jnp.concatenate([h, k]))
        i, o, u, f, g = jnp.split(gates, 5)
        sigmoid = jax.nn.sigmoid
        return gated(i, o, u, sigmoid(f + 0.5) * c + sigmoid(g + 0.5) * d)

    a, b, c, d = vectors(4, 2)
    trees = [a, (a, b), ((a, b), (c, (d, a)))]
    same(binary(word, cell) >> jf.GetItem(1), trees, lambda p, x: by_hand(p, x)[1])


def test_missing_children_and_inputs() -> None:
    """Of two children either may be none, and each node has a vector of its own."""
    cell = jf.Function(layers.TreeLSTMCell(H), name='cell')
    tree = jf.ForwardDeclaration(output_type=([H], [H]))
    child = jf.Optional(tree())
    tree.resolve_to(jf.Record((jf.Vector(2), child, child)) >> cell)

    def by_hand(params: Any, node: Any) -> State:
        if node is None:
            return jnp.zeros(H), jnp.zeros(H)
        x, *children = node
        (c, h), (d, k) = (by_hand(params, each) for each in children)
        gates = affine(params['cell']['Dense_0'], jnp.concatenate([x, h, k]))
        i, o, u, f, g = jnp.split(gates, 5)
        sigmoid = jax.nn.sigmoid
        return gated(i, o, u, sigmoid(f + 1) * c + sigmoid(g + 1) * d)

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
    """Tai et al. 2015, equations 2 to 8."""
    block = layers.Tree(VALUE, CHILDREN, layers.ChildSumTreeLSTM(H), ([H], [H]))

    def by_hand(params: Any, tree: Any) -> State:
        x, children = tree
        states = [by_hand(params, each) for each in children]
        heard = sum((h for _, h in states), jnp.zeros(H))
        forget = lambda h: affine(  # noqa: E731
            params['forget']['Dense_0'], jnp.concatenate([x, h])
        )
        kept = sum((jax.nn.sigmoid(forget(h) + 1) * c for c, h in states), jnp.zeros(H))
        gates = affine(params['join']['Dense_0'], jnp.concatenate([x, heard]))
        return gated(*jnp.split(gates, 3), kept)

    same(block >> jf.GetItem(1), drawn_trees(), lambda p, x: by_hand(p, x)[1])


def test_child_sum_tree_gru() -> None:
    block = layers.Tree(VALUE, CHILDREN, layers.ChildSumTreeGRU(H), [H])

    def by_hand(params: Any, tree: Any) -> Any:
        x, children = tree
        states = [by_hand(params, each) for each in children]
        reset = lambda h: jax.nn.sigmoid(  # noqa: E731
            affine(params['reset']['Dense_0'], jnp.concatenate([x, h]))
        )
        total = sum(states, jnp.zeros(H))
        heard = sum((reset(h) * h for h in states), jnp.zeros(H))
        one, other = (params['update'][f'Dense_{n}'] for n in range(2))
        z = jax.nn.sigmoid(affine(one, jnp.concatenate([x, total])))
        new = jnp.tanh(affine(other, jnp.concatenate([x, heard])))
        return z * total + (1 - z) * new

    same(block, drawn_trees(), by_hand)


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
            both = jnp.concatenate([h[np.array(of, int)], values], 1)
            sent = jnp.tanh(affine(params['say']['Dense_0'], both))
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
        fc = lambda name, *x: nn.relu(  # noqa: E731
            affine(params[f'weave_{name}']['Dense_0'], jnp.concatenate(x, -1))
        )
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
