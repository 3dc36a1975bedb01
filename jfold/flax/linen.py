# SPDX-License-Identifier: Apache-2.0
"""The Flax Linen module `jf.linen.Fold`, whose parameters are those of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import linen
from jax.typing import ArrayLike

from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block, convert_to_block
from jfold.language.parameter_checks import in_containers_of
from jfold.models.model import Model, model_of
from jfold.scheduling.schedule import Schedule

__all__ = ['Fold']
__dir__ = __all__.copy  # what completion shows


class Fold(linen.Module):
    """A block as a Linen module, called with a schedule.

    Layers that draw random numbers, such as dropout, take keys from the streams of
    `rngs`; during `init` no layer draws. Make the block once, outside of methods: the
    compiled model is stored with the block. Modules in the block have parameters of
    their own, even if the network uses the same modules elsewhere. To share parameters,
    use a module in the block alone, or pass arrays as `external`.

    Attributes:
      block: a block, or a short-hand for one, as `jfold.compile` takes it.
      max_programs: the limit of compiled programs, as in `jfold.compile`.

    >>> import jax, jfold as jf
    >>> from flax import linen as nn
    >>> class Net(nn.Module):
    ...     fold: nn.Module
    ...
    ...     @nn.compact
    ...     def __call__(self, schedule):
    ...         return nn.Dense(2)(self.fold(schedule))
    >>> fold = jf.linen.Fold(
    ...     jf.Map(jf.Vector(3) >> jf.Function(nn.Dense(4))) >> jf.Sum()
    ... )
    >>> schedule = fold.model.schedule([[[1, 2, 3], [4, 5, 6]], []])
    >>> variables = Net(fold).init(jax.random.key(0), schedule)
    >>> Net(fold).apply(variables, schedule).shape
    (2, 2)
    """

    block: Block
    max_programs: int | None = None

    def __post_init__(self) -> None:
        self.block = convert_to_block(self.block)
        super().__post_init__()

    @property
    @api_boundary
    def model(self) -> Model:
        """The compiled block; `model.schedule(examples)` makes schedules."""
        return model_of(self.block, self.max_programs)

    @linen.compact
    def __call__(
        self,
        schedule: Schedule,
        external: Mapping[str, Any] | None = None,
        *,
        ids: ArrayLike | None = None,
        deterministic: bool = False,
    ) -> Any:
        """Return the result of `Model.apply` with the parameters of this module.

        Args:
          schedule, external, ids: as in `Model.apply`.
          deterministic: whether no layer draws, so that no `rngs` are needed.
        """
        layers = self.model.program.layers
        # Methods of one module are layers of one name, which share its parameters.
        named = {x.name: (x.params, x.init) for x in layers if x.init}
        # Arrays that `linen.unbox` took out of their boxes are put back.
        params = {
            name: in_containers_of(like, self.param(name, init, unbox=False))
            for name, (like, init) in named.items()
        }
        # Parameters that belong to no layer are passed on: `Model.apply` refuses them.
        params = {**self.variables.get('params', {}), **params}
        options: dict[str, Any] = {'ids': ids, 'deterministic': deterministic}
        if self.is_initializing():
            options['deterministic'] = True
        if not options['deterministic']:
            streams = {name for layer in layers for name in layer.rngs}
            options['rngs'] = {name: self.make_rng(name) for name in sorted(streams)}
        try:
            return self.model.apply(params, schedule, external, **options)
        except ValueError as error:
            is_schedule = isinstance(schedule, Schedule)
            if is_schedule and schedule.spec.program != self.model.program:
                error.add_note(
                    'in `Fold`: expected a block that is made once, got one of another '
                    'schedule: make the block outside of methods, which make another '
                    'at each call, and schedules by `fold.model` of it'
                )
            raise
