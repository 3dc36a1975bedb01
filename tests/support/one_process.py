# SPDX-License-Identifier: Apache-2.0
"""One of several processes that train together; run by `test_processes`.

    python tests/support/one_process.py PORT NUMBER

Prints what it found out, by job, as JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from agreement import agree_in_processes, parameters
from binary_trees import binary_tree, tree_block
from expressions import drawn
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding

import jfold as jf
from jfold.data import agreement as talks
from jfold.scheduling.spec import RESIDUALS, STRATEGIES


def with_paths(*paths: Path) -> dict[str, str]:
    """The environment of other processes, with the programs compiled in tests."""
    return os.environ | {
        'JAX_PLATFORMS': 'cpu',
        'PYTHONPATH': os.pathsep.join(map(str, paths)),
        'JAX_COMPILATION_CACHE_DIR': str(jax.config.jax_compilation_cache_dir),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }


DEVICES = 2  # of each process
SIZE, EXAMPLES = 8, 22
PROCESSES = 2  # that train together, while others wait


def trees(count: int = EXAMPLES) -> list[Any]:
    """Binary trees of 1 to 9 leaves."""
    rng = np.random.default_rng(0)
    return [binary_tree(rng, int(rng.integers(1, 10))) for _ in range(count)]


def loss(
    params: Any, model: jf.Model, schedule: jf.Schedule, weights: Any = None
) -> Any:
    """A number of all rows, each weighed; by default of those that are real."""
    weights = schedule.mask if weights is None else weights
    leaves = jax.tree.leaves(model.apply(params, schedule))
    return sum((jnp.square(x).sum(-1) * weights).sum() for x in leaves)


def compiled() -> tuple[jf.Model, Any]:
    """A model, and parameters in float64."""
    model = jf.compile(tree_block())
    return model, model.init(jax.random.key(0))


def train(model: jf.Model, params: Any, batches: Any, sharding: Any) -> list[Any]:
    """The losses of steps downhill, and what the parameters add up to in the end."""
    step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    values = []
    for batch in batches:
        weights = np.cos(batch.indices) * batch.mask
        if sharding is not None:  # of the rows of this process, or of all
            shape = (SIZE,)
            weights = jax.make_array_from_process_local_data(sharding, weights, shape)
        value, grads = step(params, model, batch.schedule, weights)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        values.append(float(value))
    return [*values, float(sum(jnp.sum(x) for x in jax.tree.leaves(params)))]


# ---- what a process does -------------------------------------------------------------


def of_corpus(sharding: Any) -> Any:
    """Every process knows all examples, and schedules its own."""
    model, params = compiled()
    corpus = model.trace(trees(), progress=False)
    rows = NamedSharding(sharding.mesh, jax.P())
    batches = model.batches(corpus, SIZE, shuffle=1, sharding=sharding)
    found = train(model, params, batches, rows)
    return [*found, model.programs]


def of_streams(sharding: Any) -> Any:
    """Each process has examples of its own, of other sizes."""
    model, params = compiled()
    stream = dealt(SIZE // PROCESSES, jax.process_index())
    batches = model.batches(stream, SIZE, sharding=sharding)
    return [*train(model, params, batches, sharding), model.programs]


def dealt(half: int, number: int) -> Iterator[Any]:
    """The part of a process in each batch of all examples."""
    data = trees(2 * SIZE)
    for first in range(0, len(data), SIZE):
        yield from data[first + number * half : first + (number + 1) * half]


def of_schedules(sharding: Any) -> Any:
    """Each process gives its own part of a batch, and then what a tracer made of it."""
    model, params = compiled()
    data = trees(7)
    own = data[:4] if not jax.process_index() else data[4:]
    tracer = pickle.loads(pickle.dumps(model.tracer()))
    traced = model.schedule(pickle.loads(pickle.dumps(tracer(own))), sharding=sharding)
    schedule = model.schedule(own, sharding=sharding)
    weights = np.asarray(schedule.mask.addressable_shards[0].data)  # of the first shard
    step = jax.jit(loss, static_argnums=1)
    values = [float(step(params, model, x)) for x in (schedule, traced)]
    text = model.explain(schedule)
    return [values, schedule.examples, weights.tolist(), repr(schedule), text]


def of_expressions(sharding: Any) -> Any:
    """Numbers of generated expressions, and how many of these have metrics."""
    found, metrics, leaf_or_tree = [], 0, [1, 2, 3, (4, 5), ((6, 7), 8)]
    cases = [(jf.compile(tree_block()), lambda _, count: leaf_or_tree[-count:])]
    cases += [generated(seed) for seed in (0, 2)]
    for model, batch in cases:
        params = parameters(model)
        for count in (5, 1):  # the second process has two, then none
            examples = batch(np.random.default_rng(2), count)
            own = examples[3:] if jax.process_index() else examples[:3]
            found += [agree_in_processes(model, params, examples, own, sharding)]
        metrics += len(model.program.metric_results) > 0
    return [found, metrics]


def generated(seed: int) -> tuple[jf.Model, Any]:
    """A model of a drawn expression, the same in each process, and what draws data."""
    rng = np.random.default_rng(seed)
    made = drawn(lambda last: int(rng.integers(last + 1)), dtype='float64')
    options = {'residuals': RESIDUALS[seed % 2], 'strategy': STRATEGIES[seed // 2 % 2]}
    return jf.compile(made.block, **options), made.batch


def refused(*_: Any, **__: Any) -> None:
    """Stands where processes would compare what each has."""
    raise AssertionError('expected no collective')


@mock.patch.object(multihost_utils, 'assert_equal', refused)
def of_shared_shards(sharding: Any) -> Any:
    """All have devices of every shard, along an axis of their own; nobody compares what
    each gives, from whatever thread."""
    devices = sharding.mesh.devices.reshape(-1, DEVICES).T  # [shards, processes]
    mesh = Mesh(devices, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
    shared = NamedSharding(mesh, jax.P('data'))
    model, params = compiled()
    data = trees(SIZE)
    value = jax.jit(loss, static_argnums=1)
    found = [value(params, model, model.schedule(data, sharding=shared), 1.0)]
    for source in (model.trace(data, progress=False), iter(data)):
        run = model.batches(source, SIZE, sharding=shared)
        found += [value(params, model, batch.schedule, 1.0) for batch in run]
    try:
        model.predict(params, data, sharding=shared)
    except ValueError as error:
        return [*map(float, found), str(error)]
    return None


def of_some(sharding: Any) -> Any:
    """The last process has no part in the first batches, but in those after them."""
    model, params = compiled()
    value = jax.jit(loss, static_argnums=1)
    number, data, found = jax.process_index(), trees(SIZE), []
    for count in (PROCESSES, PROCESSES + 1):
        if number >= count:
            continue
        where = over(count)
        own = data[number * 2 : number * 2 + 2]
        schedule = model.schedule(own, sharding=where)
        run = model.batches(iter(own), 2 * count, sharding=where)
        found += [value(params, model, schedule, 1.0)]
        found += [value(params, model, batch.schedule, 1.0) for batch in run]
    return [*map(float, found)]


def stopped(sharding: Any) -> Any:
    """The state of streams after a batch, and what comes after it."""
    model, params = compiled()
    stream = dealt(SIZE // PROCESSES, jax.process_index())
    batches = model.batches(stream, SIZE, sharding=sharding)
    next(batches)
    state = {name: x.tolist() for name, x in batches.state().items()}
    value = jax.jit(loss, static_argnums=1)
    return [
        state,
        [float(value(params, model, batch.schedule, 1.0)) for batch in batches],
    ]


def bad_example(sharding: Any) -> Any:
    """One process has an example that does not fit, in a stream and in one batch.

    Then all go on with good ones.
    """
    model, _ = compiled()
    data: list[Any] = trees(8)
    if jax.process_index():
        data[5] = 'no tree'
    of_stream = told(model.batches(iter(data), SIZE, sharding=sharding))
    errors = []
    for examples in data[4:], data[4:], data[:4]:
        try:
            model.schedule(examples, sharding=sharding)
        except (jf.InputError, RuntimeError) as error:
            errors.append(type(error).__name__)
    return of_stream, errors


def end_of_data(sharding: Any) -> Any:
    """One process has fewer batches than the others."""
    model, _ = compiled()
    data = trees(8 - 4 * jax.process_index())
    return told(model.batches(iter(data), SIZE, sharding=sharding))


def silence(sharding: Any) -> Any:
    """One process does not take part."""
    talks.PATIENCE = 2.0
    model, _ = compiled()
    batches = model.batches(iter(trees(4)), SIZE, sharding=sharding)
    return told(iter(()) if jax.process_index() else batches)


def told(batches: Any) -> str:
    """What ends some batches, and how many there were."""
    count = 0
    try:
        for _ in batches:
            count += 1
    except (jf.InputError, RuntimeError) as error:
        return f'{count}: {type(error).__name__}: {error}'
    return f'{count}: no error'


JOBS = (
    *(of_some, of_corpus, of_streams, of_schedules),
    *(of_expressions, of_shared_shards, stopped),
    *(bad_example, end_of_data, silence),
)


def over(processes: int) -> NamedSharding:
    """Examples dealt to the devices of the first processes."""
    devices = jax.devices()[: processes * DEVICES]
    mesh = Mesh(devices, 'data', axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, jax.P('data'))


def main() -> None:
    """Runs all jobs in one of the processes; those behind the first do one alone."""
    port, number = sys.argv[1:]
    jax.config.update('jax_enable_x64', True)
    jax.config.update('jax_num_cpu_devices', DEVICES)
    jax.distributed.initialize(f'127.0.0.1:{port}', PROCESSES + 1, int(number))
    jobs = JOBS if int(number) < PROCESSES else [of_some]
    print(json.dumps({x.__name__: x(over(PROCESSES)) for x in jobs}), flush=True)


if __name__ == '__main__':
    main()
