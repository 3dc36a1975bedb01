# SPDX-License-Identifier: Apache-2.0
"""A stored file is read as it was written, all of it or nothing."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checking import refuses

from jfold.files import storage
from jfold.files.storage import DamagedError, UnknownFormatError, read, write

Array = np.ndarray[Any, Any]

NUMPY = [np.dtype(code) for code in '?bhilqBHILQefdgFDG']
SWAPPED = [dtype.newbyteorder() for dtype in NUMPY if dtype.itemsize > 1]
EXTENDED = [
    np.dtype(each)
    for each in vars(ml_dtypes).values()
    if isinstance(each, type) and issubclass(each, np.generic)
]
SMALL = {
    'w': np.arange(6, dtype='float32').reshape(2, 3),
    '../bias': np.arange(5).astype('bfloat16'),
    'empty': np.zeros((0, 3), 'int8'),
    '/scalar\0': np.array(True),
}
FACTS = {'step': 3, 'loss': 0.5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that holds `SMALL` and `FACTS`, alone in its folder."""
    write(tmp_path / 'a', SMALL, FACTS)
    return tmp_path / 'a'


def alike(got: dict[str, Array], want: dict[str, Array]) -> None:
    """Equal names in order; equal dtypes, shapes and bits."""
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        assert got[name].dtype.str == array.dtype.str
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


def unchanged(path: Path) -> None:
    """The file of the fixture is as it was, and nothing lies beside it."""
    assert os.listdir(path.parent) == [path.name]
    arrays, facts = read(path)
    alike(arrays, SMALL)
    assert facts == FACTS


# ---- what is written is read ---------------------------------------------------------


