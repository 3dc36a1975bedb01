# SPDX-License-Identifier: Apache-2.0
"""Tracebacks show a user's frames; those of jfold only where JAX shows its own."""

from __future__ import annotations

import doctest
import inspect
import pickle
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from mistakes.common import modules

import jfold as jf
from jfold import model, tracebacks
from jfold.data import corpus

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
    """A user's function, called from inside."""
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


def hidden(error: BaseException) -> list[bool]:
    """Of each frame, whether a shell leaves it out."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [bool(frame.f_locals.get('__tracebackhide__')) for frame in frames]


def test_frames_are_marked_for_shells() -> None:
    with filtering('tracebackhide'):
        error = schedule_wrongly()
    first, *rest = hidden(error)
    assert not first
    assert len(rest) > 4
    assert all(rest)
    assert error.__cause__ is not None
    assert hidden(error.__cause__)[-1] is False


def test_in_a_notebook_frames_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(get_ipython=object)
    monkeypatch.setitem(sys.modules, 'IPython', shell)
    assert any(hidden(schedule_wrongly()))
    monkeypatch.setattr(shell, 'get_ipython', lambda: None)
    assert not any(hidden(schedule_wrongly()))


@tracebacks.boundary
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


def test_errors_can_be_pickled() -> None:
    error = schedule_wrongly()
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


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
        assert f'jfold.model.{name}' in found


def test_apply_inside_of_transformations() -> None:
    layer = jf.Function(lambda w, x: w * x, init=lambda key, x: jnp.ones(()), name='w')
    made = jf.compile(number >> layer)
    given = made.schedule([1.0, 2.0])

    @jax.jit
    def step(params: Any, schedule: Any) -> Any:
        return jax.grad(lambda p: made.apply(p, schedule).sum())(params)

    assert step({'w': jnp.float32(3)}, given)['w'] == 3
    assert jax.jit(made.apply)({'w': jnp.float32(3)}, given).tolist() == [3, 6]
    with pytest.raises(TypeError, match='expected parameters') as caught:
        step({}, given)
    assert [name for name in modules(caught.value) if name.startswith('jfold')] == []


def test_the_end_of_batches_is_no_error() -> None:
    assert [batch.count for batch in jf.compile(number).batches([1, 2, 3], 2)] == [2, 1]
