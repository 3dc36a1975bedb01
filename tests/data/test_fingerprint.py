# SPDX-License-Identifier: Apache-2.0
"""Fingerprints tell expressions apart, and say how, in every process the same."""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary, dense_cell, embedding, tree_block

import jfold as jf
from jfold.data.fingerprint import contents, differences, digest_of, fingerprint

WORDS = {'a': 0, 'b': 1}
LIMIT = 3


def adder(number: Any) -> Callable[[Any], Any]:
    return lambda x: x + number


def number(fn: Callable[[Any], Any]) -> Any:
    return jf.InputTransform(fn) >> jf.Scalar()


def of(block: Any) -> dict[str, Any]:
    return fingerprint(jf.compile(block).program)


class Kind(Enum):
    """Of a node."""

    LEAF = 1
    NODE = 2


@dataclass
class Vocabulary:
    words: dict[str, int]

    def __call__(self, word: str) -> int:
        return self.words[word]


class Plain:
    """A callable with data."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def __call__(self, x: int) -> int:
        return x + self.number

    def add(self, x: int) -> int:
        return x + self.number


def helper(x: int) -> int:
    """Used by another function of this module."""
    return min(x, LIMIT)


def limited(x: int) -> int:
    """Uses a function of this module, and one of another."""
    return helper(x) + int(jnp.ndim(x))


def shortened(limit: int = 3) -> Callable[[Any], Any]:
    """A function with a default, one of them by name alone."""

    def cut(x: Any, first: int = limit, *, last: int = limit) -> Any:
        return x[first:last]

    return cut


def recursive(x: Any) -> Any:
    """Calls itself, and one that calls it."""
    return recursive(x[0]) if x else mutual(x)


def mutual(x: Any) -> Any:
    """Calls its caller."""
    return recursive(x)


def later() -> Callable[[Any], Any]:
    """A function that closes over what has no value."""

    def fn(x: Any) -> Any:
        return x + unknown

    if LIMIT > 100:
        unknown = 1
    return fn


def one_of(key_fn: Any, *keys: Any) -> Any:
    cases = {k: jf.Scalar() >> jf.Function(adder(i)) for i, k in enumerate(keys)}
    return jf.OneOf(key_fn, cases)


def with_metric(name: str) -> Any:
    return jf.Scalar() >> jf.AllOf(jf.Identity(), jf.Metric(name)) >> jf.GetItem(0)


def endless() -> list[Any]:
    """A list that contains itself, twice."""
    result: list[Any] = [1]
    result += [result, result]
    return result


def everything() -> dict[str, Any]:
    """Expressions with all that a fingerprint reads, by name; new at every call."""
    keys = frozenset(f'key {i}' for i in range(20))
    functions = {
        'words': WORDS.__getitem__,
        'get': {word: None for word in sorted(keys)}.get,
        'partial': functools.partial(max, 3, key=abs),
        'item': operator.itemgetter(1),
        'attribute': operator.attrgetter('a.b'),
        'method': Plain(3).add,
        'instance': Plain(3),
        'dataclass': Vocabulary({'a': 1}),
        'class': int,
        'cached': functools.lru_cache(limited),
        'ufunc': np.sin,
        'device': jnp.tanh,
        'limited': limited,
        'recursive': recursive,
        'default': shortened(),
        'later': later(),
        'set': lambda x: x in keys or x in {'a', 'b', 'c', 'd'},
        'array': adder(np.arange(5)),
        'device array': adder(jnp.arange(5)),
        'objects': adder(np.array([{}, 'a'], object)),
        'pattern': re.compile('a+').match,
        'endless': adder(endless()),
        'object': adder(object()),
        'kind': adder([Kind.LEAF, np.float32(1), np.dtype('int8'), 1j, range(3)]),
    }
    made = {name: number(fn) for name, fn in functions.items()}
    by_set = one_of(frozenset, *(frozenset([k, 'x', 'y']) for k in sorted(keys)))
    vector = jf.Vector(3) >> jf.Function(nn.Dense(2))
    rest = {
        'tree': tree_block(4),
        'cases': one_of(type, int, str, Plain),
        'sets': by_set,
        'kinds': one_of(lambda x: x.kind, Kind.LEAF, Kind.NODE, None, 1.5, helper),
        'sequence': jf.Map(vector) >> jf.Reduce(jf.Function(jnp.add)),
        'fold': jf.Map(jf.Scalar()) >> jf.Fold(jf.Function(jnp.add), jf.Zeros([])),
        'metric': with_metric('seen'),
        'optional': jf.Optional(jf.Scalar()),
        'constant': jf.FromTensor(np.eye(3, dtype='float32')),
        'field': {'x': jf.Scalar(), 'y': jf.Scalar()} >> jf.Function(jnp.add),
    }
    return made | rest


def between(old: Any, new: Any) -> list[str]:
    return differences(of(old), of(new))


# ---- the same expression -------------------------------------------------------------


def test_fingerprints_are_the_same_in_another_process() -> None:
    """Neither addresses nor the order of sets are in them; JSON loses nothing."""
    code = 'import json, test_fingerprint as t; '
    code += 'print(json.dumps({k: t.of(v) for k, v in t.everything().items()}))'
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=here,
        env=os.environ
        | {'PYTHONHASHSEED': '4711', 'PYTHONPATH': str(here.parent / 'support')},
        capture_output=True,
        text=True,
        check=True,
    )
    elsewhere = json.loads(done.stdout)
    for name, block in everything().items():
        here = of(block)
        assert differences(elsewhere[name], here) == [], name
        assert digest_of(elsewhere[name]) == digest_of(here), name
        if name != 'sets':  # the place, which nothing compares, shows some of a set
            assert elsewhere[name] == here, name
    assert '0x' not in done.stdout


def test_use_does_not_change_a_fingerprint() -> None:
    """Python adapts the code of functions that run often."""
    model = jf.compile(number(limited) >> jf.Function(adder(1.0)))
    before = fingerprint(model.program)
    for _ in range(50):
        model.schedule(list(range(20)))
    assert fingerprint(model.program) == before


@pytest.mark.parametrize(
    ('old', 'new'),
    [
        (number(lambda x: x + 1), number(lambda x: x + 1)),
        (number(lambda x: x + WORDS['a']), number(lambda x: x + WORDS['a'])),
        (number(Plain(1)), number(Plain(1))),
        (number(adder(object())), number(adder(object()))),
        (number(adder({1, 2, 3})), number(adder({3, 2, 1}))),
        (number(adder(dict(a=1))), number(adder({'a': 1}))),
        (tree_block(4), tree_block(4)),
        (tree_block(4), tree_block(5)),
        (jf.Zeros([4, 4]), jf.Zeros(5)),
        (jf.FromTensor(np.zeros(3, 'f4')), jf.FromTensor(np.ones(3, 'f4'))),
        # Layers of the same name, at the same types, for the same data.
        (jf.Vector(3) >> jf.GetItem(0), jf.Vector(3) >> jf.GetItem(1)),
        # With gradients or without.
        (
            jf.Scalar() >> jf.Function(jnp.multiply, lambda key: jnp.ones(()), 'sin'),
            jf.Scalar() >> jf.Function(jnp.sin),
        ),
        (
            jf.Scalar() >> jf.Function(lambda x: 3 * x, name='f'),
            jf.Scalar() >> jf.Function(lambda x: 2 * x, name='f'),
        ),
    ],
)
def test_what_makes_no_difference(old: Any, new: Any) -> None:
    """What layers do, and which object holds what is the same."""
    assert between(old, new) == []


@pytest.mark.parametrize(
    ('old', 'new'),
    [
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1),
        (lambda x: x.real, lambda x: x.imag),
        (lambda x: x, lambda *x: x),
        (lambda x: x in {1, 2}, lambda x: x in {1, 3}),
        (lambda x: [y + 1 for y in x], lambda x: [y + 2 for y in x]),
        (lambda x: map(lambda y: y + 1, x), lambda x: map(lambda y: y + 2, x)),
        (lambda x: WORDS['a'], lambda x: WORDS['b']),
        (lambda x: WORDS, lambda x: LIMIT),
        (lambda x: helper(x) + 1, lambda x: recursive(x) + 1),
        (adder(1), adder(2)),
        (adder(1), adder(1.0)),
        (adder(1), adder(True)),
        (adder('1'), adder(1)),
        (adder([1, 2]), adder([1, [2]])),
        (adder([1, 2]), adder((1, 2))),
        (adder({'a': 1}), adder({'a': 2})),
        (adder({'a': [1]}), adder({'a': [2]})),
        (adder({'a', 'b'}), adder({'a', 'c'})),
        (adder(adder(1)), adder(adder(2))),
        (adder(np.arange(3)), adder(np.arange(4))),
        (adder(np.arange(3)), adder(np.arange(3, dtype='int16'))),
        (adder(jnp.zeros(2)), adder(jnp.ones(2))),
        (adder(np.array([{}])), adder(np.array([{'a': 1}]))),
        (adder(Kind.LEAF), adder(Kind.NODE)),
        (adder(Vocabulary({'a': 1})), adder(Vocabulary({'a': 2}))),
        (adder(re.compile('a')), adder(re.compile('a', re.IGNORECASE))),
        (adder(int), adder(float)),
        (shortened(1), shortened(2)),
    ],
)
def test_functions_differ(old: Any, new: Any) -> None:
    """By body, default, closure, and what is in these."""
    (text,) = between(number(old), number(new))
    name = old.__name__.replace('<lambda>', 'function')
    assert text.startswith(f'a different `{name} = {old.__name__}` in Pipe[0].')
    assert between(number(old), number(old)) == []


VOCABULARIES = Vocabulary({'a': 1}), Vocabulary({'a': 2})
PLAIN = Plain({'a': 1}), Plain({'a': 2})


@pytest.mark.parametrize(
    ('old', 'new', 'line', 'place'),
    [
        (*(functools.partial(pow, x) for x in (2, 3)), 'pow_ = partial(pow)', 'pow'),
        (*map(operator.itemgetter, (1, 2)), 'itemgetter = itemgetter', 'itemgetter'),
        ({'a': 1}.get, {'a': 2}.get, 'get = dict.get', 'get'),
        (*VOCABULARIES, 'vocabulary = Vocabulary', 'Vocabulary'),
        (*(x.__call__ for x in VOCABULARIES), 'call = Vocabulary.__call__', '__call__'),
        (*PLAIN, 'plain = Plain', 'Plain'),
        (*(x.add for x in PLAIN), 'add = Plain.add', 'add'),
        (
            *(functools.lru_cache(adder(x)) for x in (1, 2)),
            'function = <lambda>',
            'function',
        ),
    ],
)
def test_other_callables_differ(old: Any, new: Any, line: str, place: str) -> None:
    text = f'a different `{line}` in Pipe[0].InputTransform({place})'
    assert between(number(old), number(new)) == [text]


def test_globals_of_the_same_module_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a function names, and that the functions name which it names."""
    before = {name: of(number(fn)) for name, fn in _users_of_globals().items()}
    module = sys.modules[__name__]
    monkeypatch.setattr(module, 'LIMIT', 4)
    monkeypatch.setitem(WORDS, 'c', 2)
    after = {name: of(number(fn)) for name, fn in _users_of_globals().items()}
    changed = {name for name in before if differences(before[name], after[name])}
    assert changed == {'limit', 'words', 'limited', 'nested'}


