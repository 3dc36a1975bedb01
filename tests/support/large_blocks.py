# SPDX-License-Identifier: Apache-2.0
"""Expressions as deep, or as long, as is asked for."""

from __future__ import annotations

import cProfile
import pstats

import jfold as jf


def layers(count: int) -> jf.Record:
    """The same, with a layer of one name in each."""
    made = [jf.Function(lambda x, n=n: x + n) for n in range(count)]
    return jf.Record([jf.Scalar() >> layer for layer in made])


def sums(count: int) -> jf.Block:
    """Sums over sums of sequences."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.Map(block) >> jf.Sum()
    return block


def calls(block: jf.Block) -> int:
    """How many calls compiling takes."""
    with cProfile.Profile() as profile:
        jf.compile(block)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
