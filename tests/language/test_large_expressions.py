# SPDX-License-Identifier: Apache-2.0
"""Work is in proportion to the expression, in which one block may be used many times,
and which may be nested without limit."""

from __future__ import annotations

import cProfile
import functools
import pstats
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checking import number

import jfold as jf
from jfold.base.printing import short_text
from jfold.tracing.record import trace


def repeated(step: Callable[[Any], Any], count: int, value: Any = number) -> Any:
    for _ in range(count):
        value = step(value)
    return value


def in_dicts(count: int) -> Any:
    return repeated(lambda x: {'x': x}, count, 2)


def in_lists(count: int) -> Any:
    return repeated(lambda x: [x], count, 2)


NESTED: dict[str, Callable[[Any], Any]] = {
    'records': lambda x: jf.Record({'x': x}),
    'tuples': jf.AllOf,
    'sums': lambda x: jf.Map(x) >> jf.Sum(),
    'choices': lambda x: jf.OneOf(bool, {True: x, False: number}),
    'optionals': jf.Optional,
    'pipes': lambda x: x >> jf.Identity(),
}


def nested(kind: str, count: int) -> jf.Block:
    """A block in a block, and so on; what is in tuples is taken out of all again."""
    block: jf.Block = repeated(NESTED[kind], count)
    return jf.Pipe(block, *[jf.GetItem(0)] * count) if kind == 'tuples' else block


def chosen(block: Callable[[], Any], count: int) -> jf.OneOf:
    return jf.OneOf(abs, {n: block() for n in range(count)})


def layers(count: int) -> jf.Record:
    """Fields that have a layer of one name each."""
    made = [jf.Function(lambda x, n=n: x + n) for n in range(count)]
    return jf.Record([jf.Scalar() >> layer for layer in made])


def stages(count: int) -> jf.Pipe:
    functions = [jf.Function(jnp.negative)] * count
    return jf.Pipe(*[jf.InputTransform(abs)] * count, number, *functions)


LARGE: dict[str, Callable[[int], Any]] = {
    'cases': lambda n: chosen(lambda: jf.Scalar() >> jnp.negative, n),
    'cases of tuples': lambda n: chosen(
        lambda: jf.Record((jf.Scalar(), jf.Scalar())), n
    ),
    'cases of sequences': lambda n: chosen(lambda: jf.Map(jf.Scalar()), n) >> jf.Sum(),
    'fields': lambda n: jf.Record({i: jf.Scalar() for i in range(n)}),
    'layers': layers,
    'stages': stages,
    **{kind: functools.partial(nested, kind) for kind in NESTED},
}


def calls(run: Callable[[], Any]) -> int:
    with cProfile.Profile() as profile:
        run()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.sampled(4)
@pytest.mark.parametrize('kind', LARGE)
def test_twice_the_blocks_take_twice_the_calls(kind: str) -> None:
    def compiled(count: int) -> int:
        block = LARGE[kind](count)
        return calls(lambda: jf.compile(block))

    compiled(4)  # what is done once
    assert compiled(200) < 2.2 * compiled(100)


def test_twice_the_cases_take_twice_the_calls_of_a_first_schedule() -> None:
    def calls_of_schedule(count: int) -> int:
        tree = jf.ForwardDeclaration(name='tree')
        pair = jf.Record({'l': tree(), 'r': tree()}) >> jf.Function(jnp.add)
        kinds = dict.fromkeys(range(count), pair)
        kinds[-1] = jf.GetItem('v') >> number
        tree.resolve_to(jf.OneOf(jf.GetItem('k'), kinds))
        model, leaf = jf.compile(tree()), {'k': -1, 'v': 1.0}
        return calls(lambda: model.schedule([{'k': 0, 'l': leaf, 'r': leaf}]))

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
    block = repeated(jf.Map, 5000)
    assert repr(block) == f"{'Map(' * 5000}Scalar('float32'){')' * 5000}"


# ---- nested deep ---------------------------------------------------------------------

# Others 1500: more calls than Python's stack takes.
DEEP = {'records': 300, 'tuples': 300, 'sums': 300}  # their types nest as deep


@pytest.mark.sampled(2)
@pytest.mark.parametrize('kind', NESTED)
def test_expressions_are_nested_deep(kind: str) -> None:
    depth = DEEP.get(kind, 1500)
    block, example = nested(kind, depth), 2
    if kind in ('records', 'sums'):
        example = (in_dicts if kind == 'records' else in_lists)(depth)
    model = jf.compile(block)
    assert len(repr(block)) > depth
    schedule = model.schedule([example])
    value = model.apply(model.init(jax.random.key(0)), schedule)
    twin = block.eval(example)
    for _ in range(depth if kind == 'records' else 0):
        (value,), (twin,) = value, twin
    assert value.tolist() == [2]
    assert float(twin) == 2


