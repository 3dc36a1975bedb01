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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from checking import refuses
from flax import nnx
from flax.core import freeze
from traced_cases import CASES

import jfold as jf
from jfold.base.structs import leaf_restorer, plain_containers, plain_leaves
from jfold.data.fingerprint import fingerprint
from jfold.files.encoding import Encoder, decode, description, name_of, named, tags
from jfold.language.lines import write
from jfold.language.names import TAKEN, WRITTEN
from jfold.language.portable import BLOCKS, portable
from jfold.language.typed import TypedUse
from jfold.lower import lower_typed
from jfold.program.operations import Program


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
    records, code = json.loads(json.dumps([encoder.records, code], allow_nan=False))
    return decode(code, records, encoder.arrays)


def again(value: Any) -> Any:
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
    """And what is equal alone is not; arrays too."""
    one = [1]
    first, second, third = again((one, {'b': one}, [1]))
    assert first is second['b'] and first is not third
    arrays = [np.full(n, n, dtype) for n in range(4) for dtype in ('int32', 'float32')]
    encoder = Encoder()
    same(decoded(encoder, encoder.encode(arrays)), arrays)
    assert [*encoder.arrays] == [str(n) for n in range(8)]
    twice = again([arrays[3], arrays[3]])
    assert twice[0] is twice[1]


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
    (eval('lambda x: x'), r'a lambda \(<string>:1\)'),
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
    """Wherever it is, once."""
    encoder = Encoder()
    encoder.encode({'a': [value, (value,)]})
    ((where, what),) = encoder.refused
    assert where == '' and re.fullmatch(text, what)


