# SPDX-License-Identifier: Apache-2.0
"""A notebook, cell by cell and out of order, as IPython runs it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from notebook import Ran, run_cells
from notebook_cells import cells, expected

CELLS = cells()


def check(ran: Ran) -> None:
    """Nothing raises that should not, nor at length; nothing is compiled twice."""
    assert ran.error == expected(ran.cell), f'{ran.cell}\n{ran.text}'
    if ran.error is not None:
        assert len(ran.lines) <= 12, f'{ran.cell}\n{ran.text}'
    if '# defines' not in ran.cell:
        assert ran.again == [], f'{ran.cell}\n{ran.text}'


def test_cell_by_cell(tmp_path: Path) -> None:
    assert len(CELLS) == 30
    found = run_cells(CELLS, tmp_path)
    for ran in found:
        check(ran)
    growing = [ran for ran in found if re.search('for (size|count) in', ran.cell)]
    assert len(growing) == 3
    for ran in growing:
        assert len(ran.compiled) <= 12, ran.cell


@pytest.mark.slow
def test_out_of_order(tmp_path: Path) -> None:
    """All cells once, then any of them, again and again."""
    rng = random.Random(0)
    again = [rng.choice(CELLS) for _ in range(90)]
    for ran in run_cells([*CELLS, *again], tmp_path):
        check(ran)
