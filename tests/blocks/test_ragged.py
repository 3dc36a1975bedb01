# SPDX-License-Identifier: Apache-2.0
"""Sequences as results: what `apply` gives in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, by_example, close
from checking import does_not_compile, number, numbers, observed, refuses, same, whole

import jfold as jf
from jfold.base.memo import cached_property
from jfold.program.operations import check_operations
from jfold.ragged import Ragged
from jfold.tracing.record import trace

scaled = jf.Function(
    lambda w, x: jnp.sin(x * w), lambda key, x: jnp.asarray([1.0, 2.0]), name='scaled'
)
PARAMS = {'scaled': jnp.asarray([0.5, -2.0])}
LISTS: list[Any] = [[1, 2], [], [3], [4, 5, 6]]


@functools.cache
def model_of_vectors() -> jf.Model:
    """Of lists of numbers."""
    return jf.compile(numbers >> jf.Map(scaled))


def applied(block: Any, examples: list[Any], params: Any = None) -> Any:
    """What a model gives, having compared it with its eager twin."""
    model = block if isinstance(block, jf.Model) else jf.compile(block)
    params = model.init(jax.random.key(0)) if params is None else params
    return agree(model, params, examples)


# ---- values and gradients ------------------------------------------------------------


def test_rows_are_in_the_order_of_examples_and_items() -> None:
    """And spare rows are zero."""
    found = applied(numbers >> jf.Map(jnp.negative), LISTS)
    assert found.lengths.tolist() == [2, 0, 1, 3]
    assert found.lengths.dtype == 'int32'
    assert found.values[:6].tolist() == [-1, -2, -3, -4, -5, -6]
    assert not found.values[6:].any()
    assert found.mask.tolist() == [True] * 6 + [False] * (len(found.values) - 6)
    same(found.to_list(), [[-1, -2], [], [-3], [-4, -5, -6]])


def of_padded(found: jf.Ragged) -> Any:
    items, real = found.padded(2, fill=7)
    return (items**2 * real[..., None]).sum()


@pytest.mark.parametrize(
    ('whole', 'of_list'),
    [
        (lambda found: (found.values + 3).sum(), lambda x: (x + 3).sum()),
        (of_padded, lambda x: (x[:2] ** 2).sum()),
    ],
    ids=['items', 'padding'],
)
def test_gradients_flow_through(whole: Any, of_list: Any) -> None:
    """Those of spare rows, and of what is cut off, give nothing, whatever a loss makes
    of them."""
    model = model_of_vectors()
    schedule = model.schedule(LISTS)

    def loss(params: Any) -> Any:
        return whole(model.apply(params, schedule))

    def one_by_one(params: Any) -> Any:
        made = [model.eval(xs, params) for xs in LISTS]
        return sum(of_list(jnp.stack(x)) for x in made if x)

    want = interpreter.called(jax.grad(one_by_one), PARAMS)
    close(jax.jit(jax.grad(loss))(PARAMS), want, 1e-5)


def test_transformations() -> None:
    """`jit` and `vmap` over parameters give pytrees of the same kind."""
    model = model_of_vectors()
    schedule = model.schedule(LISTS)
    expected = model.apply(PARAMS, schedule)
    found = jax.jit(model.apply)(PARAMS, schedule)
    assert isinstance(found, jf.Ragged)
    close(found, expected, 1e-6)
    several = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), PARAMS)
    both = jax.vmap(lambda p: model.apply(p, schedule).values)(several)
    close(both[0], expected.values, 1e-6)
    with pytest.raises(FrozenInstanceError):
        found.values = 0


@pytest.mark.parametrize('examples', [[[], []], [[]], [[1.0]], LISTS], ids=str)
def test_empty_sequences(examples: list[Any]) -> None:
    found = applied(model_of_vectors(), examples, PARAMS)
    assert found.lengths.tolist() == list(map(len, examples))
    assert found.mask.sum() == sum(map(len, examples))


def test_an_empty_batch() -> None:
    model = model_of_vectors()
    schedule = model.schedule([])
    found = model.apply(PARAMS, schedule)
    assert found.to_list() == []
    assert not found.mask.any()
    assert found.padded(3)[0].shape == (0, 3, 2)
    grads = jax.grad(lambda p: model.apply(p, schedule).values.sum())(PARAMS)
    assert not grads['scaled'].any()


def test_spare_rows_of_a_batch() -> None:
    """Sequences of examples that are not there are empty, unlike other results."""
    model = jf.compile(jf.AllOf(jf.Length(), numbers))
    length, found = model.apply({}, model.schedule(LISTS, size=6))
    assert length.tolist() == [2, 0, 1, 3, 3, 3]
    assert found.lengths.tolist() == [2, 0, 1, 3, 0, 0]
    same(found.to_list(), [*LISTS, [], []])
    _, found = model.apply({}, model.schedule([], size=2))
    assert found.to_list() == [[], []]
    assert not found.values.any()


# ---- structures ----------------------------------------------------------------------


def test_items_that_are_tuples() -> None:
    """A tuple of arrays; what is void stays so."""
    item = jf.Record((whole, number >> scaled, jf.Void()))
    found = applied(jf.Map(item), [[(1, 2, 0), (3, 4, 0)], []], PARAMS)
    ints, floats, nothing = found.values
    assert ints[:2].tolist() == [1, 3]
    assert floats[:2].shape == (2, 2)
    assert nothing is None
    (one, two), none = found.to_list()
    assert one[0].dtype == 'int32'
    assert (one[2], two[0].tolist(), none) == (None, 3, [])


def test_sequences_of_sequences() -> None:
    """The lengths inside are one a sequence, in the order of those."""
    data: list[Any] = [[[1, 2], [], [3]], [], [[]], [[4], [5, 6, 7]]]
    found = applied(jf.Map(jf.Map(number >> scaled)), data, PARAMS)
    assert found.lengths.tolist() == [3, 0, 1, 2]
    assert found.values.lengths[:6].tolist() == [2, 0, 1, 0, 1, 3]
    assert not found.values.lengths[6:].any()
    assert found.values.values.shape[1:] == (2,)
    assert found.values.mask.sum() == 7
    assert [[len(x) for x in xs] for xs in found.to_list()] == [
        *([2, 0, 1], [], [0], [1, 3])
    ]


def test_sequences_among_other_results() -> None:
    pair = jf.AllOf(jf.Length('int32'), numbers, numbers >> jf.Sum())
    block = jf.AllOf(jf.Map(pair), jf.AllOf(jf.Length(), jf.Map(numbers)), jf.Void())
    found = applied(block, [[[1, 2], []], [], [[3]]])
    pairs, (length, lists), nothing = found
    assert length.tolist() == [2, 0, 1]
    assert nothing is None
    assert pairs.values[1].lengths[:3].tolist() == [2, 0, 1]
    same(lists.to_list(), [[[1, 2], []], [], [[3]]])
    same(by_example(found)[0][2], [(np.int32(1), [3], 3)])


def test_sequences_by_any_block() -> None:
    again = jf.Map(jnp.sin)
    blocks = jf.AllOf(
        jf.RNN(jf.Function(lambda x, s: (x * s, x + s)), jf.FromTensor(np.float32(1))),
        jf.Slice(step=-1),
        jf.NGrams(2),
        jf.AllOf(jf.Slice(start=1), jf.Identity()) >> jf.Zip(),
        jf.AllOf(jf.Identity(), jf.Sum() >> jf.Broadcast()) >> jf.Zip(),
        jf.AllOf(jf.Sum(), jf.Max()) >> jf.Map(jnp.negative),
        jf.AllOf(jf.Sum(), again, again),
    )
    agree(jf.compile(numbers >> blocks), {}, LISTS)


def test_sequences_that_a_choice_or_a_recursion_makes() -> None:
    """In the order of items, not of cases or calls."""
    leaves = jf.ForwardDeclaration(name='leaves')
    first = jf.GetItem(0) >> leaves() >> jf.Map(jnp.sin)
    cases = {list: numbers, tuple: first, set: jf.InputTransform(sorted) >> numbers}
    leaves.resolve_to(jf.OneOf(type, cases))
    found = applied(leaves(), [{5, 4}, [1, 2], (([3], 0), 0), [], ([7, 8], 0)])
    assert found.lengths.tolist() == [2, 2, 1, 0, 2]


def test_items_by_calls_in_loops() -> None:
    """Where the order of other rows is that of their places."""
    tree = jf.ForwardDeclaration(name='tree')
    cell = jf.Record((jf.Identity(), tree())) >> jnp.add
    tree.resolve_to(
        jf.OneOf(type, {int: number, list: jf.Fold(cell, jf.Zeros([])) >> jnp.sin})
    )
    pair = jf.AllOf(tree(), tree() >> observed('seen') >> jnp.cos)
    found, _ = applied(jf.Map(pair), [[1, [2, [3, 4]], 5], [], [[[6], 7], 8]])
    assert found.lengths.tolist() == [3, 0, 2]


def test_many_items_stay_in_order() -> None:
    """Beside metrics, whose rows may be in any."""
    rng = np.random.default_rng(0)
    data = [rng.integers(99, size=n).tolist() for n in rng.integers(40, size=30)]
    block = numbers >> jf.Map(observed('seen'))
    model = jf.compile(block)
    found, _ = model.apply({}, model.schedule(data))
    same(found.to_list(), data)


# ---- a pytree of arrays --------------------------------------------------------------


def test_each_example_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each begins is counted once, not once for each example."""
    model = jf.compile(jf.Map(numbers))
    examples: list[Any] = [[[1, 2], []], [], [[3]]]
    found = model.apply({}, model.schedule(examples))
    asked: list[int] = []
    numbered = Ragged.__dict__['_begins']

    def begins(ragged: Any) -> Any:
        asked.append(len(ragged))
        return numbered.compute(ragged)

    begins.__name__ = '_begins'
    monkeypatch.setattr(Ragged, '_begins', cached_property(begins))
    assert [x.to_list() for x in found] == [[[1, 2], []], [], [[3]]]
    assert len(asked) == 2  # of the examples, and of the lists in them
    with pytest.raises(IndexError):
        found[3]


