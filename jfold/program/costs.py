# SPDX-License-Identifier: Apache-2.0
"""Costs of an operation, estimated from sizes."""

from __future__ import annotations

import numpy as np

from jfold.program.operations import Operation, Operations


def parameter_bytes(operation: Operation) -> int:
    """Return the bytes of an operation's parameters."""
    leaves, _ = operation.layer.leaves
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_bytes(program: Operations, operation: Operation) -> int:
    """Return the bytes of one node's inputs and outputs, at least 4."""
    types = [program.types[n] for n in operation.inputs + operation.outputs]
    return sum(t.size * t.dtype.itemsize for t in types) or 4


def looks_up(program: Operations, operation: Operation) -> bool:
    """Return whether an operation looks up rows of a table: all inputs are integers."""
    types = [program.types[t] for t in operation.inputs]
    are_indices = bool(types) and not any(t.differentiable for t in types)
    return are_indices and not operation.layer.parts
