# SPDX-License-Identifier: Apache-2.0
"""How functions and their `init` are called."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import number

import jfold as jf


def test_an_error_inside_a_function_is_not_taken_for_one_of_its_call() -> None:
    def helper() -> None: ...

    def broken(x: Any) -> Any:
        return helper(x)  # type: ignore[call-arg]

    with pytest.raises(
        TypeError, match=r'takes 0 positional arguments but 1 was given$'
    ):
        jf.compile(number >> broken)


def key_alone(key: Any) -> Any:
    return jnp.ones(2)


def key_and_setting(key: Any, scale: float = 3.0, *, size: int = 2) -> Any:
    return jnp.full(size, scale)


def key_and_specs(key: Any, x: Any, y: Any) -> Any:
    return jnp.ones(x.shape + y.shape + (2,))


def key_and_an_optional_spec(key: Any, x: Any, y: Any = None) -> Any:
    return jnp.ones(2 if y is None else 3)


def key_and_all(key: Any, *specs: Any) -> Any:
    return jnp.ones(len(specs))


class NoSignature:
    """A callable as some that are written in C, and false as an empty list is."""

    __signature__ = 'none'

    def __call__(self, *given: Any) -> Any:
        return jnp.ones(len(given))

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ('init', 'expected'),
    [
        (key_alone, [1, 1]),
        (key_and_setting, [3, 3]),
        (functools.partial(key_and_setting, size=3), [3, 3, 3]),
        (jax.jit(key_alone), [1, 1]),
        (key_and_specs, [1, 1]),
        (key_and_an_optional_spec, [1, 1, 1]),
        (key_and_all, [1, 1]),
        (NoSignature(), [1, 1, 1]),
    ],
)
def test_an_init_takes_the_key_or_specs_too(init: Any, expected: list[float]) -> None:
    block = (number, number) >> jf.Function(lambda p, x, y: p + x + y, init)
    params = jf.compile(block).init(jax.random.key(0))
    assert jax.tree.leaves(params)[0].tolist() == expected


def test_a_default_may_be_an_array() -> None:
    twos = np.full(2, 2.0)

    def scaled(x: Any, scale: Any = twos) -> Any:
        return x * scale

    assert repr(jf.compile(number >> scaled).program.output) == 'float32[2]'
    with pytest.raises(TypeError, match=r'`scale=array\(\[2\., 2\.\]\)'):
        jf.compile((number, number) >> jf.Function(scaled))
