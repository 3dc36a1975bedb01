# SPDX-License-Identifier: Apache-2.0
"""A stored file is read as it was written, all of it or nothing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from checking import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from stored_files import FACTS, SMALL, alike, same, unchanged

from jfold.data import storage
from jfold.data.storage import read, write

Array = np.ndarray[Any, Any]

NUMPY = [np.dtype(code) for code in '?bhilqBHILQefdgFDG']
SWAPPED = [dtype.newbyteorder() for dtype in NUMPY if dtype.itemsize > 1]
EXTENDED = [
    np.dtype(each)
    for each in vars(ml_dtypes).values()
    if isinstance(each, type) and issubclass(each, np.generic)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that holds `SMALL` and `FACTS`, alone in its folder."""
    path = tmp_path / 'a.npz'
    write(path, SMALL, FACTS)
    return path


# ---- what is written is read ---------------------------------------------------------


@st.composite
def any_array(draw: st.DrawFn) -> Array:
    """Any bits, of any dtype and shape, in any order."""
    dtype = draw(st.sampled_from(NUMPY + SWAPPED + EXTENDED))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    size = math.prod(shape) * dtype.itemsize
    array = rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)
    return draw(st.sampled_from([array, array.T, np.asfortranarray(array)]))


NAMES = st.text(st.characters(exclude_categories=['Cs'], exclude_characters='\0'))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), FINITE, st.text()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=150)
@given(
    st.dictionaries(NAMES, any_array(), max_size=4),
    st.dictionaries(st.text(), JSON, max_size=3),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Array], facts: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / 'round-trip.npz'
    write(path, arrays, facts)
    for verify in (True, False):
        got, metadata = read(path, verify=verify)
        alike(got, arrays)
        assert metadata == facts
        assert all(x.ctypes.data % 64 == 0 for x in got.values())
    with np.load(path) as loaded:
        for name, array in arrays.items():
            assert loaded[name].shape == array.shape
            assert loaded[name].tobytes() == array.tobytes()
            assert array.dtype in EXTENDED or loaded[name].dtype == array.dtype
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(arrays) + 1


