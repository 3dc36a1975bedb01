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
# What others need: imports, data, a model, a step.
FIRST = [*CELLS[:4], 'corpus = model.trace(trees)\n']


def check(ran: Ran) -> None:
    """Nothing raises that should not, nor shows more than cells; nothing is compiled
    twice."""
    assert ran.error == expected(ran.cell), f'{ran.cell}\n{ran.text}'
    if ran.error is not None:
        lines = [line for line in ran.lines if '# raises' not in line]
        assert len(lines) <= 12, f'{ran.cell}\n{ran.text}'
        # The last frame of all, which IPython shows even if it is marked, is a user's.
        assert 'File ' not in ran.text, f'{ran.cell}\n{ran.text}'
    if '# defines' not in ran.cell:
        assert ran.again == [], f'{ran.cell}\n{ran.text}'


def test_cell_by_cell(tmp_path: Path) -> None:
    assert len(CELLS) == 29
    growing = 0
    for ran in run_cells(CELLS, tmp_path):
        check(ran)
        if re.search('for (size|count) in', ran.cell):
            growing += 1
            assert len(ran.compiled) <= 12, ran.cell
    assert growing == 3


@pytest.mark.long
def test_out_of_order(tmp_path: Path) -> None:
    """All cells in another order, then any that define nothing anew."""
    rng = random.Random(0)
    again = rng.sample(CELLS, len(CELLS))
    again += rng.choices([x for x in CELLS if '# defines' not in x], k=24)
    for ran in run_cells([*FIRST, *again], tmp_path):
        check(ran)
