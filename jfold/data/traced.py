# SPDX-License-Identifier: Apache-2.0
"""Examples traced elsewhere, and how it is told what expression they are of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from jfold.data.fingerprint import fingerprint
from jfold.graph import Graph
from jfold.program import Program


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


def make_digest(program: Program) -> str:
    """A short form of a program's fingerprint."""
    return digest_of(fingerprint(program))


def digest_of(expression: dict[str, Any]) -> str:
    """A short form of a fingerprint."""
    text = json.dumps(expression, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
