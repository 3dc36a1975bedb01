# SPDX-License-Identifier: Apache-2.0
"""Compiling takes work in proportion to the expression."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import jfold as jf
from jfold.printing import short


def cases(count: int) -> jf.OneOf:
    """A choice of one of so many blocks."""
    return jf.OneOf(abs, {n: jf.Scalar() >> jnp.negative for n in range(count)})


def cases_of_tuples(count: int) -> jf.OneOf:
    """The same, of blocks that give tuples."""
    pair = (jf.Scalar(), jf.Scalar())
    return jf.OneOf(abs, [(n, jf.Record(pair)) for n in range(count)])


def fields(count: int) -> jf.Record:
    """A record of so many fields."""
    return jf.Record({n: jf.Scalar() for n in range(count)})


def layers(count: int) -> jf.Record:
    """The same, with a layer of one name in each."""
    made = [jf.Function(lambda x, n=n: x + n) for n in range(count)]
    return jf.Record([jf.Scalar() >> layer for layer in made])


def stages(count: int) -> jf.Pipe:
    """A pipe of so many blocks."""
    functions = [jf.Function(jnp.negative)] * count
    return jf.Pipe(*[jf.InputTransform(abs)] * count, jf.Scalar(), *functions)


def calls(block: jf.Block) -> int:
    """How many calls compiling takes."""
    with cProfile.Profile() as profile:
        jf.compile(block)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize('make', [cases, cases_of_tuples, fields, layers, stages])
def test_twice_the_blocks_take_twice_the_calls(make: Callable[[int], Any]) -> None:
    calls(make(4))  # what is done once
    assert calls(make(200)) < 2.2 * calls(make(100))


def test_the_beginning_of_a_block_is_printed_alone() -> None:
    """What is behind the cut is not even asked."""

    class Asked(jf.Block):
        def __repr__(self) -> str:
            raise AssertionError('printed')

    block = jf.AllOf(*[jf.Scalar()] * 4, Asked())
    start = "AllOf(Scalar('float32'), Scalar('float32'), Scalar('float32')"
    assert short(block) == f'{start[:57]}...'


def test_a_deep_block_prints() -> None:
    """Without recursion."""
    block: jf.Block = jf.Scalar()
    for _ in range(5000):
        block = jf.Map(block)
    assert repr(block) == f"{'Map(' * 5000}Scalar('float32'){')' * 5000}"
