# SPDX-License-Identifier: Apache-2.0
"""The file format: arrays and JSON metadata, mapped into memory when read.

The file begins with 64 bytes that say where its JSON document is. An `.npy` for each
array follows, as `np.save` writes it, and at the end the document,

    {"arrays": {name: [dtype, shape, offset, checksum]}, "metadata": {...}}

The offset is where the data of an array begin, a multiple of 64 bytes; data are in C
order. A dtype is written as `np.dtype.str` gives it. A dtype of `ml_dtypes` is written
by its name, and in its `.npy` as raw bytes (`|V2`). The checksum of an array is the
CRC-32 of all bytes from the end of the data before (at first, of the header) to the end
of its own data, so each byte of the file is in a checksum. Arrays are found by offsets
alone: a file holds no paths.

A later version may change all but the first 24 bytes. `long double` keeps the layout
of the machine that wrote it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import mmap
import os
import re
import secrets
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import ml_dtypes
import numpy as np

from jfold.base.arguments import expect
from jfold.base.errors import describe_error

Array = np.ndarray[Any, Any]
FilePath: TypeAlias = str | os.PathLike[str]

VERSION = 3
SUFFIX = '.jfold'  # the ending of names of files that hold parts of a corpus
EXTENDED = {  # the dtypes of `ml_dtypes`, by name
    np.dtype(type_).name: np.dtype(type_)
    for type_ in vars(ml_dtypes).values()
    if isinstance(type_, type) and issubclass(type_, np.generic)
}

_MAGIC = b'jfold.arrays'.ljust(16)
_HEADER = struct.Struct('<16s4Q16x')  # magic, version, the document: start, end, CRC-32
_ALIGNMENT = _HEADER.size  # 64 bytes, to which an `.npy` aligns its data
# Else each map would keep a file open.
_MAPPED: dict[str, Any] = {'trackfd': False} if sys.version_info >= (3, 13) else {}
_CHUNK = 1 << 20  # bytes that are read or written at a time


class DamagedError(ValueError):
    """An error about a file that is damaged, or was never one of jfold's."""


class UnknownFormatError(ValueError):
    """An error about an intact file that the installed versions cannot read.

    It is of another version of jfold or JAX, or has an unknown dtype.
    """


def check_path(path: object) -> None:
    """Raise TypeError if `path` is no path, such as an int, which `open` would take."""
    expect('path', path, isinstance(path, str | os.PathLike), 'the path of a file')


@contextlib.contextmanager
def note_missing(expected: str) -> Iterator[None]:
    """Add the note 'expected ...' to a FileNotFoundError raised in this context."""
    try:
        yield
    except FileNotFoundError as error:
        error.add_note(f'expected {expected}')
        raise


