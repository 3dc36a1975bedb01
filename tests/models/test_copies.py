# SPDX-License-Identifier: Apache-2.0
"""Copies of models, schedules and what they are made of."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
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


def test_what_is_compiled_goes_to_no_other_process(tmp_path: Path) -> None:
    """The error says what to give it instead; a copy here is the same object."""
    own = model()
    params, room = own.init(jax.random.key(0)), own.schedule(['a']).capacity
    jf.save(tmp_path / 'model', own, params, capacities=[room])
    for it, advice in (
        (
            jf.load(tmp_path / 'model'),
            'a `LoadedModel`.*give it the path, for `jf.load`',
        ),
        (
            own.precompile(own.apply, params, room),
            'a `CompiledStep`.*`Model.precompile`',
        ),
    ):
        with pytest.raises(TypeError, match=advice):
            pickle.dumps(it)
        assert copy.deepcopy(it) is it


def test_a_declaration_stays_that_of_its_references() -> None:
    tree = jf.ForwardDeclaration()
    same, reference = copy.deepcopy([tree, tree()])
    same.resolve_to(jf.Scalar())
    assert reference.eval(3).item() == 3
