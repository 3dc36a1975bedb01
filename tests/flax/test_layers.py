# SPDX-License-Identifier: Apache-2.0
"""Ready layers: what the papers say, written out by hand, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from flax import nnx
from layer_checks import RNG, affine, checked, same, vectors

import jfold as jf
from jfold import layers

# ---- dense ---------------------------------------------------------------------------


def test_fully_connected() -> None:
    kinds = nn.relu, jnp.tanh, None
    fcs = [layers.FC(4, kind, name=f'fc_{n}') for n, kind in enumerate(kinds)]

    def by_hand(params: Any, x: Any) -> Any:
        made = [affine(params[f'fc_{n}']['Dense_0'], x) for n in range(3)]
        return jnp.concatenate([nn.relu(made[0]), jnp.tanh(made[1]), made[2]])

    same(jf.Vector(3) >> jf.AllOf(*fcs) >> jf.Concat(), vectors(4, 3), by_hand)


TABLE = RNG.normal(size=(5, 2)).astype('float32')


OUTSIDE = 'clip', 'modulo', 'nan'


def embeddings(table: Any) -> jf.Block:
    """One of each kind of what becomes of indices outside of a table."""
    size = table.shape
    kinds = [layers.Embed(*size, table=table, outside=x, name=x) for x in OUTSIDE]
    return jf.AllOf(*kinds)


def test_rows_inside_of_a_table() -> None:
    model, params = checked(jf.Scalar('int32') >> embeddings(TABLE), [1, 4, 0])
    for rows in model.apply(params, model.schedule([1, 4, 0])):
        np.testing.assert_array_equal(rows, TABLE[[1, 4, 0]])


@pytest.mark.parametrize(
    'dtype', [f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)]
)
def test_indices_of_any_kind(dtype: str) -> None:
    """Also of those that cannot hold the number of rows, or more than 32 bits."""
    with jax.enable_x64(dtype.endswith('64')):
        check_indices(dtype)


def check_indices(dtype: str) -> None:
    """Indices inside and outside, against Python's arithmetic."""
    count, least, most = 300, np.iinfo(dtype).min, np.iinfo(dtype).max
    table = np.arange(count, dtype='float32')[:, None]
    indices = [least, max(least, -1), 0, 127, min(most, 299), min(most, 300), most]
    indices += [(1 << 32) + 7, (1 << 62) + 7] if dtype.endswith('64') else []
    model = jf.compile(jf.Scalar(dtype) >> embeddings(table))
    params = {name: {'embedding': table} for name in OUTSIDE}
    clipped, modulo, nan = model.apply(params, model.schedule(indices))
    inside = [x if 0 <= x < count else np.nan for x in indices]
    nearest = [min(max(x, 0), count - 1) for x in indices]
    np.testing.assert_array_equal(clipped[:, 0], nearest)
    np.testing.assert_array_equal(modulo[:, 0], [abs(x) % count for x in indices])
    np.testing.assert_array_equal(nan[:, 0], inside)


def test_layers_have_parameters_of_32_bits() -> None:
    """As those of Flax, whatever JAX would make of a Python number."""
    with jax.enable_x64(True):
        blocks = jf.Scalar('int32') >> layers.Embed(5, 2), jf.Vector(3) >> layers.FC(2)
        for block in blocks:
            params = jf.compile(block).init(jax.random.key(0))
            assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype('float32')}


def test_names_that_layers_have_without_one() -> None:
    """They are the keys of parameters, in files too."""
    items = jf.Map(jf.Vector(3))
    blocks = {
        'embed': jf.Scalar('int32') >> layers.Embed(5, 2),
        'fc': jf.Vector(3) >> layers.FC(2),
        'lstm': items >> layers.LSTM(2),
        'gru': items >> layers.GRU(2),
    }
    for name, block in blocks.items():
        assert [*jax.eval_shape(jf.compile(block).init, jax.random.key(0))] == [name]


def test_a_table_is_trained_or_not() -> None:
    trained, fixed = (layers.Embed(5, 2, trained=x, name=f'{x}') for x in (True, False))
    block = jf.Scalar('int32') >> jf.AllOf(trained, fixed) >> jf.Concat()
    model, params = checked(block, [1, 1, 3])
    schedule = model.schedule([1, 1, 3])
    grad = jax.grad(lambda p: model.apply(p, schedule).sum())
    grads = interpreter.called(grad, params)
    counts = np.repeat([[0], [2], [0], [1], [0]], 2, 1)
    np.testing.assert_array_equal(grads['True']['embedding'], counts)
    assert not grads['False']['embedding'].any()


