# SPDX-License-Identifier: Apache-2.0
"""Arrays and JSON metadata in one file, which is mapped into memory when read.

The file is an `.npz`, as `np.load` reads it: a zip archive of `.npy` members, neither
compressed nor pickled. Its first member is `metadata.json`,

    {"format": "jfold.arrays", "version": 1,
     "arrays": {name: {"dtype": ..., "shape": [...]}}, "metadata": {...}}

and `<name>.npy` follows for each array, in this order, with a header of version 1.0 and
the data in C order. A dtype is written as `np.dtype.str` gives it; one of `ml_dtypes`
by its name, and in its `.npy` as raw bytes (`|V2`), as `np.save` does.

The content of every member begins at a multiple of 64 bytes, by an extra field 0xD935
(the alignment, then zeros) in its local header; `.npy` headers are multiples of 64
bytes too, so that data are aligned. Everything is zip64, dated 1980-01-01, one member
right behind the other. Thus all bytes but checksums and data follow from
`metadata.json`, whose own checksum is always compared: the reader makes them again and
compares, so that no byte goes unchecked, and equal content is equal files.

A later version may change all of this but the first member and what it says of format
and version. `long double` keeps the layout of the machine that wrote it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from jfold.data.archive import (
    CHECKSUM_AT,
    COMMON,
    DOCUMENT,
    EXTENDED,
    LOCAL,
    SHORT,
    SIZES,
    Described,
    Member,
    layout,
    local,
    tail,
)
from jfold.data.files import DamagedError, UnknownFormatError, replacing

Array = np.ndarray[Any, Any]

FORMAT = 'jfold.arrays'
VERSION = 1

_CHUNK = 1 << 20  # bytes that are read, written or summed at once
_AXES = 64  # NumPy has no arrays of more


# ---- the two functions ---------------------------------------------------------------


def write(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    metadata: Mapping[str, Any],
) -> None:
    """Writes arrays and metadata to a file, all or nothing.

    They go to a new file in the same folder, which then takes the place of `path`:
    whenever this is interrupted, `path` holds the old content or the new one, and maps
    of the old one stay valid. Any number of processes may do this at once.

    Args:
      path: the file; any name will do, for `np.load` as well.
      arrays: by any name, of any shape, of numbers or bools.
      metadata: what JSON holds; tuples become lists.

    Raises:
      TypeError: an array has another dtype (nothing is ever pickled), a name is no
        string, or JSON has no such metadata.
      ValueError: an archive cannot hold a name, or JSON cannot hold a number.
      OSError: as of `replacing`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f'{folder}/a.npz', {'w': np.eye(2)}, {'step': 3})
    ...     arrays, metadata = read(f'{folder}/a.npz')
    >>> arrays['w'].tolist(), metadata
    ([[1.0, 0.0], [0.0, 1.0]], {'step': 3})
    """
    _check_names(arrays)
    plain = {name: _plain(name, each) for name, each in arrays.items()}
    described = {name: (each.dtype, each.shape) for name, each in plain.items()}
    text = _document(described, dict(metadata))
    members = layout(len(text), described)
    with replacing(path) as file:
        _fill(file, members, [np.frombuffer(text, np.uint8), *plain.values()])


def read(
    path: str | os.PathLike[str], *, verify: bool = True
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the metadata that `write` wrote.

    Args:
      path: the file.
      verify: whether the data are compared with their checksums, which reads them all.
        Everything else in the file is checked in any case.

    Returns:
      The arrays, read-only and aligned maps of the file, which is loaded as they are
      used; and the metadata. `write` never changes a file in place; who does changes
      the arrays.

    Raises:
      DamagedError: the file is cut short, altered, or was never of this format.
      UnknownFormatError: it is whole, but this version of jfold cannot read it.
      OSError: it cannot be opened; `FileNotFoundError` where there is none.
    """
    with open(path, 'rb') as file:
        source = _Source(os.fspath(path), file, os.fstat(file.fileno()).st_size)
        text = _read_document(source)
        described, metadata = _parse(source, text)
        members = layout(len(text), described)
        checksums = _check_structure(source, members)
        if verify:
            for member, checksum in zip(members, checksums, strict=True):
                _check_data(source, member, checksum)
        content = mmap.mmap(file.fileno(), source.size, access=mmap.ACCESS_READ)
    arrays = {
        name: _mapped(source, content, member, described[name])
        for name, member in zip(described, members[1:], strict=True)
    }
    return arrays, metadata


# ---- writing -------------------------------------------------------------------------


def _check_names(names: Iterable[str]) -> None:
    members = {DOCUMENT}
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f'expected names of arrays to be str, got {name!r} '
                f'({type(name).__name__})'
            )
        # Readers of archives end a name at its first NUL.
        if '\0' in name or not 0 < len(_encoded(f'{name}.npy')) <= SHORT:
            raise ValueError(
                f'array {name[:60]!r}: expected a name of UTF-8 without NUL, of at '
                f'most {SHORT - 4} bytes; choose another'
            )
        members.add(f'{name}.npy')
    for name in members.intersection(names):
        raise ValueError(
            f'array {name!r}: `np.load` would take it for the member of this name; '
            'choose another'
        )


