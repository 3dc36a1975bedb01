# SPDX-License-Identifier: Apache-2.0
"""The model: an expression, compiled, with the capacities it has grown so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold import explain as explaining
from jfold.columns import trace
from jfold.combinators import Block, convert_to_block
from jfold.eager import evaluate
from jfold.errors import ProgramBudgetError
from jfold.layers import pack
from jfold.layout import Capacity, Spec, grow
from jfold.lower import lower
from jfold.policies import shortest
from jfold.program import Layer, Program
from jfold.runtime import execute
from jfold.schedule import Schedule, build, needs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetricValues:
    """What a `Metric` collected in a batch; a pytree.

    Rows are ordered by example, and within one as it suits the schedule, not as one
    would visit its parts. Spare rows, at the end, are zero, so that sums need no
    mask.

    Attributes:
      values: [rows, *shape], or a tuple of such arrays if the metric takes a tuple.
      example: [rows] int32, the example of each; the number of examples on spare rows,
        which `jax.ops.segment_sum(..., num_segments=examples)` drops.
      mask: [rows] bool, whether the row is real.
    """

    values: Any
    example: Any
    mask: Any

    def sum(self) -> Any:
        """The sum over all real rows."""
        return jax.tree.map(lambda x: x.sum(0), self.values)

    def mean(self) -> Any:
        """The mean over all real rows; zero if there are none."""
        count = jnp.maximum(self.mask.sum(), 1)
        return jax.tree.map(lambda x: x.sum(0) / count, self.values)


@dataclass(eq=False)
class Model:
    """A compiled expression; made by `jfold.compile`.

    Attributes:
      block: the expression.
      program: what it was lowered to; printable.
      max_programs: how many shapes of schedule there may be.
    """

    block: Block
    program: Program
    max_programs: int
    _capacities: dict[int, Capacity] = field(default_factory=dict)
    _specs: dict[Spec, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._apply = jax.jit(execute)

    @property
    def programs(self) -> int:
        """How many shapes of schedule there were so far: programs to compile."""
        return len(self._specs)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Draws the parameters: a plain pytree, {layer name: parameters}.

        Args:
          key: as of `jax.random.key`.
        """
        layers = [layer for layer in self.program.layers if layer.init is not None]
        keys = jax.random.split(key, max(len(layers), 1))
        return {
            layer.name: layer.init(k)
            for layer, k in zip(layers, keys, strict=False)
            if layer.init is not None
        }

    def schedule(self, examples: Iterable[Any]) -> Schedule:
        """Turns examples into the arrays that drive the compiled program.

        Runs on the host. Shapes are kept from batch to batch, per number of examples,
        and only grow, so that a stationary stream compiles a handful of programs.

        Args:
          examples: a list, or any other iterable, of what the expression takes.

        Raises:
          TypeError: `examples` is a dict or a string, which is one example at most.
          InputError: an example does not fit the expression.
          ProgramBudgetError: one more shape would exceed `max_programs`. In both cases
            the model is as it was before.
        """
        single = isinstance(examples, str | bytes | Mapping)
        if single or not isinstance(examples, Iterable):
            raise TypeError(
                f'expected a sequence of examples, got {type(examples).__name__}: '
                'pass `[example]`'
            )
        begin = time.perf_counter()
        graph = shortest(self.program, trace(self.program, list(examples)))
        need = needs(self.program, graph)
        old = self._capacities.get(need.examples)
        spec = Spec(self.program, grow(old, need))
        if spec not in self._specs and len(self._specs) >= self.max_programs:
            raise ProgramBudgetError(_over_budget(self.max_programs, old, need))
        result = build(graph, spec)
        self._capacities[need.examples] = spec.capacity
        self._specs[spec] = None
        result.seconds = time.perf_counter() - begin
        return result

    def apply(self, params: dict[str, Any], schedule: Schedule) -> Any:
        """Runs a batch: pure, for `jit`, `grad`, `vmap` over `params`, `checkpoint`.

        Args:
          params: as `init` returns them.
          schedule: as `schedule` returns it; data, no gradient flows to it.

        Returns:
          The result with a leading axis of examples: arrays [examples, ...] in tuples,
          `None` for void. With `Metric` blocks in the expression, a pair of that and a
          dict of `MetricValues`.

        Raises:
          ValueError: the schedule is another model's.
          TypeError: `params` lacks a layer.
        """
        self._check(params, schedule)
        outputs, metrics = self._apply(params, schedule)
        values = pack(self.program.output, list(outputs))
        return (values, self._metrics(metrics, schedule)) if metrics else values

    def _check(self, params: Any, schedule: Schedule) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(
                f'expected a schedule, got {type(schedule).__name__}: '
                '`model.apply(params, model.schedule(examples))`'
            )
        if schedule.spec.program is not self.program:
            raise ValueError(
                'expected a schedule made by this model, got one of another: call '
                '`model.schedule(examples)` of the model that is applied'
            )
        for layer in self.program.layers:
            if layer.params is not None and layer.name not in params:
                raise TypeError(
                    f'expected parameters for layer {layer.name!r}, got those of '
                    f'{list(params)}; `model.init(key)` makes them'
                )
            if layer.params is not None:
                _check_shapes(layer, params[layer.name])

    def _metrics(self, metrics: Any, schedule: Schedule) -> dict[str, MetricValues]:
        found = {}
        for m, (name, type_, _) in enumerate(self.program.metrics):
            example = schedule.section(
                ('example', m), schedule.spec.capacity.metrics[m]
            )
            example = jnp.asarray(example)
            values = pack(type_, list(metrics[m]))
            found[name] = MetricValues(values, example, example < schedule.examples)
        return found

    def eval(self, example: Any, params: Any = None) -> Any:
        """Runs one example eagerly; see `Block.eval`."""
        return evaluate(self.block, example, params)

    def explain(self, schedule: Schedule | None = None) -> str:
        """A readable account of the program, or of one schedule.

        Levels by operations, rows, tiles, spare rows, capacities, bytes, build time.
        """
        if schedule is None:
            return str(self.program)
        return explaining.explain(schedule, self.programs, self.max_programs)

    def __repr__(self) -> str:
        layers = ', '.join(layer.name for layer in self.program.layers)
        return f'Model({self.program.output!r}, layers: {layers or "none"})'


