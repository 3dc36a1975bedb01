# SPDX-License-Identifier: Apache-2.0
"""Kinds of functions with parameters: what people put into a `Function`.

Each takes parameters and a vector x [n], n even, and gives a vector [n] or, where
`several`, a tuple that begins with one. Parameters are taken by name, from `SHAPES`.
"""

from __future__ import annotations

import functools
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


@dataclass(frozen=True)
class Names:
    """Parameters that note which of them are asked for."""

    spec: Any
    seen: dict[str, None]

    def __getitem__(self, name: str) -> Any:
        self.seen[name] = None
        return draw(name, np.random.default_rng(0), *self.spec.shape, self.spec.dtype)


def init_used(whole: Call, rng: Rng, spec: Any) -> dict[str, Any]:
    """The parameters that a function asks for."""
    names = Names(spec, {})
    jax.eval_shape(lambda x: whole(names, x), spec)
    return {name: draw(name, rng, *spec.shape, spec.dtype) for name in names.seen}


KINDS: dict[str, Kind] = {}


def family(fns: dict[str, Call], **options: Any) -> None:
    """Adds kinds to the table."""
    for name, fn in fns.items():
        assert name not in KINDS, name
        prepare = options.get('prepare', lambda p: p)

        def whole(p: Any, x: Any, fn: Call = fn, prepare: Any = prepare) -> Any:
            return fn(prepare(p), x)

        init = functools.partial(init_used, whole)
        KINDS[name] = Kind(f'K[{name!r}]', fn, init, **options)


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
        'w @ x': lambda p, x: p['w'] @ x,
        'x @ w': lambda p, x: x @ p['w'],
        'w.T @ x': lambda p, x: p['w'].T @ x,
        'x @ w.T': lambda p, x: x @ p['w'].T,
        'w @ x + b': lambda p, x: jnp.tanh(p['w'] @ x + p['b']),
        'einsum of three': lambda p, x: jnp.einsum('ij,j,i->j', p['w'], x, p['a']),
        'tensordot': lambda p, x: jnp.tensordot(p['w'], x, ((0,), (0,))),
        'outer': lambda p, x: jnp.outer(x, p['a']) @ p['b'],
        'bilinear': lambda p, x: jnp.einsum('i,ijk,k->j', x, p['cube'], x),
        'two products': lambda p, x: p['w'] @ jnp.tanh(p['u'] @ x),
        'product of products': lambda p, x: (p['w'] @ x) * (p['u'] @ x),
        'quadratic form': lambda p, x: x * (x @ p['w'] @ x),
        'product of parameters': lambda p, x: (p['w'] @ p['u']) @ x,
        'gram matrix': lambda p, x: (p['w'].T @ p['w']) @ x,
        'matrix of x': lambda p, x: (
            (square(x) @ square(x).T @ square(x)).ravel() * p['a']
        ),
        'batched product': lambda p, x: jnp.einsum('bij,bj->b', p['cube'], p['w'] * x),
        'matmul of rows': lambda p, x: (jnp.stack([x, p['a'] * x]) @ p['w']).sum(0),
        'long input': lambda p, x: jnp.concatenate([x, x * x]) @ p['wide'],
        'wide product': lambda p, x: (p['wide'] @ x).reshape(2, -1).sum(0),
        'product with a constant': lambda p, x: (
            p['s'] * (constant(x, x.size, x.size) @ x)
        ),
        'masked matrix': lambda p, x: jnp.tril(p['w']) @ x,
        'scaled matrix': lambda p, x: (p['w'] / jnp.linalg.norm(p['w'])) @ (2 * x),
        'same matrix twice': lambda p, x: p['w'] @ jnp.sin(p['w'] @ x),
        'matrix and its transpose': lambda p, x: p['w'].T @ jnp.sin(p['w'] @ x),
        'highest precision': lambda p, x: jnp.matmul(p['w'], x, precision='highest'),
        'wider sum': lambda p, x: dot(
            p['w'],
            x,
            ((1,), (0,)),
            preferred_element_type=jnp.promote_types(x.dtype, 'float32'),
        ).astype(x.dtype),
        'two axes summed': lambda p, x: dot(
            p['cube'], jnp.outer(x, p['a']), ((0, 1), (0, 1))
        ),
        'attention': lambda p, x: (
            jax.nn.softmax(p['w'] @ jnp.outer(x, p['a']), 0) @ (p['u'] @ x)
        ),
        'product of nothing': lambda p, x: x + x[:0] @ p['empty'],
    }
)