def _encoded(name: str) -> bytes:
    """UTF-8; nothing if there is none."""
    try:
        return name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return b''


def _plain(name: str, value: object) -> Array:
    array = np.asarray(value)
    if not holds(array.dtype):
        hint = '' if array.dtype != object else '; objects would have to be pickled'
        raise TypeError(
            f'array {name!r}: expected numbers or bools, got dtype {array.dtype}{hint}'
        )
    return array


def holds(dtype: object) -> bool:
    """Whether a file holds arrays of a dtype, which may be one of JAX alone."""
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.name in EXTENDED:
        return dtype == EXTENDED[dtype.name]  # in the order of this machine
    return dtype.kind in 'biufc'


def _document(described: Described, metadata: dict[str, Any]) -> bytes:
    """The content of the first member."""
    _check_json(metadata, 'metadata')
    arrays = {
        name: {'dtype': _dtype_name(dtype), 'shape': shape}
        for name, (dtype, shape) in described.items()
    }
    document = {'format': FORMAT, 'version': VERSION, 'arrays': arrays}
    return json.dumps({**document, 'metadata': metadata}).encode()


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.name in EXTENDED else dtype.str


def _check_json(value: object, where: str) -> None:
    """Refuses what would be read as something else."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f'{where}: expected keys to be str, got {key!r}')
            _check_json(item, f'{where}[{key!r}]')
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_json(item, f'{where}[{index}]')
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f'{where}: expected a finite number, got {value}, which JSON lacks; use '
            'None or a string'
        )
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise TypeError(
            f'{where}: expected None, bool, int, float, str, list or dict, got '
            f'{type(value).__name__}; convert it, or put it among the arrays'
        )


def _fill(file: IO[bytes], members: Sequence[Member], contents: list[Array]) -> None:
    checksums = []
    for member, content in zip(members, contents, strict=True):
        file.seek(member.start)
        file.write(member.head)
        checksum = zlib.crc32(member.head)
        for chunk in _chunks(content):
            file.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
        file.seek(member.offset)
        file.write(local(member, checksum))
        checksums.append(checksum)
    file.seek(members[-1].end)
    file.writelines(tail(members, checksums))


def _chunks(array: Array) -> Iterator[memoryview]:
    """The bytes in C order, a few at a time; only what is strided is copied."""
    pieces = np.nditer(
        array.view(f'V{array.itemsize}'),
        flags=['external_loop', 'buffered', 'zerosize_ok'],
        order='C',
        buffersize=_CHUNK // array.itemsize,
    )
    for piece in pieces:
        yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


# ---- reading -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A file that is being read.

    Attributes:
      path: for messages.
      file: at any position.
      size: in bytes.
    """

    path: str
    file: IO[bytes]
    size: int

    def at(self, offset: int, count: int) -> bytes:
        """So many bytes from there on; fewer at the end of the file."""
        self.file.seek(offset)
        return self.file.read(count)

    def damaged(self, where: str, what: str) -> DamagedError:
        """The error."""
        return DamagedError(f'{self.path}: {where}: {what}; write it again')

    def cut(self, where: str, end: int) -> DamagedError:
        """The error of a file that ends before `end`."""
        return self.damaged(
            where, f'truncated: expected {end} bytes or more, got {self.size}'
        )


def _read_document(source: _Source) -> bytes:
    """The content of the first member, compared with its checksum."""
    member = Member(DOCUMENT, 0, b'', 0)
    found, blank = source.at(0, member.start), local(member, 0)
    name = LOCAL.size + len(DOCUMENT)
    for part in (slice(4), slice(LOCAL.size, name)):
        if not blank[part].startswith(found[part]):
            raise source.damaged(
                DOCUMENT,
                'not a file of this format: expected a zip archive that begins with '
                f'this member; {_PACKED}',
            )
    if len(found) < member.start:
        raise source.cut(DOCUMENT, member.start)
    _check_packer(source, found)
    _, _, length, _ = SIZES.unpack_from(found, name)
    member = replace(member, length=length)
    checksum = _check_header(source, member)
    if member.end > source.size:
        raise source.cut(DOCUMENT, member.end)
    _check_data(source, member, checksum)
    return source.at(member.data, length)


_PACKED = (
    'a copy made by np.savez or an archiver cannot be read; take the original, which '
    'may be compressed as a whole'
)


def _check_packer(source: _Source, header: bytes) -> None:
    """Refuses an archive that another program made of the same members."""
    _, *common = struct.unpack_from('<4s5H', header)
    differing = sum(a != b for a, b in zip(common, COMMON, strict=True))
    # A single one is damage, unless the directory has it too.
    if differing > 1 or (differing and _flags_of(source) == common[1]):
        how = 'packed and compressed' if common[2] else 'packed'
        text = f'{how} by another program: expected members as jfold lays them out'
        raise source.damaged(DOCUMENT, f'{text}; {_PACKED}')


