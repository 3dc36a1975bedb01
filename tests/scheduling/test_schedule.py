# SPDX-License-Identifier: Apache-2.0
"""A schedule says what its graph says: rows, tiles, consumers, capacities."""

from __future__ import annotations

import operator
import os
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary, binary_tree, chain, dense_cell, tree_block
from expressions import Expression, expressions
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import in_loops
from readings import (
    Reading,
    check,
    check_constants,
    check_consumers,
    check_fixed,
    check_inputs,
    read,
    reading,
)

import jfold as jf
from jfold.data.scheduler import build
from jfold.program.operations import Program
from jfold.scheduling.demands import capacity, demands
from jfold.scheduling.fill import fill
from jfold.scheduling.growth import COARSE, FINE, Stage, grow
from jfold.scheduling.index_array import SUM_ARITY, Section
from jfold.scheduling.selections import select
from jfold.scheduling.spec import COUNTED, FIXED, Capacity, Spec
from jfold.scheduling.tiles import cores, empty_fraction, tiles
from jfold.tracing.record import trace

ONE = np.ones((), np.float32)
any_expression = st.sampled_from(['whole', 'tree']).flatmap(expressions)


def tight(program: Program, examples: list[Any], strategy: str = COUNTED) -> Reading:
    """The schedule of a batch in the least capacity, without room to spare."""
    graph = trace(program, examples)
    selection = select(program, graph)
    need = capacity(program, demands(selection), len(examples))
    least = replace(need, levels=max(need.levels, 1), stages=max(need.stages, 1))
    spec = Spec(program, least, strategy=strategy)
    return read(graph, build([selection], spec))


def test_depth_counts_levels() -> None:
    """Of what runs: neither paths through blocks, nor what is only passed on."""
    x = jf.Scalar()
    for block, example, depth in (
        (x, 1.0, 0),
        (x >> jnp.tanh >> jnp.exp, 1.0, 1),  # in a row, as one
        (jf.AllOf(x >> jnp.tanh, x >> jnp.exp), 1.0, 2),  # beside each other
        (binary(x >> jnp.tanh, jnp.add), ((1.0, 2.0), 3.0), 3),
        (jf.Map(x) >> jf.Sum(), [1.0] * 8, 1),  # eight neighbours at once
    ):
        assert jf.compile(block).schedule([example]).depth == depth


def test_fixed_steps_fit_the_least_capacity() -> None:
    first, second = (jf.Function(f, name=f.__name__) for f in (jnp.sin, jnp.cos))
    tree = jf.ForwardDeclaration()
    below = jf.GetItem(1) >> tree()
    turn = jf.OneOf(jf.GetItem(0), {'sin': below >> first, 'cos': below >> second})
    tree.resolve_to(jf.OneOf(type, {float: jf.Scalar(), tuple: turn}))
    rng = np.random.default_rng(0)
    examples: list[Any] = [float(n) for n in range(300)]
    for depth in range(9):
        chosen = rng.choice(['sin', 'cos'], 300 >> depth).tolist()
        examples[: len(chosen)] = zip(chosen, examples, strict=False)
    check_fixed(tight(jf.compile(tree()).program, examples, FIXED))


# ---- properties ----------------------------------------------------------------------


@settings(max_examples=drawn(5, 80))
@given(any_expression, st.integers(0, 99), st.integers(0, 2))
def test_schedules_of_expressions(
    expression: Expression, seed: int, spare: int
) -> None:
    """With spare rows, in the least capacity, and in a fixed number of steps."""
    examples = expression.batch(np.random.default_rng(seed), 3)
    model = in_loops(expression.block)
    check(reading(model, examples, 3 + spare))
    check(tight(model.program, examples))
    r = reading(jf.Model(model.block, model.program, None, strategy=FIXED), examples)
    check_fixed(r)
    check_constants(r)
    check_inputs(r)
    check_consumers(r)


@pytest.mark.parametrize('leaves', [(1,), (700,), (3, 1, 90, 64, 65)], ids=str)
def test_schedules_of_trees(leaves: tuple[int, ...]) -> None:
    """Levels wider than the widest tile, and narrower than the narrowest."""
    rng = np.random.default_rng(0)
    trees = [binary_tree(rng, n) for n in leaves]
    check(reading(jf.compile(tree_block()), trees))
    check_fixed(reading(in_loops(tree_block(), strategy=FIXED), trees))


