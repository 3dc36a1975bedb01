# SPDX-License-Identifier: Apache-2.0
"""The costs of an operation, estimated from the sizes of its arrays."""

from __future__ import annotations

import numpy as np

from jfold.program.operations import Operation, Operations


def parameter_bytes(operation: Operation) -> int:
    """Return the number of bytes of all parameters of an operation's layer."""
    leaves, _ = operation.layer.leaves
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_bytes(program: Operations, operation: Operation) -> int:
    """Return the number of bytes of one node's inputs and outputs, at least 4."""
    types = [program.types[n] for n in operation.inputs + operation.outputs]
    return sum(t.size * t.dtype.itemsize for t in types) or 4


def looks_up(program: Operations, operation: Operation) -> bool:
    """Return whether an operation is taken for a table look-up, such as an embedding.

    It is one if it has inputs, none with gradients, and is not fused of several layers.
    """
    types = [program.types[t] for t in operation.inputs]
    are_indices = bool(types) and not any(t.differentiable for t in types)
    return are_indices and not operation.layer.parts
