# SPDX-License-Identifier: Apache-2.0
"""What all files have in common: paths, errors that name them, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from jfold.base.errors import expect, reason

SUFFIX = '.jfold'  # of the parts of a corpus


class DamagedError(ValueError):
    """A file is not, or no longer, what `write` leaves."""


class UnknownFormatError(ValueError):
    """A file is whole but of another format, a later version or an unknown dtype."""


def check_path(path: object) -> None:
    """Refuses what is no path; an int would be the number of an open file."""
    expect('path', path, isinstance(path, str | os.PathLike), 'the path of a file')


@contextlib.contextmanager
def noted(expected: str) -> Iterator[None]:
    """Tells what was expected where a file or a folder is missing."""
    try:
        yield
    except FileNotFoundError as error:
        error.add_note(f'expected {expected}')
        raise


@contextlib.contextmanager
def malformed(path: str | os.PathLike[str]) -> Iterator[None]:
    """For what reads the content of a file, whose checksums were right: whoever wrote
    it, if that fails it is at fault.

    Raises:
      DamagedError: what is inside raised anything but an `ImportError`.
    """
    try:
        yield
    except ImportError as error:
        error.add_note(f'for {path}, a model that names it')
        raise
    except Exception as error:
        text = f'{path}: malformed: {reason(error)}; write it again'
        raise DamagedError(text) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file in the folder of `path`, whose place it takes in the end.

    Where that is a link, what it leads to is replaced. If anything is raised meanwhile,
    nothing has changed.

    Raises:
      IsADirectoryError: a folder is there; FileExistsError: something else that is no
        file. OSError: others of the system, with `path` and not the name of the new
        file, as where there is no room for it.
    """
    place = _place(path)
    spare = place.with_name(f'.{place.name[:40]}.{secrets.token_hex(8)}.tmp')
    with _told(path):
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
    if place.exists() and not place.is_file():  # a device would be one no longer
        text = 'expected `path` of a file, got that of a device or pipe: give another'
        raise FileExistsError(errno.EEXIST, text, os.fspath(path))
    return place


@contextlib.contextmanager
def _told(path: str | os.PathLike[str]) -> Iterator[None]:
    """Names the file in errors of the system, which names none, or one of its own."""
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
    found = sorted(Path(folder).glob(f'*{SUFFIX}'))
    if not found:
        text = (
            f'{folder}: expected a folder of `{SUFFIX}` files, which `Corpus.save` '
            'writes, got one without'
        )
        if any(Path(folder).glob('*.npz')):
            text += '; write `.npz` files of an earlier version anew'
        raise FileNotFoundError(text)
    return found
