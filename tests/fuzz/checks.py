# SPDX-License-Identifier: Apache-2.0
"""What is compared in a case: schedules to the bit, values and gradients to a twin."""

from __future__ import annotations

import functools
import itertools
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import interpreter
import jax
import numpy as np
from agreement import is_float
from expression_parts import tables
from small_limits import small_limits
from ways_in import TOGETHER, WAYS

import jfold as jf
from fuzz.cases import Case, Step
from fuzz.lazies import check_lazy
from fuzz.near import OF_VALUES, Mismatch, is_sensitive, same_array, same_runs
from fuzz.rows import compare_rows
from fuzz.transformed import check_nesting
from fuzz.twin import Evaluated, Gradients, Twin, floats_of, total_of, with_floats
from fuzz.weights import (
    Weights,
    draw_weights,
    gradients,
    rows_by_level,
    tensors_by_level,
)
from fuzz.wrong import compare_errors
from jfold.language.eager_twin import typed_expression
from jfold.types import SequenceType, leaf_types

Tally = Counter[str]
LAZY = 4  # one in as many cases also has programs in plain Python
WRONG_EXAMPLES = 3  # that are compared in a case
EXACT = 1e-8  # of results in double precision, relative to the largest
ROUNDED = {'float64': 1e-8, 'float32': 1e-2, 'float16': 0.5, 'bfloat16': 0.5}
UNOPTIMISED = {'xla_backend_optimization_level': 0}


def check_case(case: Case, tally: Tally) -> None:
    """Goes through the steps of a case.

    Raises:
      Mismatch: a result is wrong. Other errors are jfold's own.
    """
    if sum(case.seeds) % LAZY == 0:
        check_lazy(case.seeds, tally)
    with in_its_way(case):
        session = open_session(case, tally)
        for number, step in enumerate(case.steps):
            session.take(step, np.random.default_rng(number))
            tally['calls'] += 1
        session.nest(case.steps[0])


def check_schedules(case: Case, tally: Tally) -> None:
    """As `check_case`, but for what is run: the host's work alone.

    Raises:
      Mismatch: two ways give two schedules. Other errors are jfold's own.
    """
    with in_its_way(case):
        session = open_session(case, tally)
        for step in case.steps:
            session.schedule(step)
            tally['calls'] += 1


@contextmanager
def in_its_way(case: Case) -> Iterator[None]:
    """The precision and the limits of a case."""
    with jax.enable_x64(case.dtype == 'float64'):
        with small_limits() if case.limited else nullcontext():
            yield


def draw_params(model: jf.Model) -> dict[str, Any]:
    """Parameters by NumPy, which compiles nothing; by `init` where some are ints; and
    the arrays that `External` blocks pick rows of, which may be passed as these."""
    layers = [x for x in model.program.layers if x.params is not None]
    layers = [x for x in layers if not x.external]
    leaves = jax.tree.leaves([layer.params for layer in layers])
    if not all(map(is_float, leaves)):
        return model.init(jax.random.key(0)) | tables(model)
    rng = np.random.default_rng(0)

    def draw(spec: Any) -> Any:
        return np.asarray(rng.normal(size=spec.shape) / 2, spec.dtype)

    drawn = {layer.name: jax.tree.map(draw, layer.params) for layer in layers}
    return drawn | tables(model)


def open_session(case: Case, tally: Tally) -> Session:
    """Compiles a case's expression."""
    model = jf.compile(case.block, max_programs=100, **case.options)
    params = draw_params(model)
    twin = Twin(typed_expression(model.block), params)
    tally['expressions'] += 1
    tally['functions'] += len(model.program.layers)
    examples = case.examples()
    compare_rows(model, examples)
    tally['rows'] += 1
    seed = zlib.crc32(repr(case.block).encode())  # the same for a case made again
    rng = np.random.default_rng([seed, *case.seeds])
    for _ in range(WRONG_EXAMPLES):
        tally['wrong'] += compare_errors(model, params, examples, rng)
    return Session(case, model, params, twin, examples, tally)


@dataclass(frozen=True, eq=False)
class Results:
    """What a batch gave: values by level, metrics by name, gradients by layer."""

    values: list[list[Any]]
    metrics: dict[str, jf.MetricValues]
    gradients: dict[str, list[Any]]


