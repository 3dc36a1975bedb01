# SPDX-License-Identifier: Apache-2.0
"""Where every byte of an archive lies, given the arrays that it holds.

The layout is that of `jfold.data.storage`: zip64 records and `.npy` headers, all of
which follow from names, dtypes and shapes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Described: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

ALIGNMENT = 64
DOCUMENT = 'metadata.json'

EXTENDED = {
    np.dtype(each).name: np.dtype(each)
    for each in vars(ml_dtypes).values()
    if isinstance(each, type) and issubclass(each, np.generic)
}


# ---- where everything lies -----------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A member of the archive, at its place.

    Attributes:
      name: in the archive.
      offset: where its local header begins.
      head: what its content begins with: the header of an `.npy`.
      length: the number of bytes behind the head.
    """

    name: str
    offset: int
    head: bytes
    length: int

    @property
    def label(self) -> str:
        """What messages call it."""
        name = self.name.removesuffix('.npy')
        return self.name if name == self.name else f'array {name!r}'

    @property
    def start(self) -> int:
        """Where its content begins."""
        bare = LOCAL.size + len(self.name.encode()) + SIZES.size + _ALIGN.size
        return _aligned(self.offset + bare)

    @property
    def data(self) -> int:
        """Where its data begin."""
        return self.start + len(self.head)

    @property
    def end(self) -> int:
        """Where the next member begins."""
        return self.data + self.length


def _aligned(offset: int) -> int:
    return offset + -offset % ALIGNMENT


def layout(length: int, described: Described) -> list[Member]:
    """The members; `length` is that of the document."""
    members = [Member(DOCUMENT, 0, b'', length)]
    for name, (dtype, shape) in described.items():
        head = _npy_header(dtype, shape)
        size = math.prod(shape) * dtype.itemsize
        members.append(Member(f'{name}.npy', members[-1].end, head, size))
    return members


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """As of NumPy's version 1.0, with the padding fixed."""
    kind = f'|V{dtype.itemsize}' if dtype.name in EXTENDED else dtype.str
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    before = 10  # bytes: magic, version, length
    length = _aligned(before + len(text) + 1) - before
    line = text.ljust(length - 1) + '\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', length) + line.encode('ascii')


# ---- the records of a zip archive ----------------------------------------------------

LOCAL = struct.Struct('<4s5H3I2H')
SIZES = struct.Struct('<2H2Q')  # the zip64 field of a local header
_ALIGN = struct.Struct('<3H')
_CENTRAL = struct.Struct('<4s6H3I5H2I')
_PLACE = struct.Struct('<2H3Q')  # the zip64 field of the directory
_END64 = struct.Struct('<4sQ2H2I4Q')
_LOCATOR = struct.Struct('<4sIQI')
_END = struct.Struct('<4s4H2IH')

CHECKSUM_AT = 14  # in a local header
_ZIP64 = 45  # the version of the standard
_UTF8 = 1 << 11
_DATE = 1 << 5 | 1  # 1980-01-01
_UNIX, _MODE = 3 << 8, 0o100644 << 16
SHORT, _LONG = 0xFFFF, 0xFFFFFFFF  # 'see the zip64 field'
COMMON = (_ZIP64, _UTF8, 0, 0, _DATE)  # neither compression nor time of day


def local(member: Member, checksum: int) -> bytes:
    """What precedes the content of a member."""
    name, size = member.name.encode(), len(member.head) + member.length
    extra = member.start - member.offset - LOCAL.size - len(name)
    spare = extra - SIZES.size - _ALIGN.size
    lengths = (len(name), extra)
    return (
        LOCAL.pack(b'PK\3\4', *COMMON, checksum, _LONG, _LONG, *lengths)
        + name
        + SIZES.pack(1, 16, size, size)
        + _ALIGN.pack(0xD935, 2 + spare, ALIGNMENT)
        + bytes(spare)
    )


def _entry(member: Member, checksum: int) -> bytes:
    """The entry of a member in the directory."""
    name, size = member.name.encode(), len(member.head) + member.length
    lengths = (len(name), _PLACE.size, 0)
    sums = (checksum, _LONG, _LONG)
    made = _UNIX | _ZIP64
    return (
        _CENTRAL.pack(b'PK\1\2', made, *COMMON, *sums, *lengths, 0, 0, _MODE, _LONG)
        + name
        + _PLACE.pack(1, 24, size, size, member.offset)
    )


def tail(members: Sequence[Member], checksums: Iterable[int]) -> list[bytes]:
    """What follows the last member: the entries, and the end of the directory."""
    entries = list(map(_entry, members, checksums))
    begin, size, count = members[-1].end, sum(map(len, entries)), len(entries)
    versions = (_UNIX | _ZIP64, _ZIP64)
    places = (count, count, size, begin)
    end = (
        _END64.pack(b'PK\6\6', _END64.size - 12, *versions, 0, 0, *places)
        + _LOCATOR.pack(b'PK\6\7', 0, begin + size, 1)
        + _END.pack(b'PK\5\6', 0, 0, SHORT, SHORT, _LONG, _LONG, 0)
    )
    return [*entries, end]
