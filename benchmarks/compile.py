# SPDX-License-Identifier: Apache-2.0
"""How long training steps take to compile, beside the same written by hand in JAX.

    python benchmarks/compile.py [--quick] [--only cell,kinds]

Every contender is built, lowered and compiled anew in each round, in turns, and nothing
is taken from a cache. Building is `jf.compile`, which code by hand has not.
"""

from __future__ import annotations

import argparse
import functools
import operator
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measuring import agree, begin, half_square, jax_parser, loss
from molecules import expression as molecule_network
from molecules import molecule, padded, padded_network, read
from options import among, fill, say
from report import Report
from trees import Params, Workload, expression
from turns import Times, clocked, ratio_row

import jfold as jf

sys.path.append(str(Path(__file__).parent / 'peers'))

import jax_scan
from protocol import Weights

FEATURES = 16  # of an item
PARTS = ('build', 'lower', 'compile')

Items = list[tuple[int, np.ndarray]]  # of a kind each, with features


@dataclass(frozen=True)
class Job:
    """A model, and the same by hand.

    Attributes:
      name: of the model.
      block: makes its expression, of which nothing is known yet.
      batch: the examples.
      by_hand: from parameters and `arrays` to the results of all examples.
      arrays: of the batch.
      convert: from the model's parameters to those of `by_hand`.
    """

    name: str
    block: Callable[[], jf.Block]
    batch: list[Any]
    by_hand: Callable[..., jax.Array]
    arrays: tuple[Any, ...]
    convert: Callable[[Params], Any] = lambda params: params


# ---- one cell ------------------------------------------------------------------------


def cell_job(options: argparse.Namespace) -> Job:
    """The tree-LSTM, and a scan in which all trees advance together."""
    work = Workload(*options.trees)
    batch = work.batches(1)[0]
    block = functools.partial(expression, work.hidden)
    plan = jax_scan.make_plan(batch, work.leaves)
    return Job(f'one cell, {work}', block, batch, jax_scan.roots, (plan,), cell_weights)


def cell_weights(params: Params) -> Weights:
    """The model's parameters as the scan takes them."""
    return Weights(params['embed'], params['cell']['weights'], params['cell']['bias'])


# ---- items of many kinds -------------------------------------------------------------


def dense(rows: int, columns: int, key: jax.Array, *_: Any) -> Params:
    """A matrix and a bias."""
    w = jax.random.normal(key, (rows, columns)) / rows**0.5
    return {'w': w, 'b': jnp.zeros(columns)}


def layer(p: Params, x: jax.Array) -> jax.Array:
    """What an item adds to the sum."""
    return jnp.tanh(x @ p['w'] + p['b'])


def answer(p: Params, total: jax.Array) -> jax.Array:
    """A number, from a sum."""
    return (total @ p['w'] + p['b'])[..., 0]


def kinds_expression(kinds: int, width: int) -> jf.Block:
    """The sum of items, each through the layer of its kind."""
    init = functools.partial(dense, FEATURES, width)
    cases = {
        kind: jf.GetItem(1)
        >> jf.Vector(FEATURES)
        >> jf.Function(layer, init, name=f'kind {kind}')
        for kind in range(kinds)
    }
    item = jf.OneOf(operator.itemgetter(0), cases)
    last = jf.Function(answer, functools.partial(dense, width, 1), name='answer')
    return jf.Map(item) >> jf.Sum() >> last


def kinds_job(options: argparse.Namespace) -> Job:
    """Lists of items, and the same padded by kind."""
    kinds, examples, width = options.kinds
    rng = np.random.default_rng(0)
    batch: list[Items] = [
        [
            (int(rng.integers(kinds)), rng.normal(size=FEATURES).astype('float32'))
            for _ in range(rng.integers(2, 3 * kinds))
        ]
        for _ in range(examples)
    ]
    arrays = padded_by_kind(batch, kinds)
    block = functools.partial(kinds_expression, kinds, width)
    name = f'{kinds} kinds of items, {examples} lists, {width} wide'
    return Job(name, block, batch, sum_of_kinds, arrays)


