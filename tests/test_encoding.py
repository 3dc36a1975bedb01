# SPDX-License-Identifier: Apache-2.0
"""Host programs as records: what is read is what was written, or it is refused."""

from __future__ import annotations

import ast
import enum
import functools
import json
import math
import operator
import re
import sys
from collections import Counter, OrderedDict, namedtuple
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import programs
import pytest
import wrong_kinds
from checking import refuses
from expressions import Expression, any_expressions
from flax import nnx
from flax.core import freeze
from hypothesis import given, settings
from traced_cases import CASES

import jfold as jf
from jfold import instructions as ir
from jfold.containers import leaves_of, plain, restored
from jfold.data.encoding import KINDS, Decoder, Encoder, fields_of
from jfold.data.fingerprint import fingerprint
from jfold.data.naming import name_of, named, told
from jfold.host.two_passes import in_two_passes
from jfold.program import Program, check_program


class Colour(enum.Enum):
    """Keys of cases."""

    RED = 'r'

    @classmethod
    def first(cls) -> Colour:
        """A method that a class binds."""
        return cls.RED

    def shown(self) -> str:
        """One that an object does."""
        return self.value


class Flags(enum.Flag):
    """Of which several at once have no name."""

    A = enum.auto()
    B = enum.auto()


class Number(enum.IntEnum):
    """Equal to a number, and not that."""

    ONE = 1


Pair = namedtuple('Pair', 'x y')


def decoded(encoder: Encoder, code: Any) -> Any:
    """What is read of records, by way of JSON."""
    records, code = json.loads(json.dumps([encoder.records, code]))
    decoder = Decoder(encoder.arrays)
    decoder.read(records)
    return decoder.value(code)


def again(value: Any) -> Any:
    """A value, written and read."""
    encoder = Encoder()
    code = encoder.encode(value)
    assert encoder.refused == []
    return decoded(encoder, code)


def same(got: Any, want: Any) -> None:
    """Equal, of the same types all through."""
    assert type(got) is type(want)
    if isinstance(want, dict):
        same([*got.items()], [*want.items()])
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            same(*pair)
    elif isinstance(want, np.ndarray | jax.Array):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    elif isinstance(want, functools.partial):
        assert isinstance(got, functools.partial)
        same([got.func, got.args, got.keywords], [want.func, want.args, want.keywords])
    elif type(want).__module__ == 'operator':
        same(got.__reduce__(), want.__reduce__())
    else:
        assert got == want or repr(got) == repr(want)  # as those that are no number


# ---- values --------------------------------------------------------------------------


VALUES = [
    *(None, True, 0, -1, 10**9, 1 << 63, -(1 << 20_000), 'é', '\ud800', b'\x00\xff'),
    *(1.5, -0.0, 1e-320, math.inf, -math.inf, math.nan, 1j, complex(math.nan, 1)),
    *((), (1,), [], [1, (2, [3])], {}, {'a': 1, 2: {None: ()}}, {(1, 'a'): b''}),
    *({1, 2}, set(), frozenset({'a', (1, 2)}), slice(None), slice(1, None, -1)),
    *(range(3, 9, 2), ..., Colour.RED, Number.ONE, np.float32(1.5), np.int64(-3)),
    *(np.bool_(True), np.str_('a'), ml_dtypes.bfloat16(0.5), np.float64(math.nan)),
    *(np.dtype('int16'), np.dtype('U3'), np.dtype(ml_dtypes.bfloat16)),
    *(np.arange(6.0).reshape(2, 3).T, np.array(3), np.zeros((0, 2), 'int8')),
    *(np.ones(2, ml_dtypes.bfloat16), jnp.ones((2, 1)), np.array(['a'])[:0].shape),
    *(operator.itemgetter(0), operator.itemgetter('a', 1), operator.attrgetter('a.b')),
    *(operator.methodcaller('f'), operator.methodcaller('f', 1, x=(2,))),
    *(functools.partial(int, base=2), functools.partial(operator.add, [1])),
    *(len, id, int, type(None), json.loads, jnp.tanh, np.sqrt, str.lower, ast.Add),
    *(Colour, Colour.first, dict.fromkeys, math.sqrt, name_of, Counter, type(len)),
]


