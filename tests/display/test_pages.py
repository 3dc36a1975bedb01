# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of every kind of object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from shown import EXAMPLES, SPACE, applied, html, read, rows, small_model, texts, words

import jfold as jf

MODEL = small_model()


def test_a_block_is_a_tree_with_types() -> None:
    root = read(html(MODEL.block))
    assert [words(x) for x in root.iter('summary')] == ['expression', 'tree']
    assert rows(root) == [
        ['Pipe', 'object → (float32[4], void)'],
        ['tree()', 'object → float32[4]'],
        ['AllOf', 'float32[4] → (float32[4], void)'],
        ['Identity()', 'float32[4] → float32[4]'],
        ["Metric('root')", 'float32[4] → void'],
        ['OneOf by type', 'object → float32[4]'],
        ["<class 'int'>: Pipe", 'object → float32[4]'],
        ["Scalar('int32')", 'object → int32[]'],
        ['Function(embed)', 'int32[] → float32[4]'],
        ["<class 'tuple'>: Pipe", 'object → float32[4]'],
        ['Record', 'object → (float32[4], float32[4])'],
        ['0: tree()', 'object → float32[4]'],
        ['1: tree()', 'object → float32[4]'],
        ['Function(cell)', '(float32[4], float32[4]) → float32[4]'],
    ]
    depths = [x.get('style', '') for x in root.iter('span') if x.get('style')]
    assert depths[:4] == [f'width: calc({n} * 1.2em)' for n in (0, 1, 1, 2)]


def test_a_block_whose_types_clash_is_shown_as_far_as_they_go() -> None:
    wrong = jf.Record({'a': jf.Scalar() >> jf.Map(jf.Function(jnp.tanh))})
    root = read(html(wrong))
    assert rows(root) == [
        ['Record', ''],
        ["'a': Pipe", ''],
        ["Scalar('float32')", 'object → float32[]'],
        ['Map', ''],
        ['Function(tanh)', ''],
    ]
    assert 'Map(Function(tanh)): expected a sequence, a non-empty' in words(root)


def test_a_block_that_is_not_whole() -> None:
    tree = jf.ForwardDeclaration(name='later')
    root = read(html(jf.Map(tree())))
    assert [first for first, _ in rows(root)] == ['Map', 'later()']
    assert 'later(): expected a declaration that is' in words(root)


def test_a_program_is_a_table_and_source() -> None:
    root = read(html(MODEL.program))
    assert rows(root) == [
        ['', 'operation', 'inputs', 'result', 'reads', 'runs'],
        ['0', 'embed', 'int32[]', 'float32[4]', 'data', 'once'],
        ['1', 'cell', 'float32[4], float32[4]', 'float32[4]', '0, 1', 'by level'],
    ]
    (source,) = root.iter('pre')
    assert ''.join(source.itertext()) == str(MODEL.program.source)
    styles = {x.get('class') for x in source.iter('span')}
    assert styles == {f'jf-{x}' for x in ('keyword', 'comment', 'number', 'type')}
    keywords = {x.text for x in source if x.get('class') == 'jf-keyword'}
    assert {'def', 'if', 'for', 'return'} <= keywords


def test_operations_without_source() -> None:
    from jfold.program.operations import Operations

    program = MODEL.program
    names = 'types', 'layers', 'operations', 'constants', 'results', 'sources'
    bare = Operations(*(getattr(program, name) for name in names))
    root = read(html(bare))
    assert len(rows(root)) == 3
    assert not list(root.iter('pre'))


def test_a_model_has_layers_with_parameters_and_capacities() -> None:
    model = small_model()
    root = read(html(model))
    assert 'no capacity so far' in words(root)
    model.schedule(EXAMPLES)
    root = read(html(model))
    title = 'Model · (float32[4], void) · 1 program · residuals: save products'
    assert title in words(root)
    table = rows(root)
    assert table[:4] == [
        ['layer', 'parameters', 'arrays'],
        ['embed', '32', 'float32[8,4]'],
        ['cell', '16', 'float32[4,4]'],
        ['together', '48', '192 B'],
    ]
    assert table[4] == ['program', 'examples', 'nodes', 'levels', 'rows of operations']
    assert table[5][:2] == ['1', '3']


