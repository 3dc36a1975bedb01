# SPDX-License-Identifier: Apache-2.0
"""Traced examples for other processes, with a digest of their expression."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from jfold.base.memo import Memoized, memoized
from jfold.data.adoption import fit_graph
from jfold.data.fingerprint import numbers_of
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
    """

    graph: Graph
    digest: str

    def __len__(self) -> int:
        return self.graph.examples

    def __repr__(self) -> str:
        return f'Traced({len(self):,} examples, {self.graph.nodes:,} nodes)'

    def __getstate__(self) -> dict[str, Any]:
        graph = replace(self.graph, fits=False)  # another process is to check it
        return {'graph': graph, 'digest': self.digest}


@memoized
def graph_in(traced: Traced, program: Program) -> Graph:
    """Return the graph of traced examples, checked once if another process made it.

    Raises ValueError if it does not fit the program.
    """
    return checked(program, fit_graph(program, traced.graph, numbers_of(program)))


def digest_of(expression: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of a fingerprint without the paths of its blocks."""
    sections = {
        name: [line[:2] for line in x] if isinstance(x, list) else x
        for name, x in expression.items()
    }
    text = json.dumps(sections, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
