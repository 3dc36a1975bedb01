# SPDX-License-Identifier: Apache-2.0
"""Checks of parameters and external arrays against the layers of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jfold.base.errors import short_repr
from jfold.base.memo import memoized
from jfold.base.structs import key_name, leaf_restorer, plain_containers
from jfold.blocks.inputs import shown_rows
from jfold.program.operations import Layer, Program

Struct: TypeAlias = jax.ShapeDtypeStruct
Path: TypeAlias = tuple[Any, ...]  # the key path of a leaf in a pytree
INIT = '`model.init(key)` makes them'
WIDE = {'int64', 'uint64', 'float64', 'complex128'}


def check_kept(program: Program) -> None:
    """Raise TypeError if a program has 64-bit dtypes and `jax_enable_x64` is now off.

    The setting was on when the program was compiled. JAX would silently use 32 bits.
    """
    dtype = _wide_dtype(program)
    if dtype is not None and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            f'expected JAX to keep {dtype}, as it did when the model was compiled, got '
            'jax_enable_x64 off: run all under `jax.enable_x64(True)`, or compile it '
            'without'
        )


@memoized
def _wide_dtype(program: Program) -> np.dtype[Any] | None:
    """Return a 64-bit dtype of a program's types or parameters; `None` without any."""
    leaves = jax.tree.leaves([layer.params for layer in program.layers])
    dtypes = [x.dtype for x in (*program.types, *leaves)]
    return next((x for x in dtypes if x.name in WIDE), None)


def check_params(layers: Sequence[Layer], params: object, advice: str = INIT) -> None:
    """Check `params`, a dict by layer name, which also has each `External` array.

    `advice` says where right ones are.

    Raises:
      TypeError: layers are missing or unknown, or parameters differ in names, shapes or
        dtypes from the result of the layer's `init`, or an external array does not fit.
    """
    by_layer = params if isinstance(params, Mapping) else {}
    externals = {layer.name: layer for layer in layers if layer.external}
    for name, layer in externals.items():
        _check_rows(layer, by_layer.get(name))
    known = {x.name: x for x in layers if x.params is not None and not x.external}
    if known and not isinstance(params, Mapping):
        raise TypeError(
            f'expected parameters as a dict by layers, {list(known)}, got '
            f'{short_repr(params)}; {_advice(params, advice)}'
        )
    if missing := [name for name in known if name not in by_layer]:
        names = ', '.join(map(repr, missing))
        strange = ', '.join(repr(name) for name in by_layer if name not in known)
        of_strange = f', of which the model has no {strange}' if strange else ''
        if [*by_layer] == ['params']:
            of_strange = ": pass `variables['params']` of Linen, `fold.arrays` of NNX"
        raise TypeError(
            f'expected parameters for layer{"s" * (len(missing) > 1)} {names}, got '
            f'those of {[*by_layer]}{of_strange}; {advice}'
        )
    if unknown := [x for x in by_layer if x not in known and x not in externals]:
        raise TypeError(
            f'expected parameters of {list(known)} alone, got {unknown} too: layers of '
            'one name are numbered as the expression meets them, so of another '
            'expression names may stand for others; leave out what is not of this one, '
            'and say `Function(..., name=...)` where several models share layers'
        )
    for name, layer in known.items():
        _check_layer(layer, by_layer[name], advice)