def test_a_model_shows_the_types_that_it_was_compiled_with() -> None:
    root, block = read(html(MODEL)), read(html(MODEL.block))
    trees = [x for x in root.iter('details') if words(x[0]) in ('expression', 'tree')]
    assert [row for tree in trees for row in rows(tree)] == rows(block)
    assert {x.get('open') for x in trees} == {None}


def test_options_of_a_model_are_named() -> None:
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum(), 4, strategy='fixed')
    shown = words(read(html(model)))
    assert '0 programs of at most 4' in shown
    assert '· fixed · no loops' in shown
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum(), reproducible=True)
    assert 'reproducible' in words(read(html(model)))


def test_names_of_parameters_are_paths() -> None:
    init = {'dense': {'kernel': jnp.ones((2, 3)), 'bias': jnp.ones(3)}}

    def net(p: Any, x: Any) -> Any:
        return x @ p['dense']['kernel']

    block = jf.Vector(2) >> jf.Function(net, lambda key: init)
    table = rows(read(html(jf.compile(block))))
    assert table[1] == ['net', '9', 'dense.bias float32[3] dense.kernel float32[2,3]']


def test_a_loaded_model(tmp_path: Path) -> None:
    model = small_model()
    model.schedule(EXAMPLES)
    jf.save(tmp_path / 'model.jfold', model, model.init(jax.random.key(0)))
    root = read(html(jf.load(tmp_path / 'model.jfold')))
    assert rows(root)[1:4] == rows(read(html(model)))[1:4]
    assert 'LoadedModel · (float32[4], void) · 1 program · for cpu' in words(root)


def test_a_schedule_is_a_picture_of_levels() -> None:
    schedule = small_model().schedule(EXAMPLES)
    root = read(html(schedule))
    levels, example = root.iter(f'{SPACE}svg')
    found = texts(levels)
    assert found[:6] == ['level', 'rows, of the capacity', '1', '2', '3', '4']
    assert found[6:9] == ['embed', '8', '8 of 128']
    assert found[9:13] == ['cell', '2', '2', '1']
    tips = [x.text for x in levels.iter(f'{SPACE}title')]
    assert any(str(x).startswith('cell, level 2: 2 of ') for x in tips)
    # The tree of ((1, 2), 3): two cells above three words.
    assert sorted(texts(example)) == sorted(
        [
            *('level 1', 'level 2', 'level 3', 'result', 'root'),
            *('cell', 'cell', 'embed', 'embed', 'embed', '1', '2', '3'),
        ]
    )


def test_loops_of_fixed_length_have_steps() -> None:
    model = jf.compile(small_model().block, strategy='fixed')
    schedule = model.schedule(EXAMPLES)
    assert texts(read(html(schedule)))[0] == 'step'
    assert 'step 1' in texts(read(jf.draw(schedule, 0).svg))


