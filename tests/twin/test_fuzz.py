# SPDX-License-Identifier: Apache-2.0
"""The campaign: its interpreter and its twin, and what becomes of a planted fault."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import tree_block
from checking import observed
from fuzz import campaign, cases, rows, wrong
from fuzz.checks import both, check_case, compiled, interpreted
from fuzz.near import Mismatch
from fuzz.shrink import shrunk
from fuzz.twin import Twin
from fuzz.worker import Worker
from nestings import TRANSFORMATIONS
from ways_in import WAYS

import jfold as jf
from jfold.blocks import Reference
from jfold.language.inference import infer
from jfold.scheduling.spec import STRATEGIES
from jfold.tracing.record import trace

# ---- the interpreter -----------------------------------------------------------------


def test_the_interpreter_keeps_digits_that_a_dtype_does_not() -> None:
    """Of bfloat16, too; but constants are what the dtype holds."""
    x = np.asarray([1.0, 3.0], 'bfloat16')
    jaxpr = jax.make_jaxpr(lambda x: x / 3 + 0.1)(x)
    (got,) = interpreter.run(jaxpr, [x])
    tenth = float(np.asarray(0.1, 'bfloat16'))
    np.testing.assert_allclose(got, [1 / 3 + tenth, 1 + tenth], rtol=1e-15)


def test_the_interpreter_holds_a_program_to_its_promises() -> None:
    """A row out of bounds, which XLA would make something of."""

    def row(x: Any, i: Any) -> Any:
        return x.at[jnp.stack([i])].get(mode='promise_in_bounds')

    jaxpr = jax.make_jaxpr(row)(np.zeros((3, 2)), 3)
    with pytest.raises(AssertionError, match='expected rows of 3'):
        interpreter.run(jaxpr, [np.zeros((3, 2)), np.int32(3)])


# ---- the twin ------------------------------------------------------------------------


@pytest.mark.parametrize('unrolls', [False, True])
def test_rows_are_those_of_walks(
    unrolls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where uses of one operation are told apart; a wrong one is found."""
    tanh = jf.Function(jnp.tanh)
    both_sides = jf.AllOf(tanh, tanh >> tanh) >> jf.Function(jnp.multiply)
    model = jf.compile(jf.Scalar() >> both_sides >> tanh, reproducible=not unrolls)
    rows.compare_rows(model, [1.0, 2.0])
    monkeypatch.setattr(rows, 'recorded', lambda program, _: trace(program, [2.0, 1.0]))
    with pytest.raises(Mismatch, match='rows: expected'):
        rows.compare_rows(model, [1.0, 2.0])


def test_the_twin_rounds_what_a_program_has_as_a_constant() -> None:
    """What a function makes of nothing, which the program holds in its dtype."""
    third = jf.Function(lambda: jnp.ones((), 'bfloat16') / 3)
    block = jf.AllOf(jf.Void() >> third, jf.Scalar('bfloat16') >> (lambda x: x / 3))
    constant, computed = Twin(infer(block), {}).evaluate(1).value
    assert constant == float(np.asarray(1 / 3, 'bfloat16')) != computed
    np.testing.assert_allclose(computed, 1 / 3, rtol=1e-15)


def test_interpreted_and_compiled_programs_agree() -> None:
    """Values, metrics and gradients of a batch."""
    with jax.enable_x64(True):
        model = jf.compile(tree_block(2) >> observed('root'))
        params = model.init(jax.random.key(0))
        schedule = model.schedule([((1, 2), 3), 4, (5, 6)])
        (rows,) = schedule.spec.capacity.metrics
        weights = [np.ones((3, 2)), np.ones((rows, 2))]
        results = [
            run(functools.partial(both, model))(params, schedule, weights)
            for run in (interpreted, compiled)
        ]
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


# ---- cases ---------------------------------------------------------------------------


