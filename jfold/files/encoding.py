# SPDX-License-Identifier: Apache-2.0
"""The encoding of expressions as JSON and arrays, written and read without pickle.

A value is written as a *code*. That is an atom, which stands for itself (`None`, a
bool, a string, a number), or the number of a record in a list, `[7]`. A record is a
tag, the kind of the value, with the codes of the *parts* that the value is made of. The
records of the parts come before it:

    ["tuple", 1, 2]   ["dict", "a", [3]]   ["name", "operator", "itemgetter"]
    ["TensorType", [2], [3]]   ["GetItem", "x", [4]]   ["Pipe"]   ["array", "0"]

Tags are a closed set: some kinds of plain values; modules, functions and classes that
can be imported, by name; and jfold's own classes, field by field. An object that occurs
in two places has one record. Reading calls nothing but the constructors listed here.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import itertools
import math
import operator
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.arrays import array_spec
from jfold.base.errors import describe_error, short_repr
from jfold.base.trampoline import Steps, in_turn, run
from jfold.files.storage import EXTENDED, can_hold
from jfold.language import portable
from jfold.language.portable import Codec, reduced
from jfold.language.typed import TypedUse

Array = np.ndarray[Any, Any]
Json: TypeAlias = Any  # a code: an atom, or `[n]`
Record: TypeAlias = list[Json]  # a tag, then codes
Name: TypeAlias = tuple[str, str]  # the name of a module, and a dotted name in it

LARGEST = 1 << 63  # larger ints are written as hex text, since JSON's have a limit
PLAIN = 'None, numbers, strings, bytes, arrays, tuples, lists, dicts, sets, slices'

MAIN = '__main__', '__mp_main__'  # the latter in the workers of `multiprocessing`

# By class, its name in `types`. Some classes can be imported from there alone:
# `type(None)` claims to be `builtins.NoneType`, which does not exist.
_ELSEWHERE = {x: name for name, x in vars(types).items() if isinstance(x, type)}


# ---- names that any process can import -----------------------------------------------


def name_of(value: object) -> Name | None:
    """Return (module, name) to import a value in any process, or `None`.

    Values of `__main__` have none: `__main__` of another process is another program.

    >>> import json
    >>> name_of(json.loads), name_of(str.lower), name_of(lambda x: x)
    (('json', 'loads'), ('builtins', 'str.lower'), None)
    """
    # A bound method is a new object at each access.
    is_bound = isinstance(value, MethodType | BuiltinMethodType)
    for module, name in _names(value):
        if module not in MAIN and '<' not in name:
            with contextlib.suppress(ImportError):
                other = named(module, name)
                if other is value or (is_bound and bool(other == value)):
                    return module, name
    return None


def _names(value: object) -> Iterator[Name]:
    """Yield pairs (module, name) by which to try to import a value."""
    name = getattr(value, '__qualname__', None) or getattr(value, '__name__', None)
    if not isinstance(name, str):
        return
    # `__objclass__` is the class of a method written in C; `__self__` is what a bound
    # method belongs to, for a builtin function its module.
    owners = (getattr(value, x, None) for x in ('__objclass__', '__self__'))
    for owner in (value, *owners, type(value)):
        module = getattr(owner, '__module__', None) or getattr(owner, '__name__', None)
        if isinstance(module, str):
            yield module, name
    if isinstance(value, type) and value in _ELSEWHERE:
        yield 'types', _ELSEWHERE[value]


def named(module: str, name: str) -> Any:
    """Import and return the value `name` of a module; the inverse of `name_of`.

    Raises:
      ImportError: the module is missing, fails while imported, or has nothing callable
        of this name.
    """
    try:
        root = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a module may raise
        hint = 'mend what it raises'
        if isinstance(error, ModuleNotFoundError):
            hint = 'install it where this program runs, or put it on the path'
        raise ImportError(
            f'expected a module {module!r}, for `{name}`, got '
            f'{describe_error(error)}: {hint}'
        ) from error
    got = 'a module without'
    with contextlib.suppress(AttributeError):
        value = functools.reduce(getattr, name.split('.'), root)
        if callable(value):
            return value
        got = f'{short_repr(value)}, which cannot be called'
    raise ImportError(
        f'expected `{name}` in module {module!r}, got {got}: use the version that has '
        'it'
    )


def description(value: object) -> str:
    """Return a text, for errors, about a value that cannot be imported by name."""
    name = str(getattr(value, '__qualname__', type(value).__qualname__))
    if isinstance(value, MethodType | BuiltinMethodType):
        return f'the method `{name}` of an object'
    if isinstance(value, FunctionType):
        code = value.__code__
        file = f'{Path(code.co_filename).name}:{code.co_firstlineno}'
        if '<lambda>' in name:
            return f'a lambda ({file})'
        if '<locals>' in name:
            return f'`{name.rpartition(".")[2]}`, defined in a function ({file})'
    module = getattr(value, '__module__', None)
    if module in MAIN and callable(value):
        return f'`{name}` of the program that runs, `{module}`'
    type_ = type(value)
    return f'an object of {type_.__module__}.{type_.__qualname__}'


# ---- kinds of values -----------------------------------------------------------------


def _sorted(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=repr)


def _parts_of_call(value: Any) -> tuple[Any, ...]:
    fn, args = value.__reduce__()
    if isinstance(fn, functools.partial):  # only with keyword arguments
        return (*fn.args, *args), dict(fn.keywords)
    return args, {}


# Classes whose values have the name of the class as tag.
_CLASSES: dict[type, Codec] = {
    **portable.CODECS,
    int: Codec(lambda x: [hex(x)], lambda text: int(text, 16), (str,)),
    float: Codec(lambda x: [repr(x)], float, (str,)),
    complex: Codec(lambda x: [x.real, x.imag], complex, (float, float)),
    bytes: Codec(
        lambda x: [x.decode('latin-1')], lambda text: text.encode('latin-1'), (str,)
    ),
    tuple: Codec(iter, lambda *parts: parts),
    list: Codec(iter, lambda *parts: [*parts]),
    dict: Codec(
        lambda x: itertools.chain(*x.items()),
        lambda *parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    ),
    set: Codec(_sorted, lambda *parts: {*parts}),
    frozenset: Codec(_sorted, lambda *parts: frozenset(parts)),
    slice: reduced(slice),
    range: reduced(range, int, int, int),
    type(...): Codec(lambda _: (), lambda: ..., ()),
    functools.partial: Codec(
        lambda x: (x.func, x.args, dict(x.keywords)),
        lambda fn, args, options: functools.partial(fn, *args, **options),
        (object, tuple, dict),
    ),
    operator.itemgetter: reduced(operator.itemgetter),
    operator.attrgetter: reduced(operator.attrgetter),
    operator.methodcaller: Codec(
        _parts_of_call,
        lambda args, options: operator.methodcaller(*args, **options),
        (tuple, dict),
    ),
    jax.ShapeDtypeStruct: Codec(
        lambda x: (x.shape, np.dtype(x.dtype)), array_spec, (tuple, np.dtype)
    ),
}
_BY_TAG: dict[str, Codec] = {
    **{type_.__name__: codec for type_, codec in _CLASSES.items()},
    'enum': Codec(lambda x: (type(x), x.name), operator.getitem, (enum.EnumMeta, str)),
    'dtype': Codec(
        lambda x: [x.name if x.name in EXTENDED else x.str],
        lambda name: np.dtype(EXTENDED.get(name, name)),
        (str,),
    ),
    'of jax': Codec(lambda x: [np.asarray(x)], jnp.asarray, (np.ndarray,)),
    'scalar': Codec(
        lambda x: (x.dtype, x.item()),
        lambda dtype, item: dtype.type(item),
        (np.dtype, bool | int | float | complex | str | bytes),
    ),
    'name': Codec(lambda x: name_of(x) or (), named, (str, str)),
}


def tags() -> list[str]:
    """Return the sorted tags of all values that this version can encode."""
    return sorted(_BY_TAG)


def _tag(value: Any) -> str | None:
    """Return the name of the kind of a value, such as 'dtype'; `None` if unknown."""
    type_: Any = portable.class_of(value)
    if type_ in _CLASSES:
        return str(type_.__name__)
    if isinstance(value, enum.Enum) and value.name in type_.__members__:
        return 'enum'  # a combination of flags is no member
    if isinstance(value, np.dtype) and _is_scalar(value):
        return 'dtype'
    if isinstance(value, jax.Array) and can_hold(value.dtype):
        return 'of jax'
    if isinstance(value, np.generic) and _is_scalar(value.dtype):
        return 'scalar'
    return None


def _is_scalar(dtype: np.dtype[Any]) -> bool:
    """Return whether Python's numbers or strings hold scalars of a dtype exactly."""
    return dtype.kind in 'US' or (can_hold(dtype) and dtype.char not in 'gG')


