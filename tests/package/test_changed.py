# SPDX-License-Identifier: Apache-2.0
"""`make test-changed`: the tests that a change can reach."""

from __future__ import annotations

import changed
import pytest


@pytest.mark.parametrize(
    ('files', 'expected'),
    [
        (['jfold/device/xla.py'], ['tests/device', 'jfold/device/xla.py']),
        (['jfold/debug/values.py'], ['tests/models', 'jfold/debug/values.py']),
        (['jfold/types.py'], ['tests/twin', 'jfold/types.py']),
        (['tests/data/test_tracer.py'] * 2, ['tests/data/test_tracer.py']),
        (['tests/support/hlo.py'], ['tests/twin']),
        (['tests/accelerators/test_kernels.py'], ['tests/twin']),
        (['benchmarks/core.py', 'README.md'], ['tests/scripts']),
        (['README.md', 'jfold/gone.py'], ['tests/package']),
    ],
)
def test_the_tests_of_files(files: list[str], expected: list[str]) -> None:
    assert changed.tests_of(files) == expected


def test_every_room_has_a_folder() -> None:
    """But for what is at the top, which everything uses."""
    rooms = {x.parent.name for x in (changed.ROOT / 'jfold').glob('*/__init__.py')}
    for room in rooms:
        assert (changed.ROOT / 'tests' / changed.ROOMS.get(room, room)).is_dir()
