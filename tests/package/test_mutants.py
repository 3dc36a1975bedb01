# SPDX-License-Identifier: Apache-2.0
"""The list of mutants, which `make mutants` runs, fits the code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize('mutant', MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_mutant_has_its_place(mutant: Mutant) -> None:
    """Where this fails, the code has changed: look for the place of the rule now."""
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.before) == 1
    assert mutant.after != mutant.before
    assert mutant.file.startswith('jfold/')
    assert mutant.tests
    for test in mutant.tests:
        assert test.startswith('tests/')
        assert (ROOT / test).is_file()


def test_rules_are_short_sentences_each_of_one_mutant() -> None:
    rules = Counter(mutant.rule for mutant in MUTANTS)
    assert [rule for rule, count in rules.items() if count > 1] == []
    assert [x for x in rules if len(x.split()) > 15 or not x.endswith('.')] == []
    places = Counter((mutant.file, mutant.before) for mutant in MUTANTS)
    assert max(places.values()) == 1
