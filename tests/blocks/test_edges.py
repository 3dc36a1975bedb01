# SPDX-License-Identifier: Apache-2.0
"""Graphs as sequences of nodes and lists of edges: `Pick` and `Regroup`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from checking import does_not_compile, number
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import compiled

import jfold as jf
from jfold.scheduling.spec import RESIDUALS

WIDTH = 4
KEY = jax.random.key(0)


def beside(block: Any, *parts: str) -> Any:
    """A block on some fields, of which the first is a list of numbers."""
    fields: list[Any] = [('x', jf.Map(number)), *((k, jf.Identity()) for k in parts)]
    return jf.Record(fields) >> block


picked = beside(jf.Pick(), 'at')
regrouped = beside(jf.Regroup(), 'to', 'of')


# ---- rounds of messages --------------------------------------------------------------


def embed(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p)


def update(p: Any, own: Any, around: Any) -> Any:
    return jnp.tanh(own @ p[0] + around @ p[1])


def network(rounds: int) -> jf.Block:
    """States of all nodes, from those at the other end of edges, so often."""
    first = jf.Function(embed, lambda key: jax.random.normal(key, (2, WIDTH)))

    @jf.compose
    def states(graph: Any) -> Any:
        h = (jf.GetItem('x') >> jf.Map(jf.Vector(2) >> first))(graph)
        of, to = (jf.GetItem(end)(graph) for end in ('of', 'to'))
        for i in range(rounds):
            arrived = jf.Regroup()(jf.Pick()(h, of), to, h)
            step = jf.Function(update, init_update, name=f'round {i}')
            h = jf.ZipWith(step)(h, jf.Map(jf.Sum())(arrived))
        return h

    return states


def init_update(key: Any) -> Any:
    return jax.random.normal(key, (2, WIDTH, WIDTH))


@st.composite
def graphs(draw: Any) -> Any:
    """Any nodes, any edges, also between a node and itself, and several times."""
    nodes, seed = draw(st.integers(0, 6)), draw(st.integers(0, 99))
    ends = st.integers(-nodes, nodes - 1) if nodes else st.nothing()
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=12)) if nodes else []
    of, to = ([pair[k] for pair in pairs] for k in (0, 1))
    x = np.random.default_rng(seed).normal(size=(nodes, 2)).astype('float32')
    return {'x': x, 'of': of, 'to': np.array(to, int) if draw(st.booleans()) else to}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ('residuals', 'strategy'), list(zip(RESIDUALS, (None, 'fixed'), strict=True))
)
def test_rounds_of_messages(residuals: str, strategy: Any) -> None:
    """Values and gradients are those of the eager twin; `flax/test_layers_of_trees` has
    sums by `segment_sum`."""
    model = compiled(network(2) >> jf.Sum(), residuals, strategy)
    params = model.init(KEY)
    names = ['embed', 'round 0', 'round 1']
    assert sorted(params) == names

    @settings(max_examples=drawn(1, 2))
    @given(st.lists(graphs(), min_size=3, max_size=3))
    def equal(batch: Any) -> None:
        agree(model, params, batch, 1e-5)

    equal()


def test_work_grows_with_nodes_and_edges() -> None:
    model = jf.compile(network(3))
    rng = np.random.default_rng(0)
    counts = []
    for nodes, edges in (10, 40), (20, 80):
        ends = rng.permutation(np.arange(edges) % nodes)
        x = rng.normal(size=(nodes, 2))
        graph = {'x': x, 'of': ends, 'to': np.arange(edges) % nodes}
        counts.append(model.schedule([graph]).counts.sum())
    assert counts == [10 * (1 + 3 * 2), 20 * (1 + 3 * 2)]


def test_graphs_within_examples(tmp_path: Any) -> None:
    """Several in one, in a recursion, and from a file."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = network(1) >> jf.Sum()
    pair = (tree(), tree()) >> jf.Function(jnp.subtract)
    tree.resolve_to(jf.OneOf(type, {dict: leaf, tuple: pair}))
    graph = {'x': [[1, 2], [3, 4], [5, 6]], 'of': [0, 1, 1], 'to': [2, 2, 0]}
    small = {'x': [[1, -1]], 'of': [], 'to': []}
    examples = [[(graph, (small, graph))], [], [small, graph, (graph, small)]]
    model = jf.compile(jf.Map(tree()) >> jf.Sum())
    params = model.init(KEY)
    agree(model, params, examples, 1e-5)
    corpus = model.trace(examples, progress=False)
    corpus.save(tmp_path / 'graphs.jfold')
    schedule = jf.Corpus.load(tmp_path / 'graphs.jfold', model).schedule([2, 0])
    close(
        model.apply(params, schedule),
        model.apply(params, model.schedule([examples[2], examples[0]])),
        1e-6,
    )


