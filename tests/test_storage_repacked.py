# SPDX-License-Identifier: Apache-2.0
"""Files of arrays that another program has packed again."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jfold.data.files import DamagedError
from jfold.data.storage import read, write

ADVICE = (
    'a copy made by np.savez or an archiver cannot be read; take the original, which '
    'may be compressed as a whole; write it again'
)


def zipped(method: int) -> Callable[[Path, Path], None]:
    """Packs the members of an archive into another one."""

    def pack(old: Path, new: Path) -> None:
        with zipfile.ZipFile(old) as given, zipfile.ZipFile(new, 'w', method) as made:
            for name in given.namelist():
                made.writestr(name, given.read(name))

    return pack


def saved(save: Callable[..., None]) -> Callable[[Path, Path], None]:
    """Saves all members, the description too, as `np.load` reads them."""

    def pack(old: Path, new: Path) -> None:
        with np.load(old) as given:
            save(new, **{name: given[name] for name in given.files})

    return pack


@pytest.mark.parametrize(
    ('pack', 'how'),
    [
        (zipped(zipfile.ZIP_DEFLATED), 'packed and compressed'),
        (zipped(zipfile.ZIP_LZMA), 'packed and compressed'),
        (zipped(zipfile.ZIP_STORED), 'packed'),
        (saved(np.savez_compressed), 'packed and compressed'),
        (saved(np.savez), 'packed'),
    ],
)
def test_copies_packed_by_other_programs(
    pack: Callable[[Path, Path], None], how: str, tmp_path: Path
) -> None:
    """They are told as what they are, without raw bytes."""
    original, copy = tmp_path / 'a.npz', tmp_path / 'b.npz'
    write(original, {'w': np.arange(1000)}, {'step': 3})
    pack(original, copy)
    with pytest.raises(DamagedError) as caught:
        read(copy)
    assert str(caught.value) == (
        f'{copy}: metadata.json: {how} by another program: expected members as jfold '
        f'lays them out; {ADVICE}'
    )
