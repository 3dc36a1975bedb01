# SPDX-License-Identifier: Apache-2.0
"""Refusal of Flax's recurrent cells where a loop would swap state and item.

A cell of Flax takes (state, item) and returns (state, output); the cell of an `RNN` of
jfold takes (item, state) and returns (output, state). If both have one type, no other
check would notice that they are swapped. All errors are `TypeError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from jfold import blocks as b
from jfold.blocks.compose import Composition
from jfold.language.flax_modules import cell_library, module_of
from jfold.language.inference import Inference
from jfold.language.paths import fail
from jfold.language.typed import TypedUse
from jfold.types import TupleType


def check_end(node: TypedUse, cell: b.Block) -> None:
    """Raise `TypeError` if the last block of an RNN's cell is a Flax cell.

    A Flax cell returns (state, output), while an `RNN` expects (output, state).

    Args:
      node: the use of the RNN.
    """
    waiting: list[b.Block | None] = [cell]
    seen = set[b.Block | None]()
    while waiting:
        block = waiting.pop()
        if isinstance(block, b.Function) and cell_library(block.fn):
            _refuse(node, block)
        if block is not None and block not in seen:
            seen.add(block)
            waiting += _result_parts(block)


def check_order(node: TypedUse, function: b.Function, state: Inference) -> None:
    """Raise `TypeError` if a Flax cell gets a loop's state where it expects an item.

    Args:
      node: the use of `function`, which may be a cell.
      state: the type inference, whose `carried` tells the loop of a type variable.
    """
    type_ = state.types.head(node.input)
    if isinstance(type_, TupleType) and len(type_) == 2 and cell_library(function.fn):
        loop = state.carried.get(type_[1])
        if loop is not None:
            _refuse(loop, function)


def _result_parts(block: b.Block) -> Sequence[b.Block | None]:
    """Return the direct inner blocks whose value `block` may return unchanged."""
    if isinstance(block, b.Pipe):
        return [x for x in block.blocks if not isinstance(x, b.Identity)][-1:]
    if isinstance(block, b.OneOf):
        return [*block.targets.values(), block.default]
    if isinstance(block, b.Reference):
        return [block.declaration.target]
    if isinstance(block, Composition) and isinstance(block.wiring.output, int):
        return [x for x, _ in block.wiring.steps[: block.wiring.output][-1:]]
    return []


def _refuse(loop: TypedUse, function: b.Function) -> NoReturn:
    name, library = type(module_of(function.fn)).__name__, cell_library(function.fn)
    if isinstance(loop.block, b.Fold):
        expected = f'a state and then an item for {name} of {library}'
        hint = 'give it what Fold gives, in that order'
        fail(loop, expected, 'the state second', hint)
    hints = {
        'flax.linen': f'pass `jf.layers.Cell({name}(...))`',
        'flax.nnx': 'pass a module that calls it the other way round',
    }
    fail(
        loop,
        'a cell that takes an item and a state and gives an output and a state',
        f'{name} of {library}, which takes and gives the state first',
        hints[library],
    )
