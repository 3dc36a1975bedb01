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


def doubled(count: int) -> jf.Block:
    """A block used twice by a block that is used twice, and so on."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.AllOf(block, block) >> add
    return block


def doubled_after_names(count: int) -> jf.Block:
    """The same value by several ways."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.AllOf(jf.Identity() >> block, jf.Pipe() >> block) >> add
    return block


def doubled_in_records(count: int) -> jf.Block:
    """Both fields of a record are one value."""
    block: jf.Block = jf.Function(jnp.negative)
    for _ in range(count):
        block = jf.AllOf(jf.Identity(), jf.Identity()) >> (block, block) >> larger
    return jf.Scalar() >> block


def doubled_constants(count: int) -> jf.Block:
    block: jf.Block = jf.FromTensor(np.ones((), np.float32))
    for _ in range(count):
        block = jf.AllOf(block, block) >> add
    return block


def doubled_items(count: int) -> jf.Block:
    return jf.Map(doubled(count)) >> jf.Sum()


def wide(count: int) -> jf.Block:
    """A type of more tensors than there is memory for, of which one is taken."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.AllOf(block, block)
    return jf.Pipe(block, *[jf.GetItem(1)] * count)


DOUBLED = [
    doubled,
    doubled_after_names,
    doubled_in_records,
    doubled_constants,
    doubled_items,
    wide,
]


@pytest.mark.parametrize('make', DOUBLED)
def test_what_is_used_many_times_is_computed_once(make: Callable[[int], Any]) -> None:
    """By both ways to evaluate it; more often, 2^60 uses would have no end."""
    block, example = make(60), [0.5] if make is doubled_items else 0.5
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


def in_pairs(count: int) -> jf.Block:
    """A number, or two of what is a level less deep: up to 2^n parts of the data."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        pair = jf.Record((block, block)) >> add
        block = jf.OneOf(type, {int: jf.Scalar(), tuple: pair})
    return block


def in_optionals(count: int) -> jf.Block:
    """The same with nothing in the place of a number."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        pair = jf.Record({'a': block, 'b': block}) >> add
        block = jf.Optional(pair, jf.FromTensor(np.float32(1)))
    return block


def in_cases(count: int) -> jf.Block:
    """Two cases with one block in each."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        first = jf.GetItem(0) >> block
        twice = jf.Pipe(jf.GetItem(0), block) >> jf.Function(lambda x: 2 * x)
        block = jf.OneOf(type, {int: jf.Scalar(), list: first, tuple: twice})
    return block


OTHERS: dict[Callable[[int], jf.Block], list[Any]] = {
    in_pairs: [7, (1, 2), ((1, (2, 3)), (4, 5)), ((((6, 1), 1), 1), 1)],
    in_optionals: [None, {'a': None, 'b': {'a': None, 'b': None}}],
    in_cases: [7, [2], (3,), [([(5,)],)]],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize('make', OTHERS)
def test_uses_on_other_data_are_lowered_once_where_they_are_many(
    make: Callable[[int], jf.Block],
) -> None:
    """As if they were declarations: 2^20 uses, of which data may have a few."""
    block, examples = make(20), OTHERS[make]
    assert block.input_type == jf.ObjectType()
    assert block.output_type == jf.TensorType(())
    model = jf.compile(block)
    values = model.apply({}, model.schedule(examples)).tolist()
    assert values == [float(block.eval(each)) for each in examples]


def test_an_error_in_a_block_with_many_uses() -> None:
    model = jf.compile(in_optionals(20))
    with pytest.raises(jf.InputError, match="expected an item 'a', got 3") as caught:
        model.schedule([None, {'a': None, 'b': {'a': 3}}])
    assert (caught.value.example, caught.value.path) == (1, "['b']['a']")
    assert 'Record' in caught.value.block


def test_every_use_counts_of_a_metric_that_is_used_many_times() -> None:
    """In the order of the data, as if each stood by itself."""

    def nested(count: int) -> jf.Block:
        block: jf.Block = number >> observed('m')
        for _ in range(count):
            pair = jf.Record((block, block)) >> add >> observed('m')
            block = jf.OneOf(type, {int: jf.Scalar(), tuple: pair})
        return block

    example = ((1, (2, 3)), ((4, 5), 6))
    for count in (4, 16):
        model = jf.compile(nested(count))
        _, metrics = model.apply({}, model.schedule([example]))
        found = metrics['m'].values[metrics['m'].mask].tolist()
        assert found == [float(x) for x in nested(count).eval(example)[1]['m']]
        assert found == [5, 6, 9, 15, 21]


def test_a_value_of_more_tensors_than_there_can_be() -> None:
    block: jf.Block = jf.Scalar()
    for _ in range(40):
        block = jf.AllOf(block, block)
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
