# SPDX-License-Identifier: Apache-2.0
"""What several benchmarks share: turns, checks, the perfect batch, one model's setup.

Contenders take turns in one process, in another order each round, so that drift hits
all alike; quartiles are those of single calls, ratios are taken round by round. What is
timed has given the right results before: `agree` raises if it has not.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from options import make_parser
from report import Report, Row

import jfold as jf
from jfold.language.layers import pack
from jfold.types import TupleType

MODES = ('infer', 'train')
WARM = 1  # rounds that are not counted
WAKE = 0.1  # seconds; a call before that was shorter calls for a spare one first
ENOUGH = 4  # repeats, after which a slow contender may be spared the rest
# The largest difference from the reference, over its largest number.
EXACT, ROUGH = 1e-4, 3e-2

Params = Any
Contenders = Mapping[str, Callable[[int], Any]]


# ---- turns ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Seconds of the calls of one contender, round by round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def ms(self) -> float:
        """The median in milliseconds."""
        return 1e3 * self.median

    @property
    def quartiles(self) -> tuple[float, float]:
        """The ends of the middle half."""
        low, _, high = statistics.quantiles(self.values, n=4, method='inclusive')
        return low, high

    @property
    def spread(self) -> float:
        """The width of the middle half in percent of the median."""
        low, high = self.quartiles
        return 100 * (high - low) / self.median

    def __add__(self, other: Times) -> Times:
        pairs = zip(self.values, other.values, strict=False)
        return Times(tuple(a + b for a, b in pairs))

    def __truediv__(self, other: Times) -> Times:
        """The ratios of the rounds that both have."""
        pairs = zip(self.values, other.values, strict=False)
        return Times(tuple(a / b for a, b in pairs))


def take_turns(
    contenders: Contenders, repeats: int, limit: float = math.inf
) -> dict[str, Times]:
    """Times of all contenders.

    Args:
      contenders: each is called with the number of the round, which picks a batch.
      repeats: rounds that count, two at least.
      limit: seconds after which a contender is spared the rest of its rounds.
    """
    found: dict[str, list[float]] = {name: [] for name in contenders}
    last = dict.fromkeys(contenders, 0.0)
    shuffle = random.Random(0)
    for number in range(WARM + repeats):
        active = [n for n in found if len(found[n]) < ENOUGH or sum(found[n]) < limit]
        for name in shuffle.sample(active, len(active)):
            if last[name] < WAKE:  # of another batch, to wake threads and caches
                seconds(functools.partial(contenders[name], number + 1))
            last[name] = seconds(functools.partial(contenders[name], number))
            if number >= WARM:
                found[name].append(last[name])
    return {name: Times(tuple(values)) for name, values in found.items()}


def ratio_row(name: str, mode: str, ratios: Times) -> Row:
    """A ratio with its quartiles."""
    low, high = ratios.quartiles
    about = {'ratio': name, 'mode': mode}
    return about | {'median': ratios.median, 'low': low, 'high': high}


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes, until its result is there."""
    return clocked(lambda: jax.block_until_ready(run()))[1]


