# SPDX-License-Identifier: Apache-2.0
"""The compiled program: nothing in its loops is as large as a buffer but the buffers,
and training takes little memory beside them.

The checks read the optimised HLO.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary, binary_tree, chain, embedding
from hlo import (
    AS_USERS_HAVE_IT,
    compiled_text,
    copies,
    in_loops,
    kernels,
    large,
    loops,
    parse,
    scatters,
    unbounded,
)
from jax import lax

import jfold as jf
from jfold.runtime import run
from jfold.scheduling.layout import active_types, layout
from jfold.scheduling.schedule import abstract
from jfold.scheduling.spec import FIXED, RESIDUALS, STRATEGIES, Spec
from jfold.scheduling.staircase import SEGMENTS

# ---- the parser finds what it is to find ---------------------------------------------


def test_a_copy_in_a_loop_is_found() -> None:
    """A loop that needs the old buffer beside the new one copies it each time."""

    def bad(buffer: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            buffer, old = carry
            new = lax.dynamic_update_slice(buffer, buffer[i][None] + 1, (i + 1, 0))
            return new, old + buffer[::-1] * new

        return lax.fori_loop(0, 100, body, (buffer, buffer))

    def good(buffer: Any) -> Any:
        def body(i: Any, buffer: Any) -> Any:
            return lax.dynamic_update_slice(buffer, buffer[i][None] + 1, (i + 1, 0))

        return lax.fori_loop(0, 100, body, buffer)

    buffer = jnp.zeros((500, 3))
    assert large(parse(compiled_text(bad, buffer)), 500)
    assert not large(parse(compiled_text(good, buffer)), 500)


def test_a_scatter_in_a_nested_loop_is_found() -> None:
    """The reverse of a gather is a scatter, here two loops deep and in a branch."""

    def bad(buffer: Any, rows: Any) -> Any:
        def add(buffer: Any) -> Any:
            return buffer.at[rows].add(jnp.sin(buffer[rows]))

        def inner(i: Any, buffer: Any) -> Any:
            return lax.cond(rows[i] > 2, add, lambda x: x, buffer)

        return lax.fori_loop(
            0, 9, lambda _, b: lax.fori_loop(0, rows[0], inner, b), buffer
        )

    module = parse(compiled_text(bad, jnp.zeros((500, 3)), jnp.arange(64)))
    loops = [i for each in module.values() for i in each if i.opcode == 'while']
    assert len(loops) >= 2
    assert scatters(module)


def written(**computations: str) -> str:
    """HLO of computations, the last one the entry, each by its instructions."""
    texts = []
    for name, body in computations.items():
        *lines, last = (f'  {line.strip()}' for line in body.strip().split('\n'))
        parts = f'%{name} (x: f32[9]) -> f32[9] {{', *lines, f'  ROOT{last[1:]}', '}'
        texts.append('\n'.join(parts))
    return '\n\n'.join([*texts[:-1], f'ENTRY {texts[-1]}'])


def test_every_call_is_followed() -> None:
    """Each way in which HLO names a computation counts."""
    text = written(
        leaf='%c = f32[9]{0} copy(%x)',
        branch='%f = f32[9]{0} fusion(%x), kind=kLoop, calls=%leaf',
        other='%s = f32[9]{0} scatter(%x, %x, %x), to_apply=%add',
        add='%a = f32[] add(%x, %y)',
        body='%k = (s32[], f32[9]{0}) conditional(%i), '
        'branch_computations={%branch, %other}',
        check='%p = pred[] parameter(0)',
        main="""
        %q = f32[9]{0} copy(%x)
        %w = (s32[], /*index=1*/f32[9]{0}) while(%t), condition=%check, body=%body
        """,
    )
    module = parse(text)
    assert len(module) == 7
    assert {i.name for i in in_loops(module)} == set('pksafc')
    assert [i.split()[2] for i in large(module, 9)] == [
        'conditional',
        'scatter',
        'copy',
    ]
    assert not large(module, 10)
    assert len(scatters(module)) == 1


OUTER = 'condition=%check, body=%body, backend_config={"known_trip_count":{"n":"5"}}'


def test_kernels_are_counted() -> None:
    """Of a loop in a loop each trip; of what a loop counts to, the constant."""
    text = written(
        gathers='%d = f32[3,2]{1,0} dynamic-slice(%p, %i), dynamic_slice_sizes={3,2}',
        inner_body="""
        %t = (s32[], f32[9,2]{1,0:T(8,128)}) parameter(0)
        %j = s32[]{:T(128)} get-tuple-element(%t), index=0
        %b = f32[9,2]{1,0} get-tuple-element(%t), index=1
        %k = f32[9,2]{1,0} copy(%b)
        %r = (s32[], f32[9,2]{1,0}) tuple(%j, %k)
        """,
        inner_check="""
        %t = (s32[], f32[9,2]{1,0}) parameter(0)
        %j = s32[] get-tuple-element(%t), index=0
        %n = s32[]{:T(128)} constant(7)
        %l = pred[] compare(%j, %n), direction=LT
        """,
        body="""
        %t = (s32[], f32[9,2]{1,0}) parameter(0)
        %j = s32[] get-tuple-element(%t), index=0
        %b = f32[9,2]{1,0} get-tuple-element(%t), index=1
        %f = f32[3,2]{1,0} fusion(%b, %j), kind=kLoop, calls=%gathers
        %s = s32[] add(%j, %j)
        %u = f32[9,2]{1,0} dynamic-update-slice(%b, %f, %s, %s)
        %v = (s32[], f32[9,2]{1,0}) tuple(%s, %u)
        %w = (s32[], f32[9,2]{1,0}) while(%v), INNER
        %x = f32[9,2]{1,0} get-tuple-element(%w), index=1
        %r = (s32[], f32[9,2]{1,0}) tuple(%s, %x)
        """,
        check='%t = pred[] parameter(0)',
        main="""
        %x = f32[9,2]{1,0} parameter(0)
        %c = f32[9,2]{1,0} copy(%x)
        %z = s32[] constant(0)
        %t = (s32[], f32[9,2]{1,0}) tuple(%z, %c)
        %w = (s32[], f32[9,2]{1,0}) while(%t), OUTER
        """,
    )
    inner = 'condition=%inner_check, body=%inner_body, '
    inner += 'metadata={op_name="a/scatter-add"}'
    module = parse(text.replace('INNER', inner).replace('OUTER', OUTER))
    (loop,) = loops(module)
    assert (loop.trips, loop.count) == (5, 2 + 7)
    assert kernels(module) == 1 + 5 * 9
    assert [i.split()[0] for i in unbounded(module)] == ['w']
    assert [i.split()[0] for i in copies(module)] == ['k']
    assert [i.split()[0] for i in scatters(module)] == ['w']


@pytest.mark.parametrize(('source', 'found'), [('m', ['k']), ('s', [])])
def test_a_tile_may_have_the_shape_of_a_matrix(source: str, found: list[str]) -> None:
    """A copy of the large matrix that a loop is given is told, one of a tile is not;
    nor what loops copy that carry no indices."""
    state = '(s32[], s32[4]{0}, MATRIX, BUFFER)'
    text = written(
        body=f"""
        %t = {state} parameter(0)
        %j = s32[] get-tuple-element(%t), index=0
        %n = s32[4]{{0}} get-tuple-element(%t), index=1
        %m = MATRIX get-tuple-element(%t), index=2
        %b = BUFFER get-tuple-element(%t), index=3
        %s = MATRIX dynamic-slice(%b, %j, %j)
        %k = MATRIX copy(%{source})
        %x = MATRIX add(%k, %m)
        %u = BUFFER dynamic-update-slice(%b, %x, %j, %j)
        %r = {state} tuple(%j, %n, %m, %u)
        """,
        check='%t = pred[] parameter(0)',
        main=f"""
        %t = {state} parameter(0)
        %w = {state} while(%t), {OUTER}
        """,
    )
    text = text.replace('MATRIX', 'f32[512,512]{1,0}')
    module = parse(text.replace('BUFFER', 'f32[999,512]{1,0}'))
    assert [i.split()[0] for i in copies(module, 4)] == found
    assert copies(module, 5) == []


# ---- jfold's own programs ------------------------------------------------------------

C, H = 7, 5


def pair_state(name: str) -> Any:
    """A cell on states of two tensors of different sizes.

    Neither part of its result depends on all that is read, so that only the runtime
    keeps XLA from writing one before it has read the other.
    """

    def init(key: Any, *_: Any) -> Any:
        keys = jax.random.split(key)
        return {
            'c': 0.3 * jax.random.normal(keys[0], (C, 2 * H)),
            'h': 0.3 * jax.random.normal(keys[1], (H, 2 * C)),
        }

    def cell(params: Any, left: Any, right: Any) -> Any:
        c = jnp.tanh(params['c'] @ jnp.concatenate([left[1], right[1]]))
        h = jnp.tanh(params['h'] @ jnp.concatenate([left[0], right[0]]))
        return c, h

    return jf.Function(cell, init, name=name)


@functools.cache
def model(residuals: str, strategy: str) -> jf.Model:
    def init(key: Any, _: Any) -> Any:
        return jax.random.normal(key, (C + H, 3))

    def split(params: Any, x: Any) -> Any:
        y = params @ x
        return y[:C], y[C:]

    vector = jf.InputTransform(lambda n: [n, 1, -n]) >> jf.Vector(3) >> jnp.sin
    leaf = vector >> jf.Function(split, init)
    block = binary(leaf, pair_state('cell'))
    return jf.compile(block, 20, residuals=residuals, strategy=strategy)


def loss(params: Any, schedule: jf.Schedule) -> Any:
    """A number that depends on both tensors of the result."""
    c, h = run(params, schedule)[0]
    return (c**2).sum() + jnp.sin(h).sum()


@functools.cache
def text(reverse: str | None, strategy: str, leaves: int, examples: int) -> str:
    """The program for a batch, or that of its gradient, with what residuals."""
    rng = np.random.default_rng(leaves)
    trees = [binary_tree(rng, leaves) for _ in range(examples - 1)]
    chosen = model(reverse or RESIDUALS[0], strategy)
    schedule = chosen.schedule([*trees, chain(leaves)])
    params = chosen.init(jax.random.key(0))
    return compiled_text(jax.grad(loss) if reverse else loss, params, schedule)


def smallest_buffer(chosen: jf.Model, examples: int) -> int:
    """The fewest rows of a buffer that is written in a loop."""
    spec = next(s for s in chosen.budget.specs if s.capacity.examples == examples)
    places, active = layout(spec), active_types(spec.program)
    computed = {t for o in spec.program.operations for t in o.outputs}
    edges = [places.edge_rows[t] for t in active]
    return min([*edges, *(places.value_rows[t] for t in computed)])


ways = list(itertools.product([*RESIDUALS, None], STRATEGIES))
any_way = pytest.mark.parametrize(('reverse', 'strategy'), ways)


@pytest.mark.sampled(1)
@any_way
def test_loops_copy_no_buffer_and_do_not_scatter_and_do_not_grow(
    reverse: str | None, strategy: str
) -> None:
    """Buffers are written in place; gradients are gathered from where consumers left
    them.

    There are as many instructions for 30 examples of 40 leaves as for 2 of 500; if
    steps are fixed, once for each of a few widths.
    """
    module = parse(text(reverse, strategy, 40, 30))
    rows = smallest_buffer(model(reverse or RESIDUALS[0], strategy), 30)
    assert rows > 1024  # neither a tile nor a chunk is mistaken for a buffer
    assert any(i.opcode == 'while' for each in module.values() for i in each)
    assert large(module, rows) == []
    assert scatters(module) == []
    other = parse(text(reverse, strategy, 500, 2))
    sizes = [sum(map(len, each.values())) for each in (module, other)]
    most = SEGMENTS if strategy == FIXED else 1
    assert max(sizes) <= most * min(sizes)


# ---- memory --------------------------------------------------------------------------

WIDTH, LEAVES = 32, 64


def lstm(params: Any, left: Any, right: Any) -> Any:
    gates = params @ jnp.concatenate([left[WIDTH:], right[WIDTH:]])
    i, o, u, f, g = jnp.split(jax.nn.sigmoid(gates), 5)
    c = i * u + f * left[:WIDTH] + g * right[:WIDTH]
    return jnp.concatenate([c, o * jnp.tanh(c)])


def tree_lstm(residuals: str) -> jf.Model:
    def init(key: Any, *_: Any) -> Any:
        return jax.random.normal(key, (5 * WIDTH, 2 * WIDTH)) / 16

    leaf = jf.Scalar('int32') >> embedding(2 * WIDTH)
    return jf.compile(binary(leaf, jf.Function(lstm, init)), residuals=residuals)


def taken(trees: int, residuals: str, *, exact: bool = True) -> int:
    """Bytes of what a compiled gradient needs beside arguments and results.

    Args:
      exact: with the capacity of the trees, else with the room that a stream is given.
    """
    model, rng = tree_lstm(residuals), np.random.default_rng(0)
    examples = [binary_tree(rng, LEAVES) for _ in range(trees)]
    if exact:
        capacity = model.trace(examples).capacities(trees)
        schedule = abstract(Spec(model.program, capacity, residuals))
    else:
        schedule = model.schedule(examples)
    params = model.init(jax.random.key(0))
    grad = jax.grad(lambda params, schedule: model.apply(params, schedule).sum())
    step = jax.jit(grad, compiler_options=AS_USERS_HAVE_IT)
    compiled = step.lower(params, schedule).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(('trees', 'share'), [(64, 0.75), (256, 0.7)])
def test_training_takes_values_products_and_edges(trees: int, share: float) -> None:
    """At most 1.15 times these, and a share without the products.

    Tiles and weights take the same for any batch, so the larger has the less.
    """
    whole, less = (taken(trees, each) for each in RESIDUALS)
    assert whole <= 1.15 * needed(trees)
    assert less <= share * whole


@pytest.mark.long
@pytest.mark.parametrize('trees', [64, 256])
def test_in_a_stream_training_takes_little_more(trees: int) -> None:
    assert taken(trees, RESIDUALS[0], exact=False) <= 1.3 * needed(trees)


def needed(trees: int) -> int:
    """Bytes of values, products and edges."""
    cells, leaves = trees * (LEAVES - 1), trees * LEAVES
    values, products, edges = 2 * (cells + leaves), 5 * cells, 4 * cells
    return 4 * WIDTH * (values + products + edges)
