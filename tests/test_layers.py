# SPDX-License-Identifier: Apache-2.0
"""Ready layers: what the papers say, written out by hand, and what they refuse."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close

import jfold as jf
from jfold import layers
from jfold.layers.records import RecordEncoder

RNG = np.random.default_rng(0)


def vectors(count: int, size: int) -> list[Any]:
    """Some drawn vectors."""
    return list(RNG.normal(size=(count, size)).astype('float32'))


def checked(block: jf.Block, examples: list[Any]) -> tuple[jf.Model, Any]:
    """A model whose values and gradients are those of its eager twin."""
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    agree(model, params, examples)
    return model, params


def same(
    block: jf.Block, examples: list[Any], by_hand: Callable[[Any, Any], Any]
) -> None:
    """Values, and gradients of their squares, as by hand of parameters and example."""
    model = jf.compile(block)
    params = model.init(jax.random.key(0))

    def loss(params: Any) -> Any:
        return jnp.square(model.apply(params, model.schedule(examples))).sum()

    def expected(params: Any) -> Any:
        return sum(jnp.square(by_hand(params, x)).sum() for x in examples)

    found = model.apply(params, model.schedule(examples))
    close(found, jnp.stack([by_hand(params, x) for x in examples]), 1e-5)
    close(jax.grad(loss)(params), jax.grad(expected)(params), 1e-4)


def affine(params: Any, x: Any) -> Any:
    """What `nn.Dense` does."""
    return x @ params['kernel'] + params['bias']


# ---- dense ---------------------------------------------------------------------------


@pytest.mark.parametrize('activation', [nn.relu, jnp.tanh, None])
def test_fully_connected(activation: Any) -> None:
    then = activation or (lambda x: x)
    same(
        jf.Vector(3) >> layers.FC(4, activation),
        vectors(4, 3),
        lambda params, x: then(affine(params['fc']['Dense_0'], x)),
    )


TABLE = RNG.normal(size=(5, 2)).astype('float32')


@pytest.mark.parametrize(
    ('outside', 'rows'),
    [('clip', [1, 4, 0, 4]), ('modulo', [1, 4, 3, 2]), ('nan', [1, 4, None, None])],
)
def test_rows_outside_of_a_table(outside: Any, rows: list[int | None]) -> None:
    block = jf.Scalar('int32') >> layers.Embed(5, 2, table=TABLE, outside=outside)
    model, params = checked(block, [1, 4, 0])
    found = model.apply(params, model.schedule([1, 4, -3, 7]))
    nothing = np.full(2, np.nan, 'float32')
    expected = [nothing if row is None else TABLE[row] for row in rows]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('trained', [True, False])
def test_a_table_is_trained_or_not(trained: bool) -> None:
    block = jf.Scalar('int32') >> layers.Embed(5, 2, trained=trained)
    model, params = checked(block, [1, 1, 3])
    schedule = model.schedule([1, 1, 3])
    grads = jax.grad(lambda p: model.apply(p, schedule).sum())(params)
    counts = np.array([0, 2, 0, 1, 0]) * trained
    np.testing.assert_array_equal(
        grads['embed']['embedding'], np.repeat(counts[:, None], 2, 1)
    )


def test_categories() -> None:
    block = layers.Categorical(('a', None, 3))
    assert [block.eval(x).item() for x in ('a', None, 3)] == [0, 1, 2]
    with pytest.raises(jf.InputError, match=r'example 1: .*got .b.'):
        jf.compile(block).schedule(['a', 'b'])


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: layers.FC(0), 'expected `features` of at least 1, got 0'),
        (lambda: layers.Embed(2.5, 1), 'expected `count` as int, got 2.5'),
        (
            lambda: layers.Embed(5, 3, table=TABLE),
            r'Embed: expected a `table` of shape \(5, 3\), got \(5, 2\)',
        ),
        (
            lambda: layers.Embed(1, 1, table=[[1]]),
            'Embed: expected a `table` of floats, got int64; make them so, by '
            r"`table.astype\('float32'\)`, or pass `trained=False`",
        ),
        (
            lambda: layers.Embed(5, 3, outside='wrap'),
            "Embed: expected `outside` as one of 'nan', 'clip', 'modulo', got 'wrap'",
        ),
        (lambda: layers.Categorical([]), 'Categorical: expected at least one value'),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


# ---- along sequences -----------------------------------------------------------------

SEQUENCES = [vectors(n, 3) for n in (2, 0, 3)]
MAKERS: dict[Any, Any] = {
    layers.LSTM: nn.OptimizedLSTMCell(4),
    layers.GRU: nn.GRUCell(4),
}


def run_cell(cell: Any, params: Any, items: list[Any]) -> list[Any]:
    """The outputs of a cell of Flax, one item after another."""
    state, outputs = cell.initialize_carry(jax.random.key(0), (3,)), []
    for item in items:
        state, output = cell.apply({'params': params['inner']}, state, item)
        outputs.append(output)
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize('make', MAKERS)
def test_along_a_sequence(make: Any) -> None:
    """Outputs added up, each by its place."""
    sums = make(4, name='cell') >> jf.GetItem(0) >> jf.Sum()
    same(
        jf.Map(jf.Vector(3)) >> sums,
        SEQUENCES,
        lambda params, items: sum(
            run_cell(MAKERS[make], params['cell'], items), jnp.zeros(4)
        ),
    )


@pytest.mark.slow
def test_last_states() -> None:
    lstm = jf.Map(jf.Vector(3)) >> layers.LSTM(4) >> jf.GetItem(1) >> jf.GetItem(1)
    gru = jf.Map(jf.Vector(3)) >> layers.GRU(4) >> jf.GetItem(1)
    cell = MAKERS[layers.LSTM]
    one, other = SEQUENCES[0], SEQUENCES[2]
    same(lstm, [one, other], lambda p, x: run_cell(cell, p['lstm'], x)[-1])
    cell = MAKERS[layers.GRU]
    same(gru, [one, other], lambda p, x: run_cell(cell, p['gru'], x)[-1])


@pytest.mark.slow
@pytest.mark.parametrize('make', MAKERS)
def test_in_both_directions(make: Any) -> None:
    """Each item knows of those before and after it."""
    weigh = jf.RNN(jf.Function(_weigh), jf.Zeros([8])) >> jf.GetItem(1)
    block = jf.Map(jf.Vector(3)) >> layers.Bidirectional(4, make) >> weigh

    def by_hand(params: Any, items: list[Any]) -> Any:
        before = run_cell(MAKERS[make], params['forwards'], items)
        after = run_cell(MAKERS[make], params['backwards'], items[::-1])[::-1]
        total = jnp.zeros(8)
        for pair in zip(before, after, strict=True):
            total, _ = _weigh(jnp.concatenate(pair), total)
        return total

    same(block, SEQUENCES, by_hand)


def _weigh(item: Any, state: Any) -> Any:
    """Depends on the order of items."""
    new = 0.5 * state + item
    return new, new


# ---- attention -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_mean_weighed_by_scores() -> None:
    """However large they are; of nothing it is zeros."""
    draw = lambda n: list(zip(RNG.normal(size=n), vectors(n, 2), strict=True))  # noqa: E731
    weights = jf.Function(
        lambda w, s, x: (w * s, x), lambda key: jnp.ones(()), name='w'
    )
    pair = jf.Record((jf.Scalar(), jf.Vector(2))) >> weights
    block = jf.Map(pair) >> layers.Attend()

    def by_hand(params: Any, items: list[Any]) -> Any:
        if not items:
            return jnp.zeros(2)
        scores, values = (jnp.array(x, 'float32') for x in zip(*items, strict=True))
        return jax.nn.softmax(params['w'] * scores) @ values

    large = [(200, [1, 0]), (-200, [0, 1]), (200, [0, 3])]
    same(block, [draw(5), [], draw(1), draw(12), large], by_hand)


@pytest.mark.slow
def test_dot_product_attention() -> None:
    block = jf.Record((jf.Vector(3), jf.Map(jf.Vector(2)))) >> layers.Attention(4)
    examples = [(vectors(1, 3)[0], vectors(n, 2)) for n in (3, 1, 7)]

    def by_hand(params: Any, example: Any) -> Any:
        asked, items = example
        both, items = params['key_and_value'], jnp.stack(items)
        query = affine(params['query']['Dense_0'], asked)
        scores = affine(both['key'], items) @ query / 2.0
        return jax.nn.softmax(scores) @ affine(both['value'], items)

    same(block, examples, by_hand)


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
    tree = jf.ForwardDeclaration()
    pair = jf.Record((tree(), tree())) >> cell
    tree.resolve_to(jf.OneOf(lambda x: isinstance(x, tuple), {True: pair, False: word}))

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
    same(tree() >> jf.GetItem(1), trees, lambda p, x: by_hand(p, x)[1])


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# ---- records -------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


@dataclasses.dataclass
class Size:
    width: float
    exact: bool


@dataclasses.dataclass
class Part:
    name: str
    colour: Colour
    kind: Literal['bolt', 'nut']
    size: Size
    price: float | None
    parts: list[Part]
    twin: Part | None


def part(name: str, parts: list[Part], **others: Any) -> Part:
    """One of few words."""
    given = {'price': None, 'twin': None, 'colour': Colour.RED} | others
    size = Size(len(name), exact=True)
    return Part(name=name, kind='nut', size=size, parts=parts, **given)


@pytest.mark.slow
def test_dataclasses_within_each_other() -> None:
    small = part('screw', [], price=2.0)
    examples = [small, part('box', [small, small], twin=small, colour=Colour.GREEN)]
    _, params = checked(RecordEncoder(Part, 4), examples)
    assert {'record', 'name', 'colour', 'kind', 'size', 'size_width', 'price'} <= {
        *params
    }


SCHEMA = {
    'type': 'object',
    'properties': {
        'name': {'type': 'string'},
        'kind': {'enum': ['bolt', 'nut']},
        'weight': {'type': ['number', 'null']},
        'count': {'type': 'integer'},
        'parts': {'type': 'array', 'items': {'$ref': '#'}},
        'size': {'$ref': '#/$defs/size'},
        'maker': {'anyOf': [{'type': 'string'}, {'type': 'null'}]},
    },
    '$defs': {'size': {'type': 'object', 'properties': {'width': {'type': 'number'}}}},
}


@pytest.mark.slow
def test_json_by_its_schema() -> None:
    """What is not there counts as missing, whether it must be there or not."""
    small = {'name': 'screw', 'kind': 'bolt', 'parts': [], 'count': 3}
    large = {'parts': [small, {}], 'size': {'width': 2.5}, 'weight': None, 'maker': 'x'}
    model, params = checked(RecordEncoder(SCHEMA, 4), [small, large, {}])
    unknown = model.schedule([{'kind': 'rivet'}])
    assert model.apply(params, unknown).shape == (1, 4)


@dataclasses.dataclass
class Odd:
    inner: list[bytes]


@pytest.mark.parametrize(
    ('description', 'message'),
    [
        (Odd, r"got <class 'bytes'> at `inner\[\]`"),
        (dict, "got <class 'dict'>"),
        ({'type': 'object'}, 'a record of at least one field, got none'),
        (
            {'type': 'object', 'properties': {'a': {'type': 'tuple'}}},
            "got {'type': 'tuple'} at `a`",
        ),
        ({'$ref': '#/$defs/a'}, "got {'.ref': '#/.defs/a'}"),
        ({'anyOf': [{'type': 'string'}, {'type': 'number'}]}, "got {'anyOf'"),
    ],
)
def test_descriptions_of_something_else(description: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f'RecordEncoder: expected .*{message}'):
        RecordEncoder(description, 4)


def test_every_layer_is_tested_here() -> None:
    """By its name."""
    text = Path(__file__).read_text(encoding='utf-8')
    assert [name for name in layers.__all__ if f'{name}(' not in text] == []