def clocked(run: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the seconds that it took."""
    begin = time.perf_counter()
    result = run()
    return result, time.perf_counter() - begin


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """A compiled function, and the seconds of tracing and compiling it."""
    return clocked(lambda: jax.jit(function).lower(*args).compile())


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


# ---- the perfect batch ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Perfect:
    """The operations of a batch, each once on as many rows, which lie side by side.

    Attributes:
      arguments: of both: parameters, inputs through which gradients flow, others.
      infer: gives the outputs of all operations; compiled.
      train: gives the sum of these, and its gradients.
    """

    arguments: tuple[Params, Any, Any]
    infer: Any
    train: Any

    def run(self, mode: str) -> Any:
        """One call."""
        return getattr(self, mode)(*self.arguments)


def perfect_batch(
    model: jf.Model, params: Params, schedules: Sequence[jf.Schedule], names: Any = None
) -> Perfect:
    """The perfect batch for the mean of some batches.

    Args:
      model: whose operations they are.
      params: of the model.
      schedules: of the batches.
      names: of the layers that count; all when left out.
    """
    counts = np.ceil(np.mean([s.counts for s in schedules], axis=0)).astype(int)
    chosen = {
        o: operation
        for o, operation in enumerate(model.program.operations)
        if counts[o] and (names is None or operation.layer.name in names)
    }
    rows = [_inputs(schedules[0], o, int(counts[o])) for o in chosen]
    moving = jax.tree.map(lambda x: x if _moves(x) else None, rows)
    fixed = jax.tree.map(lambda x: None if _moves(x) else x, rows)

    def infer(params: Params, moving: Any, fixed: Any) -> Any:
        rows = jax.tree.map(_first, moving, fixed, is_leaf=lambda x: x is None)
        pairs = zip(chosen.values(), rows, strict=True)
        return [_call(operation, params, inputs) for operation, inputs in pairs]

    def total(*arguments: Any) -> jax.Array:
        outputs = jax.tree.leaves(infer(*arguments))
        return sum((x.sum() for x in outputs if _moves(x)), jnp.zeros(()))

    used = {operation.layer.name for operation in chosen.values()}
    own = {name: value for name, value in params.items() if name in used}
    given = jax.device_put((own, moving, fixed))
    forward, _ = compiled(infer, *given)
    training, _ = compiled(jax.value_and_grad(total, argnums=(0, 1)), *given)
    return Perfect(given, forward, training)


def _first(a: Any, b: Any) -> Any:
    return b if a is None else a


def _moves(x: Any) -> bool:
    """Whether a gradient flows through an array."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _call(operation: Any, params: Params, inputs: tuple[Any, ...]) -> Any:
    layer = operation.layer
    own = params.get(layer.name)
    if layer.batched:
        return layer.call(own, *inputs)
    return jax.vmap(layer.call, (None, *(0 for _ in inputs)))(own, *inputs)


def _inputs(schedule: jf.Schedule, o: int, n: int) -> tuple[Any, ...]:
    """Inputs of an operation for n rows: random, or of the data if whole numbers."""
    program, rng = schedule.spec.program, np.random.default_rng(o)
    operation, flat = program.operations[o], []
    for a, t in enumerate(operation.inputs):
        shape, dtype = program.types[t].shape, program.types[t].dtype
        if jnp.issubdtype(dtype, jnp.inexact):
            flat.append(rng.uniform(-1, 1, (n, *shape)).astype(dtype))
            continue
        constants = np.asarray(schedule.constants[t])
        places = np.asarray(schedule.section(('input', o, a), int(schedule.counts[o])))
        known = constants[places[places < len(constants)]]
        flat.append(np.resize(known.astype(dtype), (n, *shape)))
    return pack(TupleType(operation.arguments), flat)


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

    Raises:
      Disagreement: they do not.
    """
    model, size = jf.compile(block, max_programs=64), len(batches[0])
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
        (_half_square(x) * mask.reshape(-1, *(1 for _ in x.shape[1:]))).sum()
        for x in jax.tree.leaves(values)
    ]
    observed = [x for m in metrics.values() for x in jax.tree.leaves(m.sum())]
    return sum([*rows, *observed], jnp.zeros(()))


def eager_loss(model: jf.Model, params: Params, examples: Sequence[Any]) -> jax.Array:
    """The same, one example after another, without batches."""
    total = jnp.zeros(())
    for example in examples:
        values, metrics = _parted(model, model.eval(example, params))
        total += sum(_half_square(x).sum() for x in jax.tree.leaves(values))
        total += sum(x for observed in metrics.values() for x in observed)
    return total


def _parted(model: jf.Model, result: Any) -> tuple[Any, Any]:
    return result if model.program.observed else (result, {})


def _half_square(x: Any) -> Any:
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
