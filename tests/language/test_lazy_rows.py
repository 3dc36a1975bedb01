# SPDX-License-Identifier: Apache-2.0
"""Lazy functions record rows when they call: in order, and those that are read."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree

import jfold as jf
from jfold.tracing.check_graph import check_graph
from jfold.tracing.record import trace

NUMBERS = [3.0, 1.0, 2.0]
KEY = {'noise': jax.random.key(3)}
noisy = jf.Function(lambda x, noise: x + jax.random.normal(noise), rngs='noise')
double = jf.Function(lambda x: 2 * x, name='double')
logarithm = jf.Function(jnp.log, name='logarithm')
scaled = jf.Function(lambda p, x: p * x, lambda key: jnp.ones(()), name='scaled')
root = jf.Function(jnp.sqrt, name='root')
total = jf.Sum()
less = jf.Function(jnp.subtract, name='less')


def graphs(*functions: Any, examples: Any = (NUMBERS, [5.0])) -> list[Any]:
    """The graphs of examples, one for each lazy function, each checked."""
    made = []
    for function in functions:
        program = jf.compile(function, like=[*examples]).program
        made.append(trace(program, examples))
        check_graph(program, made[-1])
    return made


def check_draws(block: jf.Block, examples: list[Any]) -> None:
    """A batch draws what each of its examples draws alone."""
    model = jf.compile(block, like=examples)
    found = model.apply({}, model.schedule(examples), rngs=KEY)
    for k, example in enumerate(examples):
        want = block.eval(example, {}, rngs=KEY, id=k)
        rows = jax.tree.map(lambda x, k=k: x[k], found)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5), rows, want)


def test_rows_stand_in_the_order_of_calls() -> None:
    @jf.lazy
    def backwards(numbers: Any) -> Any:
        last, *others = [double(jf.float32(x)) for x in reversed(numbers)]
        for value in others:
            last = less(value, last)
        return last

    (graph,) = graphs(backwards, examples=[NUMBERS])
    (constants,) = (x.columns[0].tolist() for x in graph.constants)
    assert constants == [2, 1, 3]
    agree(jf.compile(backwards, like=[NUMBERS]), {}, [NUMBERS, [5.0]])


def test_draws_are_numbered_in_the_order_of_calls() -> None:
    @jf.lazy
    def drawing(numbers: Any) -> Any:
        values = [noisy(jf.float32(x)) for x in reversed(numbers)]
        noisy(values[0])  # dropped: it draws nothing
        values.append(noisy(values[-1]))
        return less(values[-1], total(values[::-1]))

    check_draws(drawing, [NUMBERS, [5.0]])


def test_calls_that_nothing_reads_have_no_rows() -> None:
    @jf.lazy
    def tidy(numbers: Any) -> Any:
        value = scaled(jf.float32(numbers[0]))
        for x in numbers[1:]:
            value = less(value, scaled(jf.float32(x)))
        return value

    @jf.lazy
    def dropping(numbers: Any) -> Any:
        value = scaled(jf.float32(numbers[0]))
        for x in numbers[1:]:
            unread = scaled(logarithm(value - value))
            less(unread, scaled(unread))
            value = less(value, scaled(jf.float32(x)))
            jf.tensor(np.ones(3, np.float32))
        return value

    one, other = graphs(tidy, dropping)
    assert one.nodes_of_examples.tolist() == other.nodes_of_examples.tolist() == [5, 1]
    counts = [sum(map(len, x.constants)) for x in (one, other)]
    assert counts == [4, 4]  # numbers
    model = jf.compile(dropping, like=[NUMBERS])
    params = {'scaled': jnp.ones(())}
    agree(model, params, [NUMBERS, [5.0]])
    gradients = jax.grad(lambda p: model.apply(p, model.schedule([NUMBERS])).sum())
    assert gradients(params)['scaled'] == 0  # and not NaN


def test_draws_do_not_depend_on_what_is_read() -> None:
    pair = jf.AllOf(noisy, noisy) >> jf.GetItem(1)

    @jf.lazy
    def second(x: float) -> Any:
        return pair(jf.float32(x))

    dropped = jf.Map(jf.Scalar() >> noisy) >> jf.Void()
    alone, beside = jf.Scalar() >> pair, jf.Map(second) >> jf.Sum()
    check_draws(second, [2.0, 3.0])
    check_draws(jf.AllOf(dropped, beside), [[2.0, 3.0], [4.0]])
    want = alone.eval(2.0, {}, rngs=KEY)
    np.testing.assert_allclose(second.eval(2.0, {}, rngs=KEY), want, rtol=1e-6)


def beside(shared: jf.Block, other: jf.Block) -> list[jf.Block]:
    """A function that drops a call of `shared` beside one that reads one, both ways."""

    @jf.lazy
    def dropping(x: float) -> Any:
        shared(jf.float32(5.0))
        return other(jf.float32(x))

    @jf.lazy
    def reading(x: float) -> Any:
        return shared(jf.float32(x))

    return [jf.AllOf(dropping, reading), jf.AllOf(reading, dropping)]


def test_what_one_function_drops_another_may_read() -> None:
    noisier = jf.Function(lambda x, noise: x * jax.random.normal(noise), rngs='noise')
    for block in beside(noisier, noisy):
        check_draws(block, [1.0, 2.0])


def test_a_fault_is_found_behind_what_another_function_drops() -> None:
    for block in beside(logarithm, double):
        fault = str(jf.find_nan(jf.compile(block, like=[1.0]), {}, [2.0, -1.0]))
        assert fault.endswith('].Function(logarithm)')
        assert 'example 1: ' in fault


def test_a_fault_is_found_behind_calls_that_nothing_reads() -> None:
    both = logarithm >> double

    @jf.lazy
    def faulty(numbers: Any) -> Any:
        read = logarithm(jf.float32(numbers[0]))
        return read if len(numbers) > 2 else both(jf.float32(numbers[1]))

    model = jf.compile(faulty, like=[NUMBERS, [1.0, 2.0]])
    found = str(jf.find_nan(model, {}, [NUMBERS, [-3.0, -8.0]]))
    assert 'example 1: expected finite values of logarithm' in found
    assert 'got nan of -8.0, in line ' in found
    assert 'both(jf.float32(numbers[1]))`; in Pipe.' in found


def test_a_fault_is_found_with_the_line_of_its_call() -> None:
    """Of a value, of a gradient, and of the data."""

    @jf.lazy
    def faulty(x: float) -> Any:
        doubled = scaled(jf.float32(x))
        return root(doubled)

    model = jf.compile(faulty, like=[1.0])
    params = model.init(jax.random.key(0))
    for x, start in (-1.0, 'finite values'), (0.0, 'a finite gradient of input 0'):
        found = str(jf.find_nan(model, params, [1.0, x]))
        assert found.startswith(f'example 1: expected {start} of root(float32[])')
        assert ' of test_lazy_rows.py, `return root(doubled)`; in ' in found
    found = str(jf.find_nan(model, params, [math.inf]))
    assert found.startswith('example 0: expected finite numbers, got inf in the data')
    assert ' of test_lazy_rows.py, `doubled = scaled(jf.float32(x))`; in ' in found


def test_data_of_calls_that_nothing_reads_are_checked() -> None:
    @jf.lazy
    def dropping(numbers: Any) -> Any:
        double(jf.int32(numbers[0]))
        return double(jf.int32(numbers[1]))

    model = jf.compile(dropping, like=[[1, 2]])
    text = r'example 1: expected int32\[\], got 1099511627776, which int32 cannot hold'
    with pytest.raises(jf.InputError, match=text):
        model.schedule([[3, 4], [2**40, 1]])


def test_metrics_are_collected_even_if_nothing_reads_the_call() -> None:
    watched = jf.AllOf(double, logarithm >> jf.Metric('seen')) >> jf.GetItem(0)

    @jf.lazy
    def watching(numbers: Any) -> Any:
        watched(jf.float32(numbers[0]))
        return jf.float32(numbers[1])

    model = jf.compile(watching, like=[NUMBERS])
    value, metrics = model.apply({}, model.schedule([NUMBERS]))
    assert value.tolist() == [1]
    np.testing.assert_allclose(metrics['seen'].values[0], np.log(3.0), rtol=1e-6)
    agree(model, {}, [NUMBERS, [4.0, 5.0]])


def test_an_error_in_a_call_is_told_even_if_the_function_catches_it() -> None:
    """Rows of the call may be missing."""
    pair = jf.Record({'a': jf.Scalar(), 'b': jf.Scalar()}) >> less

    @jf.lazy
    def catching(x: Any) -> Any:
        try:
            return pair(x)
        except Exception:
            return pair({'a': 1, 'b': 2})

    model = jf.compile(catching, like=[{'a': 1, 'b': 2}])
    text = r"example 1: expected an item 'b', .* `return pair\(x\)`; in"
    with pytest.raises(jf.InputError, match=text):
        model.schedule([{'a': 1, 'b': 2}, {'a': 3}])
    assert model.apply({}, model.schedule([{'a': 1, 'b': 2}])).tolist() == [-1]


def test_an_error_in_a_call_on_values_is_told_even_if_it_is_caught() -> None:
    """Of kinds of calls that are all known."""
    each, two, pair = jf.Map(double), jf.Stack(2), jf.Function(jnp.sum)

    @jf.lazy
    def catching(x: Any) -> Any:
        doubled = each([jf.float32(number) for number in x['numbers']])
        if not x['are_two']:
            return total(doubled)
        try:
            return pair(two(doubled))
        except ValueError:
            return total(doubled)

    like = [{'numbers': [1, 2], 'are_two': two} for two in (True, False)]
    model = jf.compile(catching, like=like)
    text = 'example 1: expected at most 2 items, got 3; cut it by a Slice'
    with pytest.raises(jf.InputError, match=text):
        model.schedule([like[0], {'numbers': [1, 2, 3], 'are_two': True}])
    assert model.apply({}, model.schedule(like)).tolist() == [6, 6]


def test_blocks_that_lazy_functions_call_on_data_nested_deep() -> None:
    nested = jf.ForwardDeclaration(name='nested')
    last, inner = jf.Scalar(), jf.GetItem(0) >> nested() >> double
    nested.resolve_to(jf.OneOf(type, {float: last, list: inner}))
    innermost = nested()

    @jf.lazy
    def reading(x: Any) -> Any:
        return double(innermost(x))

    model = jf.compile(reading, like=[[[1.0]]])
    deep: Any = 0.0
    for _ in range(3000):
        deep = [deep]
    schedule = model.schedule([deep, [1.0]])
    assert model.apply({}, schedule).tolist() == [0, 4]


def test_items_of_results_are_told_apart() -> None:
    both = jf.Function(lambda x: (x + 1, {'twice': 2 * x}), name='both')

    @jf.lazy
    def reading(numbers: Any) -> Any:
        one, other = both(jf.float32(numbers[0]))
        return less(scaled(one), double(other['twice']))

    graphs(reading)  # in which each operation reads what the program says
    model = jf.compile(reading, like=[NUMBERS])
    agree(model, {'scaled': jnp.ones(())}, [NUMBERS, [5.0]])


def test_host_functions_in_calls_on_data_run_outside_of_the_recording() -> None:
    """They may call blocks for themselves."""

    def computed(x: float) -> float:
        model = jf.compile(jf.Scalar() >> jf.compose(lambda a: double(double(a))))
        return float(model.eval(x, {}))

    read = jf.InputTransform(computed) >> jf.Scalar()

    @jf.lazy
    def calling(x: float) -> Any:
        return double(read(x))

    model = jf.compile(calling, like=[1.0])
    assert model.apply({}, model.schedule([2.0, 3.0])).tolist() == [16, 24]


def test_data_changed_after_a_call_are_told() -> None:
    pair = jf.Record({'a': jf.Scalar(), 'b': jf.Scalar()}) >> less

    @jf.lazy
    def late(x: Any) -> Any:
        data = {'a': x}
        value = pair(data)
        data['b'] = 2 * x
        return value

    with pytest.raises(RuntimeError, match='change no data that a block was called on'):
        jf.compile(late, like=[1.0]).schedule([1.0])


def test_chains_that_nothing_reads_may_be_long() -> None:
    @jf.lazy
    def dropping(n: int) -> Any:
        value = unread = double(jf.float32(n))
        for _ in range(n):
            unread = less(double(unread), value)
        return value if n else unread

    (graph,) = graphs(dropping, examples=[0, 5000, 3])
    assert graph.nodes_of_examples.tolist() == [1, 1, 1]
