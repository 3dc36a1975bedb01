# SPDX-License-Identifier: Apache-2.0
"""What functions draw: a key a node, whatever else is in the batch, however it runs."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from pathlib import Path
from typing import Any

import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close, of_rows, same_results
from binary_trees import binary
from checking import does_not_compile, refuses
from drawing_models import (
    CASES,
    KEY,
    ROTATED,
    TREES,
    Halves,
    compiled,
    masked,
    nested,
    noise,
    noisy,
    state,
    tree_block,
    weights,
)
from extent import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from looped import in_loops
from meshes import over_devices

import jfold as jf
from jfold.scheduling.spec import STRATEGIES
from jfold.types import KeyType

# ---- the same as one by one ----------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(('name', 'residuals', 'strategy'), ROTATED)
def test_values_and_gradients_are_those_of_eval(
    name: str, residuals: str, strategy: str
) -> None:
    """Options take turns."""
    model, params, examples = compiled(name, residuals=residuals, strategy=strategy)
    agree(model, params, examples, 1e-4, rngs=KEY, forward=True)


@pytest.mark.parametrize('name', CASES)
def test_nothing_is_drawn_where_all_is_deterministic(name: str) -> None:
    """Here the twin shares nothing with the source."""
    model, params, examples = compiled(name)
    values = model.apply(params, model.schedule(examples), deterministic=True)
    found = [model.eval(x, params, deterministic=True) for x in examples]
    same_results(*paired(model, values), [paired(model, x) for x in found], 1e-5)


def paired(model: jf.Model, made: Any) -> Any:
    """Values and metrics, of which there may be none."""
    return made if model.program.metric_results else (made, {})


def same_by_ids(
    model: jf.Model, params: Any, examples: list[Any], ids: list[int], **options: Any
) -> None:
    """What a batch gives with these identities is what `eval` does."""
    schedule = model.schedule(examples, **options)
    values = jax.device_get(model.apply(params, schedule, rngs=KEY, ids=np.array(ids)))
    pairs = zip(examples, ids, strict=True)
    found = [
        interpreter.called(lambda p, x=x, i=i: model.eval(x, p, rngs=KEY, id=i), params)
        for x, i in pairs
    ]
    same_results(*paired(model, values), [paired(model, x) for x in found], 1e-4)


def drawn_alone(x: Any, dropout: Any) -> Any:
    """What is drawn, and nothing else."""
    return jax.random.uniform(dropout, x.shape)


def drawn_block(late: bool) -> jf.Block:
    """All numbers that are drawn in nested lists, by a metric; in order."""
    drawn = jf.Function(drawn_alone, rngs='dropout')
    seen = drawn >> jf.AllOf(jf.Metric('drawn'), jf.Identity()) >> jf.GetItem(1)
    block = jf.ForwardDeclaration(name='nested', output_type='float32')
    if late:
        up = jf.ForwardDeclaration(name='up')
        up.resolve_to(seen)
        pair = jf.AllOf(jf.GetItem(0) >> up(), jf.GetItem(1) >> block())
        step = pair >> jnp.add >> seen
        inner: jf.Block = jf.Fold(step, jf.Zeros('float32'))
    else:
        inner = jf.Map(block()) >> jf.Sum() >> seen
    block.resolve_to(jf.OneOf(type, {float: jf.Scalar() >> seen, list: inner}))
    return block()


MODELS = [jf.compile(drawn_block(late), max_programs=500) for late in (False, True)]


@settings(max_examples=drawn(5, 15))
@given(st.lists(nested, min_size=1, max_size=5), st.randoms(), st.booleans())
def test_each_example_draws_the_same_in_any_company(
    examples: list[Any], random: Any, late: bool
) -> None:
    model = MODELS[late]
    order = random.choices(range(len(examples)), k=4)
    ids = np.array(order)
    schedule = model.schedule([examples[i] for i in order], size=6)
    spare = np.concatenate([ids, ids[-1:], ids[-1:]])
    made = model.apply({}, schedule, rngs=KEY, ids=spare)
    rows = [metrics['drawn'] for _, metrics in of_rows(*made, range(4))]
    for row, example in zip(rows, order, strict=True):
        _, want = model.eval(examples[example], {}, rngs=KEY, id=example)
        assert sorted(map(float, row)) == sorted(map(float, want['drawn']))
        assert len(set(map(float, row))) == len(row)


def both_sizes(model: jf.Model, count: int) -> list[Any]:
    """What each of a batch of long lists draws."""
    lists = [[float(k) for k in range(n)] for n in (count, 3, 1)]
    return model.apply({}, model.schedule(lists), rngs=KEY).to_list()


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_tiles_change_nothing(strategy: str) -> None:
    block = jf.Map(jf.Scalar() >> jf.Function(drawn_alone, rngs='dropout'))
    model = in_loops(block, strategy=strategy)
    few, many = both_sizes(model, 5), both_sizes(model, 700)
    assert few[0] == many[0][:5]
    assert few[1:] == many[1:]
    other = jf.compile(block)
    assert both_sizes(other, 700) == many
    assert len(set(map(float, itertools.chain(*many)))) == 704


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ('count', 'kind'), [(2, AxisType.Explicit), (8, AxisType.Auto)]
)
def test_devices_change_nothing(count: int, kind: AxisType) -> None:
    model, params, examples = compiled('tree')
    where = over_devices(count, kind)
    batch = (examples * 2)[:5]
    agree(model, params, batch, rngs=KEY, size=8, sharding=where)


@pytest.mark.slow
def test_identities_on_several_devices() -> None:
    model, params, examples = compiled('steps')
    where = over_devices(4, AxisType.Explicit)
    same_by_ids(model, params, examples, [30, 10, 20, 10], sharding=where)


@pytest.mark.long
def test_corpora_of_files_tracers_batches_and_steps(tmp_path: Path) -> None:
    model, params, examples = compiled('tree')
    want = model.apply(params, model.schedule(examples), rngs=KEY)
    model.trace(examples).save(tmp_path / 'trees.jfold')
    corpus = jf.Corpus.load(tmp_path / 'trees.jfold', model)
    indices = np.array([2, 0, 3])
    values = model.apply(params, corpus.schedule(indices), rngs=KEY, ids=indices)
    close(values, jax.tree.map(lambda x: x[indices], want), 1e-5)
    traced = pickle.loads(pickle.dumps(model.tracer()))(examples)
    values = model.apply(params, model.schedule(traced), rngs=KEY)
    close(values, want, 1e-5)
    for batch in model.batches(corpus, 2, shuffle=jax.random.key(3), epochs=1):
        values = model.apply(params, batch.schedule, rngs=KEY, ids=batch.indices)
        close(values, jax.tree.map(lambda x: x[batch.indices], want), 1e-5)  # noqa: B023
    step = model.precompile(model.apply, params, corpus.capacities(4), rngs=KEY)
    close(step(params, corpus.schedule(range(4)), rngs=KEY), want, 1e-5)
    assert 'Dropout(key[dropout], float32[3])' in model.explain()
    assert 'Dropout' in model.explain(corpus.schedule([0]))


def test_graphs_of_objects_in_company() -> None:
    model, params, examples = compiled('graph')
    order = [2, 0, 1, 2]
    same_by_ids(model, params, [examples[i] for i in order], order)


def test_what_takes_no_input_draws() -> None:
    start = jf.Void() >> jf.Function(
        lambda dropout: noise(jnp.zeros(2), dropout), rngs='dropout'
    )
    model = jf.compile(jf.Map(start))
    agree(model, {}, [[1, 2], [], [3]], rngs=KEY)


def test_keys_of_streams() -> None:
    block = jf.Map(jf.Scalar() >> jf.Function(Both(), rngs=('one', 'two')))
    model = jf.compile(block)
    schedule = model.schedule([[1.0] * 3])

    def run(**rngs: Any) -> Any:
        return np.asarray(model.apply({}, schedule, rngs=rngs or KEY).values[0])

    one, two = map(jax.random.key, (1, 2))
    assert (run(one=one, two=one)[0] == run(one=one, two=two)[0]).all()
    assert (run(one=one, two=one)[1] != run(one=one, two=two)[1]).all()
    assert (run(one=one, default=two) == run(one=one, two=two)).all()
    first, second = run()  # of one key, each its own
    assert first != second


@dataclasses.dataclass(frozen=True)
class Both:
    def __call__(self, x: Any, one: Any, two: Any) -> Any:
        return jnp.stack([jax.random.uniform(one), jax.random.uniform(two)]) + 0 * x


def test_keys_of_all_kinds() -> None:
    """What is drawn is of one kind, that of a node the same beside others as alone."""
    model = jf.compile(jf.Map(jf.Scalar() >> noisy))
    for kind in ('rbg', 'unsafe_rbg'):
        key = jax.random.key(0, impl=kind)
        agree(model, {}, [[1.0, 2.0], [3.0]], rngs=key)
    raw = model.apply({}, model.schedule([[1.0]]), rngs=jax.random.PRNGKey(7))
    typed = model.apply({}, model.schedule([[1.0]]), rngs=KEY)
    assert (raw.values == typed.values).all()


# ---- each use is another -------------------------------------------------------------


def draws_in(model: jf.Model, example: Any = 1.0) -> int:
    graph = model.trace([example], progress=False).graph
    tables = zip(model.program.types, graph.constants, strict=True)
    return sum(len(x) for type_, x in tables if isinstance(type_, KeyType))


def test_equal_parts_draw_each_for_itself() -> None:
    drawn = jf.Scalar() >> noisy
    again = drawn >> jf.Identity()
    model = jf.compile(
        jf.AllOf(drawn, drawn, again, jf.Scalar() >> jf.Function(noise, rngs='dropout'))
    )
    values = model.apply({}, model.schedule([1.0]), rngs=KEY)
    assert len({float(x[0]) for x in values}) == draws_in(model) == 4
    mapped = jf.Map(drawn)
    model = jf.compile(jf.AllOf(mapped, mapped))
    one, other = model.apply({}, model.schedule([[1.0, 2.0]]), rngs=KEY)
    assert not (one.values[:2] == other.values[:2]).any()
    agree(model, {}, [[1.0, 2.0], [3.0]], rngs=KEY)
    tree = tree_block()  # calls of a declaration
    model = jf.compile(jf.AllOf(tree, tree))
    params = model.init(jax.random.key(0))
    one, other = model.apply(params, model.schedule(TREES), rngs=KEY)
    assert not jnp.array_equal(one[1], other[1])


def test_what_is_wired_twice_is_drawn_once() -> None:
    @jf.compose
    def block(x: Any) -> Any:
        y = noisy(jf.Scalar()(x))
        return y, y

    model = jf.compile(block)
    one, other = model.apply({}, model.schedule([1.0, 2.0]), rngs=KEY)
    assert (one == other).all()
    shared = jf.Share(jf.Scalar() >> noisy)
    model = jf.compile(jf.AllOf(shared, shared))
    one, other = model.apply({}, model.schedule([1.0, 2.0]), rngs=KEY)
    assert (one == other).all()


def test_programs_that_draw_nothing_hold_no_keys() -> None:
    block = jf.AllOf(jf.Scalar(), jf.Scalar()) >> jnp.add
    model = jf.compile(block)
    assert draws_in(model) == 0
    schedule = model.schedule([1.0])
    want = model.apply({}, schedule)
    assert (model.apply({}, schedule, rngs=KEY, deterministic=True) == want).all()


# ---- transformations -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures('only_new_garbage')  # JAX collects after each trace
def test_no_tracer_leaks() -> None:
    """In loops, with a cell of Linen; those of NNX have a test of their own."""
    model = jf.compile(binary(state >> noisy, jf.Function(Halves(3))))
    params, schedule = model.init(jax.random.key(0)), model.schedule(TREES)

    @jax.jit
    def loss(params: Any, schedule: Any, key: Any, ids: Any) -> Any:
        return model.apply(params, schedule, rngs=key, ids=ids).sum()

    with jax.checking_leaks():
        grads = jax.grad(loss)(params, schedule, KEY, jnp.arange(4))
        evaluated = jax.grad(
            lambda p: model.apply(p, schedule, deterministic=True).sum()
        )(params)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((grads, evaluated)))


def test_many_keys_at_once() -> None:
    model = jf.compile(jf.Map(jf.Scalar() >> noisy))
    schedule = model.schedule([[1.0, 2.0], [3.0]])
    keys = jax.random.split(KEY, 3)
    run = lambda key: model.apply({}, schedule, rngs=key).values[:3]  # noqa: E731
    got = jax.vmap(run)(keys)
    np.testing.assert_allclose(got, jnp.stack([*map(run, keys)]), rtol=1e-6)


# ---- errors --------------------------------------------------------------------------


def test_a_key_is_asked_for() -> None:
    model = jf.compile(jf.Scalar() >> noisy)
    schedule = model.schedule([1.0])
    tail = (
        'pass `rngs=jax.random.key(0)`, or one a stream, '
        "`rngs={'dropout': key}`; or `deterministic=True` to draw nothing"
    )
    head = "layer 'noise': expected a key for what it draws of 'dropout', got "
    with refuses(f'{head}none: {tail}'):
        model.apply({}, schedule)
    with refuses(f'{head}none: {tail}'):
        model.eval(1.0)
    with refuses(f"{head}those of ['noise']: {tail}"):
        model.apply({}, schedule, rngs={'noise': KEY})


@pytest.mark.parametrize('block', [jf.Scalar() >> noisy, jf.Scalar()])
@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'rngs': 3}, 'expected `rngs` as a PRNG key, or a dict of keys, got 3: pass'),
        ({'rngs': {'dropout': KEY, 'noise': 3}}, 'or a dict of keys, got 3: pass `jax'),
        ({'rngs': 3, 'deterministic': True}, 'or a dict of keys, got 3: pass `jax'),
        ({'rngs': jnp.arange(3)}, r'or a dict of keys, got Array\(\[0, 1, 2\]'),
        (
            {'rngs': jax.random.split(KEY, 3)},
            'got an array of 3 keys: pass one, or take `jax.vmap` over them',
        ),
        ({'rngs': KEY, 'ids': 'x'}, 'expected `ids` as integers, got '),
        ({'rngs': KEY, 'ids': np.ones(3, 'f4')}, r'integers, got float32\[3\]'),
        (
            {'rngs': KEY, 'ids': [1, 2]},
            r'of 3 rows, spare ones too, got \[2\]: pass `batch.indices`$',
        ),
        ({'deterministic': 'no'}, "expected `deterministic` as a bool, .* got 'no'"),
    ],
)
def test_mistakes_are_told_whether_anything_draws(
    block: jf.Block, options: dict[str, Any], message: str
) -> None:
    model = jf.compile(block)
    schedule = model.schedule([1.0, 2.0], size=3)
    error = ValueError if 'of 3 rows' in message else TypeError
    with pytest.raises(error, match=message):
        model.apply({}, schedule, **options)


def test_names_of_keys() -> None:
    for wrong in (3, ('a', 4), 'a b'):
        with pytest.raises(TypeError, match='expected `rngs` as names of arguments'):
            jf.Function(noise, rngs=wrong)  # type: ignore[arg-type]


def test_functions_that_take_no_such_key() -> None:
    does_not_compile(
        jf.Scalar() >> jf.Function(lambda x: x, rngs='dropout'),
        'Pipe[1].Function(function): expected to run on inputs (float32[]), got '
        'TypeError: test_functions_that_take_no_such_key.<locals>.<lambda>() got an '
        "unexpected keyword argument 'dropout'; give it as many inputs as it takes: it "
        'is called as `fn(x, dropout=key)`',
    )
    does_not_compile(
        jf.Scalar() >> jf.Function(masked, weights, rngs='dropout'),
        'Pipe[1].Function(masked): expected to run on inputs (float32[]), got '
        "TypeError: masked() missing 1 required positional argument: 'y'; give it as "
        'many inputs as it takes: it is called as `fn(params, x, dropout=key)`',
    )


def test_what_a_module_draws_may_be_said() -> None:
    model = jf.compile(jf.Vector(3) >> jf.Function(nn.Dropout(0.5), rngs='dropout'))
    assert repr(model.program.operations[0]).startswith('Dropout(key[dropout], ')
    agree(model, {}, [[1, 2, 3], [4, 5, 6]], rngs={'dropout': KEY})


def test_whole_tiles_have_a_key_a_row() -> None:
    def tile(x: Any, dropout: Any) -> Any:
        return x + jax.vmap(jax.random.normal)(dropout)

    block = jf.Map(jf.Scalar() >> jf.Function(tile, batched=True, rngs='dropout'))
    agree(jf.compile(block), {}, [[1.0, 2.0], [3.0]], rngs=KEY)
    with pytest.raises(TypeError, match='where each row has a key of its own: leave'):
        jf.compile(jf.Vector(3) >> jf.Function(nn.Dropout(0.5), batched=True))
