# SPDX-License-Identifier: Apache-2.0
"""Sums of values in place, and slots that read the same rows, without loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from agreement import agree
from hlo import compiled_text
from reading import compiled, items, layer, lists, other, shared, times, told, total

import jfold as jf

# ---- summands in place ---------------------------------------------------------------

largest = jf.Function(lambda x: jax.lax.stop_gradient(x) * 1.0, name='largest')


@jf.compose
def weighed(x: Any) -> Any:
    """The sum of numbers, weighed by their softmax."""
    return jf.Sum()(times(jf.Softmax()(x), x))


@jf.compose
def parts(x: Any) -> Any:
    """Sums of some of the items alone; nobody else reads these."""
    return jf.Sum()(jf.Slice(stop=4, step=2)(items(x)))


def test_some_values_may_be_added_to_no_row() -> None:
    """Where a sum skips items, and in lists of one item, whose sum is that item."""
    model, params = compiled(parts >> other)
    examples = lists(1, 2, 0, 3, 8, 1)
    schedule = model.schedule(examples)
    assert 'other 0: summed_in_place' in told(model, schedule.spec)
    agree(model, params, examples, forward=True)
    model, params = compiled(shared)
    agree(model, params, [*lists(1, 1, 30), *lists(0, 1)], forward=True)


def test_extrema_are_taken_in_place() -> None:
    """Also of sequences of one item, and of constants of the data."""
    for given in jf.Map(jf.Scalar()), jf.Map(jf.Scalar() >> jf.Function(jnp.sin)):
        for reduce in jf.Max(), jf.Min():
            model = jf.compile(given >> reduce >> largest)
            examples = [[1.0, 5.0, -3.0], [], [-2.0], [-1.0] * 9, [-9.0, -7.0] * 9]
            modes = told(model, model.schedule(examples).spec)
            assert any(x.endswith('-1: summed_in_place') for x in modes)
            agree(model, {}, examples)


def test_what_is_added_up_twice_needs_an_index() -> None:
    """In one sum, and in two of them; then sums are no longer taken in place."""
    once = jf.Share(jf.GetItem('x') >> jf.Vector(2) >> layer, key=lambda x: x['k'])
    block = {'a': jf.GetItem('a') >> jf.Map(once) >> jf.Sum() >> other}
    block['b'] = jf.GetItem('b') >> jf.Map(once) >> jf.Sum() >> other
    model, params = compiled(jf.AllOf(*block.values()))
    x, y, z = ({'k': i, 'x': np.ones(2, 'float32') * i} for i in range(3))
    apart = [{'a': [x, y], 'b': [z]}, {'a': [], 'b': [y]}]
    assert 'other 0: summed_in_place' in told(model, model.schedule(apart).spec)
    agree(model, params, apart, forward=True)
    for twice in [{'a': [x, y, x], 'b': []}], [{'a': [x, y], 'b': [y, z]}]:
        assert 'other 0: summed' in told(model, model.schedule([*apart, *twice]).spec)
        agree(model, params, [*apart, *twice], forward=True)


def test_of_few_values_some_may_be_added_up_twice() -> None:
    """Then numbers do not tell: there are more values than are added up."""
    once = jf.Share(jf.GetItem('x') >> jf.Vector(2) >> layer, key=lambda x: x['k'])
    two = jf.compose(lambda x: jf.Sum()(jf.Slice(stop=2)(jf.Map(once)(x))))
    model, params = compiled(two >> other)
    x, y, z = ({'k': i, 'x': np.ones(2, 'float32') * i} for i in range(3))
    examples = [[x, y, z], [z, z, x, y], [y, y, z]]
    agree(model, params, examples, forward=True)
    assert 'other 0: summed' in told(model, model.schedule(examples).spec)


def test_few_values_of_many_are_added_up_by_an_index() -> None:
    """In place there is a target for each value, though it is added to no row."""
    few = jf.compose(lambda x: jf.Sum()(jf.Slice(stop=2)(items(x))))
    model, params = compiled(few >> other)
    schedule = model.schedule(lists(60, 3))
    assert 'other 0: summed' in told(model, schedule.spec)
    agree(model, params, lists(60, 3, 0, 1), forward=True)
    fields = 6  # of which each adds up its own share of one producer's values
    shares = [jf.GetItem(k) >> items >> jf.Sum() for k in range(fields)]
    model, params = compiled(jf.AllOf(*shares))
    examples = [tuple(lists(*[3] * fields)), tuple(lists(*range(fields)))]
    schedule = model.schedule(examples)
    modes = told(model, schedule.spec)
    assert modes[1:] == [f'result {k}: summed' for k in range(fields)]
    agree(model, params, examples, forward=True)


def test_softmax_and_a_sum_of_what_it_weighs() -> None:
    """Sums that are read often have rows; the last, which is read once, has none."""
    affine = jf.Function(lambda w, x: w * x, lambda key, x: jnp.ones([]), name='affine')
    model, params = compiled(jf.Map(jf.Scalar() >> affine) >> weighed >> affine)
    examples = [[1.0, 2.0, 3.0], [4.0], [], [0.5] * 20]
    modes = told(model, model.schedule(examples).spec)
    assert 'divide 1: indexed' in modes
    assert 'result 0: in_place' in modes
    agree(model, params, examples, forward=True)


def test_a_sum_of_sums() -> None:
    """Of items, in place; or by index, where an inner sum is read again."""
    model, params = compiled(jf.Map(total) >> jf.Sum() >> other)
    examples = [lists(3, 1), lists(0, 2, 9), [], lists(0)]
    assert 'other 0: summed' in told(model, model.schedule(examples).spec)
    agree(model, params, examples, forward=True)
    twice = jf.compose(lambda x: jf.AllOf(jf.Sum(), jf.Sum())(jf.Map(total)(x)))
    agree(*compiled(twice), examples, forward=True)


def test_the_order_of_sums_does_not_depend_on_how_they_are_read() -> None:
    """In place, by index, or with rows: so the capacity does not count either."""
    item = jf.Vector(64) >> layer
    block = jf.Map(item) >> jf.Sum() >> other
    rng = np.random.default_rng(0)
    examples = [list(rng.normal(size=(n, 64)).astype('float32')) for n in (30, 77, 1)]
    results = []
    for change in {}, {'indexed': ()}, {'sum_rows': (1, 1, 1, 1)}:
        model, params = compiled(block)
        room = model.trace(examples, progress=False).capacities(3)
        model.reserve(replace(room, **change))
        results.append(np.asarray(model.apply(params, model.schedule(examples))))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_the_gradient_of_a_sum_in_place_is_a_gather() -> None:
    """Not a scatter, which a GPU does by atomics."""
    model, params = compiled(total >> other)
    schedule = model.schedule(lists(3, 4))

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return model.apply(params, schedule).sum()

    for function, gathers in (model.apply, 0), (jax.grad(loss), 1):
        text = compiled_text(function, params, schedule)
        assert (text.count(' gather('), text.count(' scatter(')) <= (gathers, 1)


# ---- what two slots read alike -------------------------------------------------------

dot = jf.Function(jnp.vdot, name='dot')


@jf.compose
def attend(query: Any, values: Any) -> Any:
    """The sum of values, weighed by the softmax of their products with a query."""
    scores = jf.ZipWith(dot)(jf.Broadcast()(query), values)
    return jf.Sum()(times(jf.Softmax()(scores), values))


@jf.compose
def attention(xs: Any, ys: Any) -> Any:
    values = jf.Broadcast()(items(ys))
    return jf.Sum()(jf.ZipWith(attend)(items(xs), values))


def two_lists(*lengths: tuple[int, int]) -> list[Any]:
    return [tuple(lists(*pair)) for pair in lengths]


def test_two_slots_that_read_alike_share_one_gather() -> None:
    """In attention the products, and the weighed values, of the same pairs."""
    model, params = compiled(jf.Record((jf.Identity(), jf.Identity())) >> attention)
    examples = two_lists((3, 2), (1, 4), (0, 3), (2, 0), (5, 9))
    schedule = model.schedule(examples)
    modes = told(model, schedule.spec)
    assert 'dot 1: indexed' in modes
    assert 'multiply 1: shared' in modes
    agree(model, params, examples, forward=True)
    room = schedule.capacity
    rows = [n + 40 * (o % 2) for o, n in enumerate(room.rows)]
    model.reserve(replace(room, rows=tuple(rows)))
    agree(model, params, examples, forward=True)


def test_slots_that_read_alike_at_first_may_be_apart_later() -> None:
    """Then there is one program more, with an index for each."""
    once = jf.Share(jf.GetItem('x') >> jf.Vector(2) >> layer, key=lambda x: x['k'])
    sums = {
        name: jf.GetItem(name)
        >> jf.Map(once)
        >> jf.Map(jf.Function(function, name=function.__name__))
        >> jf.Sum()
        for name, function in (('a', jnp.sin), ('b', jnp.cos))
    }
    model, params = compiled(jf.AllOf(*sums.values()))
    x, y, z = ({'k': i, 'x': np.ones(2, 'float32') * i} for i in range(3))
    alike = [{'a': [x, y, x], 'b': [x, y, x]}, {'a': [z], 'b': [z]}]
    first = model.schedule(alike, size=4)
    assert 'cos 0: shared' in told(model, first.spec)
    agree(model, params, alike, forward=True)
    for example in {'a': [x, y], 'b': [y, x]}, {'a': [x, x], 'b': [x]}:
        second = model.schedule([*alike, example], size=4)
        assert 'cos 0: indexed' in told(model, second.spec)
        agree(model, params, [alike[0], example, alike[1]], forward=True)
    assert model.schedule(alike, size=4).spec is second.spec


def test_where_some_slots_need_more_all_get_it() -> None:
    """Batches that each need it elsewhere have one program more, not one for each."""
    once = jf.Share(jf.GetItem('x') >> jf.Vector(2) >> layer, key=lambda x: x['k'])
    names, functions = 'abcd', (jnp.sin, jnp.cos, jnp.tan, jnp.tanh)
    sums = [
        jf.GetItem(name) >> jf.Map(once) >> jf.Map(jf.Function(function)) >> jf.Sum()
        for name, function in zip(names, functions, strict=True)
    ]
    model, params = compiled(jf.AllOf(*sums))
    x, y = ({'k': i, 'x': np.ones(2, 'float32') * i} for i in range(2))
    alike = {name: [x, y, x] for name in names}
    model.schedule([alike])
    for name in names:
        example = alike | {name: [y, x, x]}
        model.schedule([example])
        agree(model, params, [example], forward=True)
    assert model.programs == 2
    fields = [
        jf.GetItem(k)
        >> jf.Map(jf.Vector(k + 2) >> jf.Function(nn.Dense(k + 1)))
        >> jf.compose(lambda x: times(x, jf.Broadcast()(jf.Sum()(x))))
        >> jf.Sum()
        for k in range(4)
    ]
    model, params = compiled(jf.AllOf(*fields))
    single = [[np.ones(k + 2, 'float32')] for k in range(4)]
    model.schedule([tuple(single)])
    for k in range(4):
        example = tuple(2 * x if i == k else x for i, x in enumerate(single))
        agree(model, params, [example], forward=True)
        model.schedule([example])
    assert model.programs <= 4  # two of these since sums of two items come
