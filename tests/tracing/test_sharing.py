# SPDX-License-Identifier: Apache-2.0
"""Blocks that are evaluated once for each object of an example."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import number, observed, refuses
from tree_corpora import assert_same

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES
from jfold.tracing.record import trace

KEY = jax.random.key(0)
joined = jf.Function(
    lambda w, x, y: jnp.tanh(w * x + y),
    init=lambda key: jnp.float32(0.5),
    name='joined',
)


def dag(share: Any = jf.Share) -> jf.Block:
    """A value of nested pairs of floats, which may have parts in common."""
    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> joined
    tree.resolve_to(share(jf.OneOf(type, {float: number, list: pair})))
    return tree()


def ladder(depth: int) -> Any:
    """As many objects as steps, and 2^steps paths."""
    made: Any = [1.0, 2.0]
    for _ in range(depth):
        made = [made, made]
    return made


def skipping(depth: int) -> Any:
    """Each object is of the two before: what is met high up is needed below."""
    made: list[Any] = [[1.0, 2.0], [3.0, 4.0]]
    for _ in range(depth):
        made.append([made[-1], made[-2]])
    return made[-1]


def nodes(model: jf.Model, examples: list[Any]) -> int:
    return int(model.trace(examples, progress=False).nodes.sum())


# ---- recursions ----------------------------------------------------------------------


@pytest.mark.parametrize('make', [ladder, skipping])
def test_work_is_linear_in_objects(make: Any) -> None:
    """And as deep as data are, without recursion of Python."""
    model = jf.compile(dag())
    params = model.init(KEY)
    assert nodes(model, [make(3000)]) == (3001 if make is ladder else 3002)
    schedule = model.schedule([make(60)])
    objects = 61 if make is ladder else 62
    assert nodes(model, [make(60)]) == objects
    assert schedule.depth == objects - (make is skipping)
    got = model.apply(params, schedule)
    np.testing.assert_allclose(got[0], model.eval(make(60), params), rtol=1e-5)


@pytest.mark.parametrize(
    ('strategy', 'residuals'), [*zip(STRATEGIES, RESIDUALS, strict=True)]
)
def test_gradients_of_all_uses_add_up(residuals: str, strategy: str) -> None:
    part = [1.0, [2.0, 3.0]]
    other = [part, part[1]]
    examples = [[other, [part, other]], part, 5.0, ladder(6), skipping(6), other]
    model = jf.compile(dag(), residuals=residuals, strategy=strategy)
    agree(model, model.init(KEY), examples)
    shared, apart = (
        each.apply(model.init(KEY), each.schedule(examples))
        for each in (model, jf.compile(dag(lambda block: block)))
    )
    np.testing.assert_allclose(shared, apart, rtol=1e-5)


def test_examples_share_nothing() -> None:
    """An object of two examples is evaluated for both; a batch is its examples."""
    model, part = jf.compile(dag()), ladder(3)
    examples = [part, [part, 1.0], part, skipping(5), [part, [part[0], part]]]
    assert nodes(model, examples) == 4 + 5 + 4 + 7 + 6
    corpus = model.trace(examples, progress=False)
    for i, example in enumerate(examples):
        assert_same(corpus.schedule([i]), model.schedule([example]))


def test_tuples_of_results() -> None:
    tree = jf.ForwardDeclaration(output_type=('float32', 2), name='tree')
    leaf = number >> (lambda x: (x, jnp.stack([x, -x])))
    pair = jf.Record((tree(), tree())) >> (lambda a, b: (a[0] - b[0], a[1] * b[1]))
    tree.resolve_to(jf.Share(jf.OneOf(type, {float: leaf, list: pair})))
    part = [1.0, 2.0]
    agree(jf.compile(tree()), {}, [[part, [part, 3.0]], 1.0])


def test_corpora_in_files_and_tracers_share_as_models_do(tmp_path: Path) -> None:
    """What a key is called is no part of either."""
    model = jf.compile(jf.Map(jf.Share(number)) >> jf.Sum())
    examples = [[300.5] * 3, [1.5, 2.5]]
    model.trace(examples).save(tmp_path / 'c.npz')
    corpus = jf.Corpus.load(tmp_path / 'c.npz', model)
    tracer = pickle.loads(pickle.dumps(model.tracer()))
    want = model.schedule(examples)
    assert_same(corpus.schedule([0, 1]), want)
    assert_same(model.schedule(tracer(examples)), want)


# ---- rounds over graphs --------------------------------------------------------------


def rounds(count: int) -> jf.Block:
    """A value of each atom from those around it, so many times over; their sum."""
    state: jf.Block = jf.Share(jf.GetItem('x') >> number)
    for _ in range(count):
        around = jf.GetItem('around') >> jf.Map(state) >> jf.Sum()
        state = jf.Share(jf.AllOf(state, around) >> joined)
    return jf.Map(state) >> jf.Sum()


def ring(size: int) -> list[Any]:
    """Atoms in a cycle, which contain each other."""
    atoms: list[Any] = [{'x': float(i)} for i in range(size)]
    for i, atom in enumerate(atoms):
        atom['around'] = [atoms[i - 1], atoms[(i + 1) % size]]
    return atoms


@pytest.mark.parametrize('count', [1, 5])
def test_rounds_cost_what_nodes_and_edges_do(count: int) -> None:
    """Not more with each round; the values are those of arrays."""
    model, examples = jf.compile(rounds(count)), [ring(5), ring(3), ring(8)]
    params = model.init(KEY)
    schedule = model.schedule(examples)
    # Of an atom with two neighbours: one addition, one function, each round.
    assert nodes(model, examples) == 2 * count * 16 + len(examples)

    def plain(size: int) -> Any:
        x = jnp.arange(size, dtype='float32')
        for _ in range(count):
            x = jnp.tanh(0.5 * x + (jnp.roll(x, 1) + jnp.roll(x, -1)))
        return x.sum()

    got = model.apply(params, schedule)
    np.testing.assert_allclose(got, list(map(plain, (5, 3, 8))), rtol=1e-5)
    agree(model, params, [ring(3), ring(4)])


@pytest.mark.parametrize('key', [id, lambda x: x[0]])
def test_blocks_on_the_same_objects_and_then_on_others(key: Any) -> None:
    """What numbers the objects of one numbers those of the other, as long as they are
    the same, of the same examples."""
    item = jf.GetItem(0) >> number
    one = jf.Share(item >> jf.Function(jnp.sin), key=key)
    two = jf.Share(jf.AllOf(one, item) >> jf.Function(jnp.multiply), key=key)
    total = jf.AllOf(jf.Map(one) >> jf.Sum(), jf.Map(two) >> jf.Sum())
    model = jf.compile(jf.Record((total, total)) >> jf.Function(lambda x, y: (x, y)))
    a, b, c = ([float(i)] for i in range(3))
    examples = [([a, b, a], [b, c]), ([c, b], [b, c, a]), ([], [a]), ([a], [])]
    agree(model, model.init(KEY), examples)
    agree(model, model.init(KEY), examples[::-1])


def test_a_metric_observes_each_object_once() -> None:
    model = jf.compile(jf.Map(jf.Share(number >> observed('seen'))) >> jf.Sum())
    x, y = 300.5, 400.5
    values, metrics = model.apply({}, model.schedule([[x, y, x], [y, y]]))
    assert values.tolist() == [1001.5, 801.0]
    assert metrics['seen'].values[:3].tolist() == [300.5, 400.5, 400.5]
    assert model.eval([x, y, x])[1]['seen'] == [300.5, 400.5]


@pytest.mark.parametrize('key', [id, lambda x: x])
def test_a_metric_alone_observes_each_object_once(key: Any) -> None:
    """It gives nothing, which is no sign that it has not run."""
    seen = jf.Share(number >> jf.Metric('seen'), key=key)
    uses = [jf.GetItem(k) >> seen for k in (1, 2)]
    block = jf.AllOf(jf.GetItem(0) >> number, *uses) >> jf.GetItem(0)
    x, y = 300.5, 400.5
    graph = trace(jf.compile(block).program, [(1.0, x, x), (2.0, x, y)])
    assert [table.counts.tolist() for table in graph.results] == [[1, 1], [1, 2]]
    assert block.eval((1.0, x, x))[1]['seen'] == [x]


def test_a_list_that_is_empty_is_known_as_others_are() -> None:
    sines = jf.GetItem(0) >> jf.Map(jnp.sin)
    seen = jf.AllOf(jf.GetItem(1) >> jf.Metric('seen'), sines) >> jf.GetItem(1)
    total, length = jf.Sum(), jf.Length()

    @jf.lazy
    def used_twice(x: list[float]) -> Any:
        numbers = seen([jf.float32(v) for v in x], jf.float32(3.0))
        return total(numbers), length(numbers)

    examples = [[1.0, 2.0], []]
    graph = jf.compile(used_twice, like=examples).trace(examples, progress=False).graph
    assert [table.counts.tolist() for table in graph.results] == [[1, 1], [1, 1]]


# ---- keys ----------------------------------------------------------------------------


def test_what_a_key_tells() -> None:
    """Objects of one key are one; without it, those that are made anew are others."""
    fresh = jf.InputTransform(lambda x: [[each, 0] for each in x])
    first = jf.GetItem(0) >> number >> (lambda x: x + 1)
    for share, count in (
        (jf.Share(first), 3),
        (jf.Share(first, key=lambda x: x[0]), 2),
    ):
        model = jf.compile(fresh >> jf.Map(share) >> jf.Sum())
        schedule = model.schedule([[1, 2, 1]])
        assert nodes(model, [[1, 2, 1]]) == count + 1
        assert model.apply({}, schedule).tolist() == [7.0]
        assert model.eval([1, 2, 1]) == 7


def test_keys_that_are_none() -> None:
    model = jf.compile(jf.Map(jf.Share(number, key=lambda x: x.name)) >> jf.Sum())
    with pytest.raises(jf.InputError, match=r'^example 0, at \[0\]: .*no attribute'):
        model.schedule([[1, 2]])
    hint = '; a function such as `operator.itemgetter(...)` reads a field'
    for key in 3, jf.GetItem('id'):
        with refuses(f'Share: expected `key` callable, got {key!r}{hint}'):
            jf.Share(number, key=key)


def test_a_key_that_is_false() -> None:
    class Key(dict[Any, Any]):
        def __call__(self, x: Any) -> Any:
            return x

    seen = number >> observed('seen')
    fresh = jf.InputTransform(lambda x: [float(str(each)) for each in x])
    model = jf.compile(fresh >> jf.Map(jf.Share(seen, key=Key())) >> jf.Sum())
    _, metrics = model.apply({}, model.schedule([[300.5, 300.5]]))
    assert metrics['seen'].mask.sum() == 1


def test_a_cycle_of_keys_names_the_key() -> None:
    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> joined
    cases = jf.OneOf(type, {float: number, list: pair})
    tree.resolve_to(jf.Share(cases, key=lambda x: len(x) if type(x) is list else x))
    with pytest.raises(jf.InputError, match='itself, or to another of the same `fu'):
        jf.compile(tree()).schedule([[1.0, [2.0, 3.0]]])


# ---- what is refused -----------------------------------------------------------------


def test_cycles_are_named() -> None:
    """Also where nothing but the cycle needs it, and beside data that end."""
    model = jf.compile(dag())
    cycle: list[Any] = [1.0]
    cycle.append([2.0, cycle])
    for example, path in ((cycle, ''), ([3.0, cycle], '[1]'), ([cycle[1], cycle], '')):
        with pytest.raises(jf.InputError, match='that leads back to itself') as caught:
            model.schedule([ladder(3), example])
        assert caught.value.example == 1
        assert not path or caught.value.path.startswith(path)
        with pytest.raises(jf.InputError, match='expected data that end, got'):
            model.eval(example, model.init(KEY))
    assert model.schedule([ladder(3)]).examples == 1


def test_values_that_are_each_other() -> None:
    """No function stands between them."""
    link = jf.ForwardDeclaration(output_type='float32', name='link')
    cases = {dict: jf.GetItem('to') >> link(), float: number}
    link.resolve_to(jf.Share(jf.OneOf(type, cases)))
    model, ring = jf.compile(link()), dict[str, Any]()
    ring['to'] = {'to': ring}
    assert model.apply({}, model.schedule([{'to': {'to': 2.0}}])).tolist() == [2.0]
    with pytest.raises(jf.InputError, match='that leads back to itself'):
        model.schedule([ring])


def test_objects_that_come_later_have_numbers_of_their_own() -> None:
    """Two blocks meet the same objects first; the other block then meets more."""
    first = jf.Share(jf.GetItem('x') >> number >> jf.Function(lambda x: 2 * x))
    other = jf.Share(jf.GetItem('x') >> number >> jf.Function(lambda x: 3 * x))
    late = jf.Share(jf.GetItem('kids') >> jf.Map(other) >> jf.Sum())
    block = jf.AllOf(*(jf.Map(each) >> jf.Sum() for each in (first, other, late)))
    kids = [{'x': 10.0 + i} for i in range(3)]
    example = [{'x': 1.0 + i, 'kids': [kid]} for i, kid in enumerate(kids)]
    model = jf.compile(block)
    got = [x.tolist() for x in model.apply({}, model.schedule([example]))]
    assert got == [[12.0], [18.0], [99.0]]


def test_it_prints() -> None:
    assert repr(jf.Share(number)) == "Share(Scalar('float32'))"
    assert repr(jf.Share(number, key=len)) == "Share(Scalar('float32'), key=len)"
    program = jf.compile(jf.Map(jf.Share(number)) >> jf.Sum()).program
    assert 'id(' in str(program)
