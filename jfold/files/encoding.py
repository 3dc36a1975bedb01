# SPDX-License-Identifier: Apache-2.0
"""The encoding of expressions as JSON and arrays, written and read without pickle.

A value is written as a *code*. That is an atom, which stands for itself (`None`, a
bool, a string, a number), or the number of a record in a list, `[7]`. A record is a
tag, the kind of the value, with the codes of the *parts* that the value is made of. The
records of the parts come before it:

    ["tuple", 1, 2]   ["dict", "a", [3]]   ["name", "operator", "itemgetter"]
    ["TensorType", [2], [3]]   ["GetItem", "x", [4]]   ["Pipe"]

Tags are a closed set: some kinds of plain values; modules, functions and classes that
can be imported, by name; and jfold's own classes, field by field. An object that occurs
in two places has one record. Reading calls nothing but the constructors listed here.
"""

from __future__ import annotations

import enum
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold import types as t
from jfold.base.containers import plain_containers
from jfold.base.structs import StructForm
from jfold.base.trampoline import Steps, in_turn, run
from jfold.files.naming import name_of, named, told
from jfold.files.storage import EXTENDED, can_hold
from jfold.language.portable import CODECS, Codec, codec_of
from jfold.language.typed import TypedUse
from jfold.program.operations import Layer

Array = np.ndarray[Any, Any]
Json: TypeAlias = Any  # a code: an atom, or `[n]`
Record: TypeAlias = list[Json]  # a tag, then codes
Parts: TypeAlias = Iterable[Any]  # the values that a value is made of

LARGEST = 1 << 63  # larger ints are written as hex text, since JSON's have a limit
PLAIN = 'None, numbers, strings, bytes, arrays, tuples, lists, dicts, sets, slices'


# ---- the classes of expressions ------------------------------------------------------

_TYPES: dict[type, Codec] = {
    t.TensorType: Codec(lambda x: (x.shape, x.dtype), t.TensorType),
    t.SequenceType: Codec(lambda x: (x.item,), t.SequenceType),
    t.BroadcastType: Codec(lambda x: (x.item,), t.BroadcastType),
    t.ObjectType: Codec(lambda x: (), t.ObjectType),
    t.VoidType: Codec(lambda x: (), t.VoidType),
    t.KeyType: Codec(lambda x: (x.name,), t.KeyType),
    t.TupleType: Codec(lambda x: (x.items,), lambda items: t.TupleType(*items)),
    t.StructType: Codec(lambda x: (x.form, x.items), t.StructType),
    StructForm: Codec(lambda x: (x.name, x.keys), StructForm.of_keys),
}
_BY_NAME = {type_.__name__: codec for type_, codec in {**CODECS, **_TYPES}.items()}


def tags() -> list[str]:
    """Return the sorted tags of jfold's own classes; they depend on its version."""
    return sorted(_BY_NAME)


# ---- writing -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _AsIs:
    """A wrapper of an object that is kept in its record, for pickle."""

    value: object


