# SPDX-License-Identifier: Apache-2.0
"""Fusion: functions in a row become one operation, where that cannot cost batching.

Each operation takes time to compile, forward and backward, and in a recurrence a level.
Where one other operation alone reads the results, row by row,

    r4 = Apply r0 r2 operation=0 (embed)         ->   r5 = Apply r0 r2 r3 operation=0
    r5 = Apply r0 r4 r3 operation=1 (dense)           (embed >> dense)

both run together, and the values between them need no buffer. The number of nodes stays
the same, as each use of the first is read by one use of the second. An operation of a
recurrence is fused with others of that recurrence alone: one from outside, which runs
all its nodes together, would run level by level.

Operations are numbered as in `Tables.listed`. A *producer* is fused into its *reader*.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp

from jfold.language.facts import OperationChoice
from jfold.language.symbols import Use
from jfold.program.components import component_of, components
from jfold.program.operations import (
    Layer,
    Operation,
    Operations,
    looks_up,
    parameter_bytes,
)
from jfold.types import TensorType, TupleType, pack, tensors

if TYPE_CHECKING:
    from chex import ArrayTree

MOST = 8  # functions in one operation, whose name lists all of them
SMALL_TABLE = 1 << 18  # bytes; smaller gradients are cheap, however often taken

# The origin of an input of a fused operation: the producer that is fused into it, and
# the number of the output; `None` for an input from outside.
Feed: TypeAlias = 'tuple[int, int] | None'
Joined: TypeAlias = Mapping[int, Sequence[Feed]]  # by reader, the feed of each input
Uses: TypeAlias = Mapping[int, Sequence[Use]]  # by operation


def choose_operations(
    program: Operations, uses: Sequence[Use], grouped: Set[int], fuses: bool
) -> OperationChoice:
    """Return the operations that `uses` apply, fused if `fuses`.

    Those in `grouped`, which reduce groups of items, are returned too, never fused.
    """
    feeds_of = _choose_feeds(program, uses, grouped) if fuses else {}
    around = {feed[0]: o for o, feeds in feeds_of.items() for feed in feeds if feed}
    applied = {use.operation for use in uses} | grouped
    kept = sorted(applied - around.keys())
    fused = tuple(_fused(o, program.operations, feeds_of) for o in kept)
    number = {o: n for n, o in enumerate(kept)}
    # A producer gets the number of the fused operation.
    number |= {o: number[_end(o, around)] for o in around}
    return OperationChoice(fused, number, feeds_of, frozenset(around))


def _end(o: int, readers: Mapping[int, int]) -> int:
    """Return the last operation in the chain `o`, `readers[o]`, ..., fused into one."""
    while o in readers:
        o = readers[o]
    return o


def _choose_feeds(
    program: Operations, applications: Sequence[Use], grouped: Set[int]
) -> Joined:
    """Choose what to fuse, none of `grouped`; return, by reader, its inputs' feeds."""
    of_operation: dict[int, list[Use]] = defaultdict(list)
    for use in applications:
        of_operation[use.operation].append(use)
    fusible = {o for o in of_operation if _is_fusible(program, program.operations[o])}
    uses = {o: of_operation[o] for o in sorted(fusible - grouped)}
    result: dict[int, list[Feed]] = {}
    reader = {o: read for o in uses if (read := _reader(o, uses))}
    if not reader:
        return result
    part = component_of(program)
    recurrent = [components(program)[c].recurrent for c in part]
    size = dict.fromkeys(uses, 1)  # functions in a fusion, by its last operation
    ends: dict[int, int] = {}  # of a producer, the reader that it is fused into
    for o, (last, feeds) in sorted(reader.items()):
        end = _end(last, ends)
        # Fusion must not move an operation into a recurrence, or out of one.
        together = part[o] == part[last] or not (recurrent[o] or recurrent[last])
        if together and size[o] + size[end] <= MOST:
            # Several producers may be fused into one reader: each makes other inputs.
            others = result.setdefault(last, [None for _ in feeds])
            result[last] = [b or a for a, b in zip(others, feeds, strict=True)]
            ends[o] = last
            size[end] += size[o]
    return result


def _is_fusible(program: Operations, operation: Operation) -> bool:
    """Return whether an operation may be fused with others.

    A look-up in a large table may not: the gradient of a table is dense, and unfused it
    is taken once, for all rows together.
    """
    is_large = parameter_bytes(operation) > SMALL_TABLE
    return operation.is_straight and not (is_large and looks_up(program, operation))


