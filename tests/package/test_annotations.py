# SPDX-License-Identifier: Apache-2.0
"""Annotations of the device half are precise, and say the shapes of what is carried."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import jfold as jf
from jfold.device.batch import Batch
from jfold.device.buffers import Residuals
from jfold.device.kernel import Weights
from jfold.device.kernel_reverse import Rows

PACKAGE = Path(jf.__file__).parent
DEVICE = [PACKAGE / 'runtime.py', *(PACKAGE / 'device').glob('*.py')]


def annotations(path: Path) -> Iterator[ast.expr]:
    """All annotations of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        found = (getattr(node, name, None) for name in ('annotation', 'returns'))
        yield from (each for each in found if each is not None)


def is_vague(annotation: ast.expr) -> bool:
    """Whether `Any` stands in it."""
    names = (x.id for x in ast.walk(annotation) if isinstance(x, ast.Name))
    return 'Any' in names


def test_any_is_rare() -> None:
    """Less than 5 % but for the file that takes equations of any kind."""
    given = [x for p in DEVICE if p.stem != 'jaxprs' for x in annotations(p)]
    assert len(given) > 500
    assert sum(map(is_vague, given)) < 0.05 * len(given)


@pytest.mark.parametrize('kind', [Batch, Residuals, Rows, Weights])
def test_fields_of_arrays_have_shapes(kind: Any) -> None:
    """In brackets, once for each field that holds arrays."""
    shapes = re.findall(r'\[[^\]]+\]', kind.__doc__)
    arrays = [x for x in fields(kind) if 'Array' in str(x.type)]
    assert len(shapes) >= len(arrays) >= 1
