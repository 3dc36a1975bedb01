# SPDX-License-Identifier: Apache-2.0
"""Displays of huge things, of data that look like markup, of broken objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from extent import drawn
from shown import html, read, rows, small_model, texts, words

import jfold as jf
from jfold.display.drawing import page_of
from jfold.display.markup import element
from jfold.display.texts import short

EVIL = '"><script>alert(1)</script>&amp;\x00\ud800\'<b'


def pages(*things: Any) -> Iterator[Any]:
    return (read(page_of(x)) for x in things)


# ---- markup in names and data --------------------------------------------------------


def test_names_are_no_markup() -> None:
    params = {EVIL: jnp.ones(())}
    fn = jf.Function(lambda p, x: x * p[EVIL], lambda key: params, name=EVIL)
    tree = jf.ForwardDeclaration(name=EVIL)
    inner = jf.Record({EVIL: tree()}) >> jf.GetItem(0)
    tree.resolve_to(jf.OneOf(type, {float: jf.Scalar(), tuple: inner}))
    block = tree() >> fn >> jf.AllOf(jf.Identity(), jf.Metric(EVIL))
    model = jf.compile(block)
    schedule = model.schedule([1.0])
    for root in pages(block, model, model.program, schedule):
        assert 'script' not in {x.tag for x in root.iter()}
        assert '<script>' in words(root)
    for drawing in jf.draw(model), jf.draw(schedule), jf.draw(schedule, 0):
        assert '<script>' in ''.join(texts(read(drawing.svg)))


def test_data_are_no_markup() -> None:
    model = jf.compile(jf.GetItem(EVIL) >> jf.Map(jf.Scalar()) >> jf.Sum())
    with pytest.raises(jf.InputError) as raised:
        model.schedule([{EVIL: [1, EVIL], '</div>': '<img src=x>'}])
    (root,) = pages(raised.value)
    assert 'img' not in {x.tag for x in root.iter()}
    assert '<img src=x>' in words(root)
    ragged = jf.Ragged({EVIL: jnp.ones(2)}, jnp.array([2]))
    assert '<script>' in words(next(pages(ragged)))


def test_what_xml_forbids_is_replaced() -> None:
    assert (
        element('b', '\x00<\ud800\uffff', class_='"')
        == '<b class="&quot;">\ufffd&lt;\ufffd\ufffd</b>'
    )


# ---- huge things ---------------------------------------------------------------------


class Endless(Sequence[Any]):
    """A tree as large as one likes, made where it is looked at."""

    looked = 0

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: Any) -> Any:
        Endless.looked += 1
        if place not in (0, 1):
            raise IndexError
        return Endless(self.depth - 1) if self.depth else 0

    def __repr__(self) -> str:
        raise AssertionError('a million nodes')


def test_a_tree_of_a_million_nodes_is_not_read() -> None:
    error = jf.InputError('wrong', 0, '[0][1][0]', 'Scalar()').on(Endless(20))
    Endless.looked = 0
    (root,) = pages(error)
    assert Endless.looked < 400
    assert len(html(error)) < 60_000
    assert words(root).count('[0]') > 4


def test_the_schedule_of_a_large_tree_is_cut_short() -> None:
    model = small_model()
    tree: Any = 1
    for _ in range(12):
        tree = (tree, tree)
    deep: Any = 1
    for _ in range(5000):
        deep = (deep, 1)
    for example in tree, deep:
        schedule = model.schedule([example])
        (root,) = pages(schedule)
        assert len(html(schedule)) < 60_000
        assert 'cut short where … stands' in words(root)
        assert texts(root).count('cell') < 40
        assert len(jf.draw(schedule, 0).svg) < 60_000
    levels = [x for x in texts(read(html(schedule))) if x.isdigit()]
    assert '1' in levels and '5001' in levels and '2500' not in levels


def test_an_example_nested_deep() -> None:
    bad: Any = 'x'
    deep = drawn(20_000, 100_000)
    for _ in range(deep):
        bad = (1, bad)
    with pytest.raises(jf.InputError) as raised:
        small_model().schedule([bad])
    (root,) = pages(raised.value)
    assert len(html(raised.value)) < 60_000
    assert f'… {deep - 20:,} more levels' in words(root)
    (marked,) = (x for x in root.iter('span') if 'jf-mark' in x.get('class', ''))
    assert words(marked) == "'x'"


def many_operations(count: int) -> jf.Block:
    folds = []
    for k in range(count):
        add = jf.Function(lambda a, b, k=k: a + k * b, name=f'add_{k}')
        folds.append(jf.Map(jf.Scalar()) >> jf.Fold(add, jf.Zeros([])))
    return jf.AllOf(*folds)


def test_a_program_of_200_operations_is_cut_short() -> None:
    model = jf.compile(many_operations(200))
    schedule = model.schedule([[1, 2]])
    program, whole, batch, block = pages(model.program, model, schedule, model.block)
    assert (
        'add_39' in words(program) and 'add_40' not in words(program).split('source')[0]
    )
    assert '… 160 more operations' in words(program)
    assert '… 160 more layers' in words(whole)
    assert '… 176 more operations' in texts(batch)
    assert 'more blocks' in words(block)
    assert '… 160 more operations' in texts(read(jf.draw(model).svg))
    for thing in model, model.program, schedule, model.block:
        assert len(html(thing)) < 100_000


def test_a_block_of_thousands_has_no_types() -> None:
    fields = {
        f'{i}': jf.Record({f'{k}': jf.Scalar() for k in range(30)}) for i in range(60)
    }
    block = jf.Record(fields)
    (root,) = pages(block)
    assert rows(root)[0] == ['Record', '']
    assert '… 1,741 more blocks' in words(root)


def test_declarations_beyond_the_first_lines_are_counted() -> None:
    block: jf.Block = jf.Record([jf.Scalar()] * 130)
    for k in range(3):
        declaration = jf.ForwardDeclaration(name=f'd{k}')
        declaration.resolve_to(block)
        block = declaration()
    wide = jf.Record([jf.Scalar()] * 130 + [block])
    assert '… 3 more declarations' in words(next(pages(wide)))


def test_a_corpus_of_many_examples_is_sampled() -> None:
    corpus = jf.compile(jf.Scalar() >> jf.Function(jnp.tanh)).trace(
        [1.0] * 50_000, progress=False
    )
    (root,) = pages(corpus)
    assert 'pictures of one in 3 examples' in words(root)


# ---- broken objects ------------------------------------------------------------------


class Raises:
    """All that a display may ask of it raises."""

    def __repr__(self) -> str:
        raise RuntimeError('no text')

    __str__ = __len__ = __iter__ = __hash__ = __eq__ = __repr__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class RaisingMapping(Mapping[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError

    def __iter__(self) -> Iterator[Any]:
        yield 'a'
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


@dataclass
class Point:
    """One of users' classes; its `repr` would print all of it."""

    x: Any
    y: Any