def square(x: Any) -> Any:
    """A vector [n] as a matrix [2, n / 2]."""
    return x.reshape(2, -1)


# ---- one number at a time ------------------------------------------------------------

family(
    {
        'gelu': lambda p, x: jax.nn.gelu(p['a'] * x),
        'power': lambda p, x: (1 + x * x) ** p['a'],
        'integer power': lambda p, x: (p['a'] * x) ** 3,
        'quotient': lambda p, x: x / (2 + jnp.sin(p['a'] + x)),
        'arctan2': lambda p, x: jnp.arctan2(x, 2 + jnp.abs(p['a'])),
        'lgamma': lambda p, x: lax.lgamma(3 + jnp.tanh(x)) * p['s'],
        'numbers alone': lambda p, x: jnp.sin(3 * x) - 0.5,
        'identity': lambda p, x: x,
        'scalar product': lambda p, x: p['s'] * x,
    }
)
family(
    {
        'relu': lambda p, x: jax.nn.relu(x + p['a']),
        'clip': lambda p, x: jnp.clip(x, -0.3, p['s'] + 0.5),
        'remainder': lambda p, x: jnp.remainder(3 * x, 1.0) * p['a'],
        'rounded': lambda p, x: jnp.round(4 * x) * p['a'] + x,
        'bits': lambda p, x: x * (1 + sign_bit(x)) * p['a'],
        'nan_to_num': lambda p, x: (
            jnp.nan_to_num(jnp.where(x > 0, x, jnp.nan)) * p['a']
        ),
    },
    dtypes=WIDE,
)


def sign_bit(x: Any) -> Any:
    """Of a float, as an integer; no bit that roundings decide."""
    bits = 8 * x.dtype.itemsize
    return lax.bitcast_convert_type(x, jnp.dtype(f'uint{bits}')) >> (bits - 1)


# ---- reductions ----------------------------------------------------------------------


def layer_norm(p: Any, x: Any) -> Any:
    """Scaled and shifted."""
    return (x - x.mean()) * lax.rsqrt(x.var() + 1e-2) * p['a'] + p['b']


