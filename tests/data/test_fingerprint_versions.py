# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of other versions, of Python and of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from binary_trees import tree_block
from fingerprinted import adder, number, of

import jfold as jf
from jfold.data.fingerprint import differences, fingerprint

# ---- other expressions ---------------------------------------------------------------

FUNCTION = 'in Pipe[0].InputTransform(function)'


# ---- other versions ------------------------------------------------------------------


def test_code_of_another_python_is_not_compared() -> None:
    """What functions hold besides is."""
    saved = of(number(adder(1))) | {'python': '3.10'}
    saved['functions'] = [
        [text, 'other', place] for text, _, place in saved['functions']
    ]
    assert differences(saved, of(number(adder(1)))) == []
    assert differences(saved, of(number(lambda number: number + 1))) != []
    assert differences(saved, of(number(adder(2)))) == [
        f'a different `function = <lambda>` {FUNCTION}'
    ]


def test_graphs_of_another_format() -> None:
    """Nothing else is compared then."""
    current = of(tree_block(4))
    assert differences({'format': 0}, current) == ['graphs of format 0, not 4']
    assert differences({}, current) == ['graphs of format None, not 4']


def test_graphs_of_a_sum_are_of_no_other_function() -> None:
    """In the reverse a sum leaves nothing, where another function leaves cotangents."""

    def model(fn: Callable[..., Any]) -> jf.Model:
        twice = jf.Vector(2) >> jf.AllOf(jf.Identity(), jf.Identity())
        return jf.compile(twice >> jf.Function(fn, name='add'))

    plain, summed = model(lambda a, b: a + b), model(jnp.add)
    found = differences(fingerprint(plain.program), fingerprint(summed.program))
    assert any(', a sum' in line for line in found)
    for one, other in ((plain, summed), (summed, plain)):
        with pytest.raises(ValueError, match='got those of another'):
            other.join([one.tracer()([[1.0, 2.0]])])
