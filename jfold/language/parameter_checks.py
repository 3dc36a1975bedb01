# SPDX-License-Identifier: Apache-2.0
"""Parameters and arrays from elsewhere, compared with what a model asks for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.typing import DTypeLike

from jfold.base.containers import plain, restored
from jfold.base.errors import short_repr
from jfold.base.memo import memoized
from jfold.blocks.external import shown_rows
from jfold.program.operations import Layer, Program

Struct: TypeAlias = jax.ShapeDtypeStruct
Path: TypeAlias = tuple[Any, ...]  # of keys, as JAX gives them


WIDE = {'int64', 'uint64', 'float64', 'complex128'}


def check_kept(program: Program) -> None:
    """Refuses a program of numbers of 64 bits where JAX would make 32 of them.

    Raises:
      TypeError: it was made where JAX kept them, and here it does not.
    """
    dtype = _wide(program)
    if dtype is not None and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            f'expected JAX to keep {dtype}, as it did when the model was compiled, got '
            'jax_enable_x64 off: run all under `jax.enable_x64(True)`, or compile it '
            'without'
        )


@memoized
def _wide(program: Program) -> np.dtype[Any] | None:
    """A dtype of 64 bits in a program, if there is one."""
    leaves = jax.tree.leaves([layer.params for layer in program.layers])
    dtypes = [x.dtype for x in (*program.types, *leaves)]
    return next((x for x in dtypes if x.name in WIDE), None)


def check_params(layers: Sequence[Layer], params: object) -> None:
    """Compares parameters with those that the layers would draw.

    Raises:
      TypeError: they lack a layer or have others, or those of one have other names,
        shapes or dtypes.
    """
    given = params if isinstance(params, Mapping) else {}
    externals = {layer.name: layer for layer in layers if layer.external}
    for name, layer in externals.items():
        _check_rows(layer, given.get(name))
    known = {x.name: x for x in layers if x.params is not None and not x.external}
    if known and not isinstance(params, Mapping):
        raise TypeError(
            f'expected parameters as a dict by layers, {list(known)}, got '
            f'{short_repr(params)}; {_makes(params)}'
        )
    if missing := [name for name in known if name not in given]:
        raise TypeError(_lacking(missing, list(given), known))
    if others := [x for x in given if x not in known and x not in externals]:
        raise TypeError(
            f'expected parameters of {list(known)} alone, got {others} too: layers of '
            'one name are numbered as the expression meets them, so of another '
            'expression names may stand for others; leave out what is not of this one, '
            'and say `Function(..., name=...)` where several models share layers'
        )
    for name, layer in known.items():
        check_layer(layer, given[name])


def _check_rows(layer: Layer, array: Any) -> None:
    spec: Any = layer.params
    is_array = hasattr(array, 'dtype') and array.ndim > 0
    if is_array and array.shape[1:] == spec.shape[1:] and _has_dtype(array, spec):
        return
    got = 'none' if array is None else f'{short_repr(array)}, which is no array'
    if hasattr(array, 'dtype'):
        got = f'{array.dtype}{list(array.shape)}'
    cast = ''
    if hasattr(array, 'dtype') and not _has_dtype(array, spec):
        cast = f'.astype({spec.dtype.name!r})'
    raise TypeError(
        f'External({layer.name!r}): expected an array {shown_rows(spec)}, got {got}; '
        f'pass `external={{{layer.name!r}: array{cast}}}`'
    )


def with_external(
    layers: Sequence[Layer], params: object, external: Mapping[str, Any] | None
) -> Any:
    """Parameters in the containers that layers have them in, and the arrays of
    externals, by name.

    Raises:
      TypeError: there is no such external, or parameters are not by name.
    """
    params = as_asked(layers, params)
    if external is None:
        return params
    names = [layer.name for layer in layers if layer.external]
    if not isinstance(external, Mapping) or set(external) - set(names):
        got = list(external) if isinstance(external, Mapping) else short_repr(external)
        raise TypeError(
            f'expected `external` as a dict of arrays by name, {names}, got {got}'
        )
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(
            f'expected parameters as a dict by layers, got {short_repr(params)}; '
            '`model.init(key)` makes them'
        )
    return {**(params or {}), **external}


def as_asked(layers: Iterable[Layer], params: Any) -> Any:
    """Parameters in the containers that layers have them in, whatever they are in: an
    NNX module has its own, and what a checkpoint gives is in dicts."""
    given = params if isinstance(params, Mapping) else {}
    found = {
        layer.name: _in_containers_of(layer.params, given[layer.name])
        for layer in layers
        if layer.name in given
        # What one knows at once, for all that comes from `Model.init`.
        and not isinstance(given[layer.name], type(layer.params) | jax.Array)
    }
    return {**params, **found} if found else params


def _in_containers_of(like: Any, params: Any) -> object:
    """The leaves of `params`, if the same keys lead to them; else `params`."""
    content = plain(params)
    structure: Any = jax.tree.structure(content)
    if structure != jax.tree.structure(plain(like)):
        return params
    return restored(like)(jax.tree.leaves(content))


def _lacking(missing: list[str], given: list[str], known: Container[str]) -> str:
    """Which layers are missing, and which may stand in their place."""
    names = ', '.join(map(repr, missing))
    others = ', '.join(repr(name) for name in given if name not in known)
    strange = f', of which the model has no {others}' if others else ''
    if given == ['params']:
        strange = ": pass `variables['params']` of Linen, `fold.arrays` of NNX"
    return (
        f'expected parameters for layer{"s" * (len(missing) > 1)} {names}, got those '
        f'of {given}{strange}; `model.init(key)` makes them'
    )


def check_layer(layer: Layer, params: object) -> None:
    """Compares the parameters of one layer, or the array that is passed for it.

    Raises:
      TypeError: they differ.
    """
    if layer.external:
        _check_rows(layer, params)
        return
    leaves, tree = jax.tree.flatten(params)
    expected, structure = layer.leaves
    if tree == structure and all(map(_is_like, leaves, expected)):
        return
    want, got = _by_path(layer.params), _by_path(params)
    if want.keys() != got.keys():
        given = f'them at {_places(got)}' if got else 'none'
        raise TypeError(
            f'expected parameters of layer {layer.name!r} at {_places(want)}, got '
            f'{given}; {_makes(params)}'
        )
    for path, spec in want.items():
        if not _is_like(got[path], spec):
            raise TypeError(_unlike(layer.name, path, spec, got[path]))


def _makes(params: object) -> str:
    """What makes parameters, instead of these."""
    is_nnx = any(x.__module__.startswith('flax.nnx') for x in type(params).__mro__)
    return 'pass `fold.arrays`' if is_nnx else '`model.init(key)` makes them'


def _places(paths: Iterable[Path]) -> str:
    return ', '.join(jax.tree_util.keystr(path) or '()' for path in paths)


def _by_path(params: object) -> dict[Path, Any]:
    """Leaves by what leads to them, whatever kinds of dicts and lists hold them."""
    return dict(jax.tree_util.tree_leaves_with_path(params))


def _is_like(leaf: Any, spec: Struct) -> bool:
    """Whether an array has a shape and, once JAX holds it, a dtype."""
    is_array = hasattr(leaf, 'dtype') and leaf.shape == spec.shape
    return is_array and _has_dtype(leaf, spec)


def _has_dtype(array: Any, spec: Struct) -> bool:
    if array.dtype == spec.dtype:
        return True
    # What JAX has already, it leaves as it is.
    return not isinstance(array, jax.Array) and bool(
        _as_held(array.dtype) == spec.dtype
    )


def _as_held(dtype: DTypeLike) -> object:
    """What JAX, as configured, makes of an array of NumPy's."""
    return jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)


def _unlike(name: str, path: Path, spec: Struct, leaf: Any) -> str:
    got, hint = f'{short_repr(leaf)}, which is no array', ''
    if hasattr(leaf, 'dtype'):
        got = f'{leaf.dtype}{list(leaf.shape)}'
        if leaf.dtype != spec.dtype:
            hint = ': a function may compute in another dtype, by `astype` inside'
    where = f' at {jax.tree_util.keystr(path)}' if path else ''
    return (
        f'expected parameters of layer {name!r}{where} as {spec.dtype}'
        f'{list(spec.shape)}, got {got}; `model.init(key)` makes them{hint}'
    )