TEXTS: list[tuple[Any, str]] = [
    (Raises(), '<Raises>'),
    (RaisingMapping(), '<RaisingMapping>'),
    (Point(1, 2), '<Point>'),
    (10**5000, '<int>'),
    ('a' * 100, "'" + 'a' * 58 + '…'),
    ((1, 'b', None, [2]), "(1, 'b', …, …)"),
    ([1] * 9, 'list of 9'),
    ({1: 2}, 'dict of 1'),
    (1.5, '1.5'),
    (None, 'None'),
    (np.float32(0.25), '0.25'),
    (np.arange(6).reshape(2, 3), 'int64[2,3] 0, 1, 2, 3, …'),
    (
        np.broadcast_to(np.int8(1), (1 << 20, 1 << 20)).T,
        f'int8[{1 << 20},{1 << 20}] 1, 1, 1, 1, …',
    ),
    (np.array([None]), 'object[1] '),
    (jnp.ones(2, jnp.bfloat16), 'bfloat16[2] 1, 1'),
]


@pytest.mark.parametrize('number', range(len(TEXTS)))
def test_short_texts(number: int) -> None:
    value, text = TEXTS[number]
    assert short(value) == text


def test_broken_data_are_shown_as_far_as_they_can_be() -> None:
    data = {'a': Raises(), 'b': [RaisingMapping(), Point(1, Raises())], 'c': 'bad'}
    with pytest.raises(jf.InputError) as raised:
        jf.compile(jf.GetItem('c') >> jf.Scalar()).schedule([data])
    (root,) = pages(raised.value)
    assert "['a'] <Raises>" in words(root)
    assert "['c'] 'bad'" in words(root)
    error = jf.InputError('wrong', 0, "['b'][1].y", 'Scalar()').on(data)
    (root,) = pages(error)
    assert '.x 1' in words(root) and '.y <Raises>' in words(root)


def test_a_key_that_raises_does_not_break_the_path() -> None:
    class Key:
        def __repr__(self) -> str:
            raise RuntimeError

    error = jf.InputError('wrong', 0, "['b']", 'Scalar()').on({Key(): 1, 'b': 2})
    assert "what is at ['b'] of it" in words(next(pages(error)))


def test_a_display_that_fails_leaves_the_text() -> None:
    corpus = jf.compile(jf.Scalar()).trace([1], progress=False)
    broken: Any = replace(corpus, graph=None)  # type: ignore[arg-type]
    assert broken._repr_html_() is None
    with pytest.raises(AttributeError):
        page_of(broken)


def test_a_function_that_raises_any_error_does_not_break_its_block() -> None:
    def fails(x: Any) -> Any:
        raise KeyError(EVIL)

    root = read(html(jf.Scalar() >> jf.Function(fails)))
    assert rows(root)[1] == ["Scalar('float32')", 'object → float32[]']
    assert '<script>' in words(root)
