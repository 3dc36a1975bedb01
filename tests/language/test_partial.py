# SPDX-License-Identifier: Apache-2.0
"""Types that are inferred in a few steps are right, as far as they go."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from expressions import expressions
from extent import drawn
from hypothesis import given, settings

import jfold as jf
from jfold import lower
from jfold.language.inference import infer
from jfold.language.partial import all_types, partial_types
from jfold.language.typed import TypedUse

assert lower.FAMILIES  # their import has registered the rules of blocks


def uses(root: TypedUse) -> list[TypedUse]:
    """All uses inside a use, the outer ones first."""
    waiting, found = [root], []
    while waiting:
        use = waiting.pop()
        found.append(use)
        waiting += [part for part in use.parts if part is not None]
    return found


@settings(max_examples=drawn(10, 20))
@given(expressions())
def test_without_haste_all_types_are_those_of_inference(expression: Any) -> None:
    types, problem = partial_types(expression.block, 10**6)
    typing = infer(expression.block)
    assert problem == ''
    known = all_types(typing)
    assert {*known} >= {use.block for use in uses(typing.root)}
    for block in types.keys() & known.keys():
        assert str(types[block][1]) == str(known[block][1])
    for use in uses(typing.root):
        input_, output = types[use.block]
        if (input_, output) != (use.input, use.output):  # another use of the block
            assert input_.ground and output.ground


def test_without_steps_nothing_is_known_and_nothing_raises() -> None:
    block = jf.Scalar() >> jf.Function(jnp.tanh)
    assert partial_types(block, 0) == ({}, '')


def test_blocks_behind_the_last_step_are_left_out() -> None:
    scalar, first, second = jf.Scalar(), jf.Function(jnp.tanh), jf.Function(jnp.sin)
    block, every = scalar >> first >> second, [scalar, first, second]
    known = [partial_types(block, steps)[0] for steps in range(12)]
    assert {len(types.keys() & every) for types in known} == {0, 1, 2, 3}
    types = next(types for types in known if first in types)
    assert str(types[scalar]) == '(object, float32[])'
    assert str(types[first]) == '(float32[], float32[])'
    assert second not in types
