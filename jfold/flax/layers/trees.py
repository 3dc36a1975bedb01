# SPDX-License-Identifier: Apache-2.0
"""Tree-LSTMs and tree-GRUs, which compute states from the leaves up.

The state of a tree-LSTM is a pair (c, h) of vectors [features], its memory and its
output (Tai, Socher and Manning 2015, whose numbers of equations are used here). With
`recurrent_dropout`, in training every number of the candidate u is dropped with that
probability, and others are scaled up; gates and the memory of children are not changed
(Semeniuta, Severyn and Barth 2016, equation 9).
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jfold.base.arguments import check_at_least
from jfold.base.tracebacks import api_boundary
from jfold.blocks.compose import compose
from jfold.blocks.control import ForwardDeclaration
from jfold.blocks.reductions import Sum
from jfold.blocks.sequences import Broadcast, GetItem, Map, ZipWith
from jfold.combinators import AllOf, Block, Convertible, Function, Pipe
from jfold.flax.layers.dense import vector
from jfold.flax.layers.recurrent import dropped
from jfold.types import TypeLike

State = tuple[jax.Array, jax.Array]


@api_boundary
def Tree(
    value: Convertible,
    children: Convertible,
    combine: Convertible,
    output_type: TypeLike | None = None,
) -> Block:
    """A recursion over a tree: states of nodes from their values and children.

    Args:
      value: from a node of the data to a tensor.
      children: from a node to a list of nodes, or another iterable.
      combine: from a pair of that value and the sequence of the children's states to
        the state of the node, such as `ChildSumTreeLSTM`.
      output_type: the type of states, if it does not follow from `combine` alone: for
        instance if it sums states, since a sum over no children has their type.

    >>> import jfold as jf
    >>> total = jf.AllOf(jf.GetItem(0), jf.GetItem(1) >> jf.Sum()) >> jnp.add
    >>> value, children = jf.GetItem('n') >> jf.Scalar(), jf.GetItem('below')
    >>> leaf = {'n': 2, 'below': []}
    >>> Tree(value, children, total, []).eval({'n': 1, 'below': [leaf, leaf]}).item()
    5.0
    """
    tree = ForwardDeclaration(output_type=output_type, name='Tree')
    states = Pipe(children, Map(tree()))
    tree.resolve_to(Pipe(AllOf(value, states), combine))
    root: Block = tree()
    return root


# ---- tree-LSTMs ----------------------------------------------------------------------


class TreeLSTMLeaf(nn.Module):
    """The tree-LSTM state of a leaf, from its vector [n] (Tai et al. 2015).

    These are equations 2 to 8, without children.

    Attributes:
      features: the length of the state's vectors.
      recurrent_dropout: the probability that a number of the candidate is dropped.
    """

    features: int
    recurrent_dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> State:
        i, o, u = jnp.split(nn.Dense(3 * self.features)(vector(x)), 3)
        return _state(i, o, dropped(self.recurrent_dropout, jnp.tanh(u)), 0.0)


class TreeLSTMCell(nn.Module):
    """The N-ary tree-LSTM (Tai et al. 2015, equations 9 to 14).

    Takes the states of the children, from left to right; an input, a vector [n], may
    come before them. Each position has its own weights, so all nodes have the same
    number of children. A missing child has a state of zeros: `jf.Optional(tree())`.

    Attributes:
      features: the length of the state's vectors.
      forget_bias: a number added to forget gates, so that they are open at first.
      recurrent_dropout: the probability that a number of the candidate is dropped.

    >>> import jax, jfold as jf
    >>> word = jf.Scalar('int32') >> jf.layers.Embed(10, 4) >> TreeLSTMLeaf(3)
    >>> cell = jf.Function(TreeLSTMCell(3))
    >>> tree = jf.ForwardDeclaration()
    >>> pair = jf.Record((tree(), tree())) >> cell
    >>> tree.resolve_to(jf.OneOf(type, {int: word, tuple: pair}))
    >>> model = jf.compile(tree() >> jf.GetItem(1))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, model.schedule([(1, (2, 3)), 4])).shape
    (2, 3)
    """

    features: int
    forget_bias: float = 1.0
    recurrent_dropout: float = 0.0

    @nn.compact
    def __call__(self, *operands: Any) -> State:
        children = [x for x in operands if isinstance(x, tuple)]
        inputs = [vector(x) for x in operands if not isinstance(x, tuple)]
        count = len(children)
        joined = jnp.concatenate([*inputs, *(h for _, h in children)])
        gates = nn.Dense((3 + count) * self.features)(joined)
        i, o, u, *forget = jnp.split(gates, 3 + count)
        kept = sum(
            jax.nn.sigmoid(f + self.forget_bias) * c
            for f, (c, _) in zip(forget, children, strict=True)
        )
        return _state(i, o, dropped(self.recurrent_dropout, jnp.tanh(u)), kept)


def _state(i: jax.Array, o: jax.Array, new: jax.Array, kept: Any) -> State:
    """Return (c, h) of gates `i`, `o`, candidate `new`, kept memory: equations 7, 8."""
    c = jax.nn.sigmoid(i) * new + kept
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


class _Forget(nn.Module):
    """The part of a child's memory that a node keeps: its forget gate times `c`."""

    features: int
    forget_bias: float

    @nn.compact
    def __call__(self, x: jax.Array, child: State) -> jax.Array:
        c, h = child
        gate = nn.Dense(self.features)(jnp.concatenate([vector(x), h]))
        return jax.nn.sigmoid(gate + self.forget_bias) * c


