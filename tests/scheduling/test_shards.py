# SPDX-License-Identifier: Apache-2.0
"""Batches whose examples are dealt to devices equal those of one device."""

from __future__ import annotations

import re
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, batched_loss, close
from binary_trees import binary_tree, tree_block
from expressions import Expression, expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from meshes import over_devices
from tree_corpora import forest

import jfold as jf
from jfold.scheduling.shard_assignment import assign_evenly, assign_in_order
from jfold.scheduling.shards import make_shards
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

KINDS = AxisType.Auto, AxisType.Explicit
slow = pytest.mark.slow
options = st.fixed_dictionaries(
    {'residuals': st.sampled_from(RESIDUALS), 'strategy': st.sampled_from(STRATEGIES)}
)


def sums() -> jf.Block:
    """Nested lists of ints to their sums, with a metric at each list, and as items; in
    float64."""
    nested = jf.ForwardDeclaration(name='nested')
    scaled = jf.Function(lambda w, x: w * x, lambda key, x: jnp.float64(2), name='s')
    of_list = jf.Map(nested()) >> jf.Sum() >> scaled
    seen = jf.Record((jf.Identity(), jf.Metric('sums'))) >> jf.GetItem(0)
    node = of_list >> jf.AllOf(jf.Identity(), jf.Identity()) >> seen
    number = jf.Scalar('float64') >> scaled
    nested.resolve_to(jf.OneOf(type, {int: number, list: node}))
    return jf.Map(nested())


LISTS: list[Any] = [[1, [2, 3, [4]], 5], [], [[1, 1, 1]], [7, 8], [[[[3]]]], [2], [[]]]


# ---- equality ------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ('examples', 'count', 'kind'),
    [
        (0, 2, AxisType.Auto),
        (1, 8, AxisType.Explicit),
        (7, 2, AxisType.Explicit),
        (7, 1, AxisType.Auto),
        (5, 8, AxisType.Auto),
    ],
)
def test_sequences_and_metrics(examples: int, count: int, kind: AxisType) -> None:
    """Of as many shards or more than examples: among them shards of no example."""
    batch, where = LISTS[:examples], over_devices(count, kind)
    with jax.enable_x64(True):
        model = jf.compile(sums())
        params = model.init(jax.random.key(0))
        if examples:
            agree(model, params, batch, 1e-12, forward=True, sharding=where)
        schedule = model.schedule(batch, sharding=where)
    assert schedule.examples == -(-examples // count) * count
    assert schedule.mask.tolist() == [k < examples for k in range(schedule.examples)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ('root', 'count'),
    [
        *(('whole', n) for n in (2, 4)),
        *(pytest.param('whole', n, marks=slow) for n in (1, 8)),
        pytest.param('tree', 8, marks=slow),
        pytest.param('sequences', 2, marks=slow),
    ],
)
def test_expressions(root: str, count: int) -> None:
    """One device and several give the same, in float64, to twelve digits."""

    @settings(max_examples=drawn(1, 2))
    @given(expressions(root, 'float64'), options)
    def equal(expression: Expression, options: dict[str, Any]) -> None:
        with jax.enable_x64(True):
            model = jf.compile(expression.block, **options)
            params = model.init(jax.random.key(1))
            batch = expression.batch(np.random.default_rng(2), 5)
            agree(model, params, batch, 1e-12, sharding=over_devices(count))

    equal()


def test_an_operation_that_one_shard_lacks() -> None:
    """The first shard has leaves alone."""
    rng, where = np.random.default_rng(0), over_devices(2, AxisType.Explicit)
    batch = [binary_tree(rng, n) for n in (1, 1, 5, 9)]
    with jax.enable_x64(True):
        model = jf.compile(tree_block())
        schedule = model.schedule(batch, sharding=where)
        assert [x.counts.tolist()[-1] > 0 for x in schedule.parts] == [False, True]
        agree(model, model.init(jax.random.key(0)), batch, 1e-12, sharding=where)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.name)
def test_over_two_axes_and_beside_another(kind: AxisType) -> None:
    """Examples are dealt along some axes of a mesh; a function may use others."""
    mesh = jax.make_mesh((2, 2, 2), ('data', 'model', 'more'), (kind,) * 3)
    model = jf.compile(tree_block())
    params, batch = model.init(jax.random.key(0)), forest(5, 9)
    agree(model, params, batch, sharding=NamedSharding(mesh, jax.P(('data', 'more'))))
    with jax.set_mesh(mesh):
        agree(model, params, batch, sharding=jax.P('more'))


