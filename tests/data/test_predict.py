# SPDX-License-Identifier: Apache-2.0
"""The results of many examples in their order, and means over those that are real."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close
from binary_trees import binary_tree, tree_block
from checking import refuses
from compilations import compilations
from jax.sharding import AxisType, NamedSharding
from meshes import over_devices

import jfold as jf

RNG = np.random.default_rng(0)
TREES = [binary_tree(RNG, int(RNG.integers(1, 9))) for _ in range(11)]
LISTS: list[Any] = [
    [[1, 2], []],
    [],
    [[3]],
    [[], [4, 5, 6], [7]],
    [[8]],
    [[]],
    [[9, 1]],
]


def nested() -> jf.Model:
    """Lists of lists to the squares of their numbers, in lists, and two metrics."""
    square = (
        jf.Scalar()
        >> jf.Function(jnp.square)
        >> jf.AllOf(jf.Identity(), jf.Metric('squares'))
    )
    inner = jf.Map(square >> jf.GetItem(0))
    length = jf.Length() >> jf.Metric('lengths')
    return jf.compile(jf.AllOf(jf.Map(inner), length, jf.Length()))


def as_lists(value: Any) -> list[Any]:
    """Of each example what `eval` gives, as plain lists."""
    first, none, last = value
    assert none is None
    found = jax.tree.map(lambda x: np.asarray(x).tolist(), first.to_list())
    return list(zip(found, np.asarray(last).tolist(), strict=True))


def expected_lists(model: jf.Model) -> list[Any]:
    found = [model.eval(x)[0] for x in LISTS]
    return [
        (jax.tree.map(lambda x: np.asarray(x).tolist(), a), int(c)) for a, _, c in found
    ]


# ---- predictions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ('kind', 'size'), [('list', 11), ('stream', 30), ('corpus', 4), ('traced', 4)]
)
def test_predictions_equal_the_twin(kind: str, size: int) -> None:
    """Of any source, in its order, by one program; each in batches of one size."""
    model = jf.compile(tree_block(4), max_programs=1)
    params = model.init(jax.random.key(0))
    source: Any = {
        'list': lambda: TREES,
        'stream': lambda: iter(TREES),
        'corpus': lambda: model.trace(TREES),
        'traced': lambda: model.tracer()(TREES),
    }[kind]()
    with compilations('execute') as compiled:
        found = model.predict(params, source, batch_size=size)
    assert len(compiled) == 1
    assert isinstance(found, np.ndarray)
    close(found, np.array([model.eval(x, params) for x in TREES]), 1e-5)


@pytest.mark.parametrize('size', [2, 3, 7])
def test_sequences_and_metrics(size: int) -> None:
    """Sequences within sequences, without spare rows; whose a metric's rows are."""
    model = nested()
    value, metrics = model.predict({}, LISTS, batch_size=size)
    assert as_lists(value) == expected_lists(model)
    leaves = jax.tree.leaves((value, metrics))
    assert all(isinstance(x, np.ndarray) for x in leaves)
    first, _, _ = value
    assert first.values.values.shape == (10,)
    squares, lengths = metrics['squares'], metrics['lengths']
    assert squares.mask.all()
    for number, example in enumerate(LISTS):
        mine = sorted(squares.values[squares.example == number].tolist())
        assert mine == sorted(float(x * x) for each in example for x in each)
    assert lengths.values.tolist() == list(map(len, LISTS))
    assert lengths.example.tolist() == list(range(len(LISTS)))
    assert squares.example.dtype == 'int32'
    assert squares.sum() == sum(x * x for each in LISTS for y in each for x in y)
    np.testing.assert_allclose(squares.mean(), squares.values.mean())


def test_sequences_can_be_padded() -> None:
    model = jf.compile(jf.Map(jf.Scalar()))
    found = model.predict({}, [[1, 2], [], [3]], batch_size=2)
    items, real = found.padded(2, fill=-1)
    assert items.tolist() == [[1, 2], [-1, -1], [3, -1]]
    assert real.sum() == found.mask.sum() == 3


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'corpus'), [(AxisType.Auto, True), (AxisType.Explicit, False)]
)
def test_over_devices(kind: AxisType, corpus: bool) -> None:
    model, plain = nested(), nested()
    source = model.trace(LISTS) if corpus else LISTS
    found = model.predict({}, source, batch_size=4, sharding=over_devices(2, kind))
    expected = plain.predict({}, LISTS, batch_size=4)
    assert as_lists(found[0]) == as_lists(expected[0])
    for name, metric in expected[1].items():
        np.testing.assert_array_equal(found[1][name].example, metric.example)
        assert sorted(found[1][name].values) == sorted(metric.values)


def test_no_examples() -> None:
    """The same types, without rows."""
    model = nested()
    found, expected = model.predict({}, []), model.predict({}, LISTS)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for none, some in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert none.shape == (0, *some.shape[1:])
        assert none.dtype == some.dtype


def test_arrays_that_are_passed() -> None:
    model = jf.compile(jf.Map(jf.External('table', 2)) >> jf.Sum())
    table = np.array([[1, 2], [3, 4]], 'float32')
    external = {'table': table}
    found = model.predict({}, [[0], [1, 1], []], batch_size=2, external=external)
    assert found.tolist() == [[1, 2], [6, 8], [0, 0]]


