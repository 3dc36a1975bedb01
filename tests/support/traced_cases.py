# SPDX-License-Identifier: Apache-2.0
"""Expressions of all kinds, with a few examples for each, that batch in many ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from binary_trees import binary_tree, chain, dense_cell, embedding, kind_of, tree_block
from checking import add, number, subtract

import jfold as jf

vector = jf.Vector(2)
tanh = jf.Function(jnp.tanh)
Case = tuple[Any, list[Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Adds a block with examples for it to `CASES`."""
    CASES[make.__name__] = make
    return make


def tuples(leaf: Any, node: Callable[[Any], Any]) -> jf.Block:
    """A recursion over nested tuples; `node` makes a block of the recursion."""
    tree = jf.ForwardDeclaration(name='tree')
    tree.resolve_to(jf.OneOf(kind_of, {'word': leaf, 'pair': node(tree)}))
    return tree()


@case
def trees() -> Case:
    """Of very different sizes, one of them given twice."""
    rng = np.random.default_rng(0)
    made = [binary_tree(rng, n) for n in (1, 40, 3)]
    return tree_block(), [*made, made[1]]


@case
def states_from_above() -> Case:
    """A constant beside the object that a recursion is called with."""
    tree = jf.ForwardDeclaration(name='tree')
    state = jf.FromTensor(np.float32(2))
    further = jf.AllOf(jf.GetItem(0), state) >> tree()
    none = jf.FromTensor(np.float32(1))
    below = jf.GetItem(0) >> jf.Optional(further, none)
    tree.resolve_to(jf.AllOf(below, jf.GetItem(1)) >> add)
    block = jf.AllOf(jf.Identity(), jf.FromTensor(np.float32(0))) >> tree()
    return block, [None, (None,), ((None,),), (((None,),),)]


@case
def tuples_or_lists() -> Case:
    """A choice between a tuple and a list, before a recursion on either."""
    tree = jf.ForwardDeclaration(name='tree')
    either = jf.OneOf(
        type,
        {
            tuple: jf.AllOf(jf.GetItem(0), jf.GetItem(1)) >> jf.Map(jf.Identity()),
            list: jf.Map(jf.Identity()),
        },
    )
    some = either >> jf.Map(tree()) >> jf.Reduce(subtract)
    tree.resolve_to(jf.OneOf(type, {int: number, tuple: some, list: some}))
    return tree(), [1, (2, [3, 4, 5]), [], [(6, [7]), [], 8]]


@case
def declarations_in_turn() -> Case:
    """Lists and dicts that alternate, one of them called twice per node."""
    lists, dicts = jf.ForwardDeclaration(), jf.ForwardDeclaration()
    of_list = jf.Map(dicts()) >> jf.Sum()
    of_dict = jf.AllOf(jf.GetItem('x'), jf.GetItem('y')) >> jf.Map(lists()) >> jf.Max()
    lists.resolve_to(jf.OneOf(type, {int: number, list: of_list}))
    dicts.resolve_to(jf.OneOf(type, {int: number >> tanh, dict: of_dict}))
    first = [1, {'x': [2, 3], 'y': 4}]
    second = [{'x': first, 'y': [5]}, {'x': 6, 'y': 7}]
    return lists(), [first, [], second, 8]


@case
def draws() -> Case:
    """Keys of one stream for two functions, at each node and behind them all."""
    noisy = jf.Function(lambda x, key: x + jax.random.normal(key), rngs='key')
    other = jf.Function(lambda x, key: x * jax.random.normal(key), rngs='key')
    leaf = number >> noisy >> other
    block = tuples(leaf, lambda tree: jf.Map(tree()) >> jf.Sum() >> noisy)
    return block >> other, [(1, (2, 3)), 4, (), ((5, (6,)), 7, 8)]


@case
def calls_in_several_stages() -> Case:
    """A call waits for another's result, at depths that differ between examples."""
    up = jf.ForwardDeclaration(name='up')
    up.resolve_to(dense_cell(2))
    twice = jf.AllOf(jf.Identity(), jf.Identity()) >> up()
    leaf = jf.Scalar('int32') >> embedding(2)

    def node(tree: Any) -> Any:
        raised = jf.AllOf(jf.GetItem(0) >> tree() >> twice, jf.GetItem(1) >> tree())
        return raised >> up() >> twice >> twice

    return tuples(leaf, node), [chain(9), ((1, 2), (3, (4, 5))), 1, (2, 3)]


@case
def a_fold_that_recurses() -> Case:
    """At every position, on the item beside the state: it cannot run before."""
    double = jf.ForwardDeclaration(name='double')
    double.resolve_to(jf.AllOf(jf.Identity(), tanh) >> add)

    def node(tree: Any) -> Any:
        state = jf.GetItem(0) >> double()
        return jf.Fold(jf.AllOf(state, jf.GetItem(1) >> tree()) >> add, jf.Zeros([]))

    examples = [(1, (2, 3, (4,)), 5), (), 6, ((((7,),),), 8)]
    return tuples(number, node), examples


@case
def a_fold_that_recurses_before() -> Case:
    """The same where a recursion on the items runs for all of them at once."""
    block = tuples(
        number, lambda tree: jf.Fold(jf.Record((tanh, tree())) >> add, jf.Zeros([]))
    )
    return block, a_fold_that_recurses()[1]


