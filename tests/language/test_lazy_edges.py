# SPDX-License-Identifier: Apache-2.0
"""Lazy functions at their edges: what calls take, what is shared, what grows."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf

add = jf.Function(jnp.add)
tanh = jf.Function(jnp.tanh)


def results(fn: Any, examples: list[Any], like: list[Any] | None = None) -> list[Any]:
    """The results of examples, one after another; those of a batch are the same."""
    model = jf.compile(fn, like=examples if like is None else like)
    alone = [model.eval(example) for example in examples]
    batch = model.predict({}, examples, progress=False)
    jax.tree.map(np.testing.assert_allclose, batch, batched(alone))
    return [jax.tree.map(lambda x: np.asarray(x).tolist(), x) for x in alone]


def batched(alone: list[Any]) -> Any:
    if isinstance(alone[0], tuple):
        return tuple(map(batched, zip(*alone, strict=True)))
    if isinstance(alone[0], dict):
        return {key: batched([x[key] for x in alone]) for key in alone[0]}
    if isinstance(alone[0], list):
        items = [item for x in alone for item in x]
        values = batched(items) if items else np.zeros(0, np.float32)
        return jf.Ragged(values, np.array([len(x) for x in alone], np.int32))
    return np.stack(alone)


# ---- what calls take -----------------------------------------------------------------


class Linked:
    """An object whose attribute has the name of one of a value."""

    def __init__(self, node: object) -> None:
        self.node = node


@pytest.mark.parametrize('node', [3, None, (), ([], 1)])
def test_data_may_have_an_attribute_called_node(node: object) -> None:
    read = jf.InputTransform(lambda x: 1.5) >> jf.Scalar()

    @jf.lazy
    def twice(x: object) -> Any:
        return add(read(x), read(x))

    assert results(twice, [Linked(node)]) == [3.0]


def test_data_may_contain_themselves() -> None:
    read = jf.InputTransform(lambda x: x['value']) >> jf.Scalar()
    example: dict[str, Any] = {'value': 2.0, 'next': [1, {'a': 1}]}
    example['next'].append(example)
    model = jf.compile(jf.lazy(lambda x: read(x)), like=[example])
    assert model.apply({}, model.schedule([example])).tolist() == [2.0]


def test_copies_of_values_are_the_values() -> None:
    @jf.lazy
    def doubled(x: float) -> Any:
        stack = [jf.float32(x)]
        return add(copy.copy(stack[0]), copy.deepcopy(stack)[0])

    assert results(doubled, [1.0, 2.5]) == [2.0, 5.0]
