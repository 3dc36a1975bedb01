# SPDX-License-Identifier: Apache-2.0
"""What the code looks like in numbers, and in how many places a thing is known."""

from __future__ import annotations

import ast

import pytest
import structure

# ---- in how many places a thing is known ---------------------------------------------


def places(thing: str) -> tuple[int, int]:
    """How many places and files know of a thing of `structure.THINGS`."""
    found = structure.places(structure.THINGS[thing], structure.files())
    return len(found), len({file for file, _ in found})


def test_a_block_is_known_in_three_files() -> None:
    """Its class, the rules of its family, and what of it goes elsewhere."""
    assert places('block') <= (5, 3)


def test_a_section_of_the_index_array_is_declared_written_and_read() -> None:
    """Each once, its shape where it is declared."""
    assert places('section of the index array') == (3, 3)


def test_a_loop_strategy_is_two_classes() -> None:
    """One on the host, one on the device, each chosen in one place."""
    words, files = structure.THINGS['loop strategy'], structure.files()
    found = structure.places(words, files)
    assert {file for file, _ in found} == {'scheduling/tiles.py', 'device/loops.py'}
    assert sorted(structure.defined(words, files)) == sorted(words)


@pytest.mark.parametrize('room', ['device', 'scheduling'])
def test_what_is_made_of_a_spec_is_not_written_to(room: str) -> None:
    """It is kept, and shared by all batches: every dataclass there is frozen, but
    those of the budget, which alone changes from batch to batch."""
    files = structure.files(structure.PACKAGE / room)
    for file in (x for x in files if x.path.stem != 'budget'):
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                made = map(ast.unparse, node.decorator_list)
                plain = [x for x in made if x.startswith('dataclass')]
                assert all('frozen=True' in x for x in plain), node.name


def test_a_kind_of_result_is_known_in_one_file() -> None:
    """There it is made, with all that is peculiar to it."""
    assert places('kind of result') == (2, 1)
    kinds = 'EXAMPLE_ROWS', 'item_rows', 'metric_rows'
    found = structure.places(kinds, structure.files())
    assert {file for file, _ in found} == {'program/result_tables.py'}


# Who asks for what differs between kinds of results, and why: all others treat every
# result alike, or those that `Operations` has listed.
ASKS = {
    'program/result_tables.py': 'says it',
    'program/operations.py': 'lists those alike, refuses several values of an example',
    'tracing/check_graph.py': 'refuses other numbers of rows',
}


def test_few_ask_for_what_differs_between_kinds_of_results() -> None:
    """Each once, but for where it is said."""
    facts = structure.THINGS['fact of kinds of results']
    asking = [file for file, _ in structure.places(facts, structure.files())]
    assert {*asking} == {*ASKS}
    own = {'program/result_tables.py'}
    assert {file for file in asking if asking.count(file) > 1} == own


def test_annotations_say_what_is_meant() -> None:
    """`Any` and nothing else is rare."""
    assert structure.share(structure.files()) < 0.04


def test_bodies_are_short() -> None:
    """The median, nine tenths, and all."""
    found = dict(structure.numbers(structure.files()))
    assert found['median body of a function'] <= 5
    assert found['90 % of bodies have at most'] <= 20
    assert found['longest body'] <= 50


DIFFICULT = [
    *(
        'scheduling/budget',
        'device/backward',
        'device/derivatives',
        'device/random_keys',
    ),
    *('device/random_keys', 'device/linear', 'device/linearity'),
    *('device/split', 'device/split_reverse'),
    *('device/sums', 'device/xla', 'debug/nonfinite', 'debug/visit'),
    *('scheduling/demands', 'scheduling/growth', 'scheduling/sum_trees'),
]


@pytest.mark.parametrize('name', DIFFICULT)
def test_difficult_files_say_why(name: str) -> None:
    """About five comments in a hundred lines of code, or more."""
    (file,) = (x for x in structure.files() if x.name == f'{name}.py')
    assert structure.comments(file) >= 0.05 * structure.code_lines(file)
