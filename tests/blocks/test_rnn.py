# SPDX-License-Identifier: Apache-2.0
"""States carried along sequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from agreement import agree
from checking import check, check_eager, does_not_compile, number, numbers

import jfold as jf

running = jf.Function(lambda x, total: (x + total, x + total))
halves = jf.Function(
    lambda w, x, state: (w * x - state, jnp.sin(state) + x / 2),
    init=lambda key: jnp.float32(0.5),
    name='halves',
)
last_and_sum = jf.Record((jf.Sum(), jf.Identity()))


def test_rnn_gives_outputs_and_the_last_state() -> None:
    sums = numbers >> jf.RNN(running, np.float32(1)) >> last_and_sum
    from_input = jf.Record((numbers, number))
    from_input >>= jf.RNN(running, initial_state_from_input=True) >> last_and_sum
    check(
        (sums, [[1, 2, 3], [], [4]], [(2.0 + 4 + 7, 7.0), (0.0, 1.0), (5.0, 5.0)]),
        (from_input, [([1, 2], 3), ([], 4)], [(4.0 + 6, 6.0), (0.0, 4.0)]),
    )
    check_eager(
        (numbers >> jf.RNN(running, jf.Zeros([])), [[1, 2]], [([1.0, 3.0], 3.0)]),
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
    node = jf.RNN(cell, np.float32(1)) >> last_and_sum >> jnp.subtract
    tree.resolve_to(jf.OneOf(type, {int: number, list: node}))
    for block, examples in (
        (deep >> jf.Sum(), [[1, 2, 3], [], [4]]),
        (tree(), [1, [2, [3, 4], 5], [], [[], [[6]]]]),
    ):
        model = jf.compile(block)
        agree(model, model.init(jax.random.key(0)), examples, forward=True)


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
