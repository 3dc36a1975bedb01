# SPDX-License-Identifier: Apache-2.0
"""What works around XLA is still needed: the plain form beside each trick.

Each test compiles a model twice, as it is and with one trick taken away, and finds in
the second program what the trick is there to avoid. If XLA has learned better, the test
fails and the trick may go.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary, binary_tree
from hlo import Module, compiled_text, large, parse

import jfold as jf
from jfold.device import backward, loops, xla
from jfold.device.buffers import slice_rows, write
from jfold.device.xla import Chained
from jfold.scheduling.tiles import NARROW, cores

LARGE = 1025  # rows; neither a tile nor a chunk has as many, but every buffer


def normal(*shape: int) -> Callable[..., Any]:
    return lambda key, *_: 0.3 * jax.random.normal(key, shape)


def layer(fn: Callable[..., Any], *shape: int) -> jf.Function:
    return jf.Function(fn, normal(*shape))


def trees(size: int, cell: Any) -> jf.Block:
    return binary(jf.InputTransform(lambda n: [n] * size) >> jf.Vector(size), cell)


def program(block: jf.Block, strategy: str, learns: bool = True) -> str:
    """The optimised HLO of a gradient, or of a sum of values, of 30 trees."""
    model = jf.compile(block, strategy=strategy)
    rng = np.random.default_rng(0)
    schedule = model.schedule([binary_tree(rng, 40) for _ in range(30)])

    def loss(params: Any, schedule: jf.Schedule) -> Any:
        return sum(x.sum() for x in jax.tree.leaves(model.apply(params, schedule)))

    params = model.init(jax.random.key(0))
    return compiled_text(jax.grad(loss) if learns else loss, params, schedule)


def copies(module: Module) -> int:
    """How many buffers are copied, in loops or not."""
    whole = itertools.chain(*module.values())
    return sum(i.opcode == 'copy' and max(i.rows, default=0) >= LARGE for i in whole)


def copied_in_loops(text: str) -> list[str]:
    return large(parse(text), LARGE)


def turned_matrices(text: str) -> int:
    """Products of few rows that sum over the last axis of a matrix."""
    found = re.findall(r'= f32\[(\d+),\d+\]\S* dot\(.*?\), (\S+ \S+),', text)
    narrow = [axes for rows, axes in found if int(rows) < NARROW]
    assert narrow
    return sum('rhs_contracting_dims={1}' in axes for axes in narrow)


def turned_tiles(text: str) -> int:
    """Tiles that are copied: of arrays [rows, 5], not of the matrix."""
    found = re.findall(r'= f32\[(\d+),5\]\S* copy\(', text)
    return sum(int(rows) not in (5, 10) for rows in found)


def chained() -> jf.Block:
    """In reverse `first` reads the cotangents that `second` writes, and neither reads
    what the other makes."""

    def first(w: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(w @ jnp.concatenate([left, right]))

    def second(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w.T)

    # What takes whole tiles stays an operation of its own, between two others.
    middle = jf.Function(second, normal(5, 4), batched=True)
    return trees(3, layer(first, 4, 6) >> middle >> layer(jnp.matmul, 3, 5))


def crossed() -> jf.Block:
    """Each part of the result depends on the other part of the states alone."""

    def cell(w: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(w.T @ (left[1] + right[1])), jnp.tanh(w @ (left[0] ** 2))

    both = jf.AllOf(jf.Identity(), layer(lambda w, x: w @ x, 4, 3))
    leaf = jf.InputTransform(lambda n: [n] * 3) >> jf.Vector(3) >> both
    return binary(leaf, layer(cell, 4, 3))


def twins(w: Any, left: Any, right: Any) -> Any:
    """Two products of one shape are stored."""
    return jnp.tanh(w[0] @ left) * jnp.tanh(w[1] @ right)


def larger(w: Any, left: Any, right: Any) -> Any:
    """Which product is the larger decides about both cotangents."""
    return jnp.maximum(left @ w[0], right @ w[1])


def of_left(w: Any, left: Any, right: Any) -> Any:
    return jnp.tanh(w @ left) + right


def of_both(w: Any, left: Any, right: Any) -> Any:
    """Of a matrix times a vector the rows come last, where no buffer has them."""
    return jnp.tanh(w @ jnp.concatenate([left, right]))


def by(cell: Any, size: int, *shape: int) -> Callable[[], jf.Block]:
    return lambda: trees(size, layer(cell, *shape))


def joined(w: Any, left: Any, right: Any) -> Any:
    """A state of two parts, as one vector."""
    parts = jnp.split(w @ jnp.concatenate([left, right]), 2)
    return jnp.concatenate([jnp.tanh(x) for x in parts])


def fused_writes(text: str) -> list[str]:
    """The kernels that write to a buffer what they compute by `tanh`."""
    opcodes = {name: {i.opcode for i in body} for name, body in parse(text).items()}
    both = {'dynamic-update-slice', 'tanh'}
    return [name for name, x in opcodes.items() if both <= x]


# By what is avoided: a block, how it is run, what finds it, and the plain form.
TRICKS: dict[str, tuple[Any, ...]] = {
    'loops that are not chained copy buffers': (
        *(chained, 'counted', True, copied_in_loops),
        *(loops, 'Chained', lambda _, carry: Chained(0, carry)),
    ),
    'writes that are not behind reads copy buffers': (
        *(crossed, 'fixed', False, copied_in_loops),
        *(xla, 'write_after', lambda read, x, first: x),
    ),
    'buffers of one length are merged and copied': (
        *(by(twins, 3, 2, 3, 3), 'fixed', True, lambda text: copies(parse(text))),
        *(xla, 'extra_rows', lambda even: itertools.repeat(0)),
    ),
    'products that are read once more make no room': (
        *(by(larger, 3, 2, 3, 3), 'fixed', True, copied_in_loops),
        *(xla, 'is_read_before', lambda *_: True),
    ),
    'writes that are not alone are in one kernel with what they write': (
        *(by(joined, 8, 8, 16), 'counted', False, fused_writes),
        *(
            xla,
            'write_alone',
            lambda buffer, x, first, base=0: write(buffer, x, base + first),
        ),
    ),
    'matrices that are not shared are turned in every product': (
        *(by(of_left, 3, 3, 3), 'counted', False, turned_matrices),
        *(xla, 'shares_transposes', lambda rows: False),
    ),
    'products that are not written rows first turn tiles round': (
        *(by(of_both, 5, 5, 10), 'fixed', True, turned_tiles),
        *(xla, 'row_rules', lambda *_: {}),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize('name', TRICKS)
def test_what_a_trick_avoids(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, strategy, learns, found, *plain = TRICKS[name]
    assert not found(program(block(), strategy, learns))
    monkeypatch.setattr(*plain)
    assert found(program(block(), strategy, learns))


MISCOUNTS = 0, 10, 2  # the last version of jax that is known to
UP, DOWN = (operator.lt, operator.le), (operator.gt, operator.ge)
Loop = tuple[Callable[[Any, int], Any], int, int, int]


def miscounted(steps: Iterable[int], by_difference: bool = False) -> list[Loop]:
    """Loops of which all is constant that run another number of rounds than they say:
    how a number is compared, its start, its bound and its step."""
    numbers = range(-3, 4)
    some = itertools.product((*UP, *DOWN), numbers, numbers, steps)
    loops = [x for x in some if x[0] in (UP if x[3] > 0 else DOWN)]

    def rounds(loop: Loop, one: Any) -> Any:
        is_more, start, bound, step = loop

        def following(state: Any) -> Any:
            return state[0] + step, state[1] + one

        def more(state: Any) -> Any:
            if by_difference:
                return is_more(0, bound - state[0])
            return is_more(state[0], bound)

        return jax.lax.while_loop(more, following, (start, 0.0))[1]

    found = jax.jit(lambda one: [rounds(each, one) for each in loops])(1.0)
    with jax.disable_jit():  # where loops are those of Python
        return [x for x, n in zip(loops, found, strict=True) if n != rounds(x, 1.0)]


@pytest.mark.long
def test_loops_that_count_by_one_are_counted_right() -> None:
    """And those that ask how much is left, as `xla.loop_after` does."""
    assert not miscounted([1, -1])
    assert not miscounted([2, 3, 4, -2, -3, -4], by_difference=True)


@pytest.mark.long
@pytest.mark.xfail(
    jax.__version_info__ <= MISCOUNTS, strict=True, reason='XLA miscounts in this jax'
)
def test_loops_that_count_by_more_are_counted_right() -> None:
    """By a later jax. Once `pyproject.toml` asks for one by which this passes, what
    `xla.loop_after` is given may compare rows."""
    assert not miscounted([2, 3, 4, -2, -3, -4])


@pytest.mark.long
def test_slices_that_are_not_read_at_once_are_read_in_every_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is hoisted, by the kernel that is to be vectorised."""

    def block() -> jf.Block:
        def cell(w: Any, state: Any, x: Any) -> Any:
            return jnp.tanh(x @ w[0] + state @ w[1])

        size = 16
        items = jf.Map(jf.InputTransform(lambda n: [n] * size) >> jf.Vector(size))
        return items >> jf.Fold(layer(cell, 2, size, size), jf.Zeros([size]))

    def shared() -> list[str]:
        model = jf.compile(block(), strategy='counted')
        params, schedule = model.init(jax.random.key(0)), model.schedule([[0.5] * 50])
        module = parse(compiled_text(model.apply, params, schedule))
        opcodes = {name: {i.opcode for i in body} for name, body in module.items()}
        return [name for name, x in opcodes.items() if {'dynamic-slice', 'tanh'} <= x]

    def sliced(buffers: list[Any], first: Any, rows: int) -> list[Any]:
        return [slice_rows(buffer, first, rows) for buffer in buffers]

    assert not shared()
    monkeypatch.setattr(xla, 'isolated_slices', sliced)
    assert shared()