@case
def reductions() -> Case:
    """Of lengths on both sides of powers of two, with a call in each pair."""
    pair = jf.ForwardDeclaration(name='pair')
    pair.resolve_to(add >> tanh)
    reduced = jf.Reduce(pair() >> tanh, jf.FromTensor(np.float32(0.5)))
    nested = jf.Map(jf.Map(number) >> reduced) >> reduced
    examples = [[[*range(n)] for n in sizes] for sizes in ((1, 2, 3), (), (17, 0, 8))]
    return nested, [*examples, [[], [], [1] * 5]]


@case
def cases_with_calls() -> Case:
    """Calls from both cases run as one, in another order than the items'."""
    inner = jf.ForwardDeclaration()
    inner.resolve_to(jf.Map(number) >> jf.Sum() >> tanh)
    cases = {True: inner() >> tanh, False: jf.AllOf(inner(), inner()) >> subtract}
    block = jf.Map(jf.OneOf(lambda x: len(x) > 1, cases)) >> jf.Fold(add, jf.Zeros([]))
    return block, [[[1], [2, 3], []], [[4, 5]], [], [[6], [7]]]


@case
def callers_in_turn() -> Case:
    """Who calls first depends on the batch; whose calls come first does not."""
    inner, left, right, first, second = (jf.ForwardDeclaration() for _ in range(5))
    inner.resolve_to(number >> tanh)
    for each in first, second:
        each.resolve_to(jf.GetItem(0) >> inner())
    cases = {'a': jf.GetItem(1) >> first(), 'b': jf.GetItem(1) >> second()}
    for side in left, right:
        side.resolve_to(jf.OneOf(jf.GetItem(0), cases))
    block = jf.Record((left(), right())) >> subtract
    pairs = [('b', 'a'), ('a', 'b'), ('a', 'a'), ('b', 'b')]
    return block, [((x, [i]), (y, [-i])) for i, (x, y) in enumerate(pairs)]


@case
def sequences_of_declarations() -> Case:
    """A declaration that gives items, of which callers take their own."""
    rows = jf.ForwardDeclaration()
    rows.resolve_to(jf.Map(jf.Map(number >> tanh)))
    first = jf.GetItem(0) >> jf.Map(jf.Sum()) >> jf.Max()
    second = jf.GetItem(1) >> jf.Map(jf.Length()) >> jf.Sum()
    block = jf.AllOf(rows(), rows()) >> jf.AllOf(first, second) >> subtract
    return block, [[[1, 2], [3]], [], [[], [1, 2, 3], [4]], [[]]]


@case
def nothing_but_constants() -> Case:
    """No operation at all; bits that a comparison by value would miss."""
    fields = jf.Record((vector, jf.Scalar('bool'), jf.Scalar('int8'), jf.Zeros(3)))
    rows = [[np.nan, -0.0], [0.0, -np.nan], [np.inf, 1e-45], [0.0, 0.0]]
    return fields, [(row, i % 2 == 0, -i, ()) for i, row in enumerate(rows)]


@case
def calls_on_parts_of_sequences() -> Case:
    """Of what lists hold, but for the first: its trees, and numbers beside them."""
    tree = jf.ForwardDeclaration(name='tree')
    both = jf.AllOf(jf.GetItem(0), jf.GetItem(1) >> number)
    rest = jf.Map(both) >> jf.GetItem(slice(1, None))
    pair = jf.Record((tree(), tanh)) >> add
    tree.resolve_to(
        jf.OneOf(type, {int: number, list: rest >> jf.Map(pair) >> jf.Sum()})
    )
    return tree(), [
        [(1, 2), (3, 4), ([(5, 6), (7, 8)], 9)],
        10,
        [(1, 1)],
        [(0, 1), ([(1, 2), (3, 4), (5, 6)], 7), ([], 8)],
    ]


@case
def calls_on_sequences_in_cases() -> Case:
    """Which example has which items is told by the case that it is of."""
    tree = jf.ForwardDeclaration(name='tree')
    both = jf.AllOf(jf.GetItem(0), jf.GetItem(1) >> number)
    pairs = jf.GetItem(1) >> jf.Map(both)
    some = jf.Map(jf.Record((tree(), tanh)) >> add) >> jf.Sum()
    whole = jf.OneOf(
        jf.GetItem(0),
        {'all': some, 'but one': jf.GetItem(slice(1, None)) >> some},
        pre_block=pairs,
    )
    tree.resolve_to(jf.OneOf(type, {int: number, tuple: whole}))
    return tree(), [
        ('all', [(1, 2), (('but one', [(3, 4), (5, 6)]), 7)]),
        8,
        ('but one', [(1, 2), (3, 4), (('all', []), 5)]),
    ]


@case
def calls_on_joined_sequences() -> Case:
    """The cases of a choice give sequences, of objects with numbers beside them."""
    tree = jf.ForwardDeclaration(name='tree')

    def beside(constant: int) -> jf.Block:
        given = jf.InputTransform(lambda _: constant) >> number
        return jf.Map(jf.AllOf(jf.Identity(), given))

    items = jf.OneOf(type, {list: beside(1), tuple: beside(5)})
    summed = jf.Map(jf.Record((tree(), jf.Identity())) >> add) >> jf.Sum()
    whole = {True: number, False: items >> summed}
    tree.resolve_to(jf.OneOf(lambda x: isinstance(x, int), whole))
    return tree(), [[2, (3, [4])], 1, ([1, 2], (3, [], 4), [(5,)])]
