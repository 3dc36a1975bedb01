# SPDX-License-Identifier: Apache-2.0
"""`eval`: the eager twin, and where something is drawn, the nodes of one example.

What a node draws goes by its number among those of its example, which the host plan
tells; so there the example is traced, and its nodes run one after another, without
levels, tiles and buffers. With `deterministic=True` the twin checks the plan as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import combinators as c
from jfold.device.drawn import Draws, Rngs, make_draws
from jfold.graph import Array, Graph, labels_of, number_values
from jfold.host.evaluation import trace
from jfold.kept import kept
from jfold.keys import key_of
from jfold.language.eager import evaluate_typed, strong, typing_of
from jfold.language.parameters import check_params, with_external
from jfold.lower import lower
from jfold.operations import Operation
from jfold.program import Program
from jfold.recurrence import component_of
from jfold.tracebacks import boundary
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


@boundary
def evaluate(
    block: c.Block,
    example: object,
    params: Mapping[str, Any] | None = None,
    external: Mapping[str, Any] | None = None,
    *,
    rngs: Rngs = None,
    id: int = 0,
    deterministic: bool = False,
) -> Any:
    """Runs a block on one example, without batching.

    Args:
      block: any block that takes Python data, or nothing.
      example: the data.
      params: as `Model.init` returns them; needed if the block has parameters.
      external: by name, the arrays that `External` blocks pick rows of.
      rngs, deterministic: as of `Model.apply`, which draws the same.
      id: of the example, its row in the batch if there are no `ids`.

    Returns:
      The value: arrays in tuples, lists for sequences. With `Metric` blocks inside, the
      value and a dict of lists, of what each was given, one after another: values, or
      pairs of a value and its label.

    Raises:
      TypeError: the block's types clash, or a layer draws and has no key.
      ValueError: the data contain themselves. Other errors about the data are
        Python's own, with a note that names the block; those of an example of which
        something is drawn, an `InputError`.
    """
    typing = typing_of(block)
    draws = make_draws(typing.layers, 1, rngs, np.array([id]), deterministic)
    if draws is None or draws.evaluates:
        return evaluate_typed(typing, example, params, external)
    program = _program(block, jax.dtypes.canonicalize_dtype(float))
    params = with_external(program.layers, params or {}, external)
    check_params(program.layers, params)
    graph = trace(program, [example])
    return _result(program, graph, _values(program, graph, params, draws))


c.Block.eval = evaluate


@kept
def _program(block: c.Block, widest: np.dtype[Any]) -> Program:
    """What a block is lowered to, once for each width of floats that JAX keeps."""
    return lower(block)


def _values(
    program: Program, graph: Graph, params: Mapping[str, Any], draws: Draws
) -> Values:
    """All values of a graph of one example."""
    values: Values = [[] for _ in program.types]
    for t, value in program.constants:
        values[t].append(value)
    for t, (type_, table) in enumerate(
        zip(program.types, graph.constants, strict=True)
    ):
        values[t] += _constants(type_, table.columns[0], draws)
    numbers, begins = number_values(program, 1, graph.constants + graph.operations)
    for t, first in enumerate(numbers.first):
        values[t] += [None] * (int(first[-1]) - len(values[t]))
    firsts = iter(begins[len(program.types) :])
    made = [[int(next(firsts)[0]) for _ in x.outputs] for x in program.operations]
    for o, j in _in_order(program, graph):
        operation, (_, *ids) = program.operations[o], graph.operations[o].columns
        pairs = zip(operation.inputs, ids, strict=True)
        inputs = [values[t][number[j]] for t, number in pairs]
        outputs = _outputs(operation, params.get(operation.layer.name), inputs)
        for t, begin, value in zip(operation.outputs, made[o], outputs, strict=True):
            values[t][begin + j] = value
    return values


def _constants(type_: Type, column: Array, draws: Draws) -> list[Any]:
    """The constants of a type that are the example's own; keys from their numbers."""
    if not isinstance(type_, KeyType):
        return list(column)
    assert draws.ids is not None
    seed, identity = draws.seeds[type_.name], draws.ids[0]
    return [key_of(seed, identity, number) for number in range(len(column))]


def _in_order(program: Program, graph: Graph) -> list[tuple[int, int]]:
    """Operations and numbers of nodes, each behind those that it reads."""
    of = component_of(program)
    nodes = [
        (of[o], int(level), o, j)
        for o, levels_ in enumerate(graph.levels)
        for j, level in enumerate(levels_)
    ]
    return [(o, j) for _, _, o, j in sorted(nodes)]


def _outputs(operation: Operation, params: ArrayTree, inputs: list[Any]) -> list[Any]:
    """What one node gives."""
    batched = operation.layer.batched
    given = [jnp.asarray(x)[None] if batched else jnp.asarray(x) for x in inputs]
    made = operation.call(params, *pack(TupleType(operation.arguments), given))
    return [strong(x[0] if batched else x) for x in jax.tree.leaves(made)]


# ---- results -------------------------------------------------------------------------


def _result(program: Program, graph: Graph, values: Values) -> object:
    """The value of the expression, with what metrics collect if there are any."""
    # The items of all sequences of a level stand one after another, in order.
    tables = [_rows(program, graph, values, r) for r in program.value_results]
    value = _Built([*levels(program.output)], tables).next(0)
    metrics = {
        str(program.results[r].name): _collected(program, graph, values, r)
        for r in program.metric_results
    }
    return (value, metrics) if metrics else value


def _collected(program: Program, graph: Graph, values: Values, r: int) -> list[Any]:
    """What a metric collects, in pairs with labels if it has any."""
    result = program.results[r]
    found = [pack(result.type, row) for row in _rows(program, graph, values, r)]
    labels = labels_of(program, [graph]).get(str(result.name))
    return found if labels is None else list(zip(found, labels.tolist(), strict=True))


def _rows(program: Program, graph: Graph, values: Values, r: int) -> Iterator[Any]:
    """The tensors in each row of a result."""
    table, tensors = graph.results[r], program.results[r].tensors
    for row in range(len(table)):
        pairs = zip(tensors, table.columns, strict=True)
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
