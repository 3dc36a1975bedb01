# SPDX-License-Identifier: Apache-2.0
"""Graphs from outside: whatever would be a wrong row on the device is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from binary_trees import binary
from checking import add, number, refuses
from checking import observed as seen

import jfold as jf
from jfold.files import storage
from jfold.graph import Graph, Table
from jfold.program.operations import Program
from jfold.tracing import check_graph as graphs
from jfold.tracing.check_graph import check_graph
from jfold.tracing.record import trace

Array = np.ndarray[Any, Any]

TREES = [(1, 2), (((1, 2), 3), (4, (5, 6)))]


def observed() -> jf.Model:
    """Sums of trees, with a metric of all nodes."""
    return jf.compile(binary(number, add >> seen('seen')))


def traced() -> tuple[Program, Graph]:
    """Two trees, of which the first has fewer values."""
    program = observed().program
    return program, trace(program, TREES)


def changed(table: Table, column: int, values: Array) -> Table:
    parts = list(table.columns)
    parts[column] = values
    return Table(table.first, tuple(parts))


def damaged(graph: Graph, where: str, damage: Callable[[Array], Array]) -> Graph:
    """A graph with other numbers in one column."""
    (nodes,), (own, metric) = graph.operations, graph.results
    if where == 'result':
        own = changed(own, 0, damage(own.columns[0]))
    elif where == 'metric':
        metric = changed(metric, 0, damage(metric.columns[0]))
    else:
        column = 0 if where == 'level' else 2
        nodes = changed(nodes, column, damage(nodes.columns[column]))
    return replace(graph, operations=(nodes,), results=(own, metric))


def put(row: int, value: int) -> Callable[[Array], Array]:
    def damage(values: Array) -> Array:
        made = values.copy()
        made[row] = value
        return made

    return damage


ADD = 'add(float32[], float32[]) -> float32[]'


def number_of(place: str, count: int, found: int) -> str:
    """That a number of so many values was expected there."""
    return f'graph: {place}: expected a number of {count} values float32[], got {found}'


def level(example: int, want: int, found: int) -> str:
    """That another level was expected in an example."""
    return (
        f'graph: {ADD}, example {example}: expected level {want}, one above the inputs '
        f'that operations make which take turns with it, got {found}'
    )


FIRST, SECOND = (f'{ADD}, input 1, example {n}' for n in (0, 1))
VALUES: dict[str, tuple[str, Callable[[Array], Array], str]] = {
    'a negative number': ('operation', put(0, -1), number_of(FIRST, 3, -1)),
    'a number beyond all': (
        'operation',
        put(3, 1 << 20),
        number_of(SECOND, 11, 1048576),
    ),
    'a number of another example': ('operation', put(0, 9), number_of(FIRST, 3, 9)),
    'a result that there is not': (
        'result',
        put(1, 11),
        number_of('result 0, tensor 0, example 1', 11, 11),
    ),
    'a metric of what there is not': (
        'metric',
        put(5, -7),
        number_of('result 1, tensor 0, example 1', 11, -7),
    ),
    'a level too low': ('level', put(5, 1), level(1, 3, 1)),
    'a level too high': ('level', put(0, 2), level(0, 1, 2)),
    'a row too few': (
        'operation',
        lambda values: values[:-1],
        'graph: expected the shape of column 2 of operations 0 to be (6,), got (5,)',
    ),
    'a row too many': (
        'metric',
        lambda values: np.append(values, values[:1]),
        'graph: expected the shape of column 0 of results 1 to be (6,), got (7,)',
    ),
    'numbers that are no int32': (
        'operation',
        lambda values: values.astype(np.float32),
        'graph: expected the dtype of column 2 of operations 0 to be int32, got '
        'float32',
    ),
}


@pytest.mark.parametrize('name', VALUES)
@pytest.mark.parametrize('block', [1, 1 << 20])
def test_wrong_values_are_named(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operation, the example and the input; however many are looked at at once."""
    monkeypatch.setattr(graphs, 'BLOCK', block)
    program, graph = traced()
    check_graph(program, graph)
    where, damage, message = VALUES[name]
    with refuses(message, ValueError):
        check_graph(program, damaged(graph, where, damage))


