# SPDX-License-Identifier: Apache-2.0
"""`eval`: the eager twin, and where something is drawn, the nodes of one example.

What a node draws goes by its number among those of its example, which the host plan
tells; so there the example is traced, and its nodes run one after another, without
levels, tiles and buffers. With `deterministic=True` the twin checks the plan as well.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import combinators as c
from jfold.device.random_keys import Draws, make_draws
from jfold.errors import expect
from jfold.graph import Array, labels_of
from jfold.host.evaluation import trace
from jfold.interpreters.walk import Walk, make_walk
from jfold.kept import kept
from jfold.keys import Drawing, key_of
from jfold.language.eager import evaluate_typed, strong, typing_of
from jfold.language.parameter_checks import check_params, with_external
from jfold.lower import lower
from jfold.operations import Layer, Operation
from jfold.program import Program
from jfold.result_tables import handed_out
from jfold.types import (
    KeyType,
    SequenceType,
    TupleType,
    Type,
    levels,
    pack,
    terminals,
)

if TYPE_CHECKING:
    from chex import ArrayTree

Values = list[list[Any]]  # by type and number


def evaluate(
    block: c.Block,
    example: object,
    params: Mapping[str, Any] | None,
    external: Mapping[str, Any] | None,
    drawing: Drawing,
) -> Any:
    """See `Block.eval`."""
    typing = typing_of(block)
    _check(typing.layers, example, params)
    rngs, id_, deterministic = drawing
    draws = make_draws(typing.layers, 1, rngs, np.array([id_]), deterministic)
    # The twin shares no code with the host plan, but cannot know the numbers of nodes,
    # by which keys go: so what draws is traced.
    if draws is None or draws.evaluates:
        return evaluate_typed(typing, example, params, external)
    program = _program(block, jax.dtypes.canonicalize_dtype(float))
    params = with_external(program.layers, params or {}, external)
    check_params(program.layers, params)
    walk = make_walk(program, trace(program, [example]))
    return _result(program, walk, _values(program, walk, params, draws))


def _check(layers: Sequence[Layer], example: object, params: object) -> None:
    """Refuses what are no parameters, and those that are given for the example."""
    is_dict = params is None or isinstance(params, Mapping)
    hint = 'call `eval(example, params)`'
    expect('params', params, is_dict, 'a dict of parameters by layers', hint)
    names = {layer.name for layer in layers if layer.params is not None}
    if names and isinstance(example, Mapping) and names <= example.keys():
        if params is None or names.isdisjoint(params):  # type: ignore[arg-type]
            raise TypeError(
                f'expected `example` and then `params`, got those of {sorted(names)}'
                f' as the example: {hint}'
            )


@kept
def _program(block: c.Block, widest: np.dtype[Any]) -> Program:
    """What a block is lowered to, once for each width of floats that JAX keeps."""
    return lower(block)


def _values(
    program: Program, walk: Walk, params: Mapping[str, Any], draws: Draws
) -> Values:
    """All values of a graph of one example."""
    # Lists, not arrays: a value stays what a function gave, and nothing is padded.
    values: Values = [[None] * count for count in walk.counts]
    for t, numbers, value in walk.shared():
        values[t][int(numbers[0])] = value
    for t, numbers, column in walk.own():
        own = _constants(program.types[t], column, draws)
        _put(values[t], numbers, own)
    for o, nodes in walk.waves():
        operation = program.operations[o]
        own_params = operation.layer.own(params)
        for j in nodes.tolist():
            pairs = zip(operation.inputs, walk.uses.inputs[o], strict=True)
            inputs = [values[t][numbers[j]] for t, numbers in pairs]
            outputs = _outputs(operation, own_params, inputs)
            places = zip(operation.outputs, walk.made[o], outputs, strict=True)
            for t, numbers, output in places:
                values[t][numbers[j]] = output
    return values


def _put(values: list[Any], numbers: Array, given: list[Any]) -> None:
    """Writes values [n] where numbers [n] say."""
    for number, value in zip(numbers.tolist(), given, strict=True):
        values[number] = value


def _constants(type_: Type, column: Array, draws: Draws) -> list[Any]:
    """The constants of a type that are the example's own; keys from their numbers."""
    if not isinstance(type_, KeyType):
        return list(column)
    assert draws.ids is not None
    seed, identity = draws.seeds[type_.name], draws.ids[0]
    return [key_of(seed, identity, number) for number in range(len(column))]


def _outputs(operation: Operation, params: ArrayTree, inputs: list[Any]) -> list[Any]:
    """What one node gives."""
    # One row where a function takes several: it may not care how many there are.
    batched = operation.layer.batched
    given = [jnp.asarray(x)[None] if batched else jnp.asarray(x) for x in inputs]
    made = operation.call(params, *pack(TupleType(operation.arguments), given))
    return [strong(x[0] if batched else x) for x in jax.tree.leaves(made)]


# ---- results -------------------------------------------------------------------------


def _result(program: Program, walk: Walk, values: Values) -> object:
    """The value of the expression, with what metrics collect if there are any."""

    def value_of(tables: list[Iterator[Any]]) -> object:
        # Items of all sequences of a level stand one after another, in order.
        return _Built([*levels(program.output)], tables).next(0)

    tables = [_rows(program, walk, values, r) for r in range(len(program.results))]
    metric_of = functools.partial(_collected, program, walk)
    return handed_out(program.results, tables, value_of, metric_of)


def _collected(program: Program, walk: Walk, r: int, rows: Iterator[Any]) -> list[Any]:
    """What a metric collects, in pairs with labels if it has any."""
    result = program.results[r]
    found = [pack(result.type, row) for row in rows]
    labels = labels_of(program, [walk.graph.labels]).get(str(result.kind.name))
    return found if labels is None else list(zip(found, labels.tolist(), strict=True))


def _rows(program: Program, walk: Walk, values: Values, r: int) -> Iterator[Any]:
    """The tensors in each row of a result."""
    for row in range(len(walk.graph.results[r])):
        pairs = zip(program.results[r].tensors, walk.uses.results[r], strict=True)
        yield tuple(values[t][column[row]] for t, column in pairs)


@dataclass(frozen=True)
class _Built:
    """Values with sequences inside, from the rows of each level of their type."""

    types: list[Type]
    rows: list[Iterator[Any]]

    def next(self, level: int) -> object:
        """The value of the next row of a level."""
        type_, leaves = self.types[level], []
        inner = self._first_inside(level)
        pairs = zip(terminals(type_), next(self.rows[level]), strict=True)
        for each, x in pairs:
            if isinstance(each, SequenceType):
                leaves.append([self.next(inner) for _ in range(int(x))])
                inner += 1
            else:
                leaves.append(x)
        return pack(type_, leaves)

    def _first_inside(self, level: int) -> int:
        """The level of the items of the first sequence in a level."""
        before = itertools.chain(*map(terminals, self.types[:level]))
        return 1 + sum(isinstance(x, SequenceType) for x in before)
