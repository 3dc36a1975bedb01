# SPDX-License-Identifier: Apache-2.0
"""Programs without loops: what they give, and what has none."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from hlo import compiled_text, loops, parse

import jfold as jf
from jfold.language.unrolling import MOST
from jfold.program.components import components
from jfold.scheduling.spec import RESIDUALS

pytestmark = pytest.mark.usefixtures('wide')

WIDTH = 3
KEY = jax.random.key(0)
Atoms = list[dict[str, Any]]


# ---- rounds of messages --------------------------------------------------------------


def update(p: Any, own: Any, around: Any) -> Any:
    return jnp.tanh(own @ p[0] + around @ p[1])


def init_update(key: Any) -> Any:
    return jax.random.normal(key, (2, WIDTH, WIDTH), 'float64') / 4


def network(rounds: int) -> jf.Block:
    """A number of atoms, from states that pass along their bonds so often."""
    layer = nn.Dense(WIDTH, param_dtype='float64')
    first = jf.Vector(2, 'float64') >> jf.Function(layer, name='first')
    state: jf.Block = jf.Share(jf.GetItem('x') >> first)
    for i in range(rounds):
        around = jf.GetItem('bonds') >> jf.Map(state) >> jf.Sum()
        step = jf.Function(update, init_update, name=f'round {i}')
        state = jf.Share(jf.AllOf(state, around) >> step)
    return jf.Map(state) >> jf.Sum() >> jf.Function(jnp.sum, name='last')


def molecule(rng: np.random.Generator, count: int) -> Atoms:
    atoms: Atoms = [{'x': rng.normal(size=2), 'bonds': []} for _ in range(count)]
    for atom in atoms:
        for other in rng.integers(count, size=rng.integers(12)):
            atom['bonds'].append(atoms[other])
    return atoms


def molecules(*counts: int) -> list[Atoms]:
    rng = np.random.default_rng(0)
    return [molecule(rng, count) for count in counts]


@pytest.mark.sampled(1)
@pytest.mark.parametrize('residuals', RESIDUALS)
def test_rounds_of_messages(residuals: str) -> None:
    """Sums of more than eight numbers, of one and of none, to twelve digits."""
    model = jf.compile(network(2), residuals=residuals)
    params = model.init(KEY)
    for counts in (3, 1, 9), (1, 0, 1):
        agree(model, params, molecules(*counts), 1e-12, forward=True)


def test_operations_are_told_apart_and_nothing_is_in_a_loop() -> None:
    """One sum for each round, and one of all atoms; by three operations each."""
    model = jf.compile(network(2))
    names = [each.layer.name for each in model.program.operations]
    assert names.count('add') == 9
    assert sorted({*names} - {'add'}) == ['first', 'last', 'round 0', 'round 1']
    sums = [each for each in components(model.program) if each.recurrent]
    assert [len(each.operations) for each in sums] == [3, 3, 3]
    params = model.init(KEY)
    schedule = model.schedule(molecules(3, 5))

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return model.apply(params, schedule).sum()

    assert not loops(parse(compiled_text(jax.grad(loss), params, schedule)))


def test_uses_beside_each_other_stay_one_operation() -> None:
    """Two that stand one behind the other are two."""
    layer = nn.Dense(WIDTH)
    beside = jf.AllOf(jf.GetItem(0), jf.GetItem(1)) >> jf.Record(
        (jf.Vector(WIDTH) >> jf.Function(layer), jf.Vector(WIDTH) >> jf.Function(layer))
    )
    behind = jf.Vector(WIDTH) >> jf.Function(layer) >> jf.Function(layer)
    for block, count in (beside, 1), (behind, 2):
        model = jf.compile(block)
        assert len(model.program.operations) == count
    params = model.init(KEY)
    assert list(params) == ['Dense']
    agree(model, params, [np.ones(WIDTH), np.arange(WIDTH)])


def test_batches_that_read_nothing_read_within_bounds() -> None:
    """Rows that a program promises to XLA are there, whatever the batch lacks."""
    one, two = (
        jf.Function(lambda w, x: w @ x, lambda key, x: jnp.ones(3), name=name)
        for name in ('one', 'two')
    )
    ends = jf.Map(jf.Map(jf.Vector(3) >> jf.AllOf(one, two)) >> jf.Slice(start=1))
    model = jf.compile(ends)
    params = model.init(jax.random.key(0))
    model.schedule([[[[1.0, 2.0, 3.0]] * 3]])  # so that there is room
    schedule = model.schedule([[[]]])

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return sum(x.sum() for x in jax.tree.leaves(model.apply(params, schedule)))

    grads = interpreter.called(jax.grad(loss), params, schedule)
    assert not grads['two'].any()


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_long_sums_of_16_bits(dtype: str) -> None:
    """Forward, and of cotangents in reverse."""
    model = jf.compile(jf.Map(jf.Scalar(dtype)) >> jf.Sum())
    assert model.apply({}, model.schedule([[1.0] * 1000])).tolist() == [1000.0]
    scale = jf.Function(lambda w, x: w * x, lambda key: jnp.ones((), dtype), name='w')
    one = jf.GetItem(0) >> jf.Scalar(dtype) >> scale >> jf.Broadcast()
    items = jf.GetItem(1) >> jf.Map(jf.Scalar(dtype))
    block = jf.AllOf(one, items) >> jf.ZipWith(jnp.multiply) >> jf.Sum()
    model = jf.compile(block)
    schedule = model.schedule([(1.0, [1.0] * 1000)])
    grads = jax.grad(lambda p: model.apply(p, schedule).sum())(model.init(KEY))
    assert grads['w'].tolist() == 1000.0


def test_sums_of_several_families() -> None:
    """Of one type, at one stage, with operations in common or not."""
    plus = jf.Reduce(jf.Function(jnp.add, name='plus'), associative=True)
    pair = jf.Record((jf.Scalar(), jf.Scalar())) >> jf.Function(jnp.add)
    items = jf.Map(jf.Scalar())
    three = jf.Record((pair, items >> plus, items >> jf.Sum()))
    model = jf.compile(three >> jf.AllOf(plus, jf.Sum()))
    examples = [((1, 2), [3, 4], [5, 6, 7]), ((0, 1), [], [1] * 20)]
    agree(model, {}, examples)
    assert model.apply({}, model.schedule(examples))[0].tolist() == [28, 21]


# ---- around it -----------------------------------------------------------------------


def test_schedules_of_a_corpus_are_those_of_its_examples() -> None:
    """To the bit, and so is what a file gives; a stream has few programs."""
    model, examples = jf.compile(network(2)), molecules(*range(1, 9))
    corpus = model.trace(examples, progress=False)
    rng = np.random.default_rng(1)
    for _ in range(40):
        chosen = rng.permutation(8)[:4]
        one, other = (
            corpus.schedule(chosen),
            model.schedule([examples[i] for i in chosen]),
        )
        assert one.spec == other.spec
        assert (np.asarray(one.indices) == np.asarray(other.indices)).all()
    assert model.programs <= 4
    room = model.reserve(corpus.capacities(4))
    assert model.schedule(examples[-4:]).spec.capacity == room
    summary, operations, *_ = model.explain(model.schedule(examples[:4])).split('\n\n')
    assert summary.endswith(', no loops')
    assert '1x' in operations


def test_rooms_of_a_few_rows() -> None:
    """Narrow products, as their matrices are transposed before."""
    matrix = jf.Function(
        lambda w, x: x @ w.T, lambda key, x: jax.random.normal(key, (2, 3)), name='w'
    )
    examples = [[[1.0, 2, 3], [0, 1, 2]], [[3.0, 1, 0]]]
    model = jf.compile(jf.Map(jf.Vector(3) >> matrix) >> jf.Sum())
    model.reserve(model.trace(examples, progress=False).capacities(2))
    assert max(model.schedule(examples).capacity.rows) < 8
    agree(model, model.init(KEY), examples, forward=True)


# ---- what has loops ------------------------------------------------------------------

nested = jf.ForwardDeclaration(name='nested')
nested.resolve_to(
    jf.OneOf(type, {int: jf.Scalar(), list: jf.Map(nested()) >> jf.Sum()})
)
twice = jf.ForwardDeclaration(name='twice', output_type=[])
twice.resolve_to(jf.Function(jnp.sin))
summed = jf.ForwardDeclaration(name='summed', output_type=[])
summed.resolve_to(jf.Sum())
mapped = jf.ForwardDeclaration(name='mapped')
mapped.resolve_to(jf.Map(jnp.sin) >> jf.Sum())
half = jf.Function(lambda w, x: w * x, lambda key, x: jnp.full((), 0.5), name='half')
LOOPS = {
    'a recursion': (nested(), [[1, [2, 3]]]),
    'a loop over a sequence': (
        jf.Map(jf.Scalar()) >> jf.Fold(jnp.add, jf.Zeros('float32')),
        [[1, 2, 3]],
    ),
    'a reduction that is no sum': (jf.Map(jf.Scalar()) >> jf.Max(), [[1, 3, 2]]),
    'a function of its own results': (jf.Scalar() >> twice() >> twice(), [1.0, 2.0]),
    'a sum of its own results': (
        jf.Map(jf.Map(jf.Scalar()) >> summed()) >> summed(),
        [[[1, 2], [3]]],
    ),
    'a sequence of its own results': (
        jf.Map(jf.Map(jf.Scalar()) >> mapped()) >> mapped(),
        [[[1, 2], [3]], [[1]]],
    ),
    'very many rounds': (jf.Pipe(jf.Scalar(), *[half] * (MOST + 1)), [1.0, 2.0]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', LOOPS)
def test_programs_with_loops(name: str) -> None:
    """Where the data decide how often something runs, or it runs very often."""
    block, examples = LOOPS[name]
    model = jf.compile(block)
    assert model.program.has_loops
    agree(model, model.init(KEY), examples)


def test_declarations_in_several_places() -> None:
    """Which nothing of theirs gets back to."""
    model = jf.compile(jf.Record((jf.Scalar() >> twice(), jf.Scalar() >> twice())))
    assert not model.program.has_loops
    agree(model, {}, [(1.0, 2.0), (3.0, 4.0)])


def test_a_fixed_order_needs_loops() -> None:
    model = jf.compile(jf.Scalar() >> twice(), reproducible=True)
    assert model.program.has_loops
