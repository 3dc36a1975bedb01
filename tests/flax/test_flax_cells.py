# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells of Flax in loops, which take and give the state first."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from agreement import agree, close
from flax import nnx

import jfold as jf

KEY = jax.random.key(3)
LISTS = [[[1, 2, 3], [4, 5, 6]], [], [[7, 8, 9]]]

gru = jf.Function(nn.GRUCell(3))
turn = jf.AllOf(jf.GetItem(1), jf.GetItem(0))


def test_cells_that_are_turned_round_are_taken() -> None:
    cells = jf.RNN(turn >> gru >> turn, jf.Zeros([3]))
    model = jf.compile(jf.Map(jf.Vector(3)) >> cells >> jf.GetItem(1))
    params = model.init(KEY)
    agree(model, params, LISTS)
    ready = jf.compile(jf.Map(jf.Vector(3)) >> jf.layers.GRU(3) >> jf.GetItem(1))
    same = {'gru': {'inner': params['GRUCell']}}
    got, want = (
        m.apply(p, m.schedule(LISTS)) for m, p in ((model, params), (ready, same))
    )
    close(got, want, 1e-6)


@pytest.mark.parametrize(
    'cell',
    [
        gru >> turn,
        turn >> gru,
        jf.AllOf(jf.GetItem(0) >> jnp.tanh, jf.GetItem(1) >> jnp.tanh) >> gru,
        jf.AllOf(jf.GetItem(0) >> jnp.tanh, jf.GetItem(1)) >> gru >> turn,
        jf.compose(lambda item, state: gru(jf.Function(jnp.tanh)(item), state)),
        jf.compose(lambda item, state: turn(gru(item, state))),
        jf.Identity() >> jf.nnx.Cell(lambda rngs: nnx.GRUCell(3, 3, rngs=rngs)),
    ],
    ids=str,
)
def test_cells_that_are_not_are_refused(cell: jf.Block) -> None:
    text = 'expected a cell that takes an item and a state and gives an output and a '
    with pytest.raises(TypeError, match=text):
        jf.compile(jf.Map(jf.Vector(3)) >> jf.RNN(cell, jf.Zeros([3])))


def test_cells_that_are_not_are_refused_behind_a_choice() -> None:
    declared = jf.ForwardDeclaration()
    declared.resolve_to(jf.AllOf(jf.GetItem(0) >> jf.Vector(3), jf.GetItem(1)) >> gru)
    chosen = jf.OneOf(jf.GetItem(0) >> jf.InputTransform(len), {3: declared()})
    with pytest.raises(TypeError, match='which takes and gives the state first'):
        jf.compile(jf.RNN(chosen, jf.Zeros([3])))
