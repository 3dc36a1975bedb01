# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells of Flax, refused where a loop would call them the wrong way round.

They take (state, item) and give (state, output). Where both are of one type, nobody
else would tell that one is taken for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from jfold import blocks as b
from jfold.blocks.compose import Composition
from jfold.language.flax_modules import cell_library, module_of
from jfold.language.inference import Inference
from jfold.language.paths import fail
from jfold.language.typed import Typed
from jfold.types import TupleType


def check_end(node: Typed, cell: b.Block) -> None:
    """Refuses an RNN's cell that gives what a cell of Flax gives, as it is."""
    for each in _last(cell):
        if isinstance(each, b.Function) and cell_library(each.fn):
            _refuse(node, each)


def check_order(node: Typed, function: b.Function, state: Inference) -> None:
    """Refuses a cell of Flax that takes the state of a loop for an item."""
    given = state.types.head(node.input)
    if isinstance(given, TupleType) and len(given) == 2 and cell_library(function.fn):
        loop = state.carried.get(given[1])
        if loop is not None:
            _refuse(loop, function)


def _last(block: b.Block) -> Iterator[b.Block]:
    """The blocks whose values a block gives as they are."""
    waiting, seen = [block], set[b.Block]()
    while waiting:
        each = waiting.pop()
        parts = _givers(each)
        if not parts:
            yield each
        waiting += [x for x in parts if x not in seen]
        seen.update(parts)


def _givers(block: b.Block) -> list[b.Block]:
    """The parts of a block of which one gives its value."""
    if isinstance(block, b.Pipe):
        return [x for x in block.blocks if not isinstance(x, b.Identity)][-1:]
    if isinstance(block, b.OneOf):
        return [*block.targets.values(), *filter(None, [block.default])]
    if isinstance(block, b.Reference):
        return [*filter(None, [block.declaration.target])]
    if isinstance(block, Composition) and isinstance(block.wiring.output, int):
        return [x for x, _ in block.wiring.steps[: block.wiring.output][-1:]]
    return []


def _refuse(loop: Typed, function: b.Function) -> NoReturn:
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