@pytest.mark.parametrize('main', ['__main__', '__mp_main__'])
def test_what_is_in_the_main_program_has_no_name(
    main: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There another program is, where the file is read."""
    monkeypatch.setitem(sys.modules, main, sys.modules[__name__])
    assert name_of(local) == (__name__, 'local')
    monkeypatch.setattr(local, '__module__', main)
    assert name_of(local) is None
    assert description(local) == f'`local` of the program that runs, `{main}`'


def test_what_is_not_under_its_name_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
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
    text = (
        "expected `pi` in module 'math', got 3.141592653589793, which cannot be "
        'called: use the version that has it'
    )
    with refuses(text, ImportError):
        named('math', 'pi')


def test_a_module_that_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'ending.py').write_text('import sys; sys.exit(3)')
    (tmp_path / 'dividing.py').write_text('1 / 0')
    (tmp_path / 'importing.py').write_text('import none_such')
    monkeypatch.syspath_prepend(tmp_path)
    for module, message in {
        'ending': 'SystemExit: 3: mend what it raises',
        'dividing': 'ZeroDivisionError: division by zero: mend what it raises',
        'importing': "ModuleNotFoundError: No module named 'none_such': install ",
    }.items():
        text = f'module {module!r}, for `f`, got {message}'
        with pytest.raises(ImportError, match=re.escape(text)):
            named(module, 'f')


# ---- programs ------------------------------------------------------------------------


def lowered_again(program: Program) -> Program:
    """A program that is written anew from the records of its expression."""
    return lower_typed(*again(portable(program)))


def check_same(read: Program, program: Program) -> None:
    """Equal in print and in fingerprint, and what layers do is left out."""
    assert str(read) == str(program)
    assert fingerprint(read) == fingerprint(program)
    for layer in read.layers:
        with pytest.raises(AssertionError, match='does not run layers'):
            layer.call(None)


def subclasses(kind: type) -> set[type]:
    """Those of jfold, however far below."""
    found = [x for x in kind.__subclasses__() if x.__module__.startswith('jfold.')]
    return {*found}.union(*map(subclasses, found))


def test_every_kind_of_block_is_known() -> None:
    """Those that have a rule; a file of a version with others is refused."""
    ruled = {kind for kind in write.registry if kind is not object}
    assert ruled == {*BLOCKS}
    assert ruled <= subclasses(jf.Block) | {*BLOCKS}
    assert {kind.__name__ for kind in BLOCKS} <= {*tags()}


@pytest.mark.parametrize('name', CASES)
def test_programs_of_all_kinds(name: str) -> None:
    """Read as they were written, if all functions have names."""
    program = jf.compile(CASES[name]()[0]).program
    encoder = Encoder()
    code = encoder.encode(portable(program))
    if not encoder.refused:  # for a lambda
        check_same(lower_typed(*decoded(encoder, code)), program)


@pytest.mark.parametrize('value', [0.5, np.inf, 10**400, (1, 2), b'a', None])
def test_one_value_in_several_blocks(value: Any) -> None:
    """Whether it stays one object or not: JSON has no objects of some classes."""
    blocks = [
        block
        for n in range(2)
        for block in (
            jf.InputTransform({n: value}),
            jf.InputTransform({n: n}, default=value),
            jf.GetItem(value),
            jf.GetItem(n, default=value),
        )
    ]
    program = jf.compile(jf.AllOf(*(x >> jf.Length() for x in blocks))).program
    check_same(lowered_again(program), program)


def depth_of(value: Any, inside: Callable[[Any], Any]) -> int:
    """How many values are nested in a value, by what gives those inside."""
    depth = 0
    while parts := inside(value):
        (value,) = parts
        depth += 1
    return depth


def test_values_and_expressions_may_be_nested_without_limit() -> None:
    """Deeper than the stacks of Python, that of C too."""
    deep = 12_000
    float_ = jf.TensorType(())
    data: Any = ()
    type_: Any = float_
    node = TypedUse(jf.Identity(), 'expression', float_, float_)
    for _ in range(deep):
        data, type_ = (data,), jf.TupleType(type_)
        node = TypedUse(jf.Identity(), 'expression', float_, float_, (node,))
    assert again(type_) == type_
    assert depth_of(again(data), lambda x: x) == deep
    assert depth_of(again(node), lambda x: x.parts) == deep


# What a file might say in the place of a number or a name, to have it run.
CODE = '0]; raise SystemExit(3)  #'
NUMBERS = jf.Map(jf.Scalar())


@pytest.mark.parametrize(
    ('block', 'old', 'place'),
    [
        (NUMBERS >> jf.GetItem(0), ['GetItem', 0], 1),
        (NUMBERS >> jf.GetItem(slice(0, 2)) >> jf.Sum(), ['slice', 0, 2], 1),
        (jf.Record((jf.Scalar(), np.float32(1))), ['Record', [0], 2], 2),
        (NUMBERS >> jf.NGrams(2) >> jf.GetItem(0), ['NGrams', 2], 1),
        (NUMBERS >> jf.Padded(2), ['Padded', 2], 1),
    ],
)
def test_no_text_of_a_file_is_run(block: Any, old: list[Any], place: int) -> None:
    """It is no number, which is told before anything is written."""
    encoder = Encoder()
    code = encoder.encode(portable(jf.compile(block).program))
    records = [x for x in encoder.records if x[0] == old[0]]
    assert records
    for record in records:
        record[place] = CODE
    with pytest.raises((TypeError, ValueError)):
        lower_typed(*decoded(encoder, code)).source.record([])


NAMES = ['a\nraise SystemExit(3)', 'a\rb', 'x²', 'ſ', '{0}', 'a  # b', '']


@pytest.mark.parametrize('name', [*NAMES, *TAKEN, *WRITTEN])
def test_names_are_no_source(name: str) -> None:
    """Of functions, declarations, fields, metrics, as a file may have them too."""
    tree = jf.ForwardDeclaration(name=name or 'tree')
    leaf = jf.Scalar() >> jf.Function(jnp.sin, name=name or 'sin')
    fn: Any = {name: 1, '{x}': 2}
    field = jf.GetItem(name, default='{1}') >> jf.InputTransform(fn, default=0)
    tree.resolve_to(jf.OneOf(type, {int: leaf, dict: field >> jf.Scalar()}))
    seen = tree() >> jf.AllOf(jf.Identity(), jf.Metric(name or 'seen'))
    model = jf.compile(seen >> jf.GetItem(0))
    check_same(lowered_again(model.program), model.program)
    schedule = model.schedule([0, {name: name}, {name: 'other'}, {}])
    values, _ = interpreter.called(model.apply, {}, schedule)
    assert values.tolist() == [0, 1, 0, 0]


class Calls:
    """Ends the test when it is called, in any of the ways that readers know."""

    def type(self, *_: Any) -> Any:
        raise AssertionError('called')

    __array__ = __jax_array__ = __float__ = __index__ = __getitem__ = type
    __call__ = type


CALLS = Calls()


@pytest.mark.parametrize(
    'records',
    [
        [['tuple', [0]]],
        [['tuple'], ['tuple', [-1]]],
        [['tuple', [True]]],
        [['none such']],
        [['Typed', 1]],
        [['GetItem', 1]],
        [['array', '1']],
        [['array', 0]],
        [['array', '0', '0']],
        [['array', ['0']]],
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
        decode(None, records, {'0': np.zeros(3, 'float32')})


# ---- containers ----------------------------------------------------------------------


def test_parameters_in_plain_containers() -> None:
    """Those of NNX, without boxes; and the way back."""
    module = nnx.Sequential(*(nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(11)))
    state = nnx.state(module)
    found = plain_containers({'a': state, 'b': freeze({'x': (1, [2])})})
    assert type(found['a']) is dict and found['b'] == {'x': (1, [2])}
    assert found['a'] == nnx.to_pure_dict(state)
    back = leaf_restorer(state)(plain_leaves(state))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)
    in_order = OrderedDict(scale=1, add=2)  # which a plain dict sorts
    assert leaf_restorer(in_order)(plain_leaves(in_order)) == in_order