@contextlib.contextmanager
def note_limit() -> Iterator[None]:
    """Add advice to an error about too many open files, which maps of parts are."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE:
            error.add_note(
                'expected no more parts than files that may be open: raise the limit, '
                'as by `ulimit -n 65536`, or make one file of some parts each, by '
                '`model.join(parts).save(path)`'
            )
        raise


@contextlib.contextmanager
def reading(path: FilePath) -> Iterator[None]:
    """Turn errors in this context, which reads the file `path`, into DamagedError.

    The checksums of the content were right, but another program may have written it. An
    ImportError gets a note that names the file; an UnknownFormatError stays.
    """
    try:
        yield
    except UnknownFormatError:
        raise
    except ImportError as error:
        error.add_note(f'for {path}, a model that names it')
        raise
    except Exception as error:
        text = f'{path}: malformed: {describe_error(error)}; write it again'
        raise DamagedError(text) from error


@contextlib.contextmanager
def replacing(path: FilePath) -> Iterator[IO[bytes]]:
    """Open a temporary file to write; replace `path` by it when the body ends.

    The temporary file is in the folder of `path`. Where `path` is a link, its target is
    replaced. The mode of a file that is replaced stays. If the body raises, `path` is
    unchanged and the temporary file removed.

    Raises OSError, which names `path`, not the temporary file, if it is a folder, a
    device or a pipe, or the system fails, as where the disk is full.
    """
    place, named = Path(os.path.realpath(path)), os.fspath(path)
    if place.is_dir() or named.endswith('/'):
        text = (
            'expected `path` of a file, got that of a folder: give it a name in there'
        )
        raise IsADirectoryError(errno.EISDIR, text, named)
    if place.exists() and not place.is_file():  # `os.replace` would remove a device
        text = 'expected `path` of a file, got that of a device or pipe: give another'
        raise FileExistsError(errno.EEXIST, text, named)
    spare = place.with_name(f'.{place.name[:40]}.{secrets.token_hex(8)}.tmp')
    try:
        try:  # an interrupt may come as soon as the file is there
            with open(spare, 'xb') as file:
                if place.exists():
                    with contextlib.suppress(PermissionError):  # of some file systems
                        shutil.copymode(place, spare)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(spare, place)
        except BaseException:
            spare.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, named) from None


def parts_in(folder: FilePath) -> list[Path]:
    """Return the paths of a folder's `.jfold` files, parts of a corpus, in name order.

    Raises FileNotFoundError if it has none.
    """
    # A pattern that begins with a star leaves hidden files out, but not in `pathlib`.
    found = Path(folder).glob(f'*{SUFFIX}')
    paths = sorted(path for path in found if not path.name.startswith('.'))
    if not paths:
        text = (
            f'{folder}: expected a folder of `{SUFFIX}` files, which `Corpus.save` '
            'writes, got one without'
        )
        if any(Path(folder).glob('*.npz')):
            text += '; write `.npz` files of an earlier version anew'
        raise FileNotFoundError(text)
    return paths


# ---- writing -------------------------------------------------------------------------


def write(
    path: FilePath, arrays: Mapping[str, Array], metadata: Mapping[str, Any]
) -> None:
    """Write arrays of numbers or bools and JSON metadata to a file, all or nothing.

    Whenever writing is interrupted, `path` holds the old content or the new one; see
    `replacing`. Memory maps of the old file stay valid. Any number of processes may
    write at the same time.

    Raises:
      TypeError: an array has another dtype (nothing is ever pickled), or JSON cannot
        hold the metadata.
      ValueError: the metadata have a NaN or an infinity.
      OSError: see `replacing`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f'{folder}/a', {'w': np.eye(2)}, {'step': 3})
    ...     arrays, metadata = read(f'{folder}/a')
    >>> arrays['w'].tolist(), metadata
    ([[1.0, 0.0], [0.0, 1.0]], {'step': 3})
    """
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in plain.items():
        if not can_hold(array.dtype):
            got, hint = array.dtype, '; objects would have to be pickled'
            raise TypeError(
                f'array {name!r}: expected numbers or bools, got dtype {got}'
                f'{hint if got.kind == "O" else ""}'
            )
    expected = '`path` in a folder that exists, got another: make the folder'
    with note_missing(expected), replacing(path) as file:
        file.write(bytes(_HEADER.size))
        entries = {name: _append(file, array) for name, array in plain.items()}
        document = {'arrays': entries, 'metadata': metadata}
        text, start = json.dumps(document, allow_nan=False).encode(), file.tell()
        file.write(text)
        file.seek(0)
        file.write(_header(start, text))


def _header(start: int, text: bytes) -> bytes:
    """Return the first 64 bytes of a file whose JSON document `text` is at `start`."""
    place = _MAGIC, VERSION, start, start + len(text)
    return _HEADER.pack(*place, zlib.crc32(text))


def can_hold(dtype: object) -> bool:
    """Return whether a file can hold arrays of a dtype: those of bools and numbers."""
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.name in EXTENDED:
        return dtype == EXTENDED[dtype.name]  # in the byte order of this machine
    return dtype.kind in 'biufc'


def _append(file: IO[bytes], array: Array) -> list[Any]:
    """Append an array to a file as `.npy`; return [dtype, shape, offset, checksum]."""
    is_extended, head = array.dtype.name in EXTENDED, io.BytesIO()
    descr = f'|V{array.itemsize}' if is_extended else array.dtype.str
    header = {'descr': descr, 'fortran_order': False, 'shape': array.shape}
    np.lib.format.write_array_header_1_0(head, header)
    # NumPy pads its header to 64 bytes, so the data behind it are aligned as well.
    start = bytes(-file.tell() % _ALIGNMENT) + head.getvalue()
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    file.write(start)
    offset, checksum = file.tell(), zlib.crc32(start)
    for at in range(0, len(data), _CHUNK):  # one write of 1 GB may stall for seconds
        file.write(data[at : at + _CHUNK])
        checksum = zlib.crc32(data[at : at + _CHUNK], checksum)
    name = array.dtype.name if is_extended else descr
    return [name, array.shape, offset, checksum]


# ---- reading -------------------------------------------------------------------------


def read(
    path: FilePath, *, verify: bool = True
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays that `write` wrote to `path`, by name, and the metadata.

    The arrays are read-only memory maps of the file. `write` never changes a file in
    place; whoever does so changes the arrays.

    Args:
      verify: whether to compare all data with their checksums, 1 MB at a time: now,
        since nobody sees when a page of a map is first used. The header and the
        document are checked in any case.

    Raises:
      DamagedError: the file is cut short, altered, or was never of this format.
      UnknownFormatError: the file is intact, but this version of jfold cannot read it.
      OSError: the file cannot be opened.
    """
    if os.path.isdir(path):
        expected = 'expected `path` of a file, got that of a folder'
        raise IsADirectoryError(errno.EISDIR, expected, os.fspath(path))
    with open(path, 'rb') as file:
        text = _document(path, file)
        arrays: dict[str, Array] = {}
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **_MAPPED)
        with reading(path):
            document = json.loads(text)
            entries, metadata = document['arrays'].items(), dict(document['metadata'])
            for name, (dtype, shape, offset, _) in entries:
                if offset < _ALIGNMENT:  # NumPy checks only the end of the data
                    what = f'data behind the header, got an offset of {offset}'
                    raise ValueError(f'expected {what}')
                type_ = _dtype(path, name, str(dtype))
                arrays[name] = np.ndarray(shape, type_, content, offset)
        start = _ALIGNMENT
        for name, (_, _, offset, checksum) in entries if verify else ():
            end = offset + arrays[name].nbytes
            if checksum != (got := _checksum(file, start, end)):
                wrong = f'wrong checksum: expected {checksum!r}, got {got}'
                raise _damaged(path, f'array {name!r}: {wrong}')
            start = end
    return arrays, metadata