def test_a_stream_is_read_batch_by_batch() -> None:
    """No more than is needed lies in memory."""
    model = jf.compile(jf.Scalar())
    alive = []

    class Number(float):
        def __init__(self, _: float) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    most = []

    def stream() -> Any:
        for number in range(400):
            most.append(len(alive))
            yield Number(number)

    assert model.predict({}, stream(), batch_size=4).tolist() == [*range(400)]
    assert max(most) <= 6 * 4


def test_the_bar_waits_for_the_first_program(monkeypatch: Any) -> None:
    """The time to compile is not that of predicting, and has a line of its own."""
    events = []

    @contextlib.contextmanager
    def spy(what: str, total: int | None, progress: bool) -> Any:
        events.append(what)
        yield lambda count: events.append('update')

    def apply(*args: Any, **options: Any) -> Any:
        events.append('apply')
        return type(model).apply(model, *args, **options)

    model = jf.compile(jf.Scalar())
    monkeypatch.setattr('jfold.data.predict.progress_bar', spy)
    monkeypatch.setattr(model, 'apply', apply)
    model.predict({}, [1, 2, 3], batch_size=1)
    rest = ['update', 'apply', 'update', 'update']
    assert events == ['apply', 'apply', 'predict', *rest]


def test_few_results_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the first batch, of the last that was read, and of two on their way."""
    made: list[weakref.ref[Any]] = []
    held: list[int] = []

    def apply(*args: Any, **options: Any) -> Any:
        result = type(model).apply(model, *args, **options)
        made.append(weakref.ref(result))
        held.append(sum(each() is not None for each in made))
        return result

    model = jf.compile(jf.Scalar())
    monkeypatch.setattr(model, 'apply', apply)
    model.predict({}, range(9), batch_size=1)
    assert max(held) <= 4


# ---- means ---------------------------------------------------------------------------


def test_a_mean_leaves_out_spare_rows() -> None:
    """Whatever is in them; in values and gradients, under `jit`."""
    model = jf.compile(tree_block(4))
    params = model.init(jax.random.key(0))

    @jax.jit
    def loss(params: Any, schedule: jf.Schedule, targets: Any) -> Any:
        rows = (model.apply(params, schedule) - targets[:, None]) ** 2
        return schedule.mean(rows).sum()

    def singly(params: Any) -> Any:
        found = [((model.eval(x, params) - i) ** 2).sum() for i, x in enumerate(TREES)]
        return sum(found) / len(TREES)

    targets = jnp.where(jnp.arange(16) < len(TREES), jnp.arange(16.0), jnp.nan)
    schedule = model.schedule(TREES, size=16)
    made = jax.value_and_grad(loss)(params, schedule, targets)
    close(made, interpreter.called(jax.value_and_grad(singly), params), 1e-4)


def test_means_of_all_kinds() -> None:
    model = jf.compile(jf.Scalar())
    (batch,) = model.batches([1.0, 2.0, 3.0], 4)
    for mean in (batch.mean, batch.schedule.mean):
        assert mean(np.array([1, 2, 6, 100])) == 3
        np.testing.assert_allclose(mean(np.array([True, False, True, True])), 2 / 3)
        pair = {'a': np.arange(8.0).reshape(4, 2), 'b': jnp.ones(4, jnp.bfloat16)}
        found = mean(pair)
        assert found['a'].tolist() == [2, 3]
        assert found['b'] == 1
        assert found['b'].dtype == jnp.bfloat16
    assert model.schedule([], size=3).mean(np.full(3, np.nan)) == 0


@pytest.mark.slow
@pytest.mark.parametrize('kind', [AxisType.Auto, AxisType.Explicit])
def test_means_over_devices(kind: AxisType) -> None:
    """Spare rows are at the end of each shard."""
    model = jf.compile(tree_block(4))
    where = over_devices(2, kind)
    own = model.init(jax.random.key(0))
    params = jax.device_put(own, NamedSharding(where.mesh, jax.P()))
    (batch,) = model.batches(TREES, 16, sharding=where)
    assert batch.mask.tolist() != sorted(batch.mask.tolist(), reverse=True)

    def loss(params: Any) -> Any:
        return batch.mean(model.apply(params, batch.schedule) ** 2).sum()

    plain = jf.compile(model.block)

    def single(params: Any) -> Any:
        return (plain.apply(params, plain.schedule(TREES)) ** 2).mean(0).sum()

    made = jax.jit(jax.value_and_grad(loss))(params)
    close(made, interpreter.called(jax.value_and_grad(single), own), 1e-4)


def test_losses_without_a_row_for_each() -> None:
    """As a mean that was taken already."""
    schedule = jf.compile(jf.Scalar()).schedule([1, 2])
    for losses, got in (1.0, 'float32[]'), (np.ones(3, 'int32'), 'int32[3]'):
        text = (
            'expected losses [2, ...], one for each row of the results, got '
            f'{got}: leave the mean to `mean`; items of sequences have one of their '
            'own, `Ragged.mean`'
        )
        with refuses(text, ValueError):
            schedule.mean(losses)