@pytest.mark.long
@pytest.mark.skipif(cores(1) < 2, reason='one core has one thread')
def test_few_rows_of_a_large_buffer_are_gathered_by_several_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But where `xla.take_alone` slices them."""

    def shared() -> list[str]:
        text = program(trees(64, layer(of_left, 64, 64)), 'counted')
        several = r'= f32\[4,\S+ fusion\(.*"outer_dimension_partitions":\["'
        return re.findall(several, text)

    assert not shared()
    monkeypatch.setattr(xla, 'FEW', 0)
    assert shared()


@pytest.mark.parametrize('dtype', ['float32', 'int32', 'bool'])
def test_rows_that_are_sliced_are_those_gathered(dtype: str) -> None:
    """Alone and under `vmap`, of the buffer, of the rows and of both."""
    shape = xla.SHARED, 2
    buffer = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    for rows in (np.array([7]), np.array([5, xla.SHARED - 1, 0, 5])):
        np.testing.assert_array_equal(xla.take_alone(buffer, rows), buffer[rows])
    rows, both = np.array([[3, 1], [1, 0]]), np.stack([buffer, buffer[::-1]])
    for axes, arrays, expected in (
        ((None, 0), (buffer, rows), [buffer[x] for x in rows]),
        ((0, None), (both, rows[0]), [x[rows[0]] for x in both]),
        ((0, 0), (both, rows), [x[y] for x, y in zip(both, rows, strict=True)]),
    ):
        found = jax.jit(jax.vmap(xla.take_alone, axes))(*arrays)
        np.testing.assert_array_equal(found, expected)


def test_what_is_sliced_has_the_values_and_gradients_of_what_is_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bit, with states of two tensors that are each made of the other."""

    def found() -> Any:
        model = jf.compile(crossed(), strategy='counted')
        schedule = model.schedule([binary_tree(np.random.default_rng(0), 9)] * 2)

        def loss(params: Any) -> Any:
            return sum(map(jnp.sum, model.apply(params, schedule)))

        params = model.init(jax.random.key(0))
        tangents = jax.jvp(loss, (params,), (params,))
        return jax.value_and_grad(loss)(params), tangents, jax.hessian(loss)(params)

    expected = found()
    monkeypatch.setattr(xla, 'SHARED', 0)
    jax.tree.map(np.testing.assert_array_equal, found(), expected)


