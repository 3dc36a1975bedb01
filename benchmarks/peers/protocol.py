# SPDX-License-Identifier: Apache-2.0
"""What all programs of this folder share: the workload, the checks, the questions.

The workload is a binary tree-LSTM (Tai et al. 2015, N = 2) on random trees of equally
many leaves. A tree is a word number or a pair of trees. Inference turns a list of trees
into the h of their roots, as a NumPy array; training adds the loss (the mean over trees
of the sum of the root's h), its gradients, and a step of SGD on all weights, and reads
the loss back. Every step gets a batch that no step before it had, so whatever is built
for a batch is built anew, within the time.

A program is a subclass of `Program` and ends in `serve(...)`. It answers questions on
standard input by one JSON object a line:

    printf 'check\nstep\nstep\n' | python torch_levels.py --mode train

`check` takes the first step, which compiles what has to be compiled, and compares it
with NumPy in double precision: the roots or, in training, the loss and the change of
the weights. `step` takes one more step and tells its seconds:

    build    making the schedule or the graph; null if the program has no such part
    compute  the rest
    total    both
    compile  of these, compiling; steady steps have 0
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar, NamedTuple

import numpy as np

RATE = 0.05  # of SGD
ROOT_TOLERANCE = 1e-4  # largest difference
GRADIENT_TOLERANCE = 1e-3  # largest difference, over the largest entry

Array = np.ndarray[Any, Any]
Tree = Any  # a word number, or a pair of trees


class CheckError(Exception):
    """A program computes something else than the reference."""


class Weights(NamedTuple):
    """Weights, or gradients with respect to them; V words, H units.

    Attributes:
      table: [V, 2H], for each word c beside h.
      kernel: [2H, 5H], from the h of both children to i, o, u, f_left, f_right.
      bias: [5H]
    """

    table: Any
    kernel: Any
    bias: Any


@dataclass(frozen=True)
class Workload:
    """Batches of `batch` trees with `leaves` leaves, and weights of `hidden` units.

    With `chains`, trees that lean to the left as far as they can.
    """

    leaves: int = 32
    hidden: int = 128
    batch: int = 32
    vocab: int = 128
    seed: int = 0
    chains: bool = False

    def weights(self) -> Weights:
        """The weights before the first step, float32."""
        draw = np.random.RandomState(self.seed).uniform
        width, scale = self.hidden, (2 * self.hidden) ** -0.5
        return Weights(
            draw(-0.5, 0.5, (self.vocab, 2 * width)).astype(np.float32),
            draw(-scale, scale, (2 * width, 5 * width)).astype(np.float32),
            draw(-0.1, 0.1, 5 * width).astype(np.float32),
        )

    def batches(self) -> Iterator[list[Tree]]:
        """Batches without end, the same for every program."""
        random = np.random.RandomState(self.seed + 1)
        while True:
            yield [self._tree(self.leaves, random) for _ in range(self.batch)]

    def _tree(self, leaves: int, random: np.random.RandomState) -> Tree:
        """Splits the leaves uniformly, recursively, or into all but one and one."""
        if leaves == 1:
            return int(random.randint(self.vocab))
        left = leaves - 1 if self.chains else int(random.randint(1, leaves))
        return self._tree(left, random), self._tree(leaves - left, random)


# ---- the reference -------------------------------------------------------------------


class Nodes(NamedTuple):
    """The nodes of a batch; children have smaller numbers than their parents.

    Attributes:
      words: [leaves] word of each leaf; leaf k is node k.
      levels: [n, 3] for each height: node, left child, right child.
      roots: [trees]
    """

    words: Array
    levels: list[Array]
    roots: Array


def number(trees: list[Tree], leaves: int) -> Nodes:
    """Numbers the nodes of `trees`, which have `leaves` leaves in all."""
    words: list[int] = []
    inner: list[tuple[int, int, int]] = []
    heights: list[int] = []

    def visit(tree: Tree) -> tuple[int, int]:
        if isinstance(tree, int):
            words.append(tree)
            return len(words) - 1, 0
        (left, low), (right, high) = visit(tree[0]), visit(tree[1])
        inner.append((leaves + len(inner), left, right))
        heights.append(1 + max(low, high))
        return inner[-1][0], heights[-1]

    roots = [visit(tree)[0] for tree in trees]
    rows, height = np.array(inner).reshape(-1, 3), np.array(heights, int)
    levels = [rows[height == k] for k in range(1, 1 + height.max(initial=0))]
    return Nodes(np.array(words), levels, np.array(roots))


def reference(
    weights: Weights, trees: list[Tree], leaves: int
) -> tuple[Array, Weights]:
    """The h of the roots [trees, H] and gradients of the loss, in double precision.

    Args:
      weights: as `Workload.weights` returns them.
      trees: a batch.
      leaves: of each tree.
    """
    table, kernel, bias = (np.asarray(x, np.float64) for x in weights)
    nodes, width = number(trees, leaves * len(trees)), kernel.shape[0] // 2
    c, h = (np.zeros((len(trees) * (2 * leaves - 1), width)) for _ in range(2))
    c[: len(nodes.words)], h[: len(nodes.words)] = np.split(table[nodes.words], 2, 1)
    gates = []
    for node, left, right in (x.T for x in nodes.levels):
        z = np.split(np.hstack([h[left], h[right]]) @ kernel + bias, 5, axis=1)
        i, o, forget, keep = map(sigmoid, (z[0], z[1], z[3], z[4]))
        u = np.tanh(z[2])
        c[node] = i * u + forget * c[left] + keep * c[right]
        h[node] = o * np.tanh(c[node])
        gates.append((i, o, u, forget, keep))
    return h[nodes.roots], gradients(nodes, c, h, gates, table, kernel)


def gradients(
    nodes: Nodes, c: Array, h: Array, gates: list[Any], table: Array, kernel: Array
) -> Weights:
    """The reverse of `reference`, from the roots down."""
    dc, dh = np.zeros_like(c), np.zeros_like(h)
    dh[nodes.roots] = 1 / len(nodes.roots)
    found = Weights(
        np.zeros_like(table), np.zeros_like(kernel), np.zeros(5 * c.shape[1])
    )
    for rows, (i, o, u, forget, keep) in zip(
        reversed(nodes.levels), reversed(gates), strict=True
    ):
        node, left, right = rows.T
        squashed = np.tanh(c[node])
        dc[node] += dh[node] * o * (1 - squashed**2)
        dz = np.hstack(
            [
                dc[node] * u * i * (1 - i),
                dh[node] * squashed * o * (1 - o),
                dc[node] * i * (1 - u**2),
                dc[node] * c[left] * forget * (1 - forget),
                dc[node] * c[right] * keep * (1 - keep),
            ]
        )
        dc[left], dc[right] = dc[node] * forget, dc[node] * keep
        dh[left], dh[right] = np.split(dz @ kernel.T, 2, axis=1)
        found.kernel[...] += np.hstack([h[left], h[right]]).T @ dz
        found.bias[...] += dz.sum(0)
    leaves = len(nodes.words)
    np.add.at(found.table, nodes.words, np.hstack([dc[:leaves], dh[:leaves]]))
    return found


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def relative_error(got: Weights, expected: Weights) -> float:
    """The largest difference over the largest entry, of the worst array."""
    return max(
        float(np.abs(g - e).max() / np.abs(e).max())
        for g, e in zip(got, expected, strict=True)
    )


# ---- programs ------------------------------------------------------------------------


class Clock:
    """Times one step."""

    def __init__(self) -> None:
        self._build: float | None = None
        self._begin = time.perf_counter()

    def built(self) -> None:
        """To be called when the schedule or graph of the batch is made."""
        self._build = time.perf_counter() - self._begin

    def stop(self) -> dict[str, float | None]:
        """Seconds of the parts."""
        total = time.perf_counter() - self._begin
        compute = total - (self._build or 0.0)
        return {'build': self._build, 'compute': compute, 'total': total}


class Program:
    """A contender.

    Attributes:
      packages: whose versions matter.
      trees: of how many trees a step consists, always the same ones; None for whole
        batches, always other ones.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    trees: ClassVar[int | None] = None

    def __init__(self, workload: Workload, weights: Weights, threads: int) -> None:
        raise NotImplementedError

    def infer(self, trees: list[Tree], clock: Clock) -> Array:
        """The h [trees, H] of the roots."""
        raise NotImplementedError

    def train(self, trees: list[Tree], clock: Clock) -> float:
        """Takes a step of SGD and returns the loss before it."""
        raise NotImplementedError

    def weights(self) -> Weights:
        """The weights as they are now, as NumPy arrays."""
        raise NotImplementedError

    def compiling(self) -> float:
        """Seconds spent compiling so far."""
        return 0.0


