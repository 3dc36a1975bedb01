# SPDX-License-Identifier: Apache-2.0
"""Python values to arrays: as NumPy does it where nothing is lost, else refused."""

from __future__ import annotations

import itertools
import math
import re
from decimal import Decimal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jfold as jf
from jfold.base.errors import BadItem
from jfold.tracing.convert import to_array

INTS = ['int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64']
FLOATS = ['float16', 'float32', 'float64']
SIGNED = st.integers(-(2**63), 2**63 - 1)
LARGE = st.integers(0, 2**64 - 1)
NEAR = st.builds(lambda e, d, s: s * (2**e + d), st.integers(0, 130),
                 st.integers(-2, 2), st.sampled_from([-1, 1]))  # fmt: skip
REAL = st.floats(width=64)
BELOW_ONE = st.builds(math.ldexp, st.floats(-1, 1), st.integers(-20, 70))
SCALARS = st.one_of(
    SIGNED, LARGE, NEAR, NEAR.map(float), REAL, BELOW_ONE, st.booleans()
)


def expected(value: Any, dtype: str) -> Any:
    """By Python's own numbers, which are exact; `None` where something is lost."""
    kind = np.dtype(dtype).kind
    if kind == 'b':
        return bool(value) if value in (0, 1) else None
    if kind in 'iu':
        info = np.iinfo(dtype)
        whole = math.isfinite(value) and value == int(value)
        return int(value) if whole and info.min <= value <= info.max else None
    with np.errstate(over='ignore'):
        made = float(np.asarray(value).astype(dtype))
    if isinstance(value, float):
        return None if math.isinf(made) and math.isfinite(value) else made
    return made if math.isfinite(made) and int(made) == value else None


def converted(values: list[Any], dtype: str) -> Any:
    """The converted values as Python's, or the index of the one that is refused."""
    try:
        return to_array(values, jf.TensorType((), dtype)).tolist()
    except BadItem as error:
        return error


def agree(got: Any, want: Any) -> bool:
    return bool(got == want or (math.isnan(got) and math.isnan(want)))


@given(
    st.lists(SCALARS, min_size=1, max_size=5), st.sampled_from([*INTS, *FLOATS, 'bool'])
)
@example([2**24 + 1], 'float32')
@example([0.5, 2**24 + 1], 'float32')
@example([2**53 + 1, 0.5], 'float64')
@example([2**53 + 1, 1.0], 'int64')
@example([2**60 + 1], 'float32')
@example([-(2**63)], 'float32')
@example([-(2**63), 1], 'int32')
@example([-1, 2**32], 'uint32')
@example([2**63, -1], 'int64')
@example([2.0**63], 'int64')
@example([2.0**64], 'uint64')
@example([2**64 - 1], 'float64')
@example([-1], 'uint64')
@example([float('nan')], 'int32')
@example([float('nan')], 'bool')
@settings(max_examples=400)
def test_agrees_with_exact_numbers(values: list[Any], dtype: str) -> None:
    wanted = [expected(value, dtype) for value in values]
    got = converted(values, dtype)
    if None in wanted:
        assert isinstance(got, BadItem)
        assert got.index == wanted.index(None)
    else:
        assert isinstance(got, list)
        assert all(map(agree, got, wanted))


# Types of 64 bits are for x64 alone; converting does not depend on it.
NARROW = [x for x in (*INTS, *FLOATS, 'bool') if np.dtype(x).itemsize < 8]


@given(st.lists(SCALARS, min_size=1, max_size=5), st.sampled_from(NARROW))
@settings(max_examples=150)
def test_the_eager_twin_agrees(values: list[Any], dtype: str) -> None:
    block = jf.Scalar(dtype)
    for value in values:
        got = converted([value], dtype)
        if isinstance(got, BadItem):
            with pytest.raises(jf.InputError, match='expected'):
                block.eval(value)
        else:
            assert agree(block.eval(value).tolist(), got[0])


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), max_size=4),
    st.sampled_from([list, tuple, np.array, jnp.array]),
)
@settings(max_examples=50)
def test_vectors(rows: list[list[int]], make: Any) -> None:
    for dtype in ('float32', 'int8', 'complex64', jnp.bfloat16):
        type_ = jf.TensorType((3,), dtype)
        got = to_array([make(row) for row in rows], type_)
        assert got.dtype == type_.dtype
        assert got.shape == (len(rows), 3)
        np.testing.assert_array_equal(got.real, np.reshape(rows, (-1, 3)))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_scalars_of_jax(dtype: str) -> None:
    """Also narrow ones, which are arrays that NumPy cannot stack."""
    given = [jnp.bfloat16(2.5), jnp.float16(0.5), jnp.float32(4), jnp.asarray(1)]
    for items in (given, given[:1], [1.0, *given[:1]], given[:1] * 3):
        got = to_array(items, jf.TensorType((), dtype))
        assert got.dtype == dtype
        assert got.tolist() == [float(x) for x in items]
        assert [jf.Scalar(dtype).eval(x).item() for x in items] == got.tolist()
    rows = jnp.ones(2, 'bfloat16'), [jnp.bfloat16(1)] * 2, [jnp.bfloat16(1), 1.0]
    assert to_array([*rows], jf.TensorType((2,), dtype)).tolist() == [[1, 1]] * 3