@pytest.mark.parametrize('value', VALUES, ids=range(len(VALUES)))
def test_values_are_what_they_were(value: Any) -> None:
    """With their types, to the bit."""
    same(again(value), value)


def test_what_is_one_object_is_one() -> None:
    """And what is equal alone is not; of arrays, each of its dtype's."""
    one = [1]
    first, second, third = again((one, {'b': one}, [1]))
    assert first is second['b'] and first is not third
    arrays = [np.full(n, n, dtype) for n in range(4) for dtype in ('int32', 'float32')]
    encoder = Encoder()
    same(decoded(encoder, encoder.encode(arrays)), arrays)
    assert {name: len(x) for name, x in encoder.arrays.items()} == {'<i4': 6, '<f4': 6}


def local() -> None:
    """A function, which has another inside."""


def make_local() -> Any:
    """A function that nobody can import."""

    def inside(x: int) -> int:
        return x

    return inside


def recursive_list() -> list[Any]:
    """A list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


REFUSED = [
    (eval('lambda x: x'), r'a lambda \(<string>:1\), whose source is not known'),
    (Colour.RED.shown, 'the method `Colour.shown` of an object'),
    ([].append, 'the method `list.append` of an object'),
    (object(), 'an object of builtins.object'),
    (Pair(1, 2), 'an object of test_encoding.Pair'),
    (OrderedDict(a=1), 'an object of collections.OrderedDict'),
    (Counter('a'), 'an object of collections.Counter'),
    (re.compile('x'), 'an object of re.Pattern'),
    (np.array([None]), 'an object of numpy.ndarray'),
    (np.datetime64('2020-01-01'), 'an object of numpy.datetime64'),
    (recursive_list(), 'a list inside itself'),
    (Flags.A | Flags.B, 'an object of test_encoding.Flags'),
    (Flags(0), 'an object of test_encoding.Flags'),
]


@pytest.mark.parametrize(('value', 'text'), REFUSED, ids=range(len(REFUSED)))
def test_what_has_no_name_is_told(value: Any, text: str) -> None:
    """Wherever it is, once, with the block."""
    encoder = Encoder()
    encoder.encode({'a': [value, (value,)]}, 'the block')
    ((where, what),) = encoder.refused
    assert where == 'the block' and re.fullmatch(text, what)


@pytest.mark.parametrize('main', ['__main__', '__mp_main__'])
def test_what_is_in_the_main_program_has_no_name(
    main: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There another program is, where the file is read."""
    monkeypatch.setitem(sys.modules, main, sys.modules[__name__])
    assert name_of(local) == (__name__, 'local')
    monkeypatch.setattr(local, '__module__', main)
    assert name_of(local) is None
    assert told(local) == f'`local` of the program that runs, `{main}`'


def test_what_is_not_under_its_name_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another function would be found."""
    before = local
    monkeypatch.setitem(globals(), 'local', make_local())
    assert name_of(before) is None


def test_names_that_are_not_there() -> None:
    text = (
        "expected a module 'none_such', for `f`, got ModuleNotFoundError: No module "
        "named 'none_such': install it where this program runs, or put it on the path"
    )
    with refuses(text, ImportError):
        named('none_such', 'f')
    text = (
        "expected `none.such` in module 'json', got a module without: use the version "
        'that has it'
    )
    with refuses(text, ImportError):
        named('json', 'none.such')


def test_a_module_that_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the file goes on."""
    (tmp_path / 'ending.py').write_text('import sys; sys.exit(3)')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ImportError, match="module 'ending', for `f`, got SystemExit: 3"
    ):
        named('ending', 'f')


# ---- programs ------------------------------------------------------------------------


def all_programs() -> list[Program]:
    """Those of other tests, as they are and in two passes."""
    made = [
        fn()
        for module in (programs, wrong_kinds)
        for fn in vars(module).values()
        if hasattr(fn, 'cache_info')
    ]
    found = [each for each in made if isinstance(each, Program)]
    found += [jf.compile(case()[0]).program for case in CASES.values()]
    rewritten = (in_two_passes(each, False) for each in found)
    return [*found, *(each for each in rewritten if each is not None)]


