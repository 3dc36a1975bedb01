# SPDX-License-Identifier: Apache-2.0
"""`jf.draw`: pictures of programs, schedules and examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from shown import EXAMPLES, SPACE, html, read, small_model, texts, words

import jfold as jf
from jfold.display.svg import Box, ranked


def test_a_program_is_drawn_as_operations_with_edges() -> None:
    model = small_model()
    root = read(jf.draw(model).svg)
    assert texts(root) == [
        *('data', 'embed', 'float32[4]', 'cell', 'float32[4]'),
        *('result', '(float32[4], void)', 'root', 'float32[4]'),
    ]
    kinds = [str(x.get('class')) for x in root.iter(f'{SPACE}path')]
    # From data, to cell from embed and from itself, to both results from both.
    assert sorted(kinds) == ['jf-back'] + ['jf-edge'] * 6
    assert jf.draw(model.program).svg == jf.draw(model).svg


def test_operations_that_read_each_other_are_in_one_rank() -> None:
    even, odd = jf.ForwardDeclaration(name='even'), jf.ForwardDeclaration(name='odd')
    for tree, other, fn in (even, odd, jnp.tanh), (odd, even, jnp.sin):
        deeper = jf.GetItem(0) >> other() >> jf.Function(fn)
        tree.resolve_to(jf.OneOf(type, {float: jf.Scalar(), tuple: deeper}))
    root = read(jf.draw(jf.compile(even())).svg)
    boxes = [x for x in root.iter(f'{SPACE}rect') if x.get('class') == 'jf-loop']
    assert len({x.get('y') for x in boxes}) == 1
    assert len(boxes) == 2
    assert (
        len([x for x in root.iter(f'{SPACE}path') if x.get('class') == 'jf-back']) == 2
    )


def test_a_schedule_is_drawn_by_levels_or_by_example() -> None:
    schedule = small_model().schedule(EXAMPLES)
    levels, example = jf.draw(schedule), jf.draw(schedule, 1)
    assert levels.svg.split('</style>')[1] in html(schedule)
    assert sorted(texts(read(example.svg))) == [
        '4',
        'embed',
        'level 1',
        'result',
        'root',
    ]


def test_an_example_of_a_corpus_is_drawn_without_a_new_capacity() -> None:
    model = small_model()
    corpus = model.trace(EXAMPLES, progress=False)
    drawn = texts(read(jf.draw(corpus, 2).svg))
    assert drawn.count('cell') == 3 and drawn.count('embed') == 4
    assert jf.draw(corpus).svg == jf.draw(corpus, 0).svg
    assert model.programs == 0


def test_sums_and_sequences_without_loops_are_drawn() -> None:
    square = jf.Scalar() >> jf.Function(jnp.square)
    sums = jf.Map(jf.Map(square) >> jf.Sum())
    model = jf.compile(sums >> jf.AllOf(jf.Identity(), jf.Sum()))
    schedule = model.schedule([[[1, 2], [3]], [[4]]])
    for example, own, other in (0, {'1', '2', '3'}, {'4'}), (1, {'4'}, {'2', '3'}):
        drawn = texts(read(jf.draw(schedule, example).svg))
        assert drawn.count('square') == len(own)
        assert {*own, 'result', 'items'} <= {*drawn}
        assert not other & {*drawn}


def test_boxes_stand_apart() -> None:
    boxes = [Box('a' * 9, '', 0), Box('b', '', 0), Box('c', 'd' * 30, 1, (0, 1))]
    boxes.append(Box('e', '', 1, (0, 1, 2, 3)))
    root = read(ranked(boxes, ['low', 'high'], 'boxes'))
    places = sorted(
        (float(x.get('y', 0)), float(x.get('x', 0)), float(x.get('width', 0)))
        for x in root.iter(f'{SPACE}rect')
    )
    for k, (y, x, wide) in enumerate(places):
        for other_y, other_x, _ in places[k + 1 :]:
            assert y != other_y or other_x > x + wide


def test_a_picture_is_saved_and_shown(tmp_path: Path) -> None:
    drawing = jf.draw(small_model())
    path = tmp_path / 'model.svg'
    drawing.save(path)
    assert path.read_text(encoding='utf-8') == drawing.svg == drawing._repr_svg_()
    assert drawing.svg in drawing._repr_html_()
    root = read(drawing.svg)
    assert 'prefers-color-scheme: dark' in words(root)
    assert str(drawing).startswith('Drawing(')
    with pytest.raises(ValueError, match=r'ends in \.svg, got .*png: write `save\('):
        drawing.save(tmp_path / 'model.png')


def test_what_cannot_be_drawn_is_refused() -> None:
    model = small_model()
    schedule = model.schedule(EXAMPLES)
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (model.block, None, TypeError, 'expected a model, program, schedule or corpus'),
        (3, None, TypeError, 'got 3: compile blocks by `jf.compile`'),
        (schedule, 3, IndexError, 'expected `example` from 0 to 2, got 3'),
        (schedule, -1, IndexError, 'expected `example` from 0 to 2, got -1'),
        (schedule, 'x', TypeError, "expected `example` as int, got 'x'"),
        (model.schedules, None, TypeError, 'expected a model'),
        (model.trace([], progress=False), None, IndexError, 'at least one example'),
    ]
    for thing, example, kind, message in cases:
        with pytest.raises(kind, match=message.replace('(', r'\(')):
            jf.draw(thing, example)
    stacked = jf.Schedule.stack(model.schedules([EXAMPLES, EXAMPLES]))
    with pytest.raises(ValueError, match='expected `schedule` as that of one batch'):
        jf.draw(stacked)
