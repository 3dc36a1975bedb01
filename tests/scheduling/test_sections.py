# SPDX-License-Identifier: Apache-2.0
"""Sections of the index array, and the tree of sums over uses."""

from __future__ import annotations

import numpy as np
import pytest

from jfold.scheduling.sections import Section
from jfold.scheduling.sum_trees import (
    RowUses,
    resolve_edges,
    sorted_by_round,
    sum_tree,
    total_cotangent_rows,
)


def test_a_section_is_written_and_read_at_its_place() -> None:
    indices = np.zeros(10, np.int32)
    table = Section(2, (2, 3))
    table.of(indices)[...] = np.arange(1, 7).reshape(2, 3)
    assert indices.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 0, 0]
    assert table[1] == Section(5, (3,))
    table[1].fill(indices, np.array([9]), -1)
    assert table.of(indices).tolist() == [[1, 2, 3], [9, -1, -1]]


@pytest.mark.parametrize('shape', [(4,), (3, 1)], ids=str)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match='jfold made a wrong schedule'):
        Section(0, (3,)).fill(np.zeros(10, np.int32), np.zeros(shape), 0)


def test_sums_of_eighteen_uses() -> None:
    """As in the picture of `sum_tree`, beside a value of two uses."""
    rows, edges = np.array([7] * 18 + [3] * 2), np.arange(20, dtype=np.int32)
    tree = sum_tree(RowUses(rows, edges), np.full(8, 4), 50, 99)
    assert tree.table.tolist() == [
        *([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]),
        *([16, 17, 99, 99], [50, 51, 52, 53], [54, 99, 99, 99]),
    ]
    assert (tree.values == 7).all()
    assert tree.stages.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert tree.left.rows.tolist() == [3, 3, 7, 7]
    assert tree.left.edges.tolist() == [18, 19, 55, 56]


def test_all_uses_of_a_sum_are_added_up() -> None:
    """So that whatever the sum read may point to one edge row."""
    rows, edges = np.array([1, 0, 1, 1, 1, 1]), np.arange(6, dtype=np.int32)
    tree = sum_tree(RowUses(rows, edges), np.array([4, 1]), 50, 99)
    assert tree.table.tolist() == [[0, 2, 3, 4], [5, 99, 99, 99], [50, 51, 99, 99]]
    assert tree.stages.tolist() == [0, 0, 1]
    assert (tree.left.rows.tolist(), tree.left.edges.tolist()) == ([0, 1], [1, 52])


def test_edge_rows_are_found_through_sums_of_sums() -> None:
    """Of five values 0 has an edge row, 1 points to it, 2 to 1, 3 to 2; 4 has none."""
    uses = RowUses(np.array([3, 1, 2, 0]), np.array([~2, ~0, ~1, 7], np.int32))
    whole = total_cotangent_rows(uses, 5, 99)
    assert whole.tolist() == [7, 7, 7, 7, 99]
    assert resolve_edges(np.array([5, ~3, ~4]), whole).tolist() == [5, 7, 99]


def test_sorted_sums_keep_what_they_add_up() -> None:
    """The sums of the value whose level is reversed first come first."""
    rows, edges = np.repeat([0, 1], 5), np.arange(10, dtype=np.int32)
    tree = sum_tree(RowUses(rows, edges), np.full(2, 4), 50, 99)
    moved = sorted_by_round(tree, np.array([4, 4, 1, 1]), 50)
    assert moved.values.tolist() == [1, 1, 0, 0]
    assert moved.table[:, 0].tolist() == [5, 9, 0, 4]
    assert moved.left.edges.tolist() == [52, 53, 50, 51]
