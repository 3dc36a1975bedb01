# SPDX-License-Identifier: Apache-2.0
"""Work is in proportion to the expression, in which one block may be used many times,
and which may be nested without limit."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfold as jf
from jfold.printing import short


def cases(count: int) -> jf.OneOf:
    """A choice of one of so many blocks."""
    return jf.OneOf(abs, {n: jf.Scalar() >> jnp.negative for n in range(count)})


def cases_of_tuples(count: int) -> jf.OneOf:
    """The same, of blocks that give tuples."""
    pair = (jf.Scalar(), jf.Scalar())
    return jf.OneOf(abs, [(n, jf.Record(pair)) for n in range(count)])


def fields(count: int) -> jf.Record:
    """A record of so many fields."""
    return jf.Record({n: jf.Scalar() for n in range(count)})


def layers(count: int) -> jf.Record:
    """The same, with a layer of one name in each."""
    made = [jf.Function(lambda x, n=n: x + n) for n in range(count)]
    return jf.Record([jf.Scalar() >> layer for layer in made])


def stages(count: int) -> jf.Pipe:
    """A pipe of so many blocks."""
    functions = [jf.Function(jnp.negative)] * count
    return jf.Pipe(*[jf.InputTransform(abs)] * count, jf.Scalar(), *functions)


def records(count: int) -> jf.Block:
    """A record in a record, and so on."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.Record({'x': block})
    return block


def tuples(count: int) -> jf.Block:
    """The same of `AllOf`, and the value taken out of all the tuples again."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.AllOf(block)
    return jf.Pipe(block, *[jf.GetItem(0)] * count)


def sums(count: int) -> jf.Block:
    """Sums over sums of sequences."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.Map(block) >> jf.Sum()
    return block


def choices(count: int) -> jf.Block:
    """A choice inside a choice."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.OneOf(bool, {True: block, False: jf.Scalar()})
    return block


def optionals(count: int) -> jf.Block:
    """An optional inside an optional."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = jf.Optional(block)
    return block


def pipes(count: int) -> jf.Block:
    """A pipe made step by step."""
    block: jf.Block = jf.Scalar()
    for _ in range(count):
        block = block >> jf.Identity()
    return block


def in_dicts(count: int) -> Any:
    """The number 2 in so many dicts."""
    value: Any = 2
    for _ in range(count):
        value = {'x': value}
    return value


def in_lists(count: int) -> Any:
    """The number 2 in so many lists."""
    value: Any = 2
    for _ in range(count):
        value = [value]
    return value


def calls(block: jf.Block) -> int:
    """How many calls compiling takes."""
    with cProfile.Profile() as profile:
        jf.compile(block)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


FLAT = [cases, cases_of_tuples, fields, layers, stages]
NESTED = [records, tuples, sums, choices, optionals, pipes]
MANY = [*FLAT, *NESTED]


@pytest.mark.parametrize('make', MANY)
def test_twice_the_blocks_take_twice_the_calls(make: Callable[[int], Any]) -> None:
    calls(make(4))  # what is done once
    assert calls(make(200)) < 2.2 * calls(make(100))


def test_twice_the_cases_take_twice_the_calls_of_a_first_schedule() -> None:
    """In which the plan is rewritten, and checked again."""

    def calls_of_schedule(count: int) -> int:
        tree = jf.ForwardDeclaration(name='tree')
        pair = jf.Record({'l': tree(), 'r': tree()}) >> jf.Function(jnp.add)
        kinds = dict.fromkeys(range(count), pair)
        kinds[-1] = jf.GetItem('v') >> jf.Scalar()
        tree.resolve_to(jf.OneOf(jf.GetItem('k'), kinds))
        model, leaf = jf.compile(tree()), {'k': -1, 'v': 1.0}
        with cProfile.Profile() as profile:
            model.schedule([{'k': 0, 'l': leaf, 'r': leaf}])
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    calls_of_schedule(4)  # what is done once
    assert calls_of_schedule(200) < 2.2 * calls_of_schedule(100)