def test_padded() -> None:
    """Longer sequences lose their ends; `fill` stands behind shorter ones."""
    found = applied(numbers, LISTS)
    items, real = found.padded(2, fill=-1)
    assert items.tolist() == [[1, 2], [-1, -1], [3, -1], [4, 5]]
    assert real.tolist() == [[True, True], [False, False], [True, False], [True, True]]
    wide, real = jax.jit(lambda x: x.padded(4))(found)
    assert wide.tolist() == [[1, 2, 0, 0], [0] * 4, [3, 0, 0, 0], [4, 5, 6, 0]]
    assert real.sum(1).tolist() == [2, 0, 1, 3]
    assert found.padded(0)[0].shape == (4, 0)


def test_padded_with_what_the_items_cannot_be() -> None:
    ints = jf.Ragged(np.arange(4, dtype='uint8'), np.array([1, 2], 'int32'))
    assert ints.padded(2, fill=255)[0].tolist() == [[0, 255], [1, 2]]
    for fill in (0.5, np.nan, -1, 256):
        with pytest.raises(TypeError, match=r'expected `fill` as uint8, as the items'):
            ints.padded(2, fill=fill)


STACKED: dict[str, Callable[[Any], Any]] = {
    'mask': lambda x: x.mask,
    'sum': lambda x: x.sum(),
    'mean': lambda x: x.mean(),
    'operators': lambda x: x + 1,
    'map': lambda x: x.map(jnp.abs),
    'len': len,
    'items': lambda x: x[0],
    'lists': lambda x: x.to_list(),
    'padded': lambda x: x.padded(2),
}


