# SPDX-License-Identifier: Apache-2.0
"""The Flax NNX module `jf.nnx.Fold`, and the block `jf.nnx.Cell` of a module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from operator import getitem
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
from flax import nnx
from jax.typing import ArrayLike

from jfold.base.arguments import expect
from jfold.base.structs import key_name
from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block, Convertible, Function, convert_to_block
from jfold.language.analysis import users
from jfold.language.flax_modules import module_of
from jfold.models.model import model_of
from jfold.program.operations import Layer
from jfold.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from chex import ArrayTree

__all__ = ['Cell', 'Fold']
__dir__ = __all__.copy  # what completion shows


Leaf: TypeAlias = Any  # nnx.Param


class Fold(nnx.Module):
    """A block as an NNX module, called with a schedule.

    Layers that draw random numbers, such as dropout, take keys from the streams of
    `rngs`; after `eval()` no layer draws.

    Args:
      block: a block, or a short-hand for one, as `jfold.compile` takes it. NNX modules
        inside the block share their variables with this module: tied weights stay tied.
      rngs: the streams from which parameters are drawn, and later the keys of layers.
      max_programs: the limit of compiled programs, as in `jfold.compile`.

    Attributes:
      model: the compiled block; `model.schedule(examples)` makes schedules.
      params: the parameters, each an `nnx.Param`, in nested dicts by layer name.

    >>> import jfold as jf
    >>> from flax import nnx
    >>> dense = jf.nnx.Cell(lambda rngs: nnx.Linear(3, 4, rngs=rngs))
    >>> fold = jf.nnx.Fold(jf.Map(jf.Vector(3) >> dense) >> jf.Sum(), rngs=nnx.Rngs(0))
    >>> fold(fold.model.schedule([[[1, 2, 3], [4, 5, 6]], []])).shape
    (2, 4)
    """

    @api_boundary
    def __init__(
        self, block: Convertible, *, rngs: nnx.Rngs, max_programs: int | None = None
    ) -> None:
        is_rngs = isinstance(rngs, nnx.Rngs)
        expect('rngs', rngs, is_rngs, '`nnx.Rngs`', 'write `rngs=nnx.Rngs(0)`')
        block = convert_to_block(block)
        self.model = model_of(block, max_programs)
        self.deterministic = False
        layers = self.model.program.layers
        streams = sorted({name for layer in layers for name in layer.rngs})
        self.streams = nnx.Dict({name: rngs[name].fork() for name in streams})
        drawn = self.model.init(rngs.params())
        leaves = jax.tree_util.tree_leaves_with_path(drawn, is_leaf=_is_variable)
        shared = _variables_in(block, layers)
        self.params: nnx.Dict[Any] = nnx.Dict()
        for path, leaf in leaves:
            # A variable of a module keeps its type and its sharding.
            variable = leaf if _is_variable(leaf) else nnx.Param(leaf)
            *names, last = _names(path)
            inner: Any = self.params
            for name in names:
                if name not in vars(inner):
                    inner[name] = nnx.Dict()
                inner = inner[name]
            inner[last] = shared.get((*names, last), variable)

    def __call__(
        self,
        schedule: Schedule,
        external: Mapping[str, Any] | None = None,
        *,
        ids: ArrayLike | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """Return the result of `Model.apply` with the parameters of this module.

        Args:
          schedule, external, ids: as in `Model.apply`.
          deterministic: whether no layer draws; if `None`, whether `eval()` was called.
        """
        if deterministic is None:
            deterministic = self.deterministic
        options: dict[str, Any] = {'ids': ids, 'deterministic': deterministic}
        if not deterministic:
            options['rngs'] = {name: draw() for name, draw in self.streams.items()}
        return self.model.apply(self.arrays, schedule, external, **options)

    @api_boundary
    def predict(self, source: object, **options: Any) -> Any:
        """Return the result of `Model.predict` with the parameters of this module.

        Args:
          source: a corpus, a list or a stream of examples.
          **options: `batch_size` and other options of `Model.predict`.
        """
        return self.model.predict(self.arrays, source, **options)

    @property
    def arrays(self) -> ArrayTree:
        """The parameters as arrays, in the form that `Model.init` returns."""
        layers = self.model.program.layers
        specs = {x.name: x.params for x in layers if x.init is not None}

        def read(path: tuple[Any, ...], _: object) -> jax.Array:
            variable: Leaf = functools.reduce(getitem, _names(path), self.params)
            value: jax.Array = variable.get_value()
            return value

        return jax.tree_util.tree_map_with_path(read, specs)


def _is_variable(value: object) -> bool:
    return isinstance(value, nnx.Variable)


def _variables_in(block: Block, layers: Iterable[Layer]) -> dict[tuple[str, ...], Leaf]:
    """Return the `nnx.Param`s of NNX modules in a block, by layer name and path.

    Layers of other callables are left out: `Model.init` draws their parameters.
    """
    functions = (x for x in users(block) if isinstance(x, Function) and x.init is None)
    modules: dict[Any, object] = {}
    for function in functions:
        module = module_of(function.fn)
        modules[id(module), function.name] = module
    variables = dict[tuple[str, ...], Leaf]()
    for layer in layers:
        module = modules.get(layer.owner)
        if isinstance(module, nnx.Module):
            flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
            variables |= {(layer.name, *map(str, path)): leaf for path, leaf in flat}
    return variables


def _names(path: tuple[Any, ...]) -> list[str]:
    """Return the names in a JAX key path, without a 'value' at the end."""
    names = [str(key_name(key)) for key in path]
    return names[:-1] if names[1:] and names[-1] == 'value' else names


@api_boundary
def Cell(make: Callable[[nnx.Rngs], nnx.Module], name: str | None = None) -> Function:
    """An NNX module as a block whose parameters `Model.init(key)` draws.

    For an NNX module in a `Function`, by contrast, `Model.init` returns the parameters
    that the module holds.

    Args:
      make: a function from `nnx.Rngs` to the module. It is called once for the
        structure, and again whenever parameters are drawn.
      name: the key of the parameters, as in `Function`.

    Raises:
      TypeError: `make` is not callable.

    >>> import jax, jfold as jf
    >>> from flax import nnx
    >>> dense = jf.nnx.Cell(lambda rngs: nnx.Linear(3, 4, rngs=rngs))
    >>> params = jf.compile(jf.Vector(3) >> dense).init(jax.random.key(1))
    >>> params['Linear']['kernel'].shape
    (3, 4)
    """

    is_maker = callable(make) and not isinstance(make, nnx.Module)
    hint = 'write `jf.nnx.Cell(lambda rngs: nnx.Linear(3, 4, rngs=rngs))`'
    expect('make', make, is_maker, 'a function of `nnx.Rngs`', hint)
    module = make(nnx.Rngs(0))
    expect(
        'make', module, isinstance(module, nnx.Module), 'that of an NNX module', hint
    )

    def init(key: jax.Array) -> ArrayTree:
        return nnx.state(make(nnx.Rngs(key)), nnx.Param)

    return Function(module, init, name)