def test_the_beginning_of_a_block_is_printed_alone() -> None:
    """What is behind the cut is not even asked."""

    class Asked(jf.Block):
        def __repr__(self) -> str:
            raise AssertionError('printed')

    block = jf.AllOf(*[jf.Scalar()] * 4, Asked())
    start = "AllOf(Scalar('float32'), Scalar('float32'), Scalar('float32')"
    assert short(block) == f'{start[:57]}...'


def test_a_deep_block_prints() -> None:
    """Without recursion."""
    block: jf.Block = jf.Scalar()
    for _ in range(5000):
        block = jf.Map(block)
    assert repr(block) == f"{'Map(' * 5000}Scalar('float32'){')' * 5000}"


# ---- nested without limit ------------------------------------------------------------

DEEP = {records: 5000}  # others 1500: more calls than Python's stack takes


@pytest.mark.parametrize('make', NESTED)
def test_depth_is_no_limit(make: Callable[[int], Any]) -> None:
    """Of expressions: their types, their programs, their values."""
    depth = DEEP.get(make, 1500)
    block = make(depth)
    nested = {records: in_dicts, sums: in_lists}
    example = nested[make](depth) if make in nested else 2
    model = jf.compile(block)
    assert len(repr(block)) > depth
    schedule = model.schedule([example])
    value = model.apply(model.init(jax.random.key(0)), schedule)
    twin = block.eval(example)
    for _ in range(depth if make is records else 0):
        (value,), (twin,) = value, twin
    assert value.tolist() == [2]
    assert float(twin) == 2


def test_short_hands_in_short_hands() -> None:
    """Of blocks, and of types."""
    nested: Any = jf.Scalar()
    spec: Any = 'float32'
    for _ in range(3000):
        nested, spec = {'x': nested}, (spec,)
    assert repr(jf.convert_to_block(nested)) == repr(records(3000))
    type_ = jf.convert_to_type(spec)
    assert repr(type_) == f'{"(" * 3000}float32[]{",)" * 3000}'
    assert isinstance(type_, jf.TupleType)
    assert type_.size == 1


def test_predictions_of_deep_values() -> None:
    """Put together from batches without recursion."""
    model = jf.compile(records(1500))
    found = model.predict({}, [in_dicts(1500)] * 3, batch_size=2)
    for _ in range(1500):
        (found,) = found
    assert found.tolist() == [2, 2, 2]


def test_many_declarations_in_turn() -> None:
    """Each refers to the next, the last to the first."""
    turn = [jf.ForwardDeclaration(name=f'turn_{i}') for i in range(400)]
    for each, other in zip(turn, [*turn[1:], turn[0]], strict=True):
        inner = jf.GetItem(0) >> other()
        each.resolve_to(jf.OneOf(type, {int: jf.Scalar(), list: inner}))
    model = jf.compile(turn[0]())
    assert model.apply({}, model.schedule([2, in_lists(5)])).tolist() == [2, 2]
    assert float(turn[0]().eval(in_lists(1500))) == 2


def test_an_error_in_a_deep_block() -> None:
    """A path nobody would read shows its beginning and its end."""
    block = records(1500) >> jf.Function(jnp.negative) >> jf.Scalar()
    with pytest.raises(TypeError, match='expected') as caught:
        jf.compile(block)
    assert len(str(caught.value)) < 100_100  # of the type, the beginning
    with pytest.raises(jf.InputError) as wrong:
        jf.compile(records(1500)).schedule([in_dicts(1499)])
    path = wrong.value.block
    assert path.startswith("Record['x'].Record['x'].")
    assert ' ... ' in path
    assert path.endswith("Record['x'].Record({'x': Scalar('float32')})")
    assert len(path) < 1300
    with pytest.raises(TypeError) as twin:
        records(1500).eval(in_dicts(1499))
    assert len(twin.value.__notes__) <= 1


