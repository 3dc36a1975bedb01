# SPDX-License-Identifier: Apache-2.0
"""Vectors of nested records, from what a dataclass or a JSON schema says of them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import numbers
import operator
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from jfold.base.errors import MASKED, check_at_least, some_masked
from jfold.base.tracebacks import api_boundary
from jfold.blocks.control import Concat, Optional
from jfold.blocks.declarations import ForwardDeclaration
from jfold.blocks.inputs import InputTransform, Scalar, Vector
from jfold.blocks.reductions import Sum
from jfold.blocks.sequences import GetItem, Map
from jfold.combinators import AllOf, Block
from jfold.flax.layers.dense import FC, Categorical, Embed

BUCKETS = 4096  # rows of the table of texts
ROOT = '#'  # the whole of a JSON schema, as it is named within
ROOTS = ROOT, '#/', ''


@api_boundary
def RecordEncoder(
    description: type | Mapping[str, Any], features: int, *, buckets: int = BUCKETS
) -> Block:
    """A vector of a record, whose fields may be records and lists again.

    A number is a vector by an affine map, one of known values and a text by a table, a
    list is the sum of its items, and of a record the vectors of its fields are joined
    and go through `FC`. What is missing is zeros; values that are not known have a row
    of their own. What a field is not described as is an error of the example: a text in
    the place of a number or of a list, 3.7 in that of an int, NaN.

    Args:
      description: a dataclass, whose annotations tell what fields are: `int`, `float`,
        `bool`, `str`, an `Enum`, `Literal[...]`, `X | None`, `list[X]`,
        `tuple[X, ...]`, another dataclass or itself. Or a JSON schema: a mapping with
        'type', 'enum', 'properties', 'items', 'anyOf' or '$ref' to its '$defs'; a
        property that is not there is missing.
      features: of each vector.
      buckets: rows of the table of texts, which share them by a checksum.

    Raises:
      TypeError: the description says something else; the message names the field.

    >>> import dataclasses, jax, jfold as jf
    >>> @dataclasses.dataclass
    ... class Part:
    ...     price: float
    ...     colour: typing.Literal['red', 'green']
    ...     parts: 'list[Part]'
    >>> encoder = RecordEncoder(Part, 4)
    >>> model = jf.compile(encoder)
    >>> params = model.init(jax.random.key(0))
    >>> screw = Part(0.1, 'red', [])
    >>> model.apply(params, model.schedule([screw, Part(2, 'green', [screw])])).shape
    (2, 4)
    """
    sizes = (
        check_at_least('features', features, 1),
        check_at_least('buckets', buckets, 1),
    )
    encoder = _Encoder(*sizes, description)
    return encoder.block(
        {'$ref': ROOT} if _names_itself(description) else description, ''
    )


@dataclasses.dataclass(frozen=True)
class _Encoder:
    """Makes a block of each part of a description, once.

    Attributes:
      made: by what was described; those in the making too.
    """

    features: int
    buckets: int
    root: Any
    made: dict[Any, ForwardDeclaration] = dataclasses.field(default_factory=dict)

    def block(self, kind: object, path: str) -> Block:
        """The block of a part; `path` tells where it is."""
        if isinstance(kind, Mapping):
            return self._of_schema(kind, path)
        return self._of_annotation(kind, path)

    # ---- Python's annotations

    def _of_annotation(self, kind: object, path: str) -> Block:
        origin, given = typing.get_origin(kind), typing.get_args(kind)
        if dataclasses.is_dataclass(kind):
            return self._once(kind, lambda: self._of_dataclass(kind, path))
        if origin is typing.Literal:
            return self._of_values(given, path)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self._of_values(tuple(kind), path)
        if origin in (typing.Union, types.UnionType) and type(None) in given:
            rest = [each for each in given if each is not type(None)]
            if len(rest) == 1:
                return Optional(self.block(rest[0], path))
        if origin is list or (origin is tuple and given[1:] == (...,)):
            return self._of_items(given[0], path)
        return self._of_plain(kind, path)

    def _of_dataclass(self, kind: Any, path: str) -> Block:
        hints = self._hints(kind)
        fields = {
            each.name: _field(kind, each.name)
            >> self.block(hints[each.name], f'{path}.{each.name}')
            for each in dataclasses.fields(kind)
        }
        return self._joined(fields, path)

    def _hints(self, kind: Any) -> dict[str, Any]:
        """Annotations, of which those in quotes may name the class itself."""
        return typing.get_type_hints(kind, localns={kind.__name__: kind})

    # ---- a JSON schema

    def _of_schema(self, kind: Mapping[str, Any], path: str) -> Block:
        if '$ref' in kind:
            target = ROOT if kind['$ref'] in ROOTS else kind['$ref']
            found = self._found(target, path)
            return self._once(target, lambda: self._of_schema(found, path))
        if 'enum' in kind:
            return self._of_values(tuple(kind['enum']), path)
        if 'anyOf' in kind or isinstance(kind.get('type'), list):
            return self._of_choice(kind, path)
        if kind.get('type') == 'object':
            wanted = kind.get('properties', {})
            fields = {
                name: GetItem(name, default=None)
                >> Optional(self.block(each, f'{path}.{name}'))
                for name, each in wanted.items()
            }
            return self._joined(fields, path)
        if kind.get('type') == 'array':
            return self._of_items(kind.get('items', {}), path)
        plain = {'integer': int, 'number': float, 'boolean': bool, 'string': str}
        return self._of_plain(plain.get(kind.get('type', ''), kind), path)

    def _of_choice(self, kind: Mapping[str, Any], path: str) -> Block:
        """Something or null."""
        choices = kind.get('anyOf') or [{**kind, 'type': t} for t in kind['type']]
        rest = [each for each in choices if each.get('type') != 'null']
        if len(rest) != 1:
            raise self._error(kind, path)
        return Optional(self.block(rest[0], path))

    def _found(self, target: str, path: str) -> Any:
        found = self.root
        for name in target.removeprefix('#').strip('/').split('/'):
            if name and (not isinstance(found, Mapping) or name not in found):
                raise self._error({'$ref': target}, path)
            found = found[name] if name else found
        return found

    # ---- what both come to

    def _once(self, key: object, make: Callable[[], Block]) -> Block:
        """A declaration, so that a description may contain itself."""
        if key not in self.made:
            name = getattr(key, '__name__', str(key))
            self.made[key] = ForwardDeclaration(output_type=[self.features], name=name)
            self.made[key].resolve_to(make())
        found: Block = self.made[key]()
        return found

    def _joined(self, fields: Mapping[str, Block], path: str) -> Block:
        if not fields:
            raise TypeError(
                f'RecordEncoder: expected a record of at least one field, got '
                f'none{_at(path)}'
            )
        return (
            AllOf(*fields.values()) >> Concat() >> FC(self.features, name=_name(path))
        )

    def _of_items(self, kind: object, path: str) -> Block:
        items = InputTransform(_as_items) >> Map(self.block(kind, f'{path}[]'))
        return items >> Sum()

    def _of_values(self, values: tuple[Any, ...], path: str) -> Block:
        known = dict.fromkeys(values)  # of a schema, 1 and true are one in Python
        table = Embed(len(known) + 1, self.features, name=_name(path))
        return Categorical(known, unknown=True) >> table

    def _of_plain(self, kind: object, path: str) -> Block:
        if kind is str:
            bucket = InputTransform(functools.partial(_bucket, self.buckets))
            table = Embed(self.buckets, self.features, name=_name(path))
            return bucket >> Scalar('int32') >> table
        if kind not in (int, float, bool):
            raise self._error(kind, path)
        return (
            InputTransform(functools.partial(_as_vector, kind))
            >> Vector(1)
            >> FC(self.features, None, name=_name(path))
        )

    def _error(self, kind: object, path: str) -> TypeError:
        return TypeError(
            'RecordEncoder: expected numbers, texts, known values, lists, records, or '
            f'one of these or nothing, got {kind!r}{_at(path)}'
        )


def _field(kind: object, name: str) -> Block:
    """From a dataclass to a field, which errors then name."""
    if hasattr(kind, '__getitem__'):  # its items may be something else
        return InputTransform(operator.attrgetter(name))
    return GetItem(name)


def _names_itself(part: object) -> bool:
    """Whether a JSON schema, or a part of one, has the whole of it within."""
    if isinstance(part, Mapping):
        return part.get('$ref') in ROOTS or any(map(_names_itself, part.values()))
    return isinstance(part, list | tuple) and any(map(_names_itself, part))


def _at(path: str) -> str:
    return f' at `{path.lstrip(".")}`' if path else ''


def _name(path: str) -> str:
    """What the parameters of a field are called."""
    return path.lstrip('.').replace('[]', '_item').replace('.', '_') or 'record'


# ---- values of fields: what they are not described as would be an accident -----------


def _as_items(given: object) -> object:
    if isinstance(given, str | bytes):
        raise TypeError('it is a text; write a list of it')
    return given


def _as_vector(kind: type, given: Any) -> list[float]:
    if some_masked([given]):
        raise TypeError(MASKED)
    number = given.item() if getattr(given, 'shape', None) == () else given
    # Dates and durations of NumPy are ints as `item`, or are called so by their class.
    is_time = getattr(getattr(given, 'dtype', None), 'kind', '') in ('m', 'M')
    if is_time or not isinstance(number, numbers.Real | Decimal):
        raise TypeError('it is no number')
    if not math.isfinite(number):
        raise ValueError('it is not finite; what is missing is None, in `X | None`')
    if kind is int and number != math.floor(number):
        raise ValueError('it is described as an int')
    if kind is bool and number not in (0, 1):
        raise ValueError('it is described as a bool')
    return [float(number)]


def _bucket(count: int, text: object) -> int:
    """The same in every process, other than `hash`."""
    if not isinstance(text, str):
        raise TypeError('it is no text')
    return zlib.crc32(text.encode()) % count