@pytest.mark.parametrize('make', [chained, crossed], ids=lambda make: make.__name__)
def test_a_reverse_that_is_isolated(
    make: Callable[[], jf.Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the same gradients, and copies no buffer."""

    def grads() -> Any:
        model = jf.compile(make(), strategy='counted')
        schedule = model.schedule([binary_tree(np.random.default_rng(0), 9)] * 2)

        def loss(params: Any) -> Any:
            return sum(map(jnp.sum, jax.tree.leaves(model.apply(params, schedule))))

        return jax.grad(loss)(model.init(jax.random.key(0)))

    want = grads()
    monkeypatch.setattr(backward, 'ALONE', 0)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, grads(), want)
    text = program(make(), 'counted')
    assert 'pull_to_inputs' in text and not copied_in_loops(text)


def test_rows_that_are_gathered_at_once_are_those_gathered_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The form for a TPU, run here."""
    buffer, places = (
        np.arange(20.0).reshape(10, 2),
        [np.array([3, 1]), np.array([9, 0])],
    )
    expected = [buffer[each] for each in places]
    found = xla.gathered(jnp.asarray(buffer), [jnp.asarray(x) for x in places])
    np.testing.assert_array_equal(found, expected)

    def as_on_tpu(*arrays: Any, tpu: Any, default: Any) -> Any:
        return tpu(*arrays)

    monkeypatch.setattr(jax.lax, 'platform_dependent', as_on_tpu)
    found = xla.gathered(jnp.asarray(buffer), [jnp.asarray(x) for x in places])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.long
def test_equations_that_nothing_owns_outlive_their_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the functions of the model, and what these close over."""

    def is_kept() -> bool:
        def cell(w: Any, left: Any, right: Any) -> Any:
            return of_left(w, left, right)

        program(trees(3, layer(cell, 3, 3)), 'fixed')
        function = weakref.ref(cell)
        del cell
        gc.collect()
        return function() is not None

    assert not is_kept()
    monkeypatch.setattr(xla, 'lifetime_token', lambda: None)
    assert is_kept()