def blocks() -> dict[str, Any]:
    """What users make blocks of, by public name."""
    homes = 'control', 'declarations', 'external', 'inputs', 'reductions'
    inside = {f'jfold.blocks.{x}' for x in (*homes, 'sequences', 'compose')}
    inside.add('jfold.combinators')
    named = {name: getattr(jf, name) for name in jf.__all__}
    made = {k: v for k, v in named.items() if v.__module__ in inside}
    return {k: v for k, v in made.items() if k not in ('Block', 'convert_to_block')}


@pytest.mark.slow
def test_everything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each public block, uses of some, ways in, transformations, strategies, options.

    The uses: labels, states that are handed down and that come with a sequence, parts
    of tensors, and fields of what functions return.
    """
    called: set[object] = set()

    def watched(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            called.add(name)
            return make(*args, **options)

        return call

    known = blocks()
    assert {'External', 'Share', 'Zip', 'Composition', 'Sum'} <= set(known)
    for name, make in known.items():
        monkeypatch.setattr(jf, name, watched(name, make))
    uses = {
        'labelled_',
        "GetItem('y')",
        "Record({'y': ",
        'down()',
        'initial_state_from_input=True',
        'GetItem((Ellipsis, ',
    }
    wanted: set[object] = {*known, *uses, *WAYS, *TRANSFORMATIONS, *STRATEGIES}
    wanted |= {True, 'deep'}  # sums in a fixed order; three transformations
    for seed in range(2000):
        if wanted:
            case = cases.make_case(cases.fresh(seed))
            text = printed(case.block)
            wanted -= called | {use for use in uses if use in text}
            wanted -= {step.way for step in case.steps} | {*case.options.values()}
            wanted -= {*case.nesting} | ({'deep'} if len(case.nesting) == 3 else set())
    assert wanted == set()


def printed(block: Any) -> str:
    """All of a block, with what the declarations in it are."""
    found: dict[Any, str] = {}
    waiting = [block]
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple):
            waiting += each
        elif isinstance(each, jf.Block) and each not in found:
            found[each] = repr(each)
            waiting += vars(each).values()
            if isinstance(each, Reference):
                waiting.append(each.declaration.target)
    return ' '.join(found.values())


def test_the_simplest_case_passes() -> None:
    """And counts what it compared: of an empty batch no values."""
    tally: Counter[str] = Counter()
    case = cases.make_case(cases.again([]))
    check_case(case, tally)
    assert tally['calls'] == tally['gradients'] == tally['schedules'] == 1
    assert tally['values'] == 0
    steps = cases.Step((0, 0, 0), 4, 'corpus'), cases.Step((0,), 4, 'iterator')
    check_case(dataclasses.replace(case, steps=steps), tally)
    assert tally['calls'] == 3
    assert tally['values'] == 2 * cases.MOST_EXAMPLES


def test_lists_are_made_small() -> None:
    """Parts go, then numbers fall, as long as it fails."""

    def attempt(candidate: list[int]) -> list[int] | None:
        return candidate if 7 in candidate and max(candidate[:1]) > 2 else None

    assert shrunk([9, 4, 1, 7, 7, 0, 3], attempt, 200) == [7]
    assert shrunk([9, 4, 1, 7], attempt, 0) == [9, 4, 1, 7]


# ---- a planted fault -----------------------------------------------------------------


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora take the examples of a batch in the wrong order."""
    right: Callable[..., Any] = jf.Corpus._checked
    monkeypatch.setattr(
        jf.Corpus, '_checked', lambda self, chosen: right(self, chosen)[::-1]
    )


def short(seed: int) -> cases.Choices:
    """A small case: what is drawn last is simple."""
    return cases.again(np.random.default_rng(seed).integers(9, size=40).tolist())


def until_one_fails(folder: Path) -> Worker:
    """A worker that went from case to case."""
    worker = Worker(folder, 0, time.time() + 60, only='schedules', tries=80)
    while not worker.signatures:
        worker.case()
    return worker


