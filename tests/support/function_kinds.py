# SPDX-License-Identifier: Apache-2.0
"""Kinds of functions with parameters: what people put into a `Function`.

Each takes parameters, by their names in `SHAPES`, and a vector x [n], n even, and gives
a vector [n] or, where `several`, a tuple that begins with one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Call = Callable[[Any, Any], Any]
Rng = np.random.Generator
ALL = ('float32', 'float64', 'bfloat16')
WIDE = ('float32', 'float64')  # no bfloat16: steps at a rounding, or no such kernel


@dataclass(frozen=True, eq=False)
class Kind:
    """A function with parameters.

    Attributes:
      text: an expression that makes it again, in the names of `functions`.
      fn: `fn(prepared, x)`.
      init: `init(rng, spec of x) -> params`.
      prepare: `prepare(params) -> prepared`, computed once a step.
      reverse: whether it has a reverse mode.
      several: whether it gives a tuple.
      dtypes: that it works in.
      linear: whether all its rules are linear in the cotangent; of one that is not, it
        matters how often it runs, so nothing may run it for rows that want none.
      zero: whether its rules take a cotangent of zero.
    """

    text: str
    fn: Call
    init: Callable[[Rng, Any], Any]
    prepare: Callable[[Any], Any] = lambda params: params
    reverse: bool = True
    several: bool = False
    dtypes: tuple[str, ...] = ALL
    linear: bool = True
    zero: bool = True

    @property
    def prepares(self) -> bool:
        """Whether there is something to compute once a step."""
        return self.prepare is not Kind.prepare

    def __call__(self, params: Any, x: Any) -> Any:
        """The whole function."""
        return self.fn(self.prepare(params), x)

    def __repr__(self) -> str:
        return self.text


SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    'w': lambda n: (n, n),
    'u': lambda n: (n, n),
    'wide': lambda n: (2 * n, n),
    'cube': lambda n: (n, n, n),
    'a': lambda n: (n,),
    'b': lambda n: (n,),
    's': lambda n: (),
    't': lambda n: (3,),
    'empty': lambda n: (0, n),
}


def draw(name: str, rng: Rng, n: int, dtype: Any) -> Any:
    """A parameter by name."""
    if name == 'order':
        return jnp.asarray(rng.permutation(n))
    if name == 'flags':
        return jnp.arange(n) % 2 == 0
    if name == 'nested':
        a, b, s = (draw(x, rng, n, dtype) for x in 'abs')
        return {'pair': (a, [b]), 'none': None, 'inner': {'s': s}}
    return jnp.asarray(0.6 * rng.standard_normal(SHAPES[name](n)), dtype)


def draw_all(names: list[str], rng: Rng, spec: Any) -> dict[str, Any]:
    """Parameters by name, for a vector of a type."""
    return {name: draw(name, rng, *spec.shape, spec.dtype) for name in names}


KINDS: dict[str, Kind] = {}


def names_of(fn: Callable[..., Any]) -> list[str]:
    """The names of its arguments."""
    return [*inspect.signature(fn).parameters]


def by_name(fn: Callable[..., Any]) -> Call:
    """A function of parameters, by their names, and of x as one of a dict and x."""
    *names, _ = names_of(fn)
    return lambda p, x: fn(*(p[name] for name in names), x)


def family(
    fns: dict[str, Callable[..., Any]],
    prepare: Callable[..., Any] | None = None,
    **options: Any,
) -> None:
    """Adds kinds to the table, of functions of parameters, by their names, and of x;
    `prepare` makes a dict of these, of parameters by their names."""
    if prepare is not None:
        options['prepare'] = lambda p: prepare(**p)
    for name, fn in fns.items():
        assert name not in KINDS, name
        drawn = names_of(fn)[:-1] if prepare is None else names_of(prepare)
        init = functools.partial(draw_all, drawn)
        KINDS[name] = Kind(f'K[{name!r}]', by_name(fn), init, **options)


# ---- products ------------------------------------------------------------------------

CONSTANT = np.cos(np.arange(4096))


def constant(x: Any, *shape: int) -> Any:
    """Fixed numbers of a shape."""
    return jnp.asarray(CONSTANT[: int(np.prod(shape))].reshape(shape), x.dtype)


def dot(left: Any, right: Any, axes: Any, **options: Any) -> Any:
    """`lax.dot_general` without batches."""
    return lax.dot_general(left, right, (axes, ((), ())), **options)


family(
    {
        'w @ x': lambda w, x: w @ x,
        'x @ w': lambda w, x: x @ w,
        'w.T @ x': lambda w, x: w.T @ x,
        'x @ w.T': lambda w, x: x @ w.T,
        'w @ x + b': lambda w, b, x: jnp.tanh(w @ x + b),
        'einsum of three': lambda w, a, x: jnp.einsum('ij,j,i->j', w, x, a),
        'tensordot': lambda w, x: jnp.tensordot(w, x, ((0,), (0,))),
        'outer': lambda a, b, x: jnp.outer(x, a) @ b,
        'bilinear': lambda cube, x: jnp.einsum('i,ijk,k->j', x, cube, x),
        'two products': lambda w, u, x: w @ jnp.tanh(u @ x),
        'product of products': lambda w, u, x: (w @ x) * (u @ x),
        'quadratic form': lambda w, x: x * (x @ w @ x),
        'product of parameters': lambda w, u, x: (w @ u) @ x,
        'gram matrix': lambda w, x: (w.T @ w) @ x,
        'matrix of x': lambda a, x: (square(x) @ square(x).T @ square(x)).ravel() * a,
        'matrix of x and w': lambda w, x: (w[:2] @ jnp.outer(x, x))[0],
        'batched product': lambda w, cube, x: jnp.einsum('bij,bj->b', cube, w * x),
        'matmul of rows': lambda w, a, x: (jnp.stack([x, a * x]) @ w).sum(0),
        'long input': lambda wide, x: jnp.concatenate([x, x * x]) @ wide,
        'wide product': lambda wide, x: (wide @ x).reshape(2, -1).sum(0),
        'product with a constant': lambda s, x: s * (constant(x, x.size, x.size) @ x),
        'masked matrix': lambda w, x: jnp.tril(w) @ x,
        'scaled matrix': lambda w, x: (w / jnp.linalg.norm(w)) @ (2 * x),
        'same matrix twice': lambda w, x: w @ jnp.sin(w @ x),
        'matrix and its transpose': lambda w, x: w.T @ jnp.sin(w @ x),
        'highest precision': lambda w, x: jnp.matmul(w, x, precision='highest'),
        'wider sum': lambda w, x: dot(
            w,
            x,
            ((1,), (0,)),
            preferred_element_type=jnp.promote_types(x.dtype, 'float32'),
        ).astype(x.dtype),
        'two axes summed': lambda cube, a, x: dot(
            cube, jnp.outer(x, a), ((0, 1), (0, 1))
        ),
        'attention': lambda w, u, a, x: (
            jax.nn.softmax(w @ jnp.outer(x, a), 0) @ (u @ x)
        ),
        'product of nothing': lambda empty, x: x + x[:0] @ empty,
    }
)


def square(x: Any) -> Any:
    """A vector [n] as a matrix [2, n / 2]."""
    return x.reshape(2, -1)


# ---- one number at a time ------------------------------------------------------------

family(
    {
        'gelu': lambda a, x: jax.nn.gelu(a * x),
        'power': lambda a, x: (1 + x * x) ** a,
        'integer power': lambda a, x: (a * x) ** 3,
        'quotient': lambda a, x: x / (2 + jnp.sin(a + x)),
        'arctan2': lambda a, x: jnp.arctan2(x, 2 + jnp.abs(a)),
        'lgamma': lambda s, x: lax.lgamma(3 + jnp.tanh(x)) * s,
        'numbers alone': lambda x: jnp.sin(3 * x) - 0.5,
        'identity': lambda x: x,
        'scalar product': lambda s, x: s * x,
    }
)
family(
    {
        'relu': lambda a, x: jax.nn.relu(x + a),
        'clip': lambda s, x: jnp.clip(x, -0.3, s + 0.5),
        'remainder': lambda a, x: jnp.remainder(3 * x, 1.0) * a,
        'rounded': lambda a, x: jnp.round(4 * x) * a + x,
        'bits': lambda a, x: x * (1 + sign_bit(x)) * a,
        'nan_to_num': lambda a, x: jnp.nan_to_num(jnp.where(x > 0, x, jnp.nan)) * a,
    },
    dtypes=WIDE,
)


def sign_bit(x: Any) -> Any:
    """Of a float, as an integer; no bit that roundings decide."""
    bits = 8 * x.dtype.itemsize
    return lax.bitcast_convert_type(x, jnp.dtype(f'uint{bits}')) >> (bits - 1)


# ---- reductions ----------------------------------------------------------------------


family(
    {
        'sum': lambda a, x: x * a.sum() + x.sum(),
        'layer norm': lambda a, b, x: (
            (x - x.mean()) * lax.rsqrt(x.var() + 1e-2) * a + b
        ),
        'product of all': lambda a, x: a * jnp.prod(1 + 0.3 * x),
        'softmax': lambda a, x: a * jax.nn.softmax(x),
        'cumsum': lambda a, x: jnp.cumsum(x * a),
        'cumlogsumexp': lambda a, x: lax.cumlogsumexp(x) * a,
        'reduction of a matrix': lambda w, x: (w * x).sum(1),
    }
)
family(
    {
        'max': lambda a, x: x * a - x.max(),
        'cummax': lambda a, x: lax.cummax(x) * a,
        'all and any': lambda a, x: jnp.where((x > 0).all() | (x < -0.2).any(), x, a),
        'max pool': lambda a, x: lax.reduce_window(
            x * a, -jnp.inf, lax.max, (2,), (1,), 'SAME'
        ),
        'argmax': lambda a, x: x * a[jnp.argmax(x)],
        'custom reduction': lambda a, x: (
            a
            * x
            * lax.reduce(lax.stop_gradient(x), jnp.zeros((), x.dtype), lax.max, (0,))
        ),
    },
    dtypes=WIDE,
)

# ---- gathers and scatters ------------------------------------------------------------


def place(x: Any) -> Any:
    """An index that depends on the numbers."""
    return jnp.argmax(x)


family(
    {
        'permuted': lambda a, order, x: x[order] * a,
        'reversed': lambda a, x: x[::-1] * a,
        'added at': lambda a, order, x: x.at[order].add(a * x),
        'multiplied at': lambda a, x: x.at[1:].mul(a[1:], unique_indices=True),
        'set at': lambda a, x: a.at[:2].set(x[:2]),
        'segment sum': lambda a, x: jax.ops.segment_sum(
            x * a, jnp.arange(x.size) // 2, x.size
        ),
        'padded': lambda a, x: jnp.pad(x, (1, 2), constant_values=0.5)[2:-1] * a,
        'diagonal': lambda w, a, x: jnp.diag(jnp.outer(x, a)) + jnp.diag(w),
        'twice the same row': lambda w, x: w[jnp.zeros(2, int)].sum(0) * x,
        'transposed': lambda cube, x: jnp.moveaxis(cube * x, 2, 0).sum((1, 2)),
    }
)
family(
    {
        'row of a table': lambda w, x: w[place(x)] + x,
        'take_along_axis': lambda w, x: (
            jnp.take_along_axis(w, place(x)[None, None], 1)[0, 0] * x
        ),
        'gather beyond the end': lambda a, x: (
            x * jnp.take(a, place(x) + 2, mode='fill', fill_value=0.5)
        ),
        'dynamic slice': lambda a, x: jnp.tile(
            lax.dynamic_slice(x * a, (place(x),), (x.size // 2,)), 2
        ),
        'dynamic update': lambda a, x: lax.dynamic_update_slice(x, a[:2], (place(x),)),
        'set at a place': lambda s, x: x.at[place(x)].set(s),
        'added at a place': lambda a, x: x.at[place(x) - 1].add(a @ x),
        'dropped beyond the end': lambda a, x: a.at[place(x) + 2].add(
            x[0], mode='drop'
        ),
        'largest at': lambda a, order, x: a.at[order].max(x),
    },
    dtypes=WIDE,
)

# ---- linear algebra ------------------------------------------------------------------


def regular(w: Any, x: Any) -> Any:
    """A symmetric, positive matrix of parameters and a vector, its values apart."""
    own = jnp.diag(jnp.arange(2.0, 2 + x.size, dtype=x.dtype))
    return own + 0.1 * (w @ w.T) + 0.1 * jnp.outer(x, x)


def triangular(w: Any, x: Any) -> Any:
    """A lower triangular matrix of parameters alone."""
    return jnp.tril(w) + 3 * jnp.eye(x.size, dtype=x.dtype)


family(
    {
        'inverse': lambda w, a, x: jnp.linalg.inv(regular(w, x)) @ a,
        'inverse of a parameter': lambda w, x: jnp.linalg.inv(triangular(w, x)) @ x,
        'solve': lambda w, x: jnp.linalg.solve(regular(w, x), x),
        'cholesky': lambda w, x: jnp.linalg.cholesky(regular(w, x)) @ x,
        'triangular solve': lambda w, x: jax.scipy.linalg.solve_triangular(
            triangular(w, x), x, lower=True
        ),
        'qr': lambda w, x: jnp.linalg.qr(regular(w, x))[1] @ x * 0.1,
        'eigenvalues': lambda w, x: jnp.linalg.eigvalsh(regular(w, x)) * x,
    },
    dtypes=WIDE,
)

# ---- Fourier transforms, complex numbers ---------------------------------------------

family(
    {
        'fft': lambda a, x: jnp.fft.fft(x * a).real,
        'rfft filter': lambda a, x: jnp.fft.irfft(
            jnp.fft.rfft(x) * jnp.fft.rfft(a), x.size
        ),
        'complex product': lambda w, u, x: (
            (lax.complex(w, u) @ lax.complex(x, -x)).imag
        ),
    },
    dtypes=WIDE,
)

# ---- order ---------------------------------------------------------------------------

family(
    {
        'sort': lambda a, x: jnp.sort(x) * a,
        'argsort': lambda a, x: a[jnp.argsort(x)] * x,
        'sort by key': lambda a, x: lax.sort((x, a * x), num_keys=1)[1],
        'top_k': lambda a, x: jnp.tile(lax.top_k(x * a, x.size // 2)[0], 2),
    },
    dtypes=WIDE,
)

# ---- convolution ---------------------------------------------------------------------


def conv(x: Any, kernel: Any, **options: Any) -> Any:
    """A convolution of one row of one channel."""
    return lax.conv_general_dilated(
        x[None, None], kernel[None, None], (1,), 'SAME', **options
    )[0, 0]


family(
    {
        'convolve': lambda t, x: jnp.convolve(x, t, 'same'),
        'conv': lambda t, x: conv(x, t),
        'conv of a parameter': lambda a, x: conv(a, x[:3]),
        'conv of channels': lambda cube, a, x: lax.conv_general_dilated(
            jnp.outer(a, x)[None], cube[:, :, :3], (1,), 'SAME'
        )[0].mean(0),
        'conv of groups': lambda t, x: lax.conv_general_dilated(
            jnp.stack([x, -x])[None],
            jnp.stack([t, t**2])[:, None],
            (1,),
            'SAME',
            feature_group_count=2,
        )[0].sum(0),
    }
)
