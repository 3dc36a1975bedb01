# SPDX-License-Identifier: Apache-2.0
"""Gradients of functions whose reverse is their own affair, and of what is not used."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from binary_trees import binary
from hlo import compiled_text
from looped import compiled, in_loops
from reverse_rules import (
    BATCH,
    OPPOSITES,
    H,
    added,
    bilinear,
    close,
    gradient,
    normalised,
    ones,
    weighted,
)

import jfold as jf
from jfold.scheduling.layout import layout
from jfold.scheduling.spec import RESIDUALS, STRATEGIES

# ---- rules that are not linear -------------------------------------------------------


def checkpointed_product(w: Any, x: Any) -> Any:
    """A matrix of a vector, both of `w`, within a rule within a checkpoint."""
    matrix = w * jnp.arange(9.0).reshape(H, H) / 9
    return jax.checkpoint(lambda x: jnp.tanh(added(matrix @ x)))(x)


RULES = {
    'adds': lambda w, x: added(w * x),
    'normalises': lambda w, x: normalised(w * x),
    'of both': bilinear,
    'in a loop': lambda w, x: jax.lax.scan(
        lambda c, _: (added(w * c), None), x, None, length=3
    )[0],
    'in a branch': lambda w, x: jax.lax.cond(
        x.sum() > 3, lambda: added(w * x), lambda: normalised(x + w)
    ),
    'a product, checkpointed': checkpointed_product,
    'checkpointed': jax.checkpoint(lambda w, x: added(w * jnp.sin(x))),
}


# Each with residuals and a strategy of loops; rules inside of other functions take long
# to compile.
ROTATED = [
    pytest.param(rule, *options, marks=[pytest.mark.slow] if i > 2 else [])
    for i, (rule, options) in enumerate(
        zip(RULES, itertools.cycle(itertools.product(RESIDUALS, STRATEGIES)))
    )
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(('rule', 'residuals', 'strategy'), ROTATED)
def test_spare_rows_give_nothing_whatever_the_rule(
    rule: str, residuals: str, strategy: str
) -> None:
    """Neither without loops, nor outside a recurrence, nor within; of operations and of
    results. Options take turns."""
    vector, cell = jf.Vector(H), lambda w, x, y: RULES[rule](w, x + y)
    alone = vector >> jf.Function(RULES[rule], init=ones)
    nodes = [([1, 2, 3], ([0, 1, 2], [3, 1, 2])), ([1, 2, 3], [2, 2, 2])]
    for block, way, batch in (
        (alone, None, BATCH),
        (alone, strategy, BATCH),
        (binary(vector, jf.Function(cell, init=ones)), strategy, nodes),
    ):
        model = compiled(block, residuals, way)
        agree(model, model.init(jax.random.key(0)), batch, size=30)


# ---- what depends on parameters alone ------------------------------------------------


def on_a_parameter(w: Any, x: Any) -> Any:
    return added(w) * x


ON_A_PARAMETER = {
    'plain': on_a_parameter,
    'jit': jax.jit(on_a_parameter),
    'checkpoint': jax.checkpoint(on_a_parameter),
    'checkpoint of jit': jax.checkpoint(jax.jit(on_a_parameter)),
    'two checkpoints': jax.checkpoint(
        lambda w, x: jax.checkpoint(on_a_parameter)(w, x) + 0 * x
    ),
    'checkpoint of a parameter': lambda w, x: jax.checkpoint(added)(w) * x,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize('of_row', [False, True])
@pytest.mark.parametrize('residuals', RESIDUALS)
def test_a_rule_that_takes_a_row_and_reads_none(residuals: str, of_row: bool) -> None:
    """Its cotangent of a parameter counts for each row, not for each pair of rows."""
    rule = jax.custom_vjp(lambda a, x: jnp.sin(a))
    rule.defvjp(
        lambda a, x: (jnp.sin(a), (a, x if of_row else None)),
        lambda saved, ct: (ct * jnp.cos(saved[0]), None),
    )
    pair = jax.custom_vjp(lambda a, x: (jnp.sin(a), a * x))
    pair.defvjp(
        lambda a, x: (pair(a, x), (a, x)),
        lambda saved, ct: (ct[0] * jnp.cos(saved[0]) + ct[1] * saved[1], None),
    )
    fn = jf.Function(
        lambda p, x: rule(p['a'], x) * (p['w'] * x) + sum(pair(p['a'], x)),
        lambda key: {'a': jnp.float32(0.5), 'w': jnp.float32(2.0)},
    )
    model = jf.compile(jf.Map(jf.Scalar() >> fn) >> jf.Sum(), residuals=residuals)
    agree(model, model.init(jax.random.key(0)), [[1, 2, 3], [4], []])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ('kind', 'options'), [*zip(ON_A_PARAMETER, itertools.cycle(OPPOSITES))]
)
def test_a_rule_on_a_parameter_runs_once(kind: str, options: Any) -> None:
    """As under `vmap`, however many rows, chunks and tiles there are; options take
    turns."""
    model = compiled(jf.Vector(H) >> jf.Function(ON_A_PARAMETER[kind], ones), *options)
    params = model.init(jax.random.key(0))
    batch = np.random.default_rng(0).normal(size=(2000, H))
    (got,) = gradient(model, params, list(batch))
    np.testing.assert_allclose(got, batch.sum(0) + 0.1, rtol=1e-3)


def test_effects_within_a_checkpoint_are_kept(capfd: Any) -> None:
    """Also those that no rows are needed for."""

    @jax.checkpoint
    def told(w: Any, x: Any) -> Any:
        jax.debug.print('weight {}', w.sum())
        return w * x

    model = jf.compile(jf.Vector(H) >> jf.Function(told, init=ones))
    params = model.init(jax.random.key(0))
    model.apply(params, model.schedule([np.ones(H)])).block_until_ready()
    jax.effects_barrier()
    assert 'weight 3.0' in capfd.readouterr().out


def chain(cell: Any) -> Any:
    """A block that folds a sequence of vectors by a cell with one matrix."""

    def init(key: Any, *specs: Any) -> Any:
        return jax.random.normal(key, (H, H))

    fold = jf.Fold(jf.Function(cell, init=init), jf.Zeros(jf.TensorType((H,))))
    return jf.Map(jf.Vector(H)) >> fold


def turning(w: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(jnp.arctan(w) @ h + x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    'cell', [turning, jax.checkpoint(turning)], ids=['plain', 'checkpoint']
)
@pytest.mark.parametrize(('residuals', 'strategy'), OPPOSITES[:2])
def test_what_depends_on_parameters_alone_is_outside_all_loops(
    residuals: str, strategy: Any, cell: Any
) -> None:
    """Forward and reverse, it is in the program once."""
    model = compiled(chain(cell), residuals, strategy)
    params = model.init(jax.random.key(0))
    schedule = model.schedule([np.ones((n, H)) for n in (5, 9, 2)])

    def loss(params: Any) -> Any:
        return model.apply(params, schedule).sum()

    for fn in (loss, jax.grad(loss)):
        text = compiled_text(fn, params)
        found = [each for each in text.split('\n\n') if 'atan2' in each]
        assert sum(each.count(' atan2(') for each in found) == 1
        assert not any('while' in each.split('{')[0] for each in found)


def test_a_function_that_reads_parameters_alone() -> None:
    block = jf.AllOf(jf.Scalar(), jf.Void() >> jf.Function(jnp.sin, init=ones))
    model = jf.compile(block >> jf.Function(lambda x, w: x * w))
    agree(model, model.init(jax.random.key(0)), [2, 3])


# ---- what is not used ----------------------------------------------------------------


def no_reverse(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + jnp.abs(c) + 1, x)


def root(x: Any) -> tuple[Any, Any]:
    """Twice `x`, and what has no gradient at zero."""
    return 2 * x, jnp.sqrt(jnp.abs(x))


def with_unused(p: Any, x: Any) -> Any:
    """Beside a product: NaN, a rule and a loop without one, of parameters alone."""
    others = jnp.linalg.norm(p['b']), added(p['a']), no_reverse(p['b'] + 1)
    return x * p['a'], *others


def weights(key: Any, *specs: Any) -> Any:
    return {'a': jnp.ones(H), 'b': jnp.zeros(H)}


def root_of_state(w: Any, state: Any, x: Any) -> tuple[Any, Any]:
    return w * x + state[0], jnp.sqrt(jnp.abs(x * w))


roots = jf.Vector(H) >> weighted >> jf.Function(root)
zeros = [[0, 0, 0], [0, 1, 2]]
states = jf.Zeros((jf.TensorType((H,)), jf.TensorType((H,))))
# By name: a block, a batch, and the gradient of the sum of its first result.
UNUSED: dict[str, tuple[jf.Block, Any, Any]] = {
    'results of parameters alone': (
        jf.Vector(H)
        >> jf.Function(with_unused, init=weights)
        >> jf.AllOf(jf.GetItem(0)),
        BATCH,
        [[5, 7, 9], [0, 0, 0]],
    ),
    'results that nothing reads': (
        roots >> jf.AllOf(jf.GetItem(0)),
        zeros,
        [[0, 2, 4]],
    ),
    'results that the loss does not use': (roots, zeros, [[0, 2, 4]]),
    'parts of states': (
        jf.Map(jf.Vector(H)) >> jf.Fold(jf.Function(root_of_state, init=ones), states),
        [[[0, 0, 0], [0, 0.5, 1]], [[0, 0.5, 1]]],
        [[0, 1, 2]],
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', UNUSED)
@pytest.mark.parametrize(('residuals', 'strategy'), OPPOSITES)
def test_what_is_not_used_has_no_reverse(
    name: str, residuals: str, strategy: Any
) -> None:
    """Neither NaN, nor a rule, nor a complaint of a loop without one."""
    block, batch, want = UNUSED[name]
    model = compiled(block, residuals, strategy)
    params, schedule = model.init(jax.random.key(0)), model.schedule(batch)
    got = jax.jit(jax.grad(lambda p: model.apply(p, schedule)[0].sum()))(params)
    close(jax.tree.leaves(got), want)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(('residuals', 'strategy'), OPPOSITES)
def test_metrics_that_are_only_watched_have_no_reverse(
    residuals: str, strategy: Any
) -> None:
    norm = jf.Function(jnp.linalg.norm) >> jf.Metric('norm')
    loop = jf.Function(no_reverse) >> jf.Metric('loop')
    watch = jf.AllOf(jf.Identity(), norm, loop) >> jf.GetItem(0)
    block = jf.Vector(H) >> weighted >> watch
    model = compiled(block, residuals, strategy)
    params, schedule = model.init(jax.random.key(0)), model.schedule(zeros)

    def loss(params: Any) -> Any:
        values, metrics = model.apply(params, schedule)
        return values.sum(), metrics

    got, metrics = jax.grad(loss, has_aux=True)(params)
    close(jax.tree.leaves(got), [np.array([0, 1, 2])])
    assert all(metrics[name].mask.sum() == 2 for name in ('norm', 'loop'))
    (together,) = jax.vmap(jax.grad(lambda q: loss(q)[0]))(
        jax.tree.map(lambda x: jnp.stack([x, x]), params)
    ).values()
    close(together, [np.array([0, 1, 2])] * 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(('residuals', 'strategy'), OPPOSITES)
def test_what_reads_data_alone_needs_no_reverse(residuals: str, strategy: Any) -> None:
    """Though values of its type have gradients, and a sum may be in between."""
    found = jf.Function(no_reverse), weighted
    block = jf.Vector(H) >> jf.AllOf(*found) >> jf.Function(jnp.multiply)
    model = compiled(jf.Map(block) >> jf.Sum(), residuals, strategy)
    agree(model, model.init(jax.random.key(0)), [BATCH])
    lost = jf.Map(jf.Vector(H) >> weighted >> found[0]) >> jf.Sum()
    model = compiled(lost, residuals, strategy)
    with pytest.raises(ValueError, match='Reverse-mode') as caught:
        gradient(model, model.init(jax.random.key(0)), [BATCH])
    assert 'expected a gradient of layer' in caught.value.__notes__[0]


# ---- values of an enclosing transformation -------------------------------------------


def stepped(layer: Any, compiles: Any) -> Any:
    """A loss, and its gradient, of a model that is made in a `jit`, of a function of
    what that traces."""

    @functools.partial(jax.jit, static_argnums=1)
    def step(scale: Any, learns: bool) -> Any:
        model = compiles(jf.Vector(H) >> jf.Function(layer(scale), ones, name='own'))
        params, schedule = model.init(jax.random.key(0)), model.schedule(BATCH)

        def loss(params: Any) -> Any:
            return model.apply(params, schedule).sum()

        return jax.grad(loss)(params)['own'] if learns else loss(params)

    return step


def test_a_function_may_close_over_what_a_jit_traces() -> None:
    """Of the value and of the gradient."""
    step = stepped(lambda scale: lambda w, x: w * x * scale, jf.compile)
    assert step(2.0, False) == 42
    assert step(2.0, True).tolist() == [10, 14, 18]


def ruled(kind: str, scale: Any) -> Any:
    """A function whose rule closes over a number."""
    if kind == 'jvp':
        f: Any = jax.custom_jvp(lambda x: x * 2)
        f.defjvp(lambda x, t: (x[0] * 2, t[0] * scale))
    else:
        f = jax.custom_vjp(lambda x: x * 2)
        f.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * scale,))
    return lambda w, x: f(w * x)


@pytest.mark.parametrize(
    ('kind', 'compiles'), [('vjp', in_loops), ('jvp', in_loops), ('vjp', jf.compile)]
)
def test_a_rule_may_close_over_numbers_alone(kind: str, compiles: Any) -> None:
    """Which no `jit` around traces: JAX compiles no loop with such a rule."""
    step = stepped(functools.partial(ruled, kind), compiles)
    assert step(2.0, False) == 42
    message = (
        'expected a rule of `custom_vjp` or `custom_jvp` that closes over numbers, got '
        'one that closes over float32[], which an enclosing transformation traces; '
        'make it an argument of the function'
    )
    with pytest.raises(TypeError) as caught:
        step(2.0, True)
    assert str(caught.value) == message
    assert "gradient of layer 'own'" in caught.value.__notes__[0]
    model = compiles(jf.Vector(H) >> jf.Function(ruled(kind, 3), init=ones))
    params = model.init(jax.random.key(0))
    close(gradient(model, params, BATCH), [np.array([15, 21, 27])])


def test_a_function_may_close_over_what_is_differentiated() -> None:
    """If it has parameters, or reads what depends on some; it is told else."""

    def loss(scale: Any, *layers: Any, compiles: Any = in_loops) -> Any:
        scaled = jf.Function(lambda x: x * scale)
        model = compiles(functools.reduce(jf.Block.__rshift__, [*layers, scaled]))
        params, schedule = model.init(jax.random.key(0)), model.schedule(BATCH)
        params = jax.tree.map(jnp.ones_like, params)
        return model.apply(params, schedule).sum()

    assert jax.grad(loss)(2.0, jf.Vector(H), weighted) == 21
    message = (
        'function(float32[3]) -> float32[3]: expected a function that is '
        'differentiated with respect to its parameters and inputs alone, got one that '
        'closes over a value that is differentiated outside: make that value a '
        'parameter, `Function(fn, init)`'
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        jax.grad(loss)(2.0, jf.Vector(H))
    assert jax.grad(loss)(2.0, jf.Vector(H), compiles=jf.compile) == 21  # plain JAX


# ---- reverses in one piece -----------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(('residuals', 'strategy'), OPPOSITES)
def test_complex_products_beside_loops(residuals: str, strategy: Any) -> None:
    """JAX cannot save them for the reverse, so that computes them again."""

    def turned(w: Any, h: Any, x: Any) -> Any:
        h = jax.lax.fori_loop(0, 2, lambda _, c: jnp.tanh(w @ c + x), h)
        return jnp.tanh((jax.lax.complex(w, -w) @ jax.lax.complex(h, x)).imag)

    model = compiled(chain(turned), residuals, strategy)
    params = model.init(jax.random.key(0))
    agree(model, params, [np.full((n, H), n / 9) for n in (5, 2)])


# ---- shards --------------------------------------------------------------------------


def scanning(w: Any, h: Any, x: Any) -> Any:
    """A cell with a loop, that starts from what varies as its inputs do."""
    start = jnp.zeros_like(x)
    return jax.lax.scan(lambda c, row: (jnp.tanh(c + row + h), None), start, w)[0] + x


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ('cell', 'options'),
    [
        (lambda w, h, x: jnp.tanh(w @ h + x), OPPOSITES[0]),
        (lambda w, h, x: jnp.tanh(added(w @ h + x)), OPPOSITES[1]),
        (scanning, OPPOSITES[2]),
    ],
)
def test_shards_with_checked_types(cell: Any, options: Any) -> None:
    """`shard_map` with `check_vma=True`; options take turns."""
    block = chain(cell)
    model = compiled(block, *options)
    params = model.init(jax.random.key(0))
    batch = [np.full((n, H), n / 9) for n in (5, 9, 2, 4)]
    whole = model.schedule(batch)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('data',))
    spec = jax.sharding.PartitionSpec

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec(), spec('data')), out_specs=spec()
    )
    def loss(params: Any, schedules: Any) -> Any:
        schedule = jax.tree.map(lambda x: x[0], schedules)
        return jax.lax.psum(model.apply(params, schedule).sum(), 'data')

    stacked = jax.tree.map(lambda x: x[None], whole)
    got, grads = jax.jit(jax.value_and_grad(loss))(params, stacked)
    twin = jax.value_and_grad(lambda p: sum(block.eval(x, p).sum() for x in batch))
    want, expected = interpreter.called(twin, params)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    close(jax.tree.leaves(grads), jax.tree.leaves(expected))


# ---- what is trained and takes nothing -----------------------------------------------


trained = jf.Void() >> jf.Function(jnp.sin, lambda key: jnp.array([1.0, 2.0, 3.0]))
TRAINED = [
    (trained, [None, None]),
    (jf.AllOf(jf.Vector(3), trained) >> jf.GetItem(1), [[1, 2, 3], [4, 5, 6]]),
    (jf.Optional(jf.Vector(3), trained), [None, [1, 2, 3], None]),
]


@pytest.mark.parametrize(
    ('case', 'options'), [*zip(TRAINED, OPPOSITES, strict=True)], ids=range(3)
)
def test_trained_constants_have_gradients(case: Any, options: Any) -> None:
    """Also where no function of the expression takes anything; options take turns."""
    block, examples = case
    model = compiled(block, *options)
    agree(model, model.init(jax.random.key(0)), examples)


# ---- sums ----------------------------------------------------------------------------


@jf.compose
def sums_of_sums(x: Any, y: Any) -> Any:
    """Sums that nothing uses but another, that many use, and that one uses twice."""
    cell = jf.Function(lambda w, x: jnp.sin(w * x), init=ones)
    x, y = cell(x), cell(y)
    add = jf.Function(jnp.add)
    one = add(x, y)
    twice = add(one, one)
    many = functools.reduce(add, [jf.Function(jnp.cos)(twice) for _ in range(2)], one)
    rest = [jf.Function(power)(many) for power in (jnp.sin, jnp.tanh, jnp.square)]
    return functools.reduce(add, rest, add(many, twice))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(('residuals', 'strategy'), OPPOSITES[:2])
def test_what_sums_read_has_their_cotangent(residuals: str, strategy: Any) -> None:
    """Whatever uses the sums, and how often; they leave no edges themselves."""
    block = (jf.Vector(H), jf.Vector(H)) >> sums_of_sums
    model = in_loops(block, residuals=residuals, strategy=strategy)
    batch = [([1, 2, 3], [0, 1, 2]), ([3, 1, 2], [2, 2, 2])]
    agree(model, model.init(jax.random.key(0)), batch)
    places = layout(model.schedule(batch).spec)
    (add,) = (o for o, x in enumerate(model.program.operations) if x.is_sum)
    assert max(x for (o, _), (x, _) in places.edges.items() if o == add) < 0
