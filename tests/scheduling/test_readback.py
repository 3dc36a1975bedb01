# SPDX-License-Identifier: Apache-2.0
"""The nodes of an example that are read back are those of its graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary, binary_tree

import jfold as jf
from jfold.program.components import component_of
from jfold.scheduling.readback import Node, level_of, nodes_of_result, operands_of
from jfold.tracing.record import trace

TREES = binary(jf.Scalar() >> jnp.tanh, jnp.add) >> jf.Metric('root')
SQUARES = jf.Map(jf.Scalar() >> jf.Function(jnp.square))
# Sums that are read once, and others of which the sum of sums is taken.
SUMS = jf.Map(SQUARES >> jf.Sum()) >> jf.AllOf(jf.Sum(), jf.Map(jf.Function(jnp.exp)))
FOLD = jf.Map(jf.Scalar()) >> jf.Fold(jf.Function(jnp.subtract), jf.Zeros([]))


def random_lists(rng: Any, count: int) -> Any:
    sizes = rng.integers(1, 5, size=count)
    return [list(map(float, rng.integers(9, size=size))) for size in sizes]


def reached(part: Any, example: int) -> dict[Node, list[Node]]:
    """What each node and piece of data of an example reads."""
    results = range(len(part.spec.program.results))
    waiting = [x for r in results for x in nodes_of_result(part, r, example)]
    found: dict[Node, list[Node]] = {}
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = [*operands_of(part, node)] if node[0] >= 0 else []
            waiting += found[node]
    return found


MODELS: dict[str, Any] = {
    'trees': (TREES, binary_tree),
    'folds': (jf.AllOf(jf.Map(FOLD), jf.Length()), random_lists),
    'sums': (SUMS, random_lists),
}


@pytest.mark.parametrize('options', [{}, {'strategy': 'fixed'}, {'reproducible': True}])
@pytest.mark.parametrize('kind', MODELS)
def test_nodes_and_levels_are_those_of_the_graph(kind: str, options: Any) -> None:
    block, draw = MODELS[kind]
    model, rng = jf.compile(block, **options), np.random.default_rng(0)
    examples = [draw(rng, int(rng.integers(1, 9))) for _ in range(12)]
    schedule, graph = model.schedule(examples, size=16), trace(model.program, examples)
    spec, before = schedule.spec, np.cumsum([0, *schedule.depths])
    for k in range(len(examples)):
        found = reached(schedule, k)
        nodes = [node for node in found if node[0] >= 0]
        own = graph.pick(np.array([k]))
        counts = [len(table) for table in own.operations]
        read = Counter(o for o, _ in nodes)
        for o, count in enumerate(counts):
            # Sums that are added up where they are read have no rows.
            applied, operation = spec.program.applied, spec.program.operations[o]
            has_none = o in applied and operation.is_sum
            assert read[o] == (0 if has_none and not read[o] else count)
            levels = sorted(level_of(schedule, node) for node in nodes if node[0] == o)
            if spec.strategy == 'counted' and spec.program.has_loops:
                first = int(before[component_of(spec.program)[o]])
                assert levels == sorted((own.levels[o] + first).tolist())
        for node, operands in found.items():
            for operand in operands:
                assert level_of(schedule, operand) < level_of(schedule, node)


@pytest.mark.parametrize('options', [{}, {'reproducible': True}])
def test_operands_are_those_that_are_computed(options: Any) -> None:
    """The value of each node, from what it reads, is that of the program."""
    model, rng = jf.compile(TREES, **options), np.random.default_rng(1)
    examples = [binary_tree(rng, n) for n in (1, 5, 9)]
    schedule = model.schedule(examples)
    names = [x.layer.name for x in model.program.operations]

    def evaluate(node: Node) -> float:
        o, row = node
        if o < 0:
            return float(schedule.constants[~o][row])
        inputs = [evaluate(x) for x in operands_of(schedule, node)]
        return float(np.tanh(inputs[0]) if names[o] == 'tanh' else sum(inputs))

    for k, _ in enumerate(examples):
        nodes = {x for r in (0, 1) for x in nodes_of_result(schedule, r, k)}
        (root,) = nodes
        _, metrics = model.eval(examples[k])
        np.testing.assert_allclose(evaluate(root), metrics['root'][0], rtol=1e-5)
