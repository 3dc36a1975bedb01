# SPDX-License-Identifier: Apache-2.0
"""Stored files that are damaged, or whole and say something else, are refused."""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_files import FACTS, SMALL, alike, unchanged

from jfold.data import archive, storage
from jfold.data.files import DamagedError, UnknownFormatError
from jfold.data.storage import read, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that holds `SMALL` and `FACTS`."""
    path = tmp_path / 'a.npz'
    write(path, SMALL, FACTS)
    return path


# ---- damage --------------------------------------------------------------------------


def data_of(path: Path) -> dict[str, range]:
    """Where the data of each array lie in the file."""
    arrays, _ = read(path)
    begin = {k: np.frombuffer(x.base, np.uint8).ctypes.data for k, x in arrays.items()}
    offset = {k: x.ctypes.data - begin[k] for k, x in arrays.items()}
    return {k: range(offset[k], offset[k] + x.nbytes) for k, x in arrays.items()}


def refused(path: Path, *, verify: bool = True) -> str:
    """The message about a damaged file."""
    with pytest.raises(DamagedError) as caught:
        read(path, verify=verify)
    form = rf'{re.escape(str(path))}: (.*); write it again'
    (found,) = re.findall(f'^{form}$', str(caught.value))
    return str(found)


def test_every_truncation_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for size in reversed(range(len(whole))):
        os.truncate(path, size)
        for verify in (True, False):
            assert ': truncated: expected ' in refused(path, verify=verify)
    path.write_bytes(whole)
    unchanged(path)


def test_every_flipped_byte_is_found(path: Path) -> None:
    data = {place for span in data_of(path).values() for place in span}
    assert len(data) == sum(x.nbytes for x in SMALL.values())
    flips = np.random.default_rng(0).integers(1, 256, path.stat().st_size).tolist()
    with open(path, 'r+b', buffering=0) as file:
        for place, flip in enumerate(flips):
            for each in {flip, 1, 128}:
                (byte,) = os.pread(file.fileno(), 1, place)
                os.pwrite(file.fileno(), bytes([byte ^ each]), place)
                message = refused(path)
                if place in data:
                    assert 'wrong checksum' in message
                    read(path, verify=False)
                else:
                    refused(path, verify=False)
                os.pwrite(file.fileno(), bytes([byte]), place)
    unchanged(path)


@st.composite
def damage(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with a part removed, repeated, moved, zeroed or overwritten."""
    a, b, c = sorted(draw(st.lists(st.integers(0, len(whole)), min_size=3, max_size=3)))
    first, second = whole[a:b], whole[b:c]
    noise = draw(st.binary(max_size=40))
    over = noise + first[len(noise) :] + second
    zero = bytes(len(first)) + second
    ways = [second, first + first + second, second + first, zero, over, noise + second]
    return whole[:a] + draw(st.sampled_from(ways)) + whole[c:]


def test_other_damage_is_found(path: Path) -> None:
    whole = path.read_bytes()

    @settings(max_examples=400)
    @given(damage(whole))
    def check(found: bytes) -> None:
        path.write_bytes(found)
        unchanged(path) if found == whole else refused(path)

    check()


def altered(path: Path, offset: int, content: bytes) -> str:
    """The message about a file where some bytes are others; it is mended again."""
    whole = path.read_bytes()
    path.write_bytes(whole[:offset] + content + whole[offset + len(content) :])
    message = refused(path)
    path.write_bytes(whole)
    return message


def test_messages_about_altered_bytes(path: Path) -> None:
    whole, begin = path.read_bytes(), data_of(path)['w'].start
    head = whole[begin - 128 : begin]
    right, wrong = (zlib.crc32(head + x) for x in (SMALL['w'].tobytes(), bytes(24)))
    dtype = whole.index(b"'<f4'") + 1
    place = dtype - whole.index(b'PK\3\4', 1)
    assert altered(path, begin, bytes(24)) == (
        f"array 'w': wrong checksum: expected {right:#010x}, got {wrong:#010x}"
    )
    assert altered(path, dtype, b'>') == (
        f"array 'w': malformed header: expected b\"<f4', 'f\" at byte {place} of it, "
        'got b">f4\', \'f"'
    )
    assert altered(path, whole.rindex(b'w.npy'), b'v') == (
        "array 'w' in the directory: malformed header: expected "
        "b'w.npy\\x01\\x00\\x18' at byte 46 of it, got b'v.npy\\x01\\x00\\x18'"
    )
    assert altered(path, len(whole) - 1, b'!') == (
        "directory: malformed header: expected b'\\x00' at byte 97 of it, got b'!'"
    )
    assert altered(path, len(whole), b'more') == (
        f'directory: malformed: expected {len(whole)} bytes, got {len(whole) + 4}'
    )
    assert altered(path, whole.index(b'"format"'), b"'").startswith(
        'metadata.json: wrong checksum: expected 0x'
    )


