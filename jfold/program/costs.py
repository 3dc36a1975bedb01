# SPDX-License-Identifier: Apache-2.0
"""What an operation costs, as far as sizes tell."""

from __future__ import annotations

import numpy as np

from jfold.program.operations import Operation, Operations


def parameter_bytes(operation: Operation) -> int:
    """The size of an operation's parameters."""
    leaves, _ = operation.layer.leaves
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_bytes(program: Operations, operation: Operation) -> int:
    """The size of one node's inputs and outputs."""
    types = [program.types[n] for n in operation.inputs + operation.outputs]
    return sum(t.size * t.dtype.itemsize for t in types) or 4


def looks_up(program: Operations, operation: Operation) -> bool:
    """Whether whole numbers are all that a function is given, as of words."""
    types = [program.types[t] for t in operation.inputs]
    found = bool(types) and not any(t.differentiable for t in types)
    return found and not operation.layer.parts
