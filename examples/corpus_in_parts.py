# SPDX-License-Identifier: Apache-2.0
"""Traces more examples than one process should hold, by workers of an existing engine.

The data are the functions of the running Python's own standard library. With Dask,
every worker reads some of the files and writes what it traced as one part of a corpus;
the parts are opened as one, and stay on disk. With grain, workers trace while batches
are taken, and nothing is written. Workers never start JAX. (grain is imported where it
is used, since it has them log all that they do.)
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from distributed import Client, LocalCluster
from syntax_trees import library_files, read_functions

import jfold as jf

MAX_NODES = 500  # of a function
Tree = tuple[Any, ...]  # a label, then the trees below


def make_block() -> jf.Block:
    """The number of nodes of a tree and its depth [2], without learning anything."""
    tree = jf.ForwardDeclaration()
    below = jf.InputTransform(lambda node: node[1:]) >> jf.Map(tree())
    sizes = below >> jf.Reduce(jf.Function(_beside), default=np.zeros(2, 'float32'))
    tree.resolve_to(sizes >> jf.Function(lambda x: x + 1))
    return tree()


def _beside(left: jax.Array, right: jax.Array) -> jax.Array:
    """Sizes add up, the deeper counts."""
    return jnp.stack([left[0] + right[0], jnp.maximum(left[1], right[1])])


def read_trees(paths: Sequence[Path]) -> Iterator[Tree]:
    """The functions in some files."""
    for path in paths:
        for function in read_functions(path, MAX_NODES):
            yield _tree(iter(function.nodes))


def _tree(nodes: Iterator[tuple[Any, int]]) -> Tree:
    label, children = next(nodes)
    return (label, *(_tree(nodes) for _ in range(children)))


# ---- by Dask: a corpus on disk -------------------------------------------------------


def write_part(tracer: jf.Tracer, paths: Sequence[Path], file: Path) -> None:
    """What a worker does: it holds the trees of its files alone."""
    tracer.save(read_trees(paths), file)


def trace_by_dask(
    model: jf.Model, paths: Sequence[Path], folder: Path, workers: int, parts: int
) -> jf.Corpus:
    """A corpus in parts, written by as many workers at once."""
    options = {'threads_per_worker': 1, 'dashboard_address': None}
    with LocalCluster(n_workers=workers, **options) as cluster, Client(cluster) as dask:
        tracer = dask.scatter(model.tracer(), broadcast=True)
        written = [
            dask.submit(write_part, tracer, paths[k::parts], folder / f'{k:05}.jfold')
            for k in range(parts)
        ]
        dask.gather(written)
    return jf.Corpus.load(folder, model)


# ---- by grain: batches as they are needed --------------------------------------------


def trace_by_grain(
    model: jf.Model, trees: list[Tree], size: int, workers: int
) -> Iterator[jf.Schedule]:
    """Schedules of shuffled batches; each process of a run takes its own examples."""
    import grain

    own = slice(jax.process_index(), None, jax.process_count())
    source = grain.MapDataset.source(trees).shuffle(seed=0)[own]
    lists = source.batch(size, batch_fn=list, drop_remainder=True)
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers)
    traced = lists.map(model.tracer()).to_iter_dataset().mp_prefetch(options)
    return map(model.schedule, traced)


# ---- the command line ----------------------------------------------------------------


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add('--workers', type=int, default=2, help='processes that trace')
    add('--parts', type=int, default=8, help='of the corpus')
    add('--files', type=int, help='of the library to read; all if left out')
    add('--quick', action='store_true', help='a small run that only shows it works')
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(files=40, parts=3)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Traces by either engine, and says what the largest function is."""
    options = read_options(argv)
    model, paths = jf.compile(make_block()), library_files()[: options.files]
    apply = functools.partial(model.apply, {})
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        given = paths, Path(folder), options.workers, options.parts
        corpus = trace_by_dask(model, *given)
        print(f'Dask, {options.workers} workers, {time.perf_counter() - start:.1f} s:')
        print(f'  {corpus} in {options.parts} parts')
        batches = model.batches(corpus, 64, shuffle=0)
        sizes = [np.asarray(apply(b.schedule))[: b.count] for b in batches]
    whole = np.concatenate(sizes)
    print(f'  {whole[:, 0].max():.0f} nodes at most, depth {whole[:, 1].max():.0f}')
    start = time.perf_counter()
    schedules = trace_by_grain(model, list(read_trees(paths)), 64, options.workers)
    nodes = sum(int(apply(each)[:, 0].sum()) for each in itertools.islice(schedules, 9))
    seconds = time.perf_counter() - start
    print(
        f'grain, {options.workers} workers, {seconds:.1f} s: {nodes} nodes in batches'
    )


if __name__ == '__main__':
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # grain wants absl's
    main()