def _check_rows(layer: Layer, array: Any) -> None:
    spec: Any = layer.params
    is_array = hasattr(array, 'dtype') and array.ndim > 0
    if is_array and array.shape[1:] == spec.shape[1:] and _has_dtype(array, spec):
        return
    got = 'none' if array is None else _shown(array)
    cast = ''
    if hasattr(array, 'dtype') and not _has_dtype(array, spec):
        cast = f'.astype({spec.dtype.name!r})'
    passed = f'array{cast}'
    dtype = getattr(array, 'dtype', spec.dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        passed = 'jax.random.key_data(array)'
    raise TypeError(
        f'External({layer.name!r}): expected an array {shown_rows(spec)}, got {got}; '
        f'pass `external={{{layer.name!r}: {passed}}}`'
    )


def checked_params(
    layers: Sequence[Layer], params: Any, external: Mapping[str, Any] | None = None
) -> Any:
    """Return parameters by layer name: those in `params`, and the arrays in `external`.

    They are put into the pytree containers that the layers expect: parameters of an NNX
    module are in containers of NNX, but in dicts when read from a checkpoint.

    Raises:
      TypeError: `check_params` does, or the name of an external array is unknown.
    """
    if type(params) is not dict and isinstance(params, Mapping):
        if jax.tree_util.all_leaves([params]):  # of a class that JAX does not know
            params = {**params}
    by_layer = params if isinstance(params, Mapping) else {}
    changed = {
        layer.name: in_containers_of(layer.params, by_layer[layer.name])
        for layer in layers
        if layer.name in by_layer
        # A quick test: dicts of `Model.init` are the right containers already.
        and not isinstance(by_layer[layer.name], jax.Array)
        and not type(by_layer[layer.name]) is type(layer.params) is dict
    }
    params = {**params, **changed} if changed else params
    if external is not None:
        names = [layer.name for layer in layers if layer.external]
        is_dict = isinstance(external, Mapping)
        if not is_dict or set(external) - set(names):
            got = list(external) if is_dict else short_repr(external)
            raise TypeError(
                f'expected `external` as a dict of arrays by name, {names}, got {got}'
            )
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(
                f'expected parameters as a dict by layers, got {short_repr(params)}; '
                f'{INIT}'
            )
        params = {**(params or {}), **external}
    check_params(layers, params)
    return params


def in_containers_of(like: Any, params: Any) -> object:
    """Return `params` in the pytree containers of `like`; unchanged if keys differ.

    Keys are compared as text: an NNX module has its layers in lists, and `jf.nnx.Fold`
    in dicts.
    """
    structure: Any = jax.tree.structure(params)
    if structure == jax.tree.structure(like):
        return params
    got, want = map(_by_names, (params, like))
    if got.keys() != want.keys():
        return params
    return leaf_restorer(like)([got[names] for names in want])


def _by_names(params: object) -> dict[tuple[str, ...], Any]:
    """Return the leaves of pytree `params`, keyed by the names in their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(plain_containers(params))
    return {tuple(str(key_name(key)) for key in path): leaf for path, leaf in leaves}


def _check_layer(layer: Layer, params: object, advice: str) -> None:
    """Raise TypeError unless parameters fit one layer."""
    leaves, tree = jax.tree.flatten(params)
    expected, structure = layer.leaves
    if tree == structure and all(map(_fits, leaves, expected)):
        return
    want, got = _by_path(layer.params), _by_path(params)
    if want.keys() != got.keys():
        shown = f'them at {_places(got)}' if got else 'none'
        raise TypeError(
            f'expected parameters of layer {layer.name!r} at {_places(want)}, got '
            f'{shown}; {_advice(params, advice)}'
        )
    for path, spec in want.items():
        leaf, hint = got[path], ''
        if _fits(leaf, spec):
            continue
        if hasattr(leaf, 'dtype') and leaf.dtype != spec.dtype:
            hint = ': a function may compute in another dtype, by `astype` inside'
            if str(leaf.dtype) in WIDE:
                hint = f', under the `jax_enable_x64` of `jfold.compile`{hint}'
        where = f' at {jax.tree_util.keystr(path)}' if path else ''
        raise TypeError(
            f'expected parameters of layer {layer.name!r}{where} as {spec.dtype}'
            f'{list(spec.shape)}, got {_shown(leaf)}; {advice}{hint}'
        )


def _advice(params: object, advice: str) -> str:
    """Return `advice`, or better advice for wrong `params` of NNX."""
    is_nnx = any(x.__module__.startswith('flax.nnx') for x in type(params).__mro__)
    return 'pass `fold.arrays`' if is_nnx else advice


def _places(paths: Iterable[Path]) -> str:
    return ', '.join(jax.tree_util.keystr(path) or '()' for path in paths)


def _by_path(params: object) -> dict[Path, Any]:
    """Return the leaves of pytree `params`, keyed by the key paths of JAX."""
    return dict(jax.tree_util.tree_leaves_with_path(params))


def _fits(leaf: Any, spec: Struct) -> bool:
    """Return whether `leaf` is an array that in JAX has `spec`'s shape and dtype."""
    is_array = hasattr(leaf, 'dtype') and leaf.shape == spec.shape
    return is_array and _has_dtype(leaf, spec)


def _has_dtype(array: Any, spec: Struct) -> bool:
    if array.dtype == spec.dtype:
        return True
    if isinstance(array, jax.Array):
        return False
    # NumPy's dtypes are canonicalized on their way into JAX, those of JAX are not.
    held = jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)
    return bool(held == spec.dtype)


def _shown(leaf: Any) -> str:
    """Return text for errors: dtype and shape of array `leaf`, of others a `repr`."""
    if hasattr(leaf, 'dtype'):
        return f'{leaf.dtype}{list(leaf.shape)}'
    return f'{short_repr(leaf)}, which is no array'
