# SPDX-License-Identifier: Apache-2.0
"""Checks of blocks by example: evaluated eagerly and as a compiled batch."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf

Case = tuple[Any, list[Any], list[Any]]

number = jf.Scalar()
whole = jf.Scalar('int32')
numbers = jf.Map(number)
add = jf.Function(jnp.add)
subtract = jf.Function(jnp.subtract)


def observed(name: str) -> jf.Block:
    """Passes its input on and observes it."""
    return jf.AllOf(jf.Identity(), jf.Metric(name)) >> jf.GetItem(0)


def same(got: Any, want: Any) -> None:
    """Equal structure and values; the dtype too, where `want` has one."""
    if isinstance(got, tuple | list):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            same(*pair)
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        same([*got.values()], [want[key] for key in got])
    elif got is None or want is None or isinstance(got, str):
        assert got == want
    else:
        np.testing.assert_allclose(got, want, rtol=1e-6)
        assert np.shape(got) == np.shape(want)
        assert not hasattr(want, 'dtype') or got.dtype == want.dtype


def check(*cases: Case, params: Any = None) -> None:
    """Checks (block, examples, expected) one by one eagerly, and all in one batch."""
    model = jf.compile(jf.Record(tuple(block for block, _, _ in cases)))
    params = model.init(jax.random.key(0)) if params is None else params
    check_eager(*cases, params=params)
    size = max(len(examples) for _, examples, _ in cases)
    batch = [tuple(given[i % len(given)] for _, given, _ in cases) for i in range(size)]
    values = model.apply(params, model.schedule(batch))
    for value, (_, _, expected) in zip(values, cases, strict=True):
        for i in range(size):
            same(jax.tree.map(lambda x, i=i: x[i], value), expected[i % len(expected)])


def check_eager(*cases: Case, params: Any = None) -> None:
    """Checks one by one; all there is for what gives lists or Python values."""
    for block, examples, expected in cases:
        for example, want in zip(examples, expected, strict=True):
            same(jf.convert_to_block(block).eval(example, params), want)


def refuses(text: str, error: type[Exception] = TypeError) -> Any:
    """Expects an error with exactly this message; the note on what to do is pinned in
    `mistakes`."""
    return pytest.raises(error, match=f'^{re.escape(text)}(\nWhat to do: .*)?$')


def does_not_compile(block: Any, message: str) -> None:
    """`compile` fails with exactly this message."""
    with pytest.raises(TypeError) as caught:
        jf.compile(block)
    assert str(caught.value) == message