def test_expressions_that_are_nested_too_deep_are_refused() -> None:
    with pytest.raises(TypeError, match='expected an expression that is nested less'):
        jf.compile(nested('choices', 4000))
    text = 'expected values nested less deep, got .* beyond the 1,000 calls that Python'
    for use in jf.compile, lambda x: x.eval(in_dicts(2000)), lambda x: x.output_type:
        with pytest.raises(TypeError, match=text):
            use(nested('records', 2000))


def test_short_hands_in_short_hands() -> None:
    short, spec = (
        repeated(step, 100, x)
        for step, x in ((lambda x: {'x': x}, number), (lambda x: (x,), 'float32'))
    )
    assert repr(jf.convert_to_block(short)) == repr(nested('records', 100))
    type_ = jf.convert_to_type(spec)
    assert repr(type_) == f'{"(" * 100}float32[]{",)" * 100}'
    assert isinstance(type_, jf.TupleType)
    assert type_.size == 1


def test_predictions_of_deep_values() -> None:
    model = jf.compile(nested('records', 300))
    found = model.predict({}, [in_dicts(300)] * 3, batch_size=2)
    for _ in range(300):
        (found,) = found
    assert found.tolist() == [2, 2, 2]


def test_many_declarations_in_turn() -> None:
    """Each refers to the next, the last to the first."""
    turn = [jf.ForwardDeclaration(name=f'turn_{i}') for i in range(400)]
    for each, other in zip(turn, [*turn[1:], turn[0]], strict=True):
        inner = jf.GetItem(0) >> other()
        each.resolve_to(jf.OneOf(type, {int: number, list: inner}))
    model = jf.compile(turn[0]())
    assert model.apply({}, model.schedule([2, in_lists(5)])).tolist() == [2, 2]
    assert float(turn[0]().eval(in_lists(1500))) == 2


def declared(block: jf.Block, name: str) -> jf.Block:
    declaration = jf.ForwardDeclaration(name=name)
    declaration.resolve_to(block)
    return declaration()


def passed_up(count: int) -> jf.Block:
    """What a function makes, as the result of so many declarations."""
    names = map('up_{}'.format, range(count))
    return functools.reduce(declared, names, number >> jf.Function(jnp.sin))


def passed_down(count: int) -> jf.Block:
    """What so many functions make, each passed on to all declarations before it."""
    inner = [declared(jf.Function(jnp.sin), 'sin')]
    for k in range(1, count):
        inner.append(declared(inner[-1], f'down_{k}'))
    makers = [jf.Function(lambda x, k=k: x + k, name=f'add_{k}') for k in range(count)]
    return number >> jf.AllOf(*map(jf.Pipe, makers, inner))


@pytest.mark.parametrize(
    ('block', 'nodes'), [(passed_up(200), 1), (passed_down(70), 140)]
)
def test_many_declarations_that_pass_values_on(block: jf.Block, nodes: int) -> None:
    assert trace(jf.compile(block).program, [2]).nodes == nodes


def test_a_declaration_of_deep_tuples() -> None:
    """Parentheses may not be so deep in Python."""
    block = declared(repeated(jf.AllOf, 250), 'deep')
    block = jf.Pipe(block, *[jf.GetItem(0)] * 250) >> jf.Function(jnp.sin)
    with pytest.raises(TypeError, match='150 deep, got an expression whose source Py'):
        trace(jf.compile(block).program, [2])


def test_loops_in_loops() -> None:
    block: jf.Block = number
    for _ in range(19):
        block = jf.Map(block)
    jf.compile(block).schedule([[]])
    with pytest.raises(TypeError, match='expected sequences nested up to 19 deep'):
        jf.compile(jf.Map(block)).schedule([[]])


def test_an_error_in_a_deep_block() -> None:
    """A path nobody would read shows its beginning and its end."""
    block = nested('records', 300) >> jf.Function(jnp.negative) >> jf.Scalar()
    with pytest.raises(TypeError, match='expected') as caught:
        jf.compile(block)
    assert len(str(caught.value)) < 100_100  # of the type, the beginning
    with pytest.raises(jf.InputError) as wrong:
        jf.compile(nested('records', 300)).schedule([in_dicts(299)])
    path = wrong.value.block
    assert path.startswith("Record['x'].Record['x'].")
    assert ' ... ' in path
    assert path.endswith("Record['x'].Record({'x': Scalar('float32')})")
    assert len(path) < 1300
    with pytest.raises(jf.InputError) as twin:
        nested('records', 300).eval(in_dicts(299))
    assert str(twin.value) == str(wrong.value)
