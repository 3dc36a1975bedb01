# SPDX-License-Identifier: Apache-2.0
"""Rows of arrays that are passed when a batch runs."""

from __future__ import annotations

import re
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from checking import refuses
from compilations import compilations

import jfold as jf
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

TABLE = np.arange(12, dtype='float32').reshape(4, 3) - 5
LISTS = [[0, 2], [3], [], [2, 2, 1, 0, 3, 3, 2]]
rows = jf.External('rows', 3)


def recurrent() -> Any:
    """Trees whose leaves are rows, with parameters of their own."""
    tree = jf.ForwardDeclaration(name='tree')
    mix = jf.Function(
        lambda w, x, y: jnp.tanh(w * x + y), lambda key: jnp.full(3, 0.5), name='mix'
    )
    tree.resolve_to(jf.OneOf(type, {int: rows, tuple: (tree(), tree()) >> mix}))
    return tree()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ('residuals', 'strategy'), list(zip(RESIDUALS, STRATEGIES, strict=True))
)
def test_values_and_gradients_are_those_of_the_eager_twin(
    residuals: str, strategy: str
) -> None:
    model = jf.compile(recurrent(), residuals=residuals, strategy=strategy)
    params = model.init(jax.random.key(0))
    assert list(params) == ['mix']
    agree(model, params, [3, (0, 1), ((2, 2), (0, (1, 3)))])


def test_eval_compiles_the_read_of_a_row_once() -> None:
    """Though what stands for a row beyond the table, NaN, does not equal itself."""
    model = jf.compile(jf.Map(rows) >> jf.Sum())
    with compilations('') as compiled:
        total = model.eval([0, 1, 2, 3], {}, external={'rows': TABLE})
        count = len(compiled)
        model.eval([3, 2, 1] * 5, {}, external={'rows': TABLE})
    np.testing.assert_array_equal(total, TABLE.sum(0))
    assert len(compiled) == count


def test_gradients_flow_to_the_network_that_made_the_rows() -> None:
    model = jf.compile(jf.Map(rows) >> jf.Sum())
    schedule = model.schedule(LISTS)
    weight = jnp.ones((2, 3))

    @jax.jit
    def loss(weight: Any, given: Any) -> Any:
        values = model.apply({}, schedule, external={'rows': jnp.tanh(given @ weight)})
        return (values**2).sum()

    def plain(weight: Any, given: Any) -> Any:
        made = jnp.tanh(given @ weight)
        return sum((made[jnp.array(x, int)].sum(0) ** 2).sum() for x in LISTS)

    for rows_given in (4, 9):  # of any number
        given = np.cos(np.arange(2 * rows_given, dtype='float32')).reshape(-1, 2)
        want = interpreter.called(jax.grad(plain, (0, 1)), weight, given)
        close(jax.grad(loss, (0, 1))(weight, given), want, 1e-5)


def test_arrays_of_integers_and_numbers_that_no_row_has() -> None:
    block = {'x': jf.External('x', 'int32'), 'y': jf.External('y', [])}
    model = jf.compile(block)
    table = {'x': np.array([7, 8], 'int32'), 'y': jnp.array([0.5, 1.5])}
    schedule = model.schedule([{'x': i, 'y': i} for i in (0, 1, -1, 2)])
    whole, number = model.apply({}, schedule, table)
    assert whole.tolist() == [7, 8, 8, np.iinfo('int32').min]
    np.testing.assert_array_equal(number, [0.5, 1.5, 1.5, np.nan])


@pytest.mark.parametrize(
    ('dtype', 'none'),
    [('uint8', 0), ('int32', -(2**31)), ('bool', False), ('float32', np.nan)],
)
def test_arrays_without_a_row(dtype: str, none: Any) -> None:
    """What they lack is the same as what longer ones lack."""
    block = jf.External('x', dtype)
    model = jf.compile(jf.Map(block) >> jf.Max())
    schedule = model.schedule([[0], [3, 3]])
    for rows_given in 0, 1:
        table = np.ones(rows_given, dtype)
        found = model.apply({}, schedule, {'x': table})
        first = none if not rows_given else True
        np.testing.assert_array_equal(found, np.array([first, none], dtype))
        np.testing.assert_array_equal(block.eval(9, external={'x': table}), none)


