# SPDX-License-Identifier: Apache-2.0
"""Learns the sign of arithmetic expressions.

An expression is a digit, or an operation on two expressions. Each operation is a small
network of its own, so expressions are evaluated by networks within networks, which are
told the signs of whole expressions alone. Those nested deeper than all it has learned
from are the test. An example of TensorFlow Fold, whose division this is too: rounded
down, and zero where the divisor is zero.
"""

from __future__ import annotations

import argparse
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from training import (
    Examples,
    Params,
    accuracy,
    clipped_adam,
    cross_entropy,
    fit_logistic,
    make_parser,
    make_trainer,
    print_shares,
)

import jfold as jf

Expression = int | tuple[str, Any, Any]  # a digit, or an operation and its operands

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    '+': operator.add,
    '-': operator.sub,
    '*': operator.mul,
    '/': lambda x, y: x // y if y else 0,
}
SIGNS = 'negative', 'zero', 'positive'
DEPTH = 5  # of the expressions to learn from
HELD_OUT = 2_000  # of each part to be tested on
# Told of at the end.
SHOWN: tuple[Expression, ...] = (
    ('-', 3, ('*', 2, 5)),
    ('/', ('-', 2, 9), ('+', 8, 8)),
    ('*', ('-', 7, 7), ('+', 1, 4)),
)

# ---- the model -----------------------------------------------------------------------


class Cell(nn.Module):
    """What is known of a result, from what is known of two operands."""

    width: int

    @nn.compact
    def __call__(self, left: jax.Array, right: jax.Array) -> jax.Array:
        both = jnp.concatenate([left, right])
        hidden = nn.relu(nn.Dense(4 * self.width)(both))
        return jnp.tanh(nn.Dense(self.width)(hidden))


def make_block(width: int) -> jf.Block:
    """Logits [3] of an expression."""
    value = jf.ForwardDeclaration(name='value')
    digit = jf.Scalar('int32') >> jf.Function(nn.Embed(10, width), name='digit')
    operands = jf.Record({1: value(), 2: value()})
    results = {x: operands >> jf.Function(Cell(width), name=x) for x in OPERATIONS}
    result = jf.OneOf(jf.GetItem(0), results)
    value.resolve_to(jf.OneOf(type, {int: digit, tuple: result}))
    return value() >> jf.Function(nn.Dense(len(SIGNS)), name='sign')


# ---- the data ------------------------------------------------------------------------


def evaluate(expression: Expression) -> int:
    """The value.

    >>> evaluate(('-', 3, ('*', 2, 5)))
    -7
    """
    if isinstance(expression, int):
        return expression
    name, left, right = expression
    return OPERATIONS[name](evaluate(left), evaluate(right))


def sign(value: int) -> int:
    """Its place among `SIGNS`."""
    return 1 + (value > 0) - (value < 0)


def random_expression(rng: random.Random, depth: int) -> Expression:
    """At most so deep; a third are digits, and so is what stands at the bottom."""
    if depth == 0 or rng.random() < 1 / 3:
        return rng.randrange(10)
    name = rng.choice(list(OPERATIONS))
    return name, random_expression(rng, depth - 1), random_expression(rng, depth - 1)


def depth_of(expression: Expression) -> int:
    """How deep operations are nested."""
    if isinstance(expression, int):
        return 0
    return 1 + max(map(depth_of, expression[1:]))


def draw(rng: random.Random, count: int, depths: range) -> list[Any]:
    """Expressions of these depths, no two alike."""
    found: dict[Expression, None] = {}
    while len(found) < count:
        expression = random_expression(rng, depths[-1])
        if depth_of(expression) in depths:
            found[expression] = None
    return list(found)


def make_parts(count: int, seed: int) -> dict[str, Examples]:
    """Expressions to learn from, others of the same depths, and deeper ones."""
    rng = random.Random(seed)
    alike = draw(rng, count + HELD_OUT, range(DEPTH + 1))
    rng.shuffle(alike)  # the short ones were found first
    deeper = draw(rng, HELD_OUT, range(DEPTH + 1, DEPTH + 4))
    drawn = {'train': alike[HELD_OUT:], 'alike': alike[:HELD_OUT], 'deeper': deeper}
    return {name: examples(part) for name, part in drawn.items()}


