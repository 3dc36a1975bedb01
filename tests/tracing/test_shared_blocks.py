# SPDX-License-Identifier: Apache-2.0
"""Blocks that are used many times: each is looked at once, whatever is equal to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from checking import add, number, observed

import jfold as jf

# ---- used many times -----------------------------------------------------------------

larger = jf.Function(jnp.maximum)
same = jf.Identity()


def repeated(step: Callable[[Any], Any], count: int, block: Any) -> Any:
    """What a step makes of a block, so many times over."""
    for _ in range(count):
        block = step(block)
    return block


def twice(x: jf.Block) -> jf.Block:
    return jf.AllOf(x, x) >> add


# By name, a block that is used twice by a block that is used twice, and so on.
DOUBLED: dict[str, Callable[[int], jf.Block]] = {
    'at once': lambda n: repeated(twice, n, number),
    'after names': lambda n: repeated(
        lambda x: jf.AllOf(same >> x, jf.Pipe() >> x) >> add, n, number
    ),
    'fields of records': lambda n: (
        number
        >> repeated(
            lambda x: jf.AllOf(same, same) >> (x, x) >> larger,
            n,
            jf.Function(jnp.negative),
        )
    ),
    'constants': lambda n: repeated(twice, n, jf.FromTensor(np.ones((), np.float32))),
    'items': lambda n: jf.Map(repeated(twice, n, number)) >> jf.Sum(),
    # A type of more tensors than there is memory for, of which one is taken.
    'wide': lambda n: jf.Pipe(
        repeated(lambda x: jf.AllOf(x, x), n, number), *[jf.GetItem(1)] * n
    ),
}


@pytest.mark.parametrize('name', DOUBLED)
def test_what_is_used_many_times_is_computed_once(name: str) -> None:
    """By both ways to evaluate it; more often, 2^60 uses would have no end."""
    block, example = DOUBLED[name](60), [0.5] if name == 'items' else 0.5
    model = jf.compile(block)
    schedule = model.schedule([example])
    assert model.apply({}, schedule).tolist() == [float(block.eval(example))]
    assert schedule.counts.sum() <= 120
    assert len(str(model.program).splitlines()) <= 300
    assert repr(block)[-3:] in ('...', "'))")


def test_a_function_of_the_data_runs_once_for_a_value() -> None:
    seen: list[int] = []

    def look(x: int) -> int:
        seen.append(x)
        return x

    looked = jf.InputTransform(look) >> number
    block = jf.AllOf(looked, looked) >> add
    assert float(block.eval(3)) == 6
    assert seen == [3]
    assert jf.compile(block).schedule([4, 5]).examples == 2
    assert seen == [3, 4, 5]
    assert float((jf.Map(block) >> jf.Sum()).eval([1, 1])) == 4
    assert seen == [3, 4, 5, 1, 1]


@pytest.mark.parametrize('inside', ['block', 'declaration'])
def test_every_use_of_a_metric_counts(inside: str) -> None:
    seen = number >> observed('m')
    if inside == 'declaration':
        declared = jf.ForwardDeclaration()
        declared.resolve_to(seen)
        seen = declared() >> jf.Identity()
    block = jf.AllOf(seen, seen) >> add
    model = jf.compile(block)
    _, metrics = model.apply({}, model.schedule([3]))
    assert metrics['m'].values[metrics['m'].mask].tolist() == [3, 3]
    assert [float(x) for x in block.eval(3)[1]['m']] == [3, 3]


def test_uses_on_other_values_have_paths_of_their_own() -> None:
    """One block in two fields is two uses, each with its place."""
    negative = number >> jnp.negative
    model = jf.compile(jf.Record({'a': negative, 'b': negative}) >> add)
    for key, path in [('a', "Record['a']"), ('b', "Record['b']")]:
        with pytest.raises(jf.InputError) as caught:
            model.schedule([{'a': 1, 'b': 2} | {key: 'x'}])
        assert path in caught.value.block


def test_a_state_and_an_item_are_two_values() -> None:
    """Though a block may be used on both, in a fold, a reduction and a case."""
    twice = jf.Function(lambda x: 2 * x)
    both = jf.Record((twice, twice)) >> jf.Function(lambda x, y: x - y)
    items = jf.Map(jf.Scalar())
    for block in (items >> jf.Fold(both, jf.Zeros([])), items >> jf.Reduce(both)):
        model, example = jf.compile(block), [1, 5, 2]
        found = model.apply({}, model.schedule([example])).tolist()
        state = {jf.Fold: -32.0, jf.Reduce: -20.0}[type(block.blocks[-1])]
        assert found == [float(block.eval(example))] == [state]


# ---- used many times, on other data --------------------------------------------------


def of_pair(x: jf.Block) -> jf.Block:
    """A number, or two of what is a level less deep: up to 2^n parts of the data."""
    pair = jf.Record((x, x)) >> add
    return jf.OneOf(type, {int: jf.Scalar(), tuple: pair})


def of_optional(x: jf.Block) -> jf.Block:
    """The same with nothing in the place of a number."""
    pair = jf.Record({'a': x, 'b': x}) >> add
    return jf.Optional(pair, jf.FromTensor(np.float32(1)))


def of_cases(x: jf.Block) -> jf.Block:
    """Two cases with one block in each."""
    doubled = jf.Pipe(jf.GetItem(0), x) >> jf.Function(lambda x: 2 * x)
    first = jf.GetItem(0) >> x
    return jf.OneOf(type, {int: jf.Scalar(), list: first, tuple: doubled})


OTHERS: dict[Callable[[jf.Block], jf.Block], list[Any]] = {
    of_pair: [7, (1, 2), ((1, (2, 3)), (4, 5)), ((((6, 1), 1), 1), 1)],
    of_optional: [None, {'a': None, 'b': {'a': None, 'b': None}}],
    of_cases: [7, [2], (3,), [([(5,)],)]],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize('step', OTHERS)
def test_uses_on_other_data_are_lowered_once_where_they_are_many(
    step: Callable[[jf.Block], jf.Block],
) -> None:
    """As if they were declarations: 2^20 uses, of which data may have a few."""
    block, examples = repeated(step, 20, number), OTHERS[step]
    assert block.input_type == jf.ObjectType()
    assert block.output_type == jf.TensorType(())
    model = jf.compile(block)
    values = model.apply({}, model.schedule(examples)).tolist()
    assert values == [float(block.eval(each)) for each in examples]


def test_an_error_in_a_block_with_many_uses() -> None:
    model = jf.compile(repeated(of_optional, 20, number))
    with pytest.raises(jf.InputError, match="expected an item 'a', got 3") as caught:
        model.schedule([None, {'a': None, 'b': {'a': 3}}])
    assert (caught.value.example, caught.value.path) == (1, "['b']['a']")
    assert 'Record' in caught.value.block


def test_every_use_counts_of_a_metric_that_is_used_many_times() -> None:
    """In the order of the data, as if each stood by itself."""

    def step(x: jf.Block) -> jf.Block:
        pair = jf.Record((x, x)) >> add >> observed('m')
        return jf.OneOf(type, {int: jf.Scalar(), tuple: pair})

    def nested(count: int) -> Any:
        return repeated(step, count, number >> observed('m'))

    example = ((1, (2, 3)), ((4, 5), 6))
    for count in (4, 16):
        model = jf.compile(nested(count))
        _, metrics = model.apply({}, model.schedule([example]))
        found = metrics['m'].values[metrics['m'].mask].tolist()
        assert found == [float(x) for x in nested(count).eval(example)[1]['m']]
        assert found == [5, 6, 9, 15, 21]


def test_a_value_of_more_tensors_than_there_can_be() -> None:
    block = repeated(lambda x: jf.AllOf(x, x), 40, number)
    expected = 'expected a result of at most 65,536 tensors, got 1,099,511,627,776'
    with pytest.raises(TypeError, match=expected):
        jf.compile(block)
    output = block.output_type
    assert isinstance(output, jf.TupleType)
    assert output.size == 1 << 40


# ---- what is the same ----------------------------------------------------------------


def squared(x: Any) -> Any:
    return x * x


def two(key: Any) -> Any:
    return jnp.float32(2)


def scaled(name: str) -> jf.Block:
    return jf.Function(jnp.multiply, two, name=name)


@dataclass(frozen=True)
class Divided:
    """Equal where it does something else."""

    by: Any

    def __call__(self, x: int) -> float:
        return x // self.by if isinstance(self.by, int) else x / self.by


class Fresh:
    items = property(lambda self: [1, 2, next(self.numbers)])

    def __init__(self) -> None:
        self.numbers = itertools.count(3)


def test_functions_of_the_data_are_not_the_same() -> None:
    """Equal ones may do something else, and the same one something else each time."""
    quotients = [jf.InputTransform(Divided(by)) >> jf.Scalar() for by in (2, 2.0)]
    model = jf.compile(jf.AllOf(*quotients))
    assert [x.item() for x in model.apply({}, model.schedule([5]))] == [2, 2.5]
    total = jf.Map(jf.Scalar()) >> jf.Sum()
    model = jf.compile(jf.AllOf(*(jf.GetItem('items') >> total for _ in range(2))))
    made = model.apply({}, model.schedule([Fresh()]))
    assert [x.item() for x in made] == [6, 7]


def test_what_is_not_the_same_is_computed_apart() -> None:
    """Layers that have names of their own, other items, and metrics."""
    layers = jf.AllOf(jf.Scalar() >> scaled('a'), jf.Scalar() >> scaled('b'))
    assert jf.compile(layers).schedule([3]).counts.sum() == 2
    items = (jf.Scalar() >> jf.Function(squared),) * 2
    assert jf.compile(jf.Record(items)).schedule([(3, 4)]).counts.sum() == 2
    seen = [jf.Scalar() >> jf.Metric('m') for _ in range(2)]
    model = jf.compile(jf.AllOf(*seen))
    _, metrics = model.apply({}, model.schedule([3]))
    assert metrics['m'].mask.sum() == 2