@pytest.mark.parametrize('name', STACKED)
def test_results_of_several_batches(name: str) -> None:
    """One at a time, or inside the `vmap` that stacks them."""
    model = jf.compile(jf.Map(number >> scaled))
    params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), PARAMS)
    schedule, read = model.schedule([[1, 2], [3]]), STACKED[name]
    stacked = jax.vmap(model.apply, (0, None))(params, schedule)
    text = r'expected results of one batch, got those of \[2\] of them stacked'
    with pytest.raises(ValueError, match=text):
        read(stacked)
    first = jax.tree.map(lambda x: x[0], stacked)
    want = read(model.apply(PARAMS, schedule))
    jax.tree.map(np.testing.assert_allclose, read(first), want)


def test_metrics_of_several_batches() -> None:
    model = jf.compile(jf.Map(number >> jf.Metric('x')) >> jf.Void())
    both = jf.Schedule.stack(model.schedules([[[1, 2]], [[3]]]))
    _, metrics = jax.vmap(lambda x: model.apply({}, x))(both)
    for read in (jf.MetricValues.sum, jf.MetricValues.mean):
        with pytest.raises(ValueError, match=r'got those of \[2\] of them stacked'):
            read(metrics['x'])


def test_functions_of_numpy_that_take_arrays() -> None:
    found = applied(numbers, LISTS)
    with pytest.raises(TypeError, match='got a function that takes arrays, in Ragged'):
        np.asarray(found)


