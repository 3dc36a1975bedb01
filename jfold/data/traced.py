# SPDX-License-Identifier: Apache-2.0
"""Traced examples for other processes, with a digest of their expression."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from jfold.base.memo import Memoized, memoized
from jfold.data.adoption import fit_graph
from jfold.data.fingerprint import fingerprint, numbers_of
from jfold.graph import Graph
from jfold.program.operations import Program
from jfold.tracing.check_graph import checked


@dataclass(frozen=True, eq=False)
class Traced(Memoized):
    """Traced examples for `Model.schedule`, as arrays that can be sent anywhere.

    A graph from another process is checked against the program once, when it is first
    used, which takes a small part of the time that tracing took (`checked`).

    Attributes:
      graph: the operations that the examples run, and their operands.
      digest: the digest of the expression that they were traced for.
      is_own: whether this process traced them; then the graph fits by construction.
    """

    graph: Graph
    digest: str
    is_own: bool = field(default=False, repr=False, kw_only=True)

    def __len__(self) -> int:
        return self.graph.examples

    def __repr__(self) -> str:
        return f'Traced({len(self):,} examples, {self.graph.nodes:,} nodes)'

    def __getstate__(self) -> dict[str, Any]:
        return {'graph': self.graph, 'digest': self.digest}  # `is_own` holds here alone


@memoized
def graph_in(traced: Traced, program: Program) -> Graph:
    """Return the graph of traced examples, checked once if another process made it.

    Raises:
      ValueError: the graph does not fit the program.
    """
    graph = fit_graph(program, traced.graph, numbers_of(program))
    return graph if traced.is_own else checked(program, replace(graph, fits=False))


def make_digest(program: Program) -> str:
    """Return the digest of a program's fingerprint, in hex."""
    return digest_of(fingerprint(program))


def digest_of(expression: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of a fingerprint without the paths of its blocks."""
    sections = {
        name: [line[:2] for line in x] if isinstance(x, list) else x
        for name, x in expression.items()
    }
    text = json.dumps(sections, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
