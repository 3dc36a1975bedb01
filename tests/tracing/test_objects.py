# SPDX-License-Identifier: Apache-2.0
"""Python objects: read as the eager twin does, in proportion to how many there are."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import gc
import operator
import re
import sys
import types
from collections.abc import Hashable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from checking import add, check, number, numbers, refuses, whole
from graphs import canonical, same
from hypothesis import given, settings
from hypothesis import strategies as st
from walked import recorded

import jfold as jf
from jfold.program.operations import Program
from jfold.tracing.record import trace
from jfold.tracing.strict_reading import field as get

Pair = collections.namedtuple('Pair', 'left right')


@dataclasses.dataclass
class Node:
    left: Any
    right: Any


@dataclasses.dataclass(slots=True)
class Slots(Node):
    """The same with slots of its own."""

    values: Any = None


class ByNumber:
    """Subscripted by ints alone; a string is an attribute."""

    left = 'attribute'

    def __getitem__(self, key: int) -> Any:
        return (1, 2)[key]


class ByAnything:
    """Subscripted by anything, so that its attributes are hidden."""

    left = 'hidden'

    def __getitem__(self, key: Any) -> Any:
        return f'item {key!r}'


class Generic:
    """A class that can itself be subscripted."""

    left = 'of a class'

    def __class_getitem__(cls, key: Any) -> Any:
        return f'class {key!r}'


class Stops:
    """Subscripting looks like the end of a loop."""

    def __getitem__(self, key: Any) -> Any:
        raise StopIteration


# ---- fields --------------------------------------------------------------------------

OBJECTS: list[Any] = [
    Node(1, 2), Slots(3, 4, 5), Pair(6, 7), types.SimpleNamespace(left=8, values=9),
    {'left': 10, 'values': 11, 0: 12}, [13, 14], (15, 16), ByNumber(), ByAnything(),
    Generic, Generic(), Stops(), ast.parse('a < b').body[0].value,  # type: ignore[attr-defined]
    'text', 17, None, np.arange(3), int, list, type('Bare', (), {})(),
]  # fmt: skip


def one_by_one(items: list[Any], key: Any) -> Any:
    """The fields, or the place of the first item without."""
    made = []
    for index, item in enumerate(items):
        try:
            made.append(get(item, key))
        except Exception:
            return index
    return made


FIELDS = ['left', 'values', 'items', 'left.real', '', 0, 1, -1, slice(1)]


@functools.cache
def program_of(field: int) -> Program:
    """What looks at a field of each item."""
    return jf.compile(jf.Map(jf.GetItem(FIELDS[field]) >> SEEN >> whole)).program


@given(st.lists(st.sampled_from(OBJECTS), max_size=5), st.integers(0, len(FIELDS) - 1))
@settings(max_examples=400)
def test_fields_of_mixed_objects(items: list[Any], field: int) -> None:
    """As one by one by the eager twin, which fails on the first one without."""
    wanted = one_by_one(items, FIELDS[field])
    met: list[Any] = []
    MET[:] = [met]
    try:
        trace(program_of(field), [items])
    except jf.InputError as error:
        assert error.path.startswith(f'[{wanted}]')
    else:
        assert repr(met) == repr(wanted)


MET: list[list[Any]] = [[]]  # where what is seen goes
SEEN = jf.InputTransform(lambda x: MET[0].append(x) or 0)


def test_a_method_is_not_taken_for_a_field() -> None:
    block = jf.GetItem('values') >> whole
    batch = [types.SimpleNamespace(values=1), {'values': 2}, Slots(0, 0, 3)]
    check((block, batch, [1, 2, 3]))
    with pytest.raises(
        jf.InputError, match=r"^example 1: .* got \{\} .*: KeyError: 'values'"
    ):
        jf.compile(block).schedule([batch[0], {}])


# ---- sequences and choices -----------------------------------------------------------


def test_many_cases() -> None:
    """More than a byte can tell apart, some of them never met."""
    cases = {
        k: jf.GetItem(1) >> jf.InputTransform({'x': k}) >> number for k in range(300)
    }
    batch = [(k, 'x') for k in (299, 0, 7, 256, 299, 255)]
    check((jf.OneOf(operator.itemgetter(0), cases), batch, [k for k, _ in batch]))


def test_a_choice_by_truth_with_a_default() -> None:
    """Which is never chosen."""
    cases = {True: number, False: whole >> jf.Function(jnp.float32)}
    program = jf.compile(jf.OneOf(bool, cases, default=jf.Zeros([]))).program
    same(*(canonical(program, made(program, [0, 1])) for made in (trace, recorded)))


class Like:
    """Equal to anything, and found under no key."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return True


