# SPDX-License-Identifier: Apache-2.0
"""A model of sequences to sequences, beside the same padded in plain Flax.

    python benchmarks/seq2seq.py [--quick] [--only short]

A GRU reads a sequence, another writes one, and each of its states attends to all states
of the first, by a softmax. The GRUs take turns, the attention does not. There are three
contenders: jfold as users have it, jfold with all of it in loops, and code by hand with
sequences padded to the longest that there may be.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from measuring import (
    MODES,
    Setup,
    agree,
    half_square,
    report_cases,
    set_up,
    timed_in_turns,
)
from options import say
from report import Row
from turns import compiled, ratio_row
from unrolled import in_loops

import jfold as jf

POOL = 6  # batches that take turns
WORDS = 100
Pair = tuple[list[int], list[int]]
Sizes = tuple[int, int, int, int]  # width, examples of a batch, least and most words


class Step(nn.Module):
    """A step of a GRU: its state as output, and as state."""

    width: int

    @nn.compact
    def __call__(self, x: Any, state: Any) -> Any:
        state, _ = nn.GRUCell(self.width)(state, x)
        return state, state


class Mix(nn.Module):
    """A state and what it attends to, as one vector."""

    width: int

    @nn.compact
    def __call__(self, state: Any, seen: Any) -> Any:
        return jnp.tanh(nn.Dense(self.width)(jnp.concatenate([state, seen], -1)))


def affinity(a: Any, b: Any) -> Any:
    """The scaled product of vectors."""
    return (a * b).sum(-1) / np.sqrt(a.shape[-1]).astype('float32')


cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def network(width: int) -> jf.Block:
    """The loss of writing one sequence after another was read."""
    embed = jf.Function(nn.Embed(WORDS, width), name='embed')
    read = jf.Function(Step(width), name='read')
    write = jf.Function(Step(width), name='write')
    mix = jf.Function(Mix(width), name='mix')
    head = jf.Function(nn.Dense(WORDS), name='head')
    weigh, loss = jf.Function(jnp.multiply), jf.Function(cross_entropy, name='loss')

    @jf.compose
    def attend(state: Any, states: Any) -> Any:
        scores = jf.ZipWith(jf.Function(affinity))(jf.Broadcast()(state), states)
        seen = jf.Sum()(jf.ZipWith(weigh)(jf.Softmax()(scores), states))
        return head(mix(state, seen))

    @jf.compose
    def losses(source: Any, given: Any, wanted: Any) -> Any:
        states, last = jf.RNN(read, jf.Zeros([width]))(source)
        written, _ = jf.RNN(write, initial_state_from_input=True)(given, last)
        logits = jf.ZipWith(attend)(written, jf.Broadcast()(states))
        return jf.Sum()(jf.ZipWith(loss)(logits, wanted))

    word = jf.Scalar('int32', below=WORDS)
    embedded = jf.Map(word >> embed)
    parts = jf.GetItem(0) >> embedded, jf.GetItem(1) >> embedded
    return jf.AllOf(*parts, jf.GetItem(1) >> jf.Map(word)) >> losses


# ---- by hand -------------------------------------------------------------------------


def padded(width: int, params: Any, words: Any, lengths: Any) -> Any:
    """The same losses, of words [2, examples, most] and lengths [2, examples]."""
    x = params['embed']['embedding'][words]
    real = jnp.arange(words.shape[2]) < lengths[..., None]
    cell = nn.GRUCell(width)

    def run(name: str, state: Any, k: int) -> Any:
        weights = {'params': params[name]['GRUCell_0']}

        def step(state: Any, now: Any) -> Any:
            own, is_real = now
            after, _ = cell.apply(weights, state, own)
            return jnp.where(is_real[:, None], after, state), after

        return jax.lax.scan(step, state, (x[k].swapaxes(0, 1), real[k].T))

    last, states = run('read', jnp.zeros((words.shape[1], width)), 0)
    _, written = run('write', last, 1)
    scores = affinity(
        written.swapaxes(0, 1)[:, :, None], states.swapaxes(0, 1)[:, None]
    )
    scores = jnp.where(real[0][:, None], scores, -jnp.inf)
    seen = jax.nn.softmax(scores, -1) @ states.swapaxes(0, 1)
    mixed = Mix(width).apply({'params': params['mix']}, written.swapaxes(0, 1), seen)
    logits = nn.Dense(WORDS).apply({'params': params['head']}, mixed)
    return (cross_entropy(logits, words[1]) * real[1]).sum(-1)


def pad(most: int, pairs: list[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """Words [2, examples, most], and lengths [2, examples], both int32."""
    words = np.zeros((2, len(pairs), most), np.int32)
    for i, pair in enumerate(pairs):
        for k, sequence in enumerate(pair):
            words[k, i, : len(sequence)] = sequence
    lengths = np.array([[len(pair[k]) for pair in pairs] for k in (0, 1)], np.int32)
    return words, lengths


# ---- measuring -----------------------------------------------------------------------

CASES: dict[str, tuple[Any, Sizes]] = {
    'short': (network, (32, 32, 1, 9)),
    'long': (network, (128, 32, 5, 100)),
}
QUICK = 4, 3, 1, 3


def compare(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of all three, then ratios to the one by hand."""
    make, sizes = CASES[name]
    width, count, least, most = QUICK if options.quick else sizes
    rng = np.random.default_rng(0)

    def sequence() -> list[int]:
        return rng.integers(WORDS, size=rng.integers(least, most + 1)).tolist()

    batches = [[(sequence(), sequence()) for _ in range(count)] for _ in range(POOL)]
    checks = [min(batches[0], key=lambda pair: sum(map(len, pair)))]
    setups: list[Setup] = []
    for kind, compiles in (('jfold', jf.compile), ('in loops', in_loops)):
        say(f'{name}, {kind}: compiling and checking')
        own, block = f'{name}, {kind}', make(width)
        setups.append(
            set_up(
                own, block, batches, checks, lambda x: sum(map(len, x)), None, compiles
            )
        )
    twin, hand, compiling = setups[0], {}, {}
    given = [jax.device_put(pad(most, batch)) for batch in batches]
    forward = functools.partial(padded, width)

    def total(*arguments: Any) -> Any:
        return half_square(forward(*arguments)).sum()

    say(f'{name}, by hand: compiling and checking')
    for mode, function in zip(MODES, (forward, jax.value_and_grad(total)), strict=True):
        step, compiling[mode] = compiled(function, twin.params, *given[0])
        agree(f'{name}, by hand', step(twin.params, *given[0]), twin.run(mode, 0))
        hand[f'{name}, by hand: {mode}'] = lambda i, s=step: s(
            twin.params, *given[i % POOL]
        )
    say(f'{name}: timing')
    times = timed_in_turns(setups, options, hand)
    for mode in MODES:
        yield from (setup.row(mode, times) for setup in setups)
        by_hand = times[f'{name}, by hand: {mode}']
        seconds, own = compiling[mode], {'by hand': name, 'mode': mode}
        yield own | {'compile s': seconds, 'device ms': by_hand.ms}
        for setup in setups:
            ratio = times[f'{setup.name}: {mode}'] / by_hand
            yield ratio_row(f'{setup.name} / by hand', mode, ratio)


def main() -> None:
    """Measures, and prints tables."""
    note = 'Width, examples of a batch, least and most words of a sequence'
    report_cases(__doc__ or '', 'Sequences to sequences', note, CASES, compare)


if __name__ == '__main__':
    main()