@pytest.mark.parametrize('uses', [1, 4, 5, 16, 17, 64, 65, 300])
def test_schedules_of_wide_uses(uses: int) -> None:
    """More than `SUM_ARITY` uses of a value are summed in a tree."""
    items = jf.AllOf(*[jf.Identity()] * uses)
    fold = jf.Fold(dense_cell(2), jf.Zeros([2]))
    layer = jf.Function(lambda p, x: p * x, lambda key, x: jnp.ones(2))
    once = jf.Vector(2) >> layer >> items >> fold
    model = in_loops(jf.Map(once) >> jf.Sum())
    check(reading(model, [[[1, 2]] * n for n in (0, 1, 3, 70)]))


def test_schedules_of_sums_of_sums() -> None:
    """What the first reads has the cotangent of the last."""
    block: jf.Block = jf.Scalar() >> jf.Function(lambda p, x: p * x, lambda *_: ONE)
    example: Any = 1.0
    for _ in range(6):
        block, example = jf.Map(block) >> jf.Sum(), [example] * 2
    check(reading(in_loops(block), [example]))


def test_schedules_of_wide_uses_at_many_levels() -> None:
    """Every state of a fold is used by the next, by four more and by the metric."""
    layer = jf.Function(lambda p, x, y: p * x + y, lambda key, *x: jnp.ones(2))
    sixfold = jf.AllOf(*[jf.Identity()] * 6) >> jf.Fold(layer, jf.Zeros([2]))
    observed = jf.AllOf(jf.Identity(), jf.Metric('m')) >> jf.GetItem(0)
    fold = jf.Fold(layer >> observed >> sixfold, jf.Zeros([2]))
    model = jf.compile(jf.Map(jf.Vector(2)) >> fold)
    check(reading(model, [[[1, 2]] * n for n in (0, 1, 3, 40)]))


def test_stacked_schedules_are_no_schedule_of_one_batch() -> None:
    """They print as what they are, and whatever takes one schedule says so."""
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    stacked = jf.Schedule.stack(model.schedules([[[1], [2, 3]], [[], [4]]]))
    assert repr(stacked) == 'Schedule(2 examples, stacked [2])'
    twice = jax.tree.map(lambda x: jnp.stack([x] * 3), stacked)
    assert repr(twice) == 'Schedule(2 examples, stacked [3, 2])'
    seen = jax.vmap(lambda x: (x.mask, x.mean(jnp.arange(2.0))))(stacked)
    assert [x.tolist() for x in seen] == [[[True, True]] * 2, [0.5, 0.5]]
    expected = r'expected `schedule` as that of one batch, got \[2\] of them stacked'
    for use in (
        lambda: model.apply({}, stacked),
        lambda: model.explain(stacked),
        lambda: stacked.mean(jnp.ones(2)),
        lambda: stacked.mask,
        lambda: stacked.counts,
        lambda: stacked.depth,
    ):
        with pytest.raises(ValueError, match=expected):
            use()


def test_arrays_of_another_form_are_no_schedule() -> None:
    model = jf.compile(jf.Map(jf.Scalar()))
    schedule = model.schedule([[1.0, 2.0], [3.0]])
    indices, constants = np.asarray(schedule.indices), schedule.constants
    form = f'int32[{len(indices)}]'
    for wrong, want, got in (
        ((indices[:3], constants), form, 'int32[3]'),
        ((indices.astype('float32'), constants), form, f'float32[{len(indices)}]'),
        ((indices, tuple(x[:1] for x in constants)), 'float32[128]', 'float32[1]'),
    ):
        text = f'expected a schedule with an array {want}, got {got} there: '
        with pytest.raises(ValueError, match=re.escape(text)):
            model.apply({}, jf.Schedule(*wrong, schedule.spec))


def test_one_shape_of_a_schedule_is_told_from_another() -> None:
    """Also of as many nodes, examples and operations."""
    capacity = Capacity(1, 32, (128,), (128, 256), (1,), (0,), 0, ())
    other = replace(capacity, rows=(256, 128))
    program = jf.compile(jf.Scalar() >> jnp.sin >> jnp.cos).program
    one, two = (repr(Spec(program, x).key) for x in (capacity, other))
    assert one != two
    assert one.partition('(')[2] == two.partition('(')[2]


def test_an_empty_batch_has_a_schedule() -> None:
    check(reading(jf.compile(tree_block()), []))
    check(reading(jf.compile(tree_block()), [], size=2))


# ---- capacities ----------------------------------------------------------------------


