# SPDX-License-Identifier: Apache-2.0
"""Trains in several processes at once, and goes on after one of them has died.

Starts as many processes of itself as are asked for, here on one machine, where they
find each other by `jax.distributed`; on a cluster its own launcher would. All open one
corpus, each schedules what its own devices run, and gradients are summed over all.
Orbax keeps parameters, the optimizer's state and the place in the data: run again with
the same folder, in as many processes or in others, the training goes on from there.

What is learned is how much an expression of sums and differences comes to.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding
from training import make_step, mean_square

import jfold as jf

HIDDEN, DIGITS = 32, 10
TEST = 512  # trees held out; shared evenly by 1, 2, 4 ... devices
HEARTBEAT = 10  # seconds until a process that is not heard of counts as dead
Tree = int | tuple[str, 'Tree', 'Tree']


def make_block() -> jf.Block:
    """What an expression comes to, from a vector for each of its parts."""

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        scale = (2 * HIDDEN) ** -0.5
        return {'w': scale * jax.random.normal(key, (2 * HIDDEN, HIDDEN))}

    def join(params: Any, left: jax.Array, right: jax.Array) -> jax.Array:
        both = jnp.concatenate([left, right])
        return jnp.tanh(both @ params['w']) + (left + right) / 2

    def operation(name: str) -> jf.Block:
        below = jf.GetItem(1) >> tree(), jf.GetItem(2) >> tree()
        return jf.AllOf(*below) >> jf.Function(join, draw, name=name)

    tree = jf.ForwardDeclaration()
    table = jf.Function(
        lambda params, digit: params[digit],
        lambda key: jax.random.normal(key, (DIGITS, HIDDEN)),
        name='digits',
    )
    cases = {'+': operation('plus'), '-': operation('minus')}
    inner = jf.OneOf(jf.GetItem(0), cases)
    tree.resolve_to(jf.OneOf(type, {int: jf.Scalar('int32') >> table, tuple: inner}))
    weights = lambda key: 0.1 * jax.random.normal(key, (HIDDEN,))  # noqa: E731
    return tree() >> jf.Function(lambda w, x: w @ x, weights, name='value')


def random_tree(rng: random.Random, depth: int) -> Tree:
    """Digits joined by signs."""
    if depth == 0 or rng.random() < 0.2:
        return rng.randrange(DIGITS)
    sign = rng.choice('+-')
    return sign, random_tree(rng, depth - 1), random_tree(rng, depth - 1)


def value(tree: Tree) -> int:
    """What an expression comes to."""
    if isinstance(tree, int):
        return tree
    sign, left, right = tree
    return value(left) + value(right) * (1 if sign == '+' else -1)


# ---- one of the processes ------------------------------------------------------------


def train(options: argparse.Namespace) -> None:
    """What each process does; the first of them tells."""
    mesh = join_run(options)
    everywhere = NamedSharding(mesh, jax.P())
    sharding = NamedSharding(mesh, jax.P('data'))
    model = jf.compile(make_block())
    corpora = open_corpora(model, options.folder)
    run = {'shuffle': options.seed, 'epochs': options.epochs, 'sharding': sharding}
    batches = model.batches(corpora['train'].trees, options.batch_size, **run)
    optimizer = optax.adam(options.rate)
    step = make_step(partial(mean_square, model), optimizer)
    params = model.init(jax.random.key(options.seed))
    made = jax.device_put((params, optimizer.init(params)), everywhere)
    with ocp.CheckpointManager(options.folder / 'checkpoints') as manager:
        now, number = resume(manager, made, batches), manager.latest_step() or 0
        for batch in batches:
            number = int(batches.state()['batches'])
            if number == options.kill_at and is_last(options):
                os.kill(os.getpid(), signal.SIGKILL)
            targets = copies(everywhere, corpora['train'].targets[batch.indices])
            *now, loss = step(*now, batch.schedule, targets)
            if number % options.every == 0:
                tell(f'step {number}: loss {float(loss):.3f}')
                keep(manager, number, now, batches)
        keep(manager, number, now, batches)
    test = corpora['test']
    schedule = test.trees.schedule(range(TEST), sharding=sharding)
    found = mean_square(model, now[0], schedule, copies(everywhere, test.targets))
    mean = np.mean((test.targets - corpora['train'].targets.mean()) ** 2)
    tell(f'{number} steps; squared error on others {found:.3f}, of the mean {mean:.3f}')


def join_run(options: argparse.Namespace) -> jax.sharding.Mesh:
    """Meets the other processes; gives the devices of all."""
    jax.config.update('jax_num_cpu_devices', options.devices)
    jax.distributed.initialize(
        f'127.0.0.1:{options.port}',
        options.processes,
        options.number,
        heartbeat_timeout_seconds=HEARTBEAT,
    )
    return jax.make_mesh((len(jax.devices()),), ('data',), (AxisType.Auto,))


def copies(everywhere: NamedSharding, x: np.ndarray) -> jax.Array:
    """An array that all processes have, on all devices, without asking the others."""
    return jax.make_array_from_process_local_data(everywhere, x)


@dataclass(frozen=True)
class Part:
    """Trees in a file, and what they come to [trees]."""

    trees: jf.Corpus
    targets: np.ndarray


def open_corpora(model: jf.Model, folder: Path) -> dict[str, Part]:
    """What `prepare` wrote; trees stay in their files."""
    return {
        name: Part(
            jf.Corpus.load(folder / f'{name}.jfold', model),
            np.load(folder / f'{name}.npy'),
        )
        for name in ('train', 'test')
    }


def resume(manager: ocp.CheckpointManager, made: Any, batches: jf.Batches) -> Any:
    """Parameters and state of the last checkpoint, after which the batches go on; or
    those given, if there is none."""
    if manager.latest_step() is None:
        return made
    wanted = {'now': made, 'data': batches.state()}
    found = manager.restore(
        manager.latest_step(), args=ocp.args.StandardRestore(wanted)
    )
    batches.restore(found['data'])
    tell(f'goes on after step {manager.latest_step()}')
    return found['now']


def keep(
    manager: ocp.CheckpointManager, number: int, now: Any, batches: jf.Batches
) -> None:
    """Writes a checkpoint, unless there is one of this step."""
    if number != manager.latest_step():
        tree = {'now': tuple(now), 'data': batches.state()}
        manager.save(number, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()


def is_last(options: argparse.Namespace) -> bool:
    """Whether this process has the highest number."""
    return bool(options.number == options.processes - 1)


def tell(line: str) -> None:
    """Prints, in the first process."""
    if not jax.process_index():
        print(line, flush=True)


# ---- all of them ---------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> None:
    """Writes the corpora that all processes open, and what the trees come to."""
    rng, tracer = random.Random(options.seed), jf.compile(make_block()).tracer()
    for name, count in {'train': options.trees, 'test': TEST}.items():
        trees = [random_tree(rng, 6) for _ in range(count)]
        tracer.save(trees, options.folder / f'{name}.jfold')
        values = np.array([*map(value, trees)], 'float32')
        np.save(options.folder / f'{name}.npy', values)


def start(options: argparse.Namespace) -> list[int]:
    """Starts all processes; gives their exit codes once they have ended."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, f'--port={port}', f'--folder={options.folder}']
    for name in PASSED_ON:
        command.append(f'--{name.replace("_", "-")}={getattr(options, name)}')
    numbers = range(options.processes)
    running = [subprocess.Popen([*command, f'--number={i}']) for i in numbers]
    return [process.wait() for process in running]