@pytest.mark.sampled(1)
@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.name)
def test_parameters_in_parts(kind: AxisType) -> None:
    """What is spread over the devices is gathered; where types say how arrays lie, the
    gradients lie likewise."""
    model = jf.compile(tree_block())
    params = model.init(jax.random.key(0))
    where = over_devices(2, kind)

    def lie(x: Any) -> Any:
        even = x.ndim and x.shape[0] % 2 == 0
        return NamedSharding(where.mesh, jax.P('data') if even else jax.P())

    places = jax.tree.map(lie, params)
    assert any(x.spec == jax.P('data') for x in jax.tree.leaves(places))
    spread = jax.device_put(params, places)
    batch = forest(4, 9)

    def grad(params: Any, schedule: Any) -> Any:
        return jax.grad(batched_loss, has_aux=True)(params, model, schedule)[0]

    got = jax.jit(grad)(spread, model.schedule(batch, sharding=where))
    close(got, interpreter.called(grad, params, model.schedule(batch)), 1e-5)
    if kind == AxisType.Explicit:
        same = jax.tree.map(
            lambda x, y: x.sharding.is_equivalent_to(y, x.ndim), got, places
        )
        assert all(jax.tree.leaves(same))


@pytest.mark.sampled(1)
@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize('other', [AxisType.Auto, AxisType.Explicit])
def test_parameters_in_parts_along_another_axis(
    kind: AxisType, other: AxisType
) -> None:
    """They are gathered, too, before any loop: shards have loops of different lengths,
    in which their devices must not wait for each other."""
    mesh = jax.make_mesh((2, 2), ('data', 'model'), (kind, other))
    where = NamedSharding(mesh, jax.P('data'))
    model = jf.compile(tree_block())
    params = model.init(jax.random.key(0))
    spread = jax.device_put(params, NamedSharding(mesh, jax.P('model')))

    def step(params: Any, schedule: Any) -> Any:
        def loss(params: Any) -> Any:
            values = model.apply(params, schedule)
            return jnp.where(schedule.mask[:, None], values**2, 0).sum()

        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda x, g: x - 0.1 * g, params, grads)

    rng = np.random.default_rng(0)
    batch = [binary_tree(rng, n) for n in (2, 2, 30, 9)]
    got = jax.jit(step)(spread, model.schedule(batch, sharding=where))
    close(got, interpreter.called(step, params, model.schedule(batch)), 1e-5)


@pytest.mark.parametrize('options', [{}, {'reproducible': True}])
def test_parameters_on_an_explicit_mesh_without_shards(options: Any) -> None:
    """As those that were trained on several devices: all devices compute all of it."""
    mesh = jax.make_mesh((4,), ('data',))
    model = jf.compile(tree_block(), **options)
    params, batch = model.init(jax.random.key(0)), forest(3, 5)
    spread = jax.device_put(params, NamedSharding(mesh, jax.P()))
    schedule = model.schedule(batch)

    def loss(params: Any, schedule: Any) -> Any:
        return jnp.sum(model.apply(params, schedule) ** 2)

    close(model.apply(spread, schedule), model.apply(params, schedule), 1e-6)
    close(model.predict(spread, batch), model.predict(params, batch), 1e-6)
    serve = model.precompile(model.apply, spread, schedule.capacity)
    close(serve(spread, schedule), model.apply(params, schedule), 1e-6)
    grads = jax.jit(jax.grad(loss))
    close(grads(spread, schedule), grads(params, schedule), 1e-5)


# ---- training ------------------------------------------------------------------------


@jax.enable_x64(True)  # each step carries the rounding of those before on
def test_training_on_devices_is_training_on_one() -> None:
    """The same step, the same batches of any source, the same parameters."""
    model = jf.compile(tree_block())
    data = forest(22, 9)
    targets = np.cos(np.arange(len(data)))

    @jax.jit
    def step(params: Any, schedule: Any, wanted: Any, mask: Any) -> Any:
        def loss(params: Any) -> Any:
            leaves = jax.tree.leaves(model.apply(params, schedule))
            errors = sum(jnp.square(x.sum(-1) - wanted) for x in leaves)
            return jnp.where(mask, errors, 0).sum()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda x, g: x - 0.1 * g, params, grads), value

    mask_of = jax.jit(lambda schedule: schedule.mask)

    def train(where: Any, source: Any) -> Any:
        params, values = model.init(jax.random.key(0)), []
        if where is not None:
            params = jax.device_put(params, NamedSharding(where.mesh, jax.P()))
        for batch in model.batches(source, 8, sharding=where):
            assert batch.mask.tolist() == mask_of(batch.schedule).tolist()
            assert batch.mask.sum() == batch.count
            wanted = targets[batch.indices]
            params, value = step(params, batch.schedule, wanted, batch.mask)
            values.append(float(value))
        return params, values

    corpus, where = model.trace(data), over_devices(4)
    want = train(None, corpus)
    model.reserve(corpus.capacities(8, sharding=where))
    for source in (corpus, data, iter(data)):
        close(train(where, source), want, 1e-5)