def _users_of_globals() -> dict[str, Any]:
    return {
        'limit': lambda x: min(x, LIMIT),
        'words': lambda x: WORDS[x],
        'limited': limited,
        'nested': lambda x: [y + LIMIT for y in x],
        'attribute': lambda x: x.LIMIT + x.WORDS,
        'none': lambda x: x + 1,
    }


def wide(size: int) -> Any:
    """A tree network whose cell is as wide as that of `tree_block`, by name."""
    return binary(jf.Scalar('int32') >> embedding(size), dense_cell(4, 'cell2'))


XY, XZ = ({'x': jf.Scalar(), key: jf.Scalar()} for key in 'yz')


SIN = jf.Scalar() >> jf.Function(jnp.sin)
PAIRS = [
    (jf.Vector(4) >> jf.Function(jnp.sin), jf.Vector(5) >> jf.Function(jnp.sin)),
    (tree_block(4), wide(4)),
    (number(int), number(float)),
    (one_of(type, int, str), one_of(type, int, float)),
    (one_of(type, int, str), one_of(type, int)),
    (XY >> jf.Function(jnp.add), XZ >> jf.Function(jnp.add)),
    (jf.FromTensor(np.zeros(3, 'float32')), jf.FromTensor(np.zeros(3, 'int32'))),
    (SIN, jf.Scalar() >> jf.Function(jnp.cos)),
    (SIN, SIN >> jf.Function(jnp.sin)),
    (with_metric('a'), with_metric('b')),
    (XY, (XY,)),
]
# The differences of each pair that are told first, a line each.
TEXTS = """\
`data float32[4]` instead of `data float32[5]` in Pipe[0].Vector(5, 'float32')

`operation cell(float32, float32) -> float32` instead of `operation cell2(float32, float32) -> float32`

`value = int(x)` instead of `value = float(x)` in Pipe[0].InputTransform(float)

`elif kind is str:` instead of `elif kind is float:` in OneOf(type, {<class 'int'>: Scalar('float32') >> Function...

`operation function_1(float32) -> float32` instead of nothing
`data float32[]` instead of nothing in OneOf[<class 'str'>].Pipe[0].Scalar('float32')

`y2 = x['y'] if type(x) is dict else field(x, 'y')` instead of `z2 = x['z'] if type(x) is dict else field(x, 'z')` in Pipe[0].Record({'x': Scalar('float32'), 'z': Scalar('float32')})

`result float32` instead of `result int32`

`operation sin(float32) -> float32` instead of `operation cos(float32) -> float32`

nothing instead of `operation sin(float32) -> float32`

`metric 'a' in order: float32` instead of `metric 'b' in order: float32`

`result (float32, float32)` instead of `result ((float32, float32),)`
`x2 = x['x'] if type(x) is dict else field(x, 'x')` instead of `[first] = x if type(x) is tuple else items(x, 1)` in Record({0: Record({'x': Scalar('float32'), 'y': Scalar('f...\
"""  # noqa: E501
DIFFERENT = [
    (*pair, text.split('\n'))
    for pair, text in zip(PAIRS, TEXTS.split('\n\n'), strict=True)
]