UNLIKE = [np.array(1), np.array([1]), [1], {1}, frozenset({1}), Like(), 'a', float]


@pytest.mark.parametrize('cases', [{0: number, 1: number}, {1: number, (1,): number}])
@pytest.mark.parametrize('key', UNLIKE)
def test_keys_are_looked_up(cases: Any, key: Any) -> None:
    """By their hashes; without one it is no key."""
    program = jf.compile(jf.OneOf(lambda _: key, cases)).program
    with pytest.raises(jf.InputError, match='expected one of the keys'):
        trace(program, [2.0])
    program = jf.compile(jf.OneOf(lambda _: key, cases, default=jf.Scalar())).program
    if isinstance(key, Hashable):
        same(trace(program, [2.0]), recorded(program, [2.0]))
    else:
        with pytest.raises(jf.InputError, match='expected a hashable key'):
            trace(program, [2.0])


def test_a_key_is_computed_once() -> None:
    calls: list[Any] = []
    other = jf.Scalar('int32')
    for cases in ({0: other}, {0: whole}, dict.fromkeys(range(99), whole)):
        block = jf.OneOf(lambda x: calls.append(x) or x, cases, default=other)
        calls.clear()
        trace(jf.compile(block).program, [0, 200])
        assert calls == [0, 200]


# ---- tables --------------------------------------------------------------------------


def test_tables() -> None:
    words = {'the': 1, 'cat': 2}
    known = jf.InputTransform(words) >> whole
    any_word = jf.InputTransform(words, default=0) >> whole
    absent = jf.InputTransform(words, default=None) >> jf.Optional(whole)
    vectors = jf.InputTransform({(1, 2): [3, 4], None: [5, 6]}) >> jf.Vector(2)
    check(
        (known, ['cat', 'the'], [2, 1]),
        (any_word, ['dog', 'the', 'Cat'], [0, 1, 0]),
        (absent, ['dog', 'the'], [0, 1]),
        (vectors, [None, (1, 2)], [[5, 6], [3, 4]]),
        (jf.InputTransform({}, default=7) >> whole, ['a', 1], [7, 7]),
        (jf.InputTransform({1: 2, 'a': 3}) >> whole, [True, 'a'], [2, 3]),
    )


def test_a_table_of_any_kind_is_copied_and_never_grows() -> None:
    words: Any = collections.defaultdict(int, a=1)
    block = jf.InputTransform(words) >> whole
    model = jf.compile(block)
    words['b'] = 2
    with pytest.raises(jf.InputError, match="one of the keys 'a', got 'b'"):
        block.eval('b')
    with pytest.raises(jf.InputError, match="one of the keys 'a', got 'b'"):
        model.schedule(['b'])
    assert dict(words) == {'a': 1, 'b': 2}
    proxy = jf.InputTransform(types.MappingProxyType({'a': 3}))
    check((block, ['a'], [1]), (proxy >> whole, ['a'], [3]))
    with pytest.raises(TypeError, match='does not support item assignment'):
        proxy.fn['a'] = 4  # type: ignore[index]


@dataclasses.dataclass(frozen=True)
class Word:
    """Equal to another of its name, whatever the values."""

    name: str
    values: Any = dataclasses.field(compare=False)


NAN = float('nan')
VALUES = jf.GetItem('values') >> number
KINDS = jf.GetItem(0) >> jf.OneOf(type, {int: number, float: jf.Zeros([])})