def _flags_of(source: _Source) -> int | None:
    """What the directory says of the first member, if it can be read."""
    try:
        with zipfile.ZipFile(source.file) as archive:
            return archive.infolist()[0].flag_bits
    except (zipfile.BadZipFile, IndexError, ValueError, NotImplementedError):
        return None


def _parse(source: _Source, text: bytes) -> tuple[Described, dict[str, Any]]:
    """What the document says.

    Raises:
      DamagedError: it says something impossible.
      UnknownFormatError: it is of another format or version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise source.damaged(DOCUMENT, f'malformed: {error}') from error
    _check_format(source, document)
    try:
        metadata, arrays = document['metadata'], document['arrays']
        _check_names(arrays)
        raw = {
            name: (str(x['dtype']), _shape(x['shape'])) for name, x in arrays.items()
        }
        if not isinstance(metadata, dict):
            raise TypeError(f'expected metadata to be a dict, got {metadata!r}')
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise source.damaged(DOCUMENT, f'malformed: {error!r}') from error
    described = {
        name: (_dtype(source, name, dtype), shape)
        for name, (dtype, shape) in raw.items()
    }
    return described, metadata


def _check_format(source: _Source, document: object) -> None:
    said = document if isinstance(document, dict) else {}
    form, version = said.get('format'), said.get('version')
    if form != FORMAT:
        raise UnknownFormatError(
            f'{source.path}: expected format {FORMAT!r}, got {form!r}; read it with '
            'what wrote it'
        )
    if version != VERSION:
        raise UnknownFormatError(
            f'{source.path}: expected version {VERSION} of format {FORMAT!r}, got '
            f'{version!r}; read it with the jfold that wrote it, or a later one'
        )


def _shape(sizes: list[Any]) -> tuple[int, ...]:
    fit = len(sizes) <= _AXES and all(
        type(x) is int and 0 <= x < 1 << 63 for x in sizes
    )
    if not fit:
        raise ValueError(f'expected sizes of at most {_AXES} axes, got {sizes!r}')
    return tuple(sizes)


def _dtype(source: _Source, array: str, name: str) -> np.dtype[Any]:
    if name in EXTENDED:
        return EXTENDED[name]
    try:
        dtype = np.dtype(name) if re.fullmatch(r'[<>|][biufc]\d+', name) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.str != name:
        raise UnknownFormatError(
            f'{source.path}: array {array!r}: expected a dtype of numpy or ml_dtypes, '
            f'got {name!r}; update ml_dtypes, or read it where it was written'
        )
    return dtype


def _check_structure(source: _Source, members: Sequence[Member]) -> list[int]:
    """Compares all bytes but data; the checksums of the members."""
    for member in members:
        if member.end > source.size:
            raise source.cut(member.label, member.end)
    size = members[-1].end + sum(map(len, tail(members, [0] * len(members))))
    if source.size < size:
        raise source.cut('directory', size)
    if source.size > size:
        raise source.damaged(
            'directory', f'malformed: expected {size} bytes, got {source.size}'
        )
    checksums = [_check_header(source, member) for member in members]
    _check_directory(source, members, tail(members, checksums))
    return checksums


def _check_header(source: _Source, member: Member) -> int:
    """Compares what precedes the data of a member; its checksum."""
    found = source.at(member.offset, member.data - member.offset)
    checksum = int.from_bytes(found[CHECKSUM_AT:][:4], 'little')
    _compare(source, member.label, found, local(member, checksum) + member.head)
    return checksum


def _check_directory(
    source: _Source, members: Sequence[Member], tail: Sequence[bytes]
) -> None:
    labels = [f'{member.label} in the directory' for member in members]
    offset = members[-1].end
    for label, expected in zip([*labels, 'directory'], tail, strict=True):
        _compare(source, label, source.at(offset, len(expected)), expected)
        offset += len(expected)


def _compare(source: _Source, where: str, found: bytes, expected: bytes) -> None:
    if found == expected:
        return
    pairs = enumerate(zip(found, expected, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), len(found))
    raise source.damaged(
        where,
        f'malformed header: expected {expected[first:][:8]!r} at byte {first} of it, '
        f'got {found[first:][:8]!r}',
    )


def _check_data(source: _Source, member: Member, expected: int) -> None:
    checksum = zlib.crc32(member.head)
    for offset in range(member.data, member.end, _CHUNK):
        count = min(_CHUNK, member.end - offset)
        checksum = zlib.crc32(source.at(offset, count), checksum)
    if checksum != expected:
        raise source.damaged(
            member.label,
            f'wrong checksum: expected {expected:#010x}, got {checksum:#010x}',
        )


def _mapped(
    source: _Source,
    content: mmap.mmap,
    member: Member,
    kind: tuple[np.dtype[Any], tuple[int, ...]],
) -> Array:
    dtype, shape = kind
    try:
        return np.ndarray(shape, dtype, buffer=content, offset=member.data)
    except ValueError as error:  # NumPy limits the product of sizes beside a 0 too
        raise source.damaged(member.label, f'malformed: {error}') from error