@pytest.mark.parametrize(('old', 'new', 'found'), DIFFERENT)
def test_expressions_differ(old: Any, new: Any, found: list[str]) -> None:
    """By data, cases, fields, constants, layers, metrics, results."""
    assert between(old, new)[: len(found)] == found
    assert between(new, new) == []


# ---- what data say -------------------------------------------------------------------


def test_contents_of_deep_and_large_data() -> None:
    """Depth is no matter, nor is what contains itself."""
    deep: Any = 1
    for _ in range(20_000):
        deep = [deep]
    assert contents(deep) != contents([deep])
    assert contents(endless()) == contents(endless())
    assert contents({i: str(i) for i in range(1000)}) != contents(
        {i: str(i) for i in range(1001)}
    )
    assert contents('\ud800') != contents('\ud801')


def test_contents_tell_where_things_are() -> None:
    values = [[1, 2], [[1, 2]], [[1], 2], [1, [2]], [2, 1], [1, 2, []], [], [[]], 1]
    assert len({contents(value) for value in values}) == len(values)
    assert contents(1, [2]) != contents([1, 2])
    assert contents([1], [1]) != contents([1])


def test_shared_and_equal_parts_are_the_same() -> None:
    """Containers count by what is in them."""
    part = [[1], {2: [3]}]
    assert contents([part, part]) == contents([part, [[1], {2: [3]}]])


