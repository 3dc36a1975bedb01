# SPDX-License-Identifier: Apache-2.0
"""Errors about data name the example, the path in the data and the block."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pickle
import re
from typing import Any

import jax.numpy as jnp
import pytest

import jfold as jf
from jfold.tracing.record import trace

number = jf.Scalar()
whole = jf.Scalar('int32')
numbers = jf.Map(number)
add = jf.Function(jnp.add)


def error(block: Any, examples: list[Any]) -> jf.InputError:
    """The error of a batch; eager evaluation of its example fails too."""
    model = jf.compile(block)
    with pytest.raises(jf.InputError) as caught:
        model.schedule(examples)
    assert model.programs == 0
    with pytest.raises((TypeError, ValueError, LookupError, ArithmeticError)):
        model.eval(examples[caught.value.example])
    return caught.value


def refuses(block: Any, good: list[Any], bad: Any, message: str, path: str) -> None:
    """`bad` fails with exactly this message wherever it stands in a batch."""
    for before in range(len(good) + 1):
        found = error(block, [*good[:before], bad, *good[before:]])
        place = f'example {before}{path and f", at {path}"}'
        assert str(found) == f'{place}: {message}'
        assert (found.example, found.path) == (before, path)
        assert message.endswith(f'; in {found.block}')


# ---- what may be wrong with a value, besides the tables of `mistakes` ----------------

WRONG: list[tuple[Any, list[Any], Any, str, str]] = [
    (
        {'x': whole},
        [{'x': 3}],
        {'x': 3.7},
        'expected int32[], got 3.7, which int32 cannot hold; in '
        "Record['x'].Scalar('int32')",
        "['x']",
    ),
    (
        numbers >> jf.GetItem(-2),
        [[1, 2]],
        [1],
        'expected an item -2, got a sequence of length 1; in Pipe[1].GetItem(-2)',
        '',
    ),
    (
        jf.OneOf(jf.Identity(), {1: jf.Zeros([])}, default=jf.Zeros([])),
        [1, 2],
        [3],
        'expected a hashable key, got [3] (list); in OneOf(Identity(), {1: '
        'Zeros(float32[])}, default=Zeros(fl...',
        '',
    ),
    (
        jf.GetItem('k', default=0) >> number,
        [{}],
        3,
        "expected an item 'k', got 3: TypeError: 'int' object is not subscriptable; in "
        "Pipe[0].GetItem('k', default=0)",
        '',
    ),
    (
        {'a': jf.GetItem('k') >> jf.Optional(number)},
        [{'a': {'k': None}}],
        {},
        "expected an item 'a', got {} (dict): KeyError: 'a'; in Record({'a': "
        "GetItem('k') >> Optional(Scalar('float32'))})",
        '',
    ),
    (
        jf.OneOf(jf.GetItem('k'), (jf.Zeros([]),)),
        [{'k': 0}, {'k': -1}],
        {'k': [0]},
        'expected one of the keys 0, -1, got [0] (list); in '
        'OneOf(GetItem(\'k\'), {0: Zeros(float32[])})',
        "['k']",
    ),
]  # fmt: skip


@pytest.mark.parametrize(('block', 'good', 'bad', 'message', 'path'), WRONG)
def test_wrong_values(
    block: Any, good: list[Any], bad: Any, message: str, path: str
) -> None:
    refuses(block, good, bad, message, path)


def test_an_item_behind_an_rnn_is_found() -> None:
    """What that gives of each item leads back to the item, wherever it stands."""
    states = jf.RNN(jf.AllOf(jf.GetItem(0), jf.GetItem(1)), jf.Zeros([]))
    of_item = jf.GetItem('w') >> number
    after = jf.Map(jf.Identity()) >> states >> jf.GetItem(0) >> jf.Map(of_item)
    block = jf.OneOf(len, {2: after >> jf.Sum(), 3: jf.Zeros([])})
    good, bad = [[{'w': 1}] * 3, [{'w': 1}] * 2], [{'w': 1}, {'w': 'x'}]
    found = error(block, [*good, bad, *good])
    assert (found.example, found.path) == (2, "[1]['w']")
    for each in after >> jf.Sum(), block:
        corpus = jf.compile(each).trace([*good, bad, *good], skip_errors=True)
        assert [example for example, _ in corpus.skipped] == [2]


def test_of_many_keys_twenty_are_shown() -> None:
    found = error(jf.OneOf(abs, dict.fromkeys(range(50), number)), [-50])
    assert 'expected one of the keys 0, 1, 2, ' in str(found)
    assert ', 19, got 50' in str(found)


# ---- user functions ------------------------------------------------------------------


def test_a_function_of_the_data_that_raises() -> None:
    block = {'x': jf.InputTransform(lambda x: 1 / x) >> number}
    refuses(
        block,
        [{'x': 1}, {'x': 2}],
        {'x': 0},
        'expected what its function takes, got 0: ZeroDivisionError: division by '
        "zero; in Record['x'].Pipe[0].InputTransform(function)",
        "['x']",
    )
    assert isinstance(error(block, [{'x': 0}]).__cause__, ZeroDivisionError)


def test_stop_iteration_is_an_error_too() -> None:
    block = jf.InputTransform(lambda x: next(iter(x))) >> number
    model = jf.compile(block)
    with pytest.raises(
        jf.InputError, match=r'^example 1: .*, got \[\] .* StopIteration'
    ):
        model.schedule([[1], [], [2]])


@pytest.mark.parametrize('zipped', [False, True])
def test_stop_iteration_ends_no_list(zipped: bool) -> None:
    block = jf.Map(jf.InputTransform(lambda x: next(y for y in x if y > 0)) >> number)
    first = jf.GetItem(0) >> number
    if zipped:
        block = jf.AllOf(jf.Map(first), block) >> jf.Zip() >> jf.Map(add)
    program = jf.compile(block).program
    with pytest.raises(jf.InputError, match=r'^example 1, at \[1\]: .* StopIteration'):
        trace(program, [[[1]], [[1], [-1], [3]]])


# ---- how the value is reached --------------------------------------------------------

counted = jf.Record((jf.Identity(), {'n': number})) >> (lambda s, x: s + x[0])


def tree() -> jf.Block:
    declaration = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((declaration(), declaration())) >> add
    declaration.resolve_to(
        jf.OneOf(type, [(tuple, pair), (int, whole >> jf.Function(jnp.float32))])
    )
    return declaration()


def test_deep_in_a_recursion() -> None:
    block = jf.Record({'tree': tree()})
    good = [{'tree': 1}, {'tree': ((1, 2), (3, 4))}]
    refuses(
        block,
        good,
        {'tree': ((1, 2.5), 3)},
        "expected one of the keys <class 'tuple'>, <class 'int'>, got <class 'float'> "
        "(type); in tree.OneOf(type, {<class 'tuple'>: Record({0: tree(), 1: tree(...",
        "['tree'][0][1]",
    )
    refuses(
        block,
        good,
        {'tree': (1, ((2, 2**31), 3))},
        'expected int32[], got 2147483648, which int32 cannot hold; in '
        "tree.OneOf[<class 'int'>].Pipe[0].Scalar('int32')",
        "['tree'][1][0][1]",
    )


class Unprintable:
    def __repr__(self) -> str:
        raise OSError('cannot be printed')


def test_what_cannot_be_printed_is_still_refused() -> None:
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    bad = {'...),': deep, '<Unprintable': Unprintable()}
    for block in (number, {'x': number}, jf.InputTransform({1: 2}) >> number):
        for text, value in bad.items():
            with pytest.raises(jf.InputError, match=re.escape(text)):
                jf.compile(block).schedule([value])


def test_the_middle_of_a_long_path_is_left_out() -> None:
    bad: Any = 1.5
    for _ in range(5000):
        bad = (0, bad)
    model = jf.compile(tree())
    with pytest.raises(jf.InputError) as caught:
        model.schedule([1, bad])
    assert caught.value.path == '[1]' * 5000
    assert len(str(caught.value)) < 500
    assert re.fullmatch(
        r'example 1, at (\[1\])+\[? \.\.\. 1?\]?(\[1\])+: .*', str(caught.value)
    )


Pair = collections.namedtuple('Pair', 'left right')


@dataclasses.dataclass(frozen=True)
class Node:
    left: Any
    right: Any


def test_paths_are_written_as_the_data_are_read() -> None:
    block = (
        jf.Record({'left': number, 'right': jf.Optional(numbers >> jf.Sum())}) >> add
    )
    found = error(block, [Node(1, [2, 3]), Node(1, [2, 'x'])])
    assert (found.example, found.path) == (1, '.right[1]')
    found = error(block, [Pair(1, [2, 3]), Pair(None, [])])
    assert (found.example, found.path) == (1, '.left')
    found = error(block, [{'left': 1, 'right': None}, {'left': 'x', 'right': None}])
    assert (found.example, found.path) == (1, "['left']")
    cut = jf.GetItem(slice(1, 3)) >> jf.GetItem(slice(None, None, 2)) >> jf.Vector(1)
    assert error(cut, [[1, 2, 3], [1]]).path == '[1:3][::2]'


@pytest.mark.parametrize(
    ('block', 'good', 'bad', 'path', 'where'),
    [
        (
            jf.GetItem('xs') >> jf.Fold(counted, jf.Zeros([])),
            [{'xs': []}, {'xs': [{'n': 1}] * 3}],
            {'xs': [{'n': 1}, {'n': 2}, {'n': ''}]},
            "['xs'][2]['n']",
            "Pipe[1].Fold.combine.Pipe[0].Record[1].Record['n'].Scalar('float32')",
        ),
        (
            jf.Map({'n': number, 'm': numbers >> jf.Max()} >> add) >> jf.Reduce(add),
            [[], [{'n': 1, 'm': [1]}]],
            [{'n': 1, 'm': [1]}, {'n': 1, 'm': [{}]}],
            "[1]['m'][0]",
            "Pipe[0].Map.Pipe[0].Record['m'].Pipe[0].Map.Scalar('float32')",
        ),
        (
            {'a': jf.Optional({'b': jf.Optional(whole)})},
            [{'a': None}, {'a': {'b': None}}, {'a': {'b': 1}}],
            {'a': {'b': 1.5}},
            "['a']['b']",
            "Record['a'].Optional.some_case.Record['b'].Optional.some_case.Scalar('int32')",
        ),
        (
            jf.OneOf(len, {1: jf.GetItem(0) >> number, 2: jf.GetItem(1) >> number},),
            [[1], [1, 2], [3]],
            [1, 'x'],
            '[1]',
            "OneOf[2].Pipe[1].Scalar('float32')",
        ),
        (
            jf.AllOf(jf.GetItem(0), jf.GetItem(1)) >> jf.Map(number) >> jf.Sum(),
            [(1, 2)],
            (1, 'x'),
            '[1]',
            "Pipe[1].Map.Scalar('float32')",
        ),
        (
            jf.Map(jf.InputTransform(abs)) >> jf.GetItem(slice(None, None, -1))
            >> jf.Map(jf.Scalar('int8')) >> jf.Sum(),
            [[], [1, 2]],
            [1, 300, 2],
            '[1]',
            "Pipe[2].Map.Scalar('int8')",
        ),
    ],
)  # fmt: skip
def test_inside(block: Any, good: list[Any], bad: Any, path: str, where: str) -> None:
    for before in range(len(good) + 1):
        found = error(block, [*good[:before], bad, *good[before:]])
        assert (found.example, found.path, found.block) == (before, path, where)


def test_with_metrics_the_paths_are_the_same() -> None:
    observed = jf.AllOf(jf.Identity(), jf.Metric('m')) >> jf.GetItem(0)
    item = jf.Record((jf.Identity(), number >> observed)) >> add
    block = jf.Map(jf.Fold(item, jf.Zeros([])) >> observed) >> jf.Sum()
    found = error(block, [[[1], [2, 3]], [[1], [], [4, 5, 'x', 6]]])
    assert (found.example, found.path) == (1, '[2][2]')


def test_the_first_bad_item_of_a_column_is_named() -> None:
    found = error(numbers >> jf.Sum(), [[1], [2, 'a'], ['b'], [None]])
    assert (found.example, found.path) == (1, '[1]')


def test_the_first_bad_example_is_named() -> None:
    """Whether it is found when it is read, or when its numbers are converted."""
    small = jf.Scalar('int32', below=3)
    block = jf.Record([jf.Scalar(), whole, small, jf.OneOf(type, {int: whole})])
    wrong = {0: 'a', 1: 2.5, 2: 5, 3: 'd'}
    for first, second in itertools.permutations([*wrong.items(), (2, 'c')], 2):
        examples = [[1, 1, 1, 1] for _ in range(3)]
        for example, (place, value) in zip(examples[1:], (first, second), strict=True):
            example[place] = value
        found = error(block, examples)
        assert (found.example, found.path) == (1, f'[{first[0]}]')


# ---- the error as a value ------------------------------------------------------------


def test_an_input_error_is_a_value_error_that_can_be_pickled() -> None:
    found = error({'x': number}, [{'x': 1}, {'x': 'a'}])
    assert isinstance(found, ValueError)
    place = found.example, found.path, found.block
    assert place == (1, "['x']", "Record['x'].Scalar('float32')")
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is jf.InputError
    assert str(again) == str(found)
    # The example stays where it is; it may be large, or not to be pickled.
    assert vars(again) == {k: x for k, x in vars(found).items() if k != 'data'}


def test_nothing_is_kept_of_a_bad_batch() -> None:
    model = jf.compile(numbers >> jf.Sum())
    values = model.apply({}, model.schedule([[1, 2], [3]]))
    assert values.tolist() == [3, 3]
    chains = model.budget.chains
    specs, programs = {key: x.specs for key, x in chains.items()}, model.programs
    for bad in ([[1] * 5000, [None]], [[1] * 5000, 3], [None, []]):
        with pytest.raises(jf.InputError):
            model.schedule(bad)
    assert {key: x.specs for key, x in chains.items()} == specs
    assert model.programs == programs == 1
    assert model.apply({}, model.schedule([[1, 5], []])).tolist() == [6, 0]
    assert model.programs == 1