@dataclass(eq=False)
class Encoder:
    """A writer of values as records and arrays.

    Attributes:
      by_name: whether functions and classes are written by the names that import them,
        and refused without such a name; if not, objects stay in records, for pickle.
      records: the records so far, each behind those of its parts.
      refused: per value that cannot be written, the path of its block and a
        description.
    """

    by_name: bool = True
    records: list[Record] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    _pools: dict[str, list[Array]] = field(default_factory=dict)
    _ends: Counter[str] = field(default_factory=Counter)  # elements in each pool
    # The memo of codes, by id. It holds the value too, so that no other object gets the
    # id. A code of `None` marks a value whose parts are being written: if such a value
    # is met again, it contains itself.
    _known: dict[int, tuple[object, Json]] = field(default_factory=dict)

    def encode(self, value: object, where: str = '') -> Json:
        """Add the records of a value; return its code, an atom or `[n]`.

        A value that cannot be written is added to `refused`; no error is raised.

        Args:
          where: the path of the block to name in `refused`. Within a `TypedUse`, its
            own path is named instead.
        """
        return run(self._encoded(value, where))

    @property
    def arrays(self) -> dict[str, Array]:
        """The elements [n] of all arrays, one array for each dtype, by dtype name."""
        return {name: np.concatenate(x) for name, x in self._pools.items()}

    def _encoded(self, value: object, where: str) -> Steps[Json]:
        if _is_atom(value) or isinstance(value, _AsIs):
            return value
        if id(value) in self._known:
            _, code = self._known[id(value)]
            if code is None:
                self.refused.append((where, f'a {type(value).__name__} inside itself'))
            return code
        self._known[id(value)] = value, None
        where = str(value) if isinstance(value, TypedUse) else where
        tag, parts = self._split(value, where)
        codes = yield in_turn(self._encoded(part, where) for part in parts)
        self._known[id(value)] = value, (code := [len(self.records)])
        self.records.append([tag, *codes])
        return code

    def _split(self, value: Any, where: str) -> tuple[str, Parts]:
        """Return the tag of a value, and its parts; `refused` gets an unknown value."""
        type_ = type(value)
        if type_ in _TYPES:
            return type_.__name__, _TYPES[type_].parts(value)
        if pair := codec_of(value):
            tag, codec = pair
            parts = codec.parts(value)
            return tag, map(plain_containers, parts) if type_ is Layer else parts
        if type_ is np.ndarray and can_hold(value.dtype):
            return 'array', self._append(value)
        if type_ in _WRITERS:
            return _WRITERS[type_](value)
        if isinstance(value, enum.Enum) and value.name in type_.__members__:
            return 'enum', (type_, value.name)  # a combination of flags is no member
        if isinstance(value, np.dtype) and _is_scalar(value):
            return 'dtype', [_dtype_name(value)]
        if isinstance(value, jax.Array) and can_hold(value.dtype):
            return 'of jax', [np.asarray(value)]
        if isinstance(value, np.generic) and _is_scalar(value.dtype):
            return 'scalar', (value.dtype, value.item())
        if not self.by_name:
            return 'itself', [_AsIs(value)]
        if name := name_of(value):
            return 'name', name
        self.refused.append((where, told(value)))
        return 'tuple', ()

    def _append(self, array: Array) -> Parts:
        """Append an array to the pool of its dtype; return dtype, start, and shape."""
        name = _dtype_name(array.dtype)
        self._pools.setdefault(name, []).append(array.reshape(-1))
        start = self._ends[name]
        self._ends[name] += array.size
        return name, start, *array.shape


def _is_atom(value: object) -> bool:
    """Return whether JSON restores a value exactly, and its type, not a base class."""
    type_ = type(value)
    if type_ is int:
        return abs(value) < LARGEST  # type: ignore[arg-type]
    if type_ is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    return value is None or type_ in (bool, str)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.name in EXTENDED else dtype.str


def _is_scalar(dtype: np.dtype[Any]) -> bool:
    """Return whether Python's numbers or strings hold scalars of a dtype exactly."""
    return dtype.kind in 'US' or (can_hold(dtype) and dtype.char not in 'gG')


def _methodcaller(value: Any) -> tuple[str, Parts]:
    fn, args = value.__reduce__()
    if isinstance(fn, functools.partial):  # only with keyword arguments
        return 'methodcaller', ((*fn.args, *args), dict(fn.keywords))
    return 'methodcaller', (args, {})


_WRITERS: dict[type, Callable[[Any], tuple[str, Parts]]] = {
    int: lambda x: ('int', [hex(x)]),
    float: lambda x: ('float', [repr(x)]),
    complex: lambda x: ('complex', [x.real, x.imag]),
    bytes: lambda x: ('bytes', [x.decode('latin-1')]),
    tuple: lambda x: ('tuple', x),
    list: lambda x: ('list', x),
    dict: lambda x: ('dict', [y for pair in x.items() for y in pair]),
    set: lambda x: ('set', sorted(x, key=repr)),
    frozenset: lambda x: ('frozenset', sorted(x, key=repr)),
    slice: lambda x: ('slice', [x.start, x.stop, x.step]),
    range: lambda x: ('range', [x.start, x.stop, x.step]),
    type(...): lambda _: ('ellipsis', []),
    functools.partial: lambda x: ('partial', [x.func, x.args, dict(x.keywords)]),
    operator.itemgetter: lambda x: ('itemgetter', x.__reduce__()[1]),
    operator.attrgetter: lambda x: ('attrgetter', x.__reduce__()[1]),
    operator.methodcaller: _methodcaller,
    jax.ShapeDtypeStruct: lambda x: ('struct', [x.shape, np.dtype(x.dtype)]),
}


