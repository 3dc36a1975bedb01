# SPDX-License-Identifier: Apache-2.0
"""Message passing over molecules, against networks written by hand for arrays.

    python benchmarks/molecules.py [--quick]

Atoms are objects that hold their neighbours, so each molecule contains itself. `Share`
evaluates every atom once a round. By hand: one list of edges for the whole batch
(`segment_sum`), a list of neighbours of each atom, filled up (gathers, whose reverse is
gathers), and molecules padded to one size, with matrices of neighbours. Their arrays
are made by Python loops, or put together of those of each molecule, which were made
once: as a schedule is made of objects, or merged from a corpus.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from edge_sums import gathered, neighbour_table
from measuring import MODES, Setup, agree, begin, jax_parser, set_up
from options import fill, say
from report import Row
from trees import Params
from turns import compiled, ratio_row, take_turns

import jfold as jf

FEATURES = 16  # of an atom
FEWEST, MOST = 8, 29  # atoms of a molecule
POOL = 4  # batches that take turns
HANDS = 'flat', 'gathers', 'padded'  # networks by hand

Atom = dict[str, Any]
Arrays = tuple[np.ndarray, ...]
Network = Callable[..., jax.Array]  # of parameters and arrays, to results [molecules]


# ---- molecules -----------------------------------------------------------------------


def molecule(rng: np.random.Generator) -> list[Atom]:
    """Atoms in a chain with branches, a sixth of them in rings."""
    count = int(rng.integers(FEWEST, MOST + 1))
    drawn = rng.normal(size=(count, FEATURES)).astype('float32')
    atoms: list[Atom] = [{'x': x, 'bonds': []} for x in drawn]
    bonds = {(i, int(rng.integers(max(0, i - 3), i))) for i in range(1, count)}
    for _ in range(count // 6):
        i, j = sorted(rng.choice(count, 2, replace=False).tolist())
        bonds.add((j, i))
    for i, j in sorted(bonds):
        atoms[i]['bonds'].append(atoms[j])
        atoms[j]['bonds'].append(atoms[i])
    return atoms


def neighbours(atoms: list[Atom]) -> list[tuple[int, int]]:
    """Pairs of the numbers of an atom and of one that it is bound to."""
    numbers = {id(atom): i for i, atom in enumerate(atoms)}
    return [(i, numbers[id(x)]) for i, atom in enumerate(atoms) for x in atom['bonds']]


# ---- the network ---------------------------------------------------------------------


def dense(rows: int, columns: int, key: jax.Array) -> Params:
    """A matrix and a bias."""
    w = jax.random.normal(key, (rows, columns)) / rows**0.5
    return {'w': w, 'b': jnp.zeros(columns)}


def embed(p: Params, x: jax.Array) -> jax.Array:
    """The first state of an atom."""
    return jnp.tanh(x @ p['w'] + p['b'])


def update(p: Params, state: jax.Array, around: jax.Array) -> jax.Array:
    """The next state of an atom, from the sum of those around it."""
    return jnp.tanh(state @ p['own']['w'] + around @ p['other']['w'] + p['own']['b'])


def init_update(width: int, key: jax.Array) -> Params:
    """For `update`."""
    own, other = jax.random.split(key)
    return {'own': dense(width, width, own), 'other': dense(width, width, other)}


def answer(p: Params, total: jax.Array) -> jax.Array:
    """A number of a molecule, from the sum of its atoms."""
    return (total @ p['w'] + p['b'])[..., 0]


def expression(width: int, rounds: int) -> jf.Block:
    """From atoms to a number."""
    init = functools.partial(dense, FEATURES, width)
    first = jf.Vector(FEATURES) >> jf.Function(embed, init, name='embed')
    state: jf.Block = jf.Share(jf.GetItem('x') >> first)
    for number in range(rounds):
        around = jf.GetItem('bonds') >> jf.Map(state) >> jf.Sum()
        init = functools.partial(init_update, width)
        step = jf.Function(update, init, name=f'round {number}')
        state = jf.Share(jf.AllOf(state, around) >> step)
    init = functools.partial(dense, width, 1)
    return jf.Map(state) >> jf.Sum() >> jf.Function(answer, init, name='answer')


# ---- by hand -------------------------------------------------------------------------


def read(atoms: list[Atom]) -> Arrays:
    """Features [atoms, FEATURES], ends of edges [2, edges]."""
    x = np.array([atom['x'] for atom in atoms])
    return x, np.array(neighbours(atoms), 'int32').T


def flat(parts: Sequence[Arrays], atoms: int, edges: int) -> Arrays:
    """Features [atoms, FEATURES], molecules [atoms], edges [edges] from and to.

    Args:
      parts: what `read` gives of each molecule.
    """
    counts = [len(x) for x, _ in parts]
    sizes = [ends.shape[1] for _, ends in parts]
    n, e = sum(counts), sum(sizes)
    x = np.zeros((atoms, FEATURES), 'float32')
    owner = np.full(atoms, len(parts), 'int32')
    ends = np.full((2, edges), atoms - 1, 'int32')
    np.concatenate([x for x, _ in parts], out=x[:n])
    owner[:n] = np.arange(len(parts)).repeat(counts)
    np.concatenate([each for _, each in parts], axis=1, out=ends[:, :e])
    ends[:, :e] += (np.cumsum(counts, dtype='int32') - counts).repeat(sizes)
    return x, owner, *ends


def flat_network(rounds: int, molecules: int, p: Params, *arrays: Any) -> jax.Array:
    """The network over one list of edges."""
    x, owner, to, of = arrays
    state = embed(p['embed'], x)
    for number in range(rounds):
        around = jax.ops.segment_sum(state[of], to, len(x))
        state = update(p[f'round {number}'], state, around)
    total = jax.ops.segment_sum(state, owner, molecules + 1)[:molecules]
    return answer(p['answer'], total)


def beside(parts: Sequence[Arrays], atoms: int, edges: int, most: int) -> Arrays:
    """Features [atoms, FEATURES], neighbours of each atom [atoms, most], atoms of each
    molecule [molecules, MOST] and molecules of each atom [atoms, 1]; what is missing
    has the number behind the last."""
    x, owner, to, of = flat(parts, atoms, edges)
    real = to < atoms - 1
    near = neighbour_table(to[real], of[real], atoms, most)
    n = sum(len(features) for features, _ in parts)
    members = neighbour_table(owner[:n], np.arange(n), len(parts), MOST, atoms)
    return x, near, members, owner[:, None]


def beside_network(rounds: int, p: Params, *arrays: Any) -> jax.Array:
    """The network over a list of neighbours of each atom."""
    x, near, members, owner = arrays
    state = embed(p['embed'], x)
    for number in range(rounds):
        around = gathered(state, {'into': near, 'out of': near})
        state = update(p[f'round {number}'], state, around)
    return answer(p['answer'], gathered(state, {'into': members, 'out of': owner}))


def padded(parts: Sequence[Arrays]) -> Arrays:
    """Features [molecules, MOST, FEATURES], neighbours [.., MOST, MOST], mask."""
    x = np.zeros((len(parts), MOST, FEATURES), 'float32')
    near = np.zeros((len(parts), MOST, MOST), 'float32')
    mask = np.zeros((len(parts), MOST, 1), 'float32')
    for number, (features, ends) in enumerate(parts):
        x[number, : len(features)] = features
        mask[number, : len(features)] = 1
        near[number][tuple(ends)] = 1
    return x, near, mask


def padded_network(rounds: int, p: Params, *arrays: Any) -> jax.Array:
    """The network over molecules of one size."""
    x, near, mask = arrays
    state = embed(p['embed'], x)
    for number in range(rounds):
        state = update(p[f'round {number}'], state, near @ state)
    return answer(p['answer'], (state * mask).sum(1))


# ---- measuring -----------------------------------------------------------------------


def by_hand(
    options: argparse.Namespace, batches: list[list[list[Atom]]]
) -> dict[str, tuple[Network, Callable[..., Any]]]:
    """The networks by hand, and what makes their arrays of what `read` gives."""
    atoms = max(sum(map(len, batch)) for batch in batches) + 1
    edges = max(sum(len(neighbours(each)) for each in batch) for batch in batches)
    molecules = itertools.chain.from_iterable(batches)
    most = max(len(atom['bonds']) for each in molecules for atom in each)
    edge_list = functools.partial(flat_network, options.rounds, options.batch)
    sizes: Any = {'atoms': atoms, 'edges': edges}
    of_atoms = functools.partial(beside, **sizes, most=most)
    return {
        'flat': (edge_list, functools.partial(flat, **sizes)),
        'gathers': (functools.partial(beside_network, options.rounds), of_atoms),
        'padded': (functools.partial(padded_network, options.rounds), padded),
    }


def half_square(network: Network, params: Params, *arrays: Any) -> jax.Array:
    """The same loss as jfold's."""
    return 0.5 * (network(params, *arrays) ** 2).sum()