def examples(expressions: Sequence[Any]) -> Examples:
    """Expressions, with their symbols counted, and their signs."""
    nodes = np.array([sum(1 for _ in symbols(each)) for each in expressions])
    signs = np.array([sign(evaluate(each)) for each in expressions], 'int32')
    return Examples(list(expressions), nodes, signs)


def symbols(expression: Expression) -> Iterator[int | str]:
    """Operations and digits, the outermost first.

    >>> list(symbols(('-', 3, ('*', 2, 5))))
    ['-', 3, '*', 2, 5]
    """
    if isinstance(expression, int):
        yield expression
    else:
        name, *operands = expression
        yield name
        yield from (symbol for each in operands for symbol in symbols(each))


def written(expression: Expression) -> str:
    """As people write it.

    >>> written(('-', 3, ('*', 2, 5)))
    '(3 - (2 * 5))'
    """
    if isinstance(expression, int):
        return str(expression)
    name, left, right = expression
    return f'({written(left)} {name} {written(right)})'


# ---- what the model has to beat ------------------------------------------------------


def baselines(parts: dict[str, Examples]) -> dict[str, list[float]]:
    """Accuracies on both parts held out, of guesses that do not see the structure."""
    train, *others = parts.values()
    usual = np.bincount(train.targets).argmax()
    weights = fit_logistic(count_symbols(train.items), train.targets, len(SIGNS))
    return {
        'most frequent sign': [float(np.mean(x.targets == usual)) for x in others],
        'counts of symbols': [
            accuracy(count_symbols(x.items) @ weights, x.targets) for x in others
        ],
    }


def count_symbols(expressions: Sequence[Any]) -> np.ndarray:
    """Logarithms of counts, and what is outermost: [expressions, 28]."""
    column = {symbol: n for n, symbol in enumerate([*range(10), *OPERATIONS])}
    counts, outermost = np.zeros((2, len(expressions), len(column)), 'float32')
    for row, expression in enumerate(expressions):
        numbers = [column[symbol] for symbol in symbols(expression)]
        np.add.at(counts[row], numbers, 1)
        outermost[row, numbers[0]] = 1
    return np.concatenate([np.log1p(counts), outermost], 1)


# ---- training ------------------------------------------------------------------------


def train(parts: dict[str, Examples], options: argparse.Namespace) -> list[float]:
    """Trains, and gives the accuracies on both parts held out."""
    model = jf.compile(make_block(options.width))
    optimizer = clipped_adam(options, options.expressions)
    trainer = make_trainer(
        model, parts, cross_entropy, jf.Model.apply, optimizer, options
    )
    for epoch, params, found in trainer.epochs(options.seed):
        alike, deeper = (
            accuracy(trainer.predictions(params, name), parts[name].targets)
            for name in ('alike', 'deeper')
        )
        print(f'{epoch}: loss {np.mean(found):.4f}, alike {alike:.1%}')
    print(trainer.clock)
    for expression in SHOWN:
        print(f'{written(expression)} is {say(model, params, expression)}')
    return [alike, deeper]


def say(model: jf.Model, params: Params, expression: Expression) -> str:
    """What the model says of an expression."""
    return SIGNS[int(np.argmax(model.eval(expression, params)))]


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=15, batch_size=100, rate=0.003)
    add = parser.add_argument
    add('--expressions', type=int, default=40_000, help='to learn from')
    add('--width', type=int, default=32, help='size of what is known of a value')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(epochs=2, expressions=500, width=8)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, and compares with guesses that do not see the structure."""
    options = read_options(argv)
    parts = make_parts(options.expressions, options.seed)
    rows = {**baselines(parts), 'networks within networks': train(parts, options)}
    head = 'right signs', f'depth 0 to {DEPTH}', f'{DEPTH + 1} to {DEPTH + 3}'
    print_shares(head, rows)


if __name__ == '__main__':
    main()