def test_categories() -> None:
    block = layers.Categorical(('a', None, 3))
    assert [block.eval(x).item() for x in ('a', None, 3)] == [0, 1, 2]
    with pytest.raises(jf.InputError, match=r'example 1: .*got .b.'):
        jf.compile(block).schedule(['a', 'b'])


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (
            lambda: layers.FC(0),
            'expected `features` of at least 1, got 0; write `features=1` or more',
        ),
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
            lambda: layers.Embed(1, 1, table=[[1]], trained=False),
            'Embed: expected a `table` of floats, got int64; make them so, by '
            r"`table.astype\('float32'\)`, or pass `outside='clip'`: no int is NaN",
        ),
        (
            lambda: layers.Embed(2, 1, table=[['a'], ['b']]),
            r'expected `table` as an array of numbers \[2, 1\], got',
        ),
        (
            lambda: layers.Embed(2, 1, table=[[1.0], []]),
            r'expected `table` as an array of numbers \[2, 1\], got',
        ),
        (
            lambda: layers.Embed(5, 3, outside='wrap'),
            "Embed: expected `outside` as one of 'nan', 'clip', 'modulo', got 'wrap'",
        ),
        (lambda: layers.Categorical([]), 'Categorical: expected at least one value'),
        (
            lambda: layers.Categorical(['b', 'a', 'a']),
            "Categorical: expected values that differ, got 'a' twice: pass "
            '`dict.fromkeys',
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


# ---- what they do not take -----------------------------------------------------------

STATES = jf.Zeros(([4], [4]))
OF_VECTORS: dict[str, Any] = {
    'FC': lambda x: x >> layers.FC(4),
    'LSTM': lambda x: jf.Map(x) >> layers.LSTM(4),
    'LSTM with dropout': lambda x: jf.Map(x) >> layers.LSTM(4, recurrent_dropout=0.5),
    'GRU': lambda x: jf.Map(x) >> layers.GRU(4),
    'query': lambda x: (x, jf.Map(jf.Vector(2))) >> layers.Attention(4),
    'items': lambda x: (jf.Vector(2), jf.Map(x)) >> layers.Attention(4),
    'leaf': lambda x: x >> jf.Function(layers.TreeLSTMLeaf(4)),
    'cell': lambda x: (
        jf.AllOf(x, STATES, STATES) >> jf.Function(layers.TreeLSTMCell(4))
    ),
    'children': lambda x: (
        jf.AllOf(x, jf.Zeros(([4], [4])) >> jf.Map(STATES))
        >> layers.ChildSumTreeLSTM(4)
    ),
}


@pytest.mark.parametrize('name', OF_VECTORS)
@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (jf.Scalar(), r'float32\[\]; read it by `Vector\(1\)`, or make it one'),
        (jf.Vector(2, 'int32'), r'int32\[2\]; read amounts by `Vector\(2\)`, and look'),
        (jf.Tensor([2, 2]), r'float32\[2,2\]; take each of its vectors, by Map, or'),
    ],
)
def test_vectors_of_floats_alone(name: str, given: jf.Block, message: str) -> None:
    with pytest.raises(TypeError, match=f'expected a vector of floats, got {message}'):
        jf.compile(OF_VECTORS[name](given))


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (jf.Scalar(), r'float32\[\]$'),
        (jf.Vector(2, 'int32'), r'int32\[2\]; look up each of several by Map$'),
    ],
)
def test_one_index_alone(given: jf.Block, message: str) -> None:
    text = rf"expected an int, as of `Scalar\('int32'\)`, got {message}"
    with pytest.raises(TypeError, match=text):
        jf.compile(given >> layers.Embed(3, 2))


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize('make', MAKERS)
def test_along_a_sequence(make: Any) -> None:
    """Outputs added up, each by its place, and the last state."""
    last = jf.GetItem(1) >> jf.GetItem(1) if make is layers.LSTM else jf.GetItem(1)
    both = jf.AllOf(jf.GetItem(0) >> jf.Sum(), last) >> jf.Concat()

    def by_hand(params: Any, items: list[Any]) -> Any:
        outputs = [jnp.zeros(4), *run_cell(MAKERS[make], params['cell'], items)]
        return jnp.concatenate([sum(outputs[1:], outputs[0]), outputs[-1]])

    same(jf.Map(jf.Vector(3)) >> make(4, name='cell') >> both, SEQUENCES, by_hand)


@pytest.mark.sampled(1)
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


def test_scores_of_minus_infinity_are_those_of_no_item() -> None:
    """And others may be as large as they like, in a compiled batch."""
    never = (float('-inf'), [7, 7])
    cases = [
        ([never, never, (0, [3, 1])], [3, 1]),
        ([(0, [3, 1]), *[never] * 10, (0, [1, 3])], [2, 2]),
        ([never, (-1e38, [5, 6])], [5, 6]),
        ([never], [0, 0]),
        ([never] * 10, [0, 0]),
        ([(200, [1, 0]), (-200, [0, 1]), (200, [0, 3])], [0.5, 1.5]),
    ]
    scaled = jf.Function(lambda w, s, x: (s, w * x), lambda key: jnp.ones(()), name='w')
    pair = jf.Record((jf.Scalar(), jf.Vector(2))) >> scaled
    model = jf.compile(jf.Map(pair) >> layers.Attend())
    params, (examples, want) = model.init(jax.random.key(0)), zip(*cases, strict=True)
    got = agree(model, params, list(examples))
    np.testing.assert_allclose(got, want, rtol=1e-6)


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


# ---- all -----------------------------------------------------------------------------


def test_every_layer_is_tested_here() -> None:
    files = Path(__file__).parent.glob('test_layers*.py')
    text = '\n'.join(file.read_text(encoding='utf-8') for file in files)
    assert [name for name in layers.__all__ if f'{name}(' not in text] == []


def test_linen_modules_that_hold_those_of_nnx() -> None:
    """Their parameters would be constants, without a word."""
    cell = jf.Function(jf.layers.Cell(nnx.GRUCell(2, 3, rngs=nnx.Rngs(0))))
    text = (
        'expected modules of Linen in Cell, got the NNX module GRUCell as `inner`, '
        'whose parameters Linen does not see: take one of Linen, or write an NNX '
        'module that calls it'
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        jf.compile(jf.Map(jf.Vector(2)) >> jf.RNN(cell, jf.Zeros([3])))
