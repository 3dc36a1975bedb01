# SPDX-License-Identifier: Apache-2.0
"""Networks on graphs: nodes as a sequence, edges as lists of their ends."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jfold.base.errors import check_at_least, expect
from jfold.base.tracebacks import api_boundary
from jfold.blocks.compose import compose
from jfold.blocks.control import Concat
from jfold.blocks.reductions import Sum
from jfold.blocks.sequences import Broadcast, Map, Pick, Regroup, ZipWith
from jfold.combinators import Block, Convertible, Function, convert_to_block
from jfold.flax.layers.dense import FC


@api_boundary
def MessagePassing(
    message: Convertible, update: Convertible, rounds: int = 1, *, edges: bool = False
) -> Block:
    """Rounds in which every node hears of its neighbours (Gilmer et al. 2017).

    From a tuple (states, of, to) to the sequence of new states: `states` is a sequence,
    `of` and `to` lists of places of nodes in the data, the ends of each edge. What an
    edge says goes from one end to the other; a graph without directions has both.

    Args:
      message: from the state of the node that an edge comes from, or a pair of that
        and a value of the edge, to what it says.
      update: from a pair of the state of a node and the sum of what arrives to a state
        of the same type. All rounds share it, as they do `message`.
      rounds: how many.
      edges: there is a value of each edge: a fourth part of the tuple, a sequence; of
        another length it is an error of the example.

    >>> import jfold as jf, jax.numpy as jnp
    >>> graph = {'x': [1, 2, 4], 'of': [0, 0, 1], 'to': [1, 2, 2]}
    >>> nodes = jf.GetItem('x') >> jf.Map(jf.Scalar())
    >>> parts = jf.AllOf(nodes, jf.GetItem('of'), jf.GetItem('to'))
    >>> new = (parts >> MessagePassing(jf.Identity(), jnp.add)).eval(graph)
    >>> [x.item() for x in new]
    [1.0, 3.0, 7.0]
    """
    rounds = check_at_least('rounds', rounds, 0)
    expect('edges', edges, isinstance(edges, bool), 'bool')
    say, change = convert_to_block(message), convert_to_block(update)

    def states(h: object, of: object, to: object, *values: Any) -> Any:
        for _ in range(rounds):
            heard = Pick()(h, of)
            sent = (
                ZipWith(say, strict=True)(heard, *values) if values else Map(say)(heard)
            )
            around = Map(Sum())(Regroup()(sent, to, h))
            h = ZipWith(change)(h, around)
        return h

    @compose
    def plain(h: object, of: object, to: object) -> Any:
        return states(h, of, to)

    @compose
    def with_edges(h: object, of: object, to: object, values: object) -> Any:
        return states(h, of, to, values)

    return with_edges if edges else plain


class _GRU(nn.Module):
    """The next state of a node [features], of the last one and of what arrived [n]."""

    features: int

    @nn.compact
    def __call__(self, own: jax.Array, around: jax.Array) -> jax.Array:
        if own.shape != (self.features,):
            raise TypeError(
                f'expected states [{self.features}], as `features` of GatedGraph says, '
                f'got {list(own.shape)}: make them by `jf.layers.FC({self.features})`'
            )
        state: jax.Array
        state, _ = nn.GRUCell(self.features)(own, around)
        return state


@api_boundary
def GatedGraph(
    features: int,
    rounds: int,
    message: Convertible | None = None,
    *,
    edges: bool = False,
) -> Block:
    """Gated graph units (Li et al. 2016, equations 2 to 6).

    From what `MessagePassing` takes, with states [features], to the sequence of the
    states after all rounds, each by a gated recurrent unit.

    Args:
      features, rounds: of the states, and how often nodes hear of their neighbours.
      message: as of `MessagePassing`; affine if left out, as in the paper for edges of
        one kind.
      edges: likewise.

    Raises:
      TypeError: at `jf.compile`, where states are of another width.
    """
    features = check_at_least('features', features, 1)
    say = FC(features, None, name='message') if message is None else message
    update = Function(_GRU(features), name='update')
    return MessagePassing(say, update, rounds, edges=edges)


@api_boundary
def Weave(width: int) -> Block:
    """The weave module (Kearnes et al. 2016, as Looks et al. 2017 have it, equations 4
    and 5): features of n nodes and of all n x n pairs make new ones of both.

    From a pair, a sequence of vectors and a sequence of n sequences of vectors, to such
    a pair of vectors [width]. Pairs that are not n x n are an error of the example.
    """
    width = check_at_least('width', width, 1)
    names = 'aa', 'ap', 'pa', 'pp', 'a', 'p'
    f_a_a, f_a_p, f_p_a, f_p_p, f_a, f_p = (FC(width, name=f'weave_{n}') for n in names)
    join = Concat()

    @compose
    def a_i_to_p(a_i: object, a: object) -> Any:
        """From one node and all to what they say of their pairs, in either order."""
        a_i, pair = Broadcast()(a_i), ZipWith(join >> f_a_p)
        return ZipWith(jnp.add)(pair(a_i, a), pair(a, a_i))

    @compose
    def weave(a: object, p: object) -> tuple[Any, Any]:
        p_to_a = Map(Map(f_p_a) >> Sum())(p)
        a_y = ZipWith(join >> f_a, strict=True)(Map(f_a_a)(a), p_to_a)
        a_to_p = ZipWith(a_i_to_p)(a, Broadcast()(a))
        pair = ZipWith(join >> f_p, strict=True)
        p_y = ZipWith(pair, strict=True)(a_to_p, Map(Map(f_p_p))(p))
        return a_y, p_y

    return weave