# ---- used many times -----------------------------------------------------------------

add, larger = jf.Function(jnp.add), jf.Function(jnp.maximum)


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
    """Constants of constants."""
    block: jf.Block = jf.FromTensor(np.ones((), np.float32))
    for _ in range(count):
        block = jf.AllOf(block, block) >> add
    return block


def doubled_items(count: int) -> jf.Block:
    """On every item of a sequence."""
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
def test_a_block_is_lowered_once_for_each_value(make: Callable[[int], Any]) -> None:
    calls(make(4))
    assert calls(make(14)) < 2.2 * calls(make(7))


@pytest.mark.parametrize('make', DOUBLED)
def test_what_is_used_many_times_is_computed_once(make: Callable[[int], Any]) -> None:
    """By both ways to evaluate it."""
    block, example = make(60), [0.5] if make is doubled_items else 0.5
    model = jf.compile(block)
    schedule = model.schedule([example])
    assert model.apply({}, schedule).tolist() == [float(block.eval(example))]
    assert schedule.counts.sum() <= 120
    assert len(str(model.program).splitlines()) <= 200
    assert repr(block)[-3:] in ('...', "'))")


def test_a_function_of_the_data_runs_once_for_a_value() -> None:
    seen: list[int] = []

    def look(x: int) -> int:
        seen.append(x)
        return x

    number = jf.InputTransform(look) >> jf.Scalar()
    block = jf.AllOf(number, number) >> add
    assert float(block.eval(3)) == 6
    assert seen == [3]
    assert jf.compile(block).schedule([4, 5]).examples == 2
    assert seen == [3, 4, 5]
    assert float((jf.Map(block) >> jf.Sum()).eval([1, 1])) == 4
    assert seen == [3, 4, 5, 1, 1]


@pytest.mark.parametrize('inside', ['block', 'declaration'])
def test_every_use_of_a_metric_counts(inside: str) -> None:
    seen = jf.Scalar() >> jf.AllOf(jf.Identity(), jf.Metric('m')) >> jf.GetItem(0)
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
    number = jf.Scalar() >> jnp.negative
    model = jf.compile(jf.Record({'a': number, 'b': number}) >> add)
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
        twice = jf.Pipe(jf.GetItem(0), block) >> jf.Function(lambda x: 2 * x)
        block = jf.OneOf(type, {int: jf.Scalar(), list: block_of(block), tuple: twice})
    return block


def block_of(block: jf.Block) -> jf.Block:
    """On the first item."""
    return jf.GetItem(0) >> block


OTHERS: dict[Callable[[int], jf.Block], list[Any]] = {
    in_pairs: [7, (1, 2), ((1, (2, 3)), (4, 5)), ((((6, 1), 1), 1), 1)],
    in_optionals: [None, {'a': None, 'b': {'a': None, 'b': None}}],
    in_cases: [7, [2], (3,), [([(5,)],)]],
}


@pytest.mark.parametrize('make', OTHERS)
def test_uses_on_other_data_are_lowered_once_where_they_are_many(
    make: Callable[[int], jf.Block],
) -> None:
    """As if they were declarations: 2^30 uses, of which data may have a few."""
    block, examples = make(30), OTHERS[make]
    assert block.input_type == jf.ObjectType()
    assert block.output_type == jf.TensorType(())
    model, small = jf.compile(block), jf.compile(make(4))
    assert len(model.program.plan.declarations) < 60
    assert small.program.plan.declarations == ()
    values = model.apply({}, model.schedule(examples)).tolist()
    assert values == small.apply({}, small.schedule(examples)).tolist()
    assert values == [float(block.eval(each)) for each in examples]


def test_an_error_in_a_block_with_many_uses() -> None:
    """The way in the data is told as ever."""
    model = jf.compile(in_optionals(20))
    with pytest.raises(jf.InputError, match="expected an item 'a', got 3") as caught:
        model.schedule([None, {'a': None, 'b': {'a': 3}}])
    assert (caught.value.example, caught.value.path) == (1, "['b']['a']")
    assert 'Record' in caught.value.block


