# SPDX-License-Identifier: Apache-2.0
"""Encoders of nested records, made from a dataclass or a JSON schema."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
import numbers
import operator
import re
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from jfold.base.arguments import check_at_least
from jfold.base.errors import MASKED, has_masked
from jfold.base.tracebacks import api_boundary
from jfold.base.trampoline import tall_stack
from jfold.blocks.control import Concat, ForwardDeclaration, Optional
from jfold.blocks.inputs import InputTransform, Scalar, Vector
from jfold.blocks.reductions import Sum
from jfold.blocks.sequences import GetItem, Map
from jfold.combinators import AllOf, Block
from jfold.flax.layers.dense import FC, Embed

BUCKETS = 4096  # rows of the table of texts
ROOT = '#'  # the name of a JSON schema within itself
ROOTS = ROOT, '#/', ''  # its spellings


@api_boundary
def RecordEncoder(
    description: type | Mapping[str, Any], features: int, *, buckets: int = BUCKETS
) -> Block:
    """An encoder from records, nested or with lists, to vectors [features].

    A number becomes a vector by an affine map; a text, or a value from a known set, by
    a table. The vector of a list is the sum of the vectors of its items; the vectors of
    the fields of a record are concatenated and go through `FC`. Missing values become
    zeros; unknown values share a row of the table. A value that does not fit the
    description of its field is an error of the example: a text for a number or for a
    list, 3.7 for an int, NaN.

    Args:
      description: a dataclass whose annotations are `int`, `float`, `bool`, `str`, an
        `Enum` (data hold its members or their values), `Literal[...]`, `X | None`,
        `list[X]`, `tuple[X, ...]`, another dataclass or itself. Or a JSON schema: a
        mapping with 'type', 'enum', 'properties', 'items', 'anyOf' or '$ref' to its
        '$defs'; absent properties are missing values.
      features: the length of vectors.
      buckets: the number of rows of the table of texts, picked by a checksum.

    Raises:
      TypeError: the description holds something else; the message names the field.

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
    features = check_at_least('features', features, 1)
    buckets = check_at_least('buckets', buckets, 1)
    with tall_stack():
        root = {'$ref': ROOT} if _names_itself(description) else description
        return _Encoder(features, buckets, description, {}).block(root, '')


@dataclasses.dataclass(frozen=True)
class _Encoder:
    """A builder of blocks for `root`, a dataclass or a schema, part by part.

    `declarations` has one for each class or target of a '$ref', from before its block
    is made, so that a class or target may contain itself.
    """

    features: int
    buckets: int
    root: Any
    declarations: dict[Any, ForwardDeclaration]

    def block(self, description: object, path: str) -> Block:
        """Return the block for `description`, a part of `root`; errors name `path`."""
        if isinstance(description, Mapping):
            return self._of_schema(description, path)
        return self._of_annotation(description, path)

    # ---- Python's annotations

    def _of_annotation(self, type_: object, path: str) -> Block:
        origin, arguments = typing.get_origin(type_), typing.get_args(type_)
        if dataclasses.is_dataclass(type_) and isinstance(type_, type):
            return self._declared(type_, lambda: self._of_dataclass(type_, path))
        if origin is typing.Literal:
            return self._of_index(_numbered(arguments), path)
        if isinstance(type_, type) and issubclass(type_, enum.Enum):
            index: dict[Any, int] = {x: k for k, x in enumerate(type_)}
            # JSON has the values of members, which are texts or numbers.
            plain = [x for x in type_ if isinstance(x.value, str | int | float)]
            return self._of_index({x.value: index[x] for x in plain} | index, path)
        if origin in (typing.Union, types.UnionType) and type(None) in arguments:
            choices = [x for x in arguments if x is not type(None)]
            if len(choices) == 1:
                return Optional(self.block(choices[0], path))
        if list in (type_, origin) or tuple in (type_, origin):
            if arguments[1:] == (...,) or (origin is list and arguments):
                return self._of_items(arguments[0], path)
            raise self._error(type_, path, ': write `list[X]` for items that are X')
        return self._of_plain(type_, path)

    def _of_dataclass(self, cls: Any, path: str) -> Block:
        # Annotations in quotes may name the class itself.
        try:
            hints = typing.get_type_hints(cls, localns={cls.__name__: cls})
        except NameError as error:
            raise _unknown_name(cls, str(error.name)) from error
        fields = {}
        for name in (field.name for field in dataclasses.fields(cls)):
            read: Block = GetItem(name)
            if hasattr(cls, '__getitem__'):  # `x[name]` may be something else
                read = InputTransform(operator.attrgetter(name))
            fields[name] = read >> self.block(hints[name], f'{path}.{name}')
        return self._joined(fields, path)

    # ---- a JSON schema

    def _of_schema(self, schema: Mapping[str, Any], path: str) -> Block:
        if '$ref' in schema:
            target = ROOT if schema['$ref'] in ROOTS else schema['$ref']
            definition = self._definition(target, path)
            return self._declared(target, lambda: self._of_schema(definition, path))
        if 'enum' in schema:
            if any(isinstance(x, list | Mapping) for x in schema['enum']):
                raise self._error(schema, path)
            return self._of_index(_numbered(schema['enum']), path)
        if 'anyOf' in schema or isinstance(schema.get('type'), list):
            parts = schema.get('anyOf') or [
                {**schema, 'type': name} for name in schema['type']
            ]
            choices = [part for part in parts if part.get('type') != 'null']
            if len(choices) != 1:
                raise self._error(schema, path)
            return Optional(self.block(choices[0], path))
        if schema.get('type') == 'object':
            fields = {
                name: GetItem(name, default=None)
                >> Optional(self.block(part, f'{path}.{name}'))
                for name, part in schema.get('properties', {}).items()
            }
            return self._joined(fields, path)
        if schema.get('type') == 'array':
            return self._of_items(schema.get('items', {}), path)
        plain = {'integer': int, 'number': float, 'boolean': bool, 'string': str}
        return self._of_plain(plain.get(schema.get('type', ''), schema), path)

    def _definition(self, target: str, path: str) -> Any:
        part = self.root
        for written in target.removeprefix('#').strip('/').split('/'):
            name = unquote(written).replace('~1', '/').replace('~0', '~')
            if name and (not isinstance(part, Mapping) or name not in part):
                raise self._error({'$ref': target}, path)
            part = part[name] if name else part
        return part

    # ---- both

    def _declared(self, key: object, make: Callable[[], Block]) -> Block:
        if key not in self.declarations:
            name = getattr(key, '__name__', str(key))
            declaration = ForwardDeclaration(output_type=[self.features], name=name)
            self.declarations[key] = declaration
            declaration.resolve_to(make())
        reference: Block = self.declarations[key]()
        return reference

    def _joined(self, fields: Mapping[str, Block], path: str) -> Block:
        if not fields:
            raise TypeError(
                f'RecordEncoder: expected a record of at least one field, got '
                f'none{_at(path)}'
            )
        return (
            AllOf(*fields.values()) >> Concat() >> FC(self.features, name=_name(path))
        )

    def _of_items(self, description: object, path: str) -> Block:
        items = InputTransform(_as_items) >> Map(self.block(description, f'{path}[]'))
        return items >> Sum()

    def _of_index(self, index: Mapping[Any, int], path: str) -> Block:
        unknown = len({*index.values()})
        table = Embed(unknown + 1, self.features, name=_name(path))
        return InputTransform(index, default=unknown) >> Scalar('int32') >> table

    def _of_plain(self, type_: object, path: str) -> Block:
        if type_ is str:
            bucket = InputTransform(functools.partial(_bucket, self.buckets))
            table = Embed(self.buckets, self.features, name=_name(path))
            return bucket >> Scalar('int32') >> table
        if type_ not in (int, float, bool):
            raise self._error(type_, path)
        return (
            InputTransform(functools.partial(_as_vector, type_))
            >> Vector(1)
            >> FC(self.features, None, name=_name(path))
        )

    def _error(self, description: object, path: str, hint: str = '') -> TypeError:
        of = f' of {self.root.__name__}' if path and isinstance(self.root, type) else ''
        return TypeError(
            'RecordEncoder: expected numbers, texts, known values, lists, records, or '
            f'one of these or nothing, got {description!r}{_at(path)}{of}{hint}'
        )


