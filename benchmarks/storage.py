# SPDX-License-Identifier: Apache-2.0
"""Arrays of 1 GB in one file, in a folder of `.npy` files, and in safetensors.

    python benchmarks/storage.py [--quick] [--folder PATH] [--bytes N]

Each is written (and synced), opened, and read from as batches are: rows of 256 examples
out of every array. Then parts are opened until the system has no more files or maps for
them. A second table is of a corpus of as many bytes. What is written is deleted.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from measuring import begin, jax_parser
from options import fill, say
from report import Row
from trees import expression, random_tree
from turns import clocked

import jfold as jf
from jfold.files import storage

Arrays = dict[str, Any]
ARRAYS = 60
FILES = 1024  # that a process may have open, on most systems


def write_folder(path: Path, arrays: Arrays) -> None:
    """A `.npy` for each array beside a manifest, renamed last."""
    made, manifest = path.with_suffix('.tmp'), {}
    made.mkdir()
    for n, (name, array) in enumerate(arrays.items()):
        with open(made / f'{n}.npy', 'wb') as file:
            np.save(file, array, allow_pickle=False)
            os.fsync(file.fileno())
        manifest[name] = [f'{n}.npy', zlib.crc32(array)]
    (made / 'manifest.json').write_text(json.dumps(manifest))
    made.rename(path)


def read_folder(path: Path) -> Arrays:
    """Maps of all files of a folder."""
    manifest = json.loads((path / 'manifest.json').read_text())
    return {k: np.load(path / x, mmap_mode='r') for k, (x, _) in manifest.items()}


def contenders() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """By name, what writes and what opens."""
    found: dict[str, Any] = {
        'one file': (
            lambda path, arrays: storage.write(path, arrays, {}),
            lambda path: storage.read(path, verify=False)[0],
        ),
        'one file, checksums compared': (
            lambda path, arrays: storage.write(path, arrays, {}),
            lambda path: storage.read(path)[0],
        ),
        'folder of .npy': (write_folder, read_folder),
    }
    try:
        from safetensors import numpy as safe
    except ImportError:
        say('safetensors is not installed')
        return found

    def write(path: Path, arrays: Arrays) -> None:
        safe.save_file(arrays, path)
        with open(path, 'r+b') as file:
            os.fsync(file.fileno())

    return found | {'safetensors': (write, safe.load_file)}


def anonymous() -> float:
    """The memory that this process has for itself, maps of files left out [MB]."""
    (found,) = re.findall(r'RssAnon:\s+(\d+)', Path('/proc/self/status').read_text())
    return int(found) / 1024


def read_batch(arrays: Arrays, seed: int) -> int:
    """Copies the rows of 256 random examples, 10 in a row of each array."""
    rng = np.random.default_rng(seed)
    total = 0
    for array in arrays.values():
        first = rng.integers(0, len(array) - 10, 256)
        total += int(array[first[:, None] + np.arange(10)].sum())
    return total


def opened_parts(read: Callable[..., Any], path: Path) -> str:
    """How often a small part can be opened, and what it says then."""
    limits, kept = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, limits[1]))
    try:
        while len(kept) < 2 * FILES:
            kept.append(read(path))
        return f'{len(kept)} or more'
    except Exception as error:
        return f'{len(kept)}, then {str(error)[:40]}'
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def one_round(write: Any, read: Any, path: Path, arrays: Arrays) -> list[float]:
    """Seconds to write, ms to open, MB that this takes, ms a batch."""
    _, written = clocked(lambda: write(path, arrays))
    before = anonymous()
    maps, opened = clocked(lambda: read(path))
    memory = anonymous() - before
    _, batches = clocked(lambda: [read_batch(maps, n) for n in range(20)])
    remove(path)
    return [written, 1e3 * opened, memory, 1e3 * batches / 20]


def measure(folder: Path, size: int, rounds: int) -> list[Row]:
    """A row of each contender, with medians of some rounds."""
    count = size // ARRAYS // 4
    arrays = {f'table/{n}': np.arange(n, n + count, dtype='i4') for n in range(ARRAYS)}
    small = {name: array[:100] for name, array in arrays.items()}
    runs: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        for name, (write, read) in contenders().items():
            run = one_round(write, read, folder / 'a', arrays)
            runs.setdefault(name, []).append(run)
    rows = []
    heads = 'write [s]', 'open [ms]', 'memory [MB]', 'a batch [ms]'
    for name, (write, read) in contenders().items():
        write(folder / 'small', small)
        medians = np.median(runs[name], axis=0).round(2).tolist()
        row = dict(zip(heads, medians, strict=True))
        parts = opened_parts(read, folder / 'small')
        rows.append({'arrays': name, **row, 'parts': parts})
        remove(folder / 'small')
    return rows


def remove(path: Path) -> None:
    """Deletes a file or a folder of files."""
    if path.is_dir():
        for each in path.iterdir():
            each.unlink()
        path.rmdir()
    else:
        path.unlink()


def measure_corpus(folder: Path, size: int) -> Row:
    """Saving, opening and scheduling of a corpus of so many bytes."""
    rng, model = random.Random(0), jf.compile(expression(4))
    one = model.trace([random_tree(64, rng) for _ in range(500)], progress=False)
    corpus = model.join([one] * -(-size // one.nbytes))
    path = folder / 'corpus.jfold'
    _, saved = clocked(lambda: corpus.save(path))
    before = anonymous()
    loaded, opened = clocked(lambda: jf.Corpus.load(path, model, verify=False))
    memory = anonymous() - before
    _, verified = clocked(lambda: jf.Corpus.load(path, model))
    chosen = np.random.default_rng(0).integers(0, len(corpus), (40, 256))
    mapped, in_memory = (
        clocked(lambda each=each: [each.schedule(x) for x in chosen])[1]
        for each in (loaded, corpus)
    )
    remove(path)
    return {
        'corpus': f'{corpus.nbytes / 1e9:.2f} GB',
        'save [s]': saved,
        'open [ms]': 1e3 * opened,
        'memory [MB]': memory,
        'open and check all [s]': verified,
        'a batch of 256, mapped [ms]': 1e3 * mapped / len(chosen),
        'in memory [ms]': 1e3 * in_memory / len(chosen),
    }


def main() -> None:
    """Measures, and prints two tables."""
    parser = jax_parser(__doc__ or '')
    parser.add_argument('--folder', type=Path, help='where to write')
    parser.add_argument('--bytes', type=int, help='of all arrays (default 1e9)')
    options = fill(
        parser.parse_args(), {'bytes': 10**9, 'repeats': 3}, {'bytes': 10**7}
    )
    report = begin('Arrays in files', options)
    with TemporaryDirectory(dir=options.folder) as folder:
        report.rows += measure(Path(folder), options.bytes, options.repeats)
        report.add(measure_corpus(Path(folder), options.bytes))
    report.close()


if __name__ == '__main__':
    main()
