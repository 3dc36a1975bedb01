# SPDX-License-Identifier: Apache-2.0
"""Tracebacks show a user's frames; those of jfold only where JAX shows its own."""

from __future__ import annotations

import contextlib
import doctest
import gc
import inspect
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from mistakes.common import modules

import jfold as jf
from jfold.base import tracebacks
from jfold.data import corpus
from jfold.models import model

number = jf.Scalar()


@contextmanager
def filtering(mode: str) -> Iterator[None]:
    before = jax.config.jax_traceback_filtering
    jax.config.update('jax_traceback_filtering', mode)
    try:
        yield
    finally:
        jax.config.update('jax_traceback_filtering', before)


def failing(value: Any) -> Any:
    return value['missing']


def schedule_wrongly() -> BaseException:
    made = jf.compile(jf.InputTransform(failing) >> number)
    with pytest.raises(jf.InputError) as caught:
        made.schedule([{'x': 1}])
    return caught.value


def names(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize('mode', ['auto', 'remove_frames', 'quiet_remove_frames'])
def test_frames_of_a_user_are_left(mode: str) -> None:
    with filtering(mode):
        error = schedule_wrongly()
    assert names(error) == ['schedule_wrongly']
    assert names(error.__cause__) == ['failing']


def test_off_shows_every_frame() -> None:
    with filtering('off'):
        error = schedule_wrongly()
    assert sum(name.startswith('jfold') for name in modules(error)) >= 5
    assert names(error.__cause__)[-1] == 'failing'


def interrupt(value: Any) -> Any:
    raise KeyboardInterrupt


class Interrupted(list[Any]):
    """Examples that end so."""

    def __iter__(self) -> Iterator[Any]:
        yield [1.0]
        raise KeyboardInterrupt


def interrupted_layer() -> None:
    jf.compile(number >> jf.Function(interrupt, name='f'))


sums = jf.Map(number) >> jf.Sum()
INTERRUPTED: dict[str, Callable[[], Any]] = {
    'a layer': lambda: jf.compile(number >> jf.Function(interrupt, name='f')),
    'data': lambda: jf.compile(jf.InputTransform(interrupt) >> number).schedule([1]),
    'trace': lambda: jf.compile(sums).trace(Interrupted()),
    'predict': lambda: jf.compile(sums).predict({}, iter(Interrupted())),
}


@pytest.mark.parametrize('name', INTERRUPTED)
def test_ctrl_c_shows_the_frames_of_a_user(name: str) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        INTERRUPTED[name]()
    inside = 'interrupt' if name in ('a layer', 'data') else '__iter__'
    assert names(caught.value)[1:] == ['<lambda>', inside]


class Local:
    """Something that a function holds when it is interrupted."""


def test_ctrl_c_keeps_nothing_alive() -> None:
    """Not even until the next collection of cycles."""

    def work() -> weakref.ref[Local]:
        held = Local()
        is_dead = weakref.ref(held)
        with contextlib.suppress(KeyboardInterrupt):
            train(held)
        return is_dead

    def train(_: Local) -> None:
        jf.compile(sums).trace(Interrupted())

    gc.collect()
    gc.disable()
    try:
        assert work()() is None
    finally:
        gc.enable()


def without_room(value: Any) -> Any:
    raise MemoryError('without room')


class Unreadable:
    """An array, or a sequence, that finds no room for its numbers."""

    __array__ = __getitem__ = __float__ = lambda *_, **__: without_room(None)

    def __len__(self) -> int:
        return 1


READ: dict[str, Callable[[jf.Model, Any], Any]] = {
    'schedule': lambda made, example: made.schedule([example]),
    'eval': lambda made, example: made.eval(example),
    'trace': lambda made, example: made.trace([example], skip_errors=True),
    'batches': lambda made, example: next(made.batches([example], 1, skip_errors=True)),
}


@pytest.mark.parametrize('name', READ)
def test_an_example_is_not_blamed_for_memory_that_is_full(name: str) -> None:
    lazy = jf.compile(jf.lazy(lambda x: jf.float32(x or without_room(x))), like=[1])
    for made, example in [
        (jf.compile(jf.InputTransform(without_room) >> number), 1),
        (jf.compile(jf.OneOf(without_room, {1: number})), 1),
        (jf.compile(sums), Unreadable()),
        (jf.compile(number), Unreadable()),
        (lazy, 0),
    ]:
        with pytest.raises(MemoryError, match='without room') as caught:
            READ[name](made, example)
        assert names(caught.value)[-1] == 'without_room'
        assert not any(x.startswith('jfold') for x in modules(caught.value))


def test_ctrl_c_while_jax_traces_hides_the_frames_of_jax_from_shells() -> None:
    """JAX hides them itself, but for what is no `Exception`."""

    @jax.jit
    def step(x: Any) -> Any:
        interrupted_layer()
        return x

    with pytest.raises(KeyboardInterrupt) as caught:
        step(1.0)
    shown = [
        frame.f_globals['__name__']
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        if '__tracebackhide__' not in frame.f_locals
    ]
    assert set(shown) == {__name__}


class InFlax(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(3)(x)


def test_frames_of_flax_are_left_out() -> None:
    with pytest.raises(TypeError, match='expected to run on inputs') as caught:
        jf.compile(number >> InFlax())
    assert names(caught.value.__cause__) == ['__call__']


def test_frames_of_libraries_between_are_left_out() -> None:
    made = jf.compile(jf.InputTransform(np.vectorize(failing)) >> number)
    with pytest.raises(jf.InputError) as caught:
        made.schedule([1.0])
    assert names(caught.value.__cause__) == ['failing']


@tracebacks.api_boundary
def outer(inner: Any) -> Any:
    return inner()


def test_causes_and_suppressed_contexts_stay() -> None:
    def raises() -> None:
        try:
            raise KeyError('first')
        except KeyError as error:
            raise ValueError('second') from error

    def raises_alone() -> None:
        try:
            raise KeyError('first')
        except KeyError:
            raise ValueError('second') from None

    with pytest.raises(ValueError, match='second') as caught:
        outer(raises)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ValueError, match='second') as caught:
        outer(raises_alone)
    assert caught.value.__suppress_context__
    assert isinstance(caught.value.__context__, KeyError)


def test_operators_of_ragged_values_show_no_frames_of_jfold() -> None:
    values = jf.Ragged(jnp.ones(3), jnp.array([1, 1]))
    with pytest.raises(ValueError, match='expected what goes with each item') as caught:
        values + jnp.ones(2)
    assert [name for name in modules(caught.value) if name.startswith('jfold')] == []


def test_an_error_that_was_being_handled_stays() -> None:
    try:
        raise OSError('of a user')
    except OSError as error:
        first = error
        with pytest.raises(jf.InputError) as caught:
            jf.compile(number).schedule([None])
    assert caught.value.__context__ is first


def test_what_was_handled_inside_is_left_out() -> None:
    with pytest.raises(jf.InputError) as caught:
        jf.compile(jf.Map(number) >> jf.Sum()).schedule([3])
    cause = caught.value.__cause__
    assert isinstance(cause, TypeError)
    assert cause.__context__ is None


def test_errors_of_a_loop_of_causes() -> None:
    first, second = ValueError('first'), ValueError('second')
    first.__cause__, second.__cause__ = second, first
    third, fourth = ValueError('third'), ValueError('fourth')
    second.__context__, third.__context__, fourth.__context__ = third, fourth, third

    def raises() -> None:
        raise first

    with pytest.raises(ValueError, match='first'):
        outer(raises)


def test_a_wrapped_function_is_itself() -> None:
    assert list(inspect.signature(jf.compile).parameters)[:2] == [
        'block',
        'max_programs',
    ]
    assert list(inspect.signature(jf.Tensor).parameters) == ['shape', 'dtype', 'below']
    assert jf.Model.apply.__name__ == 'apply'
    assert pickle.loads(pickle.dumps(jf.compile)) is jf.compile


def test_doctests_are_found() -> None:
    found = {
        test.name
        for module in (model, corpus)
        for test in doctest.DocTestFinder().find(module)
        if test.examples
    }
    for name in ('compile', 'Model.trace', 'Model.precompile'):
        assert f'jfold.models.model.{name}' in found


def test_errors_inside_of_transformations_show_no_frames_of_jfold() -> None:
    layer = jf.Function(lambda w, x: w * x, init=lambda key, x: jnp.ones(()), name='w')
    made = jf.compile(number >> layer)
    step = jax.jit(jax.grad(lambda params, x: made.apply(params, x).sum()))
    with pytest.raises(TypeError, match='expected parameters') as caught:
        step({}, made.schedule([1.0, 2.0]))
    assert [name for name in modules(caught.value) if name.startswith('jfold')] == []


# ---- where Python's stack ends -------------------------------------------------------


def endless(x: float) -> float:
    return endless(x + 1)


@jf.lazy
def nested(x: Any) -> Any:
    if isinstance(x, list):
        return jf.float32(0) + nested(x[0])
    return jf.float32(endless(x) if x > 5 else x)


def test_a_function_that_calls_itself_without_end_is_shown() -> None:
    """It is no fault of the lazy function, which calls it."""
    made = jf.compile(nested, like=[[1]])
    for inner in (made.schedule, made.trace, lambda x: made.eval(x[0])):
        with pytest.raises(jf.InputError, match=r'got .*: RecursionError: ') as caught:
            inner([[[9]]])
        assert names(caught.value.__cause__)[-1] == 'endless'
    with pytest.raises(RecursionError) as raised:
        jf.compile(nested, like=[[9]])
    assert {*names(raised.value)[-100:]} == {'endless'}


def test_data_too_deep_show_the_calls() -> None:
    deep: Any = 1
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(TypeError, match='write `x = yield f') as caught:
        jf.compile(nested, like=[deep])
    assert {*names(caught.value.__cause__)} == {'nested'}