def test_one_name_is_one_array() -> None:
    pair = jf.Record((jf.External('x', 2), jf.External('x', 2))) >> jf.Concat()
    model = jf.compile(pair)
    values = model.apply(
        {}, model.schedule([(1, 0)]), {'x': np.eye(2, dtype='float32')}
    )
    assert values.tolist() == [[0, 1, 1, 0]]
    with refuses(
        "External('x'): expected rows of one type, got float32[rows, 2] and "
        'int32[rows]; give arrays of other types other names'
    ):
        jf.compile(jf.Record((jf.External('x', 2), jf.External('x', 'int32'))))


def test_an_array_keeps_its_name_where_a_layer_has_it_too() -> None:
    def x(w: Any, row: Any) -> Any:
        return w * row

    scaled = jf.External('x', 2) >> jf.Function(x, lambda key: jnp.float32(3))
    model = jf.compile(scaled)
    params = model.init(jax.random.key(0))
    assert list(params) == ['x_1']
    values = model.apply(params, model.schedule([1]), {'x': np.ones((2, 2), 'float32')})
    assert values.tolist() == [[3, 3]]


def test_an_export_takes_any_number_of_rows() -> None:
    """The length of an array is no part of the program; gradients flow to all of it."""
    model = jf.compile(jf.Map(rows >> jf.Function(jnp.tanh)) >> jf.Sum())
    schedule = model.schedule(LISTS)

    def apply(table: Any) -> Any:
        return model.apply({}, schedule, external={'rows': table})

    (count,) = jax.export.symbolic_shape('count')
    spec = jax.ShapeDtypeStruct((count, 3), np.dtype('float32'))  # type: ignore[no-untyped-call]
    written = jax.export.export(jax.jit(apply))(spec).serialize(vjp_order=1)
    exported = jax.export.deserialize(bytearray(written))
    for table in (TABLE, np.concatenate([TABLE, TABLE])):
        close(exported.call(table), jax.jit(apply)(table), 0)
        grads = (
            jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(table)
            for f in (exported.call, apply)
        )
        close(*grads, 0)


GIVEN = {
    'none': (None, "got none; pass `external={'rows': array}`"),
    'another width': (
        {'rows': TABLE[:, :2]},
        "got float32[4, 2]; pass `external={'rows': array}`",
    ),
    'a row': ({'rows': TABLE[0]}, "got float32[3]; pass `external={'rows': array}`"),
    'another dtype': (
        {'rows': TABLE.astype('int32')},
        "got int32[4, 3]; pass `external={'rows': array.astype('float32')}`",
    ),
    'no array': (
        {'rows': [1, 2]},
        "got [1, 2] (list), which is no array; pass `external={'rows': array}`",
    ),
}


@pytest.mark.parametrize('name', GIVEN)
def test_what_is_passed_is_compared_with_what_is_asked_for(name: str) -> None:
    given, end = GIVEN[name]
    model = jf.compile(rows)
    with refuses(f"External('rows'): expected an array float32[rows, 3], {end}"):
        model.apply({}, model.schedule([1]), external=given)
    with pytest.raises(TypeError, match=re.escape(end)):
        model.eval(1, external=given)


def test_names_that_nobody_asks_for_are_refused() -> None:
    model = jf.compile(rows)
    with refuses(
        "expected `external` as a dict of arrays by name, ['rows'], got ['row']"
    ):
        model.apply({}, model.schedule([1]), external={'row': TABLE})
    with refuses("expected `external` as a dict of arrays by name, ['rows'], got 3"):
        rows.eval(1, external=3)
    with refuses(
        'expected parameters as a dict by layers, got [1] (list); `model.init(key)` '
        'makes them'
    ):
        model.apply([1], model.schedule([1]), external={'rows': TABLE})  # type: ignore


def test_what_it_is_made_of() -> None:
    with refuses('External: expected `name` as a word, got 3'):
        jf.External(3, 2)  # type: ignore[arg-type]
    with refuses(
        'External: expected `type` as that of a tensor, got (float32[], float32[])'
    ):
        jf.External('x', ('float32', 'float32'))


def test_keys_where_rows_of_numbers_are_wanted() -> None:
    """They are no numbers to be cast."""
    model = jf.compile(jf.External('keys', jf.TensorType([2], 'uint32')))
    schedule, keys = model.schedule([1]), jax.random.split(jax.random.key(0), 3)
    with pytest.raises(TypeError, match=r"'keys': jax\.random\.key_data\(array\)"):
        model.apply({}, schedule, {'keys': keys})