@pytest.mark.parametrize('dtype', NUMPY + SWAPPED + EXTENDED, ids=lambda x: x.str)
def test_what_is_written_is_read(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """Any bits, in any order; by NumPy too, from where an array begins."""
    bits = np.random.default_rng(0).integers(0, 256, 24 * dtype.itemsize, np.uint8)
    cube = bits.view(dtype).reshape(2, 3, 4)
    views = (
        cube,
        cube[:1, :1, :1].reshape(()),
        cube[:, :0],
        cube.T,
        cube[::-1, :, ::3],
        cube[:1, 1],
    )
    arrays = {f'{n}/é\ud800': view for n, view in enumerate(views)}
    write(tmp_path / 'a', arrays, {'é\ud800': [None, 'x', (2,)]})
    for verify in (True, False):
        got, metadata = read(tmp_path / 'a', verify=verify)
        alike(got, arrays)
        assert metadata == {'é\ud800': [None, 'x', [2]]}
        assert all(x.ctypes.data % 64 == 0 for x in got.values())
    with open(tmp_path / 'a', 'rb') as file:
        file.seek(64)
        for view in views:
            file.seek(-file.tell() % 64, os.SEEK_CUR)
            loaded = np.load(file, allow_pickle=False)
            assert (loaded.shape, loaded.tobytes()) == (view.shape, view.tobytes())
            assert dtype in EXTENDED or loaded.dtype == dtype


def test_equal_content_is_equal_files_that_may_be_moved(path: Path) -> None:
    again, plain = path.with_name('b'), path.with_name('c')
    write(again, SMALL, FACTS)
    assert again.read_bytes() == path.read_bytes()
    plain.write_bytes(path.read_bytes())
    assert again.stat().st_mode == plain.stat().st_mode
    plain.rename(again).rename(path)
    unchanged(path)


# ---- maps ----------------------------------------------------------------------------


def test_maps_are_read_only_and_outlive_the_file(path: Path) -> None:
    old, _ = read(path)
    for array in old.values():
        assert not array.flags.writeable
        with pytest.raises(ValueError, match='WRITEABLE'):
            array.flags.writeable = True
    write(path, {'w': old['w'] + 1}, {})
    alike(old, SMALL)
    alike(read(path)[0], {'w': SMALL['w'] + 1})
    path.unlink()
    alike(old, SMALL)


def resident(path: Path) -> int:
    """How many bytes of a file's maps are in memory."""
    maps = Path('/proc/self/smaps')
    if not maps.exists():
        pytest.skip('the system does not tell')
    one = rf'{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+)'
    return 1024 * sum(map(int, re.findall(one, maps.read_text())))


def forge(path: Path, document: Any, place: int = 4096) -> None:
    """Write a file of holes and a document, with checksums to match."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    with open(path, 'wb') as file:
        file.write(storage._header(place, text))
        file.seek(place)
        file.write(text)


def test_huge_files_are_mapped_not_read(path: Path) -> None:
    """5 GiB of holes: no memory is taken but for the page that is used."""
    size = 5 << 30
    entries = {'large': ['|u1', [size], 128, 0]}
    forge(path, {'arrays': entries, 'metadata': {}}, size + 128)
    tracemalloc.start()
    large = read(path, verify=False)[0]['large']
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert large.shape == (size,)
    assert large[-1] == 0
    assert 0 < resident(path) < 1 << 20


def test_data_are_neither_copied_nor_kept(tmp_path: Path) -> None:
    """Writing takes no memory, and comparing checksums no more than a chunk."""
    array = np.ones((2048, 2048))  # 32 MiB
    tracemalloc.start()
    write(tmp_path / 'a', {'x': array}, {})
    arrays, _ = read(tmp_path / 'a')
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert resident(tmp_path / 'a') < 1 << 20
    alike(arrays, {'x': array})


# ---- what cannot be written ----------------------------------------------------------

NUMERIC = "array 'w': expected numbers or bools, got dtype"
DTYPES = [
    (np.array([None]), 'object; objects would have to be pickled'),
    (np.array(['text']), '<U4'),
    (np.zeros(2, [('x', 'i4')]), "[('x', '<i4')]"),
    (np.zeros(2, 'M8[s]'), 'datetime64[s]'),
    (np.zeros(2, np.dtype('bfloat16').newbyteorder()), '>V2'),
]


@pytest.mark.parametrize(('array', 'rest'), DTYPES, ids=range(len(DTYPES)))
def test_what_cannot_be_written_is_refused(path: Path, array: Array, rest: str) -> None:
    with refuses(f'{NUMERIC} {rest}'):
        write(path, {'w': array}, {})
    for fact in ({1}, np.int32(3), math.nan):
        with pytest.raises((TypeError, ValueError), match='JSON'):
            write(path, SMALL, {'a': fact})
    unchanged(path)


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


def test_an_interrupt_as_soon_as_a_file_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed."""

    def opens(*arguments: Any) -> Any:
        open(*arguments).close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(storage, 'open', opens, raising=False)
        write(path, {}, {})
    unchanged(path)


def test_rights_of_a_file_stay(path: Path) -> None:
    """Where only its owner may read it, nobody else may read what replaces it."""
    path.chmod(0o600)
    write(path, {}, {'new': 1})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_name_that_ends_like_a_folder_is_refused(path: Path) -> None:
    """As `open` does."""
    with pytest.raises(IsADirectoryError, match='expected `path` of a file'):
        write(f'{path}/', {}, {})
    unchanged(path)


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
    assert path.is_symlink() == bool(name)


def test_two_writers_do_not_mix(path: Path) -> None:
    def writes(number: int) -> None:
        for _ in range(20):
            write(path, {'x': np.full(50_000, number)}, {'number': number})

    writes(0)
    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(writes, number) for number in (1, 2)]
        while not all(each.done() for each in writers):
            arrays, facts = read(path)
            assert (arrays['x'] == facts['number']).all()
    assert [each.result() for each in writers] == [None, None]
    assert os.listdir(path.parent) == [path.name]


# ---- damage --------------------------------------------------------------------------


def refused(path: Path, *, verify: bool = True) -> str:
    with pytest.raises(DamagedError) as caught:
        read(path, verify=verify)
    form = rf'{re.escape(str(path))}: (.*); write it again'
    (found,) = re.findall(f'^{form}$', str(caught.value), re.DOTALL)
    return str(found)


def test_every_truncation_is_found(path: Path) -> None:
    for size in reversed(range(path.stat().st_size)):
        os.truncate(path, size)
        for verify in (True, False):
            assert refused(path, verify=verify).startswith('truncated: expected ')