def test_functions_of_modules_of_ones_own_count(tmp_path: Path) -> None:
    """What a helper of another file says matters; an installed one is told by name."""
    found = []
    for text in ('return 1', 'return 2', 'return 1'):
        scope: dict[str, Any] = {}
        code = f'def number(word):\n    {text}\n'
        exec(compile(code, str(tmp_path / 'helper.py'), 'exec'), scope)
        names = {'number': scope['number']}
        exec('def look(word):\n    return number(word)\n', names)
        block = jf.InputTransform(names['look']) >> jf.Scalar('int32')
        found.append(fingerprint(jf.compile(block).program))
    assert found[0] == found[2]
    assert differences(found[0], found[1])


def test_lazy_functions_differ_by_calls_or_by_data() -> None:
    def of_lazy(number: int, *like: int) -> dict[str, Any]:
        fn = jf.lazy(lambda x: jf.int32(x) if x < 2 else jf.int32(x) + number)
        return fingerprint(jf.compile(fn, like=[*like]).program)

    grown, *_ = differences(of_lazy(3, 1), of_lazy(3, 1, 2))
    assert grown == (
        f'other or more calls of `<lambda>` {FUNCTION}: it or `like=` differs, or the '
        'program has grown since'
    )
    (other,) = differences(of_lazy(3, 1), of_lazy(4, 1))
    assert other == f'a different `lambda_ = <lambda>` {FUNCTION}'


# ---- other versions ------------------------------------------------------------------

FUNCTION = 'in Pipe[0].InputTransform(function)'


def test_code_of_another_python_is_not_compared() -> None:
    """What functions hold besides is."""
    saved = of(number(adder(1))) | {'python': '3.10'}
    saved['functions'] = [
        [text, 'other', place] for text, _, place in saved['functions']
    ]
    assert differences(saved, of(number(adder(1)))) == []
    assert differences(saved, of(number(lambda number: number + 1))) != []
    assert differences(saved, of(number(adder(2)))) == [
        f'a different `function = <lambda>` {FUNCTION}'
    ]


def test_graphs_of_another_format() -> None:
    current = of(tree_block(4))
    assert differences({'format': 0}, current) == ['graphs of format 0, not 4']
    assert differences({}, current) == ['graphs of format None, not 4']


def test_graphs_of_a_sum_are_of_no_other_function() -> None:
    """In the reverse a sum leaves nothing, where another function leaves cotangents."""

    def model(fn: Callable[..., Any]) -> jf.Model:
        twice = jf.Vector(2) >> jf.AllOf(jf.Identity(), jf.Identity())
        return jf.compile(twice >> jf.Function(fn, name='add'))

    plain, summed = model(lambda a, b: a + b), model(jnp.add)
    found = differences(fingerprint(plain.program), fingerprint(summed.program))
    assert any(', a sum' in line for line in found)
    for one, other in ((plain, summed), (summed, plain)):
        with pytest.raises(ValueError, match='got those of another'):
            other.join([one.tracer()([[1.0, 2.0]])])