def compile(block: Any, max_programs: int = 8) -> Model:
    """Compiles an expression: checks its types and lowers it.

    Args:
      block: a block, or what converts to one; takes one example, gives tensors.
      max_programs: how many shapes of schedule, and so compiled programs, there may be;
        exceeding it is an error.

    Raises:
      TypeError: types clash or cannot be determined; the message names the path of the
        block at fault, what it expects and what it gets.

    >>> from jfold import Function, Scalar
    >>> model = compile({'x': Scalar(), 'y': Scalar()} >> Function(jnp.add))
    >>> model.apply({}, model.schedule([{'x': 1, 'y': 2}, {'x': 3, 'y': 4}])).tolist()
    [3.0, 7.0]
    """
    if isinstance(max_programs, bool) or not isinstance(max_programs, int):
        raise TypeError(f'expected `max_programs` as int, got {max_programs!r}')
    root = convert_to_block(block)
    return Model(root, lower(root), max_programs)


def _check_shapes(layer: Layer, params: Any) -> None:
    """Compares parameters with those that `init` would make."""
    trees = layer.params, params
    expected, got = ([np.shape(x) for x in jax.tree.leaves(tree)] for tree in trees)
    if expected != got:
        raise TypeError(
            f'expected parameters of layer {layer.name!r} of shapes {expected}, got '
            f'{got}; `model.init(key)` makes them'
        )


def _over_budget(limit: int, old: Capacity | None, need: Capacity) -> str:
    batch = f'a batch of {need.examples} examples needs program {limit + 1}'
    if old is None:
        grown = f'no batch had {need.examples} examples before'
    else:
        pairs = zip(old.dimensions(), need.dimensions(), strict=True)
        grown = ', '.join(f'{n} from {a} to {b}' for (n, a), (_, b) in pairs if b > a)
        grown = f'these grew: {grown}'
    return (
        f'{batch}, but max_programs={limit}; {grown}. Batches of one size and similar '
        'content share programs; or raise `jfold.compile(..., max_programs=...)`'
    )