def padded_by_kind(batch: list[Items], kinds: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [kinds, examples, most, FEATURES], mask [kinds, examples, most, 1]."""
    most = max(
        sum(kind == k for kind, _ in items) for items in batch for k in range(kinds)
    )
    x = np.zeros((kinds, len(batch), most, FEATURES), 'float32')
    mask = np.zeros((kinds, len(batch), most, 1), 'float32')
    for n, items in enumerate(batch):
        for k in range(kinds):
            own = [features for kind, features in items if kind == k]
            mask[k, n, : len(own)] = 1
            if own:
                x[k, n, : len(own)] = own
    return x, mask


def sum_of_kinds(p: Params, x: jax.Array, mask: jax.Array) -> jax.Array:
    """The model over arrays."""
    total = sum((layer(p[f'kind {k}'], x[k]) * mask[k]).sum(1) for k in range(len(x)))
    return answer(p['answer'], total)


# ---- molecules, and one wide operation -----------------------------------------------


def messages_job(options: argparse.Namespace) -> Job:
    """Message passing over molecules, and the same padded."""
    count, width, rounds = options.molecules
    rng = np.random.default_rng(0)
    batch = [molecule(rng) for _ in range(count)]
    block = functools.partial(molecule_network, width, rounds)
    by_hand = functools.partial(padded_network, rounds)
    name = f'{rounds} rounds of messages, {count} molecules, {width} wide'
    arrays = padded([read(x) for x in batch])
    return Job(name, block, batch, by_hand, arrays)


def inputs_job(options: argparse.Namespace) -> Job:
    """One operation with many inputs, and the same over columns."""
    inputs, examples = options.inputs
    rng = random.Random(0)
    batch = [tuple(rng.random() for _ in range(inputs)) for _ in range(examples)]
    columns = tuple(np.array(batch, 'float32').T)

    def block() -> jf.Block:
        add = jf.Function(lambda *xs: jnp.tanh(sum(x * x for x in xs)), name='add')
        return jf.AllOf(*(jf.GetItem(i) >> jf.Scalar() for i in range(inputs))) >> add

    def by_hand(_: Params, *xs: jax.Array) -> jax.Array:
        return jax.vmap(lambda *xs: jnp.tanh(sum(x * x for x in xs)))(*xs)

    name = f'an operation with {inputs} inputs'
    return Job(name, block, batch, by_hand, columns)


JOBS = {
    'cell': cell_job,
    'kinds': kinds_job,
    'messages': messages_job,
    'inputs': inputs_job,
}


# ---- measuring -----------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A step made from nothing.

    Attributes:
      step: compiled; gives loss and gradients.
      arguments: of it.
      seconds: by part.
    """

    step: Any
    arguments: tuple[Any, ...]
    seconds: dict[str, float]

    def __call__(self) -> Any:
        return self.step(*self.arguments)


def make_own(job: Job) -> Made:
    """jfold's step."""
    block = job.block()
    model, building = clocked(lambda: jf.compile(block))
    arguments = model.init(jax.random.key(0)), model.schedule(job.batch)
    step = jax.value_and_grad(functools.partial(loss, model))
    return make_step(step, arguments, building)


def make_by_hand(job: Job, params: Params) -> Made:
    """The step by hand."""

    def total(params: Params, *arrays: Any) -> jax.Array:
        return half_square(job.by_hand(params, *arrays)).sum()

    return make_step(jax.value_and_grad(total), (job.convert(params), *job.arrays))


def make_step(
    step: Callable[..., Any], arguments: tuple[Any, ...], building: float = 0.0
) -> Made:
    """Compiles a step for such arguments, without what JAX has kept of others."""
    jax.clear_caches()
    lowered, lowering = clocked(lambda: jax.jit(step).lower(*arguments))
    made, compiling = clocked(lowered.compile)
    seconds = dict(zip(PARTS, (building, lowering, compiling), strict=True))
    return Made(made, arguments, seconds)


def measure(job: Job, options: argparse.Namespace, report: Report) -> None:
    """Adds rows for a job: both ways, and their ratio.

    Raises:
      Disagreement: they give other gradients.
    """
    say(f'{job.name}: checking')
    own = make_own(job)
    params = own.arguments[0]
    value, grads = own()
    agree(job.name, make_by_hand(job, params)(), (value, job.convert(grads)))
    ways: dict[str, Callable[[], Made]] = {
        'jfold': functools.partial(make_own, job),
        'by hand': functools.partial(make_by_hand, job, params),
    }
    say(f'{job.name}: compiling')
    spent = in_turns(ways, options.repeats)
    for name, rounds in spent.items():
        parts = {
            f'{part} s': statistics.median(each[part] for each in rounds)
            for part in PARTS
        }
        report.add({'model': job.name, 'contender': name} | parts)
    totals = {
        name: Times(tuple(sum(each.values()) for each in rounds))
        for name, rounds in spent.items()
    }
    report.add(
        ratio_row(
            f'jfold / by hand, {job.name}', 'train', totals['jfold'] / totals['by hand']
        )
        | {'s': totals['jfold'].median}
    )


def in_turns(
    ways: dict[str, Callable[[], Made]], repeats: int
) -> dict[str, list[dict[str, float]]]:
    """Seconds by part, of each contender in each round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    shuffle = random.Random(0)
    for _ in range(repeats):
        for name in shuffle.sample(list(ways), len(ways)):
            found[name].append(ways[name]().seconds)
    return found


# ---- command line --------------------------------------------------------------------

NOTE = (
    'Of a training step. build: `jf.compile`; lower: from Python to XLA; compile: XLA. '
    "Ratios are of all three, medians of rounds with quartiles; s is jfold's. What is "
    'compiled has given the same loss and gradients.'
)


def main() -> None:
    """Measures, and prints tables."""
    options = arguments()
    report = begin('Compiling', options)
    report.note(NOTE)
    for name in options.only:
        measure(JOBS[name](options), options, report)
        report.write()
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    told = f'of {", ".join(JOBS)} (default all)'
    parser.add_argument('--only', type=among(JOBS), default=[*JOBS], help=told)
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.quick else 7)
    full = {
        'trees': (32, 32, 128),
        'kinds': (14, 32, 64),
        'molecules': (128, 64, 3),
        'inputs': (40, 32),
    }
    quick = {
        'trees': (4, 5, 8),
        'kinds': (3, 4, 8),
        'molecules': (4, 8, 2),
        'inputs': (5, 4),
    }
    vars(options).update(dict.fromkeys(full))
    return fill(options, full, quick)


if __name__ == '__main__':
    main()