def test_every_use_counts_of_a_metric_that_is_used_many_times() -> None:
    """In the order of the data, as if each stood by itself."""

    def observed(count: int) -> jf.Block:
        seen = jf.AllOf(jf.Identity(), jf.Metric('m')) >> jf.GetItem(0)
        block: jf.Block = jf.Scalar() >> seen
        for _ in range(count):
            pair = jf.Record((block, block)) >> add >> seen
            block = jf.OneOf(type, {int: jf.Scalar(), tuple: pair})
        return block

    example = ((1, (2, 3)), ((4, 5), 6))
    for count in (4, 16):
        model = jf.compile(observed(count))
        _, metrics = model.apply({}, model.schedule([example]))
        found = metrics['m'].values[metrics['m'].mask].tolist()
        assert found == [float(x) for x in observed(count).eval(example)[1]['m']]
        assert found == [5, 6, 9, 15, 21]


def test_a_value_of_more_tensors_than_there_can_be() -> None:
    """Is told at once, with their number."""
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


SAME: dict[str, tuple[Any, int]] = {
    'functions': (lambda: jf.Scalar() >> jf.Function(squared), 1),
    'functions of functions': (
        lambda: jf.Scalar() >> jf.Function(squared) >> jf.Function(jnp.tanh),
        2,
    ),
    'items': (lambda: jf.AllOf(jf.Scalar(), jf.Scalar()) >> jf.Function(jnp.add), 1),
    'layers of one name': (lambda: jf.Scalar() >> scaled('scale'), 1),
}


@pytest.mark.parametrize('name', SAME)
def test_what_is_the_same_is_computed_once(name: str) -> None:
    """By other blocks, which are equal in what they do to the same value."""
    make, nodes = SAME[name]
    model = jf.compile(jf.AllOf(make(), make(), make()))
    schedule = model.schedule([3, 4])
    assert schedule.counts.sum() == 2 * nodes
    params = model.init(jax.random.key(0))
    alone = jf.compile(make())
    expected = alone.apply(params, alone.schedule([3, 4]))
    for x in model.apply(params, schedule):
        np.testing.assert_allclose(x, expected)


def test_slices_are_the_same() -> None:
    """In all versions of Python, though not all can hash them."""
    halves = [jf.Slice(start=1) >> jf.Map(jf.Function(squared)) for _ in range(2)]
    sums = [half >> jf.Sum() for half in halves]
    model = jf.compile(jf.Map(jf.Scalar()) >> jf.AllOf(*sums))
    assert str(model.program).count(' = Cut ') == 1
    assert model.schedule([[1, 2, 3]]).counts.sum() == 2 + 2  # functions, then sums


@dataclass(frozen=True)
class Divided:
    """Equal where it does something else."""

    by: Any

    def __call__(self, x: int) -> float:
        return x // self.by if isinstance(self.by, int) else x / self.by


class Fresh:
    items = property(lambda self: iter([1, 2, 3]))


def test_functions_of_the_data_are_not_the_same() -> None:
    """Equal ones may do something else, and what they give may be read once."""
    quotients = [jf.InputTransform(Divided(by)) >> jf.Scalar() for by in (2, 2.0)]
    model = jf.compile(jf.AllOf(*quotients))
    assert [x.item() for x in model.apply({}, model.schedule([5]))] == [2, 2.5]
    total = jf.Map(jf.Scalar()) >> jf.Sum()
    lists = jf.InputTransform(list) >> total
    for read, example in (
        (lambda: jf.InputTransform(iter), [1, 2, 3]),
        (lambda: jf.GetItem('items'), Fresh()),
    ):
        model = jf.compile(jf.AllOf(read() >> total, read() >> lists))
        made = model.apply({}, model.schedule([example]))
        assert [x.item() for x in made] == [6, 6]


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
