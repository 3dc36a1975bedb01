# SPDX-License-Identifier: Apache-2.0
"""What an operation costs, as far as sizes tell."""

from __future__ import annotations

import numpy as np

from jfold.operations import Operation, Operations
from jfold.planning.growth import power_of_two

CACHE = 1 << 20  # bytes that most cores have near


def parameter_bytes(operation: Operation) -> int:
    """The size of an operation's parameters."""
    leaves, _ = operation.layer.leaves
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_bytes(program: Operations, operation: Operation) -> int:
    """The size of one node's inputs and outputs."""
    types = [program.types[n] for n in operation.inputs + operation.outputs]
    return sum(t.size * t.dtype.itemsize for t in types) or 4


def balanced_chunk(program: Operations, operation: Operation, rows: int) -> int:
    """Rows whose parameter gradients are taken at once, of the room for `rows`.

    Each chunk costs a pass over the parameters, so a chunk's rows should outweigh them:
    one chunk for a large embedding table, several for a matrix. Beyond that, a chunk
    that stays in cache is faster.
    """
    if operation.layer.external:  # nobody knows how large it is
        return max(rows, 1)
    size = row_bytes(program, operation)
    balanced = parameter_bytes(operation) // size
    near = power_of_two(min(512, CACHE // size) + 1) // 2
    return max(min(max(near, balanced), rows), 1)


def looks_up(program: Operations, operation: Operation) -> bool:
    """Whether whole numbers are all that a function is given, as of words."""
    types = [program.types[t] for t in operation.inputs]
    found = bool(types) and not any(t.differentiable for t in types)
    return found and not operation.layer.parts
