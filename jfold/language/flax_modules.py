# SPDX-License-Identifier: Apache-2.0
"""Flax modules, and their methods, as functions of parameters, inputs and keys.

Flax is looked for among the modules already imported, never imported here: who has a
Flax module has imported Flax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from chex import ArrayTree

Keys: TypeAlias = Mapping[str, jax.Array | None]  # by stream; `None` to draw nothing
Found: TypeAlias = tuple[str, ...]
Module: TypeAlias = Any  # of Flax, which is not imported here
Args: TypeAlias = tuple[Any, ...]
Options: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Called:
    """A callable, made uniform.

    Attributes:
      call: (params, inputs, keys) -> outputs.
      init: (key, *specs) -> params; `None` without parameters.
      draws: (a call without keys, params, inputs) -> the streams of which keys are
        wanted.
      owner: of the parameters, if other callables may have the same.
      is_module: whether it is of Flax.
    """

    call: Callable[[Any, Sequence[Any], Keys], Any]
    init: Callable[..., Any] | None
    draws: Callable[[Any, Any, Sequence[Any]], Found] = lambda *_: ()
    owner: Hashable = None
    is_module: bool = False


def called(fn: object) -> Called | None:
    """A Flax module or a method of one; `None` of other callables."""
    module = module_of(fn)
    method = '__call__' if module is fn else getattr(fn, '__name__', '')
    if _is_instance(module, 'flax.linen'):
        return _linen(module, method)
    return _nnx(module, method) if _is_instance(module, 'flax.nnx') else None


def module_of(fn: object) -> object:
    """The module of a method; all else as it is."""
    is_method = isinstance(fn, types.MethodType) and is_module(fn.__self__)
    return fn.__self__ if is_method else fn  # type: ignore[attr-defined]


def is_module(value: object) -> bool:
    """Whether a value is a module of Flax."""
    return any(_is_instance(value, x) for x in ('flax.linen', 'flax.nnx'))


def check_closed_over(fn: object) -> None:
    """Refuses a function that only closes over a module which has its parameters.

    Those of one of NNX would be constants, which nobody trains, and those of a Linen
    module that another one around it holds would be that one's.

    Raises:
      TypeError: it does.
    """
    if not inspect.isfunction(fn):
        return
    nonlocals, names, *_ = inspect.getclosurevars(fn)
    for name, value in (*nonlocals.items(), *names.items()):
        if _holds_params(value):
            raise TypeError(
                'expected a function that calls no module with parameters, got one '
                f'that calls the {type(value).__name__} `{name}`, and nobody would '
                f'train them: give the module itself, `Function({name})`, or write '
                'one that calls it; what is not to be trained, make by `nnx.split`'
            )


def _holds_params(value: Any) -> bool:
    if _is_instance(value, 'flax.linen'):
        return value.scope is not None
    if not _is_instance(value, 'flax.nnx'):
        return False
    nnx = sys.modules['flax.nnx']
    return bool(jax.tree.leaves(nnx.state(value, nnx.Param)))


def is_graph(value: object) -> bool:
    """Whether it is of NNX, a module or an optimizer, which may have one variable in
    several places, as no tree has."""
    return _is_instance(value, 'flax.nnx', 'Pytree')


def cell_library(fn: object) -> str:
    """The part of Flax that a recurrent cell is of, which takes a state and then an
    item; '' of all else."""
    libraries = 'flax.linen', 'flax.nnx'
    found = (x for x in libraries if _is_instance(module_of(fn), x, 'RNNCellBase'))
    return next(found, '')


def _is_instance(fn: object, library: str, kind: str = 'Module') -> bool:
    found = getattr(sys.modules.get(library), kind, None)
    return found is not None and isinstance(fn, found)


def _evaluates(keys: Keys) -> bool:
    """Whether nothing is to be drawn."""
    return any(key is None for key in keys.values())


class UnexpectedDrawError(TypeError):
    """Something asks for a key where none is given."""

    def __init__(self, got: str) -> None:
        super().__init__(
            f'expected that nothing is drawn with `deterministic=True`, got {got}; let '
            'the module ask its `deterministic` first'
        )


def _state(kinds: Iterable[str]) -> TypeError:
    """The error of modules that change when they are called."""
    return TypeError(
        'expected a module of parameters alone, got state beside them, '
        f'{sorted(set(kinds))}: what calls write, such as the means of a batch, has no '
        'meaning where nodes run tile by tile; use LayerNorm, RMSNorm or GroupNorm for '
        'BatchNorm, or put it behind `model.apply`'
    )


# ---- Linen ---------------------------------------------------------------------------

_WANTED = re.compile(r'needs PRNG for "(\w+)"')


def _check_fields(module: Module) -> None:
    """Refuses a Linen module that holds an NNX one, whose parameters would be lost."""
    for each in dataclasses.fields(module):
        value = getattr(module, each.name, None)
        if _is_instance(value, 'flax.nnx'):
            raise TypeError(
                f'expected modules of Linen in {type(module).__name__}, got the NNX '
                f'module {type(value).__name__} as `{each.name}`, whose parameters '
                'Linen does not see: take one of Linen, or write an NNX module that '
                'calls it'
            )


def _linen(module: Module, method: str) -> Called:
    _check_fields(module)

    def init(key: jax.Array, *specs: object) -> ArrayTree:
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), specs)
        with _decided(module, method, True):
            variables = module.init(key, *zeros, method=method)
        if other := set(variables) - {'params'}:
            raise _state(other)
        return variables.get('params', {})

    def call(params: ArrayTree, inputs: Sequence[Any], keys: Keys) -> ArrayTree:
        given = {name: key for name, key in keys.items() if key is not None}
        with _decided(module, method, _evaluates(keys)):
            return module.apply({'params': params}, *inputs, rngs=given, method=method)

    def evaluated(params: ArrayTree, inputs: Sequence[Any], keys: Keys) -> ArrayTree:
        try:
            return call(params, inputs, keys)
        except _invalid_rng() as error:
            if not _evaluates(keys):
                raise
            raise UnexpectedDrawError(str(error)) from error

    draws = functools.partial(_linen_draws, call)
    return Called(evaluated, init, draws, id(module), is_module=True)


def _invalid_rng() -> type[Exception]:
    found: type[Exception] = sys.modules['flax.errors'].InvalidRngError
    return found


def _linen_draws(
    call: Callable[..., Any],
    keyless: Callable[..., Any],
    params: ArrayTree,
    inputs: Sequence[Any],
) -> Found:
    """The streams a Linen module asks for, found by giving it one after another."""
    keys: dict[str, jax.Array] = {}
    while True:
        try:
            if keys:
                jax.eval_shape(functools.partial(call, keys=keys), params, inputs)
            else:  # as the layer is traced next: JAX remembers it
                jax.eval_shape(keyless, params, *inputs)
        except _invalid_rng() as error:
            found = _WANTED.search(str(error))
            if found is None or found[1] in keys:
                raise
            keys[found[1]] = jax.random.key(0)
        else:
            return tuple(keys)


@contextlib.contextmanager
def _decided(module: Module, method: str, deterministic: bool) -> Iterator[None]:
    """Linen modules that nobody told whether they draw are told here.

    Those are: the outermost, by an argument `deterministic` or `train`, if it has one;
    and every `Dropout` that neither its maker nor its caller told.
    """
    waiting = [_decision(module, method, deterministic)]

    def told(
        call: Callable[..., Any], args: Args, options: Options, context: Module
    ) -> ArrayTree:
        if waiting and context.method_name == method:
            options = {**waiting.pop()(len(args)), **options}
        if isinstance(context.module, sys.modules['flax.linen'].Dropout):
            return _dropped(call, args, options, context.module, deterministic)
        return call(*args, **options)

    with sys.modules['flax.linen'].intercept_methods(told):
        yield


def _decision(
    module: Module, method: str, deterministic: bool
) -> Callable[[int], dict[str, bool]]:
    """The arguments that say whether a module draws, behind so many inputs."""
    choices = {'deterministic': deterministic, 'train': not deterministic}
    names = [*inspect.signature(getattr(module, method)).parameters]

    def options(inputs: int) -> dict[str, bool]:
        open_ = [x for x in names[inputs:] if getattr(module, x, None) is None]
        return {name: choice for name, choice in choices.items() if name in open_}

    return options


def _dropped(
    call: Callable[..., Any],
    args: Args,
    options: Options,
    module: Module,
    deterministic: bool,
) -> ArrayTree:
    """What a Linen `Dropout` gives."""
    if deterministic:
        return args[0] if args else options['inputs']
    said = module.deterministic, options.get('deterministic'), *args[1:2]
    if all(x is None for x in said):
        options = {**options, 'deterministic': False}
    return call(*args, **options)


# ---- NNX -----------------------------------------------------------------------------


def _nnx(module: Module, method: str) -> Called:
    nnx = sys.modules['flax.nnx']
    graph, params, streams, rest = nnx.split(module, nnx.Param, nnx.RngState, ...)
    if jax.tree.leaves(rest):
        raise _state(type(x).__name__ for x in _variables(rest))
    names = _stream_names(module, streams)
    leaves, structure = jax.tree.flatten(streams)

    def run(
        params: ArrayTree, inputs: Sequence[Any], keys: Keys
    ) -> tuple[ArrayTree, set[str]]:
        """What it gives, and the names of the streams that it draws from."""
        pairs = enumerate(zip(names, leaves, strict=True))
        given = [_stream(x, keys.get(name), k) for k, (name, x) in pairs]
        made = nnx.merge(graph, params, jax.tree.unflatten(structure, given))
        if _evaluates(keys):
            made.eval()
        result = getattr(made, method)(*inputs)
        left = jax.tree.leaves(nnx.state(made, nnx.RngState))
        used = zip(names, given, left, strict=True)
        return result, {name for name, x, y in used if x is not y}

    def call(params: ArrayTree, inputs: Sequence[Any], keys: Keys) -> ArrayTree:
        result, used = run(params, inputs, keys)
        if used and _evaluates(keys):
            raise UnexpectedDrawError(f'a draw from {sorted(used)}')
        return result

    def draws(_: object, params: ArrayTree, inputs: Sequence[Any]) -> Found:
        found: set[str] = set()
        run_on = lambda p, x: found.update(run(p, x, {})[1])  # noqa: E731
        jax.eval_shape(run_on, params, inputs)
        return tuple(sorted(found))

    # An NNX module is made with its parameters, so there is nothing to draw.
    return Called(call, lambda *_: params, draws, id(module), is_module=True)


def _stream(x: jax.Array, key: jax.Array | None, number: int) -> jax.Array:
    """What a stream begins with: a key of its own, or a count of 0."""
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jnp.zeros_like(x)
    return x if key is None else jax.random.fold_in(key, number)


def _variables(state: ArrayTree) -> list[Any]:
    kind = sys.modules['flax.nnx'].Variable
    return jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, kind))


def _stream_names(module: Module, streams: ArrayTree) -> list[str]:
    """Of each array of the streams, the name under which keys are asked for."""
    nnx = sys.modules['flax.nnx']
    # A stream made for want of another is called 'default'; who has it knows better.
    wanted = {
        (*path, 'rngs'): each.rng_collection
        for path, each in nnx.iter_modules(module)
        if isinstance(each, nnx.Dropout)
    }
    paths = [path[:-1] for path, _ in nnx.to_flat_state(streams)]
    tags = [each.tag for each in _variables(streams)]
    return [wanted.get(path, tag) for path, tag in zip(paths, tags, strict=True)]


def check_tied(modules: Iterable[object]) -> None:
    """Refuses NNX modules of which two share variables: each would have its own.

    Raises:
      TypeError: two do.
    """
    found: dict[int, Any] = {}
    for module in map(module_of, modules):
        if not _is_instance(module, 'flax.nnx'):
            continue
        nnx = sys.modules['flax.nnx']
        for path, each in nnx.iter_graph(module):
            if not isinstance(each, nnx.Param):
                continue
            other = found.setdefault(id(each), module)
            if other is not module:
                names = ' and '.join(type(x).__name__ for x in (other, module))
                raise TypeError(
                    f'expected modules with parameters of their own, got {names} that '
                    f'share one at {".".join(map(str, path))}: make both parts of one '
                    'module, and use its methods, `Function(module.encode)`'
                )