def test_schedules_of_all_kinds() -> None:
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    assert 'no example' not in words(read(html(model.schedule([]))))
    assert '· 2 examples' in words(read(html(model.schedule([[1], []]))))
    stacked = jf.Schedule.stack(model.schedules([[[1]], [[2]]]))
    assert 'Schedule(1 examples, stacked [2])' in words(read(html(stacked)))
    shown: list[str] = []

    def inside(schedule: jf.Schedule) -> Any:
        shown.append(html(schedule))
        return model.apply({}, schedule)

    jax.jit(inside)(model.schedule([[1, 2]]))
    assert words(read(shown[0])).endswith('Schedule(1 examples, traced)')
    mesh = jax.make_mesh((2,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.P('data'))
    sharded = model.schedule([[1], [2]], sharding=sharding)
    shown = words(read(html(sharded)))
    assert '2 examples · 0 nodes · depth 0 · first of 2 shards' in shown
    assert texts(read(jf.draw(sharded, 1).svg)) == ['data', '2', 'result']


def test_a_corpus_has_histograms() -> None:
    model = small_model()
    corpus = model.trace([*EXAMPLES, 'bad'], skip_errors=True, progress=False)
    root = read(html(corpus))
    assert 'Corpus · 3 examples · 13 nodes ·' in words(root)
    nodes, levels = root.iter(f'{SPACE}svg')
    assert texts(nodes) == ['nodes of an example, median 5', '1', '7']
    assert texts(levels) == ['levels of an example, median 2', '1', '3']
    bars = [x for x in nodes.iter(f'{SPACE}rect') if float(x.get('height', 0)) > 0]
    assert len(bars) == 3
    ((place, message),) = rows(root)
    assert place == '3'
    assert message.startswith('example 3: expected one of the keys')
    empty = read(html(model.trace([], progress=False)))
    assert 'Corpus · 0 examples' in words(empty)


def test_a_corpus_of_several_files(tmp_path: Path) -> None:
    model = small_model()
    for k in range(2):
        model.trace(EXAMPLES, progress=False).save(tmp_path / f'{k}.jfold')
    corpus = jf.Corpus.load(tmp_path, model)
    assert '6 examples · 26 nodes' in words(read(html(corpus)))
    assert '2 parts' in words(read(html(corpus)))


def test_ragged_results_are_a_table() -> None:
    pair = jf.Record({'x': jf.Scalar(), 'v': jf.Vector(6, 'int32')})
    model = jf.compile(jf.Map(pair))
    lists = [[{'x': i / 3, 'v': range(i, i + 6)} for i in range(n)] for n in (2, 0, 9)]
    root = read(html(applied(model, lists)))
    assert 'Ragged · 3 examples · 11 items' in words(root)
    table = rows(root)
    assert table[0] == ['example', 'items', '0 float32[]', '1 int32[6]']
    assert table[1] == ['0', '2', '0, 0.3333', '[0, 1, 2, 3, …], [1, 2, 3, 4, …]']
    assert table[2] == ['1', '0', '', '']
    assert table[3][2] == '0, 0.3333, 0.6667, 1, 1.333, 1.667, …'


def test_sequences_of_sequences_and_of_dicts() -> None:
    nested = jf.compile(jf.Map(jf.Map(jf.Scalar())))
    root = read(html(applied(nested, [[[1, 2], []], []])))
    assert rows(root)[1:] == [['0', '2', '2 items, 0 items'], ['1', '0', '']]
    values = {'b': np.ones((2, 1)), '<a>': jnp.zeros(2)}
    table = rows(read(html(jf.Ragged(values, jnp.array([2])))))
    assert table[0][2:] == ['<a> float32[]', 'b float64[1]']
    assert table[1][2:] == ['0, 0', '[1], [1]']


def test_many_sequences_are_cut_short() -> None:
    ragged = jf.Ragged(jnp.ones(40), jnp.ones(40, int))
    root = read(html(ragged))
    assert len(rows(root)) == 13
    assert '… 28 more examples' in words(root)


def test_metrics_are_a_table() -> None:
    _, metrics = applied(MODEL, EXAMPLES)
    table = rows(read(html(metrics['root'])))
    assert table[0] == ['row', 'example', 'values float32[4]']
    assert [row[:2] for row in table[1:]] == [[f'{k}', f'{k}'] for k in range(3)]
    assert table[2][2] == '[1, 1, 1, 1]'


def test_values_that_cannot_be_read_are_not() -> None:
    shown: list[str] = []

    @jax.jit
    def inside(ragged: jf.Ragged, metrics: jf.MetricValues) -> jax.Array:
        shown.extend([html(ragged), html(metrics)])
        return ragged.sum()

    inside(
        jf.Ragged(jnp.ones(2), jnp.array([2])),
        jf.MetricValues(jnp.ones(1), jnp.zeros(1, int), jnp.ones(1, bool)),
    )
    assert 'Ragged(values=float32[2], lengths=int32[1])' in words(read(shown[0]))
    assert 'traced' in words(read(shown[1]))
    gone = jnp.ones(2)
    gone.delete()
    assert '…' in words(read(html(jf.Ragged(gone, jnp.array([2])))))


def test_nothing_is_compiled() -> None:
    model = small_model()
    schedule = model.schedule(EXAMPLES)
    value, metrics = model.apply(model.init(jax.random.key(0)), schedule)
    ragged = jf.Ragged(value[0], jnp.array([1, 2]))
    corpus = model.trace(EXAMPLES, progress=False)
    things = [model.block, model, model.program, schedule, ragged, corpus]
    things += metrics.values()
    with compilations('') as compiled:
        for thing in things:
            read(html(thing))
        jf.draw(schedule, 1)
    assert compiled == []


@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # of NumPy's, by it
def test_treescope_shows_displays() -> None:
    treescope = pytest.importorskip('treescope')
    for thing in MODEL.block, MODEL, MODEL.program, MODEL.schedule(EXAMPLES):
        shown = treescope.render_to_html([thing], compressed=False)
        assert 'jf-head' in shown
        assert len(shown) < 100_000  # not all that the object holds
