# SPDX-License-Identifier: Apache-2.0
"""Schedules and results in functions that `jax.export` writes to files.

A file says of a schedule which expression it is of, by a digest, and its capacity. What
is read from it takes the schedules of any model, in any process, of which that holds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import export

from jfold.base.memo import memoized
from jfold.ragged import MetricValues, Ragged
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Spec, SpecKey


@dataclass(frozen=True, eq=False)
class ExportedKey:
    """What a file says of a spec, in its place in the tree of a schedule: equal to the
    keys of all specs of which that holds."""

    text: str

    @property
    def spec(self) -> ExportedKey:
        """Itself: trees that were read are compared, and never run."""
        return self

    @property
    def key(self) -> ExportedKey:
        """Itself."""
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExportedKey | SpecKey):
            return self.text == _text(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f'exported, {self.text}'


def _text(key: ExportedKey | SpecKey) -> str:
    """What a file says of a spec."""
    return key.text if isinstance(key, ExportedKey) else _said(key.spec)


@memoized
def _said(spec: Spec) -> str:
    # Imported when something is written, and not with `jfold`.
    from jfold.data.traced import make_digest
    from jfold.program.operations import Program

    program, shards = spec.program, spec.shards
    if not isinstance(program, Program):
        raise TypeError(
            'expected the schedule of a model, got one of operations alone: export a '
            'function of its `indices` and `constants`'
        )
    said = {
        'digest': make_digest(program),
        'capacity': dict(spec.capacity.dimensions()),
        'profiles': spec.capacity.profiles,
        'residuals': spec.residuals,
        'strategy': spec.strategy,
        'reproducible': spec.reproducible,
        'shards': shards and [shards.axes, dict(shards.mesh.shape)],
    }
    return json.dumps(said, sort_keys=True)


def _register(
    kind: type, write: Callable[[Any], bytes], read: Callable[[bytes], Any]
) -> None:
    # A second copy of jfold in one process leaves the names to the first.
    with contextlib.suppress(ValueError):
        export.register_pytree_node_serialization(
            kind,
            serialized_name=f'jfold.{kind.__name__}',
            serialize_auxdata=write,
            deserialize_auxdata=read,
        )


_register(
    Schedule,
    lambda key: _text(key).encode(),
    lambda data: ExportedKey(bytes(data).decode()),
)
for each in Ragged, MetricValues:
    _register(each, lambda _: b'', lambda _: ())
