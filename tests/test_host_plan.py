# SPDX-License-Identifier: Apache-2.0
"""Sequences through recursion, folds over recursions, and where data is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import refuses
from flax.core import FrozenDict

import jfold as jf
from jfold.host import calls, cycles, evaluation, waves
from jfold.host.promises import Waved


def agree(block: Any, batch: list[Any]) -> jf.Model:
    """`apply` on the batch equals `eval` on each example."""
    model = jf.compile(block)
    got = model.apply({}, model.schedule(batch))
    want = jnp.stack([jnp.asarray(model.eval(example)) for example in batch])
    np.testing.assert_allclose(got, want, rtol=1e-6)
    return model


def test_declarations_that_give_sequences() -> None:
    """Every caller gets its own items, of sequences inside sequences too."""
    rows = jf.ForwardDeclaration()
    rows.resolve_to(jf.Map(jf.Map(jf.Scalar())))
    first = jf.GetItem(0) >> jf.Map(jf.Sum()) >> jf.Max()
    second = jf.GetItem(1) >> jf.Map(jf.Length()) >> jf.Sum()
    block = jf.AllOf(rows(), rows()) >> jf.AllOf(first, second) >> jnp.subtract
    agree(block, [[[1, 2], [3]], [], [[], [1, 2, 3], [4]]])


def folded_tree() -> jf.Block:
    """A tree subtracted by a fold whose body recurses."""
    tree = jf.ForwardDeclaration()
    body = jf.Record((jf.Identity(), tree())) >> jf.Function(jnp.subtract)
    fold = jf.Fold(body, jf.Zeros([]))
    tree.resolve_to(jf.OneOf(type, {int: jf.Scalar(), tuple: fold}))
    return tree()


def test_a_fold_over_a_recursion_runs_all_items_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bodies run once per depth, and once where nothing waits, not once per node."""
    tree: Any = 1
    for _ in range(5):
        tree = (tree,) * 4
    started: list[str] = []
    original, waved = evaluation.start, waves._run

    def counted(body: Any, *rest: Any) -> Any:
        started.append(body.name)
        return original(body, *rest)

    def wave(body: Any, *rest: Any) -> None:
        started.append('a wave')
        waved(body, *rest)

    for module in evaluation, calls:
        monkeypatch.setattr(module, 'start', counted)
    monkeypatch.setattr(waves, '_run', wave)
    examples = [tree, (1, (2, 3), ())]
    agree(folded_tree(), examples)
    assert Counter(started) == {'expression': 1, 'a wave': 1 + 6}
    started.clear()
    monkeypatch.setattr(evaluation, 'in_two_passes', lambda *_: None)
    agree(folded_tree(), examples)
    assert Counter(started) == {'expression': 1, 'declaration': 6}


def message(model: jf.Model, batch: list[Any]) -> str:
    """What is said about bad data."""
    with pytest.raises(jf.InputError) as caught:
        model.schedule(batch)
    return str(caught.value)


def test_the_example_of_a_sequence_in_a_case() -> None:
    """Cases take sequences apart and keep track of whose they are."""
    cases = {
        'a': jf.GetItem(1) >> jf.GetItem(0),
        'b': jf.GetItem(1) >> jf.GetItem(1),
    }
    fields = jf.Record({'k': jf.Identity(), 's': jf.Map(jf.Scalar())})
    model = jf.compile(fields >> jf.OneOf(jf.GetItem(0), cases))
    batch = [
        {'k': k, 's': [1] * n} for k, n in (('a', 1), ('a', 2), ('b', 2), ('b', 1))
    ]
    assert message(model, batch).startswith("example 3, at ['s']: expected an item 1")


def test_the_example_of_an_item_that_a_call_gave() -> None:
    """It is that of the call, however many items there are before it."""
    rows = jf.ForwardDeclaration()
    rows.resolve_to(jf.Map(jf.Map(jf.GetItem('v'))))
    model = jf.compile(rows() >> jf.Map(jf.Map(jf.Scalar()) >> jf.Sum()) >> jf.Sum())
    good, bad = {'v': 1}, {'v': 'x'}
    batch = [[[good], []], [[good, good], [], [good, bad]]]
    assert message(model, batch).startswith('example 1: expected float32[], got ')


def test_a_record_is_as_long_whatever_is_beside_it() -> None:
    """Also where a field is read by nothing, so that data may be shorter."""
    tree = jf.ForwardDeclaration()
    node = jf.Record((tree(), jf.Void())) >> jf.GetItem(0)
    tree.resolve_to(jf.OneOf(type, {float: jf.Scalar(), tuple: node}))
    model = jf.compile(tree())
    assert model.trace([(1.0,), ((2.0, 3.0),)], progress=False).nodes.tolist() == [0, 0]
    for batch in ([(1.0, 2.0, 3.0)], [(1.0,), (1.0, 2.0, 3.0)], [((1.0, 2, 3),)]):
        assert 'expected 2 items, got 3 in (1.0, 2' in message(model, batch)