def test_every_flipped_byte_is_found(path: Path) -> None:
    """Those of data by their checksums alone, so one flip of each is enough."""
    intact = path.read_bytes()
    flips = np.random.default_rng(0).integers(1, 256, len(intact)).tolist()
    for place, flip in enumerate(flips):
        is_data = 64 <= place < intact.index(b'{"arrays"')
        for each in {flip} if is_data else {flip, 1, 128}:
            changed = bytearray(intact)
            changed[place] ^= each
            path.write_bytes(changed)
            with pytest.raises((DamagedError, UnknownFormatError)) as caught:
                read(path)
            if is_data:
                assert 'wrong checksum' in str(caught.value)
                read(path, verify=False)
    path.write_bytes(intact)
    unchanged(path)


def test_messages_about_damage(path: Path) -> None:
    intact = path.read_bytes()
    size, place = len(intact), intact.index(b'\n') + 1
    right = zlib.crc32(intact[64 : place + 24])
    wrong = zlib.crc32(intact[64:place] + bytes(24))
    cases = {
        intact[:place] + bytes(24) + intact[place + 24 :]: (
            f"array 'w': wrong checksum: expected {right}, got {wrong}"
        ),
        intact[:-1]: f'truncated: expected {size} bytes, got {size - 1}',
        intact + b'more': f'malformed: expected {size} bytes, got {size + 4}',
        b'': 'truncated: expected 64 bytes or more, got 0',
        b'\x93NUMPY': 'not a file of this format: expected one that `Corpus.save` or '
        '`jf.save` wrote',
    }
    for content, message in cases.items():
        path.write_bytes(content)
        assert refused(path) == message


# ---- intact files that say something else --------------------------------------------


def one(kind: Any = '<f4', shape: Any = (3,), offset: Any = 128, *more: Any) -> Any:
    return {'arrays': {'w': [kind, shape, offset, *(more or [0])]}, 'metadata': {}}


def version_1(path: Path) -> None:
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('metadata.json', '{"format": "jfold.arrays", "version": 1}')


def version_4(path: Path) -> None:
    write(path, {}, {})
    path.write_bytes(path.read_bytes().replace(b'    \3', b'    \4'))


@pytest.mark.parametrize(('make', 'version'), [(version_1, 1), (version_4, 4)])
def test_other_versions_are_no_damage(
    path: Path, make: Callable[[Path], None], version: int
) -> None:
    make(path)
    text = (
        f'{path}: expected version 3 of the format of files, got version {version}: '
        'write it anew with this version of jfold, or read it with the one that wrote '
        'it'
    )
    with refuses(text, UnknownFormatError):
        read(path)


UNKNOWN = ['bfloat17', '<f3', '<b1', '|O8', 'float32', 'finfo', 'i4,i4']


@pytest.mark.parametrize('name', UNKNOWN)
def test_other_dtypes_are_no_damage(path: Path, name: str) -> None:
    forge(path, one(name))
    text = (
        f"{path}: array 'w': expected a dtype of numpy or ml_dtypes, got {name!r}; "
        'update ml_dtypes, or read it where it was written'
    )
    with refuses(text, UnknownFormatError):
        read(path)


IMPOSSIBLE = [
    b'{"format": ',
    100_000 * b'[',
    b'{"arrays": %s}' % (b'9' * 5000),
    [3],
    {'arrays': {}},
    {'arrays': ['w'], 'metadata': {}},
    {'arrays': {'w': 3}, 'metadata': {}},
    {'arrays': {}, 'metadata': 3},
    *(one(shape=x) for x in ([-3], [3.0], 'x', [10_000], [2**62], [2**63], [1] * 65)),
    one(shape=[0, 2**62, 2**62]),
    *(one(offset=x) for x in (-8, 2**62, 2**63, 8192, 0.5, '128', None, [])),
    one('<f4', [3], 128, 0, 0),
]


@pytest.mark.parametrize('document', IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_impossible_documents_are_damage(path: Path, document: Any) -> None:
    """Nothing outside the file is read, nor memory taken for what it claims."""
    forge(path, document)
    for verify in (True, False):
        message = refused(path, verify=verify)
        assert re.match(r"malformed: |array 'w': wrong checksum", message)