@pytest.mark.parametrize(
    ('one', 'other', 'block'),
    [
        (0.0, -0.0, number),
        (0.5, NAN, number),
        (10**400, 10**400 + 1, jf.InputTransform(lambda x: x % 7) >> whole),
        ((1,), (1.0,), KINDS),
        (('x', [1.0]), ('x', [2.0]), jf.GetItem(1) >> jf.Vector(1)),
        (Word('x', 1.0), Word('x', 2.0), VALUES),
    ],
)
def test_tables_of_equal_values_stay_apart(one: Any, other: Any, block: Any) -> None:
    tables = ({'a': value} for value in (one, other, one))
    blocks = [jf.InputTransform(table) >> block for table in tables]
    blocks += [jf.InputTransform({}, default=value) >> block for value in (one, other)]
    program = jf.compile(jf.AllOf(*blocks)).program
    same(*(canonical(program, made(program, ['a'])) for made in (trace, recorded)))


def test_a_large_table_is_not_printed() -> None:
    table = jf.InputTransform({str(k): 'x' * k for k in range(1000)}, default='')
    model = jf.compile(table >> jf.InputTransform(len) >> number)
    assert len(repr(table)) < 100
    assert len(str(model.program)) < 1000


class Unsound:
    def __hash__(self) -> int:
        raise OSError('no hash')


@pytest.mark.parametrize(
    ('default', 'value', 'message'),
    [
        ({}, 'z', "expected one of the keys 0, 1, 2, 3, 4 and 1,995 more, got 'z'"),
        (
            {'default': 0},
            ({},),
            'expected a hashable value, to look it up, got ({},) (tuple)',
        ),
        ({'default': 0}, Unsound(), 'OSError: no hash; in '),
    ],
)
def test_what_a_table_lacks(default: Any, value: Any, message: str) -> None:
    table = jf.InputTransform({k: k for k in range(2000)}, **default)
    model = jf.compile({'word': table >> whole})
    for before in range(3):
        with pytest.raises(jf.InputError, match=f': {re.escape(message)}') as caught:
            model.schedule([{'word': 3}] * before + [{'word': value}, {'word': 'zz'}])
        assert (caught.value.example, caught.value.path) == (before, "['word']")
        assert 'InputTransform({0: 0, 1: 1, 2: 2, 3: 3, ...}' in caught.value.block


# ---- calls from Python ---------------------------------------------------------------


