# SPDX-License-Identifier: Apache-2.0
"""Loops that carry states and sequences: as items, and in what they give."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import (
    add,
    check,
    does_not_compile,
    number,
    numbers,
    observed,
    refuses,
    whole,
)

import jfold as jf

scaled = jf.Scalar() >> jf.Function(
    operator.mul, lambda key: jnp.ones(()), name='scale'
)
lists = jf.Map(jf.Map(scaled))
LISTS = [[[1, 2], [3, 4, 5]], [], [[1]], [[1], [2], [3]], [[], [7, 8]]]
FLAT = [[1, 2, 3], [], [0.5]]
both = jf.Function(lambda x, s: jnp.tanh(x + s))


@jf.compose
def attending(item: Any, state: Any) -> Any:
    """A cell that looks at a whole sequence, by what it is in."""
    x, all_ = item[0], item[1]
    scores = jf.ZipWith(jnp.multiply)(all_, jf.Broadcast()(state))
    weighted = jf.ZipWith(jnp.multiply)(jf.Softmax()(scores), all_)
    made = both(x, jf.Sum()(weighted))
    return made, made


one, two = jf.GetItem(0), jf.GetItem(1)
decoder = jf.AllOf(jf.Map(scaled), jf.Map(scaled) >> jf.Broadcast()) >> jf.Zip()
pair = jf.AllOf(np.float32(1), np.float32(2))
longer = jf.AllOf(one, jf.AllOf(two)) >> jf.Chain()
empty = jf.Zeros(jf.SequenceType([]))
times = jf.AllOf(one, two >> jf.Broadcast()) >> jf.ZipWith(jnp.multiply)
summed = jf.AllOf(one >> jf.Sum(), two) >> add
inner = jf.Record((jf.Identity(), jf.Map(observed('item')) >> jf.Sum()))
outer = jf.Fold(inner >> add >> observed('row'), jf.Zeros([]))
mixed = jf.Map(jf.Record((jf.Map(scaled), jf.Map(whole))))
ends = jf.AllOf(one >> jf.Sum(), two >> jf.Sum() >> jf.Function(jnp.float32))

repeated = scaled >> jf.Broadcast()
both_repeated = jf.AllOf(one, two) >> jf.Map(jf.Identity())
beside = (
    jf.AllOf(jf.GetItem(2) >> jf.Broadcast(), both_repeated)
    >> jf.Zip()
    >> jf.Map(jf.ZipWith(jnp.multiply) >> jf.Sum())
)

BLOCKS: dict[str, tuple[jf.Block, list[Any]]] = {
    'items of a fold': (
        lists >> jf.Fold(jf.AllOf(one, two >> jf.Sum()) >> add, jf.Zeros([])),
        LISTS,
    ),
    'items that are read before the fold': (lists >> outer, LISTS),
    'a state': (jf.Map(scaled) >> jf.Fold(longer, empty), FLAT),
    'items of a reduction': (lists >> jf.Reduce(jf.ZipWith(jnp.add)), LISTS),
    'items in one': (lists >> jf.Reduce(jf.Chain()) >> jf.Softmax(), LISTS),
    'items that are observed': (
        lists >> jf.Reduce(jf.ZipWith(add >> observed('sum'))),
        LISTS,
    ),
    'a default': (lists >> jf.Reduce(jf.Chain(), pair >> jf.Map(jf.Identity())), LISTS),
    'attention in a decoder': (decoder >> jf.RNN(attending, np.float32(0.5)), FLAT),
    'items, and what is made of each': (
        lists >> jf.RNN(jf.AllOf(times, summed), np.float32(1)),
        LISTS,
    ),
    'zeros as the first state': (
        jf.Map(scaled) >> jf.RNN(jf.AllOf(two >> jf.Sum(), jf.Void() >> empty)),
        FLAT,
    ),
    'sequences in sequences': (
        jf.Map(lists) >> jf.Reduce(jf.ZipWith(jf.ZipWith(jnp.multiply))),
        [[LISTS[0], LISTS[4]], [], [LISTS[2]], [LISTS[2], LISTS[3], LISTS[0]]],
    ),
    'tuples of sequences of two kinds': (
        mixed >> jf.Fold(jf.AllOf(one, two >> ends >> add) >> add, jf.Zeros([])),
        [[([1, 2], [3]), ([], [1])], [], [([1], [])]],
    ),
    'a tuple of sequences': (
        jf.Record((jf.Map(scaled), jf.Map(scaled))) >> jf.Map(jf.Sum()),
        [([1, 2], [3]), ([], [1])],
    ),
    'a tuple of repetitions': (
        jf.Record((repeated, repeated, jf.Map(scaled))) >> beside,
        [(1, 2, [3, 4]), (1, 2, [])],
    ),
    'a sequence of tuples of sequences': (
        lists >> jf.NGrams(2) >> jf.Map(jf.Map(jf.Sum()) >> jf.Sum()),
        LISTS,
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', BLOCKS)
def test_sequences_in_loops(name: str) -> None:
    block, examples = BLOCKS[name]
    model = jf.compile(block)
    agree(model, model.init(jax.random.key(0)), examples, 1e-4)


def test_in_a_recursion() -> None:
    """In which the state of a node is the sequence of all below."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = scaled >> jf.AllOf(jf.Identity()) >> jf.Map(jf.Identity())
    below = jf.Map(tree()) >> jf.Reduce(jf.Chain())
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: below}))
    model = jf.compile(tree() >> jf.Softmax())
    examples = [1, (1, 2), ((1,), (), (2, (3, 4))), ()]
    agree(model, model.init(jax.random.key(0)), examples, 1e-4)


