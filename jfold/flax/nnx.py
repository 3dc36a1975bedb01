# SPDX-License-Identifier: Apache-2.0
"""jfold within Flax NNX: `jf.nnx.Fold`, a module whose parameters are a model's, and
`jf.nnx.Cell`, a module whose parameters are drawn with all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
from flax import nnx
from jax.typing import ArrayLike

from jfold.base.errors import expect
from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block, Convertible, Function, convert_to_block
from jfold.language.analysis import users
from jfold.language.flax_modules import module_of
from jfold.models.model import model_of
from jfold.program.operations import Layer
from jfold.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from chex import ArrayTree

Leaf: TypeAlias = Any  # nnx.Param


class Fold(nnx.Module):
    """A block as an NNX module, called with a schedule.

    What its layers draw is drawn of the streams of `rngs`; nothing after `eval()`.

    Args:
      block: what `jfold.compile` takes. Of NNX modules that stand in it as they are
        it has the variables themselves, so what is tied to others stays tied.
      rngs: of which parameters are drawn.
      max_programs: as of `jfold.compile`.

    Attributes:
      model: the compiled block; `model.schedule(examples)` makes schedules.
      params: its parameters, an `nnx.Param` each, by layer; `model` takes them too.

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
        made = convert_to_block(block)
        self.model = model_of(made, max_programs)
        self.deterministic = False
        layers = self.model.program.layers
        streams = sorted({name for layer in layers for name in layer.rngs})
        self.streams = nnx.Dict({name: rngs[name].fork() for name in streams})
        drawn = self.model.init(rngs.params())
        leaves = jax.tree_util.tree_leaves_with_path(drawn, is_leaf=_is_variable)
        own, found = _own(made, layers), list[tuple[list[str], Leaf]]()
        for path, leaf in leaves:
            names = _names(path)
            # As the module has it, with its type and what it says of devices.
            variable = leaf if _is_variable(leaf) else nnx.Param(leaf)
            found.append((names, own.get((*names,), variable)))
        self.params = _nested(found)

    def __call__(
        self,
        schedule: Schedule,
        external: Mapping[str, Any] | None = None,
        *,
        ids: ArrayLike | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """As `Model.apply`, with the parameters of the module."""
        if deterministic is None:
            deterministic = self.deterministic
        options: dict[str, Any] = {'ids': ids, 'deterministic': deterministic}
        if not deterministic:
            options['rngs'] = {name: draw() for name, draw in self.streams.items()}
        return self.model.apply(self.arrays, schedule, external, **options)

    @api_boundary
    def predict(self, source: object, **options: Any) -> Any:
        """As `Model.predict`, with the parameters of the module.

        Args:
          source: a corpus, a list or a stream of examples.
          **options: `batch_size` and others of `Model.predict`.
        """
        return self.model.predict(self.arrays, source, **options)

    @property
    def arrays(self) -> ArrayTree:
        """The parameters as `Model.init` gives them."""
        layers = self.model.program.layers
        specs = {x.name: x.params for x in layers if x.init is not None}
        return jax.tree_util.tree_map_with_path(lambda path, _: self._at(path), specs)

    def _at(self, path: tuple[Any, ...]) -> jax.Array:
        found: Leaf = self.params
        for name in _names(path):
            found = found[name]
        value: jax.Array = found.get_value()
        return value


def _is_variable(value: object) -> bool:
    return isinstance(value, nnx.Variable)


def _own(block: Block, layers: Iterable[Layer]) -> dict[tuple[str, ...], Leaf]:
    """The variables of the modules that stand in a block, by the names of a layer and
    of what leads to them; of others `Model.init` draws them."""
    functions = (x for x in users(block) if isinstance(x, Function) and x.init is None)
    modules: dict[Any, object] = {}
    for each in functions:
        module = module_of(each.fn)
        modules[id(module), each.name] = module
    found = dict[tuple[str, ...], Leaf]()
    for layer in layers:
        module = modules.get(layer.owner)
        if isinstance(module, nnx.Module):
            flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
            found |= {(layer.name, *map(str, path)): leaf for path, leaf in flat}
    return found


def _names(path: tuple[Any, ...]) -> list[str]:
    """The keys that lead to a variable, or to an array; to one inside a variable, or a
    box, those to that."""
    found = [
        str(
            next(
                getattr(x, name) for name in ('key', 'idx', 'name') if hasattr(x, name)
            )
        )
        for x in path
    ]
    return found[:-1] if found[-1:] == ['value'] else found


def _nested(leaves: list[tuple[list[str], Leaf]]) -> Leaf:
    """Variables by the names that lead to them."""
    if leaves and not leaves[0][0]:
        return leaves[0][1]
    inside: dict[str, list[tuple[list[str], Leaf]]] = {}
    for (first, *rest), each in leaves:
        inside.setdefault(first, []).append((rest, each))
    return nnx.Dict({name: _nested(parts) for name, parts in inside.items()})


@api_boundary
def Cell(make: Callable[[nnx.Rngs], nnx.Module], name: str | None = None) -> Function:
    """An NNX module as a block, of which `Model.init(key)` draws the parameters.

    Of a module that stands in a block as it is, `init` takes those that it has.

    Args:
      make: makes the module, of `nnx.Rngs`. It is called for its structure once, and
        then whenever parameters are drawn.
      name: as of `Function`.

    >>> import jax, jfold as jf
    >>> from flax import nnx
    >>> dense = jf.nnx.Cell(lambda rngs: nnx.Linear(3, 4, rngs=rngs))
    >>> params = jf.compile(jf.Vector(3) >> dense).init(jax.random.key(1))
    >>> params['Linear']['kernel'].shape
    (3, 4)
    """

    expect('make', make, callable(make), 'a function of `nnx.Rngs`')

    def init(key: jax.Array) -> ArrayTree:
        return nnx.state(make(nnx.Rngs(key)), nnx.Param)

    return Function(make(nnx.Rngs(0)), init, name)
