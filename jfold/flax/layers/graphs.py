# SPDX-License-Identifier: Apache-2.0
"""Networks on graphs, with nodes as a sequence and edges as lists of their ends."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jfold.base.arguments import check_at_least, expect
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
    """Rounds of messages from every node to its neighbours (Gilmer et al. 2017).

    Takes a tuple (states, of, to), gives the sequence of new states. `states` is a
    sequence of the states of nodes; `of` and `to` are lists in the data: the indices of
    the nodes at the source and the target of each edge. Messages go from source to
    target; an undirected graph has each edge twice, once in each direction.

    Args:
      message: from the state at the source of an edge, or a pair of that state and the
        value of the edge, to the message.
      update: from a pair of the state of a node and the sum of its messages to a state
        of the same type. All rounds share `message` and `update`.
      rounds: the number of rounds.
      edges: whether edges have values: a sequence, as the fourth item of the tuple. If
        its length is not that of `of`, that is an error of the example.

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
    message, update = convert_to_block(message), convert_to_block(update)

    def states(h: object, of: object, to: object, *values: Any) -> Any:
        for _ in range(rounds):
            sources = Pick()(h, of)
            send = ZipWith(message, strict=True) if values else Map(message)
            sums = Map(Sum())(Regroup()(send(sources, *values), to, h))
            h = ZipWith(update)(h, sums)
        return h

    @compose
    def plain(h: object, of: object, to: object) -> Any:
        return states(h, of, to)

    @compose
    def with_edges(h: object, of: object, to: object, values: object) -> Any:
        return states(h, of, to, values)

    return with_edges if edges else plain


class _GRU(nn.Module):
    """A GRU cell, which updates a node's state [features] by its messages' sum [n]."""

    features: int

    @nn.compact
    def __call__(self, state: jax.Array, messages: jax.Array) -> jax.Array:
        if state.shape != (self.features,):
            raise TypeError(
                f'expected states [{self.features}], as `features` of GatedGraph says, '
                f'got {list(state.shape)}: make them by `jf.layers.FC({self.features})`'
            )
        new: jax.Array
        new, _ = nn.GRUCell(self.features)(state, messages)
        return new


@api_boundary
def GatedGraph(
    features: int,
    rounds: int,
    message: Convertible | None = None,
    *,
    edges: bool = False,
) -> Block:
    """Gated graph units (Li et al. 2016, equations 2 to 6).

    Takes the tuple that `MessagePassing` takes, with states [features], and gives the
    sequence of the states after all rounds, each by a gated recurrent unit.

    Args:
      features: the width of states.
      rounds: the number of rounds of messages.
      message: as in `MessagePassing`; when left out it is affine, as in the paper for a
        single type of edges.
      edges: whether edges have values, as in `MessagePassing`.

    Raises:
      TypeError: at `jf.compile`, if states have another width.
    """
    features = check_at_least('features', features, 1)
    message = FC(features, None, name='message') if message is None else message
    update = Function(_GRU(features), name='update')
    return MessagePassing(message, update, rounds, edges=edges)


@api_boundary
def Weave(width: int) -> Block:
    """The weave module: new features of n nodes and all n x n pairs.

    The module of Kearnes et al. 2016 is in the form of Looks et al. 2017, equations 4
    and 5. Takes a pair of a sequence of n vectors and a sequence of n sequences of n
    vectors, gives such a pair of vectors [width]. Pairs that are not n x n are an error
    of the example.
    """
    width = check_at_least('width', width, 1)
    names = 'aa', 'ap', 'pa', 'pp', 'a', 'p'
    f_a_a, f_a_p, f_p_a, f_p_p, f_a, f_p = (FC(width, name=f'weave_{n}') for n in names)
    join = Concat()

    @compose
    def a_i_to_p(a_i: object, a: object) -> Any:
        """Return the features of pairs of `a_i` with each of `a`, both orders added."""
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
