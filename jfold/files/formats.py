# SPDX-License-Identifier: Apache-2.0
"""Helpers for all files: paths, errors that name them, writes of all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from jfold.base.errors import describe_error, expect

SUFFIX = '.jfold'  # of the parts of a corpus


class DamagedError(ValueError):
    """An error about a file that is damaged, or was never one of jfold's."""


class UnknownFormatError(ValueError):
    """An error about an intact file of another version, or with an unknown dtype."""


def check_path(path: object) -> None:
    """Refuse anything but a path; an int would be the number of an open file."""
    expect('path', path, isinstance(path, str | os.PathLike), 'the path of a file')


@contextlib.contextmanager
def note_missing(expected: str) -> Iterator[None]:
    """Add to errors of missing files what was expected."""
    try:
        yield
    except FileNotFoundError as error:
        error.add_note(f'expected {expected}')
        raise


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Report errors in reading the content of a file as faults of the file.

    Its checksums were right, but it may not come from jfold.

    Raises:
      DamagedError: the body raised anything but an `ImportError`.
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
    """Open a new file in the folder of `path`, which it replaces in the end.

    Where that is a link, its target is replaced. If the body raises, nothing changes.

    Raises:
      IsADirectoryError: a folder is there; FileExistsError: something else that is no
        file. OSError: others of the system, with `path` and not the name of the new
        file, as where there is no room for it.
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
    if place.exists() and not place.is_file():  # a device would be lost
        text = 'expected `path` of a file, got that of a device or pipe: give another'
        raise FileExistsError(errno.EEXIST, text, os.fspath(path))
    return place


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in errors of the system, which may name the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def parts_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a folder that are parts of one corpus, in order.

    Raises:
      FileNotFoundError: there is none.
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
