# SPDX-License-Identifier: Apache-2.0
"""Rules of primitives: what NumPy does for them, with floats in double precision.

A rule is made once for each equation, `rule(equation) -> function of arrays`. What has
no rule is given to JAX, in double precision.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
Rule = Callable[[Any], Callable[..., Any]]

given_to_jax: Counter[str] = Counter()  # primitives without a rule


def widened(x: Any) -> Array:
    """A NumPy array, with floats in double precision; PRNG keys stay what they are."""
    dtype = jnp.asarray(x).dtype if not hasattr(x, 'dtype') else x.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return x
    if jnp.issubdtype(dtype, np.inexact):
        wide = np.complex128 if jnp.issubdtype(dtype, np.complexfloating) else float
        return np.asarray(x).astype(wide, copy=False)
    return np.asarray(x)


def kept_dtype(dtype: Any) -> Any:
    """The dtype in which values of a dtype are kept; `None` for PRNG keys."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return None
    if jnp.issubdtype(dtype, np.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(float) if jnp.issubdtype(dtype, np.inexact) else np.dtype(dtype)


# ---- what is left to JAX -------------------------------------------------------------


def by_jax(equation: Any) -> Callable[..., Any]:
    """The primitive itself, on double precision; on what it was traced for if that
    shows in its parameters."""
    given_to_jax[equation.primitive.name] += 1
    params = dict(equation.params)
    if params.get('preferred_element_type') is not None:
        params['preferred_element_type'] = None
    typed = {'jaxpr', 'update_jaxpr'}.intersection(params)
    exact = not typed and 'bitcast' not in equation.primitive.name
    dtypes = [v.aval.dtype for v in equation.invars]

    def bound(*values: Any) -> Any:
        if not exact:
            values = tuple(map(_narrowed, values, dtypes))
        with jax.enable_x64(True):
            arrays = [jnp.asarray(x) for x in values]
            made = equation.primitive.bind(*arrays, **params)
        return jax.tree.map(widened, made)

    return bound


def _narrowed(value: Any, dtype: Any) -> Any:
    return value if kept_dtype(dtype) is None else np.asarray(value).astype(dtype)


# ---- indexing ------------------------------------------------------------------------


def _starts(indices: Any, shape: Any, sizes: Any) -> tuple[slice, ...]:
    """Where a slice lies: clamped, as XLA does."""
    firsts = (
        min(max(int(i), 0), whole - size)
        for i, whole, size in zip(indices, shape, sizes, strict=True)
    )
    return tuple(slice(i, i + size) for i, size in zip(firsts, sizes, strict=True))


def _dynamic_slice(equation: Any) -> Callable[..., Any]:
    sizes = equation.params['slice_sizes']
    return lambda x, *indices: x[_starts(indices, x.shape, sizes)].copy()


def _dynamic_update_slice(equation: Any) -> Callable[..., Any]:
    def update(x: Any, part: Any, *indices: Any) -> Any:
        x = x.copy()
        x[_starts(indices, x.shape, part.shape)] = part
        return x

    return update


def _gather(equation: Any) -> Callable[..., Any]:
    """Rows of an array, in bounds as promised; anything else is left to JAX."""
    params = equation.params
    numbers, mode = params['dimension_numbers'], params['mode']
    shape = equation.invars[0].aval.shape
    wanted = equation.invars[1].aval.shape[:-1]
    of_rows = numbers.collapsed_slice_dims == (0,) == numbers.start_index_map
    of_rows &= params['slice_sizes'] == (1, *shape[1:])
    last = range(len(wanted), len(wanted) + len(shape) - 1)
    promised = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    if not of_rows or numbers.offset_dims != tuple(last) or mode != promised:
        return by_jax(equation)

    def rows(x: Any, indices: Any) -> Any:
        chosen = indices[..., 0]
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(x):
            raise AssertionError(f'expected rows of {len(x)}, got {chosen}')
        return x[chosen]

    return rows


def _scatter_add(equation: Any) -> Callable[..., Any]:
    """Of whole rows; else JAX's function of that name, which takes any precision."""
    params = equation.params
    numbers = params['dimension_numbers']
    whole, indices, updates = (v.aval.shape for v in equation.invars)
    first = len(indices) - 1
    windows = tuple(range(first, len(updates)))
    of_rows = (
        numbers.inserted_window_dims == (0,) == numbers.scatter_dims_to_operand_dims
    )
    of_rows &= params['mode'] != jax.lax.GatherScatterMode.CLIP
    if of_rows and (numbers.update_window_dims, updates[first:]) == (
        windows,
        whole[1:],
    ):
        return _add_rows
    return _scatter(jax.lax.scatter_add)(equation)


def _scatter(function: Callable[..., Any]) -> Rule:
    """JAX's function, in double precision: gradients compare results and inputs."""

    def rule(equation: Any) -> Callable[..., Any]:
        names = 'dimension_numbers', 'indices_are_sorted', 'unique_indices', 'mode'
        options = {name: equation.params[name] for name in names}

        def scatter(*arrays: Any) -> Any:
            with jax.enable_x64(True):
                return widened(function(*map(jnp.asarray, arrays), **options))

        return scatter

    return rule


def _add_rows(x: Any, indices: Any, updates: Any) -> Any:
    chosen = indices[..., 0]
    inside = (chosen >= 0) & (chosen < len(x))
    x = x.copy()
    np.add.at(x, chosen[inside], updates[inside])
    return x


def _pad(equation: Any) -> Callable[..., Any]:
    padding = equation.params['padding_config']
    if any(low < 0 or high < 0 or inner for low, high, inner in padding):
        return by_jax(equation)
    widths = [(low, high) for low, high, _ in padding]
    return lambda x, fill: np.pad(x, widths, constant_values=fill)


def _slice(equation: Any) -> Callable[..., Any]:
    params = equation.params
    firsts, ends = params['start_indices'], params['limit_indices']
    strides = params['strides'] or (1,) * len(firsts)
    part = tuple(map(slice, firsts, ends, strides))
    return lambda x: x[part]


def _split(equation: Any) -> Callable[..., Any]:
    cuts = np.cumsum(equation.params['sizes'])[:-1]
    return lambda x: np.split(x, cuts, equation.params['axis'])


# ---- shapes --------------------------------------------------------------------------


def _broadcast(equation: Any) -> Callable[..., Any]:
    shape, axes = equation.params['shape'], equation.params['broadcast_dimensions']

    def broadcast(x: Any) -> Any:
        kept = [1] * len(shape)
        for axis, size in zip(axes, np.shape(x), strict=True):
            kept[axis] = size
        return np.broadcast_to(np.reshape(x, kept), shape)

    return broadcast


def _iota(equation: Any) -> Callable[..., Any]:
    shape, axis = equation.params['shape'], equation.params['dimension']
    numbers = np.arange(shape[axis])
    numbers = numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return lambda: np.broadcast_to(numbers, shape)


def _shaped(equation: Any) -> Callable[..., Any]:
    shape = equation.outvars[0].aval.shape
    return lambda x: np.reshape(x, shape)


def _reshape(equation: Any) -> Callable[..., Any]:
    order, shaped = equation.params['dimensions'], _shaped(equation)
    # The axes may be read in another order.
    return shaped if order is None else lambda x: shaped(np.transpose(x, order))


def _by(name: str, function: Callable[..., Any]) -> Rule:
    """A function of one parameter of the equation, and of arrays."""
    return lambda equation: functools.partial(function, equation.params[name])


# ---- arithmetic ----------------------------------------------------------------------


def _dot(equation: Any) -> Callable[..., Any]:
    (left, right), (left_batch, right_batch) = equation.params['dimension_numbers']
    first, second = (len(v.aval.shape) for v in equation.invars)
    names = iter(range(first + second))
    one, two = [-1] * first, [-1] * second
    for i, j in (*zip(left_batch, right_batch), *zip(left, right)):  # noqa: B905
        one[i] = two[j] = next(names)
    one, two = ([next(names) if n < 0 else n for n in part] for part in (one, two))
    batch = [one[i] for i in left_batch]
    shared = set(one) & set(two)
    free = [n for n in (*one, *two) if n not in shared]
    return lambda x, y: np.einsum(x, one, y, two, [*batch, *free])


def _convert(equation: Any) -> Callable[..., Any]:
    inexact = jnp.issubdtype(equation.params['new_dtype'], np.inexact)
    real = not jnp.issubdtype(equation.params['new_dtype'], np.complexfloating)
    target = equation.params['new_dtype']

    def convert(x: Any) -> Any:
        x = np.real(x) if real else x
        return x if inexact else np.asarray(x).astype(target)

    return convert


def _select(which: Any, *cases: Any) -> Any:
    if which.dtype == bool:
        return np.where(which, cases[1], cases[0])
    # Under `vmap` nested branches that are not taken are given numbers of others.
    return np.choose(which, cases, mode='clip')


def _divide(equation: Any) -> Callable[..., Any]:
    inexact = jnp.issubdtype(equation.invars[0].aval.dtype, np.inexact)
    return np.divide if inexact else by_jax(equation)


def _cumulative(function: Any) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        axis, reverse = equation.params['axis'], equation.params['reverse']

        def accumulate(x: Any) -> Any:
            x = np.flip(x, axis) if reverse else x
            made = function.accumulate(x, axis)
            return np.flip(made, axis) if reverse else made

        return accumulate

    return rule


def _plain(function: Callable[..., Any]) -> Rule:
    return lambda equation: function


def _same(*values: Any) -> Any:
    return values[0]


# By the names that they have in NumPy.
NAMED = 'abs ceil cos cosh exp exp2 expm1 floor log log1p sign sin sinh sqrt tan tanh'
NAMES = {
    **{name: name for name in NAMED.split()},
    **{'add': 'add', 'add_any': 'add', 'sub': 'subtract', 'mul': 'multiply'},
    **{'rem': 'fmod', 'pow': 'power', 'neg': 'negative', 'atan2': 'arctan2'},
    **{'max': 'maximum', 'min': 'minimum', 'is_finite': 'isfinite', 'not': 'invert'},
    **{'and': 'bitwise_and', 'or': 'bitwise_or', 'xor': 'bitwise_xor'},
    **{'eq': 'equal', 'ne': 'not_equal', 'lt': 'less', 'le': 'less_equal'},
    **{'gt': 'greater', 'ge': 'greater_equal'},
}
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, function) for name, function in NAMES.items()},
    'clamp': lambda low, x, high: np.minimum(np.maximum(x, low), high),
    'copy': _same,
    'copy_p': _same,
    'erf': np.vectorize(math.erf, otypes=[float]),
    'logistic': lambda x: np.exp(-np.logaddexp(0, -x)),
    'optimization_barrier': lambda *x: list(x),
    'reduce_precision': _same,
    'rsqrt': lambda x: 1 / np.sqrt(x),
    'select_n': _select,
    'square': lambda x: x * x,
    'stop_gradient': _same,
}
REDUCTIONS = {'and': 'all', 'max': 'max', 'min': 'min', 'or': 'any'}
REDUCTIONS |= {'prod': 'prod', 'sum': 'sum'}

