# SPDX-License-Identifier: Apache-2.0
"""Copies of models, schedules and what they are made of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import pytest

import jfold as jf


def model() -> jf.Model:
    """A model with a table, which cannot be pickled."""
    words = jf.InputTransform({'a': 1.0}) >> jf.Scalar()
    layer = jf.Function(lambda p, x: p * x, lambda key, x: jax.random.normal(key, ()))
    return jf.compile(words >> layer)


@pytest.mark.parametrize('kind', [copy.copy, copy.deepcopy])
def test_copies_are_of_the_same_model(kind: Callable[[Any], Any]) -> None:
    """A copy of a schedule is for the model, a copy of the model for the schedule."""
    own = model()
    params, schedule = own.init(jax.random.key(0)), own.schedule(['a'])
    want = own.apply(params, schedule).tolist()
    assert own.apply(params, kind(schedule)).tolist() == want
    other = kind(own)
    assert other.apply(params, schedule).tolist() == want
    assert own.apply(params, other.schedule(['a'])).tolist() == want
    assert kind(schedule.spec) == schedule.spec
    assert kind(own.program) is own.program
    assert kind(own.block) is own.block
    corpus = own.trace(['a'], progress=False)
    assert kind(corpus).scheduler is own.scheduler


def test_a_deep_copy_of_a_model_grows_by_itself() -> None:
    own = model()
    own.schedule(['a'])
    other = copy.deepcopy(own)
    other.schedule(['a'] * 2)
    assert (own.programs, other.programs) == (1, 2)


def test_a_declaration_stays_that_of_its_references() -> None:
    tree = jf.ForwardDeclaration()
    same, reference = copy.deepcopy([tree, tree()])
    same.resolve_to(jf.Scalar())
    assert reference.eval(3).item() == 3