ROUNDED = (
    "; say dtype='int32' for one that must not change, or write "
    '`InputTransform(float)` before to round it'
)
REFUSED: list[tuple[Any, Any, str]] = [
    (-1, 'uint8', 'expected uint8[], got -1, which uint8 cannot hold'),
    (
        2**31 + 1,
        [],
        'expected float32[], got 2147483649, which float32 cannot hold; write '
        '`InputTransform(float)` before to round it',
    ),
    (
        257,
        'bfloat16',
        f'expected bfloat16[], got 257, which bfloat16 cannot hold{ROUNDED}',
    ),
    (
        2**64 + 1,
        [],
        'expected float32[], got 18446744073709551617, which float32 cannot hold; '
        'write `InputTransform(float)` before to round it',
    ),
    (2**80, 'int8', f'expected int8[], got {2**80}, which int8 cannot hold'),
    ([None, 2**64], 2, 'expected float32[2], got [None, 18446744073709551616] (list)'),
    (2, 'bool', 'expected bool[], got 2, which bool cannot hold'),
    (1j, [], 'expected float32[], got 1j (complex), which float32 cannot hold'),
    (None, [], 'expected float32[], got None'),
    ('3.5', [], "expected float32[], got '3.5'"),
    ([1], [], 'expected float32[], got [1] (list) of shape (1,)'),
    (b'3', [], "expected float32[], got b'3' (bytes)"),
    ([1, 2, 3], 2, 'expected float32[2], got [1, 2, 3] (list) of shape (3,)'),
    ([1, [2]], 2, 'expected float32[2], got [1, [2]] (list), which is ragged'),
    ([1, None], 2, 'expected float32[2], got [1, None] (list)'),
]


@pytest.mark.parametrize(('value', 'spec', 'message'), REFUSED)
def test_refusals(value: Any, spec: Any, message: str) -> None:
    type_ = jf.convert_to_type(spec)
    assert isinstance(type_, jf.TensorType)
    good = np.zeros(type_.shape).tolist()
    for before in ([], [good], [good, good]):
        with pytest.raises(BadItem, match=f'^{re.escape(message)}$') as caught:
            to_array([*before, value, good], type_)
        assert caught.value.index == len(before)


def test_long_values_are_cut_short() -> None:
    with pytest.raises(BadItem) as caught:
        to_array([list(range(100))], jf.TensorType((2,)))
    assert len(str(caught.value)) < 120


def test_ints_beyond_64_bits() -> None:
    """Those that a float is equal to, beside any others, and in arrays of objects."""
    rows = [[1, 2**64], [0.5, -(2**70)], np.array([2**100, True], object)]
    want = [[1, 2.0**64], [0.5, -(2.0**70)], [2.0**100, 1]]
    for dtype in 'float32', 'bfloat16', 'complex64':
        block = jf.Vector(2, dtype)
        assert to_array(rows, block.type).tolist() == want
        assert [block.eval(x).tolist() for x in rows] == want
        with pytest.raises(BadItem, match=f'which {dtype} cannot hold; write `Input'):
            to_array([[1, 10**400]], block.type)


def test_what_a_value_raises_is_kept() -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise OSError('no file')

    with pytest.raises(BadItem, match=r'; OSError: no file$') as caught:
        to_array([1, Broken()], jf.TensorType(()))
    assert isinstance(caught.value.__cause__, OSError)


def test_no_items() -> None:
    got = to_array([], jf.TensorType((2, 0), 'int8'))
    assert (got.shape, got.dtype) == ((0, 2, 0), np.int8)


@pytest.mark.parametrize(
    ('block', 'item', 'hint'),
    [
        (jf.Scalar(), Decimal('1.5'), 'make a number of it before, as by `Inp'),
        (
            jf.Vector(2),
            {1, 2},
            'it has no order: `InputTransform(sorted)` gives it one',
        ),
        (jf.Vector(2), iter([1, 2]), 'it can be read only once: make a list of it'),
    ],
)
def test_what_to_do_with_what_is_no_number(
    block: jf.Block, item: object, hint: str
) -> None:
    with pytest.raises(jf.InputError) as caught:
        block.eval(item)
    assert caught.value.hint.startswith(hint)


def test_ints_beside_long_floats_are_kept_or_refused() -> None:
    with pytest.raises(BadItem, match='which float64 cannot hold'):
        to_array([np.longdouble(3), 2**64 - 1], jf.TensorType((), 'float64'))


@pytest.mark.parametrize(
    ('value', 'below'),
    [
        *itertools.product([math.nan, math.inf, 2**40, np.ma.masked], [None, 5]),
        (np.zeros((), 'f4,f4'), None),
        (1 + 0j, None),
        (7, 5),
    ],
)
def test_the_twin_refuses_a_leaf_with_the_text_of_a_batch(
    value: Any, below: int | None
) -> None:
    leaf, texts = jf.Scalar('int32', below=below), []
    for read in leaf.eval, lambda x: jf.compile(leaf).trace([x]):
        with pytest.raises(jf.InputError) as caught:
            read(value)
        texts.append((str(caught.value), caught.value.hint))
    assert texts[0] == texts[1]


