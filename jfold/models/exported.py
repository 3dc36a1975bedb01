# SPDX-License-Identifier: Apache-2.0
"""The serialization of schedules and results in functions of `jax.export`.

In a file, the static part of a schedule is text: a digest of its expression, capacity
and options. A function read from the file takes schedules of any model, in any process,
that have the same text.
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
    """The static part of a schedule in a file, compared by its text."""

    text: str

    @property
    def spec(self) -> ExportedKey:
        """This key, in the role of `SpecKey.spec`: a key in a file never runs."""
        return self

    @property
    def key(self) -> ExportedKey:
        """This key, in the role of `Spec.key`, by which schedules are compared."""
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
    """Return the text that stands for the `key` of a schedule in a file."""
    return key.text if isinstance(key, ExportedKey) else _spec_text(key.spec)


@memoized
def _spec_text(spec: Spec) -> str:
    """Return a spec as JSON text; raise TypeError if its program has no source."""
    # Imported where it is needed, to keep `import jfold` fast.
    from jfold.data.fingerprint import digest_of, fingerprint
    from jfold.program.operations import Program

    program, shards = spec.program, spec.shards
    if not isinstance(program, Program):
        raise TypeError(
            'expected the schedule of a model, got one of operations alone: export a '
            'function of its `indices` and `constants`'
        )
    content = {
        'digest': digest_of(fingerprint(program)),
        'capacity': dict(spec.capacity.dimensions()),
        'profiles': spec.capacity.profiles,
        'residuals': spec.residuals,
        'strategy': spec.strategy,
        'reproducible': spec.reproducible,
        'shards': shards and [shards.axes, dict(shards.mesh.shape)],
    }
    return json.dumps(content, sort_keys=True)


def _register(
    type_: type, write: Callable[[Any], bytes], read: Callable[[bytes], Any]
) -> None:
    # A second copy of jfold in one process leaves the names to the first.
    with contextlib.suppress(ValueError):
        export.register_pytree_node_serialization(
            type_,
            serialized_name=f'jfold.{type_.__name__}',
            serialize_auxdata=write,
            deserialize_auxdata=read,
        )


_register(
    Schedule,
    lambda key: _text(key).encode(),
    lambda data: ExportedKey(bytes(data).decode()),
)
for type_ in Ragged, MetricValues:
    _register(type_, lambda _: b'', lambda _: ())
