# SPDX-License-Identifier: Apache-2.0
"""Programs of which a part takes turns, and the rest runs before and behind it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree, close
from binary_trees import binary
from expressions import Expression, expressions
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from looped import in_loops
from meshes import over_devices

import jfold as jf
from jfold.program.components import components, phases
from jfold.program.operations import Operations
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

pytestmark = pytest.mark.usefixtures('wide')

WIDTH, WORDS = 3, 20
KEY = jax.random.key(0)
Draw = Callable[[np.random.Generator], Any]


# ---- blocks --------------------------------------------------------------------------


def normal(*shape: int) -> Callable[..., Any]:
    return lambda key, *_: jax.random.normal(key, shape, 'float64') * 0.4


def of_two(name: str) -> jf.Function:
    def joined(p: Any, x: Any, y: Any) -> Any:
        return jnp.tanh(p[0] @ x + p[1] @ y)

    return jf.Function(joined, normal(2, WIDTH, WIDTH), name=name)


embed = jf.Function(lambda p, i: p[i], normal(WORDS, WIDTH), name='embed')
update, cell, out = of_two('update'), of_two('cell'), of_two('out')
one = jf.Function(lambda p, x: jnp.tanh(p @ x), normal(WIDTH, WIDTH), name='one')
score = jf.Function(lambda p, x: jnp.tanh(p @ x), normal(WIDTH), name='score')
exp, weigh = jf.Function(jnp.exp, name='exp'), jf.Function(jnp.multiply, name='weigh')
share = jf.Function(lambda a, b: a / (b + 1), name='share')
loss = jf.Function(lambda x: (x**2).sum(), name='loss')
word = jf.Scalar('int32', below=WORDS) >> embed


def tree(leaf: jf.Block = word) -> jf.Block:
    return binary(leaf, cell)


@jf.compose
def attention(xs: Any) -> Any:
    """A mean of vectors by weights that need no largest score."""
    weights = jf.Map(score >> exp)(xs)
    return share(jf.Sum()(jf.ZipWith(weigh)(weights, xs)), jf.Sum()(weights))


@jf.compose
def softmax(xs: Any) -> Any:
    """A mean of vectors by the softmax of their scores."""
    weights = jf.Softmax()(jf.Map(score)(xs))
    return jf.Sum()(jf.ZipWith(weigh)(weights, xs))


@jf.compose
def rounds(xs: Any) -> Any:
    """Two rounds in which each vector gets the sum of all."""
    for _ in range(2):
        xs = jf.ZipWith(update)(xs, jf.Broadcast()(jf.Sum()(xs)))
    return xs


@jf.compose
def sum_and_more(xs: Any) -> Any:
    """A sum that two functions read."""
    total = jf.Sum()(xs)
    return out(total, one(total))


def children() -> jf.Block:
    """Nodes that add up their children: sums that take turns."""
    like = jf.TensorType((WIDTH,), 'float64')
    node = jf.ForwardDeclaration(name='node', output_type=like)
    parts = {'word': word, 'children': jf.Map(node()) >> jf.Sum()}
    node.resolve_to(jf.Record(parts) >> cell)
    return node()


def observed(block: jf.Block, name: str) -> jf.Block:
    """The value of a block, and its loss as a metric."""
    return block >> jf.AllOf(jf.Identity(), loss >> jf.Metric(name)) >> jf.GetItem(0)


# ---- data ----------------------------------------------------------------------------


def a_word(rng: np.random.Generator) -> int:
    return int(rng.integers(WORDS))


def words(rng: np.random.Generator) -> list[int]:
    return rng.integers(WORDS, size=rng.integers(12)).tolist()


def tree_of(leaf: Draw) -> Draw:
    """A tree of one to five leaves."""

    def grown(rng: np.random.Generator, leaves: int) -> Any:
        if leaves == 1:
            return leaf(rng)
        left = int(rng.integers(1, leaves))
        return grown(rng, left), grown(rng, leaves - left)

    return lambda rng: grown(rng, int(rng.integers(1, 6)))


def many(item: Draw, least: int = 0) -> Draw:
    return lambda rng: [item(rng) for _ in range(rng.integers(least, 6))]


def family(rng: np.random.Generator, depth: int = 3) -> Any:
    count = int(rng.integers(4)) if depth else 0
    below = [family(rng, depth - 1) for _ in range(count)]
    return {'word': a_word(rng), 'children': below}


a_tree = tree_of(a_word)
trees, bags = jf.Map(tree()), tree(jf.Map(word) >> rounds >> jf.Sum())
few = jf.OneOf(
    lambda xs: len(xs) > 2, {True: trees >> jf.Sum(), False: jf.GetItem(0) >> tree()}
)
none = jf.Function(lambda: jnp.zeros(WIDTH), name='none')
fold = jf.Map(word) >> jf.Fold(cell, none)


@jf.compose
def both_sides(x: Any) -> Any:
    """A sum that a fold reads with trees, and a sum of these trees."""
    total = jf.Sum()(jf.Map(word)(jf.GetItem(0)(x)))
    states = trees(jf.GetItem(1)(x))
    pairs = jf.ZipWith(out)(states, jf.Broadcast()(total))
    return jf.Sum()(states), jf.Fold(cell, none)(pairs)


ints = jf.Map(jf.InputTransform(str) >> jf.InputTransform(len) >> jf.Scalar('int32'))
# By name: a block, data, and the numbers of components before, in and behind loops.
MODELS: dict[str, tuple[jf.Block, Draw, tuple[int, int, int]]] = {
    'a sum': (trees >> jf.Sum() >> loss, many(a_tree), (0, 2, 2)),
    'a mean': (trees >> jf.Mean() >> loss, many(a_tree), (0, 2, 2)),
    'attention': (trees >> attention >> loss, many(a_tree), (0, 2, 5)),
    'softmax': (trees >> softmax >> loss, many(a_tree), (0, 2, 8)),
    'rounds': (trees >> rounds >> jf.Sum() >> loss, many(a_tree), (0, 2, 6)),
    'states of rounds': (trees >> rounds, many(a_tree), (0, 2, 4)),
    'a sum that is read twice': (
        trees >> sum_and_more >> loss,
        many(a_tree),
        (0, 2, 2),
    ),
    'a sum or a tree': (few >> one >> loss, many(a_tree, 1), (0, 2, 2)),
    'a sum or a tree as result': (few, many(a_tree, 1), (0, 2, 1)),
    'sums of folds': (jf.Map(fold) >> jf.Sum() >> loss, many(words), (0, 2, 2)),
    'sums of sums': (
        jf.Map(trees >> jf.Sum() >> one) >> jf.Sum() >> loss,
        many(many(a_tree)),
        (0, 2, 4),
    ),
    'softmax of softmax': (
        jf.Map(trees >> softmax >> one) >> softmax >> loss,
        many(many(a_tree)),
        (0, 2, 16),
    ),
    'a sum of largest': (
        jf.AllOf(trees >> jf.Sum(), ints >> jf.Max())
        >> jf.Function(lambda x, n: (x * n).sum(), name='scaled'),
        many(a_tree, 1),
        (2, 1, 2),
    ),
    'metrics': (
        jf.Map(observed(tree(), 'each')) >> observed(attention, 'all'),
        many(a_tree),
        (0, 2, 6),
    ),
    'sums below': (
        tree(jf.Map(word) >> jf.Sum() >> one) >> loss,
        tree_of(words),
        (3, 2, 0),
    ),
    'sums below, as they are': (
        tree(jf.Map(word) >> jf.Sum()) >> loss,
        tree_of(words),
        (2, 2, 0),
    ),
    'softmax below': (tree(jf.Map(word) >> softmax) >> loss, tree_of(words), (8, 2, 0)),
    'rounds below, softmax above': (
        jf.Map(bags) >> softmax >> loss,
        many(tree_of(words)),
        (6, 1, 8),
    ),
    'sums that take turns': (
        jf.Map(children()) >> attention >> loss,
        many(family),
        (0, 2, 5),
    ),
    'sums on both sides that do not meet': (
        both_sides,
        lambda rng: (words(rng), many(a_tree)(rng)),
        (2, 3, 1),
    ),
    'two results': (trees >> attention >> jf.AllOf(loss, one), many(a_tree), (0, 2, 7)),
}
QUICK = 'a sum that is read twice', 'softmax', 'rounds below, softmax above'
ROTATED = [
    pytest.param(name, *options, marks=() if name in QUICK else pytest.mark.slow)
    for name, options in zip(
        MODELS, itertools.cycle(itertools.product(RESIDUALS, STRATEGIES))
    )
]


def batches(name: str, *sizes: int) -> list[list[Any]]:
    rng, (_, draw, _) = np.random.default_rng(1), MODELS[name]
    return [[draw(rng) for _ in range(size)] for size in sizes]


# ---- what runs where -----------------------------------------------------------------


@pytest.mark.parametrize('name', MODELS)
def test_what_runs_where(name: str) -> None:
    block, _, counts = MODELS[name]
    program = jf.compile(block).program
    order = phases(program)
    parts = order.before, order.loops, order.behind
    assert tuple(map(len, parts)) == counts
    assert program.has_loops == bool(order.loops)
    # Nothing that is read in loops is behind them, and loops read nothing of it.
    names = [program.operations[o].layer.name for o in range(len(program.operations))]
    looped = {names[o] for c in order.loops for o in components(program)[c].operations}
    assert 'cell' in looped


def test_what_takes_no_turns_is_in_loops_without_sums() -> None:
    """There a tile costs nothing, while room would."""
    program = jf.compile(tree() >> one >> loss).program
    assert not program.applied


def test_a_largest_with_a_gradient_takes_turns() -> None:
    """Where several items are the largest, its gradient goes by the tree of pairs."""
    assert not jf.compile(trees >> jf.Max(none) >> loss).program.applied


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ('dtype', 'has_loops'),
    [
        *(('uint8', False), ('int32', False), ('float16', False), ('bfloat16', False)),
        *(('int4', True), ('float8_e4m3fn', True), ('complex64', True)),
    ],
)
def test_extrema_begin_with_an_infinity_or_take_turns(
    dtype: str, has_loops: bool
) -> None:
    """Of negative numbers, and of numbers that are not: as of one example alone."""
    kind = jnp.dtype(dtype)
    stopped = jf.Function(lambda x: jax.lax.stop_gradient(x) + x.dtype.type(0))
    items = jf.Map(jf.Tensor([], kind))
    block = jf.Record((items >> jf.Max() >> stopped, items >> jf.Min() >> stopped))
    model = jf.compile(block)
    assert model.program.has_loops == has_loops
    least = 0 if dtype == 'uint8' else -3
    lists = [[2, least, 1], [least], [1, 0, 3, 1, 2, 0, 3, 1, 2, least]]
    examples = [(np.array(x, kind), np.array(x, kind)) for x in lists]
    if jnp.issubdtype(kind, jnp.inexact):
        examples.append((np.array([1, np.nan, 0], kind),) * 2)
    largest, smallest = model.apply({}, model.schedule(examples))
    for k, example in enumerate(examples):
        both = (np.asarray(x).astype('complex') for x in block.eval(example))
        for got, want in zip((largest[k], smallest[k]), both, strict=True):
            np.testing.assert_array_equal(np.asarray(got).astype('complex'), want)


# ---- values and gradients ------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(('name', 'residuals', 'strategy'), ROTATED)
def test_values_and_gradients_are_those_of_eval(
    name: str, residuals: str, strategy: str
) -> None:
    """In two batches of one model, whose rooms and modes of reading differ; options
    take turns."""
    block, *_ = MODELS[name]
    model = jf.compile(block, residuals=residuals, strategy=strategy)
    params = model.init(KEY)
    for examples in batches(name, 1, 5):
        agree(model, params, examples, 1e-11, forward=len(examples) > 1)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('name', ['metrics', 'sums below', 'a sum that is read twice'])
def test_shards(name: str) -> None:
    model = jf.compile(MODELS[name][0])
    (examples,) = batches(name, 4)
    sharding = over_devices(2, AxisType.Explicit)
    agree(model, model.init(KEY), examples, 1e-11, sharding=sharding)


@pytest.mark.long
@pytest.mark.parametrize('root', ['tree', 'whole', 'sequences', 'sequence'])
def test_expressions(root: str) -> None:
    """Drawn ones of which a part takes turns, or nothing, in double precision."""

    @settings(max_examples=3)
    @given(expressions(root, 'float64'), st.sampled_from(RESIDUALS))
    def equal(expression: Expression, residuals: str) -> None:
        model = jf.compile(expression.block, residuals=residuals)
        assume(model.program.applied)
        params, rng = model.init(KEY), np.random.default_rng(2)
        for _ in range(2):
            agree(model, params, expression.batch(rng, 3), 1e-11, forward=True)

    equal()


@pytest.mark.long
def test_transformations() -> None:
    """Forward mode, second derivatives, and a batch of parameters."""
    block, _, _ = MODELS['rounds below, softmax above']
    model, other = jf.compile(block), in_loops(block)
    (examples,) = batches('rounds below, softmax above', 3)
    params, schedule = model.init(KEY), model.schedule(examples)
    along = jax.tree.map(jnp.ones_like, params)
    looped = other.schedule(examples)

    def derived(model: jf.Model, schedule: jf.Schedule) -> Any:
        def total(params: Any) -> Any:
            return model.apply(params, schedule).sum()

        forward = jax.jvp(total, (params,), (along,))
        second = jax.jvp(jax.grad(total), (params,), (along,))
        two = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
        return forward, second, jax.vmap(jax.grad(total))(two)

    close(derived(model, schedule), derived(other, looped), 1e-9)


def test_only_what_takes_turns_is_in_a_loop() -> None:
    """XLA sees no more loops than of a recursion alone."""
    counts = []
    for block, data in (
        (jf.Map(tree()) >> softmax >> loss, [[1, (2, 3)], [(1, (2, 3))]]),
        (tree() >> loss, [(1, 2), (1, (2, 3))]),
    ):
        model = jf.compile(block)
        params, schedule = model.init(KEY), model.schedule(data)

        def total(params: Any, schedule: jf.Schedule, model: jf.Model = model) -> Any:
            return model.apply(params, schedule).sum()

        text = jax.jit(jax.grad(total)).lower(params, schedule).as_text()
        counts.append(text.count('stablehlo.while'))
    assert 0 < counts[0] <= counts[1]


# ---- other ways ----------------------------------------------------------------------


def test_files_keep_what_runs_where(tmp_path: Any) -> None:
    name = 'a sum of largest'
    model = jf.compile(MODELS[name][0])
    (examples,) = batches(name, 3)
    params, schedule = model.init(KEY), model.schedule(examples)
    jf.save(tmp_path / 'model.jfold', model, params, [schedule.spec.capacity])
    loaded = jf.load(tmp_path / 'model.jfold')
    got = loaded.apply(loaded.params, loaded.schedule(examples))
    close(got, model.apply(params, schedule), 1e-12)


def test_prints_say_what_is_in_loops() -> None:
    model = jf.compile(MODELS['softmax'][0])
    (examples,) = batches('softmax', 2)
    schedule, program = model.schedule(examples), model.program
    assert isinstance(program, Operations)
    inside = len(program.operations) - len(program.applied)
    text = f'{inside} of {len(program.operations)} operations in loops'
    assert text in model.explain(schedule)
