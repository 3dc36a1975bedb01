# SPDX-License-Identifier: Apache-2.0
"""When `eval` finds out about types, and what becomes of them."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import jax
import pytest
from checking import same

import jfold as jf
from jfold.language import eager_twin
from jfold.language.inference import infer


@pytest.fixture
def inferred(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The blocks that `eval` has types inferred for, in turn."""
    found: list[Any] = []

    def counted(block: Any) -> Any:
        found.append(block)
        return infer(block)

    monkeypatch.setattr(eager_twin, 'infer', counted)
    return found


def test_eval_infers_types_once_for_each_block(inferred: list[Any]) -> None:
    block = jf.Map(jf.Scalar()) >> jf.Sum()
    for count in range(3):
        same(block.eval([1.0] * count), count)
    same(jf.compile(block).eval([4.0]), 4)
    assert inferred == [block]
    other = jf.Map(jf.Scalar()) >> jf.Sum()
    same(other.eval([4.0]), 4)
    assert inferred == [block, other]


def test_eval_infers_again_what_a_declaration_left_open(inferred: list[Any]) -> None:
    tree = jf.ForwardDeclaration()
    block = jf.AllOf(tree(), jf.Scalar())
    for _ in range(2):
        with pytest.raises(TypeError, match='expected a declaration that is resolved'):
            block.eval(1)
    tree.resolve_to(jf.Scalar())
    same(block.eval(1), (1, 1))
    same(block.eval(2), (2, 2))
    assert inferred == [block] * 3


def test_eval_infers_again_under_wide_types(inferred: list[Any]) -> None:
    block = jf.Scalar('int64') >> jf.Function(lambda x: x + 1)
    with jax.enable_x64(True):
        assert block.eval(2**40).item() == 2**40 + 1
    with pytest.raises(TypeError, match='expected a dtype that JAX keeps'):
        block.eval(2**40)
    assert inferred == [block] * 2


def test_the_types_of_a_block_are_freed_with_it_and_not_pickled() -> None:
    def doubled(x: Any) -> Any:
        return 2 * x

    block = jf.Scalar() >> doubled
    same(block.eval(3), 6)
    part = weakref.ref(doubled)
    del block, doubled
    gc.collect()
    assert part() is None
    block = jf.Map(jf.Scalar()) >> jf.Length()
    before = pickle.dumps(block)
    block.eval([1, 2])
    assert pickle.dumps(block) == before
    same(pickle.loads(before).eval([1, 2]), 2)


@pytest.mark.parametrize('value', [[1, [2], 3], [[1, 2], [3]]])
def test_ragged_arrays_are_refused_as_by_the_engine(value: Any) -> None:
    block = jf.Map(jf.Vector(3))
    model = jf.compile(block)
    for run in lambda: model.schedule([[value]]), lambda: block.eval([value]):
        with pytest.raises(jf.InputError) as caught:
            run()
        assert str(caught.value).startswith('example 0, at [0]: expected float32[3]')
        assert ', which is ragged' in str(caught.value)