class _Join(nn.Module):
    """The tree-LSTM state of a node from its input and the sums over its children."""

    features: int
    recurrent_dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, total: jax.Array, kept: jax.Array) -> State:
        gates = nn.Dense(3 * self.features)(jnp.concatenate([vector(x), total]))
        i, o, u = jnp.split(gates, 3)
        return _state(i, o, dropped(self.recurrent_dropout, jnp.tanh(u)), kept)


@api_boundary
def ChildSumTreeLSTM(
    features: int, forget_bias: float = 1.0, recurrent_dropout: float = 0.0
) -> Block:
    """The child-sum tree-LSTM (Tai et al. 2015), for any number of unordered children.

    These are equations 2 to 8. Takes a pair of a vector [n] and the sequence of the
    children's states, gives a state.

    Args:
      features: the length of the state's vectors.
      forget_bias: a number added to forget gates, so that they are open at first.
      recurrent_dropout: the probability that a number of the candidate is dropped.

    >>> import jax, jfold as jf
    >>> value, children = jf.GetItem(0) >> jf.Vector(2), jf.GetItem(1)
    >>> tree = Tree(value, children, ChildSumTreeLSTM(3), ([3], [3]))
    >>> model = jf.compile(tree >> jf.GetItem(1))
    >>> params = model.init(jax.random.key(0))
    >>> leaf = ([1, 2], [])
    >>> model.apply(params, model.schedule([leaf, ([3, 4], [leaf, leaf])])).shape
    (2, 3)
    """
    features = check_at_least('features', features, 1)
    forget = Function(_Forget(features, forget_bias), name='forget')
    join = Function(_Join(features, recurrent_dropout), name='join')

    @compose
    def child_sum(x: object, children: object) -> Any:
        total = Sum()(Map(GetItem(1))(children))
        kept = Sum()(ZipWith(forget)(Broadcast()(x), children))
        return join(x, total, kept)

    return child_sum


# ---- tree-GRU ------------------------------------------------------------------------


class _Reset(nn.Module):
    """The state [features] of a child times its reset gate."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, h: jax.Array) -> jax.Array:
        gate = nn.Dense(self.features)(jnp.concatenate([vector(x), h]))
        return jax.nn.sigmoid(gate) * h


class _Update(nn.Module):
    """The tree-GRU state of a node: a gate mixes the children's sum and a candidate."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, total: jax.Array, reset: jax.Array) -> jax.Array:
        z = jax.nn.sigmoid(nn.Dense(self.features)(jnp.concatenate([vector(x), total])))
        new = jnp.tanh(nn.Dense(self.features)(jnp.concatenate([vector(x), reset])))
        return z * total + (1 - z) * new


@api_boundary
def ChildSumTreeGRU(features: int) -> Block:
    """The child-sum tree-GRU (Kokkinos and Potamianos 2017, equations 9 to 12).

    Takes a pair of a vector [n] and the sequence of the children's states, gives a
    state, a vector [features].
    """
    features = check_at_least('features', features, 1)
    reset = Function(_Reset(features), name='reset')
    update = Function(_Update(features), name='update')

    @compose
    def child_sum(x: object, children: object) -> Any:
        after_reset = Sum()(ZipWith(reset)(Broadcast()(x), children))
        return update(x, Sum()(children), after_reset)

    return child_sum
