# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks: each pass has one for each block, and refuses all others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import jfold as jf
from jfold import blocks
from jfold.language.inference import infer, output_type
from jfold.language.lines import write
from jfold.language.walk import walk
from jfold.lower import FAMILIES

BLOCKS = [
    each
    for each in vars(blocks).values()
    if inspect.isclass(each) and issubclass(each, jf.Block) and each is not jf.Block
]
PASSES = [output_type, walk, write]


@pytest.mark.parametrize('kind', BLOCKS, ids=lambda kind: kind.__name__)
def test_the_rules_of_a_block_stand_in_one_file(kind: type[jf.Block]) -> None:
    homes = {each.dispatch(kind).__module__ for each in PASSES}
    assert len(homes) == 1
    assert homes <= {family.__name__ for family in FAMILIES}


class Unknown(jf.Block):
    """A block that no pass knows."""

    def __repr__(self) -> str:
        return 'Unknown()'


@pytest.mark.parametrize(
    ('ask', 'name'),
    [
        (lambda: infer(Unknown()), 'type inference'),
        (lambda: jf.compile(jf.Map(Unknown())), 'type inference'),
        (lambda: walk(Unknown(), None, None, None), 'walking'),
        (lambda: write(Unknown(), None, None, None), 'writing'),
    ],
)
def test_a_pass_refuses_a_block_that_it_does_not_know(
    ask: Callable[[], Any], name: str
) -> None:
    with pytest.raises(NotImplementedError, match=rf'^{name} has no rule for Unknown'):
        ask()