def _numbered(values: Iterable[Any]) -> dict[Any, int]:
    """Return a dict from values to 0, 1, ...; 1 and `True` are one value."""
    return {value: k for k, value in enumerate(dict.fromkeys(values))}


def _unknown_name(cls: type, name: str) -> TypeError:
    """Return an error about an annotation of dataclass `cls` with a missing `name`."""
    found = re.compile(rf'\b{re.escape(name)}\b')
    field = next(
        (x for x in dataclasses.fields(cls) if found.search(str(x.type))), None
    )
    where = f'{cls.__name__}.{field.name}' if field else cls.__name__
    bases = (
        x for x in cls.__mro__ if field and field.name in inspect.get_annotations(x)
    )
    module = next(bases, cls).__module__
    return TypeError(
        f'RecordEncoder: expected an annotation of `{where}` with names at the top of '
        f'the module {module!r}, got {name!r}, which is not there: define or '
        'import it there'
    )


def _names_itself(part: object) -> bool:
    """Return whether part of a JSON schema has a '$ref' to the whole schema."""
    if isinstance(part, Mapping):
        return part.get('$ref') in ROOTS or any(map(_names_itself, part.values()))
    return isinstance(part, list | tuple) and any(map(_names_itself, part))


def _at(path: str) -> str:
    return f' at `{path.lstrip(".")}`' if path else ''


def _name(path: str) -> str:
    """Return the name of the parameters of field `path`: '.a[].b' -> 'a_item_b'."""
    return path.lstrip('.').replace('[]', '_item').replace('.', '_') or 'record'


# ---- values of fields, checked -------------------------------------------------------


def _as_items(value: object) -> object:
    if isinstance(value, str | bytes):
        raise TypeError('it is a text; write a list of it')
    return value


def _as_vector(type_: type, value: Any) -> list[float]:
    if has_masked([value]):
        raise TypeError(MASKED)
    number = value.item() if getattr(value, 'shape', None) == () else value
    # `item` of NumPy's dates and durations may be an int.
    is_time = getattr(getattr(value, 'dtype', None), 'kind', '') in ('m', 'M')
    if is_time or not isinstance(number, numbers.Real | Decimal):
        raise TypeError('it is no number')
    if not math.isfinite(number):
        raise ValueError('it is not finite; what is missing is None, in `X | None`')
    if type_ is int and number != math.floor(number):
        raise ValueError('it is described as an int')
    if type_ is bool and number not in (0, 1):
        raise ValueError('it is described as a bool')
    return [float(number)]


def _bucket(count: int, text: object) -> int:
    """Return the row of a text in a table of `count` rows, by its checksum.

    It is equal in all processes, which `hash` is not.
    """
    if not isinstance(text, str):
        raise TypeError('it is no text')
    return zlib.crc32(text.encode()) % count
