# SPDX-License-Identifier: Apache-2.0
"""Tracing in other processes: what a worker needs, and what it sends back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jfold.data.fingerprint import fingerprint
from jfold.errors import several
from jfold.graph import Graph
from jfold.host.evaluation import trace
from jfold.operations import Layer
from jfold.program import Program
from jfold.tracebacks import boundary


@dataclass(frozen=True, eq=False)
class Traced:
    """Traced examples, for `Model.schedule`; arrays that can be sent anywhere.

    Attributes:
      graph: what they compute.
      digest: of the expression that they were traced for.
    """

    graph: Graph
    digest: str

    def __len__(self) -> int:
        return self.graph.examples


@dataclass(frozen=True, eq=False)
class Tracer:
    """Examples to `Traced`: a callable that can be pickled; made by `Model.tracer`.

    It holds no parameters and nothing of the device, and computes with NumPy alone: JAX
    is imported where it runs, but not started. What cannot be pickled inside, such as a
    lambda, `cloudpickle` can, which grain uses.
    """

    program: Program
    digest: str

    @boundary
    def __call__(self, examples: Iterable[Any]) -> Traced:
        """Traces examples.

        Raises:
          InputError: an example does not fit the expression; its number is that among
            `examples`.
          TypeError: `examples` is a tuple, dict or string, which may be one example.
        """
        return Traced(trace(self.program, list(several(examples))), self.digest)

    def __repr__(self) -> str:
        return f'Tracer({self.program.output!r})'


def make_tracer(program: Program, digest: str) -> Tracer:
    """The tracer of a program, which it keeps without the layers."""
    operations = tuple(
        dataclasses.replace(each, layer=Layer(each.layer.name, _missing, None, None))
        for each in program.operations
    )
    host = dataclasses.replace(program, layers=(), operations=operations)
    return Tracer(host, digest)


def make_digest(program: Program) -> str:
    """A short form of a program's fingerprint."""
    text = json.dumps(fingerprint(program), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _missing(*inputs: Any) -> Any:
    raise AssertionError('a tracer does not run layers')
