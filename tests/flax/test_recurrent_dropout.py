# SPDX-License-Identifier: Apache-2.0
"""Dropout of candidates (Semeniuta et al. 2016), against the equations by hand."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import close

import jfold as jf
from jfold import layers

H, RATE, ROWS = 16, 0.25, 24
KEY = jax.random.key(3)
sigmoid = jax.nn.sigmoid
vector = jf.Vector(H)
state = jf.Record((vector, vector))
rng = np.random.default_rng(1)


def affine(params: Any, *parts: Any) -> Any:
    """What `nn.Dense` does with vectors side by side."""
    return jnp.concatenate(parts) @ params['kernel'] + params['bias']


def leaf_by_hand(p: Any, x: Any) -> Any:
    """Input gate, output gate, candidate, and what is kept: Tai et al., 3 to 6."""
    i, o, u = jnp.split(affine(p['leaf']['Dense_0'], x), 3)
    return i, o, jnp.tanh(u), 0.0


def pair_by_hand(p: Any, left: Any, right: Any) -> Any:
    """The same with two children: equations 9 to 12."""
    gates = affine(p['cell']['Dense_0'], left[1], right[1])
    i, o, u, f, g = jnp.split(gates, 5)
    return i, o, jnp.tanh(u), sigmoid(f + 1) * left[0] + sigmoid(g + 1) * right[0]


def children_by_hand(p: Any, x: Any, children: Any) -> Any:
    """The same with any number of children: equations 2 to 6."""
    i, o, u = jnp.split(affine(p['join']['Dense_0'], x, sum(h for _, h in children)), 3)
    forget = functools.partial(affine, p['forget']['Dense_0'], x)
    return i, o, jnp.tanh(u), sum(sigmoid(forget(h) + 1) * c for c, h in children)


def step_by_hand(p: Any, x: Any, before: Any) -> Any:
    """One step of an LSTM along a sequence."""
    c, h = before
    p = p['cell']['inner']

    def gate(name: str) -> Any:
        return x @ p[f'i{name}']['kernel'] + affine(p[f'h{name}'], h)

    return gate('i'), gate('o'), jnp.tanh(gate('g')), sigmoid(gate('f')) * c


def lstm_cell() -> jf.Block:
    """The cell of the layer."""
    return layers.LSTM(H, recurrent_dropout=RATE, name='cell').cell  # type: ignore[attr-defined]


def drawn(*shapes: int) -> Any:
    """Vectors, pairs of them where a shape is 2, lists of these where it is 3."""
    made = {
        1: lambda: rng.normal(size=H).astype('float32'),
        2: lambda: tuple(rng.normal(size=(2, H)).astype('float32')),
        3: lambda: [made[2](), made[2]()],
    }
    return tuple(made[each]() for each in shapes)


leaf = layers.TreeLSTMLeaf(H, recurrent_dropout=RATE)
pair = layers.TreeLSTMCell(H, recurrent_dropout=RATE)
child_sum = layers.ChildSumTreeLSTM(H, recurrent_dropout=RATE)
CASES: dict[str, Any] = {
    'leaf': (
        jf.Record((vector,)) >> jf.Function(leaf, name='leaf'),
        leaf_by_hand,
        (1,),
    ),
    'pair': (
        jf.Record((state, state)) >> jf.Function(pair, name='cell'),
        pair_by_hand,
        (2, 2),
    ),
    'children': (
        jf.Record((vector, jf.Map(state))) >> child_sum,
        children_by_hand,
        (1, 3),
    ),
    'step': (jf.Record((vector, state)) >> lstm_cell(), step_by_hand, (1, 2)),
}


@pytest.mark.parametrize('name', CASES)
def test_the_candidate_alone_is_dropped(name: str) -> None:
    """Every number of it is gone, or there and scaled; all else is by the equations."""
    block, by_hand, shapes = CASES[name]
    examples = [drawn(*shapes) for _ in range(ROWS)]
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    schedule = model.schedule(examples)
    found = model.apply(params, schedule, rngs=KEY)
    c, h = found[1] if name == 'step' else found
    gates = [by_hand(params, *each) for each in examples]
    i, o, new, kept = (jnp.stack(each) for each in zip(*gates, strict=True))
    kept = kept if kept.ndim == 2 else jnp.zeros_like(c)
    factor = (c - kept) / (sigmoid(i) * new)
    is_there = np.asarray(factor > 0.5)
    close(factor, jnp.asarray(is_there / (1 - RATE), 'float32'), 2e-3)
    close(h, sigmoid(o) * jnp.tanh(c), 1e-5)
    # Five standard deviations of the mean of 384 numbers.
    spread = (RATE * (1 - RATE) / is_there.size) ** 0.5
    assert abs(is_there.mean() - (1 - RATE)) < 5 * spread
    assert len({row.tobytes() for row in is_there}) > ROWS / 2
    whole = sigmoid(i) * new + kept
    found = model.apply(params, schedule, deterministic=True)
    found = found[1] if name == 'step' else found
    close(found, (whole, sigmoid(o) * jnp.tanh(whole)), 1e-5)


def test_along_a_sequence_nothing_is_dropped_in_evaluation() -> None:
    """The parameters are those of Flax's cell, as without dropout."""
    blocks = [layers.LSTM(4, recurrent_dropout=rate, name='l') for rate in (0.5, 0.0)]
    one, other = (jf.compile(jf.Map(jf.Vector(3)) >> block) for block in blocks)
    params = one.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, other.init(jax.random.key(0))
    )
    items = [rng.normal(size=(n, 3)).astype('float32') for n in (3, 0, 1)]
    expected = other.apply(params, other.schedule(items))
    close(one.apply(params, one.schedule(items), deterministic=True), expected, 1e-6)
    _, (c, _) = one.apply(params, one.schedule(items), rngs=KEY)
    assert not np.allclose(c, expected[1][0])


def test_what_is_no_probability() -> None:
    message = 'expected `recurrent_dropout` from 0 to below 1, got 1.5'
    for rate in (1.5, -0.1):
        cell = jf.Function(layers.TreeLSTMLeaf(H, recurrent_dropout=rate))
        with pytest.raises(
            (TypeError, ValueError), match=message.replace('1.5', str(rate))
        ):
            jf.compile(vector >> cell)