def capacities(types: int = 2, operations: int = 2) -> st.SearchStrategy[Capacity]:
    """What batches may need."""

    def several(number: int, most: int = 5000) -> Any:
        return st.tuples(*[st.integers(0, most)] * number)

    return st.builds(
        Capacity,
        examples=st.just(4),
        levels=st.integers(0, 300),
        constants=several(types),
        rows=several(operations),
        fans=several(types, SUM_ARITY),
        sums=several(types),
        stages=st.integers(0, 5),
        metrics=several(1),
    )


def fits(need: Capacity, capacity: Capacity) -> bool:
    pairs = zip(need.dimensions(), capacity.dimensions(), strict=True)
    return all(a <= b for (_, a), (_, b) in pairs)


@given(
    st.lists(capacities(), min_size=1, max_size=8),
    st.sampled_from([(), (1,)]),
    st.sampled_from([Stage.OUTGROWN, Stage.GROWING]),
)
def test_capacities_only_grow(
    stream: list[Capacity], indexed: tuple[int, ...], stage: Stage
) -> None:
    """A capacity holds all that came before, and stays if the next one fits."""
    capacity: Capacity | None = None
    for need in (replace(x, indexed=indexed) for x in stream):
        if capacity is not None and capacity.holds(need):
            assert fits(need, capacity)
            continue
        before, capacity = capacity, grow(capacity, need, stage=stage)
        assert fits(need, capacity)
        assert capacity.holds(need)
        if before is not None:
            assert fits(before, capacity)
            assert not fits(need, before)


