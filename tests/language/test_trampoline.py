# SPDX-License-Identifier: Apache-2.0
"""Recursion off Python's stack."""

from __future__ import annotations

import pytest

from jfold.base.trampoline import Steps, run


def depth(number: int) -> Steps[int]:
    """How often it calls itself."""
    return 1 + (yield depth(number - 1)) if number else 0


def test_it_returns_what_the_recursion_returns() -> None:
    assert run(depth(0)) == 0
    assert run(depth(20_000)) == 20_000


def test_an_exception_goes_through_every_call() -> None:
    """Each may look at it, change it, or go on."""
    passed: list[int] = []

    def down(number: int) -> Steps[str]:
        if not number:
            raise ValueError('the last')
        try:
            result: str = yield down(number - 1)
        except ValueError:
            passed.append(number)
            if number == 3:
                return 'caught'
            raise
        return result

    assert run(down(5)) == 'caught'
    assert passed == [1, 2, 3]
    with pytest.raises(ValueError, match='the last'):
        run(down(2))
