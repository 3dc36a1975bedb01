# SPDX-License-Identifier: Apache-2.0
"""`RecordEncoder`: dataclasses and JSON, what is missing, and what does not fit."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import typing
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import jax
import numpy as np
import pytest
from layer_checks import checked

import jfold as jf
from jfold.flax.layers.records import RecordEncoder


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


@dataclasses.dataclass
class Size:
    width: float
    exact: bool


@dataclasses.dataclass
class Part:
    name: str
    colour: Colour
    kind: Literal['bolt', 'nut']
    size: Size
    price: float | None
    parts: list[Part]
    twin: Part | None


def part(name: str, parts: list[Part], **others: Any) -> Part:
    given = {'price': None, 'twin': None, 'colour': Colour.RED} | others
    size = Size(len(name), exact=True)
    return Part(name=name, kind='nut', size=size, parts=parts, **given)


@pytest.mark.slow
def test_dataclasses_within_each_other() -> None:
    small = part('screw', [], price=2.0)
    examples = [small, part('box', [small, small], twin=small, colour=Colour.GREEN)]
    _, params = checked(RecordEncoder(Part, 4), examples)
    assert {'record', 'name', 'colour', 'kind', 'size', 'size_width', 'price'} <= {
        *params
    }


def test_members_of_an_enum_by_their_values() -> None:
    """As JSON has them; a value of none shares a row with all unknown ones."""

    @dataclasses.dataclass
    class Paint:
        colour: Colour

    colours = [Colour.RED, 1, Colour.GREEN, 2, 3, 'red']
    examples = [{'colour': colour} for colour in colours]
    model, params = checked(RecordEncoder(Paint, 4), examples)
    rows = model.predict(params, examples).tolist()
    assert rows[::2] == rows[1::2]
    assert len({str(row) for row in rows}) == len(params['colour']['embedding']) == 3


SCHEMA = {
    'type': 'object',
    'properties': {
        'name': {'type': 'string'},
        'kind': {'enum': ['bolt', 'nut']},
        'weight': {'type': ['number', 'null']},
        'count': {'type': 'integer'},
        'parts': {'type': 'array', 'items': {'$ref': '#'}},
        'size': {'$ref': '#/$defs/size'},
        'maker': {'anyOf': [{'type': 'string'}, {'type': 'null'}]},
    },
    '$defs': {'size': {'type': 'object', 'properties': {'width': {'type': 'number'}}}},
}


@pytest.mark.slow
def test_json_by_its_schema() -> None:
    """What is not there counts as missing, whether it must be there or not."""
    small = {'name': 'screw', 'kind': 'bolt', 'parts': [], 'count': 3}
    large = {'parts': [small, {}], 'size': {'width': 2.5}, 'weight': None, 'maker': 'x'}
    model, params = checked(RecordEncoder(SCHEMA, 4), [small, large, {}])
    assert not any(name.startswith('parts') for name in params)  # they are records
    unknown = model.schedule([{'kind': 'rivet'}])
    assert model.apply(params, unknown).shape == (1, 4)


@dataclasses.dataclass
class Kit:
    price: float
    kits: list[Kit]


def test_an_error_names_the_field_of_a_dataclass() -> None:
    model = jf.compile(RecordEncoder(Kit, 2))
    with pytest.raises(jf.InputError, match=re.escape('at .kits[0].price: expected')):
        model.schedule([Kit(1.0, [Kit('much', [])])])


@pytest.mark.parametrize('root', ['#', '#/', ''])
def test_a_schema_within_itself_has_its_weights_once(root: str) -> None:
    parts = {'n': {'type': 'integer'}, 'next': {'$ref': root}}
    encoder = RecordEncoder({'type': 'object', 'properties': parts}, 2)
    assert [x.name for x in jf.compile(encoder).program.layers if x.params] == [
        'n',
        'record',
    ]


@dataclasses.dataclass
class Odd:
    inner: list[bytes]


@pytest.mark.parametrize(
    ('description', 'message'),
    [
        (Odd, r"got <class 'bytes'> at `inner\[\]`"),
        (dict, "got <class 'dict'>"),
        ({'type': 'object'}, 'a record of at least one field, got none'),
        (
            {'type': 'object', 'properties': {'a': {'type': 'tuple'}}},
            "got {'type': 'tuple'} at `a`",
        ),
        ({'$ref': '#/$defs/a'}, "got {'.ref': '#/.defs/a'}"),
        ({'anyOf': [{'type': 'string'}, {'type': 'number'}]}, "got {'anyOf'"),
        ({'enum': ['a', ['b']]}, "got {'enum'"),
    ],
)
def test_descriptions_of_something_else(description: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f'RecordEncoder: expected .*{message}'):
        RecordEncoder(description, 4)


@pytest.mark.parametrize('kind', [typing.List, typing.Tuple, list, tuple[int, str]])  # noqa: UP006
def test_lists_of_what_is_not_told(kind: Any) -> None:
    described = dataclasses.make_dataclass('Described', [('items', kind)])
    message = r'at `items` of Described: write `list\[X\]`'
    with pytest.raises(TypeError, match=f'RecordEncoder: expected .* {message}'):
        RecordEncoder(described, 4)


def test_annotations_that_name_what_only_a_function_has() -> None:
    @dataclasses.dataclass
    class Inner:
        x: int

    @dataclasses.dataclass
    class Outer:
        number: int
        inners: list[Inner]

    message = (
        'RecordEncoder: expected an annotation of `Outer.inners` with names at the top '
        f"of the module {__name__!r}, got 'Inner', which is not there: define or "
        'import it there'
    )
    with pytest.raises(TypeError, match=f'^{re.escape(message)}$'):
        RecordEncoder(Outer, 4)


@pytest.mark.parametrize(
    ('name', 'pointer'),
    [('a/b', 'a~1b'), ('a b', 'a%20b'), ('a~1', 'a~01'), ('a/b', 'a%7E1b')],
)
def test_pointers_with_escapes(name: str, pointer: str) -> None:
    schema = {'$ref': f'#/$defs/{pointer}', '$defs': {name: {'type': 'integer'}}}
    assert jf.compile(RecordEncoder(schema, 4)).program.output == jf.TensorType([4])


# ---- values --------------------------------------------------------------------------


@dataclasses.dataclass
class Values:
    count: int = 1
    price: float = 1.0
    sold: bool = True
    name: str = 'a'
    tags: list[str] = dataclasses.field(default_factory=list)
    sizes: tuple[int, ...] = ()
    inner: list[Values] = dataclasses.field(default_factory=list)


def schema(kind: str, **more: Any) -> dict[str, Any]:
    """That of a record with one field of a kind."""
    return {'type': 'object', 'properties': {'x': {'type': kind, **more}}}


VALUES = jf.compile(RecordEncoder(Values, 2))


@pytest.mark.parametrize(
    ('field', 'wrong', 'why'),
    [
        ('count', 3.7, '3.7: ValueError: it is described as an int'),
        ('count', Fraction(1, 2), 'ValueError: it is described as an int'),
        ('count', '3', "'3': TypeError: it is no number"),
        ('count', None, 'None: TypeError: it is no number'),
        ('count', [1], 'TypeError: it is no number'),
        ('count', np.ones(1), 'TypeError: it is no number'),
        ('count', np.datetime64(0, 'ns'), 'TypeError: it is no number'),
        ('price', np.timedelta64(3, 'ns'), 'TypeError: it is no number'),
        ('price', '12.5', "'12.5': TypeError: it is no number"),
        ('price', 1j, 'TypeError: it is no number'),
        (
            'price',
            math.nan,
            'nan: ValueError: it is not finite; what is missing is None, in `X | None`',
        ),
        ('price', np.float32('inf'), 'ValueError: it is not finite'),
        ('sold', 2, '2: ValueError: it is described as a bool'),
        ('sold', 'no', "'no': TypeError: it is no number"),
        ('name', 3, '3: TypeError: it is no text'),
        ('name', b'a', 'TypeError: it is no text'),
        ('tags', 'xyz', "'xyz': TypeError: it is a text; write a list of it"),
        ('tags', b'xyz', 'TypeError: it is a text; write a list of it'),
    ],
)
def test_values_of_another_kind(field: str, wrong: Any, why: str) -> None:
    """Each is an error that names the field."""
    inside = Values(inner=[Values(), Values(**{field: wrong})])
    text = rf'example 1, at \.inner\[1\]\.{field}: expected what .*{re.escape(why)}'
    with pytest.raises(jf.InputError, match=text):
        VALUES.schedule([Values(), inside])


def test_items_of_another_kind() -> None:
    """Their places are named too."""
    with pytest.raises(jf.InputError, match=r'at \.tags\[1\]: .* it is no text'):
        VALUES.schedule([Values(tags=['a', 3])])  # type: ignore[list-item]
    with pytest.raises(jf.InputError, match=r'at \.sizes\[0\]: .* described as an int'):
        VALUES.schedule([Values(sizes=(1.5,))])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ('described', 'wrong'),
    [
        (schema('integer'), 3.7),
        (schema('number'), '12.5'),
        (schema('number'), math.nan),
        (schema('boolean'), 3),
        (schema('string'), 3),
        (schema('array', items={'type': 'string'}), 'xyz'),
    ],
)
def test_json_of_another_kind(described: Any, wrong: Any) -> None:
    model = jf.compile(RecordEncoder(described, 2))
    with pytest.raises(jf.InputError, match=r"example 0, at \['x'\]: expected what "):
        model.schedule([{'x': wrong}])


@pytest.mark.parametrize(
    'given',
    [
        {'count': 3.0, 'price': 3, 'sold': 1},
        {'count': np.int8(3), 'price': np.float32(3), 'sold': np.True_},
        {'count': 1_700_000_001, 'price': 1e30, 'sold': False},
        {'count': Decimal(3), 'price': Fraction(1, 2), 'tags': ('a', 'b')},
        {'price': jax.numpy.ones(()), 'sizes': np.arange(3), 'name': np.str_('b')},
    ],
)
def test_values_that_fit(given: dict[str, Any]) -> None:
    """As a number of the kind that it is described as, whatever holds it."""
    plain = {
        name: value if np.shape(value) or isinstance(value, str) else float(value)
        for name, value in given.items()
    }
    made, same = (VALUES.schedule([Values(**x)]) for x in (given, plain))
    for found, expected in zip(made.constants, same.constants, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_sizes_of_an_encoder() -> None:
    with pytest.raises(ValueError, match='expected `buckets` of at least 1, got 0'):
        RecordEncoder(Values, 2, buckets=0)
    with pytest.raises(TypeError, match="expected `features` as int, got '2'"):
        RecordEncoder(Values, '2')  # type: ignore[arg-type]
