# SPDX-License-Identifier: Apache-2.0
"""Lazy functions that make new calls: growth, other processes, and names of layers."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle
import random
import threading
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lazy_models import encode

import jfold as jf
import jfold.models.model

add = jf.Function(jnp.add)
tanh = jf.Function(jnp.tanh)


# ---- in other processes --------------------------------------------------------------


def sent(model: jf.Model) -> Any:
    """The tracer of a model, as another process gets it."""
    return pickle.loads(cloudpickle.dumps(model.tracer()))


def test_tracers_number_calls_as_the_model_does() -> None:
    """Also those whose results nobody reads, or that raise an error at first."""
    total = jf.Sum()

    @jf.lazy
    def head(words: list[Any]) -> Any:
        if words == ['unused']:
            jf.tensor(np.zeros(7, np.float32))
        if len(words) > 2:
            return tanh(jf.float32(3.0)) + total([jf.float32(0.0)])
        first = jf.tensor(np.ones(len(words) + 2, np.float32))[0]
        return add(first, total([jf.float32(x) for x in words if x != 'unused']))

    examples: list[list[Any]] = [[], ['unused'], [1.0], [1.0, 2.0, 3.0]]
    model = jf.compile(head, like=examples)
    alike = model.schedule(sent(model)(examples))
    want = model.apply({}, model.schedule(examples))
    np.testing.assert_array_equal(model.apply({}, alike), want)


def test_tracers_refuse_functions_that_make_other_calls() -> None:
    steps = [tanh, add]

    @jf.lazy
    def changing(x: float) -> Any:
        return steps[0](*[jf.float32(x)] * (1 if steps[0] is tanh else 2))

    tracer = jf.compile(changing, like=[1.0]).tracer()
    steps.reverse()
    with pytest.raises(TypeError, match='expected the same calls in each process'):
        sent_again = pickle.loads(cloudpickle.dumps(tracer))
        sent_again([1.0])


# ---- growth --------------------------------------------------------------------------

scale = jf.Function(lambda p, x: p * x, init=lambda key: jnp.float32(3.0), name='scale')


@jf.lazy
def signed(x: float) -> Any:
    value = jf.float32(abs(x))
    return tanh(value) * 0.0 if x > 0 else scale(value)


def test_schedules_and_batches_of_before_stay_valid() -> None:
    """Batches are made ahead, so the program may grow before one of them is used."""
    model = jf.compile(signed, like=[1.0])
    assert model.init(jax.random.key(0)) == {}
    before, corpus = model.schedule([2.0]), model.trace([1.0, 2.0])
    schedules = [batch.schedule for batch in model.batches([1.0, 2.0, -1.0, 3.0], 1)]
    params = model.init(jax.random.key(0))
    for schedule in (before, corpus.schedule([0]), schedules[0]):
        assert model.apply({}, schedule).tolist() == [0.0]
        gradient = jax.grad(lambda p, s=schedule: model.apply(p, s).sum())(params)
        assert gradient == {'scale': 0.0}
    assert [model.apply(params, x).item() for x in schedules] == [0.0, 0.0, 3.0, 0.0]
    with pytest.raises(TypeError, match="parameters for layer 'scale'"):
        model.apply({}, schedules[2])


def test_examples_with_errors_are_told_as_in_any_batch() -> None:
    model = jf.compile(signed, like=[1.0])
    with pytest.raises(jf.InputError, match=r"example 2: .* got 'a'"):
        model.schedule([1.0, -1.0, 'a'])
    params = model.init(jax.random.key(0))
    assert model.apply(params, model.schedule([1.0, -2.0])).tolist() == [0.0, 6.0]
    tracer = sent(model)
    assert model.apply(params, model.schedule(tracer([-2.0]))).tolist() == [6.0]


def test_new_calls_are_no_errors_to_skip() -> None:
    model = jf.compile(signed, like=[1.0])
    corpus = model.trace([1.0, 'a', -2.0], skip_errors=True)
    assert [number for number, _ in corpus.skipped] == [1]
    params = model.init(jax.random.key(0))
    assert model.apply(params, corpus.schedule([0, 1])).tolist() == [0.0, 6.0]


def test_new_calls_are_no_errors_while_another_thread_makes_schedules() -> None:
    at_work, go_on = threading.Event(), threading.Event()

    @jf.lazy
    def waiting(x: float) -> Any:
        if x == 3.0:
            at_work.set()
            go_on.wait(60)
        value = jf.float32(x)
        return tanh(value) * 0.0 if x == 2.0 else value

    model = jf.compile(waiting, like=[1.0])
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        corpus = threads.submit(model.trace, [2.0, 3.0], skip_errors=True)
        at_work.wait(60)
        model.schedule([1.0])
        go_on.set()
        assert len(corpus.result()) == 2


def test_a_new_metric_that_is_refused_leaves_the_program_as_it_was() -> None:
    @jf.lazy
    def watched(x: float) -> Any:
        value = jf.float32(x)
        if x > 1.0:
            jf.observe('large', value)
        return value

    model = jf.compile(watched, like=[1.0])
    with pytest.raises(jf.InputError, match=r"metric 'large' of .*, a new kind"):
        model.eval(2.0)
    assert model.eval(1.0) == 1.0
    corpus = model.trace(iter([0.5, 2.0, 1.0]), skip_errors=True)
    assert [number for number, _ in corpus.skipped] == [1]
    model.schedule([2.0])
    assert model.eval(2.0) == (2.0, {'large': [2.0]})


@jf.lazy
def halved(n: int) -> Any:
    """A call of another kind for each number up to `n`, one inside the other."""
    value = jf.float32(n)
    for i in range(n):
        value = value / (i + 2)
    return value


@pytest.mark.parametrize('error', [KeyboardInterrupt, MemoryError])
def test_growth_that_is_interrupted_may_be_tried_again(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, examples = jf.compile(halved, like=[1]), [1, 3]
    program, lower = model.program, jfold.models.model.lower

    def interrupted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(jfold.models.model, 'lower', interrupted)
    with pytest.raises(error):
        model.schedule(examples)
    assert model.program is program
    monkeypatch.setattr(jfold.models.model, 'lower', lower)
    assert model.apply({}, model.schedule(examples)).tolist() == [0.5, 0.125]


def test_an_example_that_is_refused_leaves_nothing_behind() -> None:
    """One of calls that are nested too deep for an expression."""
    model = jf.compile(halved, like=[1])
    for _ in range(2):
        with pytest.raises(TypeError, match='nested less deep'):
            model.schedule([4000])
    assert model.apply({}, model.schedule([2])).tolist() == [pytest.approx(1 / 3)]


def test_metrics_of_an_example_with_an_error_are_no_results() -> None:
    """Here, and where another process runs the function on the same examples again."""

    @jf.lazy
    def watched(x: dict[str, Any]) -> Any:
        value = jf.float32(x['value'])
        if 'odd' in x:
            jf.observe('odd', value * 2)
        return {'a': value, 'b': tanh(value)}[x['kind']]

    one, wrong = {'value': 1, 'kind': 'a'}, {'value': 1, 'kind': 'c', 'odd': True}
    model = jf.compile(watched, like=[one])
    program = model.program
    for _ in range(2):
        with pytest.raises(jf.InputError, match="KeyError: 'c'"):
            model.schedule([wrong])
    corpus = model.trace([one, wrong, one], skip_errors=True)
    assert model.apply({}, corpus.schedule([0, 1])).tolist() == [1, 1]
    assert model.programs <= 3
    other = {'value': 0, 'kind': 'b'}
    model.schedule([other])
    schedule = model.schedule(sent(model)([one, other]))
    assert model.apply({}, schedule).tolist() == [1, 0]
    assert model.program is not program


def test_what_a_run_with_an_error_observed_is_forgotten() -> None:
    """Its layers and types, which other examples then need not have."""

    @jf.lazy
    def watched(x: dict[str, Any]) -> Any:
        value = jf.float32(x['value'])
        if 'bad' in x:
            jf.observe('m', scale(jf.tensor(np.ones(3, np.float32))))
            raise ValueError(x)
        if 'm' in x:
            jf.observe('m', value)
        return value

    model, bad = jf.compile(watched, like=[{'value': 1}]), {'value': 1, 'bad': 1}
    params = model.init(jax.random.key(0))
    examples = [bad, {'value': 2, 'm': 1}, {'value': 3}]
    corpus = model.trace(examples, skip_errors=True)
    assert [number for number, _ in corpus.skipped] == [0]
    assert 'ValueError' in corpus.skipped[0][1]
    values, metrics = model.apply(params, corpus.schedule([0, 1]))
    assert (values.tolist(), metrics['m'].values[:1].tolist()) == ([2, 3], [2])


def test_a_metric_of_two_types_in_one_example_is_refused() -> None:
    @jf.lazy
    def watched(x: int) -> Any:
        value = jf.float32(x)
        if x > 1:
            jf.observe('m', value)
            jf.observe('m', (value, value))
        return value

    model = jf.compile(watched, like=[1])
    for _ in range(2):
        with pytest.raises(jf.InputError, match="metric 'm': expected values of one"):
            model.schedule([2])
    assert model.apply({}, model.schedule([1])).tolist() == [1]


def test_logs_say_that_programs_were_lowered_again(caplog: Any) -> None:
    """Their batches are the first, and not because of their size."""
    divided = jf.lazy(lambda n: jf.float32(1.0) / n)
    model = jf.compile(divided, like=[1])
    with caplog.at_level('INFO', logger='jfold'):
        for n in range(1, 12):
            model.schedule([n, n])
    lines = [x for x in caplog.messages if 'for batches of 2' in x]
    again = 'the first of the program that was lowered again'
    assert sum(again in line for line in lines) == 10
    (warning,) = (line for line in lines if '. ' in line)
    assert warning.endswith(
        f'{again}. The expression was lowered 9 times, for calls that `like=` lacks: '
        'give it examples with all calls, and write `x / jf.float32(n)` for `x / n`, '
        'which is a new call for each `n`'
    )


def test_functions_that_use_up_new_data_are_refused() -> None:
    @jf.lazy
    def used_up(x: list[float]) -> Any:
        value = jf.float32(0.0)
        while x:
            value = tanh(add(value, x.pop()))
        return value

    model = jf.compile(used_up, like=[[]])
    with pytest.raises(TypeError, match=r'new ones that were gone .* copy what'):
        model.schedule([[1.0, 2.0]])


def test_functions_may_draw_at_random_among_known_calls() -> None:
    """As for dropout of words: in each run others are left out."""
    draws = random.Random(0)

    @jf.lazy
    def dropped(x: list[float]) -> Any:
        total = jf.float32(0.0)
        for number in x:
            if number < 0:
                total = tanh(total)
            elif draws.random() > 0.5:
                total = add(total, number)
        return total

    model = jf.compile(dropped, like=[[1.0] * 30] * 3)
    assert model.schedule([[1.0] * 30, []]).examples == 2
    assert model.schedule([[1.0] * 30, [-1.0, 1.0, -1.0]] * 9).examples == 18


def test_a_function_may_schedule_with_another_model() -> None:
    other = jf.compile(signed, like=[1.0, -1.0])

    @jf.lazy
    def asking(x: float) -> Any:
        other.schedule([x])
        value = jf.float32(x)
        return tanh(value) if x == 2.0 else value

    model = jf.compile(asking, like=[1.0])
    corpus = model.trace([2.0, 1.0], skip_errors=True)
    assert len(corpus) == 2


def test_tracers_of_before_are_told_that_the_program_has_grown() -> None:
    model = jf.compile(signed, like=[1.0])
    traced = model.tracer()([1.0])
    model.schedule([-1.0])
    with pytest.raises(ValueError, match='made again if its program has grown'):
        model.schedule(traced)


def test_threads_let_one_program_grow() -> None:
    @jf.lazy
    def sums(widths: list[int]) -> Any:
        total = jf.float32(0.0)
        for width in widths:
            total = add(total, jf.tensor(np.ones(width, np.float32))[-1])
        return total

    model = jf.compile(sums, like=[[1]])
    batches = [[[n, 1 + n % 3]] for n in range(1, 9)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        schedules = [*threads.map(model.schedule, batches)]
    assert [model.apply({}, x).item() for x in schedules] == [2.0] * 8


embed = jf.Function(lambda i: jnp.ones(4)[i], name='embed')
number = jf.Scalar('int32') >> embed
word = jf.InputTransform({'a': 1}) >> number
NEW: dict[str, tuple[jf.Block, Any]] = {
    'a number': (number, 2),
    'a string': (word, 'a'),
    'a list': (jf.Map(word) >> jf.Sum(), ['a', 'a']),
    'nothing': (jf.Optional(number, jf.Zeros([])), None),
}


@pytest.mark.parametrize('data', NEW)
def test_blocks_that_run_on_data_later_let_a_program_grow(data: str) -> None:
    block, example = NEW[data]
    read = jf.lazy(lambda x: embed(0) if x == 5 else block(x))
    model = jf.compile(read, like=[5])
    with pytest.raises(jf.InputError, match=r'got .*, a new kind'):
        model.predict({}, [example], progress=False)
    assert model.apply({}, model.schedule([example, 5])).shape == (2,)


def test_blocks_that_take_no_data_are_no_new_kind() -> None:
    cell = tanh >> tanh
    read = jf.lazy(lambda x: cell(x['v'] if 'raw' in x else jf.float32(x['v'])))
    model = jf.compile(read, 1, like=[{'v': 1.0}])
    wrong, program = {'v': 'a', 'raw': 1}, model.program
    model.schedule([{'v': 1.0}])
    for use in (model.schedule, lambda x: model.predict({}, x, progress=False)):
        with pytest.raises(jf.InputError, match="got 'a': look up its number first"):
            use([wrong])
    assert [x for x, _ in model.trace([wrong], skip_errors=True).skipped] == [0]
    assert model.program is program


def test_programs_before_and_after_growth_count_together() -> None:
    model = jf.compile(signed, 2, like=[1.0])
    model.schedule([1.0])
    grown = model.schedule([-1.0])
    assert model.programs == 2
    params = model.init(jax.random.key(0))
    assert model.apply(params, grown).tolist() == [3.0]
    assert model.apply(params, model.schedule([-2.0])).tolist() == [6.0]

    full = jf.compile(signed, 1, like=[1.0])
    full.schedule([1.0])
    for _ in range(2):
        with pytest.raises(
            jf.ProgramBudgetError, match=r'as 1 programs are in use.* a new call for'
        ):
            full.schedule([-1.0])
    assert full.apply({}, full.schedule([2.0])).tolist() == [0.0]


# ---- names of layers -----------------------------------------------------------------


def gain(name: str, init: Any) -> Any:
    def call(params: Any, x: Any) -> Any:
        return params * x

    call.__name__ = name
    return jf.Function(call, init)


@pytest.mark.parametrize('like', [[1, 2, 3], [3, 2, 1], [4]])
def test_layers_are_numbered_as_the_model_makes_them(like: list[int]) -> None:
    """In any order of examples, and also those behind the lazy function."""
    first, second, last = [gain('gain', lambda key, k=k: 2.0 + k) for k in range(3)]

    @jf.lazy
    def gains(x: int) -> Any:
        value = jf.float32(1.0)
        if x == 4:
            return first(second(value))
        return (second if x == 2 else first)(value)

    model = jf.compile(gains >> last, like=like)
    params = model.init(jax.random.key(0))
    assert params == {'gain': 2.0, 'gain_1': 3.0, 'gain_2': 4.0}
    assert model.apply(params, model.schedule([1, 2])).tolist() == [8.0, 12.0]


def test_layers_keep_their_names_when_a_program_grows() -> None:
    first, second, last = [gain('gain', lambda key, k=k: 2.0 + k) for k in range(3)]

    @jf.lazy
    def gains(x: int) -> Any:
        value = jf.float32(1.0)
        for layer in (second, first)[:x]:
            value = layer(value)
        return value

    model = jf.compile(gains >> last, like=[0])
    params = model.init(jax.random.key(0))
    assert params == {'gain': 4.0}
    for example, want in ((1, 12.0), (2, 24.0)):
        schedule = model.schedule([example])
        more = model.init(jax.random.key(0))
        assert more == {**more, **params}
        params = more
        assert model.apply(params, schedule) == want
    assert params == {'gain': 4.0, 'gain_1': 3.0, 'gain_2': 2.0}


# ---- the same model, made again ------------------------------------------------------


def redefined(width: int, bias: float) -> jf.Model:
    layer = jf.Function(lambda x: x[:width].sum() + bias, name='layer')

    @jf.lazy
    def summed(x: list[float]) -> Any:
        return layer(jf.tensor(np.asarray(x, np.float32)))

    return jf.compile(summed, like=[[1.0, 2.0, 3.0]])


def test_what_was_traced_fits_a_model_made_again() -> None:
    """As in another process, or in a notebook where layers were changed."""
    one, other = redefined(2, 0.0), redefined(3, 1.0)
    examples = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    parts = [one.trace(examples), one.tracer()(examples)]
    corpus = other.join(parts)
    assert other.apply({}, corpus.schedule([0, 3])).tolist() == [7.0, 16.0]


def test_copies_of_a_model_grow_apart() -> None:
    model = jf.compile(encode, like=[4])
    other = copy.deepcopy(model)
    assert other.schedule([(1, 2), 3]).examples == 2
    assert [len(x.program.operations) for x in (model, other)] == [1, 2]
    assert model.schedule([(1, 2)]).examples == 1