def compare(options: argparse.Namespace) -> Iterator[Row]:
    """Rows of times, then ratios to the faster network by hand, round by round."""
    rng = np.random.default_rng(0)
    batches = [[molecule(rng) for _ in range(options.batch)] for _ in range(POOL)]
    block = expression(options.width, options.rounds)
    say('jfold: compiling and checking')
    setup = set_up('jfold', block, batches, batches[0][:2], len)
    contenders = setup.contenders() | merging('jfold', setup)
    made, compiling = hand_written(options, batches, setup)
    say('timing')
    times = take_turns(contenders | made, options.repeats, options.limit)
    for mode in MODES:
        yield setup.row(mode, times)
        for name in HANDS:
            parts = ('', 'merged ', 'whole ')
            device, merged, whole = (times[f'{name}: {part}{mode}'] for part in parts)
            yield {
                'by hand': name,
                'mode': mode,
                'compile s': compiling[name, mode],
                'device ms': device.ms,
                'merged ms': merged.ms,
                'whole ms': whole.ms,
            }
        yield from ratios('jfold', times, mode)


def merging(name: str, setup: Setup) -> dict[str, Callable[[int], Any]]:
    """Steps on batches that are merged from a corpus."""
    return {
        f'{name}: merged {mode}': lambda i, m=mode: setup.steps[m](
            setup.params, setup.merge(i)
        )
        for mode in MODES
    }


