# SPDX-License-Identifier: Apache-2.0
"""Functions in a row as one operation, where that cannot cost batching.

Each operation takes time to compile, forward and backward, and in a recurrence a level.
Where all that one makes is read by one other alone, at the same rows,

    r4 = Apply r0 r2 operation=0 (embed)         ->   r5 = Apply r0 r2 r3 operation=0
    r5 = Apply r0 r4 r3 operation=1 (dense)           (embed >> dense)

both run at once, and what is between them is in no buffer. There are as many nodes as
there were, for each of the one was read by one of the other. Operations of two
components stay two: what runs once, over all its nodes, would take part in the levels
of the other.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp

from jfold.language.rounds import Chosen
from jfold.language.tapes import Use
from jfold.program.components import component_of, components
from jfold.program.costs import looks_up, parameter_bytes
from jfold.program.operations import Layer, Operation, Operations
from jfold.types import TupleType, pack, tensors

if TYPE_CHECKING:
    from chex import ArrayTree

MOST = 8  # functions in one operation, whose name tells all of them
SMALL_TABLE = (
    1 << 18
)  # bytes, of which a gradient costs little, as often as it is taken

# Of an input: the operation that makes it, and which of its results it is.
Feed: TypeAlias = 'tuple[int, int] | None'
Joined: TypeAlias = Mapping[int, Sequence[Feed]]  # of what others are joined to
Uses: TypeAlias = Mapping[int, Sequence[Use]]  # by operation


def joined(program: Operations, uses: Sequence[Use], grouped: Set[int]) -> Chosen:
    """Which operations are one, and what no line applies is none.

    Args:
      program: what the uses were written for.
      uses: of operations, each with who reads its results.
      grouped: operations that are applied to groups of items.
    """
    feeds = _joined(program, _uses(program, uses, grouped))
    return chosen_by(feeds, program.operations, uses, grouped)


def chosen_by(
    found: Joined,
    operations: Sequence[Operation],
    uses: Sequence[Use],
    grouped: Set[int],
) -> Chosen:
    """The same, where it is known what is joined."""
    inside = {feed[0] for feeds in found.values() for feed in feeds if feed}
    applied = {use.operation for use in uses} | grouped
    kept = sorted(applied - inside)
    made = tuple(_whole(o, operations, found) for o in kept)
    number = {o: n for n, o in enumerate(kept)}
    around = {feed[0]: o for o, of in found.items() for feed in of if feed}
    for o in sorted(inside):
        end = o
        while end in around:
            end = around[end]
        number[o] = number[end]
    return Chosen(made, number, found, frozenset(inside))


# ---- which are joined ----------------------------------------------------------------


def _joined(program: Operations, uses: Uses) -> Joined:
    """What operations read of those that are joined to them."""
    found: dict[int, list[Feed]] = {}
    reader = {o: read for o in uses if (read := _reader(o, uses))}
    if not reader:
        return found
    part = component_of(program)
    recurrent = [components(program)[c].recurrent for c in part]
    size = dict.fromkeys(uses, 1)  # of what ends in an operation
    ends: dict[int, int] = {}  # in which operation one is that is joined
    for o, (last, feeds) in sorted(reader.items()):
        end = last
        while end in ends:
            end = ends[end]
        together = part[o] == part[last] or not (recurrent[o] or recurrent[last])
        if together and size[o] + size[end] <= MOST:
            own = found.setdefault(last, [None for _ in feeds])
            found[last] = [b or a for a, b in zip(own, feeds, strict=True)]
            ends[o] = last
            size[end] += size[o]
    return found


def _uses(program: Operations, uses: Sequence[Use], grouped: Set[int]) -> Uses:
    """The uses of operations that may be joined."""
    found: dict[int, list[Use]] = defaultdict(list)
    for use in uses:
        found[use.operation].append(use)
    may = {o for o in found if _may_be_joined(program, program.operations[o])}
    return {o: found[o] for o in sorted(may - grouped)}


def _may_be_joined(program: Operations, operation: Operation) -> bool:
    """Whether an operation may be one with others: not one that looks up rows of a
    large table, whose gradient is taken of all rows at once, as that of a matrix need
    not be."""
    is_table = looks_up(program, operation)
    return operation.is_straight and not (
        is_table and parameter_bytes(operation) > SMALL_TABLE
    )


def _reader(o: int, uses: Uses) -> tuple[int, tuple[Feed, ...]] | None:
    """The one operation that reads all that another makes, wherever that is applied and
    nowhere else; and what it reads of that. `None` if there is none."""
    found: set[tuple[int, tuple[Feed, ...]]] = set()
    for use in uses[o]:
        (reader,) = use.readers if len(use.readers) == 1 else (None,)
        if reader is None:
            return None
        feeds = (
            (o, each.use[1]) if each.use is not None and each.use[0] is use else None
            for each in reader.given
        )
        found.add((reader.operation, tuple(feeds)))
    (last, feeds_of_last), *others = found
    readers = {reader for use in uses[o] for reader in use.readers}
    if others or last not in uses:
        return None
    same = len(uses[o]) == len(readers) == len(uses[last])
    return (last, feeds_of_last) if same else None


# ---- what becomes of them ------------------------------------------------------------


def _whole(o: int, operations: Sequence[Operation], joined: Joined) -> Operation:
    """An operation with all that are joined to it."""
    if o not in joined:
        return operations[o]
    numbers = _before(joined[o])
    before = [_whole(each, operations, joined) for each in numbers]
    feeds = [feed and (numbers.index(feed[0]), feed[1]) for feed in joined[o]]
    return _in_a_row(before, operations[o], feeds)


def _before(feeds: Sequence[Feed]) -> list[int]:
    """The operations that make inputs, in the order in which they come first."""
    return list(dict.fromkeys(feed[0] for feed in feeds if feed))


def _in_a_row(
    before: Sequence[Operation], last: Operation, feeds: Sequence[Feed]
) -> Operation:
    """Operations as one: of the inputs of those before, then of those of the last that
    none of them makes."""
    every, own = (*before, last), [k for k, feed in enumerate(feeds) if feed is None]
    names = [each.layer.name for each in before]
    first = names[0] if len(names) == 1 else f'({", ".join(names)})'
    params = dict(itertools.chain(*(_params(each.layer) for each in every)))
    draws = any(each.layer.evaluating for each in every)
    layer = Layer(
        name=f'{first} >> {last.layer.name}',
        call=_calling(before, last, feeds, evaluates=False),
        init=None,
        params=params or None,
        evaluating=_calling(before, last, feeds, evaluates=True) if draws else None,
        parts=tuple(params),
    )
    types = [type_ for each in before for type_ in tensors(TupleType(each.arguments))]
    of_last, inputs = list(tensors(TupleType(last.arguments))), last.inputs
    return replace(
        last,
        layer=layer,
        arguments=(*types, *(of_last[k] for k in own)),
        inputs=(
            *(t for each in before for t in each.inputs),
            *(inputs[k] for k in own),
        ),
    )


def _params(layer: Layer) -> Iterable[tuple[str, ArrayTree]]:
    """The parameters of layers that a layer has, by name."""
    if layer.parts or layer.params is None:
        return dict(layer.params or {}).items()
    return [(layer.name, layer.params)]


def _calling(
    before: Sequence[Operation],
    last: Operation,
    feeds: Sequence[Feed],
    evaluates: bool,
) -> Callable[..., Any]:
    """The call of operations as one, or that where nothing is drawn."""

    def results(each: Operation, params: ArrayTree, inputs: Sequence[Any]) -> Any:
        call = (each.layer.evaluating if evaluates else None) or each.layer.call
        packed = pack(TupleType(each.arguments), inputs)
        return call(each.layer.own(params), *packed)

    def call(params: ArrayTree, *given: jax.Array) -> Any:
        """The results of the last."""
        rest, made = iter(given), []
        for each in before:
            found = results(each, params, [next(rest) for _ in each.inputs])
            # What a function gives is made what a buffer would give the next one.
            pairs = zip(jax.tree.leaves(found), tensors(each.result), strict=True)
            made.append([jnp.asarray(x, type_.dtype) for x, type_ in pairs])
        inputs = [made[feed[0]][feed[1]] if feed else next(rest) for feed in feeds]
        return results(last, params, inputs)

    return call
