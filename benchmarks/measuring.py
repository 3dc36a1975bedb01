# SPDX-License-Identifier: Apache-2.0
"""What several benchmarks share: checks, one model's setup, the same in plain JAX.

What is timed has given the right results before: `agree` raises if it has not.
"""

from __future__ import annotations

import argparse
import functools
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from options import among, fill, make_parser
from perfect import Perfect, perfect_batch
from report import Report, Row
from trees import Params
from turns import Times, clocked, compiled, take_turns

import jfold as jf

MODES = ('infer', 'train')
# The largest difference from the reference, over its largest number.
EXACT, ROUGH = 1e-4, 3e-2


# ---- checks --------------------------------------------------------------------------


class Disagreement(Exception):
    """A contender's results are not those of the reference."""


def agree(name: str, got: Any, want: Any, tolerance: float | None = None) -> None:
    """Checks results against those of a reference.

    Args:
      name: of the contender.
      got: its results, a pytree of arrays.
      want: what they should be.
      tolerance: how far they may be off; what the device allows when left out.

    Raises:
      Disagreement: a number is off by more.
    """
    if tolerance is None:
        tolerance = EXACT if is_exact() else ROUGH
    found, expected = _leaves(got), _leaves(want)
    if found.keys() != expected.keys():
        raise Disagreement(f'{name}: expected {list(expected)}, got {list(found)}')
    for path, reference in expected.items():
        error = distance(found[path], reference)
        if not error <= tolerance:
            raise Disagreement(
                f'{name}: expected results{path} that differ from the reference by '
                f'less than {tolerance} of its largest number, got {error:.2g}'
            )


def is_exact() -> bool:
    """Whether products have all digits, as accelerators' have only if told so."""
    precision = jax.config.jax_default_matmul_precision
    return jax.default_backend() == 'cpu' or precision in ('highest', 'float32')


