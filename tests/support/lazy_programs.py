# SPDX-License-Identifier: Apache-2.0
"""Programs as data, which a lazy function reads: with loops, branches, sharing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfold as jf

SIZE = 3


def _matrix(key: Any) -> Any:
    return jax.random.normal(key, (SIZE, SIZE)) / SIZE


def _table(key: Any) -> Any:
    return jax.random.normal(key, (8, SIZE))


def made() -> jf.Block:
    """Makes a layer that functions know by its name."""
    return jf.Function(lambda p, x: jnp.sin(p @ x), _matrix, name='made')


embed = jf.Function(lambda p, i: p[i], _table, name='embed')
cell = jf.Function(lambda p, a, b: jnp.tanh(p @ a + b), _matrix, name='cell')
split = jf.Function(lambda p, x: (p @ x, {'half': x / 2}), _matrix, name='split')
joined = jf.Function(lambda pair, x: pair[0] * x + pair[1], name='joined')
gate = jf.Function(lambda x, s: jax.nn.sigmoid(s) * x, name='gate')
logarithm = jf.Function(jnp.log, name='logarithm')
total, watched = jf.Sum(), jf.Function(jnp.max) >> jf.Metric('largest')


def run_tree(t: Any, call: Any) -> Any:
    """What a node of a program gives, given what runs the nodes below."""
    kind, *parts = t
    match kind:
        case 'leaf':
            return embed(jf.int32(parts[0]))
        case 'plain':
            return embed(parts[0]) * 0.5
        case 'cell':
            return cell(call(parts[0]), call(parts[1]))
        case 'loop':
            state = jf.tensor(np.zeros(SIZE, 'float32'))
            for part in parts:
                state = cell(state, call(part))
            return state
        case 'sum':
            return total([call(part) for part in parts])
        case 'split':
            whole, rest = split(call(parts[0]))
            return whole + rest['half']
        case 'joined':
            one, other = call(parts[0]), call(parts[1])
            return joined((one, other), one)
        case 'norm':
            x = call(parts[0])
            jf.observe('norm', x @ x)
            return x / (1 + x @ x)
        case 'made':
            x = jf.named('made', made)(call(parts[0]))
            jf.Metric('sum')(x @ x)
            watched(x)
            return x
        case 'late':  # the right part before the left
            right = call(parts[1])
            return cell(call(parts[0]), right)
        case 'dropped':  # gradients of which would be NaN
            x = call(parts[0])
            logarithm(joined((logarithm(x - x), x), x))
            return x * 2
        case 'gate':
            x = call(parts[0])
            return gate(x, x[0]) if parts[1] else jf.select(x > 0, x, -x)
    raise AssertionError(kind)


@jf.lazy
def once(t: Any) -> Any:
    """Runs a program; what is met again is run again."""
    return run_tree(t, once)


@jf.lazy(share=True)
def shared(t: Any) -> Any:
    """Runs a program; what is met again is shared."""
    return run_tree(t, shared)


@jf.lazy
def several(ts: Any) -> Any:
    """Runs several programs; gives a list, a value and parts of a dict."""
    values = [shared(t) for t in ts]
    return {'all': values, 'last': (values[-1], values[0] @ values[-1])}


def draw_program(rng: np.random.Generator, room: int, known: list[Any]) -> Any:
    """A program of at most some nodes; `known` are programs that it may contain."""
    if known and rng.random() < 0.15:
        return known[rng.integers(len(known))]
    if room < 2:
        kind = rng.choice(['leaf', 'plain'])
        return str(kind), int(rng.integers(8))
    kinds = ['cell', 'loop', 'sum', 'split', 'joined', 'norm', 'made', 'gate']
    kind = str(rng.choice([*kinds, 'late', 'dropped']))
    counts = {'cell': 2, 'joined': 2, 'late': 2, 'loop': 3, 'sum': 3}
    count = int(rng.integers(1, 4)) if kind in ('loop', 'sum') else counts.get(kind, 1)
    parts = [draw_program(rng, (room - 1) // count, known) for _ in range(count)]
    extra = [bool(rng.random() < 0.5)] if kind == 'gate' else []
    known.append((kind, *parts, *extra))
    return known[-1]


def draw_examples(rng: np.random.Generator, count: int, room: int) -> list[Any]:
    """Programs, for `once` and `shared`."""
    return [draw_program(rng, int(rng.integers(1, room)), []) for _ in range(count)]