@given(capacities())
def test_capacities_have_room_to_spare(need: Capacity) -> None:
    """A batch larger by a tenth fits where the first did, if anything was there."""
    larger = replace(
        need,
        constants=tuple(n + n // 10 for n in need.constants),
        rows=tuple(n + n // 10 for n in need.rows),
        metrics=tuple(n + n // 10 for n in need.metrics),
    )
    assert grow(None, need).holds(larger)


@given(st.integers(128, 10**6))
def test_fine_sizes_leave_little_room(rows: int) -> None:
    """Where all of it is computed, no more than chance asks for."""
    need = Capacity(4, 1, (rows,), (rows,), (1,), (0,), 0, (rows,))
    more = {'rows': (0,)}
    assert grow(None, need, more).rows[0] <= rows * (1 + 1 / COARSE) + 1
    need = replace(need, indexed=(1,))
    assert rows <= grow(None, need, more).rows[0] <= rows * (1 + 1 / FINE) + 1


@given(st.integers(1, 10**6), st.integers(1, 100))
def test_what_is_too_small_grows_by_half(first: int, more: int) -> None:
    """So that a stream which grows slowly meets few shapes."""
    need = Capacity(4, 1, (first,), (first,), (1,), (0,), 0, (first,))
    before = grow(None, need)
    after = grow(before, replace(need, rows=(before.rows[0] + more,)))
    assert after.rows[0] >= 1.5 * before.rows[0] - 1


@given(capacities(), capacities())
def test_chance_decides_how_much_is_spared(need: Capacity, more: Capacity) -> None:
    """But no more than without it."""
    names = 'constants', 'rows', 'sums', 'metrics'
    capacity = grow(None, need, {name: getattr(more, name) for name in names})
    wide = grow(None, need)
    assert fits(need, capacity)
    assert fits(capacity, wide)
    for name in names:
        pairs = zip(getattr(need, name), getattr(more, name), strict=True)
        enough = tuple(a + min(b, a // 4) if a else 0 for a, b in pairs)
        assert all(map(operator.le, enough, getattr(capacity, name)))


def test_what_was_outgrown_spares_half() -> None:
    """In every dimension: more than chance was at work; then as much again, or what
    chance asks for."""
    none = {'constants': (0,), 'rows': (0, 0), 'sums': (0,), 'metrics': (0,)}
    need = Capacity(64, 9, (1024,), (1024, 2048), (1,), (0,), 0, (64,))
    first = grow(None, need, none)
    assert first.rows == need.rows
    more = replace(need, constants=(1025,))
    assert grow(first, more, none).rows == (1536, 3072)
    assert grow(first, more, stage=Stage.GROWING).rows == (2048, 4096)
    much = none | {'rows': (1, 9999)}
    assert grow(first, more, much).rows == (1536, 6144)


def test_batches_of_like_examples_spare_little() -> None:
    """As of 32 trees of 32 leaves, whatever their forms."""
    rng = np.random.default_rng(0)
    model = jf.compile(tree_block())
    for _ in range(5):
        schedule = model.schedule([binary_tree(rng, 32) for _ in range(32)])
        assert max(schedule.spec.capacity.rows) == 1024
    assert model.programs == 1


def test_batches_of_unlike_examples_spare_a_quarter() -> None:
    rng = np.random.default_rng(0)
    model = jf.compile(tree_block())
    sizes = rng.integers(1, 64, 32)
    schedule = model.schedule([binary_tree(rng, n) for n in sizes])
    leaves = int(sizes.sum())
    assert 1.25 * leaves <= max(schedule.spec.capacity.rows) <= 1.25 * 1.125 * leaves


def test_what_does_not_fit_a_section_is_refused() -> None:
    for wrong in (4,), (3, 1):
        with pytest.raises(AssertionError, match='jfold made a wrong schedule'):
            Section(0, (3,)).fill(np.zeros(10, np.int32), np.zeros(wrong), 0)


# ---- size ----------------------------------------------------------------------------


def adder() -> jf.Model:
    """Trees whose nodes add and so can be checked at any size."""

    def init(key: Any, *_: Any) -> Any:
        return jnp.ones(())

    add = jf.Function(lambda weight, x, y: weight * x + y, init, name='add')
    return jf.compile(binary(jf.Scalar(), add))


def total(tree: Any) -> int:
    waiting, result = [tree], 0
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple):
            waiting += each
        else:
            result += each
    return result


def evaluated(model: jf.Model, tree: Any) -> tuple[float, float]:
    schedule = model.schedule([tree])
    grad = jax.value_and_grad(lambda p: model.apply(p, schedule)[0])
    value, grads = grad(model.init(jax.random.key(0)))
    return float(value), float(grads['add'])


@pytest.mark.parametrize(
    ('length', 'rtol'), [(2000, 0), pytest.param(100_000, 1e-3, marks=pytest.mark.long)]
)
def test_a_long_chain(length: int, rtol: float) -> None:
    """No recursion follows the data; levels cost no more than their tiles."""
    value, grad = evaluated(adder(), chain(length))
    assert value == total(chain(length))
    leaves = np.array([0, *(i % 16 for i in range(length))], float)
    np.testing.assert_allclose(grad, np.cumsum(leaves)[:-1].sum(), rtol=rtol)


@pytest.mark.long
def test_a_million_nodes_in_one_example() -> None:
    tree = binary_tree(np.random.default_rng(0), 500_001, words=4)
    model = adder()
    schedule = model.schedule([tree])
    assert schedule.counts.tolist() == [500_000]
    value = model.apply(model.init(jax.random.key(0)), schedule)
    assert value.tolist() == [total(tree)]


@pytest.mark.parametrize('empty', [6, 2])
@pytest.mark.parametrize('widths', [(256, 64, 16), (128, 32, 8), (4,)])
def test_tiles_cover_all_rows(widths: tuple[int, ...], empty: int) -> None:
    """And no more than the narrowest could not avoid, or a wide tile may waste."""
    rows = np.arange(3 * widths[0])
    found = tiles(rows, widths, empty)
    wasted = found @ np.array(widths) - rows
    assert wasted.min() == 0
    assert wasted.max() < max(widths[0] // empty, widths[-1])


def test_nearly_full_tiles_on_one_core_half_full_ones_on_several() -> None:
    rows, widths = np.array([70]), (128, 32, 8)
    assert tiles(rows, widths, empty_fraction(cores=1)).tolist() == [[0, 2, 1]]
    assert tiles(rows, widths, empty_fraction(cores=2)).tolist() == [[1, 0, 0]]


def test_devices_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """So tiles are those of one core on each of two devices of two cores."""
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {0, 1}, raising=False)
    assert [cores(n) for n in (1, 2, 8)] == [2, 1, 1]
    model = jf.compile(tree_block())
    graph = trace(model.program, [chain(40)] * 20)
    selection = select(model.program, graph)
    spec = Spec(model.program, capacity(model.program, demands(selection), 20))
    one, two = fill(selection, spec)[0], fill(selection, spec, devices=2)[0]
    assert (one != two).any()
    np.testing.assert_array_equal(two, fill(selection, spec, devices=4)[0])


def test_the_parts_of_its_pytree_are_named() -> None:
    """For errors of JAX, and for tables of arguments."""
    schedule = jf.compile(jf.Scalar()).schedule([1])
    paths = jax.tree_util.tree_leaves_with_path(schedule)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    assert names == ['.indices', '.constants[0]']