@dataclass(eq=False)
class Session:
    """A model at work, and its twin."""

    case: Case
    model: jf.Model
    params: dict[str, Any]
    twin: Twin
    examples: list[Any]
    tally: Tally
    programs: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    evaluated: dict[int, Evaluated] = field(default_factory=dict)

    def run_of(self, example: int) -> Evaluated:
        """An example by the twin, evaluated once."""
        if example not in self.evaluated:
            self.evaluated[example] = self.twin.evaluate(self.examples[example])
        return self.evaluated[example]

    def take(self, step: Step, rng: np.random.Generator) -> None:
        """Makes a schedule, runs it, and compares what it gives."""
        schedule = self.schedule(step)
        weights = draw_weights(self.model.program, schedule.examples, rng)
        results = self.run(schedule, weights, step)
        runs = [self.run_of(i) for i in step.rows]
        try:
            compare_values(self, results, runs)
            compare_metrics(self, results, runs)
        except Mismatch as error:

            def near(_: Twin, moved: list[Evaluated]) -> None:
                same_runs(moved, runs, self.tolerance)

            if error.kind not in OF_VALUES or not is_sensitive(self, step.rows, near):
                raise
            return
        compare_labels(schedule, runs)
        if self.case.linear:
            expected = gradients(self.twin, runs, weights)
        else:  # whose rules run for all nodes, but in the twin for those with an effect
            expected = self.one_by_one(step.rows, weights, schedule)
        if expected is not None:

            def near(twin: Twin, moved: list[Evaluated]) -> None:
                found = total_of(gradients(twin, moved, weights), self.params)
                compare_gradients(self, Results([], {}, found), expected)

            try:
                compare_gradients(self, results, expected)
            except Mismatch:
                if not self.case.linear or not is_sensitive(self, step.rows, near):
                    raise
        if self.case.forward:
            compare_forward(self, schedule, results)

    def schedule(self, step: Step) -> jf.Schedule:
        """The schedule of a step, made in two ways."""
        examples = [self.examples[i] for i in step.rows]
        schedule = PATHS[step.path](self, step, examples)
        same_schedule(schedule, self.model.schedule(examples, size=step.size), step)
        self.tally['schedules'] += 1
        return schedule

    # ---- running

    def run(
        self, schedule: jf.Schedule, weights: Weights, step: Step | None = None
    ) -> Results:
        """Values, metrics and gradients of a batch, in the way of a step."""
        cotangents = weights.cotangents(schedule)
        if step is None or step.way == 'passed':
            program = self.program(both, schedule)
            made = program(self.params, schedule, cotangents)
        else:
            made = self._run_by_way(schedule, cotangents, step)
        (values, metrics), grads = made
        return Results(values, metrics, grads)

    def _run_by_way(
        self, schedule: jf.Schedule, cotangents: list[Any], step: Step
    ) -> Any:
        """What `both` gives, by a program of its own."""

        def run(params: Any, schedule: jf.Schedule) -> Any:
            return both(self.model, params, schedule, cotangents)

        several = [schedule]
        if step.way in TOGETHER:
            empty = self.model.schedule([], size=step.size)
            several.append(empty if empty.spec == schedule.spec else schedule)
        self.tally['programs'] += 1
        return WAYS[step.way](run, self.params, several, self._make)[0]

    @property
    def _make(self) -> Callable[..., Any]:
        return compiled if self.case.compiled else interpreted

    def nest(self, step: Step) -> None:
        """Compares a batch within transformations, if some were drawn."""
        if self.case.nesting and step.rows:
            schedule, names = self.schedule(step), self.case.nesting
            examples = [self.examples[i] for i in step.rows]
            found = check_nesting(names, self.model, self.params, examples, schedule)
            self.tally[found] += 1

    def one_by_one(
        self, rows: Sequence[int], weights: Weights, schedule: jf.Schedule
    ) -> list[Gradients] | None:
        """The gradients of each example, alone in a batch; `None` if one of them lacks
        an operation of the whole: then its rules may run for one and not the other."""
        alone = [self.model.schedule([self.examples[row]], size=1) for row in rows]
        if any(_operations(each) != _operations(schedule) for each in alone):
            self.tally['not compared'] += 1
            return None
        return [self.run(each, weights.of(i)).gradients for i, each in enumerate(alone)]

    def program(self, fn: Callable[..., Any], schedule: jf.Schedule) -> Any:
        """A function of the model, traced once for schedules of one shape."""
        key = fn, schedule.spec
        if key not in self.programs:
            self.programs[key] = self._make(functools.partial(fn, self.model))
            self.tally['programs'] += 1
        return self.programs[key]

    @property
    def tolerance(self) -> float:
        """How far results may be off, relative to the largest."""
        return ROUNDED[self.case.dtype] if self.case.compiled else EXACT