def test_a_fault_of_a_plan_is_not_blamed_on_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is raised as it is, with its traceback."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Waved, 'descend', broken)
    with pytest.raises(ZeroDivisionError) as caught:
        jf.compile(folded_tree()).schedule([(1, 2), (3, 4)])
    assert caught.traceback[-1].name == 'broken'


def test_the_path_of_what_was_packed() -> None:
    """A tuple made by blocks is no step in the data."""
    total = jf.ForwardDeclaration()
    total.resolve_to(jf.Record((jf.Scalar(), jf.Scalar())) >> jnp.add)
    model = jf.compile(jf.AllOf(jf.GetItem('a'), jf.GetItem('b')) >> total())
    batch = [{'a': 1, 'b': 2}, {'a': 1, 'b': 'x'}]
    assert message(model, batch).startswith("example 1, at ['b']: expected float32[]")


def test_data_that_contains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, at a depth that no real data has."""
    monkeypatch.setattr(cycles, 'MAX_DEPTH', 100)
    tree = jf.ForwardDeclaration()
    tree.resolve_to(
        jf.OneOf(type, {int: jf.Scalar(), list: jf.Map(tree()) >> jf.Sum()})
    )
    model = jf.compile(tree())
    endless: list[Any] = [1]
    endless.append(endless)
    text = message(model, [[1, 2], endless])
    assert text.startswith('example 1, at [1][1]')
    assert 'nested more than 100 deep; does the data contain itself?' in text


@pytest.mark.parametrize('examples', [{'a': 1}, 'text', 5, None])
def test_what_is_no_list_of_examples(examples: Any) -> None:
    """A single example where several are expected is not taken apart."""
    model = jf.compile(jf.Scalar())
    with pytest.raises(TypeError, match=r'expected a sequence of examples, got \w+'):
        model.schedule(examples)
    with pytest.raises(TypeError, match=r'expected a sequence of examples, got \w+'):
        model.tracer()(examples)


@pytest.mark.parametrize('examples', [(1, 2), (), NamedTuple('Pair', [('x', int)])(1)])
def test_a_tuple_may_be_one_example(examples: Any) -> None:
    """Wherever several are expected."""
    model = jf.compile(jf.Scalar())
    name = type(examples).__name__
    hint = 'pass `[example]` if it is one, `list(examples)` if it holds several'
    for take in model.schedule, model.trace, model.tracer():
        with refuses(f'expected a sequence of examples, got {name}: {hint}'):
            take(examples)  # type: ignore[operator]
    with refuses(
        'expected a corpus, a sequence or a stream of examples as `source`, got '
        f'{name}: pass `[example]` for a single one, `list(source)` for several'
    ):
        model.batches(examples, 1)


def test_examples_from_a_generator() -> None:
    """Any other iterable will do."""
    model = jf.compile(jf.Scalar())
    values = model.apply({}, model.schedule(x for x in range(3)))
    assert values.tolist() == [0, 1, 2]


def test_arguments_of_apply_in_the_wrong_order() -> None:
    """The message shows the right one."""
    model = jf.compile(jf.Scalar())
    with pytest.raises(TypeError, match='expected `schedule` as a schedule, got dict'):
        model.apply(model.schedule([1]), {})


def test_parameters_of_the_wrong_shape() -> None:
    """They are refused with the layer's name before JAX meets them."""
    scale = jf.Function(lambda p, x: p * x, lambda key, x: jnp.ones(3), name='scale')
    model = jf.compile(jf.Vector(3) >> scale)
    expected = r"parameters of layer 'scale' as float32\[3\], got float32\[2\]; `model"
    with pytest.raises(TypeError, match=expected):
        model.apply({'scale': jnp.ones(2)}, model.schedule([[1, 2, 3]]))


def test_parameters_among_others() -> None:
    """Any mapping will do, with anything else in it; that has no gradient."""
    scale = jf.Function(lambda p, x: p * x, lambda key, x: jnp.ones(3), name='scale')
    model = jf.compile(jf.Vector(3) >> scale)
    schedule = model.schedule([[1, 2, 3]])
    params = FrozenDict({'other': jnp.ones(2), **model.init(jax.random.key(0))})
    grads = jax.grad(lambda p: model.apply(p, schedule).sum())(params)
    assert grads['scale'].tolist() == [1, 2, 3]
    assert grads['other'].tolist() == [0, 0]


def test_a_sink_beside_a_value() -> None:
    """Nothing cannot be given to a function."""
    beside = jf.AllOf(jf.Identity(), jf.Metric('seen'))
    with pytest.raises(TypeError, match=r'got \(float32\[\], void\); take what a sink'):
        jf.compile(jf.Scalar() >> beside >> jf.Function(lambda x, y: x))