def test_missing_tables_and_columns_are_named() -> None:
    """And rows that belong to no example, or to several."""
    program, graph = traced()
    (nodes,), (own, metric) = graph.operations, graph.results
    short, late = nodes.first[:-1], nodes.first + 1
    twice = Table(np.array([0, 0, 2]), own.columns)
    for lacking, text in (
        ({'operations': ()}, 'number of tables of operations to be 1, got 0'),
        ({'results': (own,)}, 'number of tables of results to be 2, got 1'),
        ({'constants': ()}, 'number of tables of constants to be 1, got 0'),
        (
            {'operations': (Table(nodes.first, nodes.columns[:-1]),)},
            'number of columns of operations 0 to be 3, got 2',
        ),
        (
            {'operations': (Table(short, nodes.columns),)},
            'shape of `first` of operations 0 to be (3,), got (2,)',
        ),
        (
            {'operations': (Table(late, nodes.columns),)},
            'beginning of `first` of operations 0 to be 0, got 1',
        ),
        (
            {'operations': (Table(nodes.first[[0, 2, 1]], nodes.columns),)},
            'lowest step of `first` of operations 0 to be 0, got -5',
        ),
        (
            {'results': (twice, metric)},
            'least and most rows of an example in results 0 to be (1, 1), got (0, 2)',
        ),
    ):
        with refuses(f'graph: expected the {text}', ValueError):
            check_graph(program, replace(graph, **lacking))


def test_labels_lie_as_their_results_do() -> None:
    labelled = jf.AllOf(jf.GetItem(1) >> number, jf.GetItem(0)) >> jf.Metric('seen')
    program = jf.compile(jf.Map(labelled) >> jf.Void() >> jf.Zeros([])).program
    graph = trace(program, [[('a', 1), ('b', 2)], [('c', 3)]])
    check_graph(program, graph)
    (table,) = graph.labels
    for labels, text in (
        ((), 'number of tables of labels to be 1, got 0'),
        ((Table(table.first, ()),), 'number of columns of labels 0 to be 1, got 0'),
        (
            (Table(table.first, (table.columns[0][:2],)),),
            'number of labels 0 to be 3, got 2',
        ),
        (
            (Table(np.array([0, 1, 3]), table.columns),),
            'equality of `first` of labels 0 and of their results to be True, '
            'got False',
        ),
    ):
        with refuses(f'graph: expected the {text}', ValueError):
            check_graph(program, replace(graph, labels=labels))


def test_a_corpus_that_was_written_wrongly_is_refused(tmp_path: Path) -> None:
    """Its checksums may be right, since whoever wrote it made them."""
    model, path = observed(), tmp_path / 'corpus.jfold'
    model.trace(TREES, progress=False).save(path)
    arrays, metadata = storage.read(path)
    arrays = {name: np.array(values) for name, values in arrays.items()}
    arrays['operations/0/2'][3] = 1 << 20
    storage.write(path, arrays, metadata)
    with pytest.raises(ValueError, match=r'corpus\.jfold: graph: .*, example 1: '):
        jf.Corpus.load(path, model)


def test_what_was_traced_elsewhere_is_checked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it is scheduled or joined: another process, or a user, may have made it."""
    model = observed()
    sent = pickle.loads(pickle.dumps(model.tracer()(TREES)))
    wrong = damaged(sent.graph, 'operation', put(3, 1 << 20))
    for graph in wrong, replace(wrong, fits=True):
        for use in model.schedule, lambda x: model.join([x]):
            with pytest.raises(
                ValueError, match=r'graph: .*, example 1: expected a number'
            ):
                use(jf.Traced(graph, sent.digest))
    looked: list[Graph] = []
    original = graphs.check_graph

    def counted(operations: Program, graph: Graph) -> None:
        looked.append(graph)
        original(operations, graph)

    monkeypatch.setattr(graphs, 'check_graph', counted)
    again = pickle.loads(pickle.dumps(sent))
    for each in sent, sent, again, copy.copy(sent):
        model.schedule(each)
    assert len(looked) == 3
    model.join([again, sent])
    assert len(looked) == 3


def test_own_traces_are_not_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They fit by construction; and a corpus in a file is checked as it is opened."""
    model, path = observed(), tmp_path / 'corpus.jfold'
    model.trace(TREES, progress=False).save(path)
    opened = jf.Corpus.load(path, model)

    def never(*_: Any) -> None:
        raise AssertionError

    for name in '_check_tables', '_Values':
        monkeypatch.setattr(graphs, name, never)
    opened.schedule([0])
    model.join([opened, opened]).schedule([0, 3])
    model.schedule(TREES)
    model.schedule(model.tracer()(TREES))
    model.trace(TREES, progress=False).schedule([0])