def _leaves(tree: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference over the largest number; infinite if shapes differ."""
    if got.shape != want.shape:
        return math.inf
    scale = np.abs(want).max(initial=0)
    error = float(np.abs(got - want).max(initial=0) / (scale or 1))
    return math.inf if math.isnan(error) else error


# ---- one model -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Setup:
    """A model with batches, and its two compiled steps; made by `set_up`.

    Attributes:
      name: of the model.
      batches: lists of examples.
      places: of the examples of each batch in the corpus.
      schedules: of each batch, on the device.
      steps: by mode; called with parameters and a schedule.
      compiling: by mode, seconds.
      nodes: in a batch on average, as the benchmark counts them.
      perfect: the perfect batch.
    """

    name: str
    model: jf.Model
    params: Params
    corpus: jf.Corpus
    batches: list[list[Any]]
    places: list[np.ndarray]
    schedules: list[jf.Schedule]
    steps: dict[str, Any]
    compiling: dict[str, float]
    nodes: float
    perfect: Perfect

    @property
    def operations(self) -> int:
        """Operations in a batch, on average."""
        return round(np.mean([s.counts.sum() for s in self.schedules]))

    @property
    def depth(self) -> float:
        """Levels of a batch, on average."""
        return float(np.mean([s.depth for s in self.schedules]))

    @property
    def launches(self) -> float:
        """Pairs of an operation and a level at which it has nodes, on average."""
        counts = [
            np.count_nonzero(s.tiles(o)[:, 1] > s.tiles(o)[:, 0])
            for s in self.schedules
            for o in range(len(self.model.program.operations))
        ]
        return sum(counts) / len(self.schedules)

    def schedule(self, i: int) -> jf.Schedule:
        """The schedule of a batch from its examples."""
        return self.model.schedule(self.batches[i % len(self.batches)])

    def merge(self, i: int) -> jf.Schedule:
        """The schedule of a batch from the corpus."""
        return self.corpus.schedule(self.places[i % len(self.places)])

    def run(self, mode: str, i: int) -> Any:
        """A step whose schedule lies ready."""
        schedule = self.schedules[i % len(self.schedules)]
        return self.steps[mode](self.params, schedule)

    def whole(self, mode: str, i: int) -> Any:
        """A step from examples to results."""
        return self.steps[mode](self.params, self.schedule(i))

    def contenders(self) -> dict[str, Callable[[int], Any]]:
        """All that is timed of it, named (model, part)."""
        own: dict[str, Callable[[int], Any]] = {
            f'{self.name}: schedule': self.schedule,
            f'{self.name}: merge': self.merge,
        }
        for mode in MODES:
            own |= {
                f'{self.name}: {mode}': functools.partial(self.run, mode),
                f'{self.name}: whole {mode}': functools.partial(self.whole, mode),
                f'{self.name}: perfect {mode}': lambda i, m=mode: self.perfect.run(m),
            }
        return own

    def row(self, mode: str, times: Mapping[str, Times]) -> Row:
        """Its times in one mode."""

        def of(part: str) -> Times:
            return times[f'{self.name}: {part}']

        device, whole, perfect = (of(p + mode) for p in ('', 'whole ', 'perfect '))
        return {
            'model': self.name,
            'mode': mode,
            'nodes': round(self.nodes),
            'operations': self.operations,
            'depth': self.depth,
            'launches': self.launches,
            'compile s': self.compiling[mode],
            'schedule ms': of('schedule').ms,
            'merge ms': of('merge').ms,
            'device ms': device.ms,
            'spread %': device.spread,
            'perfect ms': perfect.ms,
            'whole ms': whole.ms,
            'nodes/s': self.nodes / whole.median,
            'share of perfect': (perfect / device).median,
        }


def set_up(
    name: str,
    block: jf.Block,
    batches: list[list[Any]],
    checks: list[Any],
    count: Callable[[Any], int],
    names: Any = None,
    compiles: Callable[[jf.Block, int], jf.Model] = jf.compile,
) -> Setup:
    """Compiles a model for batches of one size, and checks it.

    Args:
      name: of the model.
      block: its expression.
      batches: lists of examples, all of the same length.
      checks: at most as many small examples, on which the steps that are timed must
        give what the eager twin gives.
      count: how many nodes an example has.
      names: of the layers that the perfect batch counts; all when left out.
      compiles: makes a model of a block, with so many programs at most.

    Raises:
      Disagreement: they do not.
    """
    model = compiles(block, 64)
    size = len(batches[0])
    params = model.init(jax.random.key(0))
    corpus = model.trace([*checks, *(x for b in batches for x in b)], progress=False)
    places = [
        len(checks) + size * number + np.arange(size) for number in range(len(batches))
    ]
    capacity = corpus.capacities_of([np.arange(len(checks)), *places], size)
    training = jax.value_and_grad(functools.partial(loss, model))
    steps, compiling = {}, {}
    for mode, step in (('infer', model.apply), ('train', training)):
        steps[mode], compiling[mode] = clocked(
            functools.partial(model.precompile, step, params, capacity)
        )
    few = corpus.schedule(np.arange(len(checks)), size=size)
    agree_with_eager(
        name, model, params, checks, [steps[m](params, few) for m in MODES]
    )
    schedules = [jax.device_put(corpus.schedule(place)) for place in places]
    nodes = sum(count(x) for batch in batches for x in batch) / len(batches)
    perfect = perfect_batch(model, params, schedules, names)
    return Setup(
        name,
        model,
        params,
        corpus,
        batches,
        places,
        schedules,
        steps,
        compiling,
        nodes,
        perfect,
    )


def loss(model: jf.Model, params: Params, schedule: jf.Schedule) -> jax.Array:
    """Half the sum of squares of all results, and the sum of all metrics."""
    values, metrics = _parted(model, model.apply(params, schedule))
    mask = schedule.mask
    rows = [
        (half_square(x) * mask.reshape(-1, *(1 for _ in x.shape[1:]))).sum()
        for x in jax.tree.leaves(values)
    ]
    observed = [x for m in metrics.values() for x in jax.tree.leaves(m.sum())]
    return sum([*rows, *observed], jnp.zeros(()))


def eager_loss(model: jf.Model, params: Params, examples: Sequence[Any]) -> jax.Array:
    """The same, one example after another, without batches."""
    total = jnp.zeros(())
    for example in examples:
        values, metrics = _parted(model, model.eval(example, params))
        total += sum(half_square(x).sum() for x in jax.tree.leaves(values))
        total += sum(x for observed in metrics.values() for x in observed)
    return total


def _parted(model: jf.Model, result: Any) -> tuple[Any, Any]:
    return result if model.program.metric_results else (result, {})


def half_square(x: Any) -> Any:
    """Half the square of each number."""
    return x * x / 2


def agree_with_eager(
    name: str, model: jf.Model, params: Params, examples: list[Any], got: list[Any]
) -> None:
    """Checks values, loss and gradients of a batch against one example at a time."""
    results = [model.eval(example, params) for example in examples]
    rows = [_parted(model, result)[0] for result in results]
    want = jax.tree.map(lambda *x: np.stack(x), *rows)
    values = jax.tree.map(lambda x: x[: len(rows)], _parted(model, got[0])[0])
    agree(f'{name}, infer', values, want)
    reference = jax.value_and_grad(functools.partial(eager_loss, model))
    agree(f'{name}, train', got[1], reference(params, examples))


# ---- plain JAX -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plain:
    """A contender in plain JAX, with the parts of a `Setup` that it has.

    Attributes:
      name: of the contender.
      params: as its steps take them.
      prepare: from examples to the other arguments of a step.
      batches: lists of examples.
      ready: the arguments of each batch, on the device.
      steps: by mode.
      compiling: by mode, seconds.
      nodes: in a batch, on average.
    """

    name: str
    params: Params
    prepare: Callable[[list[Any]], tuple[Any, ...]]
    batches: list[list[Any]]
    ready: list[tuple[Any, ...]]
    steps: dict[str, Any]
    compiling: dict[str, float]
    nodes: float

    def prepared(self, i: int) -> tuple[Any, ...]:
        """The arguments of a batch from its examples."""
        return self.prepare(self.batches[i % len(self.batches)])

    def run(self, mode: str, i: int) -> Any:
        """A step whose arguments lie ready."""
        return self.steps[mode](self.params, *self.ready[i % len(self.ready)])

    def whole(self, mode: str, i: int) -> Any:
        """A step from examples to results."""
        return self.steps[mode](self.params, *self.prepared(i))

    def contenders(self) -> dict[str, Callable[[int], Any]]:
        """All that is timed of it."""
        own: dict[str, Callable[[int], Any]] = {f'{self.name}: prepare': self.prepared}
        for mode in MODES:
            own[f'{self.name}: {mode}'] = functools.partial(self.run, mode)
            own[f'{self.name}: whole {mode}'] = functools.partial(self.whole, mode)
        return own

    def row(self, mode: str, times: Mapping[str, Times]) -> Row:
        """Its times in one mode; the columns of `Setup.row`."""
        device = times[f'{self.name}: {mode}']
        all_of_it = times[f'{self.name}: whole {mode}']
        return {
            'model': self.name,
            'mode': mode,
            'nodes': round(self.nodes),
            'operations': None,
            'depth': None,
            'launches': None,
            'compile s': self.compiling[mode],
            'schedule ms': times[f'{self.name}: prepare'].ms,
            'merge ms': None,
            'device ms': device.ms,
            'spread %': device.spread,
            'perfect ms': None,
            'whole ms': all_of_it.ms,
            'nodes/s': self.nodes / all_of_it.median,
            'share of perfect': None,
        }


def in_plain_jax(
    name: str,
    function: Callable[..., jax.Array],
    params: Params,
    prepare: Callable[[list[Any]], tuple[Any, ...]],
    twin: Setup,
) -> Plain:
    """Compiles a function of parameters and a batch for the batches of a model."""

    def loss(params: Params, *given: Any) -> jax.Array:
        values = function(params, *given)
        return (values * values).sum() / 2

    ready = [jax.device_put(prepare(batch)) for batch in twin.batches]
    steps, compiling = {}, {}
    for mode, step in (('infer', function), ('train', jax.value_and_grad(loss))):
        steps[mode], compiling[mode] = compiled(step, params, *ready[0])
    return Plain(
        name, params, prepare, twin.batches, ready, steps, compiling, twin.nodes
    )


def agree_with(
    twin: Setup, plain: Plain, convert: Callable[[Params], Params] | None = None
) -> None:
    """Checks a model's first batch against plain JAX, with gradients converted."""
    agree(f'{twin.name}, {plain.name}', twin.run('infer', 0), plain.run('infer', 0))
    value, grads = plain.run('train', 0)
    grads = convert(grads) if convert else grads
    agree(f'{twin.name}, {plain.name}', twin.run('train', 0), (value, grads))


# ---- command line --------------------------------------------------------------------


def jax_parser(description: str) -> argparse.ArgumentParser:
    """The options of all benchmarks that run in this process."""
    parser = make_parser(description)
    told = 'of products on accelerators, e.g. highest (JAX decides)'
    parser.add_argument('--precision', help=told)
    return parser


def begin(title: str, options: argparse.Namespace) -> Report:
    """A report; from now on nothing compiled is taken from a cache on disk."""
    jax.config.update('jax_enable_compilation_cache', False)
    jax.config.update('jax_default_matmul_precision', options.precision)
    command = shlex.join(['python', *sys.argv])
    return Report(title, command, (options.json, options.markdown))


def timed_in_turns(
    setups: Iterable[Setup],
    options: argparse.Namespace,
    others: Mapping[str, Callable[[int], Any]] | None = None,
) -> dict[str, Times]:
    """Times of all contenders of several models, and others, which take turns."""
    contenders = dict(others or {})
    for setup in setups:
        contenders |= setup.contenders()
    return take_turns(contenders, options.repeats, options.limit)


def report_cases(
    description: str,
    title: str,
    note: str,
    cases: Mapping[str, tuple[Any, Any]],
    compare: Callable[[str, argparse.Namespace], Iterator[Row]],
) -> None:
    """Measures the cases that the command line asks for, and prints tables.

    Args:
      note: what the sizes of the cases, their second parts, are.
      compare: gives the rows of a case; ratios come last.
    """
    parser, default = jax_parser(description), ','.join(cases)
    parser.add_argument('--only', type=among(cases), default=default, help=default)
    options = fill(parser.parse_args(), {}, {})
    report = begin(title, options)
    sizes = {name: sizes for name, (_, sizes) in cases.items()}
    report.note(f'{note}: {sizes}')
    rows = list[Row]()
    for name in options.only:
        rows += compare(name, options)
        report.rows = sorted(rows, key=lambda row: 'ratio' in row)
        report.write()
    report.close()