def test_every_kind_of_instruction_is_known() -> None:
    """Programs with all of them are read as they were written; none is forgotten."""
    seen = set[type]()
    for program in all_programs():
        encoder = Encoder()
        code = encoder.encode(program)
        if not encoder.refused:  # for a lambda
            read = decoded(encoder, code)
            assert str(read) == str(program)
            assert fingerprint(read) == fingerprint(program)
            seen |= {type(i) for body in read.plan.bodies for i in body.instructions}
    bases = {ir.Instruction, ir.Maker, ir.ConstantMaker}
    assert seen == KINDS - bases
    assert KINDS == {ir.Instruction, *subclasses(ir.Instruction)}


def subclasses(kind: type) -> set[type]:
    """Those of jfold, however far below."""
    found = [x for x in kind.__subclasses__() if x.__module__.startswith('jfold.')]
    return {*found}.union(*map(subclasses, found))


@given(any_expressions())
@settings(max_examples=40, deadline=None)
def test_programs_of_any_expression(expression: Expression) -> None:
    """Equal in print and in fingerprint, and what layers do is left out."""
    program = jf.compile(expression.block).program
    read = again(program)
    assert str(read) == str(program)
    assert fingerprint(read) == fingerprint(program)
    check_program(read)
    for layer in read.layers:
        with pytest.raises(AssertionError, match='does not run layers'):
            layer.call(None)


def test_nothing_is_left_out_of_a_program() -> None:
    """Every field of its classes is written, but for what layers do and what follows
    from others."""
    left_out = {
        'Body': {'writer'},
        'Layer': {'call', 'init', 'evaluating', 'owner'},
        'KeyType': {'shape', 'dtype'},
    }
    kinds = {each.__name__: each for each in found_in(programs.random())}
    for name, written in fields_of(kinds).items():
        every = {each.name for each in fields(kinds[name])}
        assert every - {*written} == left_out.get(name, set()), name
    assert {'Program', 'Body', 'Layer', 'KeyType', 'Apply'} <= kinds.keys()


def found_in(program: Program) -> set[type]:
    """The classes of dataclasses in a program."""
    waiting, found = [program], dict[int, Any]()
    while waiting:
        value: Any = waiting.pop()
        if id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, dict):
            waiting += [*value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
        elif is_dataclass(value):
            waiting += [getattr(value, each.name) for each in fields(value)]
    return {type(x) for x in found.values() if is_dataclass(x)} - {type}


class Calls:
    """Ends the test when it is called, in any of the ways that readers know."""

    def type(self, *_: Any) -> Any:
        raise AssertionError('called')

    __array__ = __jax_array__ = __float__ = __index__ = __getitem__ = type


CALLS = Calls()


def test_values_may_be_nested_without_limit() -> None:
    deep: Any = jf.TensorType(())
    data: Any = 1
    for _ in range(20_000):
        deep, data = jf.TupleType(deep), (data,)
    assert again(deep) == deep
    found = again(data)
    while isinstance(found, tuple):
        (found,) = found
    assert found == 1


@pytest.mark.parametrize(
    'records',
    [
        [['tuple', [0]]],
        [['tuple'], ['tuple', [-1]]],
        [['tuple', [True]]],
        [['none such']],
        [['Apply', 1]],
        [['array', '<f4', 0, 5]],
        [['dict', 1]],
        [[]],
        [['name', 'test_encoding', 'CALLS'], ['scalar', [0], 'x']],
        [['dtype', 'f4'], ['name', 'test_encoding', 'CALLS'], ['scalar', [0], [1]]],
        *([['name', 'test_encoding', 'CALLS'], [x, [0]]] for x in ('float', 'of jax')),
        [['name', 'test_encoding', 'CALLS'], ['range', 0, [0], 1]],
        [['name', 'test_encoding', 'CALLS'], ['enum', [0], 'type']],
    ],
)
def test_records_that_none_writes(records: Any) -> None:
    """Nor does reading them call what they name."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        Decoder({'<f4': np.zeros(3, 'float32')}).read(records)


# ---- containers ----------------------------------------------------------------------


def test_parameters_in_plain_containers() -> None:
    """Those of NNX, without boxes; and the way back."""
    module = nnx.Sequential(*(nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(11)))
    state = nnx.state(module)
    found = plain({'a': state, 'b': freeze({'x': (1, [2])})})
    assert type(found['a']) is dict and found['b'] == {'x': (1, [2])}
    assert found['a'] == nnx.to_pure_dict(state)
    back = restored(state)(leaves_of(state))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)