# ---- what is masked ------------------------------------------------------------------

MASKED = re.escape('some of it masked: fill it, `x.filled(0)`, or leave it out')


def masked(values: Any, *mask: Any, dtype: str = 'float64') -> Any:
    return np.ma.array(values, dtype, mask=mask[0] if len(mask) == 1 else mask)


ROW, PLAIN = masked([1, 2], 0, 1), masked([1, 2], 0, 0)
INTS_WITHIN, AT = masked([0, 1], 0, 1, dtype='int8'), ', at [1]'
RECORD = {'type': 'object', 'properties': {'x': {'type': 'number'}}}
WITHIN = jf.Record((jf.Map(jf.Scalar()), jf.Identity()))


@pytest.mark.parametrize(
    ('block', 'good', 'bad', 'path'),
    [
        (jf.Scalar(), 1.0, np.ma.masked, ''),
        (jf.Scalar(), math.nan, masked(3, 1, dtype='float32'), ''),
        (jf.Scalar('int32'), masked(3, 0), masked(3, 1, dtype='int64'), ''),
        (jf.Scalar('int32'), 2, np.ma.masked, ''),
        (jf.Vector(2), PLAIN, ROW, ''),
        (jf.Vector(2), [1.0, math.nan], [1.0, np.ma.masked], ''),
        (jf.Vector(2, 'int8'), (1, 2), masked([1, 2], 1, 0, dtype='int8'), ''),
        (jf.Tensor([2, 2]), [PLAIN, (1, 2)], [PLAIN, ROW], ''),
        (jf.Tensor([2, 2]), [[1, 2]] * 2, masked([[1, 2]] * 2, [0, 0], [1, 0]), ''),
        (jf.Tensor([2, 2]), np.ones([2, 2]), [[1, 2], (np.ma.masked, 3)], ''),
        (jf.Map(jf.Scalar()), PLAIN, ROW, ''),
        (jf.Map(jf.Scalar('int32')), [1], INTS_WITHIN, ''),
        (jf.Map(jf.Scalar()), [1], [1, np.ma.masked], AT),
        (jf.Map(jf.InputTransform(float) >> jf.Scalar()), PLAIN, ROW, ''),
        (jf.Map(jf.Vector(2)), [PLAIN], [PLAIN, ROW], AT),
        (jf.Record((jf.Scalar(), jf.Scalar())), PLAIN, ROW, AT),
        (jf.GetItem(1) >> jf.Scalar(), PLAIN, ROW, AT),
        (WITHIN >> jf.Nth(), ([1, 2], 1), ([1, 2], masked(1, 1, dtype='int8')), AT),
        (
            WITHIN >> jf.Pick(),
            ([1, 2], masked([0, 1], 0, 0, dtype='int8')),
            ([1, 2], INTS_WITHIN),
            AT,
        ),
        (
            jf.layers.RecordEncoder(RECORD, 1),
            {'x': 1.0},
            {'x': np.ma.masked},
            ", at ['x']",
        ),
    ],
)
def test_masks_are_not_lost(block: jf.Block, good: Any, bad: Any, path: str) -> None:
    """Refused where something is masked, by schedules and by `eval`."""
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    model.schedule([good, good])
    block.eval(good, params)
    text = rf'^example 1{re.escape(path)}: .*{MASKED}'
    with pytest.raises(jf.InputError, match=re.compile(text, re.DOTALL)):
        model.schedule([good, bad, good])
    with pytest.raises((TypeError, ValueError), match=MASKED):
        block.eval(bad, params)


def test_constants_and_indices_that_are_masked() -> None:
    with pytest.raises(TypeError, match=MASKED):
        jf.FromTensor(ROW)
    with pytest.raises(TypeError, match=MASKED):
        jf.layers.Embed(1, 2, table=ROW[None])
    corpus = jf.compile(jf.Scalar()).trace([1.0, 2.0])
    with pytest.raises(TypeError, match=MASKED):
        corpus.schedule(masked([0, 1], 0, 1, dtype='int64'))


def test_of_two_errors_in_an_example_the_first_is_told() -> None:
    """Whether of a number, all of which are converted at the end, or of a choice."""
    number, whole = jf.Scalar(), jf.Scalar('int32')
    block = jf.Record([number, whole, jf.OneOf(type, {int: whole}), number])
    wrong = 'a', 2.5, 'c', 'd'
    texts = "got 'a'", 'got 2.5', "got <class 'str'>", "got 'd'"
    for first, second in itertools.combinations(range(4), 2):
        bad = [wrong[k] if k in (first, second) else 1 for k in range(4)]
        with pytest.raises(jf.InputError, match=texts[first]) as caught:
            jf.compile(block).schedule([[1, 2, 3, 4], bad])
        assert (caught.value.example, caught.value.path) == (1, f'[{first}]')
        with pytest.raises(jf.InputError) as twin:
            block.eval(bad)
        assert twin.value.path == caught.value.path