# ---- reading -------------------------------------------------------------------------


@dataclass(eq=False)
class Decoder:
    """A reader of the records that an `Encoder` wrote.

    Attributes:
      arrays: by dtype name, the elements [n] of all arrays, as of `Encoder.arrays`.
    """

    arrays: Mapping[str, Array]
    _values: list[Any] = field(default_factory=list)  # one for each record

    def read(self, records: Iterable[Record]) -> None:
        """Construct the value of each record, in order; `value` then returns them.

        Raises:
          ValueError, TypeError, ...: no encoder writes such records.
          ImportError: a module is missing, or a name in it.
        """
        for tag, *codes in records:
            parts = list(map(self.value, codes))
            self._values.append(self._make(tag, parts))

    def value(self, code: Json) -> Any:
        """Return an atom itself; for a code `[n]` the value of record n.

        Raises:
          ValueError: no record of this number has been read.
        """
        if not isinstance(code, list):
            return code
        (number,) = code
        if type(number) is not int or number not in range(len(self._values)):
            raise ValueError(f'expected the number of a record before, got {number!r}')
        return self._values[number]

    def _make(self, tag: str, parts: list[Any]) -> object:
        if tag == 'array':
            return self._array(*parts)
        if tag in _BY_NAME:
            return _BY_NAME[tag].make(*parts)
        if tag in _READERS:
            _check_parts(tag, parts)
            return _READERS[tag](*parts)
        raise ValueError(f'expected a tag that is known, got {tag!r}')

    def _array(self, name: str, start: int, *shape: int) -> Array:
        stop = start + math.prod(shape)
        return self.arrays[name][start:stop].reshape(shape)


def _check_parts(tag: str, parts: list[Any]) -> None:
    """Raise TypeError if parts have other classes than `_CLASSES_OF_PARTS` says.

    So a file cannot make constructors call methods of other classes. Another number of
    parts raises ValueError.
    """
    classes = _CLASSES_OF_PARTS.get(tag)
    if classes is None:
        return
    for part, type_ in zip(parts, classes, strict=True):
        if not isinstance(part, type_):
            raise TypeError(f'expected parts of {tag!r} as {type_}, got {type(part)}')


def _dtype(name: str) -> np.dtype[Any]:
    return EXTENDED[name] if name in EXTENDED else np.dtype(name)


def _pairs(*parts: object) -> Iterator[tuple[Any, Any]]:
    yield from zip(parts[::2], parts[1::2], strict=True)


def _struct(shape: Sequence[int], dtype: np.dtype[Any]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


_READERS: dict[str, Callable[..., Any]] = {
    'int': lambda text: int(text, 16),
    'float': float,
    'complex': complex,
    'bytes': lambda text: text.encode('latin-1'),
    'tuple': lambda *parts: parts,
    'list': lambda *parts: [*parts],
    'dict': lambda *parts: dict(_pairs(*parts)),
    'set': lambda *parts: {*parts},
    'frozenset': lambda *parts: frozenset(parts),
    'slice': slice,
    'range': range,
    'ellipsis': lambda: ...,
    'partial': lambda fn, args, options: functools.partial(fn, *args, **options),
    'itemgetter': operator.itemgetter,
    'attrgetter': operator.attrgetter,
    'methodcaller': lambda args, options: operator.methodcaller(*args, **options),
    'struct': _struct,
    'dtype': _dtype,
    'scalar': lambda dtype, item: dtype.type(item),
    'enum': operator.getitem,
    'name': named,
    'of jax': jnp.asarray,
    'itself': lambda x: x.value,
}
# Tags that are not here take parts of any class.
_CLASSES_OF_PARTS: dict[str, tuple[Any, ...]] = {
    'int': (str,),
    'float': (str,),
    'complex': (float, float),
    'bytes': (str,),
    'range': (int, int, int),
    'ellipsis': (),
    'partial': (object, tuple, dict),
    'methodcaller': (tuple, dict),
    'struct': (tuple, np.dtype),
    'dtype': (str,),
    'scalar': (np.dtype, bool | int | float | complex | str | bytes),
    'enum': (enum.EnumMeta, str),
    'name': (str, str),
    'of jax': (np.ndarray,),
    'itself': (_AsIs,),
}
