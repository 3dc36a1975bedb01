# SPDX-License-Identifier: Apache-2.0
"""Checks of paths, errors that name the file, and atomic writes, for all files."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from jfold.base.errors import describe_error, expect

SUFFIX = '.jfold'  # the ending of names of files that hold parts of a corpus


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
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors in this context, which reads a file's content, into DamagedError.

    The checksums of the content were right, but another program may have written it.

    Raises:
      DamagedError: the body raised anything but an ImportError.
      ImportError: the body raised it; a note names the file.
    """
    try:
        yield
    except ImportError as error:
        error.add_note(f'for {path}, a model that names it')
        raise
    except Exception as error:
        text = f'{path}: malformed: {describe_error(error)}; write it again'
        raise DamagedError(text) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file to write; replace `path` by it when the body ends.

    The temporary file is in the folder of `path`. Where `path` is a link, its target is
    replaced. If the body raises, `path` is unchanged and the temporary file removed.

    Raises:
      IsADirectoryError: `path` is a folder.
      FileExistsError: `path` is a device or a pipe.
      OSError: the system fails, as where the disk is full; the error names `path`, not
        the temporary file.
    """
    place = _place(path)
    spare = place.with_name(f'.{place.name[:40]}.{secrets.token_hex(8)}.tmp')
    with _naming(path):
        file = open(spare, 'xb')
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(spare, place)
        except BaseException:
            spare.unlink(missing_ok=True)
            raise


def _place(path: str | os.PathLike[str]) -> Path:
    place = Path(os.path.realpath(path))
    if place.is_dir():
        text = (
            'expected `path` of a file, got that of a folder: give it a name in there'
        )
        raise IsADirectoryError(errno.EISDIR, text, os.fspath(path))
    if place.exists() and not place.is_file():  # `os.replace` would remove a device
        text = 'expected `path` of a file, got that of a device or pipe: give another'
        raise FileExistsError(errno.EEXIST, text, os.fspath(path))
    return place


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name `path`, not a temporary file, in an OSError raised in this context."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def parts_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the paths of a folder's `.jfold` files, parts of a corpus, by name.

    Raises:
      FileNotFoundError: the folder has none.
    """
    paths = sorted(Path(folder).glob(f'*{SUFFIX}'))
    if not paths:
        text = (
            f'{folder}: expected a folder of `{SUFFIX}` files, which `Corpus.save` '
            'writes, got one without'
        )
        if any(Path(folder).glob('*.npz')):
            text += '; write `.npz` files of an earlier version anew'
        raise FileNotFoundError(text)
    return paths