def hand_written(
    options: argparse.Namespace, batches: list[list[list[Atom]]], twin: Setup
) -> tuple[dict[str, Callable[[int], Any]], dict[tuple[str, str], float]]:
    """The steps by hand, which give what jfold's do, and the seconds of compiling."""
    made: dict[str, Callable[[int], Any]] = {}
    compiling = {}
    for name, (network, make) in by_hand(options, batches).items():
        say(f'{name}: compiling and checking')
        kept = [[read(x) for x in batch] for batch in batches]
        given = [jax.device_put(make(parts)) for parts in kept]
        training = jax.value_and_grad(functools.partial(half_square, network))
        for mode, function in zip(MODES, (network, training), strict=True):
            step, taken = compiled(function, twin.params, *given[0])
            agree(name, step(twin.params, *given[0]), twin.run(mode, 0))
            compiling[name, mode] = taken
            made |= {
                f'{name}: {mode}': lambda i, s=step, g=given: s(
                    twin.params, *g[i % POOL]
                ),
                f'{name}: merged {mode}': lambda i, s=step, make=make, kept=kept: s(
                    twin.params, *make(kept[i % POOL])
                ),
                f'{name}: whole {mode}': lambda i, s=step, make=make: s(
                    twin.params, *make([read(x) for x in batches[i % POOL]])
                ),
            }
    return made, compiling


def ratios(name: str, times: dict[str, Any], mode: str) -> Iterator[Row]:
    """To the faster network by hand: of the device alone, of what was read once, and of
    objects too."""
    parts = {
        '': 'the device alone',
        'merged ': 'from a corpus, and from arrays of each molecule',
        'whole ': 'both from objects',
    }
    for part, text in parts.items():
        hand = min(HANDS, key=lambda x: times[f'{x}: {part}{mode}'].median)
        ratio = times[f'{name}: {part}{mode}'] / times[f'{hand}: {part}{mode}']
        yield ratio_row(f'{name} / {hand}, {text}', mode, ratio)


# ---- command line --------------------------------------------------------------------

NOTE = (
    'schedule: from objects to indices; merge: from a corpus instead; device: with '
    'arrays on the device; merged: put together of what was read of each molecule '
    'once; whole: from objects to results. What is timed has given the same values, '
    'loss and gradients.'
)


def main() -> None:
    """Measures, and prints tables."""
    options = arguments()
    report = begin('Message passing over molecules', options)
    sizes = f'{options.rounds} rounds, {options.width} wide, batches of {options.batch}'
    report.note(f'{sizes} molecules of {FEWEST} to {MOST} atoms, made up.')
    report.note(NOTE)
    report.absent['jraph'] = 'its message passing is the `segment_sum` of the flat list'
    rows = list(compare(options))
    report.rows += sorted(rows, key=lambda row: ('ratio' in row, 'by hand' in row))
    report.write()
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    add = parser.add_argument
    add('--batch', type=int, help='molecules in a batch (default 128)')
    add('--width', type=int, help='of states (default 64)')
    add('--rounds', type=int, help='of messages (default 3)')
    full = {'batch': 128, 'width': 64, 'rounds': 3}
    return fill(parser.parse_args(), full, {'batch': 8, 'width': 8, 'rounds': 2})


if __name__ == '__main__':
    main()
