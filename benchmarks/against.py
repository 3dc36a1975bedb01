# SPDX-License-Identifier: Apache-2.0
"""This checkout against another one, both in one process, in turns.

    git worktree add ../before v0.1.0
    python benchmarks/against.py ../before [--quick]
    python benchmarks/against.py ../before --host    # tracing alone, of many kinds

Two processes differ by more than what a change costs. So both are loaded into one, each
behind the name `jfold` while it runs; the calls take turns, and ratios are taken round
by round: above 1, this checkout is slower.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import pkgutil
import random
import shlex
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from options import fill, make_parser, say
from report import Report, Row
from turns import ratio_row, take_turns

ROOT = Path(__file__).resolve().parents[1]
# What imports `jfold` is loaded with it.
WORKLOADS = 'trees', 'workloads'
BESIDE = 'attention', 'function_names', 'measuring', 'molecules', 'names', 'perfect'
SWAPPED = 'jfold', *WORKLOADS, *BESIDE, 'sentiment', 'training'
POOL = 4  # batches that take turns
STEPS = 'infer', 'train'
Call = Callable[[int], Any]


# ---- two of one name -----------------------------------------------------------------


@dataclass(frozen=True)
class Checkout:
    """A checkout that is loaded.

    Attributes:
      modules: all of its own, by name.
    """

    modules: dict[str, ModuleType]

    def activate(self) -> None:
        """From now on its modules are what their names import, as some do late."""
        _forget()
        sys.modules.update(self.modules)


def load(folder: Path, host: bool = False) -> Checkout:
    """Imports all of `jfold` in a folder, and this folder's workloads upon it.

    Raises:
      SystemExit: there is none.
    """
    if not (folder / 'jfold').is_dir():
        raise SystemExit(f'expected a checkout with a folder jfold/, got {folder}')
    _forget()
    sys.path.insert(0, str(folder))
    try:
        package = importlib.import_module('jfold')
        for module in pkgutil.walk_packages(package.__path__, 'jfold.'):
            importlib.import_module(module.name)
        for workload in WORKLOADS[: 1 + host]:
            importlib.import_module(workload)
    finally:
        sys.path.remove(str(folder))
    modules = {name: module for name, module in sys.modules.items() if _is_own(name)}
    _forget()
    return Checkout(modules)


def _is_own(name: str) -> bool:
    return name.partition('.')[0] in SWAPPED


def _forget() -> None:
    for name in list(filter(_is_own, sys.modules)):
        del sys.modules[name]


# ---- what is timed -------------------------------------------------------------------


def calls(checkout: Checkout, options: argparse.Namespace) -> dict[str, Call]:
    """By name, what one checkout does."""
    checkout.activate()
    jf, trees = checkout.modules['jfold'], checkout.modules['trees']
    workload = trees.Workload(options.trees, options.leaves, options.hidden)
    batches = workload.batches(POOL)
    model = jf.compile(trees.expression(workload.hidden))
    params = model.init(jax.random.key(0))
    schedules = [model.schedule(batch) for batch in batches]
    corpus = model.trace([x for batch in batches for x in batch], progress=False)
    order = list(range(len(corpus)))
    random.Random(0).shuffle(order)
    chosen = [order[k :: len(batches)] for k in range(len(batches))]
    chain = [trees.comb(options.chain, random.Random(0))]
    return {
        'schedule a batch': lambda i: model.schedule(batches[i % POOL]),
        'schedule one tree': lambda i: model.schedule(batches[i % POOL][:1]),
        'schedule a chain': lambda i: model.schedule(chain),
        'trace a corpus': lambda i: model.trace(batches[i % POOL], progress=False),
        'merge from a corpus': lambda i: corpus.schedule(chosen[i % POOL]),
        **_steps(model, params, schedules),
        **_steps(model, params, [model.schedule(chain)], ' a chain'),
        **_lists(jf, options),
        **_without_loops(jf, options),
    }


def _lists(jf: Any, options: argparse.Namespace) -> dict[str, Call]:
    """Steps of an LSTM, whose states are pairs, over lists of 50 numbers."""
    vector = jf.Scalar() >> jf.Function(lambda x: jnp.full(options.hidden, x))
    model = jf.compile(jf.Map(vector) >> jf.layers.LSTM(options.hidden))
    params = model.init(jax.random.key(0))
    lists = [[0.1] * 50 for _ in range(options.trees)]
    return _steps(model, params, [model.schedule(lists)], ' lists')


def _without_loops(jf: Any, options: argparse.Namespace) -> dict[str, Call]:
    """Steps and schedules of sums of items, and of attention between two lists."""
    width, rng = options.hidden, np.random.default_rng(0)
    embed = jf.Scalar('int32') >> jf.Function(nn.Embed(1000, width), name='embed')

    def words(most: int) -> Any:
        return rng.integers(1000, size=rng.integers(1, most)).tolist()

    @jf.compose
    def attend(asked: Any, items: Any) -> Any:
        scores = jf.ZipWith(jf.Function(jnp.vdot))(jf.Broadcast()(asked), items)
        weigh = jf.ZipWith(jf.Function(jnp.multiply))
        return jf.Sum()(weigh(jf.Softmax()(scores), items))

    @jf.compose
    def pairs(xs: Any, ys: Any) -> Any:
        return jf.Sum()(jf.ZipWith(attend)(xs, jf.Broadcast()(ys)))

    found: dict[str, Call] = {}
    two = jf.Record((jf.Map(embed), jf.Map(embed)))
    layer = jf.Function(nn.Dense(width), name='layer')
    for name, block, batches in (
        ('words', jf.Map(embed >> layer) >> jf.Sum(), _pool(options, words, 40)),
        ('pairs', two >> pairs, _pool(options, lambda n: (words(n), words(n)), 40)),
    ):
        model = jf.compile(block)
        params, of = model.init(jax.random.key(0)), f' {name}'
        schedules = [model.schedule(batch) for batch in batches]
        corpus = model.trace(batches[0], progress=False)
        order = range(len(corpus))
        found |= {
            f'schedule{of}': lambda i, m=model, b=batches: m.schedule(b[i % POOL]),
            f'schedule one of{of}': lambda i, m=model, b=batches: m.schedule(b[0][:1]),
            f'merge{of}': lambda i, c=corpus, o=order: c.schedule(o),
            **_steps(model, params, schedules, of),
        }
    return found


def _pool(options: argparse.Namespace, draw: Callable[[int], Any], most: int) -> Any:
    """Batches of examples that `draw` makes, of lists shorter than `most`."""
    return [[draw(most) for _ in range(options.trees)] for _ in range(POOL)]


def host_calls(
    checkout: Checkout, options: argparse.Namespace
) -> tuple[dict[str, Call], dict[str, Call]]:
    """By name, what the host of one checkout does; and of it what traces."""
    checkout.activate()
    jf, workloads = checkout.modules['jfold'], checkout.modules['workloads']
    traced: dict[str, Call] = {}
    schedules: dict[str, Call] = {}
    for make in workloads.WORKLOADS.values():
        block, batches = make()
        model = jf.compile(block, max_programs=64)
        tracer = model.tracer()  # `model.trace` looks at much else for a batch of one
        for name, batch in batches.items():
            traced[name] = lambda i, x=batch, of=tracer: of(x)
        scheduled = f'schedule {name}'  # the largest
        schedules[scheduled] = lambda i, x=batch, of=model.schedule: of(x)
    request = _request(jf, workloads.trees)
    compiled = {
        name: lambda i, make=make: jf.compile(make())
        for name, make in workloads.to_compile().items()
    }
    return traced | schedules | request | compiled, traced


def _request(jf: Any, trees: Any) -> dict[str, Call]:
    """One example of ten leaves, from the object to its value."""
    model = jf.compile(trees.expression(64), max_programs=64)
    params = model.init(jax.random.key(0))
    examples = [trees.random_tree(10, random.Random(k)) for k in range(POOL)]
    apply = jax.jit(model.apply)
    for example in examples:
        model.schedule([example])  # so that capacities are settled
    return {
        'apply one of 10 leaves': lambda i: np.asarray(
            apply(params, model.schedule([examples[i % POOL]]))
        ),
        'predict one of 10 leaves': lambda i: list(
            model.predict(params, [examples[i % POOL]], batch_size=1)
        ),
    }


def _peak(call: Call) -> float:
    """The most memory that a call holds, in MB."""
    call(0)
    tracemalloc.start()
    call(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1e6


def _steps(
    model: Any, params: Any, schedules: list[Any], of: str = ''
) -> dict[str, Call]:
    forward = jax.jit(model.apply)
    train = jax.jit(jax.value_and_grad(functools.partial(_loss, model)))
    steps = forward, train
    return {
        f'{name}{of}': lambda i, step=step: step(params, schedules[i % len(schedules)])
        for name, step in zip(STEPS, steps, strict=True)
    }


def _check_equal(got: jax.Array, want: jax.Array) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def _loss(model: Any, params: Any, schedule: Any) -> jax.Array:
    values = jax.tree.leaves(model.apply(params, schedule))
    return sum((jnp.sum(jnp.square(x)) for x in values), jnp.zeros(()))


def compare(
    this: Checkout, other: Checkout, options: argparse.Namespace
) -> Iterator[Row]:
    """The ratio of each kind of call."""
    both = {'this': this, 'other': other}
    found = {name: calls(checkout, options) for name, checkout in both.items()}
    for name in STEPS:
        made = []
        for key, each in found.items():
            both[key].activate()
            made.append(each[name](0))
        jax.tree.map(_check_equal, *made)
    yield from in_turns(both, found, options)


def compare_hosts(
    this: Checkout, other: Checkout, options: argparse.Namespace
) -> Iterator[Row]:
    """The ratio of each kind of call, and of the memory of tracing."""
    both = {'this': this, 'other': other}
    made = {name: host_calls(checkout, options) for name, checkout in both.items()}
    found = {name: calls for name, (calls, _) in made.items()}
    yield from in_turns(both, found, options)
    for name in made['this'][1]:
        peaks = []
        for key, (_, traced) in made.items():
            both[key].activate()
            peaks.append(_peak(traced[name]))
        ratio = peaks[0] / peaks[1]
        yield {'memory of': name, 'ratio': ratio, 'MB': peaks[0], 'other MB': peaks[1]}


def in_turns(
    both: dict[str, Checkout],
    found: dict[str, dict[str, Call]],
    options: argparse.Namespace,
) -> Iterator[Row]:
    """The ratio of each kind of call."""
    # What is loaded stays; without this, one of the two pays for looking through it.
    gc.collect()
    gc.freeze()
    for name in found['this']:
        if options.only and options.only not in name:
            continue
        say(name)
        pair = {key: each[name] for key, each in found.items()}
        activate = lambda key: both[key].activate()  # noqa: E731
        times = take_turns(pair, options.repeats, options.limit, activate)
        row = ratio_row(name, 'this / other', times['this'] / times['other'])
        yield row | {'ms': times['this'].ms, 'other ms': times['other'].ms}


# ---- command line --------------------------------------------------------------------

NOTE = (
    'Ratios above 1: this checkout is slower. They are medians of rounds, with '
    'quartiles; ms are medians too. Values and gradients of a batch were equal.'
)


def main() -> None:
    """Prints the ratios of this checkout and another."""
    options = arguments()
    jax.config.update('jax_enable_compilation_cache', False)
    command = shlex.join(['python', *sys.argv])
    files = options.json, options.markdown
    report = Report('This checkout against another', command, files)
    report.note(NOTE)
    if options.host:
        sys.path.append(str(ROOT / 'examples'))
    this, other = (load(x, options.host) for x in (ROOT, options.other.resolve()))
    report.rows += (compare_hosts if options.host else compare)(this, other, options)
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = make_parser(__doc__ or '')
    add = parser.add_argument
    add('other', type=Path, help='the folder of the other checkout')
    add('--host', action='store_true', help='tracing, requests and compiling alone')
    add('--only', help='part of the names of calls')
    add('--trees', type=int, help='of a batch (default 32)')
    add('--leaves', type=int, help='of a tree (default 32)')
    add('--hidden', type=int, help='units (default 128)')
    add('--chain', type=int, help='leaves of the chain (default 5,000)')
    full = {'trees': 32, 'leaves': 32, 'hidden': 128, 'chain': 5000, 'repeats': 100}
    quick = {'trees': 2, 'leaves': 4, 'hidden': 8, 'chain': 50}
    return fill(parser.parse_args(), full, quick)


if __name__ == '__main__':
    main()