def _reader(o: int, uses: Uses) -> tuple[int, tuple[Feed, ...]] | None:
    """Return the sole reader of operation `o`, and the feed of each reader input.

    `None` is returned unless each of `uses[o]` is read by exactly one application of
    the reader, and each application of the reader reads one of `o`.
    """
    candidates, readers = set[tuple[int, tuple[Feed, ...]]](), set[Use]()
    for use in uses[o]:
        (reader,) = use.readers if len(use.readers) == 1 else (None,)
        if reader is None:
            return None
        made = (x.use if x.use and x.use[0] is use else None for x in reader.inputs)
        feeds = tuple(x and (o, x[1]) for x in made)
        candidates.add((reader.operation, feeds))
        readers.add(reader)
    found, *others = candidates
    one_to_one = len(uses[o]) == len(readers) == len(uses.get(found[0], ()))
    return found if one_to_one and not others else None


def _fused(o: int, operations: Sequence[Operation], feeds_of: Joined) -> Operation:
    """Return operation number `o` fused with its producers in `feeds_of`, recursively.

    Its inputs are the inputs of the fused producers, then the inputs of `o` that no
    fused producer makes.
    """
    if o not in feeds_of:
        return operations[o]
    # The producers, in the order in which inputs name them; they run before `last`.
    numbers = list(dict.fromkeys(feed[0] for feed in feeds_of[o] if feed))
    before = [_fused(number, operations, feeds_of) for number in numbers]
    feeds = [feed and (numbers.index(feed[0]), feed[1]) for feed in feeds_of[o]]
    last = operations[o]
    layers = [operation.layer for operation in (*before, last)]
    names = [layer.name for layer in layers[:-1]]
    first = names[0] if len(names) == 1 else f'({", ".join(names)})'
    params = dict(itertools.chain(*map(_params, layers)))
    draws = any(layer.evaluating for layer in layers)
    layer = Layer(
        name=f'{first} >> {last.layer.name}',
        call=_call_of(before, last, feeds, evaluates=False),
        init=None,
        params=params or None,
        evaluating=_call_of(before, last, feeds, evaluates=True) if draws else None,
        parts=tuple(params),
    )
    inputs = [x for op in before for x in _inputs(op)]
    inputs += [x for x, feed in zip(_inputs(last), feeds, strict=True) if feed is None]
    return replace(
        last,
        layer=layer,
        arguments=tuple(type_ for type_, _, _ in inputs),
        inputs=tuple(t for _, t, _ in inputs),
        stops=frozenset(k for k, (_, _, stopped) in enumerate(inputs) if stopped),
    )


def _inputs(operation: Operation) -> Iterator[tuple[TensorType, int, bool]]:
    """Yield (type, index of that type, whether gradients stop there) for each input."""
    stopped = (k in operation.stops for k in itertools.count())
    types = tensors(TupleType(operation.arguments))
    return zip(types, operation.inputs, stopped, strict=False)


def _params(layer: Layer) -> Iterable[tuple[str, ArrayTree]]:
    """Return (layer name, parameters) pairs: one, or one per part of a fused layer."""
    if layer.parts or layer.params is None:
        return dict(layer.params or {}).items()
    return [(layer.name, layer.params)]


def _call_of(
    before: Sequence[Operation], last: Operation, feeds: Sequence[Feed], evaluates: bool
) -> Callable[..., Any]:
    """Return the function (params, *inputs) that runs `before` and then `last`.

    `feeds` has, per input of `last`, (index in `before`, output there) or `None`.
    If it `evaluates`, layers run in the form that draws no random numbers.
    """

    def run(op: Operation, params: ArrayTree, inputs: Sequence[Any]) -> Any:
        call = (op.layer.evaluating if evaluates else None) or op.layer.call
        packed = pack(TupleType(op.arguments), inputs)
        return call(op.layer.own(params), *packed)

    def call(params: ArrayTree, *inputs: jax.Array) -> Any:
        remaining, results = iter(inputs), []
        for op in before:
            result = run(op, params, [next(remaining) for _ in op.inputs])
            # Without fusion a buffer lies between, which casts to the declared dtype.
            pairs = zip(jax.tree.leaves(result), tensors(op.result), strict=True)
            results.append([jnp.asarray(x, type_.dtype) for x, type_ in pairs])
        of_last = [results[x[0]][x[1]] if x else next(remaining) for x in feeds]
        return run(last, params, of_last)

    return call