def _operations(schedule: jf.Schedule) -> list[bool]:
    """Whether there may be nodes of each operation."""
    return [rows > 0 for rows in schedule.spec.capacity.rows]


# ---- programs ------------------------------------------------------------------------


def forward(model: jf.Model, params: Any, schedule: jf.Schedule) -> Any:
    """What `apply` returns: values, by level, and metrics."""
    made = model.apply(params, schedule)
    values, metrics = made if model.program.metric_results else (made, {})
    return tensors_by_level(values), metrics


def both(
    model: jf.Model, params: Any, schedule: jf.Schedule, cotangents: list[Any]
) -> Any:
    """Values and metrics, and per layer the gradients of its leaves, `None` of ints."""
    leaves, tree = jax.tree.flatten(params)

    def run(floats: list[Any]) -> Any:
        every = jax.tree.unflatten(tree, with_floats(leaves, floats))
        made = forward(model, every, schedule)
        return [x for x in jax.tree.leaves(made) if is_float(x)], made

    _, pull, made = jax.vjp(run, floats_of(leaves), has_aux=True)
    grads = iter(pull(cotangents)[0])
    each = {
        k: [next(grads) for _ in jax.tree.leaves(params[k])] for k in sorted(params)
    }
    return made, each


def interpreted(fn: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """A function run by the interpreter; traced at its first call."""
    traced: list[Any] = []

    def run(*arguments: Any) -> Any:
        if not traced:
            traced.extend(jax.make_jaxpr(fn, return_shape=True)(*arguments))
        jaxpr, shape = traced
        leaves = interpreter.run(jaxpr, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return run


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function compiled by XLA, which is asked not to try hard."""
    return jax.jit(fn, compiler_options=UNOPTIMISED, **options)


# ---- ways to a schedule --------------------------------------------------------------


def _from_corpus(session: Session, step: Step, examples: list[Any]) -> Any:
    corpus = session.model.trace(session.examples, progress=False)
    return corpus.schedule(step.rows, size=step.size)


def _from_file(session: Session, step: Step, examples: list[Any]) -> Any:
    corpus = session.model.trace(session.examples, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'corpus.jfold')
        corpus.save(path)
        loaded = jf.Corpus.load(path, session.model)
        return loaded.schedule(step.rows, size=step.size)


def _from_tracer(session: Session, step: Step, examples: list[Any]) -> Any:
    tracer = cloudpickle.loads(cloudpickle.dumps(session.model.tracer()))
    traced = cloudpickle.loads(cloudpickle.dumps(tracer(examples)))
    return session.model.schedule(traced, size=step.size)


def _from_batches(session: Session, step: Step, examples: list[Any]) -> Any:
    """Beside the schedule, those of a run in halves, stopped and resumed."""
    half = max((len(examples) + 1) // 2, 1)
    model, source = session.model, session.model.trace(examples, progress=False)
    chunks = [examples[i : i + half] for i in range(0, len(examples), half)]
    for chunk in chunks:  # so that nothing grows from here on
        model.schedule(chunk, size=half)
    whole = model.batches(source, half, prefetch=0)
    _same_batches(session, step, model.batches(examples, half), chunks, half)
    for number, batch in enumerate(whole):
        rest = model.batches(examples, half, prefetch=0)
        rest.restore(whole.state())
        _same_batches(session, step, [batch, *rest], chunks[number:], half)
    return model.schedule(examples, size=step.size)


def _same_batches(
    session: Session, step: Step, batches: Any, chunks: list[Any], size: int
) -> None:
    """Batches are the schedules of some chunks of examples."""
    for batch, chunk in itertools.zip_longest(batches, chunks):
        if batch is None or chunk is None:
            raise Mismatch('batches', f'{batch} for {chunk}')
        expected = session.model.schedule(chunk, size=size)
        same_schedule(batch.schedule, expected, step)
        session.tally['schedules'] += 1


PATHS: dict[str, Callable[[Session, Step, list[Any]], Any]] = {
    'examples': lambda s, step, xs: s.model.schedule(xs, size=step.size),
    'iterator': lambda s, step, xs: s.model.schedule(iter(xs), size=step.size),
    'corpus': _from_corpus,
    'loaded': _from_file,
    'tracer': _from_tracer,
    'batches': _from_batches,
}


def same_schedule(got: jf.Schedule, expected: jf.Schedule, step: Step) -> None:
    """Two schedules are equal to the bit."""
    if got.spec != expected.spec:
        raise Mismatch('spec', f'{got.spec.capacity} for {expected.spec.capacity}')
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            raise Mismatch('schedule', f'by {step.path}: {a} is not {b}')


# ---- comparing -----------------------------------------------------------------------


def compare_values(session: Session, results: Results, runs: list[Evaluated]) -> None:
    """Every row is the value of its example; further rows are as the last."""
    type_ = session.model.program.output
    found = [rows_by_level(type_, run.value) for run in runs]
    own, *items = results.values
    rows = len(own[0]) if own else len(runs)
    sequences = [isinstance(x, SequenceType) for x in leaf_types(type_)]
    for i in range(rows if runs else 0):
        (leaves,) = found[min(i, len(runs) - 1)][0]
        spare = i >= len(runs)
        for got, want, is_length in zip(own, leaves, sequences, strict=True):
            session.tally['values'] += 1
            expected = np.int32(0) if spare and is_length else want
            same_array('values', got[i], expected, session.tolerance)
    for number, tensors in enumerate(items, 1):
        wanted = [row for levels in found for row in levels[number]]
        _same_items(session, tensors, wanted)


def _same_items(session: Session, tensors: list[Any], wanted: list[list[Any]]) -> None:
    """The rows of items are those wanted, in order; others are zero."""
    for k, x in enumerate(tensors):
        for got, row in zip(x, wanted, strict=False):
            session.tally['values'] += 1
            same_array('items', got, row[k], session.tolerance)
        if len(x) < len(wanted) or np.asarray(x)[len(wanted) :].any():
            raise Mismatch('spare rows', f'of {len(wanted)} items: {x}')


def compare_metrics(session: Session, results: Results, runs: list[Evaluated]) -> None:
    """Every example has its rows of each metric, in order; others are zero."""
    for name, metric in results.metrics.items():
        for i, run in enumerate(runs):
            mine = np.asarray(metric.mask & (metric.example == i))
            columns = [np.asarray(x)[mine] for x in jax.tree.leaves(metric.values)]
            wanted = [jax.tree.leaves(row) for row in run.metrics[name]]
            session.tally['metrics'] += 1
            _same_rows(columns, wanted, int(mine.sum()), session.tolerance)
        spare = ~np.asarray(metric.mask)
        for x in jax.tree.leaves(metric.values):
            if np.asarray(x)[spare].any():
                raise Mismatch('spare rows', f'of {name}: {x}')


def compare_labels(schedule: jf.Schedule, runs: list[Evaluated]) -> None:
    """Rows have the labels of the examples, one after another."""
    got = {name: labels.tolist() for name, labels in (schedule.labels or {}).items()}
    for name in {name: None for run in runs for name in run.labels}:
        wanted = [label for run in runs for label in run.labels[name]]
        if wanted != got.get(name, []):
            raise Mismatch('labels', f'{got.get(name)} of {name}, expected {wanted}')


def _same_rows(
    columns: list[Any], wanted: list[Any], count: int, tolerance: float
) -> None:
    if count != len(wanted):
        raise Mismatch('metrics', f'{count} rows, expected {len(wanted)}')
    for i, row in enumerate(wanted):
        same_array('metrics', _flat([x[i] for x in columns]), _flat(row), tolerance)


def _flat(row: Sequence[Any]) -> Any:
    return np.concatenate([np.zeros(0), *(np.ravel(x).astype(float) for x in row)])


def compare_gradients(
    session: Session, results: Results, expected: list[Gradients]
) -> None:
    """Gradients are the sum of those of the examples."""
    total = total_of(expected, session.params)
    largest = max([np.abs(x).max(initial=0) for x in jax.tree.leaves(total)], default=0)
    if not np.isfinite(largest):
        # Not the block: that of a declaration prints its name alone.
        rules = str(session.model.program.operations)
        if not session.case.linear and 'normalising' not in rules:
            raise Mismatch('undefined', f'of {rules}, without a rule that divides')
        session.tally['undefined'] += 1
        return
    session.tally['gradients'] += 1
    for name, leaves in results.gradients.items():
        for got, want in zip(leaves, total[name], strict=True):
            if got is not None:
                scale = session.tolerance * max(1, float(largest))
                same_array('gradients', got, want, scale, name)


def compare_forward(session: Session, schedule: jf.Schedule, results: Results) -> None:
    """Values are the same where no gradient is asked for."""
    program = session.program(forward, schedule)
    values, _ = program(session.params, schedule)
    leaves = jax.tree.leaves(values), jax.tree.leaves(results.values)
    for got, want in zip(*leaves, strict=True):
        session.tally['values'] += len(got)
        same_array('forward', got, want, session.tolerance)


CHECKS: dict[str, Callable[[Case, Tally], None]] = {
    'all': check_case,
    'schedules': check_schedules,
}