def test_messages_about_truncated_files(path: Path) -> None:
    size, span = path.stat().st_size, data_of(path)['layers/bias']
    cases = [
        (size - 1, f'directory: truncated: expected {size}'),
        (span.start + 3, f"array 'layers/bias': truncated: expected {span.stop}"),
        (0, 'metadata.json: truncated: expected 128'),
    ]
    for rest, message in cases:
        os.truncate(path, rest)
        assert refused(path) == f'{message} bytes or more, got {rest}'


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / 'a.npz'
    message = (
        'metadata.json: not a file of this format: expected a zip archive that begins '
        'with this member; a copy made by np.savez or an archiver cannot be read; take '
        'the original, which may be compressed as a whole'
    )
    np.savez(path, **{'w': SMALL['w']})
    assert refused(path) == message
    for content in (b'text', bytes(1000), b'PK\5\6' + bytes(18), b'\x93NUMPY'):
        path.write_bytes(content)
        assert refused(path) == message
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('metadata.json', '{"format": "jfold.arrays", "version": 1}')
        archive.writestr('more', 'text' * 99)
    assert 'metadata.json: packed by another program' in refused(path)


# ---- whole files that say something else ---------------------------------------------


def forge(path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Writes a file with another document, and checksums to match."""
    with monkeypatch.context() as patch:
        patch.setattr(storage, '_document', lambda *_: text.encode())
        write(path, {'w': np.zeros(3, 'float32')}, {})


def document(**changes: Any) -> str:
    """What the first member says of three zeros, but for some entries."""
    array = {'dtype': '<f4', 'shape': [3]}
    usual = {'format': 'jfold.arrays', 'version': 1, 'arrays': {'w': array}}
    return json.dumps({**usual, 'metadata': {}, **changes})


def one(**changes: Any) -> str:
    """The same, but for some entries of the array."""
    return document(arrays={'w': {'dtype': '<f4', 'shape': [3], **changes}})


def test_forged_files_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(path, monkeypatch, document())
    alike(read(path)[0], {'w': np.zeros(3, 'float32')})


VERSION = (
    "expected version 1 of format 'jfold.arrays', got {}; read it with the jfold that "
    'wrote it, or a later one'
)
FORMAT = "expected format 'jfold.arrays', got {}; read it with what wrote it"
DTYPE = (
    "array 'w': expected a dtype of numpy or ml_dtypes, got {}; update ml_dtypes, or "
    'read it where it was written'
)
DTYPES_UNKNOWN = ['bfloat17', '<f3', '<b1', '|O8', 'float32', 'finfo']
UNKNOWN = [
    (document(version=2, arrays=None), VERSION.format('2')),
    (document(version=None), VERSION.format('None')),
    (document(format='other', version=2), FORMAT.format("'other'")),
    ('{}', FORMAT.format('None')),
    ('[3]', FORMAT.format('None')),
    *((one(dtype=name), DTYPE.format(repr(name))) for name in DTYPES_UNKNOWN),
]


@pytest.mark.parametrize(('text', 'message'), UNKNOWN, ids=range(len(UNKNOWN)))
def test_other_formats_are_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    forge(path, monkeypatch, text)
    for verify in (True, False):
        with refuses(f'{path}: {message}', UnknownFormatError) as caught:
            read(path, verify=verify)
    assert not isinstance(caught.value, DamagedError)


MALFORMED = 'metadata.json: malformed: '
SIZES = f"{MALFORMED}ValueError('expected sizes of at most 64 axes, got "
HEADER = 'malformed header: expected '
IMPOSSIBLE = [
    ('{"format": ', f'{MALFORMED}Expecting value: line 1 column 12 (char'),
    (100_000 * '[', MALFORMED),
    (document(arrays=None), f'{MALFORMED}TypeError'),
    (document(arrays=['w']), f'{MALFORMED}AttributeError'),
    (document(arrays={'w': 3}), f'{MALFORMED}TypeError'),
    (document(arrays={'w': {}}), f"{MALFORMED}KeyError('dtype')"),
    (document(arrays={'\0': {}}), f'{MALFORMED}ValueError("array '),
    (document(metadata=[]), f"{MALFORMED}TypeError('expected metadata"),
    (one(shape=[-3]), f'{SIZES}[-3]'),
    (one(shape=[3.0]), f'{SIZES}[3.0]'),
    (one(shape=[True, 3]), f'{SIZES}[True, 3]'),
    (one(shape=3), f'{MALFORMED}TypeError'),
    (one(shape=[4]), 'directory: truncated: expected '),
    (one(shape=[2]), 'directory: malformed: expected '),
    (one(shape=[1, 3]), f"array 'w': {HEADER}"),
    (one(dtype='<i4'), f"array 'w': {HEADER}"),
    (one(shape=[2**63]), f'{SIZES}[{2**63}]'),
    (one(shape=[1] * 65), f'{SIZES}[1, '),
    (one(shape=[2**62]), f"array 'w': truncated: expected {2**64 + 448} bytes"),
    (document(arrays={}), 'directory: malformed: expected '),
    (document(arrays={'v': {'dtype': '<f4', 'shape': [3]}}), f"array 'v': {HEADER}"),
]


@pytest.mark.parametrize(('text', 'message'), IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_impossible_documents_are_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    forge(path, monkeypatch, text)
    for verify in (True, False):
        assert refused(path, verify=verify).startswith(message)


def test_shapes_beyond_numpy_are_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, layout = (0, 2**62, 2**62), archive.layout
    described = {'w': (np.dtype('float32'), shape)}
    with monkeypatch.context() as patch:
        patch.setattr(storage, 'layout', lambda size, _: layout(size, described))
        forge(path, monkeypatch, one(shape=shape))
    assert refused(path, verify=False).startswith("array 'w': malformed: ")
