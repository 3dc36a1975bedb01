# SPDX-License-Identifier: Apache-2.0
"""Lazy functions: constants and empty lists as arguments; types computed once."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

import jfold as jf
from jfold.language import lazy_registry


def rows(function: jf.Block, examples: list[Any]) -> Any:
    """The results of a model, compiled with the same examples."""
    model = jf.compile(function, like=examples)
    return model.apply({}, model.schedule(examples))


def test_types_of_tuples_and_lists_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for each call on them."""
    total = jf.Sum()
    swap = jf.Function(lambda a, b: (b, a))

    @jf.lazy
    def swapped(numbers: Any) -> Any:
        values = [jf.float32(x) for x in numbers]
        first, _ = swap((total(values), values[0]))
        return first

    model = jf.compile(swapped, like=[[1, 2]])

    def refused(*_: object) -> NoReturn:
        raise AssertionError

    for name in ('TupleType', 'SequenceType'):
        monkeypatch.setattr(lazy_registry, name, refused)
    assert model.apply({}, model.schedule([[3, 4], [5]])).tolist() == [3, 5]