PASSED_ON = (
    *('processes', 'devices', 'epochs', 'batch_size', 'every', 'rate', 'seed'),
    'kill_at',
)


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add('--processes', type=int, default=2, help='that train together')
    add('--devices', type=int, default=1, help='of each')
    add('--folder', type=Path, help='for data and checkpoints; a run goes on in it')
    add('--trees', type=int, default=5_000, help='to learn from')
    add('--epochs', type=int, default=10, help='passes over them')
    add('--batch-size', type=int, default=64, help='examples in a batch')
    add('--every', type=int, default=100, help='steps from checkpoint to checkpoint')
    add('--rate', type=float, default=0.003, help='of learning')
    add('--seed', type=int, default=0, help='repeats a run')
    add('--kill-at', type=int, default=-1, help='a step at which one process dies')
    add('--quick', action='store_true', help='a small run that only shows it works')
    add('--port', type=int, help=argparse.SUPPRESS)
    add('--number', type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(trees=60, epochs=min(options.epochs, 2))
        vars(options).update(batch_size=8, every=5)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Starts the processes, or is one."""
    options = read_options(argv)
    if options.number is not None:
        return train(options)
    with tempfile.TemporaryDirectory() as temporary:
        options.folder = (options.folder or Path(temporary)).absolute()
        options.folder.mkdir(parents=True, exist_ok=True)
        if not (options.folder / 'test.npy').exists():
            prepare(options)
        codes = start(options)
    if any(codes):
        raise SystemExit(f'processes ended with codes {codes}: run again to go on')
    return None


if __name__ == '__main__':
    main()