class Server:
    """Answers questions about one program."""

    def __init__(self, kind: type[Program], options: argparse.Namespace) -> None:
        self.workload = Workload(
            *(options.leaves, options.hidden, options.batch),
            *(options.vocab, options.seed, options.chains),
        )
        self.program = kind(self.workload, self.workload.weights(), options.threads)
        self.training = options.mode == 'train'
        self._batches = self.workload.batches()
        self._few: list[Tree] = []

    def batch(self) -> list[Tree]:
        """What the next step gets."""
        if self.program.trees is None:
            return next(self._batches)
        self._few = self._few or next(self._batches)[: self.program.trees]
        return self._few

    def step(self, trees: list[Tree]) -> tuple[Any, dict[str, Any]]:
        """The result of a step, and its seconds."""
        run = self.program.train if self.training else self.program.infer
        before, clock = self.program.compiling(), Clock()
        result = run(trees, clock)
        times: dict[str, Any] = clock.stop()
        return result, times | {'compile': self.program.compiling() - before}

    def check(self) -> dict[str, Any]:
        """Compares the first step with the reference.

        Raises:
          CheckError: they differ by more than the tolerance.
        """
        trees, weights = self.batch(), self.workload.weights()
        roots, expected = reference(weights, trees, self.workload.leaves)
        result, times = self.step(trees)
        if self.training:
            rootward = abs(result - roots.sum(1).mean()) / self.workload.hidden
            changed = (
                a - b for a, b in zip(weights, self.program.weights(), strict=True)
            )
            gradient = relative_error(Weights(*(x / RATE for x in changed)), expected)
            checksum = result / self.workload.hidden
        else:
            rootward, gradient = float(np.abs(result - roots).max()), None
            checksum = float(result.mean())
        require('the roots', rootward, ROOT_TOLERANCE)
        require('the gradients', gradient or 0.0, GRADIENT_TOLERANCE)
        errors = {'root_error': rootward, 'gradient_error': gradient}
        packages = ('numpy', *self.program.packages)
        versions = {name: metadata.version(name) for name in packages}
        facts = {'trees': len(trees), 'versions': versions, 'checksum': checksum}
        return facts | errors | times

    def answer(self, question: str) -> dict[str, Any]:
        """The answer to a question; what goes wrong is an answer too."""
        try:
            if question == 'check':
                return self.check()
            if question == 'step':
                return self.step(self.batch())[1]
            raise ValueError(f"expected 'check' or 'step', got {question!r}")
        except Exception as error:
            return {'error': f'{type(error).__name__}: {error}'}


def require(what: str, error: float, tolerance: float) -> None:
    """Raises `CheckError` unless the error is within the tolerance (NaN is not)."""
    if not error < tolerance:
        raise CheckError(
            f'expected {what} to be off by less than {tolerance:g}, got {error:.2e}'
        )


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ('leaves', 'hidden', 'batch', 'vocab', 'seed'):
        parser.add_argument(f'--{name}', type=int, default=getattr(Workload, name))
    parser.add_argument('--chains', action='store_true')
    parser.add_argument('--threads', type=int, default=os.cpu_count())
    parser.add_argument('--mode', choices=('infer', 'train'), default='infer')
    return parser.parse_args()


def serve(kind: type[Program]) -> None:
    """Runs a program until its input ends."""
    options = arguments()
    if hasattr(os, 'sched_setaffinity'):  # what XLA sizes its pool of threads by
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    server = Server(kind, options)
    for line in sys.stdin:
        print(json.dumps(server.answer(line.strip())), flush=True)