def test_padded_tuples_and_sequences() -> None:
    """Sequences inside are padded first."""
    block = jf.Map(jf.AllOf(number, number >> scaled))
    found = applied(block, LISTS, PARAMS)
    (one, two), real = found.padded(3)
    assert (one.shape, two.shape, real.shape) == ((4, 3), (4, 3, 2), (4, 3))
    nested = applied(jf.Map(numbers), [[[1, 2], [3]], [[4]]])
    inner = jf.Ragged(nested.values.padded(2), nested.lengths)
    (items, real), _ = inner.padded(2)
    assert items.tolist() == [[[1, 2], [3, 0]], [[4, 0], [0, 0]]]
    assert real.sum((1, 2)).tolist() == [3, 1]


@pytest.mark.parametrize('x64', [False, True])
def test_without_promotion(x64: bool) -> None:
    """Of dtypes, also where ints are wide."""
    with jax.enable_x64(x64), jax.numpy_dtype_promotion('strict'):
        model = jf.compile(jf.Map(jf.Scalar('bfloat16')))
        found = model.apply({}, model.schedule([[1, 2], []], size=3))
        items, real = found.padded(2, fill=0.5)
        assert items.dtype == 'bfloat16'
        assert items.tolist() == [[1, 2], [0.5, 0.5], [0.5, 0.5]]
        assert (real.sum(), found.mask.sum(), found.lengths.dtype) == (2, 2, 'int32')


def test_how_it_prints() -> None:
    """By shapes, also where there are no numbers."""
    block = jf.Map(jf.AllOf(number, jf.AllOf(number) >> jf.Map(jf.Identity())))
    model = jf.compile(block)
    shapes = jax.eval_shape(model.apply, {}, model.schedule([[1, 2]]))
    assert repr(shapes) == (
        'Ragged(values=(float32[128], Ragged(values=float32[128], '
        'lengths=int32[128])), lengths=int32[1])'
    )
    assert repr(jf.Ragged((1, None), 2)) == 'Ragged(values=(1, None), lengths=2)'
    assert repr(model) == 'Model([(float32[], [float32[]])], layers: none)'