# ---- values and errors ---------------------------------------------------------------


def test_what_is_picked_and_what_is_regrouped() -> None:
    model = jf.compile((picked, regrouped))
    one = {'x': [5, 6, 7], 'at': [2, 0, -1, 0]}, {'x': [], 'to': [], 'of': 'ab'}
    two = {'x': [], 'at': ()}, {'x': [5, 6, 7], 'to': [1, 0, 1], 'of': range(3)}
    items, groups = model.apply({}, model.schedule([one, two]))
    expected = [[7, 5, 7, 5], []], [[[], []], [[6], [5, 7], []]]
    assert jax.tree.map(float, (items.to_list(), groups.to_list())) == expected
    for i, example in enumerate((one, two)):
        made = jax.tree.map(float, model.eval(example))
        assert [*made] == [expected[0][i], expected[1][i]]


WRONG = {
    'a position behind the end': (
        picked,
        {'x': [1, 2], 'at': [0, 2]},
        "at ['at']: expected the number of an item of 2, got 2; in Pipe[1].Pick()",
    ),
    'a position before the beginning': (
        picked,
        {'x': [1, 2], 'at': [-3]},
        "at ['at']: expected the number of an item of 2, got -3; in Pipe[1].Pick()",
    ),
    'positions that are a number': (
        picked,
        {'x': [1, 2], 'at': 1},
        "at ['at']: expected a list of ints, got 1: TypeError: 'int' object is "
        'not iterable; in Pipe[1].Pick()',
    ),
    'positions that are no ints': (
        picked,
        {'x': [1, 2], 'at': [0.5]},
        "at ['at']: expected a list of ints, got [0.5] (list): TypeError: they are "
        'float64[1]; in Pipe[1].Pick()',
    ),
    'a group that there is not': (
        regrouped,
        {'x': [1, 2], 'to': [0, 1], 'of': 'a'},
        "at ['to']: expected the number of a group of 1, got 1; in Pipe[1].Regroup()",
    ),
    'fewer groups than items': (
        regrouped,
        {'x': [1, 2], 'to': [0], 'of': 'a'},
        "at ['to']: expected a group for each of 2 items, got 1; in Pipe[1].Regroup()",
    ),
}


@pytest.mark.parametrize('name', WRONG)
def test_wrong_numbers_are_told(name: str) -> None:
    block, wrong, message = WRONG[name]
    right = {'x': [1], 'at': [0], 'to': [0], 'of': 'a'}
    with pytest.raises(jf.InputError) as caught:
        jf.compile(block).schedule([right, wrong])
    assert str(caught.value) == f'example 1, {message}'


@pytest.mark.parametrize('block', [picked, regrouped], ids=str)
@pytest.mark.parametrize('numbers', [{0}, {0: 1}])
def test_numbers_without_an_order_are_refused(block: jf.Block, numbers: Any) -> None:
    wrong = {'x': [1], 'at': numbers, 'to': numbers, 'of': 'a'}
    with pytest.raises(jf.InputError, match='expected a list of ints, got '):
        jf.compile(block).schedule([wrong])
    with pytest.raises(jf.InputError, match='expected a list of ints, got '):
        block.eval(wrong)


def test_what_compile_refuses() -> None:
    does_not_compile(
        jf.Map(number) >> jf.Pick(),
        'Pipe[1].Pick(): expected a pair of a sequence and a list of positions, got '
        '[float32[]]',
    )
    does_not_compile(
        jf.AllOf(jf.Map(number), jf.Map(number)) >> jf.Pick(),
        'Pipe[1].Pick(): expected numbers of items in a list that is an object, got '
        '[float32[]]; they are second, and left as they are in the data',
    )
    does_not_compile(
        jf.AllOf(number, jf.Identity()) >> jf.Pick(),
        'Pipe[1].Pick(): expected a sequence beside the numbers, got float32[]',
    )
    does_not_compile(
        jf.AllOf(jf.Map(number), jf.Identity()) >> jf.Regroup(),
        'Pipe[1].Regroup(): expected a sequence, a list of groups, and a sequence as '
        'long as there are groups, got ([float32[]], object)',
    )
