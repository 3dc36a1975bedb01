# SPDX-License-Identifier: Apache-2.0
"""Flax modules and their methods as functions of parameters, inputs and keys.

Flax is looked up in `sys.modules`, never imported: whoever has a module imported it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp

from jfold.base.arrays import array_spec

if TYPE_CHECKING:
    from chex import ArrayTree

Keys: TypeAlias = Mapping[str, jax.Array | None]  # by stream; `None` forbids draws
Streams: TypeAlias = tuple[str, ...]
Module: TypeAlias = Any  # of Flax, which is not imported here


@dataclass(frozen=True)
class Called:
    """A user's callable, such as a Flax module, with a uniform signature.

    Attributes:
      call: (params, inputs, keys) -> outputs.
      init: (key, *specs of the inputs) -> params; `None` without parameters.
      draws: (calling, params, inputs) -> the names of the random streams that a call
        draws from, where `calling(names)` is that call with keys for some streams,
        `(params, *keys, *inputs) -> outputs`, and params and inputs are specs.
    """

    call: Callable[[Any, Sequence[Any], Keys], Any]
    init: Callable[..., Any] | None = None
    draws: Callable[[Any, Any, Sequence[Any]], Streams] = lambda *_: ()


def called(fn: object) -> Called | None:
    """Return `fn`, a Flax module or its method, in a uniform signature; else `None`.

    Raise TypeError if a Linen module is bound or holds an NNX one, or an NNX has state.
    """
    module = module_of(fn)
    method = '__call__' if module is fn else getattr(fn, '__name__', '')
    if _is_instance(module, 'flax.linen'):
        return _from_linen(module, method)
    return _from_nnx(module, method) if _is_instance(module, 'flax.nnx') else None


def module_of(fn: object) -> object:
    """Return the Flax module of `fn` if that is a method, else `fn` itself."""
    is_method = isinstance(fn, types.MethodType) and is_module(fn.__self__)
    return fn.__self__ if is_method else fn  # type: ignore[attr-defined]


def is_module(value: object) -> bool:
    """Return whether a value is a Flax module, of Linen or NNX."""
    return any(_is_instance(value, x) for x in ('flax.linen', 'flax.nnx'))


def check_closed_over(fn: object) -> None:
    """Raise TypeError if callable `fn` reads an outer Flax module that has parameters.

    An outer module is nonlocal, global, a default value, or wrapped, as by `jax.jit`.
    Parameters of an NNX module would be constants, which are not trained; those of a
    bound Linen module would belong to its parent.
    """
    waiting = [] if is_module(module_of(fn)) else [fn]
    for reader in waiting:  # which grows in the loop
        for name, value in _read_by(reader).items():
            module = module_of(value)
            kind = type(module).__name__
            if _holds_params(module):
                raise TypeError(
                    'expected a function that calls no module with parameters, got '
                    f'one that calls the {kind} `{name}`, and nobody would train them: '
                    f'give the module itself, `Function({name})`, or write one that '
                    'calls it; what is not to be trained, make by `nnx.split`'
                )
            # Functions of other files, as of libraries, are taken to call none.
            file = getattr(value, '__module__', '')
            is_own = inspect.isfunction(value) and file == getattr(fn, '__module__', '')
            is_known = any(value is x for x in waiting)
            if not is_known and (is_own or _wrapped(value)):
                waiting.append(value)


def _read_by(fn: Any) -> dict[str, Any]:
    """Return what a callable reads, but for its arguments, by name."""
    read = _wrapped(fn)
    if inspect.isfunction(fn):
        nonlocals, names, *_ = inspect.getclosurevars(fn)
        own = inspect.signature(fn, follow_wrapped=False).parameters.values()
        return {**read, **names, **nonlocals, **{x.name: x.default for x in own}}
    if read or inspect.isclass(fn):
        return read
    return dict(getattr(fn, '__dict__', {}))  # an object with `__call__`


def _wrapped(fn: Any) -> dict[str, Any]:
    """Return what `functools.partial`, `jax.jit` and their like wrap, as `_read_by`."""
    if isinstance(fn, functools.partial):
        arguments = {f'argument {k}': x for k, x in enumerate(fn.args)}
        return {'module': fn.func, **arguments, **fn.keywords}
    wrapped = None if inspect.isclass(fn) else getattr(fn, '__wrapped__', None)
    return {} if wrapped is None else {'module': wrapped}


def _holds_params(value: Any) -> bool:
    if _is_instance(value, 'flax.linen'):
        return value.scope is not None
    if not _is_instance(value, 'flax.nnx'):
        return False
    nnx = sys.modules['flax.nnx']
    return bool(jax.tree.leaves(nnx.state(value, nnx.Param)))


def is_graph(value: object) -> bool:
    """Return whether a value is an NNX module or optimizer.

    These may hold one variable in several places, which a pytree of JAX may not.
    """
    return _is_instance(value, 'flax.nnx', 'Pytree')


def cell_library(fn: object) -> str:
    """Return 'flax.linen' or 'flax.nnx' if `fn` is a recurrent Flax cell, else ''.

    A cell, or a method of one, which counts too, takes a state and then an item.
    """
    module = module_of(fn)
    libraries = 'flax.linen', 'flax.nnx'
    return next((x for x in libraries if _is_instance(module, x, 'RNNCellBase')), '')


def _is_instance(fn: object, library: str, name: str = 'Module') -> bool:
    class_ = getattr(sys.modules.get(library), name, None)
    return class_ is not None and isinstance(fn, class_)


def _evaluates(keys: Keys) -> bool:
    """Return whether a call is in evaluation mode: some stream has the key `None`."""
    return any(key is None for key in keys.values())


def _draw_error(got: str) -> TypeError:
    """Return the error of a deterministic module that draws a key, as `got` tells."""
    return TypeError(
        f'expected that nothing is drawn with `deterministic=True`, got {got}; let '
        'the module ask its `deterministic` first'
    )


def _state_error(names: Iterable[str], norms: str) -> TypeError:
    """Return the error for a module with state `names`, such as 'batch_stats'.

    `norms` are classes of its library that normalize one row, in place of BatchNorm.
    """
    return TypeError(
        'expected a module of parameters alone, got state beside them, '
        f'{sorted(set(names))}: what calls may write, such as the means of a batch, '
        f'has no meaning where nodes run tile by tile; use {norms} for BatchNorm, put '
        'it behind `model.apply`, or make what is only read a parameter'
    )


# ---- Linen ---------------------------------------------------------------------------

_WANTED = re.compile(r'needs PRNG for "(\w+)"')


def _check_linen(module: Module) -> None:
    """Raise TypeError if a Linen module is bound to parameters or holds an NNX one."""
    if module.scope is not None and not is_module(module.parent):
        name = type(module).__name__
        raise TypeError(
            f'expected a Linen module without parameters, got a {name} bound to some, '
            'which would be made anew: give the module as it was before `bind`, and '
            "`variables['params']` as the layer's parameters"
        )
    for field in dataclasses.fields(module):
        value = getattr(module, field.name, None)
        if _is_instance(value, 'flax.nnx'):
            raise TypeError(
                f'expected modules of Linen in {type(module).__name__}, got the NNX '
                f'module {type(value).__name__} as `{field.name}`, whose parameters '
                'Linen does not see: take one of Linen, or write an NNX module that '
                'calls it'
            )


def _from_linen(module: Module, method: str) -> Called:
    _check_linen(module)
    no_key = sys.modules['flax.errors'].InvalidRngError

    def init(key: jax.Array, *specs: object) -> ArrayTree:
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), specs)
        with _deterministic(module, method, True):
            variables = module.init(key, *zeros, method=method)
        if other := set(variables) - {'params'}:
            raise _state_error(other, 'LayerNorm, RMSNorm or GroupNorm')
        return variables.get('params', {})

    def call(params: ArrayTree, inputs: Sequence[Any], keys: Keys) -> ArrayTree:
        rngs = {name: key for name, key in keys.items() if key is not None}
        try:
            with _deterministic(module, method, _evaluates(keys)):
                return module.apply(
                    {'params': params}, *inputs, rngs=rngs, method=method
                )
        except no_key as error:
            if not _evaluates(keys):
                raise
            raise _draw_error(str(error)) from error

    def draws(
        calling: Callable[..., Any], params: ArrayTree, inputs: Sequence[Any]
    ) -> Streams:
        # Without a key Linen raises and names the stream: add one, trace again. The
        # last trace is that of the layer, which JAX caches.
        names: Streams = ()
        while True:
            keys = [array_spec((2,), 'uint32')] * len(names)
            try:
                jax.eval_shape(calling(names), params, *keys, *inputs)
                return names
            except no_key as error:
                match = _WANTED.search(str(error))
                if match is None or match[1] in names:
                    raise
                names += (match[1],)

    return Called(call, init, draws)


@contextlib.contextmanager
def _deterministic(module: Module, method: str, deterministic: bool) -> Iterator[None]:
    """Set `deterministic` for all Linen modules that are called in a `with` block.

    The `method` of `module` gets an argument `deterministic` or `train` if it has one.
    With `deterministic`, every `Dropout` passes its input on, even if set otherwise;
    without, each gets `deterministic=False` unless its constructor or caller set it.
    """
    flags = {'deterministic': deterministic, 'train': not deterministic}
    is_outermost = True

    def interceptor(
        call: Callable[..., Any], args: Any, options: dict[str, Any], context: Module
    ) -> ArrayTree:
        nonlocal is_outermost
        if is_outermost and context.method_name == method:
            is_outermost = False
            parameters = inspect.signature(getattr(module, method)).parameters
            for name in [*parameters][len(args) :]:  # inputs fill the earlier ones
                if name in flags and getattr(module, name, None) is None:
                    options = {name: flags[name], **options}
        if isinstance(context.module, sys.modules['flax.linen'].Dropout):
            if deterministic:
                return args[0] if args else options['inputs']
            settings = context.module.deterministic, options.get('deterministic')
            if all(x is None for x in (*settings, *args[1:2])):
                options = {**options, 'deterministic': False}
        return call(*args, **options)

    with sys.modules['flax.linen'].intercept_methods(interceptor):
        yield


# ---- NNX -----------------------------------------------------------------------------


def _from_nnx(module: Module, method: str) -> Called:
    nnx = sys.modules['flax.nnx']
    graph, params, streams, others = nnx.split(module, nnx.Param, nnx.RngState, ...)
    if jax.tree.leaves(others):
        # GroupNorm of NNX takes no vector.
        classes = (type(x).__name__ for x in _variables(others))
        raise _state_error(classes, 'LayerNorm or RMSNorm')
    names = _stream_names(module, streams)
    leaves, structure = jax.tree.flatten(streams)

    def run(
        params: ArrayTree, inputs: Sequence[Any], keys: Keys
    ) -> tuple[ArrayTree, set[str]]:
        """Run the module; return its output and the random streams it drew from."""
        arrays = []
        for k, (name, x) in enumerate(zip(names, leaves, strict=True)):
            array, key = x, keys.get(name)
            if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                array = jnp.zeros_like(x)  # a count of draws
            elif key is not None:  # arrays of one stream get different keys
                array = jax.random.fold_in(key, k)
            arrays.append(array)
        merged = nnx.merge(graph, params, jax.tree.unflatten(structure, arrays))
        if _evaluates(keys):
            merged.eval()
        result = getattr(merged, method)(*inputs)
        after = jax.tree.leaves(nnx.state(merged, nnx.RngState))
        # A draw replaces the arrays of its stream in NNX, so identity tells.
        used = zip(names, arrays, after, strict=True)
        return result, {name for name, x, y in used if x is not y}

    def call(params: ArrayTree, inputs: Sequence[Any], keys: Keys) -> ArrayTree:
        result, used = run(params, inputs, keys)
        if used and _evaluates(keys):
            raise _draw_error(f'a draw from {sorted(used)}')
        return result

    def draws(_: object, params: ArrayTree, inputs: Sequence[Any]) -> Streams:
        drawn: set[str] = set()
        run_on = lambda p, x: drawn.update(run(p, x, {})[1])  # noqa: E731
        jax.eval_shape(run_on, params, inputs)
        return tuple(sorted(drawn))

    # An NNX module has had its parameters since it was made: `init` returns these.
    return Called(call, lambda *_: params, draws)


def _variables(state: ArrayTree) -> list[Any]:
    class_ = sys.modules['flax.nnx'].Variable
    return jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, class_))


def _stream_names(module: Module, streams: ArrayTree) -> list[str]:
    """Return the stream, such as 'dropout', of each array of `streams`, RNG state."""
    nnx = sys.modules['flax.nnx']
    # NNX tags a fallback stream 'default'; the Dropout that holds it names the stream
    # that was meant, as its `rng_collection`.
    collections = {
        (*path, 'rngs'): part.rng_collection
        for path, part in nnx.iter_modules(module)
        if isinstance(part, nnx.Dropout)
    }
    paths = [path[:-1] for path, _ in nnx.to_flat_state(streams)]
    tags = [variable.tag for variable in _variables(streams)]
    return [collections.get(path, tag) for path, tag in zip(paths, tags, strict=True)]


def check_shared_variables(modules: Iterable[object]) -> None:
    """Raise TypeError if two NNX modules share a parameter: each would train a copy.

    Values that are no NNX modules, or methods of one, are ignored.
    """
    holders: dict[int, Any] = {}
    for module in map(module_of, modules):
        if not _is_instance(module, 'flax.nnx'):
            continue
        nnx = sys.modules['flax.nnx']
        for path, variable in nnx.iter_graph(module):
            if not isinstance(variable, nnx.Param):
                continue
            other = holders.setdefault(id(variable), module)
            if other is not module:
                names = ' and '.join(type(x).__name__ for x in (other, module))
                raise TypeError(
                    f'expected modules with parameters of their own, got {names} that '
                    f'share one at {".".join(map(str, path))}: make both parts of one '
                    'module, and use its methods, `Function(module.encode)`'
                )