def test_the_state_of_a_run_knows_no_shards() -> None:
    """A run on one device goes on where one on four stopped."""
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    corpus = model.trace([[k] for k in range(24)])
    one = model.batches(corpus, 8, shuffle=0)
    four = model.batches(corpus, 8, shuffle=0, sharding=over_devices(4))
    next(four)
    one.restore(four.state())
    assert sorted(next(one).indices) == sorted(next(four).indices)


# ---- how work is shared out ----------------------------------------------------------


def test_examples_are_dealt_evenly() -> None:
    """Of 256 examples with skewed numbers of nodes, at most a hundredth more."""
    rng = np.random.default_rng(0)
    shards = make_shards(over_devices(8))
    work = (1 + 20 * rng.gamma(1, size=256)).astype(int)
    deal = assign_evenly(shards, 32, work.tolist())
    loads = np.array([work[part].sum() for part in deal.examples])
    assert loads.max() <= 1.01 * loads.mean()
    assert [*map(len, deal.examples)] == [32] * 8
    assert sorted(np.concatenate(deal.examples)) == list(range(256))
    again = assign_evenly(shards, 32, work.tolist())
    assert [*map(list, again.examples)] == [*map(list, deal.examples)]


@given(st.lists(st.integers(0, 9), max_size=24), st.integers(1, 4))
def test_no_shard_has_more_examples_than_rows(work: list[int], count: int) -> None:
    shards = make_shards(over_devices(count))
    rows = -(-len(work) // count) + 1
    for deal in (
        assign_evenly(shards, rows, work),
        assign_in_order(shards, rows, len(work)),
    ):
        every = np.concatenate(deal.examples)
        assert sorted(every) == list(range(len(work)))
        assert max(map(len, deal.examples)) <= rows
        order, mask = deal.of_rows
        assert len(order) == len(mask) == rows * count
        assert order[mask].tolist() == every.tolist()


@pytest.mark.parametrize('count', [200, pytest.param(1000, marks=pytest.mark.long)])
def test_many_batches_compile_few_programs(count: int) -> None:
    """The room is the largest that any shard needs, and kept; none is made late."""
    model, where, rng = jf.compile(tree_block()), over_devices(8), np.random.default_rng
    corpus, draw, programs = model.trace(forest(1000, 9), progress=False), rng(1), []
    for _ in range(count):
        chosen = draw.integers(0, 1000, draw.integers(1, 65)).tolist()
        corpus.schedule(chosen, size=64, sharding=where)
        programs.append(model.programs)
    assert programs[20] == programs[-1] <= 4


# ---- ahead of time -------------------------------------------------------------------


def test_a_step_is_compiled_ahead_of_time() -> None:
    model = jf.compile(tree_block())
    corpus, where = model.trace(forest(20, 9)), over_devices(2)
    params = model.init(jax.random.key(0))
    room = corpus.capacities(8, sharding=where)
    step = model.precompile(model.apply, params, room)
    for batch in model.batches(corpus, 8, sharding=where):
        got = step(params, batch.schedule)
        close(got, model.apply(params, batch.schedule), 1e-6)
    assert model.programs == 1
    planned = model.batches(corpus, 8, sharding=where).capacities
    assert planned | room == room
    assert corpus.schedule([3, 5], size=8, sharding=where).spec in step.specs
    message = (
        'expected a schedule of 2 shards over data of '
        f'{where.mesh}, for which the step was compiled, got one of none: make it with '
        f'`sharding={where}`'
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        step(params, corpus.schedule([0, 1], size=8))


def test_a_schedule_tells_of_its_shards() -> None:
    model = jf.compile(tree_block())
    schedule = model.schedule(forest(6, 9), sharding=over_devices(4))
    one = model.schedule(forest(6, 9))
    assert repr(schedule) == (
        f'Schedule(8 examples, 4 shards, {one.counts.sum()} nodes, depth {one.depth})'
    )
    text = model.explain(schedule)
    assert 'shard  examples  nodes  depth' in text
    assert re.search(r'the fullest shard has \d\.\d\d times the mean', text)
    assert schedule.counts.tolist() == one.counts.tolist()


# ---- mistakes ------------------------------------------------------------------------

OTHERS = [
    NamedSharding(over_devices(2).mesh, x) for x in (jax.P(None, 'data'), jax.P())
]
ALONE = (
    'expected `sharding` of the axis of examples alone, over axes of its mesh, '
    "jax.P('data'), got "
)


@pytest.mark.parametrize(
    ('where', 'error', 'message'),
    [
        (
            'data',
            TypeError,
            "expected `sharding` as a NamedSharding or a PartitionSpec, got 'data': "
            'pass `NamedSharding(mesh, jax.P("data"))`',
        ),
        (
            jax.P('data'),
            ValueError,
            "expected `sharding` on a mesh of devices, got P('data',) without one: "
            'pass `NamedSharding(mesh, spec)`, or call `jax.set_mesh(mesh)` before',
        ),
        *((x, ValueError, f'{ALONE}{x.spec!r}') for x in OTHERS),
    ],
)
def test_what_is_no_sharding(where: Any, error: Any, message: str) -> None:
    model = jf.compile(jf.Scalar())
    for call in (
        lambda: model.schedule([1, 2], sharding=where),
        lambda: model.trace([1, 2]).schedule([0], sharding=where),
        lambda: model.trace([1, 2]).capacities(2, sharding=where),
        lambda: model.batches([1, 2], 2, sharding=where),
    ):
        with pytest.raises(error, match=re.escape(message)):
            call()


def test_rows_that_cannot_be_shared_out() -> None:
    model = jf.compile(jf.Scalar())
    expected = 'as a multiple of 4, the number of shards, got 6: pass 8'
    with pytest.raises(ValueError, match=f'expected `size` {expected}'):
        model.schedule([1, 2], size=6, sharding=over_devices(4))
    for call in (
        lambda: model.batches([1, 2], 6, sharding=over_devices(4)),
        lambda: model.trace([1, 2]).capacities(6, sharding=over_devices(4)),
    ):
        with pytest.raises(ValueError, match=f'expected `batch_size` {expected}'):
            call()
    few = 'expected at most 4 examples, as `size` says, got 5'
    with pytest.raises(ValueError, match=few):
        model.schedule([1] * 5, size=4, sharding=over_devices(4))


def test_capacities_of_other_shards() -> None:
    corpus = jf.compile(jf.Scalar()).trace([1, 2])
    message = 'expected capacities of the same shards, got 2 shards over data of'
    with pytest.raises(ValueError, match=message):
        _ = corpus.capacities(2, sharding=over_devices(2)) | corpus.capacities(2)


def test_results_on_a_mesh_whose_types_say_how_arrays_lie() -> None:
    """Of schedules without `sharding=`: sequences, metrics, draws, external arrays."""

    def noise(x: Any, key: Any) -> Any:
        return x + jax.random.normal(key, x.shape)

    drawn = jf.Function(noise, rngs='key')
    items = jf.Map(jf.External('rows', 2) >> drawn)
    seen = jf.Map(jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0))
    model = jf.compile(items >> seen)
    external = {'rows': jnp.arange(8.0).reshape(4, 2)}

    def run() -> Any:
        schedule = model.schedule([[0, 1, 3], [], [2]])

        @jax.jit
        def numbers(made: jf.Ragged, seen: jf.MetricValues) -> Any:
            mean = schedule.mean(jnp.arange(3.0)[:, None] * made.values[:3])
            return made.values, made.lengths, seen.sum(), mean

        made, metrics = model.apply({}, schedule, external, rngs=jax.random.key(0))
        return jax.device_get(numbers(made, metrics['seen']))

    want = run()
    mesh = jax.make_mesh((2,), ('data',), (AxisType.Explicit,))
    with jax.set_mesh(mesh):
        close(run(), want, 1e-6)


def test_a_mesh_with_manual_axes() -> None:
    mesh = jax.make_mesh((4,), ('data',), (AxisType.Manual,))
    with pytest.raises(ValueError, match='expected a mesh of automatic or explicit'):
        jf.compile(tree_block()).schedule(
            [1], sharding=NamedSharding(mesh, jax.P('data'))
        )
