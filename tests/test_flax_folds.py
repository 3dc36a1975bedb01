# SPDX-License-Identifier: Apache-2.0
"""Models within Flax modules, with the tools of Flax and of a model around them."""

from __future__ import annotations

import re
from typing import Any

import jax
from flax import linen

import jfold as jf

KEY = jax.random.key(0)


def tree_block(embed: Any) -> jf.Block:
    """Sums over trees of words, whose kinds are told by type."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar('int32') >> jf.Function(embed)
    pair = jf.Record((tree(), tree())) >> jf.Function(lambda a, b: a + b)
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: pair}))
    return tree()


class LinenNet(linen.Module):
    fold: linen.Module

    @linen.compact
    def __call__(self, schedule: Any) -> Any:
        return linen.Dense(2)(self.fold(schedule))


def test_linen_tabulates_a_fold() -> None:
    """The schedule as its arrays and a line, whatever keys the program has."""
    fold = jf.linen.Fold(tree_block(linen.Embed(10, 4)))
    schedule = fold.model.schedule([1, (2, 3)])
    table = LinenNet(fold).tabulate(KEY, schedule, console_kwargs={'width': 160})
    text = re.sub(r'\x1b\[[0-9;]*m', '', table)
    assert re.search(r'fold .*Fold .*float32\[2,4\] .*Embed:', text)
    assert text.count('Spec(Program(float32[4], operations: 2),') == 2
    assert 'Total Parameters: 50' in text
    assert len(text.splitlines()) < 50
