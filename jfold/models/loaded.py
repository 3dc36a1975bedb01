# SPDX-License-Identifier: Apache-2.0
"""Models that were read from a file: they schedule and predict."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import jax
from jax.custom_batching import custom_vmap
from jax.export import Exported

from jfold.base.arguments import check_at_least, check_examples, expect
from jfold.base.late import Displayed
from jfold.base.memo import Stays
from jfold.base.structs import plain_containers
from jfold.base.tracebacks import api_boundary
from jfold.data.adoption import Traced
from jfold.data.corpus import Corpus
from jfold.data.corpus import join as join_parts
from jfold.data.predict import predictions
from jfold.data.scheduler import Scheduler, build
from jfold.data.tracer import trace_corpus
from jfold.data.tracer import tracer as make_tracer
from jfold.language.parameter_checks import check_kept, check_params
from jfold.program.operations import Program
from jfold.scheduling.schedule import Schedule, check_not_stacked
from jfold.scheduling.shard_assignment import default_assignment
from jfold.scheduling.spec import Capacity, Spec

# `apply` in a file: takes leaves of parameters, indices, constants; returns results.
Step: TypeAlias = Callable[[list[Any], Any, Any], Any]


def make_step(program: Exported) -> Step:
    """Return a function that runs an exported program.

    It raises NotImplementedError if it is differentiated, or under `jax.vmap`.
    """
    step = jax.custom_jvp(program.call)
    step.defjvp(functools.partial(_refuse, 'gradients', 'what `jf.compile` returned'))
    mapped = custom_vmap(step)
    mapped.def_vmap(functools.partial(_refuse, '`jax.vmap`', 'a loop'))
    return jax.jit(mapped)


def _refuse(what: str, instead: str, *_: object) -> NoReturn:
    raise NotImplementedError(
        f'expected a loaded model to be applied as it was saved, got {what} of it, '
        f'which its file does not hold: use {instead}'
    )


@dataclass(frozen=True, eq=False, repr=False)
class LoadedModel(Stays, Displayed):
    """A model without the code that built it; read by `jfold.load`.

    The file has one exported program for each of `capacities`; a batch that fits none
    is an error. The model predicts, and has neither gradients nor `jax.vmap`.

    Attributes:
      scheduler: the maker of schedules, all of capacities in the file.
      params: the parameters as they were saved, for `apply`.
      platforms: the platforms on which it runs; see `jfold.save`.
    """

    _instead = 'a `LoadedModel`', 'give it the path, for `jf.load` there'
    scheduler: Scheduler
    params: dict[str, Any]
    platforms: tuple[str, ...]
    _steps: Mapping[Spec, Step]

    join = join_parts
    tracer = make_tracer

    def __deepcopy__(self, memo: object) -> LoadedModel:
        return self  # it never changes

    @property
    def program(self) -> Program:
        """The program of the expression, printable; its layers cannot be called."""
        return self.scheduler.program

    @property
    def capacities(self) -> tuple[Capacity, ...]:
        """The capacities of the programs in the file, from small to large."""
        return tuple(spec.capacity for spec in self._steps)

    @api_boundary
    def schedule(
        self, examples: Iterable[Any] | Traced, *, size: int | None = None
    ) -> Schedule:
        """Convert examples to arrays, of the smallest capacity that holds them.

        Args:
          examples: as in `Model.schedule`.
          size: how many rows the results get, as one of `capacities` has; by default
            those of the smallest that holds the examples. `Schedule.mask` tells which
            rows are examples.

        Raises:
          TypeError, InputError, RuntimeError: see `Model.schedule`.
          ValueError: no capacity holds the examples, with results of `size` rows; or
            they were traced for another expression.
        """
        if size is not None:
            size = check_at_least('size', size, 0)
            known = sorted({capacity.examples for capacity in self.capacities})
            if size not in known:
                text = ' or '.join(map(str, known))
                raise ValueError(
                    f'expected `size` as {text}, with which the model was saved, got '
                    f'{size}'
                )
        selection = self.scheduler.select(examples)
        deal = default_assignment(len(selection), size)
        schedule = self.scheduler.schedule(selection, deal)
        if size not in (None, schedule.examples):
            raise ValueError(
                f'expected examples that fit a capacity of {size} rows, got some that '
                f'need one of {schedule.examples}: leave `size` out, or save the model '
                'with a larger one, `jf.save(path, model, params, capacities=[...])`'
            )
        return schedule

    @api_boundary
    def apply(self, params: Mapping[str, Any], schedule: Schedule) -> Any:
        """Run a batch, as `Model.apply` with `deterministic=True`.

        Args:
          params: the attribute `params`, or others of the same shapes, in any
            containers that `jfold.save` takes.
          schedule: as `schedule` returns it.

        Returns:
          The result of `Model.apply`, to the bit if that runs at the same capacity.

        Raises:
          ValueError: the schedule is of another model, or stacked.
          TypeError: `params` differ from those saved in structure, shape or dtype.
          NotImplementedError: the call is differentiated, or under `jax.vmap`.
        """
        hint = 'call `loaded.apply(loaded.params, loaded.schedule(examples))`'
        is_schedule = isinstance(schedule, Schedule)
        expect('schedule', schedule, is_schedule, 'a schedule', hint)
        check_not_stacked(schedule)
        step = self._steps.get(schedule.spec)
        if step is None:
            raise ValueError(
                f'expected a schedule made by this model, got one of another: {hint}'
            )
        saved: Any = jax.tree.structure(self.params)
        if jax.tree.structure(params) != saved:
            # Other containers may have their leaves in another order.
            params = plain_containers(params)
        check_kept(self.program)
        advice = 'pass `loaded.params`, or others of these shapes'
        check_params(self.program.layers, params, advice)
        return step(jax.tree.leaves(params), schedule.indices, schedule.constants)

    @api_boundary
    def predict(
        self, source: object, *, batch_size: int | None = None, progress: bool = True
    ) -> Any:
        """Return the results of all examples, in their order; see `Model.predict`.

        Args:
          source, progress: as in `Model.predict`.
          batch_size: the least number of examples in a batch: it has as many as the
            next larger capacity has rows, by default those of the largest.

        Raises:
          InputError, TypeError: see `Model.predict`.
          ValueError: no capacity holds some batch.
        """
        known = sorted({capacity.examples for capacity in self.capacities})
        size = known[-1]
        if batch_size is not None:
            least = check_at_least('batch_size', batch_size, 1)
            if least > size:
                raise ValueError(
                    f'expected `batch_size` of at most {size}, with which the model '
                    f'was saved, got {least}'
                )
            size = next(n for n in known if n >= least)

        def run_batch(schedule: Schedule) -> Any:
            return self.apply(self.params, schedule)

        return predictions(self, run_batch, source, size, None, progress)

    @api_boundary
    def precompile(self) -> None:
        """Compile all programs now, instead of each at its first use."""
        nothing = self.scheduler.select([])
        for spec in self._steps:
            results = self.apply(self.params, build([nothing], spec))
            jax.block_until_ready(results)  # type: ignore[no-untyped-call]

    @api_boundary
    def trace(
        self,
        examples: Iterable[Any],
        *,
        skip_errors: bool = False,
        progress: bool = True,
    ) -> Corpus:
        """Convert examples to arrays once; see `Model.trace`."""
        return trace_corpus(
            self.scheduler, check_examples(examples), skip_errors, progress
        )

    def __repr__(self) -> str:
        sizes = ', '.join(str(capacity.examples) for capacity in self.capacities)
        where = ', '.join(self.platforms)
        return (
            f'LoadedModel({self.program.output!r}, capacities of {sizes} examples, '
            f'for {where})'
        )
