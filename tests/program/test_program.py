# SPDX-License-Identifier: Apache-2.0
"""Programs: how their source reads, and what of their operations is checked."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest
from checking import refuses
from programs import cases, trees, two_declarations, with_tensors

import jfold as jf
from jfold.program.operations import check_operations
from jfold.tracing.record import trace

# ---- how source reads ----------------------------------------------------------------


TREE = """\
operations
  0: embed(int32[]) -> float32[4]
  1: cell(float32[4], float32[4]) -> float32[4]

"""

RECORD = """\
    def tree(x):
        kind = type(x)
        if kind is int:
            row = len(numbers)
            numbers.append(x)
            return EMBED + row
        elif kind is tuple:
            first, second = x
            tree_of_first = tree(first)
            tree_of_second = tree(second)
            row = len(cell_a)
            cell = ((tree_of_first if tree_of_first > tree_of_second else tree_of_second) & LEVELS) + CELL + row
            cell_a.append(tree_of_first)
            cell_b.append(tree_of_second)
            return cell
        else:
            raise KeyError(kind)
"""  # noqa: E501

CASES = """\
        if first == 'a':
            second = x[1]
            items_of_second = second if type(second) is list else sequence(second)
"""


def test_source_reads_like_what_one_would_write() -> None:
    """A function a declaration, a list a column, branches for cases."""
    assert str(trees()).startswith(TREE)
    assert RECORD in str(trees().source)
    assert CASES in str(cases().source)
    assert 'embed = []' not in str(trees().source)  # made in step with its input
    for name in 'even', 'odd':
        assert f'    def {name}(x):\n' in str(two_declarations().source)


def test_source_is_of_lines_that_python_knows() -> None:
    """So that a traceback through it can be read."""

    def fails(x: object) -> object:
        raise OSError(traceback.format_stack())

    program = jf.compile(jf.InputTransform(fails) >> jf.Scalar()).program
    with pytest.raises(jf.InputError):
        trace(program, [1])
    with pytest.raises(OSError, match=r'<jfold source .*record\\n +\w+ = fails\(x'):
        program.source.record([1])


# ---- what is checked -----------------------------------------------------------------


def test_what_the_device_runs_is_checked() -> None:
    """Numbers of types, and what is said of who reads what."""
    with refuses('result 1: expected numbers of 2 types, got 7', ValueError):
        check_operations(with_tensors(trees(), 1, (7,)))
    with refuses('expected one result without a name, got 0', ValueError):
        check_operations(replace(trees(), results=trees().results[1:]))
    sources = trees().sources
    assert sources is not None
    with refuses('expected `sources.inputs` of [1, 2], got [1]', ValueError):
        check_operations(replace(trees(), sources=replace(sources, inputs=((0,),))))
