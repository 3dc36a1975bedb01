# SPDX-License-Identifier: Apache-2.0
"""Rows of metrics: their order is that of evaluation, and labels say whose they are."""

from __future__ import annotations

import functools
import json
import pickle
from pathlib import Path
from typing import Any

import interpreter
import jax
import numpy as np
import pytest
from agreement import agree
from checking import add, numbers, observed, subtract
from jax.sharding import AxisType
from meshes import over_devices

import jfold as jf
from jfold.files import storage


def seen(name: str = 'seen') -> jf.Block:
    """Passes a tensor on, and collects it."""
    return observed(name)


zero = jf.Zeros([]) >> seen()


def nested(of_list: Any) -> jf.Block:
    """A recursion over nested lists of numbers, given what a list becomes."""
    tree = jf.ForwardDeclaration(name='tree')
    cases = {int: jf.Scalar() >> seen(), list: of_list(tree())}
    tree.resolve_to(jf.OneOf(type, cases))
    return tree()


def folded(combine: Any) -> Any:
    """A list by a `Fold` whose start is collected too."""
    return lambda tree: jf.Fold(combine(tree), jf.Zeros([]) >> seen('start')) >> seen()


def with_state(block: jf.Block) -> jf.Block:
    """A block of the items of a fold, beside the state."""
    return jf.Record((jf.Identity(), block))


def seen_state() -> jf.Block:
    return jf.GetItem(0) >> seen('q')


def shared() -> jf.Block:
    """Nodes of a graph, each once: their numbers plus those of what they lead to."""
    node = jf.ForwardDeclaration(name='node', output_type='float32')
    once = jf.Share(node())
    around = jf.Map(once >> seen('each')) >> jf.Sum()
    node.resolve_to(jf.Record((jf.Scalar() >> seen(), around)) >> add >> seen())
    return jf.Map(once) >> jf.Sum()


def graphs() -> list[Any]:
    """Of lists [number, nodes], which lie in several others."""
    a: list[Any] = [1, []]
    b, c = [2, [a]], [3, [a, a]]
    d = [4, [c, b]]
    return [[d, c, b], [b, [5, [d, a]]], [], [a]]


def reads_twice() -> jf.Block:
    """Two uses of one block on one sequence, with choices inside."""
    some = jf.Map(jf.Optional(jf.Scalar() >> seen(), jf.Zeros([]) >> seen()))
    return jf.AllOf(some, jf.Map(jf.Scalar() >> seen('q')) >> jf.Sum(), some)


def composed() -> jf.Block:
    """A composition that calls its blocks in another order than they are read."""

    @jf.compose
    def wired(x: Any) -> Any:
        late = jf.Scalar()(x)
        jf.Metric('seen')((jf.Scalar() >> (lambda x: -x))(x))
        jf.Metric('seen')(late)
        return late

    return jf.Map(wired)


