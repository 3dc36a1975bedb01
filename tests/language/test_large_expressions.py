# SPDX-License-Identifier: Apache-2.0
"""Work is in proportion to the expression, in which one block may be used many times,
and which may be nested without limit."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from large_blocks import calls, layers, sums

import jfold as jf
from jfold.base.printing import short_text


def cases(count: int) -> jf.OneOf:
    """A choice of one of so many blocks."""
    return jf.OneOf(abs, {n: jf.Scalar() >> jnp.negative for n in range(count)})


def cases_of_tuples(count: int) -> jf.OneOf:
    """The same, of blocks that give tuples."""
    pair = (jf.Scalar(), jf.Scalar())
    return jf.OneOf(abs, [(n, jf.Record(pair)) for n in range(count)])


def cases_of_sequences(count: int) -> jf.Block:
    """The same, of blocks that give sequences."""
    chosen = jf.OneOf(abs, {n: jf.Map(jf.Scalar()) for n in range(count)})
    return chosen >> jf.Reduce(jnp.add)


def fields(count: int) -> jf.Record:
    """A record of so many fields."""
    return jf.Record({n: jf.Scalar() for n in range(count)})


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


FLAT = [cases, cases_of_tuples, cases_of_sequences, fields, layers, stages]
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
    assert short_text(block) == f'{start[:57]}...'


def test_a_deep_block_prints() -> None:
    """Without recursion."""
    block: jf.Block = jf.Scalar()
    for _ in range(5000):
        block = jf.Map(block)
    assert repr(block) == f"{'Map(' * 5000}Scalar('float32'){')' * 5000}"


# ---- nested deep ---------------------------------------------------------------------

# Others 1500: more calls than Python's stack takes.
DEEP = {records: 300, tuples: 300, sums: 300}  # their types nest as deep


@pytest.mark.parametrize('make', NESTED)
def test_expressions_are_nested_deep(make: Callable[[int], Any]) -> None:
    """Their types, their programs, their values."""
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


def test_expressions_that_are_nested_too_deep_are_refused() -> None:
    text = 'expected values nested less deep, got .* beyond the 1,000 calls that Python'
    for use in jf.compile, lambda x: x.eval(in_dicts(2000)):
        with pytest.raises(TypeError, match=text):
            use(records(2000))
    with pytest.raises(TypeError, match='expected an expression that is nested less'):
        jf.compile(choices(20_000))


def test_short_hands_in_short_hands() -> None:
    """Of blocks, and of types."""
    nested: Any = jf.Scalar()
    spec: Any = 'float32'
    for _ in range(100):
        nested, spec = {'x': nested}, (spec,)
    assert repr(jf.convert_to_block(nested)) == repr(records(100))
    type_ = jf.convert_to_type(spec)
    assert repr(type_) == f'{"(" * 100}float32[]{",)" * 100}'
    assert isinstance(type_, jf.TupleType)
    assert type_.size == 1


def test_predictions_of_deep_values() -> None:
    model = jf.compile(records(300))
    found = model.predict({}, [in_dicts(300)] * 3, batch_size=2)
    for _ in range(300):
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
    block = records(300) >> jf.Function(jnp.negative) >> jf.Scalar()
    with pytest.raises(TypeError, match='expected') as caught:
        jf.compile(block)
    assert len(str(caught.value)) < 100_100  # of the type, the beginning
    with pytest.raises(jf.InputError) as wrong:
        jf.compile(records(300)).schedule([in_dicts(299)])
    path = wrong.value.block
    assert path.startswith("Record['x'].Record['x'].")
    assert ' ... ' in path
    assert path.endswith("Record['x'].Record({'x': Scalar('float32')})")
    assert len(path) < 1300
    with pytest.raises(jf.InputError) as twin:
        records(300).eval(in_dicts(299))
    assert str(twin.value) == str(wrong.value)