PRIMITIVES: dict[str, Rule] = {
    **{name: _plain(function) for name, function in ELEMENTWISE.items()},
    **{
        f'reduce_{name}': _by('axes', lambda axes, x, f=f: getattr(np, f)(x, axes))
        for name, f in REDUCTIONS.items()
    },
    'argmax': _by('axes', lambda axes, x: np.argmax(x, *axes)),
    'argmin': _by('axes', lambda axes, x: np.argmin(x, *axes)),
    'broadcast_in_dim': _broadcast,
    'concatenate': _by('dimension', lambda axis, *x: np.concatenate(x, axis)),
    'convert_element_type': _convert,
    'cummax': _cumulative(np.maximum),
    'cumprod': _cumulative(np.multiply),
    'cumsum': _cumulative(np.add),
    'div': _divide,
    'dot_general': _dot,
    'dynamic_slice': _dynamic_slice,
    'dynamic_update_slice': _dynamic_update_slice,
    'expand_dims': _shaped,
    'gather': _gather,
    'integer_pow': _by('y', lambda y, x: x**y),
    'iota': _iota,
    'pad': _pad,
    'reshape': _reshape,
    'rev': _by('dimensions', lambda axes, x: np.flip(x, axes)),
    'scatter': _scatter(jax.lax.scatter),
    'scatter-add': _scatter_add,
    'scatter-max': _scatter(jax.lax.scatter_max),
    'scatter-min': _scatter(jax.lax.scatter_min),
    'slice': _slice,
    'split': _split,
    'squeeze': _shaped,
    'stack': _by('axis', lambda axis, *x: np.stack(x, axis)),
    'tile': _by('reps', lambda reps, x: np.tile(x, reps)),
    'transpose': _by('permutation', lambda axes, x: np.transpose(x, axes)),
    'unstack': _by('axis', lambda axis, x: list(np.moveaxis(x, axis, 0))),
}
