# SPDX-License-Identifier: Apache-2.0
"""The names in generated source, and its lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf
from jfold.language.names import commented, free_names, item_name, list_name, wrapped
from jfold.tracing.strict_reading import by_groups

LISTS = {  # what stands for an item: the name of a list of such, and of one of the list
    'WORD + row': ('word_values', 'word_value'),
    'tree_of_x': ('tree_values', 'tree_value'),
    'tree_of_item2': ('tree_values', 'tree_value'),
    'bag_of_words': ('bag_of_words_values', 'bag_of_words_value'),
    'word_values': ('word_value_lists', 'word_value_list'),
    'word_value': ('word_values', 'word_value'),
    'value2': ('values', 'value'),
    'NUMBERS + row': ('number_values', 'number_value'),
    'LABEL_NUMBERS2 + row': ('label_number2_values', 'label_number2_value'),
}


@pytest.mark.parametrize('text', LISTS)
def test_lists_are_called_by_their_items(text: str) -> None:
    name, item = LISTS[text]
    assert list_name(text) == name
    assert item_name(name) == item


def test_items_are_called_by_their_lists() -> None:
    """Those of data keep what a user calls them, with its number."""
    names = 'items_of_h2', 'items_of_values', 'some_items_of_x', 'repeated_word'
    of_data = ['item_of_h2', 'item_of_values', 'item_of_x', 'same_word']
    assert list(map(item_name, names)) == of_data
    assert item_name('word_value_list') == 'word_value'
    assert item_name('some_word_values2') == 'word_value'


def test_names_that_are_taken() -> None:
    taken = {'row', 'word_row', 'cell_1', 'sum_of_4'}
    used: dict[str, int] = {}

    def free(count: int, *wanted: str) -> list[str]:
        names = free_names(count, wanted, taken.__contains__, used)
        taken.update(names)
        return names

    assert free(1, 'row', 'cell_row') == ['cell_row']
    assert free(1, 'row', 'word_row') == ['word_row2']
    assert free(1, 'row', 'word_row') == ['word_row3']
    assert free(2, 'cell') == ['cell2_0', 'cell2_1']  # `cell_1` is taken
    assert free(1, 'sum_of_4') == ['sum_of_4_2']
    assert free(0, 'word') == []


def test_lines_have_88_columns_if_names_are_short() -> None:
    tapes = [f'tape_{k}' for k in range(30)]
    for names in tapes[:1], tapes:
        lines = wrapped('ends.append((', names, '))', ' ' * 8)
        assert max(map(len, lines)) <= 80
        ends: list[Any] = []
        exec('\n'.join(lines), {'ends': ends} | {name: name for name in names})
        assert ends == [(*names,)]
    *above, line = commented(['    a = []'], f'a -> b({"x, " * 30}) -> c', '    ')
    assert line == '    a = []'
    assert above[-1] == '    #     -> c'
    assert [*commented(['    a = []'], 'b', '    ')] == ['    a = []  # b']


def test_names_of_users_do_not_get_into_the_way() -> None:
    fields = (
        *('row', 'n', 'n_of_x', 'items_of_x', 'item_of_x', 'x_row', 'level', 'made'),
        *(
            'result_0',
            'sum_of',
            'by_groups',
            'ends',
            'numbers',
            'values',
            '1a',
            'lambda',
        ),
    )
    total = jf.Map(jf.Scalar() >> jf.Function(jnp.sin, name='row')) >> jf.Sum()
    model = jf.compile(jf.Record(dict.fromkeys(fields, total)))
    example = {name: [0.5] * k for k, name in enumerate(fields)}
    got = model.apply({}, model.schedule([example]))
    for k, value in enumerate(got):
        np.testing.assert_allclose(value, [k * np.sin(0.5)], rtol=1e-5)


@pytest.mark.parametrize('fill', [1, 'last', None])
def test_groups_have_all_items_in_order(fill: Any) -> None:
    for count in range(1, 70):
        tapes: list[list[int]] = [[], [], [], []]
        groups = (1 << 40, *tapes[:2]), (2 << 40, tapes[2]), (3 << 40, tapes[3])
        reduce = by_groups(*groups, highest=max, levels=0, fill=fill)
        number = reduce([1 << 20 | k for k in range(count)])
        got = list(items_below(number, tapes, fill))
        # The last item may stand for those that are missing.
        got = sorted({*got}) if fill == 'last' else got
        assert got == [1 << 20 | k for k in range(count)]


def items_below(number: int, tapes: list[list[int]], fill: Any) -> Iterator[int]:
    """The items that the row with this number reduces, from left to right."""
    maker, row = number >> 40, number & ((1 << 20) - 1)
    if maker:
        size = 2 << (maker - 1)
        pair = [x for tape in tapes[:2] for x in tape[row : row + 1]]
        own = pair if size == 2 else tapes[maker][row * size : (row + 1) * size]
        for part in own:
            yield from items_below(part, tapes, fill)
    elif number != fill:
        yield number
