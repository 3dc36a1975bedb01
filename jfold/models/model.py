# SPDX-License-Identifier: Apache-2.0
"""Models: compiled expressions, with the capacities that have grown so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.typing import ArrayLike

from jfold.base.arguments import check_examples, expect
from jfold.base.errors import ProgramBudgetError
from jfold.base.keys import Rngs, check_key
from jfold.base.late import Displayed
from jfold.base.memo import Recent, Stays, memoized
from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block, Convertible, convert_to_block
from jfold.data.adoption import Traced, adopt_schedule
from jfold.data.batches import batches as make_batches
from jfold.data.corpus import Corpus
from jfold.data.corpus import join as join_parts
from jfold.data.predict import predict as make_predict
from jfold.data.scheduler import Scheduler
from jfold.data.tracer import trace_corpus
from jfold.data.tracer import tracer as make_tracer
from jfold.device.random_keys import make_draws
from jfold.device.results import returned
from jfold.language.lazy_expression import Recorded, learned
from jfold.language.parameter_checks import check_kept, checked_params
from jfold.lower import lower
from jfold.models import explain as explaining
from jfold.models.compile_times import note
from jfold.models.compiled import CompiledStep, compile_step
from jfold.models.lazy_growth import growing
from jfold.program.operations import Program
from jfold.runtime import make_execute
from jfold.scheduling.budget import Budget
from jfold.scheduling.schedule import Schedule, on_device
from jfold.scheduling.selections import Selection
from jfold.scheduling.shard_assignment import default_assignment
from jfold.scheduling.shards import Sharding, make_shards
from jfold.scheduling.spec import SAVE_PRODUCTS, Capacity, Spec, check_options


@dataclass(eq=False)
class Model(Stays, Displayed):
    """A compiled expression; made by `jfold.compile`.

    Attributes:
      block: the expression.
      program: the program that the expression was lowered to; printable.
      max_programs: how many shapes of schedule there may be; `None` for any number.
      residuals: what the forward pass keeps for the reverse; see `jfold.compile`.
      strategy: how often loops run, 'counted' or 'fixed'; `None` for the one that suits
        the backend.
      reproducible: whether sums have a fixed order.
      budget: the shapes of schedule in use.
      scheduler: the maker of schedules, all of shapes in the budget.
    """

    _instead = (
        'a `Model`',
        'write it by `jf.save(path, model, params)`, or pickle `model.tracer()`',
    )
    block: Block
    program: Program
    max_programs: int | None = None
    residuals: str = SAVE_PRODUCTS
    strategy: str | None = None
    reproducible: bool = False
    _recorded: Recorded | None = field(default=None, repr=False)
    budget: Budget = field(init=False, repr=False)
    scheduler: Scheduler = field(init=False, repr=False)

    batches = make_batches
    join = join_parts
    predict = make_predict
    tracer = make_tracer

    def __post_init__(self) -> None:
        # One jitted function per shape: JAX frees an executable with its function.
        self._applied = Recent[Callable[..., Any]]()
        self._programs: list[Program] = []  # the newest first
        self._begin(self.block, self.program, {})

    def _begin(self, block: Block, program: Program, specs: dict[Spec, bool]) -> None:
        """Begin with a program; `specs` are those of the programs before."""
        options = self.max_programs, self.residuals, self.strategy, self.reproducible
        budget = Budget(program, *options, specs={**specs})
        scheduler = Scheduler(program, budget)
        self.block, self.program = block, program
        self.budget, self.scheduler = budget, scheduler
        self._programs.insert(0, program)

    def _selected(self, batches: list[Any]) -> tuple[Scheduler, list[Selection]]:
        """Return the newest program's scheduler, and a selection for each batch."""

        def select() -> tuple[Scheduler, list[Selection]]:
            scheduler = self.scheduler  # another thread may let the program grow
            return scheduler, [*map(scheduler.select, batches)]

        return growing(self._recorded, self._lower, batches, select)

    def _lower(self, recorded: Recorded) -> None:
        before, limit = self.budget, self.budget.limit
        if limit is not None and sum(before.specs.values()) >= limit:
            raise ProgramBudgetError(
                f'expected calls like those on the examples of `like=`, as {limit} '
                'programs are in use, and `max_programs` allows no other, got new '
                'calls: give `like=` examples with all calls, or raise '
                '`jfold.compile(..., max_programs=...)`; and write `x / jf.float32(n)` '
                'for `x / n`, which is a new call for each `n`'
            )
        block = recorded.expression()
        program = lower(block, unrolls=not self.reproducible)
        self._begin(block, program, before.specs)
        self.budget.has_warned = before.has_warned

    @property
    def programs(self) -> int:
        """The number of shapes of schedule so far, each a program to compile."""
        return len(self.budget.specs)

    @property
    def source(self) -> str:
        """The Python source of the function that reads examples."""
        return str(self.program.source)

    @api_boundary
    def init(self, key: jax.Array) -> dict[str, Any]:
        """Draw parameters and return them as a plain pytree, {layer name: parameters}.

        Args:
          key: a key of `jax.random`.

        Raises:
          TypeError: `key` is no key, or an array of keys; or `jax_enable_x64` was on
            when the model was compiled, and is off.
        """
        check_key('key', key)
        check_kept(self.program)
        inits = {x.name: x.init for x in self.program.layers if x.init is not None}
        keys = jax.random.split(key, max(len(inits), 1))
        return {
            name: init(layer_key)
            for (name, init), layer_key in zip(inits.items(), keys, strict=False)
        }

    @api_boundary
    def schedule(
        self,
        examples: Iterable[Any] | Traced,
        *,
        size: int | None = None,
        sharding: Sharding | None = None,
    ) -> Schedule:
        """Convert examples to the arrays that drive the compiled program.

        Runs on the host. For each number of rows, shapes are kept from batch to batch
        and only grow, so that a stationary stream compiles a handful of programs.

        Args:
          examples: a list, or any other iterable, of inputs of the expression; or the
            `Traced` that a `tracer` returned for them.
          size: how many rows the results get; as many as examples when left out. Rows
            beyond repeat the last example, and no gradient flows through them;
            `Schedule.mask` tells them apart. Batches of different numbers of examples
            and one size share their compiled program.
          sharding: assigns examples to devices, in order, as it would split an array
            [examples]: `NamedSharding(mesh, jax.P('data'))`, or `jax.P('data')` alone,
            on the mesh of `jax.set_mesh`. Each shard has `size` / shards rows. `apply`
            runs each shard on its devices, and gradients are summed over all shards.
            Where other processes have some of the devices, all call this together, each
            with the examples of its own shards; processes that share a shard give the
            same examples.

        Raises:
          TypeError: `examples` is a tuple, dict or string, which may be one example;
            `sharding` is no sharding.
          ValueError: there are more examples than `size`, or fewer by more than 2**20;
            they were traced for another expression; `size` is no multiple of the
            number of shards; or `sharding` does not split the axis of examples alone.
          InputError: an example does not fit the expression.
          RuntimeError: an example did not fit, but did when it was read again to find
            the reason; or another process has no schedule.
          ProgramBudgetError: one more shape would exceed `max_programs`.
          MemoryError: there is no room for the arrays. After any of these errors the
            model has the same shapes as before.
        """
        begin = time.perf_counter()
        shards = None if sharding is None else make_shards(sharding)
        if shards is not None and not shards.is_local:
            scheduler, channel = self.scheduler, self.scheduler.channel(shards)
            return scheduler.schedule_part(examples, size, shards, channel, begin)[0]
        scheduler, (selection,) = self._selected([examples])
        deal = default_assignment(len(selection), size, shards)
        schedule = scheduler.schedule(selection, deal, begin)
        return schedule if shards is None else on_device(schedule)

    @api_boundary
    def schedules(
        self, batches: Iterable[Iterable[Any] | Traced], *, size: int | None = None
    ) -> list[Schedule]:
        """Return schedules of several batches, all of one shape, for `Schedule.stack`.

        So one call of a compiled program can run several training steps, by `lax.scan`.

        Args:
          batches: a list, or other iterable, of `examples` as in `schedule`.
          size: how many rows the results of each batch get; by default the number of
            examples of the largest batch.

        Raises:
          The errors of `schedule`.
        """
        is_several = isinstance(batches, Iterable)
        expect('batches', batches, is_several, 'a list of lists of examples')
        scheduler, selections = self._selected(list(batches))
        return scheduler.schedules(selections, size)

    @api_boundary
    def trace(
        self,
        examples: Iterable[Any],
        *,
        skip_errors: bool = False,
        progress: bool = True,
    ) -> Corpus:
        """Convert examples to arrays once, from which any batch is put together.

        Args:
          examples: a list or any other iterable; read in chunks, so it may be larger
            than memory.
          skip_errors: leaves out examples that do not fit the expression, and lists
            them in `Corpus.skipped`. Examples near those are read again, so functions
            of the expression must not use up what they are given.
          progress: shows a progress bar, on a terminal or in a notebook, after a few
            seconds.

        Raises:
          TypeError: `examples` is a tuple, dict or string, which may be one example.
          InputError: an example does not fit; the error has its number among all.
          RuntimeError: an example did not fit, but did when it was read again.

        >>> import jfold as jf
        >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
        >>> corpus = model.trace([[1, 2], [], [3]])
        >>> model.apply({}, corpus.schedule([2, 0])).tolist()
        [3.0, 3.0]
        """
        checked = check_examples(examples)

        def record() -> Corpus:
            return trace_corpus(self.scheduler, checked, skip_errors, progress)

        return growing(self._recorded, self._lower, [checked], record)

    @api_boundary
    def precompile(
        self, step: Callable[..., Any], /, *args: Any, **options: Any
    ) -> CompiledStep:
        """Compile a step ahead of time for schedules of a known capacity.

        Args:
          step: a function that takes a schedule, jitted or not.
          *args: arguments of `step`, with a `Capacity` (from `Corpus.capacities` or
            `Batches.capacities`) in place of the schedule; other arrays as they will
            be, or as `jax.ShapeDtypeStruct`.
          **options: more arguments, by name.

        Returns:
          The compiled step, to be called with schedules in place of the capacity, which
          is reserved (see `reserve`), and without static arguments.

        Raises:
          TypeError: `step` is no function, or no argument is or holds a `Capacity`.
          ValueError: a capacity is of another expression.
          ProgramBudgetError: the capacity needs one program more than `max_programs`.

        >>> import jax, jfold as jf
        >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
        >>> corpus = model.trace([[1, 2], [], [3]])
        >>> step = model.precompile(model.apply, {}, corpus.capacities(2))
        >>> step({}, corpus.schedule([0, 2])).tolist()
        [3.0, 3.0]
        """
        return compile_step(step, args, options, self.budget.adopt)

    @api_boundary
    def reserve(self, capacity: Capacity) -> Capacity:
        """Reserve a capacity: later batches that fit get schedules of its shape.

        Batches that do not fit get another program, with a warning; those that fit keep
        theirs. Nothing is compiled here; `precompile` also reserves.

        Args:
          capacity: from `Corpus.capacities`, of a few examples of all kinds, with the
            largest; from `Schedule.capacity`; or the union of two, `a | b`. It has
            no room for operations that none of these examples runs.

        Returns:
          The capacity of schedules of such batches: `capacity`, or a larger one that
          was reserved for batches of this size before.

        Raises:
          TypeError: it is no `Capacity`; ValueError: it is of another expression.
          ProgramBudgetError: it needs one program more than `max_programs`.

        >>> import jfold as jf
        >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
        >>> largest = model.trace([[1] * n for n in range(100)]).capacities(4)
        >>> room = model.reserve(largest)
        >>> model.schedule([[1, 2], [3]], size=4).capacity == room
        True
        """
        return self.budget.adopt(capacity).capacity

    @api_boundary
    def apply(
        self,
        params: Mapping[str, Any],
        schedule: Schedule,
        external: Mapping[str, Any] | None = None,
        *,
        rngs: Rngs = None,
        ids: ArrayLike | None = None,
        deterministic: bool = False,
    ) -> Any:
        """Run a batch: a pure function, which composes with JAX's transformations.

        Args:
          params: as `init` returns them, in any mapping.
          schedule: as `schedule` returns it; no gradient flows to its arrays.
          external: by name, the arrays [rows, *shape] from which `External` blocks pick
            rows; gradients flow to these arrays.
          rngs: a key of `jax.random`, or a dict of keys by stream, for functions that
            draw, as dropout. What an operation draws for an example depends only on the
            key, the id of the example, and the operation's place in the example.
          ids: [examples] integers, the id of the example in each row, as
            `batch.indices`; by default the number of the row. Taken modulo 2**32.
          deterministic: whether nothing is drawn, to evaluate.

        Returns:
          The result with a leading axis of examples: arrays [examples, ...] in tuples,
          `Ragged` for sequences, `None` for void. With `Metric` blocks in the
          expression, a pair of this result and a dict of `MetricValues`, whose rows
          have the labels in `Schedule.labels`.

        A function of yours under `jax.jit` keeps the programs that it was traced with,
        and the data in them, while it exists, or until its `clear_cache()`; nothing
        else outlives the model and its schedules, but for some capacities in caches of
        JAX.

        Raises:
          ValueError: the schedule is of a model that was not defined in the same way.
          TypeError: `params` lacks a layer or has others; a layer differs from `init`,
            or an array of `external` from its block's type, in structure, shape or
            dtype; or a layer draws and has no key.
        """
        budget = self.budget
        schedule, program = adopt_schedule(schedule, self._programs, budget.spec_of)
        rows, layers = schedule.examples, program.layers
        later = {x.name for x in self.program.layers} - {x.name for x in layers}
        if later and isinstance(params, Mapping):
            params = {name: x for name, x in params.items() if name not in later}
        check_kept(program)
        params = checked_params(layers, params, external)
        draws = make_draws(layers, rows, rngs, ids, deterministic)
        note(budget, schedule.spec)
        run = self._applied.get(schedule.spec.key, lambda: jax.jit(make_execute()))
        return returned(program, schedule, run(params, schedule, draws))

    @api_boundary
    def eval(
        self,
        example: object,
        params: Mapping[str, Any] | None = None,
        external: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run one example without batching; see `Block.eval`, also for the options."""
        return self.block.eval(example, params, external, **options)

    @api_boundary
    def explain(self, schedule: Schedule | None = None) -> str:
        """Return a readable account of the program, or of a schedule if one is passed.

        For a schedule it lists rows per level and operation, tiles, spare rows,
        capacities, bytes and the time to build it.
        """
        if schedule is None:
            return str(self.program)
        is_schedule = isinstance(schedule, Schedule)
        hint = 'pass what `model.schedule(examples)` returns'
        expect('schedule', schedule, is_schedule, 'a schedule', hint)
        return explaining.explain(schedule, self.programs, self.max_programs)

    def __repr__(self) -> str:
        layers = ', '.join(layer.name for layer in self.program.layers)
        return f'Model({self.program.output!r}, layers: {layers or "none"})'


@api_boundary
def compile(
    block: Convertible,
    max_programs: int | None = None,
    *,
    residuals: str = SAVE_PRODUCTS,
    strategy: str | None = None,
    reproducible: bool = False,
    like: Iterable[Any] | None = None,
) -> Model:
    """Compile an expression: check its types and lower it.

    Args:
      block: a block, or a short-hand for one; takes one example, gives tensors, in
        tuples and sequences.
      max_programs: how many shapes of schedule, and so compiled programs, there may be;
        one more is an error, except in `predict`. By default any number: capacities
        then grow in such large steps that growing data need few programs, one warning
        says what to reserve, and a program of `apply` outside `jax.jit` is dropped if
        it is not used for long. (Programs of your functions under `jax.jit` stay until
        their `clear_cache()`.)
      residuals: the values that the forward pass keeps for the reverse. 'save
        products' keeps matrix products, from which other values are computed again;
        'recompute all' keeps none, takes less memory, and runs each product twice more.
        `Model.explain` tells how much memory either takes.
      strategy: how often loops of the compiled program run. 'counted': as often as the
        batch needs, which suits the CPU. 'fixed': as often as the capacity allows,
        which suits devices that would wait for the host after every round; tiles get
        a few widths, chosen by how wide the levels of batches have been. The default
        depends on the backend. Where no operation runs on its own
        results, as with messages along the edges of a graph, there are no loops: each
        operation runs once, as plain JAX, on all rows of its capacity. On accelerators
        the order of sums then differs from run to run.
      reproducible: sums in a fixed order, to the last bit: the result of an example is
        the same whatever batch it is in, and the gradients of a batch are the same in
        every run and process and with any number of threads. All rows of an operation
        are then computed by tiles of one width, in loops, which takes longer, most of
        all where levels are narrow; `docs/reproducible.md` says how much, and what is
        not promised.
      like: examples on which lazy functions run once, to learn which blocks they call
        on values of which types.

    Raises:
      ValueError: `residuals` or `strategy` is none of these, or `max_programs` is not
        positive.
      TypeError: `reproducible` is no bool, or `max_programs` no int; `like` is empty;
        a lazy function makes new blocks in each run; or types clash or cannot be
        determined, and the message names the path of the block at fault, what it
        expects and what it gets.

    >>> import jax.numpy as jnp
    >>> from jfold import Function, Scalar
    >>> model = compile({'x': Scalar(), 'y': Scalar()} >> Function(jnp.add))
    >>> model.apply({}, model.schedule([{'x': 1, 'y': 2}, {'x': 3, 'y': 4}])).tolist()
    [3.0, 7.0]
    """
    hint = 'write `jf.compile(a >> b)` for one block after another'
    is_block = isinstance(max_programs, Block)
    expect('max_programs', max_programs, not is_block, 'int', hint)
    check_options(max_programs, residuals, strategy, reproducible)
    recorded = learned(root := convert_to_block(block), like)
    root = root if recorded is None else recorded.expression()
    program = lower(root, unrolls=not reproducible)
    options = max_programs, residuals, strategy, reproducible
    return Model(root, program, *options, recorded)


@memoized
def model_of(block: Block, max_programs: int | None) -> Model:
    """Compile a block with `max_programs`; return the same model at each later call.

    So the copies of a Flax module, which have the same block, share a model.
    """
    return compile(block, max_programs)
