# SPDX-License-Identifier: Apache-2.0
"""Sums over the edges of a graph, in plain JAX: by scatters, or by gathers.

    python benchmarks/edge_sums.py [--quick] [--only small,hub]

Each row gets the sum of the rows that its edges come from, and is changed by it; so
many rounds are one program that the start of a kernel counts as it does within a model.
A scatter adds each edge to its row. Gathers take, of every row, as many edges as the
row with the most of them has, from a table with a row of zeros; their reverse is
gathers by the edges that leave a row. Sums outside of loops are scatters in jfold.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measuring import agree, report_cases
from options import say
from report import Row
from turns import ratio_row, take_turns

Edges = dict[str, jax.Array]
Sums = Callable[[jax.Array, Edges], jax.Array]

ROUNDS = 40
# Rows, edges of a row on average, and at most; numbers of a row.
CASES = {
    'small': (2_880, 2, 6, 64),
    'wide': (2_880, 2, 6, 256),
    'large': (28_800, 2, 6, 256),
    'dense': (28_800, 8, 24, 128),
    'hub': (2_880, 2, 64, 64),
}
QUICK = 30, 2, 6, 4


def draw(rows: int, mean: int, most: int) -> Edges:
    """Edges at random: their ends, in order and not, and of each row its neighbours."""
    rng = np.random.default_rng(0)
    count = np.minimum(rng.poisson(mean, rows), most)
    count[0] = most
    to = np.arange(rows).repeat(count)
    come = rng.integers(rows, size=len(to))
    mixed = rng.permutation(len(to))
    ends = {'to': to, 'from': come, 'mixed to': to[mixed], 'mixed from': come[mixed]}
    beside = {
        'into': neighbour_table(to, come, rows),
        'out of': neighbour_table(come, to, rows),
    }
    return {name: jnp.asarray(x, jnp.int32) for name, x in (ends | beside).items()}


def neighbour_table(
    ends: np.ndarray,
    others: np.ndarray,
    rows: int,
    most: int | None = None,
    nothing: int | None = None,
) -> np.ndarray:
    """The other ends of each row's edges [rows, most]; `nothing` where there are fewer.

    Args:
      most: by default as many as the row with the most of them has.
      nothing: the number of a row of zeros; by default `rows`.
    """
    order, count = np.argsort(ends, kind='stable'), np.bincount(ends, minlength=rows)
    most = int(count.max()) if most is None else most
    table = np.full((rows, most), rows if nothing is None else nothing, 'int32')
    table[np.arange(most) < count[:, None]] = others[order]
    return table


# ---- three ways ----------------------------------------------------------------------


def scattered(x: jax.Array, edges: Edges) -> jax.Array:
    """Adds edges in any order."""
    return jnp.zeros_like(x).at[edges['mixed to']].add(x[edges['mixed from']])


def scattered_in_order(x: jax.Array, edges: Edges) -> jax.Array:
    """Adds the edges of a row one behind another."""
    rows = x[edges['from']]
    return jnp.zeros_like(x).at[edges['to']].add(rows, indices_are_sorted=True)


@jax.custom_vjp
def gathered(x: jax.Array, edges: Edges) -> jax.Array:
    """Takes the edges of each row, and zeros."""
    return _taken(x, edges['into'])


def _taken(x: jax.Array, table: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, 1), (0, 0)))[table].sum(1)


gathered.defvjp(
    lambda x, edges: (gathered(x, edges), edges),
    lambda edges, cotangent: (_taken(cotangent, edges['out of']), None),
)

WAYS: dict[str, Sums] = {
    'scatter': scattered,
    'scatter in order': scattered_in_order,
    'gathers': gathered,
}


def rounds(sums: Sums, x: jax.Array, edges: Edges) -> jax.Array:
    """So many rounds of a way."""
    for _ in range(ROUNDS):
        x = x + 0.1 * jnp.tanh(sums(x, edges))
    return x


def total(sums: Sums, x: jax.Array, edges: Edges) -> jax.Array:
    """The sum of squares."""
    return (rounds(sums, x, edges) ** 2).sum()


# ---- measuring -----------------------------------------------------------------------


def compare(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of all ways, then ratios to the scatter."""
    rows, mean, most, width = QUICK if options.quick else CASES[name]
    edges = draw(rows, mean, most)
    x = jax.random.normal(jax.random.key(0), (rows, width))
    for mode in ('forward', 'with gradients'):
        say(f'{name}: {mode}')
        calls: dict[str, Callable[[int], Any]] = {}
        for way, sums in WAYS.items():
            run = functools.partial(rounds if mode == 'forward' else total, sums)
            step = jax.jit(run if mode == 'forward' else jax.grad(run))
            calls[way] = lambda _, step=step: step(x, edges)
            agree(f'{name}, {mode}, {way}', calls[way](0), calls['scatter'](0))
        times = take_turns(calls, options.repeats, options.limit)
        head = {'case': name, 'mode': mode, 'edges': len(edges['to'])}
        for way, found in times.items():
            us = 1e3 * found.ms / ROUNDS
            yield head | {'way': way, 'us a round': us, 'spread %': found.spread}
        for way in ('scatter in order', 'gathers'):
            ratio = times[way] / times['scatter']
            yield ratio_row(f'{name}, {way} / scatter', mode, ratio)


def main() -> None:
    """Measures, and prints tables."""
    note = 'Rows, edges of a row on average, and at most, numbers of a row'
    cases = {name: (rounds, sizes) for name, sizes in CASES.items()}
    report_cases(__doc__ or '', 'Sums over edges', note, cases, compare)


if __name__ == '__main__':
    main()