def calls(model: jf.Model, batch: list[Any]) -> int:
    """How many Python functions are called while a batch is traced."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == 'call'

    gc.disable()  # it calls back
    sys.setprofile(note)
    try:
        trace(model.program, batch)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def reads_in_proportion(block: Any, examples: list[Any]) -> None:
    """The values are right, and no example takes more calls beside others."""
    model = jf.compile(block)
    expected = [np.asarray(model.eval(example)) for example in examples]
    values = np.asarray(model.apply({}, model.schedule(examples)))
    np.testing.assert_allclose(values, expected)
    calls(model, examples)  # what is called once in a process
    few, more, many = (calls(model, examples * k) for k in (2, 4, 50))
    assert many - more <= 23 * (more - few)


CHOICES: list[tuple[Any, Any, Any]] = [
    (len, 2, 3),
    (operator.itemgetter(0), 'word', 'node'),
    (jf.GetItem(0), 'word', 'node'),
    (jf.GetItem(slice(2, None)) >> jf.InputTransform(bool), False, True),
    (jf.GetItem(0) >> jf.InputTransform({'node': 1}, default=0), 0, 1),
]


@pytest.mark.parametrize(('key', 'word', 'node'), CHOICES)
def test_choices_are_read(key: Any, word: Any, node: Any) -> None:
    tree = jf.ForwardDeclaration(output_type=[])
    children = jf.GetItem(2) >> jf.Map(tree()) >> jf.Sum()
    inner = jf.AllOf(jf.GetItem(1) >> number, children) >> (lambda x, y: x + 2 * y)
    tree.resolve_to(jf.OneOf(key, {word: jf.GetItem(1) >> number, node: inner}))
    leaf = ('word', 3)
    small = ('node', 0.5, [leaf, leaf, leaf])
    reads_in_proportion(
        tree(), [leaf, small, ('node', 2, (small, leaf, small, small, leaf))]
    )


def test_all_nodes_of_syntax_trees_are_read() -> None:
    """Whatever hangs below a node, by what is in its `__dict__`."""
    known = {each: 'node' for each in vars(ast).values() if isinstance(each, type)}
    kind = jf.InputTransform(known | {list: 'list'}, default='other')
    tree = jf.ForwardDeclaration(output_type=[])
    children = jf.Map(tree()) >> jf.Sum()
    attributes = jf.InputTransform(vars) >> jf.InputTransform(dict.values)
    cases = {
        'node': attributes >> children >> (lambda x: x + 1),
        'list': children,
        'other': jf.Zeros([]),
    }
    tree.resolve_to(jf.OneOf(jf.InputTransform(type) >> kind, cases))
    texts = ['f(x, *y)[1:] if a < b else lambda z: {3: [z]}', 'x', '"text"']
    examples = [ast.parse(text, mode='eval').body for text in texts]
    reads_in_proportion(tree(), examples)
    sizes = [sum(1 for _ in ast.walk(each)) for each in examples]
    assert [int(tree().eval(each)) for each in examples] == sizes


# ---- what is dropped or has no order -------------------------------------------------

PICK = 'a record of `{0: ..., 2: ...}` reads some of them alone'
Triple = collections.namedtuple('Triple', ['x', 'y', 'z'])
TOO_LONG = [(1, 2, 3), [1, 2, 3], Triple(1, 2, 3), np.array([1, 2, 3])]


@pytest.mark.parametrize('item', TOO_LONG)
@pytest.mark.parametrize('make', [tuple, list])
def test_a_record_by_position_drops_nothing(item: Any, make: Any) -> None:
    """Neither at the root, nor in fields, nor in the eager twin."""
    pair = jf.Record(make([number, number]))
    shown = "Record({0: Scalar('float32'), 1: Scalar('float32')})"
    got = f'{item!r} ({type(item).__name__}); {PICK}; in '
    with refuses(f'example 1: expected 2 items, got 3 in {got}{shown}', jf.InputError):
        jf.compile(pair).schedule([(1, 2), item])
    with refuses(
        f"example 0, at ['x']: expected 2 items, got 3 in {got}Record['x'].{shown}",
        jf.InputError,
    ):
        jf.compile({'x': pair}).schedule([{'x': item}])
    with refuses(f'example 0: expected 2 items, got 3 in {got}{shown}', jf.InputError):
        pair.eval(item)


def test_a_record_by_position_of_a_longer_tuple_of_tensors() -> None:
    with refuses(
        'Pipe[1].Record({0: Function(sin), 1: Function(cos)}): expected at most 2 '
        f'items, got (float32[], float32[], float32[]); {PICK}'
    ):
        jf.compile(jf.Record((number,) * 3) >> jf.Record((jnp.sin, jnp.cos)))


VALUES = '`InputTransform(lambda x: list(x.values()))`, or of `items`, makes one'
SORTED = 'it has no order: `InputTransform(sorted)` gives it one'
UNORDERED = [
    ({1: 2}, VALUES),
    (collections.OrderedDict(a=1), VALUES),
    ({1, 2}, SORTED),
    (frozenset([1]), SORTED),
]
FOLD = jf.Fold((jf.Identity(), number) >> add, jf.Zeros([]))


@pytest.mark.parametrize(('item', 'hint'), UNORDERED)
def test_what_is_no_sequence(item: Any, hint: str) -> None:
    """Though one can go through it."""
    got = f'{item!r} ({type(item).__name__}); {hint}; in '
    blocks = {
        numbers >> jf.Sum(): "Pipe[0].Map(Scalar('float32'))",
        FOLD: f'{str(FOLD)[:57]}...',
    }
    for block, place in blocks.items():
        with refuses(
            f'example 1: expected a sequence, got {got}{place}', jf.InputError
        ):
            jf.compile(block).schedule([[1], item])
        with refuses(
            f'example 0: expected a sequence, got {got}{place}', jf.InputError
        ):
            block.eval(item)
