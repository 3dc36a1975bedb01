# SPDX-License-Identifier: Apache-2.0
"""Sequences beside each other: zips, repetitions, windows, items by index."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import check, does_not_compile, number, numbers, refuses

import jfold as jf

first, second = jf.Map(jf.GetItem(0)), jf.Map(jf.GetItem(1))
exp = jf.Function(jnp.exp)
numbers_of = jf.InputTransform(lambda x: [x] * 3) >> numbers
total = jf.Sum()
letters = jf.OneHotFromList('abc')


# ---- Zip, ZipWith, Broadcast ---------------------------------------------------------


def test_zip_ends_with_the_shortest() -> None:
    pairs = jf.Record((numbers, numbers, jf.Map(jf.Identity())))
    weighted = jf.ZipWith(jf.Record((jf.Identity(), jf.Identity(), number)))
    product = pairs >> weighted >> jf.Map(lambda a, b, c: a * b + c) >> total
    data = [([1, 2, 3], [4, 5], ''), ([1, 2], [3, 4], [5, 6]), ([], [1], [2])]
    check((product, data, [0.0, 22.0, 0.0]))


def test_zip_of_one_and_of_the_same() -> None:
    doubled = jf.AllOf(numbers, numbers) >> jf.ZipWith(jnp.add) >> total
    alone = jf.AllOf(numbers) >> jf.Zip() >> first >> total
    check((doubled, [[1, 2], []], [6.0, 0.0]), (alone, [[1, 2], []], [3.0, 0.0]))


def test_one_block_on_both_items_of_a_window() -> None:
    twice = jf.Function(lambda x: 2 * x, name='twice')
    pairs = numbers >> jf.NGrams(2)
    pairs >>= jf.Map(jf.Record((twice, twice)) >> jnp.subtract) >> total
    check((pairs, [[1, 2, 5], [1]], [-8.0, 0.0]))


def test_zip_of_tuples_of_one_type() -> None:
    pair = jf.AllOf(number, number >> exp)
    sums = jf.AllOf(pair, numbers_of) >> jf.ZipWith(jnp.subtract) >> total
    check((sums, [0], [1.0]))
    one = jf.Record((pair, jf.Identity())) >> jf.Nth()
    check((one, [(0, 1), (0, -2)], [1.0, 0.0]))


def test_a_repetition_is_as_long_as_needed() -> None:
    mean = jf.AllOf(numbers, numbers >> jf.Mean() >> jf.Broadcast())
    spread = mean >> jf.ZipWith(lambda x, m: (x - m) ** 2) >> total
    check((spread, [[1, 2, 6], [], [5]], [14.0, 0.0, 0.0]))


def test_repetitions_alone_give_one() -> None:
    both = jf.AllOf(jf.Broadcast(), jf.Broadcast() >> jf.Map(jnp.square))
    repeated = both >> jf.Zip() >> jf.NGrams(2) >> second >> second
    beside = jf.Record((numbers, number >> repeated)) >> jf.ZipWith(jnp.multiply)
    check((beside >> total, [([1, 2], 3), ([], 1), ([4], 2)], [27.0, 0.0, 16.0]))
    pair = number >> both >> jf.Zip()
    made = itertools.islice(pair.eval(3), 5)
    assert [(x.item(), y.item()) for x, y in made] == [(3, 9)] * 5


def test_a_repetition_runs_its_map_once() -> None:
    observed = (
        number >> jf.Broadcast() >> jf.Map(jf.AllOf(jf.Identity(), jf.Metric('m')))
    )
    block = jf.Record((numbers, observed)) >> jf.Zip() >> jf.Length()
    model = jf.compile(block)
    assert model.eval(([1, 2, 3], 5))[1]['m'] == [5]
    _, metrics = model.apply({}, model.schedule([([1, 2, 3], 5), ([], 6)]))
    assert metrics['m'].values[metrics['m'].mask].tolist() == [5, 6]


def test_repetitions_pass_choices_and_declarations() -> None:
    x, repeated = jf.GetItem('x'), jf.Broadcast()
    double = x >> jf.AllOf(number, number) >> jnp.add
    cases = {'a': x >> number >> repeated, 'b': double >> repeated}
    chosen = jf.OneOf(jf.GetItem('kind'), cases)
    again = jf.ForwardDeclaration()
    again.resolve_to(chosen)
    rows = jf.Record([('items', numbers), ('by', again())])
    rows >>= jf.ZipWith(jnp.multiply) >> total
    data = [
        {'items': [1, 2], 'by': {'kind': 'a', 'x': 3}},
        {'items': [1, 2], 'by': {'kind': 'b', 'x': 3}},
        {'items': [], 'by': {'kind': 'b', 'x': 3}},
    ]
    check((rows, data, [9.0, 18.0, 0.0]))


def test_sequences_of_sequences_are_repeated() -> None:
    lists = jf.Record((jf.Map(number), jf.Map(number) >> jf.Broadcast()))
    sums = jf.Record((jf.Identity(), total)) >> jnp.multiply
    data = [([1, 2], [3, 4]), ([], [1]), ([5], [])]
    check((lists >> jf.ZipWith(sums) >> total, data, [21.0, 0.0, 0.0]))


def test_children_of_a_recursion_are_zipped() -> None:
    tree = jf.ForwardDeclaration()
    children = jf.Map(tree())
    shifted = jf.AllOf(children, children >> jf.Slice(start=1), jf.Identity())
    weigh = jf.AllOf(jf.GetItem(0), jf.GetItem(1)) >> (lambda a, b: jnp.sin(a) * b)
    node = shifted >> jf.ZipWith(weigh) >> total
    tree.resolve_to(jf.OneOf(type, {int: number, list: node}))
    examples = [[1, [2, 3, [4, 5]], 6], 3, [], [[1, 2], [3, 4]]]
    agree(jf.compile(tree()), {}, examples)


# ---- NGrams --------------------------------------------------------------------------


def test_windows() -> None:
    steps = [numbers >> jf.NGrams(n) >> jf.Length() for n in (1, 2, 3)]
    weighted = numbers >> jf.NGrams(3) >> jf.Map(lambda a, b, c: a - 2 * b + 3 * c)
    three = jf.AllOf(number, number, number)
    check(
        *[
            (each, [[1, 2, 3, 4], [], [5], [6, 7]], [4 - n, 0.0, n < 1, max(2 - n, 0)])
            for n, each in enumerate(steps)
        ],
        (weighted >> total, [[1, 2, 4, 9], []], [30.0, 0.0]),
        (jf.NGrams(2) >> jf.Length(), ['abc', (1,), []], [2.0, 0.0, 0.0]),
        (three >> jf.NGrams(2) >> jf.Map(jnp.add) >> total, [2], [8.0]),
    )


def test_windows_refuse() -> None:
    with refuses('expected `n` as int, got 1.5'):
        jf.NGrams(1.5)
    with refuses('expected `n` of at least 1, got 0; write `n=1` or more', ValueError):
        jf.NGrams(0)


# ---- Nth, Slice ----------------------------------------------------------------------


def test_an_item_by_an_index_in_the_data() -> None:
    of_pair = jf.Record((numbers, jf.Identity())) >> jf.Nth()
    objects = jf.Nth() >> jf.InputTransform(ord) >> number
    check(
        (of_pair, [([5, 6, 7], 1), ([5], np.int64(-1)), ([5, 6], True)], [6.0, 5, 6.0]),
        (jf.Record((jf.Identity(), jf.Identity())) >> objects, [('abc', -1)], [99.0]),
    )


@pytest.mark.parametrize(
    ('index', 'text'),
    [
        (2, 'expected an item 2, got a sequence of length 2; in Pipe[1].Nth()'),
        (3, 'expected an item 3, got a sequence of length 2; in Pipe[1].Nth()'),
        (-3, 'expected an item -3, got a sequence of length 2'),
        (10**30, f'expected an item {10**30}, got a sequence of length 2'),
        (
            1.0,
            "expected an int, the index, got 1.0: TypeError: 'float' object cannot be "
            'interpreted as an integer; in Pipe[1].Nth()',
        ),
        ('1', "expected an int, the index, got '1'"),
    ],
)
def test_an_index_that_is_none(index: Any, text: str) -> None:
    model = jf.compile(jf.Record((numbers, jf.Identity())) >> jf.Nth())
    with pytest.raises(jf.InputError) as caught:
        model.schedule([([1], 0), ([1, 2], index)])
    assert f'example 1, at [1]: {text}' in str(caught.value)
    assert caught.value.example == 1


def test_slices_are_items() -> None:
    block = jf.Slice(start=1, stop=-1, step=2)
    assert repr(block) == 'GetItem(slice(1, -1, 2))'
    check((numbers >> block >> total, [[1, 2, 3, 4, 5], []], [6.0, 0.0]))
    check((jf.Slice(stop=2) >> numbers >> total, [[1, 2, 3]], [3.0]))
    with refuses('Slice: expected `step` other than 0, got 0', ValueError):
        jf.Slice(step=0)
    with refuses("Slice: expected `start` as int or None, got '1'"):
        jf.Slice(start='1')


# ---- OneHot --------------------------------------------------------------------------


def test_one_hot() -> None:
    loose = jf.OneHotFromList(['x', None], 'int32', strict=False)
    check(
        (letters, list('abc'), [np.eye(3, dtype='float32')[k] for k in range(3)]),
        (loose, ['x', None, 7], [np.int32([1, 0]), np.int32([0, 1]), np.int32([0, 0])]),
        (jf.OneHot(-3, 0), [-3, -1, -2.0], [[1, 0, 0], [0, 0, 1], [0, 1, 0]]),
        (jf.OneHot(2), [0, True], [[1, 0], [0, 1]]),
    )
    assert repr(jf.OneHot(9)) == "OneHotFromList([0, 1, 2, 3, 4, 5, ...], 'float32')"


def test_one_hot_vectors_are_constants() -> None:
    corpus = jf.compile(jf.Map(letters) >> total).trace(['abc' * 99], progress=False)
    assert [len(x.columns[0]) for x in corpus.graph.constants] == [0]


# ---- what they refuse ----------------------------------------------------------------

REFUSED: list[tuple[Any, str]] = [
    (
        jf.Zip() >> total,
        'Pipe[0].Zip(): expected a tuple of sequences, got object; take its parts by '
        'a Record',
    ),
    (
        jf.AllOf() >> jf.Zip() >> jf.Length(),
        'Pipe[1].Zip(): expected a tuple of sequences, got ()',
    ),
    (
        number >> jf.Broadcast() >> jf.GetItem(0),
        'Pipe[2].GetItem(0): expected an object, tuple, sequence or tensor, got '
        '[float32[] ...]; put it beside a sequence, by ZipWith',
    ),
    (
        jf.Nth() >> number,
        'Pipe[0].Nth(): expected a pair of a sequence and an index, got object; take '
        'its parts by a Record',
    ),
    (
        jf.AllOf(numbers, number) >> jf.Nth(),
        'Pipe[1].Nth(): expected an index that is an object, got float32[]; it is '
        'second in the pair, and left as it is in the data',
    ),
    (
        jf.AllOf(number, jf.Identity()) >> jf.Nth(),
        'Pipe[1].Nth(): expected a sequence beside the index, got float32[]',
    ),
]


@pytest.mark.parametrize(('block', 'message'), REFUSED, ids=range(len(REFUSED)))
def test_what_compile_refuses(block: Any, message: str) -> None:
    does_not_compile(block, message)


def test_what_is_no_sequence_is_told_by_the_twin() -> None:
    block = jf.Record((numbers, jf.Identity())) >> jf.Zip()
    with pytest.raises(jf.InputError, match='expected a sequence'):
        block.eval(([1], {1}))


def test_strict_zips() -> None:
    pair = jf.AllOf(jf.GetItem(0) >> numbers, jf.GetItem(1) >> numbers)
    twice = jf.AllOf(*pair.blocks, jf.Zeros([]) >> jf.Broadcast())
    same = [([1, 2], [3, 4]), ([], []), ([5], [6])]
    said = 'expected sequences of one length, got 2 items beside 1'
    for block in pair >> jf.Zip(strict=True), twice >> jf.Zip(strict=True):
        total = block >> jf.Map(jf.Concat() >> jnp.sum) >> jf.Sum()
        model = jf.compile(total)
        agree(model, {}, same)
        path = 'Pipe[1].Zip(strict=True)'
        with refuses(f'example 2: {said}; in {path}', jf.InputError):
            model.schedule([*same[:2], ([1, 2], [3])])
        with pytest.raises(jf.InputError, match=said):
            model.eval(([1, 2], [3]))
    shown = str(jf.ZipWith(jnp.add, strict=True))
    assert shown == 'Zip(strict=True) >> Map(Function(add))'
    with refuses("expected `strict` as bool, got 'yes'", TypeError):
        jf.Zip(strict='yes')  # type: ignore[arg-type]
