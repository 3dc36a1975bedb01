# SPDX-License-Identifier: Apache-2.0
"""How many programs streams of batches need, and that no number of them is an error."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from binary_trees import binary_tree, chain, tree_block
from checking import number, numbers
from compilations import compilations
from jax.sharding import NamedSharding
from looped import compiled, in_loops
from meshes import over_devices

import jfold as jf
from jfold.base.memo import LONG, MANY, Recent
from jfold.data.batches import PLANNED
from jfold.scheduling.spec import SAVE_PRODUCTS

LOOPS: tuple[str | None, ...] = 'counted', 'fixed'
WITH_LOOPS = 'folds', 'chains'  # cases that have loops in any case


def sums() -> jf.Block:
    return jf.Map(number >> jnp.sin) >> jf.Sum()


def fields(count: int) -> jf.Block:
    """Sums of several lists, each by a function of its own."""
    return jf.Record(
        {
            f'x{i}': jf.Map(number >> jf.Function(lambda x, i=i: x * i)) >> jf.Sum()
            for i in range(count)
        }
    )


@jf.compose
def attended(given: Any) -> Any:
    """A value that all items use."""
    x = numbers(given)
    weights = jf.Map(jnp.exp)(x)
    shares = jf.ZipWith(jnp.divide)(weights, jf.Broadcast()(jf.Sum()(weights)))
    return jf.Sum()(jf.ZipWith(jnp.multiply)(shares, x))


def folded() -> jf.Block:
    """As many levels as items."""
    cell = jf.Function(lambda state, x: jnp.tanh(state + x))
    return numbers >> jf.Fold(cell, jf.Zeros([]))


def nested() -> jf.Block:
    return jf.Map(sums() >> jnp.tanh)


def in_turn(n: int) -> Any:
    """Now one field is large, now the other."""
    return {f'x{i}': [1] * (n if n % 2 == i else 0) for i in range(2)}


Case = tuple[Callable[[], Any], Callable[[int], Any]]
CASES: dict[str, Case] = {
    'lists': (sums, lambda n: [1] * n),
    'lists of lists': (nested, lambda n: [[1, 2]] * n),
    'long lists in few': (nested, lambda n: [[1] * n] * 3),
    'fields in turn': (lambda: fields(2), in_turn),
    'uses': (lambda: attended, lambda n: [1] * n),
    'folds': (folded, lambda n: [1] * n),
    'chains': (tree_block, chain),
}


def by_one() -> Iterator[int]:
    return iter(range(1, 400))


def by_doubling() -> Iterator[int]:
    return (1 << k for k in range(14))


def alternating() -> Iterator[int]:
    return itertools.chain.from_iterable((3, 200 + 30 * k) for k in range(30))


GROWING = by_one, by_doubling, alternating


@pytest.mark.sampled(8)
@pytest.mark.parametrize('growing', range(len(GROWING)))
@pytest.mark.parametrize('case', CASES)
def test_streams_that_grow(case: str, growing: int) -> None:
    """Twelve programs at most; no more rows than four times those of any batch."""
    # Each case grows in each way, with one strategy after another.
    strategies = *LOOPS, *[None] * (case not in WITH_LOOPS)
    strategy = strategies[([*CASES].index(case) + growing) % len(strategies)]
    make, data = CASES[case]
    model, most = compiled(make(), SAVE_PRODUCTS, strategy), 0
    for n in GROWING[growing]():
        schedule = model.schedule([data(n)])
        most = max(most, int(schedule.counts.max()))
        assert max(schedule.capacity.rows) <= 4 * max(most, 64)
    assert model.programs <= 12


def kinds(count: int, in_turns: bool) -> jf.Block:
    """Functions of a number, of which the example names one, or several in turn."""
    value = jf.ForwardDeclaration()
    item = jf.OneOf(type, {tuple: value(), float: number}) if in_turns else number
    functions = [
        jf.Function(lambda w, x, k=k: jnp.sin(w * x + k), lambda key, x: jnp.ones(()))
        for k in range(count)
    ]
    cases = {
        k: jf.GetItem(1) >> item >> function for k, function in enumerate(functions)
    }
    value.resolve_to(jf.OneOf(jf.GetItem(0), cases))
    return value()


@pytest.mark.parametrize('strategy', [None, *LOOPS])
def test_batches_of_one_kind_each(strategy: str | None) -> None:
    """After the third that no batch had, there is room for all: four programs."""
    model = jf.compile(kinds(5, strategy is not None), strategy=strategy)
    batches = [[(k, (k, 0.5) if strategy else 0.5)] * 3 for k in [*range(5)] * 2]
    for batch in batches:
        model.schedule(batch)
    assert model.programs == 4
    params = model.init(jax.random.key(0))
    agree(model, params, batches[0], 1e-5)  # most operations have room, and no row


def test_lists_of_a_server_that_grow() -> None:
    """In batches of several sizes, dealt to devices or not: twelve for each."""
    sharding = over_devices()
    model = jf.compile(sums())
    for n in range(1, 4000, 59):
        model.schedule([[1] * n] * 2)
        model.schedule([[1] * n] * 4, sharding=sharding)
    assert model.programs <= 2 * 12


@pytest.mark.parametrize('compiles', [jf.compile, in_loops])
def test_unlike_fields_of_a_stream(compiles: Callable[[Any], jf.Model]) -> None:
    """Twelve of them that vary apart need four programs, as one does."""
    rng = np.random.default_rng(0)

    def example() -> Any:
        sizes = rng.integers(1, 40, 12) * (rng.random(12) < 0.3)
        return {f'x{i}': [1] * int(n) for i, n in enumerate(sizes)}

    model = compiles(fields(12))
    for _ in range(100):
        model.schedule([example() for _ in range(16)])
    assert model.programs <= 4


# ---- exploring -----------------------------------------------------------------------


def test_any_number_of_sizes(caplog: pytest.LogCaptureFixture) -> None:
    """As in a notebook; a warning says once what to do."""
    model = jf.compile(sums())
    with caplog.at_level(logging.WARNING, logger='jfold'):
        schedules = [model.schedule([[0]] * size) for size in range(1, 13)]
        model.schedule([[0] * 500])
    for size in (1, 12):
        assert model.apply({}, schedules[size - 1]).shape == (size,)
    assert model.predict({}, [[0], [0]], batch_size=8).tolist() == [0, 0]
    assert model.programs == 13
    (told,) = caplog.records
    assert told.getMessage() == (
        'program 9, for batches of 9 examples: no batch had 9 examples before. That is '
        'one for each size of batches, 1, 2, 3, 4, 5, 6, 7, 8, 9: give them one size, '
        '`model.schedule(examples, size=9)`, and they share programs'
    )


def test_any_number_of_sizes_of_shards(caplog: pytest.LogCaptureFixture) -> None:
    """The warning counts examples, not the rows of a shard."""
    model = jf.compile(sums())
    sharding = NamedSharding(jax.make_mesh((4,), ('data',)), jax.P('data'))
    with caplog.at_level(logging.WARNING, logger='jfold'):
        for size in range(4, 40, 4):
            model.schedule([[0]] * size, sharding=sharding)
    (told,) = caplog.records
    assert '4, 8, 12, 16, 20, 24, 28, 32, 36: give them one size' in told.getMessage()
    model.schedule([[0]], sharding=sharding, size=36)


def test_what_to_reserve_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    model = jf.compile(sums())
    with caplog.at_level(logging.WARNING, logger='jfold'):
        for k in range(20):
            model.schedule([[0] * 2**k])
    assert [x.getMessage() for x in caplog.records] == [
        'program 9, for batches of 1 examples: these grew: constants[0] from 8320 to '
        '16386, rows[0] from 8192 to 16384, rows[3] from 1184 to 2340, summands[1] '
        'from 8192 to 16384. Each takes '
        'time to compile: reserve what the largest batches will need, '
        '`model.reserve(model.trace(largest).capacities(batch_size))`, before the first'
    ]


def test_prefixes_of_a_sentence() -> None:
    """Greedy decoding: each prefix is an example."""
    model = jf.compile(folded())
    found = [model.predict({}, [[0.1] * n], batch_size=1) for n in range(1, 60)]
    expected = functools.reduce(lambda x, _: float(np.tanh(x + 0.1)), range(59), 0.0)
    assert found[-1][0] == pytest.approx(expected, rel=1e-4)
    assert model.programs <= 3


def test_predictions_have_no_limit() -> None:
    """Their programs do not count, are there for others, and take what there is."""
    model, rng = jf.compile(tree_block(4), max_programs=2), np.random.default_rng(0)
    params, data = model.init(jax.random.key(0)), [binary_tree(rng, 9)] * 9
    model.schedule(data[:4])
    model.predict(params, data, batch_size=4)
    assert model.programs == 1
    expected = np.array([model.eval(data[0], params)] * 9)
    for size, source in (2, data), (3, iter(data)), (5, model.trace(data)):
        close(model.predict(params, source, batch_size=size), expected, 1e-5)
    assert model.programs == 4
    for size in (2, 3, 5, 6):
        model.schedule(data[:1], size=size)
    with pytest.raises(jf.ProgramBudgetError, match='at most 2 programs'):
        model.schedule(data[:7])
    traced = model.tracer()(data)
    close(model.predict(params, traced, batch_size=9), expected, 1e-5)


# ---- what is dropped -----------------------------------------------------------------


class Made:
    """What weak references can point to."""


def test_what_is_not_used_for_long_is_dropped() -> None:
    """Beyond a few, the oldest first; all that is in use stays."""
    recent = Recent[Made]()
    found = [weakref.ref(recent.get(n, Made)) for n in range(2 * MANY)]
    assert None not in [x() for x in found]
    assert recent.get(3, Made) is found[3]()
    for _ in range(LONG + 1):
        recent.get(4, Made)
    recent.get('new', Made)
    gc.collect()
    dropped = [n for n, x in enumerate(found) if x() is None]
    assert len(recent) == MANY
    assert dropped == [n for n in range(MANY + 3) if n not in {3, 4}]


def test_programs_that_are_dropped_are_compiled_again() -> None:
    """Those of a model that is applied by itself, and of a step compiled ahead; what
    functions under `jit` have compiled stays."""
    model = jf.compile(sums())
    schedules = [model.schedule([[0.5]] * n) for n in range(1, MANY + 3)]

    @jax.jit
    def step(schedule: jf.Schedule) -> Any:
        return model.apply({}, schedule)

    def run(found: list[jf.Schedule]) -> int:
        with compilations('execute') as compiled:
            for each in found:
                close(model.apply({}, each), step(each), 1e-6)
        return len(compiled)

    assert run(schedules) == len(schedules)
    assert run(schedules * 2) == 0
    assert run(schedules[-1:] * (LONG + 1)) == 0
    assert run([model.schedule([[0.5]] * 20)]) == 1
    assert run(schedules[-1:] + schedules[:1]) == 1
    assert step._cache_size() == len(schedules) + 1  # type: ignore[attr-defined]


# ---- corpora -------------------------------------------------------------------------


def trees(count: int = 200) -> list[Any]:
    """Of any sizes; the last is the largest."""
    rng = np.random.default_rng(0)
    sizes = [*rng.integers(1, 60, count - 1).tolist(), 300]
    return [binary_tree(rng, n) for n in sizes]


OPTIONS: dict[str, Any] = {
    'in order': {},
    'shuffled': {'shuffle': 0},
    'of few nodes': {'max_nodes': 700},
    'dealt': {'shuffle': 1, 'sharding': over_devices()},
}


@pytest.mark.parametrize('strategy', LOOPS)
@pytest.mark.parametrize('options', OPTIONS)
def test_batches_of_a_corpus_share_a_program(strategy: str, options: str) -> None:
    """Their needs are known, so room for all is reserved before the first."""
    model = jf.compile(tree_block(4), max_programs=1, strategy=strategy)
    corpus = model.trace(trees())
    run = model.batches(corpus, 8, epochs=3, **OPTIONS[options])
    specs = {batch.schedule.spec for batch in run}
    assert len(specs) == model.programs == 1
    room = model.reserve(run.capacities)
    assert room == specs.pop().capacity
    exact = max(run.capacities.rows)
    assert exact <= max(room.rows) <= 1.125 * exact


def test_what_is_reserved_for_a_corpus_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = jf.compile(tree_block(4))
    corpus = model.trace([chain(n) for n in range(100)])
    with caplog.at_level(logging.INFO, logger='jfold'):
        for _ in range(2):
            assert len(list(model.batches(corpus, 8))) == 13
    assert [(x.levelname, x.getMessage()) for x in caplog.records] == [
        (
            'INFO',
            'program 1, for batches of 8 examples: reserved 1,536 nodes in 128 levels '
            'for all batches of 100 examples',
        )
    ]


def test_long_runs_of_a_corpus() -> None:
    """Of so many batches, or without an end, some are looked at beforehand, with the
    largest among them."""
    model = jf.compile(sums(), max_programs=1)
    rng = np.random.default_rng(0)
    corpus = model.trace([[0] * n for n in rng.integers(1, 60, 2 * PLANNED).tolist()])
    for options in ({'epochs': None, 'shuffle': 1}, {'epochs': 3, 'shuffle': 2}, {}):
        run: Any = model.batches(corpus, 2, prefetch=0, **options)
        assert len(list(itertools.islice(run, 3 * PLANNED))) >= PLANNED
    assert model.programs == 1
    other = jf.compile(sums(), max_programs=1)
    longest = other.trace([[0] * 4000] + [[0]] * 3 * PLANNED)
    assert len(list(other.batches(longest, 3))) == PLANNED + 1


def test_what_was_reserved_before_a_run_is_used() -> None:
    """As much as batches of training and validation need; nothing is added."""
    model = jf.compile(tree_block(4))
    large, small = model.trace(trees()), model.trace(trees(40))
    parts = large, small
    runs = [functools.partial(model.batches, x, 8, shuffle=1) for x in parts]
    room = model.reserve(runs[0]().capacities | runs[1]().capacities)
    for run in runs:
        assert {batch.schedule.capacity for batch in run()} == {room}
    assert model.programs == 1


def test_no_room_for_a_corpus_is_an_error_in_its_place() -> None:
    model = jf.compile(sums(), max_programs=1)
    corpus = model.trace([[0], [0] * 5000])
    model.schedule([[0]])
    run = model.batches(corpus, 1)
    assert next(run).count == 1
    with pytest.raises(jf.ProgramBudgetError, match='rows'):
        next(run)