@pytest.mark.long
def test_a_planted_fault_is_found_made_small_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file fails as long as the fault is there."""
    monkeypatch.setattr('fuzz.worker.fresh', short)
    with monkeypatch.context() as patch:
        plant(patch)
        worker = until_one_fails(tmp_path)
        assert worker.signatures == {'schedule': 1}
        (path,) = (tmp_path / 'failures').glob('test_*.py')
        made = runpy.run_path(str(path))
        (test,) = (made[name] for name in made if name.startswith('test_'))
        with pytest.raises(Mismatch, match='schedule: by'):
            test()
    assert 'examples:\n  0: ' in made['CASE']
    assert 'Mismatch: schedule: by' in made['MESSAGE']
    case = cases.make_case(cases.again(made['CHOICES']))
    assert len(case.steps) == 1
    assert len(set(case.steps[0].rows)) == 2
    assert case.steps[0].path in ('corpus', 'loaded', 'batches')
    test()  # nothing is wrong any more


def test_failures_are_kept_at_once_and_those_alike_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though making one small may end the process, or take all the time."""

    def lost(*_: object) -> NoReturn:
        raise SystemExit(6)

    worker = Worker(tmp_path, 0, 0.0, only='schedules', tries=3)
    monkeypatch.setattr('fuzz.worker.shrunk', lost)
    for first in range(4):
        with pytest.raises(SystemExit) if first < 2 else contextlib.nullcontext():
            worker.failed([first], Mismatch('values', 'of row 3'))
    assert campaign.summary(tmp_path).endswith('- values: 4')
    paths = list((tmp_path / 'failures').glob('test_*.py'))
    assert [path.read_text().count('of row 3') for path in paths] == [1, 1]
    lines = (tmp_path / 'alike.jsonl').read_text().splitlines()
    assert [json.loads(line)[1] for line in lines] == [[2], [3]]


def test_counts_go_on_where_they_stopped(tmp_path: Path) -> None:
    """Other cases, the same totals; no failure, no file."""
    first = Worker(tmp_path, 0, 0.0, only='schedules')
    first.case()
    second = Worker(tmp_path, 0, 0.0, only='schedules')
    second.restore()
    assert second.tally == first.tally
    second.case()
    assert second.cases == 2
    assert second.tally['calls'] > first.tally['calls']
    assert campaign.total(tmp_path)['tally'] == second.tally
    assert not (tmp_path / 'failures').exists()
    assert campaign.summary(tmp_path).endswith('No failure.')


# ---- processes -----------------------------------------------------------------------


class Crashes(campaign.Process):
    """A worker that ends badly, once."""

    endings: Sequence[str] = ('raise SystemExit(3)', '')

    def start(self) -> None:
        program, *self.endings = self.endings
        self.command = [sys.executable, '-c', program]
        super().start()


def test_a_process_that_crashes_is_a_failure(tmp_path: Path) -> None:
    """The case it was at is kept, and work goes on."""
    given = argparse.Namespace(state=tmp_path, seed=0, only='all')
    (tmp_path / 'current-0.json').write_text(json.dumps([0, 1]))
    process = Crashes(given, 0, 0.0)
    process.running.wait()
    assert process.watch()
    process.running.wait()
    assert not process.watch()
    (path,) = (tmp_path / 'failures').glob('test_*.py')
    assert 'the process ended with 3' in path.read_text()
    assert campaign.summary(tmp_path).endswith('- the process ended with 3: 1')


@pytest.mark.slow
def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It ends in time, prints a table, and tells what is new by its status."""
    command = ['--minutes', '0', '--state', str(tmp_path)]
    assert campaign.run(campaign.options(command)) == 0
    assert capfd.readouterr().out.startswith('| core hours | cases | expressions |')


def test_a_wrong_example_that_is_recorded_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, examples = jf.compile(jf.Map(jf.Scalar())), [[1.0, 2.0, 3.0]]

    def refused() -> list[bool]:
        rng = np.random.default_rng(0)
        return [wrong.compare_errors(model, {}, examples, rng) for _ in range(30)]

    assert {*refused()} == {True, False}
    traced = wrong.trace
    monkeypatch.setattr(wrong, 'trace', lambda program, some: traced(program, some[:1]))
    with pytest.raises(Mismatch, match='None\nis not\n'):
        refused()
