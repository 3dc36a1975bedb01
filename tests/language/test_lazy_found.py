# SPDX-License-Identifier: Apache-2.0
"""Lazy functions: constants and empty lists as arguments; types computed once."""

from __future__ import annotations

from typing import Any, NoReturn

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf
from jfold.base.operands import Operand
from jfold.language import lazy_recording, lazy_registry


def rows(function: jf.Block, examples: list[Any]) -> Any:
    """The results of a model, compiled with the same examples."""
    model = jf.compile(function, like=examples)
    return model.apply({}, model.schedule(examples))


def test_types_of_arguments_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for each call on them."""
    total = jf.Sum()
    swap, add = jf.Function(lambda a, b: (b, a)), jf.Function(jnp.add)

    @jf.lazy
    def swapped(numbers: Any) -> Any:
        values = [jf.float32(x) for x in numbers]
        first, _ = swap((total(values), values[0]))
        return add(first, 2)

    model = jf.compile(swapped, like=[[1, 2]])

    def refused(*_: object) -> NoReturn:
        raise AssertionError

    for name in ('TupleType', 'SequenceType'):
        monkeypatch.setattr(lazy_registry, name, refused)
    monkeypatch.setattr(lazy_recording, 'TensorType', refused)
    assert model.apply({}, model.schedule([[3, 4], [5]])).tolist() == [5, 7]


def test_lists_of_constants_are_no_data() -> None:
    """Not for blocks that take no data."""
    total, squares = jf.Sum(), jf.Map(jf.Function(jnp.square)) >> jf.Sum()

    @jf.lazy
    def sums(numbers: Any) -> Any:
        return total([1.0, 2.0]), squares([*map(jf.float32, numbers), 2.0])

    one, other = rows(sums, [[3], [1, 1], []])
    assert (one.tolist(), other.tolist()) == ([3, 3, 3], [13, 6, 4])


def test_a_sum_in_a_recursion_begins_with_zeros() -> None:
    """It comes first to a node without children, whose list has no items."""
    total, zeros = jf.Sum(), np.zeros(2, 'float32')

    @jf.lazy(share=True)
    def begun(node: Any) -> Any:
        return total([zeros, *map(begun, node)]) + 1

    node: list[Any] = []
    assert rows(begun, [[node, node], node]).tolist() == [[3, 3], [1, 1]]

    @jf.lazy
    def empty(node: Any) -> Any:
        return total([empty(x) for x in node]) + 1

    expected = 'a list with items, which tell its type, got an empty one before'
    with pytest.raises(TypeError, match=expected):
        jf.compile(empty, like=[[[]]])


def test_arrays_and_lists_are_constants() -> None:
    """Those of JAX, and lists without a dtype."""

    @jf.lazy
    def constant(x: Any) -> Any:
        return jf.tensor(x) + jnp.ones(2), jf.tensor([1, 2]), jf.tensor([0.5, x[0]])

    results = rows(constant, [[0.0, 1.0]])
    assert [x.tolist() for x in results] == [[[1, 2]], [[1, 2]], [[0.5, 0]]]
    assert [x.dtype for x in results] == ['float32', 'int32', 'float32']


def test_blocks_without_inputs_are_called_on_nothing() -> None:
    """Constants, and functions of parameters alone."""
    constant = jf.FromTensor(np.array([1, 2], 'float32'))
    start = jf.Function(lambda: jnp.ones(2))

    @jf.lazy
    def sums(number: float) -> Any:
        return constant() + start() if number > 1 else constant()

    assert rows(sums, [1.0, 2.0]).tolist() == [[1, 2], [2, 3]]


def test_modules_of_flax_are_wrapped_before_they_are_called() -> None:
    """The error of Flax has a note that says so."""
    dense = nn.Dense(2)

    @jf.lazy
    def called(x: float) -> Any:
        return dense(jf.tensor([x, x]))

    with pytest.raises(Exception, match='unbound') as error:
        jf.compile(called, like=[1.0])
    expected = 'in `called`: expected blocks to be called, got a module of Flax: '
    assert error.value.__notes__[0].startswith(expected)


def test_values_are_not_asked_for_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by recordings: each question makes an error with a message."""

    @jf.lazy(share=True)
    def doubled(x: float) -> Any:
        return jf.float32(x) * 2

    model = jf.compile(doubled, like=[1.0])

    def asked(_: object, name: str) -> NoReturn:
        raise AssertionError(name)

    monkeypatch.setattr(Operand, '__getattr__', asked)
    assert model.apply({}, model.schedule([2.0])).tolist() == [4]
