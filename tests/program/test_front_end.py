# SPDX-License-Identifier: Apache-2.0
"""Operations without a host plan: another front end states them, and makes graphs.

What it writes here by hand is a walk over a list of numbers: an embedding of each, and
a cell that takes the state before and the next embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import refuses
from programs import trees, with_tensors

from jfold.data.scheduler import build
from jfold.graph import Graph, Table, concatenate
from jfold.program.components import component_of, components
from jfold.program.operations import (
    Layer,
    Operation,
    Operations,
    Producers,
    check_operations,
)
from jfold.program.result_tables import EXAMPLE_ROWS, Result
from jfold.runtime import run
from jfold.scheduling.demands import capacity, demands
from jfold.scheduling.growth import grow
from jfold.scheduling.selections import select
from jfold.scheduling.spec import COUNTED, FIXED, RESIDUALS, Spec
from jfold.tracing import check_graph as graphs
from jfold.types import TensorType

WORD, STATE = TensorType((), 'int32'), TensorType((3,))
ZEROS = np.zeros(3, np.float32)
LISTS = [[1, 4, 1], [2], [], [0, 3, 3, 3, 3, 3, 3, 2]]

shape: Any = jax.ShapeDtypeStruct
EMBED = Layer('embed', lambda w, word: w[word], None, shape((5, 3), 'float32'))
STEP = Layer(
    'step', lambda w, x, y: jnp.tanh(x @ w + y), None, shape((3, 3), 'float32')
)
RNG = np.random.default_rng(0)
PARAMS = {
    'embed': RNG.normal(size=(5, 3)).astype('float32'),
    'step': RNG.normal(size=(3, 3)).astype('float32'),
}


def walk(sources: Producers | None) -> Operations:
    """The operations, and one result: the last state of each example."""
    return Operations(
        types=(WORD, STATE),
        layers=(EMBED, STEP),
        operations=(
            Operation(EMBED, (WORD,), STATE, (0,), (1,)),
            Operation(STEP, (STATE, STATE), STATE, (1, 1), (1,)),
        ),
        constants=((1, ZEROS),),
        results=(Result(EXAMPLE_ROWS, STATE, (1,)),),
        sources=sources,
    )


# Results as bits: 1 is the embedding, 2 the state.
SOURCES = Producers(inputs=((0,), (2, 1)), results=((2,),))


def graph_of(lists: list[list[int]]) -> Graph:
    """A graph, without any plan.

    Values of a state's type are the zeros (0), then an example's embeddings, then its
    states.
    """
    counts = np.array(list(map(len, lists)))
    first = np.append(0, counts.cumsum())
    number = [np.arange(n, dtype=np.int32) for n in counts]
    numbers = np.concatenate(number)
    size = counts.repeat(counts).astype(np.int32)
    before = np.where(numbers == 0, 0, size + numbers).astype(np.int32)
    words = np.concatenate([np.array(x, np.int32) for x in lists])
    own = Table(first, (words,))
    none = Table(np.zeros_like(first), (np.zeros((0, 3), np.float32),))
    embed = Table(first, (np.ones_like(numbers), numbers))
    step = Table(first, (numbers + 1, before, numbers + 1))
    last = Table(np.arange(len(lists) + 1), ((2 * counts).astype(np.int32),))
    return Graph(len(lists), (own, none), (embed, step), (last,))


def plainly(params: Any, words: list[int]) -> Any:
    """The same in JAX alone."""
    state = ZEROS
    for word in words:
        state = jnp.tanh(state @ params['step'] + params['embed'][word])
    return state


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ('strategy', 'residuals'), [*zip((COUNTED, FIXED), RESIDUALS, strict=True)]
)
def test_values_and_gradients_are_those_of_plain_jax(
    strategy: str, residuals: str
) -> None:
    operations, graph = walk(SOURCES), graph_of(LISTS)
    selection = select(operations, graph)
    room = grow(None, capacity(operations, demands(selection), len(LISTS)))
    schedule = build([selection], Spec(operations, room, residuals, strategy))

    def loss(params: Any) -> Any:
        ((values, *_), *_) = run(params, schedule)
        return (values**2).sum(), values

    def expected(params: Any) -> Any:
        values = jnp.stack([plainly(params, each) for each in LISTS])
        return (values**2).sum(), values

    got = jax.jit(jax.grad(loss, has_aux=True))(PARAMS)
    want = interpreter.called(jax.grad(expected, has_aux=True), PARAMS)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), got, want)


def test_what_is_recurrent_is_a_fact_of_the_operations() -> None:
    """As stated; where nothing is, whatever types allow."""
    stated, any_ = walk(SOURCES), walk(None)
    assert component_of(stated) == (0, 1)
    assert [each.recurrent for each in components(stated)] == [False, True]
    assert component_of(any_) == (0, 1)  # an embedding reads words, which none makes
    assert [each.recurrent for each in components(any_)] == [False, True]


def test_a_graph_that_reads_what_is_not_stated() -> None:
    graph = graph_of(LISTS)
    embed, step = graph.operations
    swapped = Table(step.first, (step.columns[0], step.columns[2], step.columns[1]))
    wrong = Graph(4, graph.constants, (embed, swapped), graph.results)
    text = (
        'graph: step(float32[3], float32[3]) -> float32[3], input 0, example 0: '
        'expected what `sources` says, got a result of embed(int32[]) -> float32[3]'
    )
    with refuses(text, ValueError):
        select(walk(SOURCES), wrong)
    select(walk(None), wrong)


def test_operations_are_checked_with_the_first_graph() -> None:
    wrong = replace(walk(None), constants=((7, ZEROS),))
    with refuses('constant 0: expected numbers of 2 types, got 7', ValueError):
        select(wrong, graph_of(LISTS))


def test_what_the_device_runs_is_checked() -> None:
    """Numbers of types, and what is said of who reads what."""
    with refuses('result 1: expected numbers of 2 types, got 7', ValueError):
        check_operations(with_tensors(trees(), 1, (7,)))
    with refuses('expected one result without a name, got 0', ValueError):
        check_operations(replace(trees(), results=trees().results[1:]))
    sources = trees().sources
    assert sources is not None
    with refuses('expected `sources.inputs` of [1, 2], got [1]', ValueError):
        check_operations(replace(trees(), sources=replace(sources, inputs=((0,),))))


def test_a_graph_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what is picked from one that was."""
    seen = []
    check = graphs.check_graph
    monkeypatch.setattr(
        graphs, 'check_graph', lambda *given: (seen.append(1), check(*given))
    )
    operations = walk(SOURCES)
    graph = select(operations, graph_of(LISTS)).graph
    select(operations, graph)
    select(operations, graph.pick(np.array([2, 0])))
    select(operations, concatenate([graph, graph]))
    assert len(seen) == 1
    select(operations, concatenate([graph, graph_of(LISTS)]))
    select(operations, graph_of(LISTS).pick(np.array([2, 0])))
    assert len(seen) == 3


def test_operations_print_without_a_plan() -> None:
    assert str(walk(None)).splitlines() == [
        'operations',
        '  0: embed(int32[]) -> float32[3]',
        '  1: step(float32[3], float32[3]) -> float32[3]',
    ]
    assert repr(walk(None)) == 'Operations(float32[3], operations: 2)'