def _is_atom(value: object) -> bool:
    """Return whether JSON restores both a value and its exact type."""
    type_ = type(value)
    if type_ is int:
        return abs(value) < LARGEST  # type: ignore[arg-type]
    if type_ is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    return value is None or type_ in (bool, str)


# ---- writing -------------------------------------------------------------------------


@dataclass(eq=False)
class Encoder:
    """A writer of any values as JSON records and arrays.

    Attributes:
      by_name: whether functions and classes are written by the names that import them,
        or refused; if not, all objects without a codec stand for themselves.
      records: the records so far, each behind those of its parts.
      arrays: the arrays so far, by the texts that records have for them.
      refused: for each value that cannot be written, the path of the block that holds
        it, '' if none does, and a description of the value; no error is raised.
    """

    by_name: bool = True
    records: list[Record] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)
    # The memo of codes, by id. It holds the value too, so that no other object gets the
    # id. A code of `None` marks a value whose parts are being written: if such a value
    # is met again, it contains itself.
    _known: dict[int, tuple[object, Json]] = field(default_factory=dict)

    def encode(self, value: object) -> Json:
        """Write a value: add records for it, and return its code."""
        return run(self._encoded(value, ''))

    def _encoded(self, value: object, where: str) -> Steps[Json]:
        if _is_atom(value):
            return value
        if id(value) in self._known:
            _, code = self._known[id(value)]
            if code is None:
                self.refused.append((where, f'a {type(value).__name__} inside itself'))
            return code
        where = str(value) if isinstance(value, TypedUse) else where
        tag, parts = self._split(value, where)
        if tag is None:
            return value
        self._known[id(value)] = value, None
        codes = yield in_turn(self._encoded(part, where) for part in parts)
        self._known[id(value)] = value, (code := [len(self.records)])
        self.records.append([tag, *codes])
        return code

    def _split(self, value: Any, where: str) -> tuple[str | None, Iterable[Any]]:
        """Return a value's tag and parts; tag `None` if the value stands for itself.

        A value that cannot be written is added to `refused`, with the path `where`.
        """
        if tag := _tag(value):
            return tag, _BY_TAG[tag].parts(value)
        if type(value) is np.ndarray and can_hold(value.dtype):
            name = str(len(self.arrays))
            self.arrays[name] = value
            return 'array', [name]
        if not self.by_name:
            return None, ()
        if parts := name_of(value):
            return 'name', parts
        self.refused.append((where, description(value)))
        return 'tuple', ()


# ---- reading -------------------------------------------------------------------------


def decode(code: Json, records: Iterable[Record], arrays: Mapping[str, Array]) -> Any:
    """Return the value that `Encoder.encode` turned into `code`, records and arrays.

    Raises ImportError if a module lacks a name, or any error if records are wrong.
    """
    values: list[Any] = []  # one for each record

    def value(code: Json) -> Any:
        if type(code) is not list:
            return code
        (number,) = code
        if type(number) is not int or number not in range(len(values)):
            raise ValueError(f'expected the number of a record before, got {number!r}')
        return values[number]

    kinds = {**_BY_TAG, 'array': Codec(iter, arrays.__getitem__, (str,))}
    for tag, *codes in records:
        parts = [value(x) for x in codes]
        if tag not in kinds:
            raise ValueError(f'expected a tag that is known, got {tag!r}')
        classes = kinds[tag].classes
        for part, type_ in () if classes is None else zip(parts, classes, strict=True):
            if not isinstance(part, type_):
                text = f'expected parts of {tag!r} as {type_}, got {type(part)}'
                raise TypeError(text)
        values.append(kinds[tag].make(*parts))
    return value(code)
