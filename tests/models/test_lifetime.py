# SPDX-License-Identifier: Apache-2.0
"""What belongs to a model is freed with it, whatever was done with the model."""

from __future__ import annotations

import functools
import gc
import itertools
import linecache
import pathlib
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf
from jfold.device.kernel import Kernel
from jfold.language.typed import TypedUse
from jfold.program.operations import Layer, Operation, Program
from jfold.scheduling.spec import Spec
from jfold.tracing.record import Source

pytestmark = pytest.mark.usefixtures('only_new_garbage')
EXAMPLES = [1, (2, (3, 4)), ((1, 2), 3)]


class Held(np.ndarray):
    """An array that weak references can point to."""


class Table(dict[Any, Any]):
    """A mapping that weak references can point to, with an array."""

    array: Held | None = None


def held(size: int) -> Held:
    return np.ones(size // 4, np.float32).view(Held)


def first_of(array: Any) -> Any:
    return jnp.asarray(np.asarray(array)[:1])[0]


def summing(closed: Any) -> Callable[..., Any]:
    """A cell with a product that is stored, and data in its closure."""

    def cell(params: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(params @ jnp.stack([left, right])) * first_of(closed)

    return cell


def looping(closed: Any) -> Callable[..., Any]:
    """A cell whose reverse cannot be cut: a loop in which all meet."""

    def cell(params: Any, left: Any, right: Any) -> Any:
        def step(state: Any, weight: Any) -> Any:
            return jnp.tanh(state * weight + left), None

        return jax.lax.scan(step, right * first_of(closed), params)[0]

    return cell


class Made:
    """A model, and weak references to what it is made of.

    Attributes:
      model: taken away by `uses`.
      parts: by name.
    """

    def __init__(self, make_cell: Callable[..., Any] = summing):
        closed, drawn, looked_up = (held(1 << 10) for _ in range(3))
        cell = make_cell(closed)
        table = Table((number, float(number)) for number in range(9))
        table.array = looked_up

        def init(key: Any, *_: Any) -> Any:
            return jnp.asarray(np.asarray(drawn)[:2])

        tree = jf.ForwardDeclaration()
        leaf = jf.InputTransform(table.__getitem__) >> jf.Scalar()
        pair = jf.Record((tree(), tree())) >> jf.Function(cell, init)
        tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
        total = jf.FromTensor(np.ones(2, np.float32)) >> jf.Function(jnp.sum)
        self.model = jf.compile((jf.AllOf(tree(), total)) >> jf.Function(jnp.add))
        parts = {'closed': closed, 'drawn': drawn, 'looked up': looked_up}
        parts |= {'cell': cell, 'table': table, 'model': self.model}
        parts |= {'program': self.model.program, 'source': self.model.program.source}
        parts |= {'layer': self.model.program.layers[0]}
        self.parts = {name: weakref.ref(part) for name, part in parts.items()}

    def alive(self) -> list[str]:
        gc.collect()
        return [name for name, part in self.parts.items() if part() is not None]


def trained_in_jit(model: jf.Model, params: Any, schedule: jf.Schedule) -> None:
    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return jax.checkpoint(model.apply)(params, schedule).sum()

    jax.jit(jax.value_and_grad(loss))(params, schedule)


def precompiled(model: jf.Model, params: Any, _: jf.Schedule) -> None:
    corpus = model.trace(EXAMPLES)
    step = model.precompile(model.apply, params, corpus.capacities(2))
    step(params, corpus.schedule([0, 2]))


def iterated(model: jf.Model, params: Any, _: jf.Schedule) -> None:
    for batch in model.batches(EXAMPLES, 2):
        model.apply(params, batch.schedule)


USES: dict[str, Callable[[jf.Model, Any, jf.Schedule], Any]] = {
    'explained': lambda model, _, schedule: model.explain(schedule),
    'applied': lambda model, params, schedule: model.apply(params, schedule),
    'differentiated': lambda model, params, schedule: jax.value_and_grad(
        lambda p: model.apply(p, schedule).sum()
    )(params),
    'jitted': lambda model, params, schedule: jax.jit(model.apply)(params, schedule),
    'within a jit': lambda model, params, schedule: jax.jit(
        lambda p, s: model.apply(p, s).sum()
    )(params, schedule),
    'trained in a jit': trained_in_jit,
    'mapped': lambda model, params, schedule: jax.vmap(
        lambda p: model.apply(p, schedule)
    )(jax.tree.map(lambda x: jnp.stack([x, x]), params)),
    'precompiled': precompiled,
    'iterated': iterated,
    'evaluated': lambda model, params, _: model.eval(EXAMPLES[1], params),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ('name', 'cell'),
    [
        *zip(USES, itertools.cycle([summing, looping])),
        *(('differentiated', looping), ('trained in a jit', summing)),
    ],
)
def test_all_of_a_model_is_freed(name: str, cell: Callable[..., Any]) -> None:
    """Functions, tables and arrays too. Cells take turns; both are trained."""
    made = Made(cell)
    params = made.model.init(jax.random.key(0))
    schedule = made.model.schedule(EXAMPLES)
    USES[name](made.model, params, schedule)
    assert set(made.alive()) == set(made.parts)
    del made.model, schedule
    assert made.alive() == []


def test_a_schedule_keeps_its_program() -> None:
    """It can be read and its reverse be run without the model."""
    made = Made()
    params = made.model.init(jax.random.key(0))
    schedule = made.model.schedule(EXAMPLES)
    _, pull = jax.vjp(functools.partial(made.model.apply, schedule=schedule), params)
    expected = pull(jnp.ones(3))
    del made.model
    assert 'model' not in made.alive()
    jax.tree.map(np.testing.assert_array_equal, pull(jnp.ones(3)), expected)
    assert repr(jax.tree.map(jnp.asarray, schedule)) == repr(schedule)
    del schedule, pull
    assert made.alive() == []


def test_the_tree_of_a_schedule_keeps_nothing() -> None:
    """So JAX may keep trees; one cannot be used without the model."""
    made = Made()
    leaves, tree = jax.tree.flatten(made.model.schedule(EXAMPLES))
    known, again = {tree: 1}, jax.tree.structure(made.model.schedule(EXAMPLES))
    assert tree == again
    assert known[again] == 1
    assert jax.tree.unflatten(tree, leaves).spec.program is made.model.program
    del made.model
    assert made.alive() == []
    assert known[again] == 1
    with pytest.raises(ReferenceError) as caught:
        jax.tree.unflatten(tree, leaves)
    assert str(caught.value) == (
        'expected the model that made this schedule, got a tree of one that was '
        'deleted: keep the model while its schedules are in use'
    )


def test_a_jitted_function_keeps_the_programs_it_has_traced() -> None:
    """As documented: JAX holds them until the function is freed or cleared."""
    made = Made()
    models = [made.model]
    step = jax.jit(lambda p, s: models[0].apply(p, s).sum())
    step(models[0].init(jax.random.key(0)), models[0].schedule(EXAMPLES))
    models.clear()
    del made.model
    assert made.alive() == [x for x in made.parts if x != 'model']
    step.clear_cache()
    del step
    assert made.alive() == []


# ---- many models ---------------------------------------------------------------------

COUNTED = Program, Source, TypedUse, Layer, Operation, Spec, Kernel, jf.Model


def count_objects() -> Counter[str]:
    """How many objects of the library's own are alive, by type, and all others."""
    gc.collect()
    found = Counter(
        next((x.__name__ for x in COUNTED if isinstance(each, x)), 'other')
        for each in gc.get_objects()
    )
    return found


def resident_bytes() -> int:
    """What the process has in memory."""
    fields = pathlib.Path('/proc/self/statm').read_text(encoding='ascii').split()
    return int(fields[1]) * 4096


def compile_many(count: int) -> None:
    for _ in range(count):
        closed = held(1 << 16)

        def scaled(x: Any, closed: Any = closed) -> Any:
            return x * first_of(closed)

        model = jf.compile(jf.Map(jf.Scalar() >> scaled) >> jf.Sum())
        model.schedule([[1, 2]])


def test_models_that_are_dropped_leave_nothing() -> None:
    """No object of the library's, and few of others', or bytes, for each."""
    compile_many(100)  # by then caches of bounded size have what they hold
    before, lines = count_objects(), len(linecache.cache)
    memory = resident_bytes()
    compile_many(150)
    after = count_objects()
    assert {x.__name__: after[x.__name__] - before[x.__name__] for x in COUNTED} == {
        x.__name__: 0 for x in COUNTED
    }
    assert after['other'] - before['other'] < 105
    assert len(linecache.cache) <= lines
    assert resident_bytes() - memory < 5 << 20
