# SPDX-License-Identifier: Apache-2.0
"""A small stored file, and comparing what is read of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jfold.data.storage import read

Array = np.ndarray[Any, Any]

SMALL = {
    'w': np.arange(6, dtype='float32').reshape(2, 3),
    'layers/bias': np.arange(5).astype('bfloat16'),
    'empty': np.zeros((0, 3), 'int8'),
    'scalar': np.array(True),
}
FACTS = {'step': 3, 'loss': 0.5}


def same(got: Array, want: Array) -> None:
    """Equal dtype, shape and bits."""
    assert got.dtype == want.dtype
    assert got.dtype.str == want.dtype.str
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


def alike(got: dict[str, Array], want: dict[str, Array]) -> None:
    """Equal arrays under equal names, in the same order."""
    assert list(got) == list(want)
    for name, array in want.items():
        same(got[name], array)


def unchanged(path: Path) -> None:
    """The file of the fixture is as it was, and nothing lies beside it."""
    assert os.listdir(path.parent) == [path.name]
    arrays, facts = read(path)
    alike(arrays, SMALL)
    assert facts == FACTS