LISTS: list[Any] = [[1, [2, 3], [[4]], 5], 6, [], [[7], [8, [9]], []]]
NUMBERS: list[Any] = [[1, 2, 3, 4, 5], [], [6], [7, 8]]
KINDS: dict[str, tuple[jf.Block, list[Any]]] = {
    'map': (nested(lambda t: jf.Map(t >> seen('q')) >> jf.Sum() >> seen()), LISTS),
    'map of two': (
        nested(lambda t: jf.Map(jf.AllOf(t, t) >> add) >> jf.Sum() >> seen()),
        LISTS,
    ),
    'fold': (nested(folded(lambda t: with_state(t) >> add >> seen())), LISTS),
    'fold, of items alone': (nested(folded(lambda t: with_state(t) >> add)), LISTS),
    'fold, items first': (
        nested(folded(lambda t: jf.Record({1: t, 0: seen()}) >> subtract)),
        LISTS,
    ),
    'fold, which waits for calls': (
        nested(folded(lambda t: jf.AllOf(jf.GetItem(1) >> t, seen_state()) >> add)),
        LISTS,
    ),
    'reduce': (
        nested(lambda t: jf.Map(t) >> jf.Reduce(add >> seen('q')) >> seen()),
        LISTS,
    ),
    'reduce, of none': (
        numbers >> jf.Reduce((seen(), jf.Identity()) >> add >> seen('q'), zero),
        NUMBERS,
    ),
    'reduce, by groups': (
        numbers >> jf.Reduce(add, zero, associative=True) >> seen(),
        NUMBERS,
    ),
    'rnn': (
        jf.Map(jf.Scalar() >> seen())
        >> jf.RNN(jf.AllOf(add >> seen(), add), jf.Zeros([]) >> seen('q'))
        >> jf.GetItem(1),
        NUMBERS,
    ),
    'share': (shared(), graphs()),
    'two uses': (reads_twice(), [[1, 2], [], [3]]),
    'maps alone': (
        jf.Map(jf.Map(jf.Optional(jf.Scalar() >> seen(), jf.Zeros([]))) >> jf.Sum()),
        [[[1, None, 2], [], [None]], [[3], [4, 5]], []],
    ),
    'composition': (composed(), NUMBERS),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('kind', KINDS)
def test_rows_are_in_the_order_of_evaluation(kind: str) -> None:
    """Of a batch, and of one example."""
    block, examples = KINDS[kind]
    model = jf.compile(block, max_programs=100)
    agree(model, {}, examples)
    for example in examples[:2]:
        same_as_eval(model, model.schedule([example], size=4), [example])


def test_one_numbering_of_several_metrics() -> None:
    """What each has is in order; so is what both have, by the numbers they collect."""
    numbered = jf.Scalar('int32')
    both = jf.AllOf(numbered >> jf.Metric('a'), numbered >> jf.Metric('b'))
    tree = jf.ForwardDeclaration(name='tree')
    of_list = jf.AllOf(jf.GetItem(0) >> both, jf.GetItem(1) >> jf.Map(tree()))
    tree.resolve_to(of_list >> jf.Void())
    model = jf.compile(tree())
    examples = [[1, [[2, []], [3, [[4, []]]], [5, []]]], [6, [[7, []]]]]
    for batch in examples, examples[:1]:
        _, metrics = model.apply({}, model.schedule(batch))
        for metric in metrics.values():
            rows = metric.values[metric.mask].tolist()
            assert rows == list(range(1, len(rows) + 1))


def test_rows_do_not_depend_on_what_else_is_traced() -> None:
    block, examples = KINDS['fold']
    model = jf.compile(block)
    corpus = model.join([model.trace(examples[:1]), model.tracer()(examples[1:])])
    whole = corpus.schedule(range(len(examples)))
    np.testing.assert_array_equal(whole.indices, model.schedule(examples).indices)


# ---- labels --------------------------------------------------------------------------


def labelled() -> jf.Block:
    """Trees [number, word, trees]; the sums of all, labelled by what is in them."""
    words = jf.GetItem(1), jf.GetItem(2) >> jf.InputTransform(len)

    @jf.recursive(output_type='float32')
    def tree(tree: Any, x: Any) -> Any:
        made = totals(tree)(x)
        jf.Metric('sums')(made, jf.GetItem(1)(x))
        jf.Metric('pairs')((made, made), jf.AllOf(*words)(x))
        jf.Metric('plain')(made)
        return made

    return tree


def labelled_by_words() -> jf.Block:
    tree = jf.ForwardDeclaration(name='tree', output_type='float32')
    word = jf.AllOf(totals(tree), jf.GetItem(1))
    tree.resolve_to(word >> jf.AllOf(jf.GetItem(0), jf.Metric('sums')) >> jf.GetItem(0))
    return tree()


def totals(tree: Any) -> jf.Block:
    """The number of a tree and those of all below, added up."""
    items = jf.GetItem(2) >> jf.Map(tree()) >> jf.Sum()
    return jf.AllOf(jf.GetItem(0) >> jf.Scalar(), items) >> add


def leaf(number: int, word: Any) -> list[Any]:
    return [number, word, []]


TREES: list[Any] = [
    [1, 'a', [leaf(2, 'b'), [3, 'c', [leaf(4, 'd')]], leaf(5, 'e')]],
    leaf(6, None),
    [7, 'g', [leaf(8, 'h')]],
]


def rows_of(metric: Any, labels: Any) -> list[Any]:
    values = jax.tree.map(
        lambda x: np.asarray(x)[np.asarray(metric.mask)], metric.values
    )
    leaves, structure = jax.tree.flatten(values)
    rows = [structure.unflatten(row) for row in zip(*leaves, strict=True)]
    return rows if labels is None else list(zip(rows, labels.tolist(), strict=True))


def same_as_eval(model: jf.Model, schedule: jf.Schedule, examples: list[Any]) -> None:
    """Rows and labels of a schedule are those that `eval` collects."""
    apply = functools.partial(interpreter.called, model.apply)
    run = jax.jit(model.apply) if schedule.capacity.shards else apply
    _, metrics = run({}, schedule)
    assert schedule.labels is not None
    found = [model.eval(example)[1] for example in examples]
    for name, metric in metrics.items():
        expected = [row for each in found for row in each[name]]
        rows = rows_of(metric, schedule.labels.get(name))
        assert jax.tree.map(float_or_self, rows) == jax.tree.map(
            float_or_self, expected
        )


def float_or_self(x: Any) -> Any:
    return float(x) if hasattr(x, 'dtype') else x


def test_labels_are_those_of_rows() -> None:
    model = jf.compile(labelled())
    schedule = model.schedule(TREES)
    assert schedule.labels is not None
    assert schedule.labels['sums'].tolist() == ['b', 'd', 'c', 'e', 'a', None, 'h', 'g']
    assert schedule.labels['pairs'][:3].tolist() == [('b', 0), ('d', 0), ('c', 1)]
    assert schedule.labels.keys() == {'sums', 'pairs'}
    assert model.eval(TREES[1])[1]['sums'] == [(6.0, None)]
    same_as_eval(model, schedule, TREES)
    same_as_eval(model, model.schedule(TREES[:1]), TREES[:1])
    same_as_eval(model, model.schedule(TREES, size=5), TREES)
    assert {k: x.tolist() for k, x in model.schedule([]).labels.items()} == {
        'sums': [],
        'pairs': [],
    }


def test_any_object_is_a_label() -> None:
    """The very one, be it a list, an array or what cannot be compared."""
    block = (
        jf.Map(jf.Record((jf.Scalar(), jf.Identity())) >> jf.Metric('m')) >> jf.Void()
    )
    model = jf.compile(block)
    labels = [[1, 2], np.arange(3), object(), (4,), {'x': 1}]
    found = model.schedule([[(n, x) for n, x in enumerate(labels)]]).labels['m']
    assert all(x is y for x, y in zip(found, labels, strict=True))


def test_labels_of_what_waits_for_calls() -> None:
    """Rows of frames that go on in another order than they began."""
    tree = jf.ForwardDeclaration(name='tree', output_type='float32')
    combine = jf.AllOf(jf.GetItem(1) >> jf.GetItem(1) >> tree(), jf.GetItem(0)) >> add
    folded = jf.Fold(combine, jf.Zeros([]))

    @jf.compose
    def node(x: Any) -> Any:
        made = folded(x)
        jf.Metric('m')(made, x)
        return made

    tree.resolve_to(node)
    model = jf.compile(tree())
    examples = [[(0, []), (1, [(2, []), (3, [(4, [])])])], [], [(5, [])]]
    same_as_eval(model, model.schedule(examples), examples)


def test_labels_are_no_part_of_the_pytree() -> None:
    model = jf.compile(labelled())
    first, second = model.schedule(TREES[:1]), model.schedule(TREES[1:2])
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert len(jax.tree.leaves(first)) == 1 + len(first.constants)
    assert jax.tree.map(lambda x: x, first).labels is None
    run = jax.jit(lambda schedule: model.apply({}, schedule)[0])
    run(first), run(second)
    assert run._cache_size() == model.programs == 1
    assert (
        jf.compile(nested(lambda t: jf.Map(t) >> jf.Sum())).schedule([1]).labels == {}
    )


def test_labels_are_kept_in_a_corpus(tmp_path: Path) -> None:
    model = jf.compile(labelled_by_words())
    corpus = model.trace(TREES)
    corpus.save(tmp_path / 'a.jfold')
    model.tracer().save(TREES[::-1], tmp_path / 'b.jfold')
    sent = pickle.loads(pickle.dumps(model.tracer()(TREES)))
    chosen = [2, 0, 2, 1]
    examples = [TREES[k] for k in chosen]
    same_as_eval(model, model.schedule(sent), TREES)
    for each in corpus, jf.Corpus.load(tmp_path / 'a.jfold', model):
        same_as_eval(model, each.schedule(chosen), examples)
    both = jf.Corpus.load(tmp_path, model)
    same_as_eval(model, both.schedule([5, 1]), [TREES[0], TREES[1]])
    joined = model.join([corpus, sent])
    same_as_eval(model, joined.schedule([4, 0]), [TREES[1], TREES[0]])
    assert both.labels['sums'].tolist() == [
        *corpus.labels['sums'],
        *'hg',
        None,
        *'bdcea',
    ]
    for batch in model.batches(corpus, 2, shuffle=jax.random.key(0), epochs=1):
        real = batch.indices[np.asarray(batch.mask)].tolist()
        same_as_eval(model, batch.schedule, [TREES[k] for k in real])


def test_files_of_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    """As they were written before rows were in the order of evaluation."""
    model = jf.compile(jf.Scalar() >> seen())
    model.trace([1, 2]).save(tmp_path / 'a.jfold')
    arrays, metadata = storage.read(tmp_path / 'a.jfold')
    text = json.dumps(metadata).replace("'seen' in order:", "'seen':")
    storage.write(tmp_path / 'a.jfold', arrays, json.loads(text))
    with pytest.raises(ValueError, match=r"with `metric 'seen': .* 'seen' in order: "):
        jf.Corpus.load(tmp_path / 'a.jfold', model)


@pytest.mark.parametrize('label', [(1, 2), object(), {1: 2}, float('nan'), {'x'}])
def test_labels_that_no_file_holds(label: Any, tmp_path: Path) -> None:
    model = jf.compile(labelled_by_words())
    corpus = model.trace([leaf(1, 'a'), leaf(2, label)])
    text = r"metric 'sums': expected labels that a file can hold as JSON .*, got "
    with pytest.raises(TypeError, match=text):
        corpus.save(tmp_path / 'a.jfold')
    assert not list(tmp_path.iterdir())
    assert corpus.nbytes > 0
    assert corpus.schedule([1]).labels['sums'][0] is label


def test_labels_of_shards() -> None:
    """In the order of all rows, those of one shard behind those of another."""
    sharding = over_devices(2, AxisType.Explicit)
    model = jf.compile(labelled_by_words())
    corpus = model.trace(TREES)
    same_as_eval(model, model.schedule(TREES, sharding=sharding), TREES)
    same_as_eval(model, corpus.schedule([0, 1, 2], sharding=sharding), TREES)
    for batch in model.batches(corpus, 2, sharding=sharding, epochs=1):
        real = batch.indices[np.asarray(batch.mask)].tolist()
        same_as_eval(model, batch.schedule, [TREES[k] for k in real])


def test_every_use_of_a_name_has_labels_or_none_has() -> None:
    number, word = jf.GetItem(0) >> jf.Scalar(), jf.GetItem(1)
    plain, pair = number >> jf.Metric('m'), jf.AllOf(number, word) >> jf.Metric('m')
    for blocks, text in ((plain, pair), 'no label'), ((pair, plain), 'a label beside'):
        with pytest.raises(TypeError, match=f'expected {text}.*, as at its other uses'):
            jf.compile(jf.AllOf(*blocks) >> jf.Void())


def test_a_label_alone_is_no_value() -> None:
    for block in jf.Identity(), jf.AllOf(jf.Identity(), jf.Identity()):
        with pytest.raises(TypeError, match='expected a tensor or a tuple of tensors'):
            jf.compile(block >> jf.Metric('m'))
