# SPDX-License-Identifier: Apache-2.0
"""Examples traced elsewhere, and how it is told what expression they are of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from jfold.base.memo import Memoized, memoized
from jfold.data.adoption import fitted
from jfold.data.fingerprint import fingerprint, numbers_of
from jfold.graph import Graph
from jfold.program.operations import Program
from jfold.tracing.check_graph import checked


@dataclass(frozen=True, eq=False)
class Traced(Memoized):
    """Traced examples, for `Model.schedule`; arrays that can be sent anywhere.

    What comes from elsewhere is compared with the expression once, where it is used
    first, which takes a small part of the time that tracing took (`checked`).

    Attributes:
      graph: what they compute.
      digest: of the expression that they were traced for.
      is_own: whether this process has traced them, so that they fit by construction.
    """

    graph: Graph
    digest: str
    is_own: bool = field(default=False, repr=False, kw_only=True)

    def __len__(self) -> int:
        return self.graph.examples

    def __repr__(self) -> str:
        return f'Traced({len(self):,} examples, {self.graph.nodes:,} nodes)'

    def __getstate__(self) -> dict[str, Any]:
        return {'graph': self.graph, 'digest': self.digest}  # elsewhere it is not


@memoized
def graph_in(traced: Traced, program: Program) -> Graph:
    """The graph of examples, which is checked once if it comes from elsewhere.

    Raises:
      ValueError: it is none of the program's.
    """
    graph = fitted(program, traced.graph, numbers_of(program))
    return graph if traced.is_own else checked(program, replace(graph, fits=False))


def make_digest(program: Program) -> str:
    """A short form of a program's fingerprint."""
    return digest_of(fingerprint(program))


def digest_of(expression: dict[str, Any]) -> str:
    """A short form of a fingerprint, without where in the expression things are."""
    said = {
        name: [line[:2] for line in x] if isinstance(x, list) else x
        for name, x in expression.items()
    }
    text = json.dumps(said, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
