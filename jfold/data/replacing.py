# SPDX-License-Identifier: Apache-2.0
"""A file that takes the place of another, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


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
