# SPDX-License-Identifier: Apache-2.0
"""Reductions in any grouping: over eight neighbours at once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import same

import jfold as jf
from jfold.tracing.strict_reading import groups_of

NUMBERS = jf.Map(jf.Scalar())
LENGTHS = [*range(20), 63, 64, 65, 66, 73, 511, 512, 513]
REDUCTIONS = {
    'Sum': (jf.Sum, np.add),
    'Max': (jf.Max, np.maximum),
    'Min': (jf.Min, np.minimum),
}


def drawn(length: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(length).normal(size=(length, *shape))


# ---- how much is read ----------------------------------------------------------------


@pytest.mark.parametrize('name', REDUCTIONS)
def test_levels_are_few_and_items_are_read_hardly_more_than_once(name: str) -> None:
    """At most 1.2 reads of values an item, and log8 levels: besides, what is left of a
    sequence reads one row, of zeros or of its last item, up to three times a level."""
    block, _ = REDUCTIONS[name]
    model = jf.compile(NUMBERS >> block())
    for length in LENGTHS[2:]:
        graph = model.trace([list(range(length))], progress=False).graph
        constants = set(range(len(model.program.constants)))
        columns = [np.stack(x.columns[1:], 1).tolist() for x in graph.operations]
        rows = [row for table in columns for row in table]
        values = sum(len({*row} - constants) for row in rows)
        assert values <= 1.2 * length
        assert sum(map(len, rows)) - values <= 3 * graph.depth
        assert 8 ** (graph.depth - 1) < length <= 8**graph.depth


def test_functions_without_a_neutral_element_read_items_once_a_level() -> None:
    model = jf.compile(NUMBERS >> jf.Reduce(jnp.logaddexp, associative=True))
    for length in LENGTHS[2:]:
        graph = model.trace([list(range(length))], progress=False).graph
        read = sum(len(x) * (len(x.columns) - 1) for x in graph.operations)
        assert read <= 1.5 * length
        assert graph.depth <= 1 + 2 * np.log2(length) / 3 + 1


@pytest.mark.parametrize('sizes', [8, (8, 4, 2)])
def test_every_item_is_in_one_group(sizes: Any) -> None:
    """What is left of eight neighbours is one group, if zeros fill it up, or some."""
    for count in range(20):
        groups = groups_of(range(count), sizes)
        assert [item for group in groups for item in group] == [*range(count)]
        lengths = [len(group) for group in groups]
        assert lengths[: count // 8] == [8] * (count // 8)
        rest = lengths[count // 8 :]
        assert len(rest) <= 1 if sizes == 8 else set(rest) <= {1, 2, 4}


# ---- what comes out ------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize('dtype', ['float32', 'int32', 'bool', 'uint8', 'bfloat16'])
def test_lists_of_any_length(dtype: str) -> None:
    blocks = [block() for block, _ in REDUCTIONS.values()]
    model = jf.compile(jf.Map(jf.Scalar(dtype)) >> jf.AllOf(*blocks))
    lists = [(drawn(n) * 3).astype(dtype) for n in LENGTHS[1:12]]
    if dtype not in ('bool', 'uint8'):  # of one sign: what fills up must not be seen
        lists += [sign * (abs(x) + 1) for x in lists for sign in (-1, 1)]
    found = model.apply({}, model.schedule([x.tolist() for x in lists]))
    tolerance = 2e-2 if dtype == 'bfloat16' else 1e-5
    for column, (_, ufunc) in zip(found, REDUCTIONS.values(), strict=True):
        assert column.dtype == dtype
        for row, items in zip(column, lists, strict=True):
            expected = functools.reduce(ufunc, items.astype('float64')).astype(dtype)
            got, want = np.float64(row), np.float64(expected)
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_infinities_and_what_is_no_number_stay() -> None:
    inf, nan = float('inf'), float('nan')
    lists = [[-inf] * 3, [inf] * 5, [1.0, nan, 2.0]]
    model = jf.compile(NUMBERS >> jf.AllOf(jf.Max(), jf.Min(), jf.Sum()))
    for column in model.apply({}, model.schedule(lists)):
        np.testing.assert_array_equal(column, [-inf, inf, nan])


@pytest.mark.sampled(1)
@pytest.mark.parametrize('block', [jf.Max(), jf.Min()], ids=repr)
def test_gradients_of_what_is_largest_add_up_to_one(block: jf.Block) -> None:
    """Where all are as large, too, and where that is infinite."""
    model = jf.compile(jf.Map(jf.External('x', [])) >> block)
    counts = [1, 2, 3, 5, 7, 8, 9, 13]
    schedule = model.schedule([[i] * n for i, n in enumerate(counts)])

    @jax.jit
    def loss(table: Any) -> Any:
        return model.apply({}, schedule, {'x': table}).sum()

    for value in 0.0, np.inf, -np.inf:
        gradient = jax.grad(loss)(jnp.full(len(counts), value))
        np.testing.assert_allclose(gradient, np.ones(len(counts)))


def test_zeros_keep_their_sign() -> None:
    model = jf.compile(NUMBERS >> jf.Sum())
    lists = [[-0.0] * n for n in range(1, 10)]
    assert np.signbit(model.apply({}, model.schedule(lists))).all()


def listed(x: Any, y: Any) -> Any:
    return [a + b for a, b in zip(x, y, strict=True)]


def as_number(x: Any, y: Any) -> Any:
    return x.dtype.itemsize * 1.0


def weak(x: Any, y: Any) -> Any:
    return jnp.where(x + jnp.int8(100) > 127, 100, 0)


@pytest.mark.parametrize(
    ('item', 'fn', 'example'),
    [
        ((jf.Scalar(), jf.Scalar()), listed, [(1.0, 2.0)] * 8),
        (jf.Scalar(), as_number, [1.0] * 8),
        (jf.Scalar('int32'), weak, [100] * 8),
    ],
)
def test_steps_of_a_group_give_what_operations_give(
    item: Any, fn: Any, example: Any
) -> None:
    """Tuples for lists, arrays for numbers, dtypes that do not give way."""
    block = jf.Map(item) >> jf.Reduce(fn, associative=True)
    model = jf.compile(block)
    got = jax.tree.map(lambda x: x[0], model.apply({}, model.schedule([example])))
    same(got, jax.tree.map(np.asarray, block.eval(example)))


def test_the_order_of_items_is_kept() -> None:
    """Products of matrices, which do not commute."""
    items = jf.Map(jf.Tensor((2, 2)))
    model = jf.compile(items >> jf.Reduce(jnp.matmul, associative=True))
    lists = [drawn(n, 2, 2).astype('float32') for n in range(1, 30)]
    for row, matrices in zip(
        model.apply({}, model.schedule(lists)), lists, strict=True
    ):
        np.testing.assert_allclose(
            row, functools.reduce(np.matmul, matrices), rtol=1e-3, atol=1e-4
        )


def weighed(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return w * x * y


def of_pairs(x: Any, y: Any) -> Any:
    return x[0] + y[0], jnp.logaddexp(x[1], y[1])


LISTS: list[Any] = [drawn(n).astype('float32').tolist() for n in range(12)]
OF_NUMBERS = [
    jf.Reduce(jf.Function(weighed, lambda key: jnp.float32(1.1)), associative=True),
    jf.Max(np.float32(-7)),
    jf.Reduce(jf.Function(jnp.logaddexp) >> jnp.tanh, associative=True),
    jf.Reduce(jf.Function(lambda x, y: x + y, batched=True), associative=True),
    jf.AllOf(jf.Sum(), jf.Max()),
]
MODELS: dict[str, tuple[jf.Block, list[Any]]] = {
    'of numbers': (NUMBERS >> jf.AllOf(*OF_NUMBERS), LISTS),
    'of tuples': (
        jf.Map((jf.Scalar(), jf.Vector(2))) >> jf.Reduce(of_pairs, associative=True),
        [[(x, [x, -x]) for x in items] for items in LISTS],
    ),
    'nested': (
        jf.Map(NUMBERS >> jf.Sum() >> jnp.tanh) >> jf.Max(),
        [LISTS[:n] for n in (0, 1, 5, 12)],
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize('name', MODELS)
def test_values_and_gradients_are_those_of_the_eager_twin(name: str) -> None:
    block, examples = MODELS[name]
    model = jf.compile(block)
    agree(model, model.init(jax.random.key(0)), examples, 1e-5)


def test_one_function_in_groups_and_by_itself_has_one_set_of_parameters() -> None:
    scaled = jf.Function(weighed, lambda key: jnp.float32(0.5), name='scaled')
    number = jf.Scalar()
    pair = jf.Record((number, number)) >> scaled
    model = jf.compile(
        jf.Record((jf.Map(number) >> jf.Reduce(scaled, associative=True), pair))
    )
    params = model.init(jax.random.key(0))
    assert list(params) == ['scaled']
    schedule = model.schedule([([1.0, 2.0, 3.0], (4.0, 5.0))])
    values = model.apply(params, schedule)
    assert [x.item() for x in values] == [1.5, 10.0]


def test_what_no_batch_needs_is_not_made_room_for() -> None:
    model = jf.compile(NUMBERS >> jf.Sum())
    pairs = model.schedule([[1, 2], [3], [4, 5]])
    assert [rows > 0 for rows in pairs.spec.capacity.rows] == [True, False, False]
    assert model.schedule([[1] * 9]).spec.capacity.rows[-1] > 0


# ---- softmax -------------------------------------------------------------------------


def test_softmax_is_that_of_jax_and_does_not_overflow() -> None:
    model = jf.compile(NUMBERS >> jf.Softmax())
    lists = [[1.0, 2.0, 3.0], [], [1e4, -1e4, 1e4], [5.0]]
    shares = model.apply({}, model.schedule(lists)).to_list()
    for got, given in zip(shares, lists, strict=True):
        np.testing.assert_allclose(got, jax.nn.softmax(jnp.array(given)), rtol=1e-6)


def test_softmax_of_vectors_has_the_gradients_of_the_eager_twin() -> None:
    scaled = jf.Vector(2) >> jf.Function(lambda w, x: w * x, lambda key: jnp.ones(2))
    weighed = jf.Map(scaled) >> jf.AllOf(jf.Softmax(), jf.Identity())
    model = jf.compile(weighed >> jf.ZipWith(jnp.multiply) >> jf.Sum())
    lists: list[Any] = [drawn(n, 2).astype('float32').tolist() for n in (0, 1, 2, 9)]
    agree(model, model.init(jax.random.key(0)), lists, 1e-5)