@pytest.mark.parametrize('dtype', NUMPY + SWAPPED + EXTENDED, ids=lambda x: x.str)
def test_every_dtype(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    bits = np.random.default_rng(0).integers(0, 256, 8 * dtype.itemsize, np.uint8)
    arrays = {'x': bits.view(dtype), 'strided': bits.view(dtype)[::-3]}
    write(tmp_path / 'a', arrays, {})
    alike(read(tmp_path / 'a')[0], arrays)


CHUNKED = {
    'contiguous': np.arange(3_000_000, dtype='int32'),
    'transposed': np.arange(3_000_000, dtype='int16').reshape(3, 1000, 1000).T,
    'reversed': np.arange(3_000_000)[::-2],
    'broadcast': np.broadcast_to(np.arange(3.0), (200_000, 3)),
    'columns': np.arange(1_200_000).astype('bfloat16').reshape(1000, 1200)[:, 1::3],
}


@pytest.mark.parametrize('array', CHUNKED.values(), ids=CHUNKED)
def test_arrays_of_many_chunks(tmp_path: Path, array: Array) -> None:
    write(tmp_path / 'a', {'x': array, 'jax': jnp.zeros(3, 'bfloat16')}, {})
    alike(read(tmp_path / 'a')[0], {'x': array, 'jax': np.zeros(3, 'bfloat16')})


def test_metadata_that_json_spells_otherwise(tmp_path: Path) -> None:
    write(tmp_path / 'a', {}, {'shape': (2, [3]), 'é\0\ud800': np.float64(0.1)})
    assert read(tmp_path / 'a') == ({}, {'shape': [2, [3]], 'é\0\ud800': 0.1})


def test_the_file_says_what_it_is(path: Path) -> None:
    arrays = {
        'w': {'dtype': '<f4', 'shape': [2, 3]},
        'layers/bias': {'dtype': 'bfloat16', 'shape': [5]},
        'empty': {'dtype': '|i1', 'shape': [0, 3]},
        'scalar': {'dtype': '|b1', 'shape': []},
    }
    said = {'format': 'jfold.arrays', 'version': 1, 'arrays': arrays, 'metadata': FACTS}
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ['metadata.json', *(f'{x}.npy' for x in SMALL)]
        assert json.loads(archive.read('metadata.json')) == said


def test_equal_content_is_equal_files_with_the_usual_permissions(path: Path) -> None:
    again, plain = path.with_name('b'), path.with_name('c')
    write(again, SMALL, FACTS)
    assert again.read_bytes() == path.read_bytes()
    plain.touch()
    assert again.stat().st_mode == plain.stat().st_mode


# ---- maps ----------------------------------------------------------------------------


def test_arrays_are_read_only(path: Path) -> None:
    for array in read(path)[0].values():
        assert not array.flags.writeable
        with pytest.raises(ValueError, match='WRITEABLE'):
            array.flags.writeable = True
        with pytest.raises(ValueError, match='read-only'):
            array[...] = 0


def test_maps_outlive_the_file(path: Path) -> None:
    old, _ = read(path)
    write(path, {'w': old['w'] + 1}, {})
    alike(old, SMALL)
    same(read(path)[0]['w'], SMALL['w'] + 1)
    path.unlink()
    alike(old, SMALL)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each access to a file that is being read took."""
    counts, at = [], storage._Source.at

    def counting(source: Any, offset: int, count: int) -> bytes:
        found = at(source, offset, count)
        counts.append(len(found))
        return found

    monkeypatch.setattr(storage._Source, 'at', counting)
    return counts


def test_data_are_read_for_checksums_only(tmp_path: Path, taken: list[int]) -> None:
    array = np.arange(1 << 20, dtype='int32')
    write(tmp_path / 'a', {'x': array}, {})
    read(tmp_path / 'a')
    assert sum(taken) > array.nbytes
    assert max(taken) <= 1 << 20
    taken.clear()
    same(read(tmp_path / 'a', verify=False)[0]['x'], array)
    assert sum(taken) < 2000


def resident(path: Path) -> int:
    """How many bytes of a file's maps are in memory."""
    maps = Path('/proc/self/smaps')
    if not maps.exists():
        pytest.skip('the system does not tell')
    one = rf'{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+)'
    return 1024 * sum(map(int, re.findall(one, maps.read_text())))


@pytest.fixture
def huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file with a hole of 5 GiB in its first array, which has no checksum."""
    chunks, path = storage._chunks, tmp_path / 'huge.npz'
    arrays = {'large': np.broadcast_to(np.uint8(0), 5 << 30), 'small': SMALL['w']}

    def some(array: Array) -> Any:
        return () if array.size == 5 << 30 else chunks(array)

    with monkeypatch.context() as patch:
        patch.setattr(storage, '_chunks', some)
        write(path, arrays, {})
    yield path
    path.unlink()


def test_huge_files_are_mapped_not_read(huge: Path, taken: list[int]) -> None:
    arrays, _ = read(huge, verify=False)
    assert sum(taken) < 2000
    assert arrays['large'].shape == (5 << 30,)
    assert arrays['large'][-1] == 0
    same(arrays['small'], SMALL['w'])
    assert 0 < resident(huge) < 1 << 20
    with zipfile.ZipFile(huge) as archive:
        assert archive.infolist()[-1].header_offset > 5 << 30
    with np.load(huge) as loaded:
        same(loaded['small'], SMALL['w'])


@pytest.mark.parametrize('order', ['C', 'F'])
def test_writing_copies_no_array(tmp_path: Path, order: Any) -> None:
    array = np.ones((2048, 2048), order=order)  # 32 MiB
    tracemalloc.start()
    write(tmp_path / 'a', {'x': array}, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 << 20


# ---- what cannot be written ----------------------------------------------------------

DTYPES = [
    (np.array([None]), 'object; objects would have to be pickled'),
    (np.array(['text']), '<U4'),
    (np.zeros(2, [('x', 'i4')]), "[('x', '<i4')]"),
    (np.zeros(2, 'M8[s]'), 'datetime64[s]'),
    (np.zeros(2, np.dtype('bfloat16').newbyteorder()), '>V2'),
]
TEXT = 'expected a name of UTF-8 without NUL, of at most 65531 bytes; choose another'
TAKEN = '`np.load` would take it for the member of this name; choose another'
NAMES_REFUSED = [
    ('a\0b', f"array 'a\\x00b': {TEXT}", ValueError),
    ('\ud800', f"array '\\ud800': {TEXT}", ValueError),
    (65532 * 'x', f"array '{60 * 'x'}': {TEXT}", ValueError),
    ('a.npy', f"array 'a.npy': {TAKEN}", ValueError),
    ('metadata.json', f"array 'metadata.json': {TAKEN}", ValueError),
    (3, 'expected names of arrays to be str, got 3 (int)', TypeError),
]
KINDS = 'expected None, bool, int, float, str, list or dict'
CURE = 'convert it, or put it among the arrays'
NUMBER = 'expected a finite number, got nan, which JSON lacks; use None or a string'
FACTS_REFUSED = [
    ([{'b': {1}}], f"metadata['a'][0]['b']: {KINDS}, got set; {CURE}", TypeError),
    (np.int32(3), f"metadata['a']: {KINDS}, got int32; {CURE}", TypeError),
    ({1: 2}, "metadata['a']: expected keys to be str, got 1", TypeError),
    ((math.nan,), f"metadata['a'][0]: {NUMBER}", ValueError),
]
NUMERIC = "array 'w': expected numbers or bools, got dtype"
ZEROS = np.zeros(2)
REFUSED: list[tuple[Any, Any, str, type[Exception]]] = [
    *(({'w': array}, {}, f'{NUMERIC} {rest}', TypeError) for array, rest in DTYPES),
    *(({'a': ZEROS, name: ZEROS}, {}, *rest) for name, *rest in NAMES_REFUSED),
    *(({}, {'a': fact}, *rest) for fact, *rest in FACTS_REFUSED),
]


@pytest.mark.parametrize('case', REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_written_is_refused(path: Path, case: Any) -> None:
    arrays, facts, message, error = case
    with refuses(message, error):
        write(path, arrays, facts)
    unchanged(path)


def test_the_longest_name(tmp_path: Path) -> None:
    write(tmp_path / 'a', {65531 * 'x': SMALL['w']}, {})
    alike(read(tmp_path / 'a')[0], {65531 * 'x': SMALL['w']})


# ---- all or nothing ------------------------------------------------------------------


def test_a_file_is_complete_on_disk_before_it_takes_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(number: int) -> None:
        fsync(number)
        synced.append((os.fstat(number).st_ino, os.fstat(number).st_size))

    def watched_replace(source: Path, target: Path) -> None:
        assert (source.parent, target) == (path.parent, path)
        assert synced == [(source.stat().st_ino, source.stat().st_size)]
        alike(read(path)[0], SMALL)
        replace(source, target)

    monkeypatch.setattr(os, 'fsync', watched_fsync)
    monkeypatch.setattr(os, 'replace', watched_replace)
    write(path, {'x': SMALL['w']}, {})
    alike(read(path)[0], {'x': SMALL['w']})


@pytest.mark.parametrize('error', [OSError('full'), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize('where', ['zlib.crc32', 'os.fsync', 'os.replace'])
def test_errors_leave_the_old_file_and_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    def fails(*_: Any) -> Any:
        assert len(os.listdir(path.parent)) == 2
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(where, fails)
        write(path, {'x': np.zeros(1000)}, {})
    unchanged(path)


def test_errors_of_the_system_stay(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / 'none')
    with pytest.raises(FileNotFoundError):
        write(tmp_path / 'none' / 'a', {}, {})
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    (tmp_path / 'folder').mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / 'folder', {}, {})
    assert os.listdir(tmp_path) == ['folder']


@pytest.mark.parametrize('name', ['', 'target'])
def test_a_full_disk_leaves_the_old_file(path: Path, name: str) -> None:
    """The system says that the file grows too large; the error names it."""
    if name:  # behind a link, which stays one
        path.symlink_to(path.rename(path.with_name(name)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match='too large') as caught:
            write(path, {'x': np.zeros(20_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(path) in str(caught.value)
    assert sorted(os.listdir(path.parent)) == sorted({path.name, name or path.name})
    alike(read(path)[0], SMALL)
    write(path, {'x': SMALL['w']}, {})
    alike(read(path)[0], {'x': SMALL['w']})
    assert path.is_symlink() == bool(name)


def test_no_device_is_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match='got that of a device or pipe'):
        write(pipe, {}, {})
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ['pipe']


def test_two_writers_do_not_mix(path: Path) -> None:
    def writes(number: int) -> None:
        for _ in range(20):
            write(path, {'x': np.full(50_000, number)}, {'number': number})

    write(path, {'x': np.zeros(50_000, int)}, {'number': 0})
    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(writes, number) for number in (1, 2)]
        while not all(each.done() for each in writers):
            arrays, facts = read(path)
            assert (arrays['x'] == facts['number']).all()
    assert [each.result() for each in writers] == [None, None]
    assert os.listdir(path.parent) == [path.name]


# The module alone, without what the package imports.
WRITER = """
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location('storage', sys.argv[1])
storage = sys.modules['storage'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(storage)
import numpy as np
if sys.argv[3]:
    setattr(os, sys.argv[3], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
number = int(sys.argv[4])
while True:
    number += 1
    storage.write(sys.argv[2], {'x': np.full(1 << 21, number)}, {'number': number})
"""


def writer(path: Path, killed_at: str, number: int) -> subprocess.Popen[bytes]:
    """A process that writes 16 MiB again and again, counting from `number`."""
    command = [sys.executable, '-c', WRITER, storage.__file__, path, killed_at]
    return subprocess.Popen([*command, str(number)])


@pytest.mark.parametrize('place', ['fsync', 'replace'])
def test_death_before_the_end_leaves_the_old_file(path: Path, place: str) -> None:
    assert writer(path, place, 0).wait() == -signal.SIGKILL
    (rest,) = set(os.listdir(path.parent)) - {path.name}
    path.with_name(rest).unlink()
    unchanged(path)


def left(folder: Path) -> list[int]:
    """The sizes of files that are being written, or were."""
    return [each.stat().st_size for each in folder.iterdir() if each.suffix == '.tmp']


def kill_while_it_writes(
    process: subprocess.Popen[bytes], path: Path, size: int
) -> None:
    """Kills a writer when its new file is longer than so many bytes."""
    try:
        while process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if max(left(path.parent), default=0) > size:
                    return
            time.sleep(0.001)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_death_at_any_time_leaves_a_whole_file(path: Path) -> None:
    number, dead = 0, 0
    write(path, {'x': np.full(1 << 21, number)}, {'number': number})
    for part in range(5):
        kill_while_it_writes(writer(path, '', number), path, part * (3 << 20))
        arrays, facts = read(path)
        number = facts['number']
        assert (arrays['x'] == number).all()
        dead += len(left(path.parent))
        for each in path.parent.glob('.*.tmp'):
            each.unlink()
    assert dead > 0  # else none was killed while it wrote