def _document(path: FilePath, file: IO[bytes]) -> bytes:
    """Return the JSON document of `file`, its checksum checked; errors name `path`."""
    size, header = os.fstat(file.fileno()).st_size, file.read(_HEADER.size)
    # Version 1 was a zip archive, an `.npz` with metadata.
    is_old = header.startswith(b'PK\3\4') and b'metadata.json' in header
    if not is_old and not _MAGIC.startswith(header[: len(_MAGIC)]):
        hint = 'expected one that `Corpus.save` or `jf.save` wrote'
        raise _damaged(path, f'not a file of this format: {hint}')
    if size < _HEADER.size:
        least = f'truncated: expected {_HEADER.size} bytes or more'
        raise _damaged(path, f'{least}, got {size}')
    _, version, start, end, checksum = _HEADER.unpack(header)
    if is_old or version != VERSION:
        raise UnknownFormatError(
            f'{path}: expected version {VERSION} of the format of files, got version '
            f'{1 if is_old else version}: write it anew with this version of jfold, or '
            'read it with the one that wrote it'
        )
    if size != end:
        what = 'truncated' if size < end else 'malformed'
        raise _damaged(path, f'{what}: expected {end} bytes, got {size}')
    file.seek(min(start, end))
    text = file.read()
    # The header as it should be: this compares the checksum, and the spare bytes too.
    if header != _header(start, text):
        wrong = f'wrong checksum: expected {checksum}, got {zlib.crc32(text)}'
        raise _damaged(path, f'document: {wrong}')
    return text


def _dtype(path: FilePath, array: str, name: str) -> np.dtype[Any]:
    dtype = EXTENDED.get(name)
    if dtype is None and re.fullmatch(r'[<>|][biufc]\d+', name):
        with contextlib.suppress(TypeError):
            dtype = np.dtype(name)
    if dtype is None or name not in (dtype.str, dtype.name):
        raise UnknownFormatError(
            f'{path}: array {array!r}: expected a dtype of numpy or ml_dtypes, got '
            f'{name!r}; update ml_dtypes, or read it where it was written'
        )
    return dtype


def _checksum(file: IO[bytes], start: int, end: int) -> int:
    """Return the CRC-32 of the bytes of a file from `start` to `end`."""
    file.seek(start)
    checksum = 0
    for at in range(start, end, _CHUNK):
        checksum = zlib.crc32(file.read(min(_CHUNK, end - at)), checksum)
    return checksum


def _damaged(path: FilePath, what: str) -> DamagedError:
    return DamagedError(f'{path}: {what}; write it again')