def test_the_source_records_items_beside_their_lengths() -> None:
    program = jf.compile(jf.Map(jf.Map(number))).program
    graph = trace(program, [[[1, 2], []], []])
    (lengths,) = graph.constants[program.results[0].tensors[0]].columns
    assert lengths.tolist() == [2, 2, 0, 0]  # first of the whole, then of each item
    assert [x.first.tolist() for x in graph.results] == [
        [0, 1, 2],
        [0, 2, 2],
        [0, 2, 2],
    ]
    lines = [line.strip() for line in str(program.source).splitlines()]
    assert any(line.endswith('# items of sequence 1: [float32[]]') for line in lines)
    assert any('.append(len(' in line for line in lines)


def test_results_of_other_items_are_refused() -> None:
    """Which are not of the sequences in the value."""
    program = jf.compile(numbers).program
    other = replace(program.results[1], type=jf.SequenceType('float32'))
    with refuses(
        'expected results of items [float32[]], got [[float32[]]]', ValueError
    ):
        check_operations(replace(program, results=(program.results[0], other)))


# ---- what else a model does ----------------------------------------------------------


def model_of_lists() -> jf.Model:
    """Lists and lists of lists, with parameters and a metric."""
    item = jf.AllOf(jf.Sum() >> scaled >> observed('seen'), jf.Identity())
    return jf.compile(jf.Map(numbers >> item))


NESTED: list[Any] = [[[1, 2], []], [], [[3]], [[4], [5], [6, 7]]]


def test_corpora_and_batches(tmp_path: Path) -> None:
    model = model_of_lists()
    model.trace(NESTED, progress=False).save(tmp_path / 'lists.jfold')
    corpus = jf.Corpus.load(tmp_path / 'lists.jfold', model)
    expected, _ = model.apply(PARAMS, model.schedule([NESTED[i] for i in (3, 0, 3)]))
    found, _ = model.apply(PARAMS, corpus.schedule([3, 0, 3]))
    close(found, expected, 0)
    joined = model.join([corpus, model.tracer()(NESTED[:1])])
    found, _ = model.apply(PARAMS, joined.schedule([3, 4, 3]))
    close(found, expected, 0)
    for batch in model.batches(corpus, 2, prefetch=0):
        found, _ = model.apply(PARAMS, batch.schedule)
        lists = [NESTED[i] for i in batch.indices]
        lengths = [[len(x[1]) for x in xs] for xs in found.to_list()]
        assert lengths == [[len(x) for x in xs] for xs in lists]


def test_a_corpus_of_another_expression(tmp_path: Path) -> None:
    """With and without the items is not the same."""
    jf.compile(numbers).trace([[1]], progress=False).save(tmp_path / 'file')
    other = jf.compile(numbers >> jf.AllOf(jf.Length('int32')) >> jf.GetItem(0))
    with pytest.raises(ValueError, match='items of sequence 1: float32'):
        jf.Corpus.load(tmp_path / 'file', other)


# ---- errors --------------------------------------------------------------------------


def test_what_is_no_result() -> None:
    does_not_compile(
        numbers >> jf.Map(jf.AllOf(jf.Identity(), jf.Broadcast())),
        "Map(Scalar('float32')) >> Map(AllOf(Identity(), Broadcast...: "
        'expected a result of tensors, in tuples and sequences, got [(float32[], '
        '[float32[] ...])]; put it beside a sequence, by ZipWith',
    )


def test_what_is_not_padded() -> None:
    found = applied(jf.Map(numbers), [[[1]]])
    message = (
        'expected items of tensors, got sequences among them, in Ragged(values='
        'Ragged(values=float32[128], lengths=int32[128]), lengths=int32[1]): pad these '
        'first, as in `inner = x.values.padded(n)`, then `jf.Ragged(inner, '
        'x.lengths).padded(m)`'
    )
    with refuses(message):
        found.padded(2)
    with refuses('expected `length` as int, got 2.0; write `length=2`'):
        found.values.padded(2.0)
    with refuses(
        'expected `length` of at least 0, got -1; write `length=0` or more', ValueError
    ):
        found.values.padded(-1)