family(
    {
        'sum': lambda p, x: x * p['a'].sum() + x.sum(),
        'layer norm': layer_norm,
        'product of all': lambda p, x: p['a'] * jnp.prod(1 + 0.3 * x),
        'softmax': lambda p, x: p['a'] * jax.nn.softmax(x),
        'cumsum': lambda p, x: jnp.cumsum(x * p['a']),
        'cumlogsumexp': lambda p, x: lax.cumlogsumexp(x) * p['a'],
        'reduction of a matrix': lambda p, x: (p['w'] * x).sum(1),
    }
)
family(
    {
        'max': lambda p, x: x * p['a'] - x.max(),
        'cummax': lambda p, x: lax.cummax(x) * p['a'],
        'all and any': lambda p, x: jnp.where(
            (x > 0).all() | (x < -0.2).any(), x, p['a']
        ),
        'max pool': lambda p, x: lax.reduce_window(
            x * p['a'], -jnp.inf, lax.max, (2,), (1,), 'SAME'
        ),
        'argmax': lambda p, x: x * p['a'][jnp.argmax(x)],
        'custom reduction': lambda p, x: (
            p['a']
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
        'permuted': lambda p, x: x[p['order']] * p['a'],
        'reversed': lambda p, x: x[::-1] * p['a'],
        'added at': lambda p, x: x.at[p['order']].add(p['a'] * x),
        'multiplied at': lambda p, x: x.at[1:].mul(p['a'][1:], unique_indices=True),
        'set at': lambda p, x: p['a'].at[:2].set(x[:2]),
        'segment sum': lambda p, x: jax.ops.segment_sum(
            x * p['a'], jnp.arange(x.size) // 2, x.size
        ),
        'padded': lambda p, x: jnp.pad(x, (1, 2), constant_values=0.5)[2:-1] * p['a'],
        'diagonal': lambda p, x: jnp.diag(jnp.outer(x, p['a'])) + jnp.diag(p['w']),
        'twice the same row': lambda p, x: p['w'][jnp.zeros(2, int)].sum(0) * x,
        'transposed': lambda p, x: jnp.moveaxis(p['cube'] * x, 2, 0).sum((1, 2)),
    }
)
family(
    {
        'row of a table': lambda p, x: p['w'][place(x)] + x,
        'take_along_axis': lambda p, x: (
            jnp.take_along_axis(p['w'], place(x)[None, None], 1)[0, 0] * x
        ),
        'gather beyond the end': lambda p, x: (
            x * jnp.take(p['a'], place(x) + 2, mode='fill', fill_value=0.5)
        ),
        'dynamic slice': lambda p, x: jnp.tile(
            lax.dynamic_slice(x * p['a'], (place(x),), (x.size // 2,)), 2
        ),
        'dynamic update': lambda p, x: lax.dynamic_update_slice(
            x, p['a'][:2], (place(x),)
        ),
        'set at a place': lambda p, x: x.at[place(x)].set(p['s']),
        'added at a place': lambda p, x: x.at[place(x) - 1].add(p['a'] @ x),
        'dropped beyond the end': lambda p, x: (
            p['a'].at[place(x) + 2].add(x[0], mode='drop')
        ),
        'largest at': lambda p, x: p['a'].at[p['order']].max(x),
    },
    dtypes=WIDE,
)

# ---- linear algebra ------------------------------------------------------------------


def regular(p: Any, x: Any) -> Any:
    """A symmetric, positive matrix of parameters and a vector, its values apart."""
    own = jnp.diag(jnp.arange(2.0, 2 + x.size, dtype=x.dtype))
    return own + 0.1 * (p['w'] @ p['w'].T) + 0.1 * jnp.outer(x, x)


def triangular(p: Any, x: Any) -> Any:
    """A lower triangular matrix of parameters alone."""
    return jnp.tril(p['w']) + 3 * jnp.eye(x.size, dtype=x.dtype)


family(
    {
        'inverse': lambda p, x: jnp.linalg.inv(regular(p, x)) @ p['a'],
        'inverse of a parameter': lambda p, x: jnp.linalg.inv(triangular(p, x)) @ x,
        'solve': lambda p, x: jnp.linalg.solve(regular(p, x), x),
        'cholesky': lambda p, x: jnp.linalg.cholesky(regular(p, x)) @ x,
        'triangular solve': lambda p, x: jax.scipy.linalg.solve_triangular(
            triangular(p, x), x, lower=True
        ),
        'qr': lambda p, x: jnp.linalg.qr(regular(p, x))[1] @ x * 0.1,
        'eigenvalues': lambda p, x: jnp.linalg.eigvalsh(regular(p, x)) * x,
    },
    dtypes=WIDE,
)

# ---- Fourier transforms, complex numbers ---------------------------------------------

family(
    {
        'fft': lambda p, x: jnp.fft.fft(x * p['a']).real,
        'rfft filter': lambda p, x: jnp.fft.irfft(
            jnp.fft.rfft(x) * jnp.fft.rfft(p['a']), x.size
        ),
        'complex product': lambda p, x: (
            (lax.complex(p['w'], p['u']) @ lax.complex(x, -x)).imag
        ),
    },
    dtypes=WIDE,
)

# ---- order ---------------------------------------------------------------------------

family(
    {
        'sort': lambda p, x: jnp.sort(x) * p['a'],
        'argsort': lambda p, x: p['a'][jnp.argsort(x)] * x,
        'sort by key': lambda p, x: lax.sort((x, p['a'] * x), num_keys=1)[1],
        'top_k': lambda p, x: jnp.tile(lax.top_k(x * p['a'], x.size // 2)[0], 2),
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
        'convolve': lambda p, x: jnp.convolve(x, p['t'], 'same'),
        'conv': lambda p, x: conv(x, p['t']),
        'conv of a parameter': lambda p, x: conv(p['a'], x[:3]),
        'conv of channels': lambda p, x: lax.conv_general_dilated(
            jnp.outer(p['a'], x)[None], p['cube'][:, :, :3], (1,), 'SAME'
        )[0].mean(0),
        'conv of groups': lambda p, x: lax.conv_general_dilated(
            jnp.stack([x, -x])[None],
            jnp.stack([p['t'], p['t'] ** 2])[:, None],
            (1,),
            'SAME',
            feature_group_count=2,
        )[0].sum(0),
    }
)