def test_a_tuple_of_sequences_in_a_recursion() -> None:
    tree = jf.ForwardDeclaration(name='tree', output_type=[])
    halves = jf.AllOf(one >> jf.Map(jf.Identity()), two >> jf.Map(jf.Identity()))
    node = halves >> jf.Map(jf.Map(tree()) >> jf.Sum()) >> jf.Reduce(jnp.subtract)
    tree.resolve_to(jf.OneOf(type, {int: scaled, tuple: node}))
    model = jf.compile(tree())
    examples = [1, ([1, 2], [3]), ([], [([1], [2, 3]), 4]), ([([], [])], [([1], [2])])]
    params = model.init(jax.random.key(0))
    agree(model, params, examples, 1e-4)
    agree(model, params, examples[3:], 1e-4)


constant = jf.FromTensor(np.float32(3))


def test_bodies_that_read_nothing() -> None:
    loops = jf.AllOf(
        jf.Fold(constant, jf.Zeros([])),
        jf.Fold(jf.Void() >> constant, jf.Zeros([])),
        jf.Reduce(constant),
        jf.RNN(jf.AllOf(constant, constant)),
        jf.RNN((np.float32(3), np.float32(4))),
    )
    agree(jf.compile(numbers >> loops), {}, [[1, 2], [], [1]])


def test_what_is_wrong_in_a_sequence_is_located() -> None:
    model = jf.compile(lists >> jf.Reduce(jf.ZipWith(jnp.add)))
    text = (
        "example 0, at [1][0]: expected float32[], got 'x'; in "
        "Pipe[0].Map.Map.Pipe[0].Scalar('float32')"
    )
    with refuses(text, jf.InputError):
        model.schedule([[[1], ['x']]])


def test_what_is_wrong_with_a_sequence_in_a_loop_is_located() -> None:
    """In the example, for nothing is known of where an empty one was."""
    first = jf.AllOf(one, two >> jf.GetItem(0)) >> add
    model = jf.compile(lists >> jf.Fold(first, jf.Zeros([])))
    text = (
        'example 0: expected an item 0, got a sequence of length 0; in '
        'Pipe[1].Fold.combine.Pipe[0].AllOf[1].Pipe[1].GetItem(0)'
    )
    with refuses(text, jf.InputError):
        model.schedule([[[1], []]])


# ---- states --------------------------------------------------------------------------

running = jf.Function(lambda x, total: (x + total, x + total))
halves = jf.Function(
    lambda w, x, state: (w * x - state, jnp.sin(state) + x / 2),
    init=lambda key: jnp.float32(0.5),
    name='halves',
)


def test_one_block_on_the_first_and_the_last_state() -> None:
    twice = jf.Function(lambda x: 2 * x, name='twice')

    @jf.compose
    def block(x: Any) -> Any:
        start = number(x[0])
        made = jf.RNN(running, initial_state_from_input=True)(numbers(x[1]), start)
        return twice(start), twice(made[1]), jf.Sum()(made[0])

    check((block, [(1, [2, 3]), (4, [])], [(2.0, 12.0, 9.0), (8.0, 8.0, 0.0)]))


def test_rnn_starts_from_zeros_where_the_cell_is_typed() -> None:
    cell = jf.ForwardDeclaration(('float32', 'float32'))
    cell.resolve_to(running)
    check((numbers >> jf.RNN(cell()) >> jf.GetItem(1), [[1, 2], []], [3.0, 0.0]))
    assert repr(jf.RNN(cell())) == 'RNN(declaration())'


def test_rnn_in_layers_and_recursions() -> None:
    layers = jf.RNN(halves, jf.Zeros([])) >> jf.GetItem(0)
    deep = numbers >> layers >> layers >> jf.NGrams(2) >> jf.Map(jnp.multiply)
    tree = jf.ForwardDeclaration(output_type='float32')
    cell = jf.Record((tree(), jf.Identity())) >> halves
    node = (
        jf.RNN(cell, np.float32(1))
        >> jf.Record((jf.Sum(), jf.Identity()))
        >> jnp.subtract
    )
    tree.resolve_to(jf.OneOf(type, {int: number, list: node}))
    for block, examples in (
        (deep >> jf.Sum(), [[1, 2, 3], [], [4]]),
        (tree(), [1, [2, [3, 4], 5], [], [[], [[6]]]]),
    ):
        model = jf.compile(block)
        agree(model, model.init(jax.random.key(0)), examples)


def test_rnn_carries_objects() -> None:
    """Each letter with the one before it."""
    cell = jf.compose(lambda item, before: ((item, before), item))
    pairs = jf.RNN(cell, initial_state_from_input=True)
    text = jf.Record((jf.Map(jf.Identity()), jf.Identity())) >> pairs
    codes = jf.Map(jf.InputTransform(lambda x: ord(x[0]) - ord(x[1])) >> number)
    check(
        (text >> jf.GetItem(0) >> codes >> jf.Sum(), [('bcf', 'a'), ('', 'z')], [5, 0])
    )


def test_rnn_needs_the_type_of_its_state() -> None:
    does_not_compile(
        numbers >> jf.RNN(running) >> jf.GetItem(1),
        'Pipe[1].RNN(Function(function)): expected types that follow from the '
        'expression, got [float32[]] to ([?], ?); say that of the state, by '
        '`initial_state`, such as `Zeros([16])`',
    )
