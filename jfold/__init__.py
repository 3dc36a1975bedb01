# SPDX-License-Identifier: Apache-2.0
"""jfold: networks whose graph differs for every input, batched, in JAX."""

import importlib
from typing import Any

import jfold.exported  # noqa: F401  what `jax.export` writes of schedules
from jfold.combinators import (
    RNN,
    AllOf,
    Block,
    Broadcast,
    Chain,
    Concat,
    Fold,
    ForwardDeclaration,
    FromTensor,
    Function,
    GetItem,
    Identity,
    InputTransform,
    Length,
    Map,
    Metric,
    NGrams,
    Nth,
    OneHot,
    OneHotFromList,
    OneOf,
    Optional,
    Padded,
    Pick,
    Pipe,
    Record,
    Reduce,
    Regroup,
    Scalar,
    Share,
    Slice,
    Tensor,
    Vector,
    Void,
    Zeros,
    Zip,
    ZipWith,
    convert_to_block,
)
from jfold.compiled import CompiledStep
from jfold.data.batches import Batch, Batches
from jfold.data.corpus import Corpus
from jfold.data.storage import DamagedError, UnknownFormatError
from jfold.data.traced import Traced
from jfold.data.tracer import Tracer
from jfold.errors import InputError, ProgramBudgetError
from jfold.external import External
from jfold.interpreters.nonfinite import NonFinite, find_nan
from jfold.metrics import MetricValues
from jfold.model import Model, compile
from jfold.ragged import Ragged
from jfold.reductions import Max, Mean, Min, Softmax, Stack, Sum
from jfold.schedule import Schedule
from jfold.spec import Capacity
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
    convert_to_type,
)
from jfold.wiring import Composition, compose, recursive

__version__ = '0.1.0'
__all__ = [
    'RNN',
    'AllOf',
    'Batch',
    'Batches',
    'Block',
    'Broadcast',
    'BroadcastType',
    'Capacity',
    'Chain',
    'CompiledStep',
    'Composition',
    'Concat',
    'Corpus',
    'DamagedError',
    'External',
    'Fold',
    'ForwardDeclaration',
    'FromTensor',
    'Function',
    'GetItem',
    'Identity',
    'InputError',
    'InputTransform',
    'Length',
    'Map',
    'Max',
    'Mean',
    'Metric',
    'MetricValues',
    'Min',
    'Model',
    'NGrams',
    'NonFinite',
    'Nth',
    'ObjectType',
    'OneHot',
    'OneHotFromList',
    'OneOf',
    'Optional',
    'Padded',
    'Pick',
    'Pipe',
    'ProgramBudgetError',
    'Ragged',
    'Record',
    'Reduce',
    'Regroup',
    'Scalar',
    'Schedule',
    'SequenceType',
    'Share',
    'Slice',
    'Softmax',
    'Stack',
    'Sum',
    'Tensor',
    'TensorType',
    'Traced',
    'Tracer',
    'TupleType',
    'UnknownFormatError',
    'Vector',
    'Void',
    'VoidType',
    'Zeros',
    'Zip',
    'ZipWith',
    'compile',
    'compose',
    'convert_to_block',
    'convert_to_type',
    'find_nan',
    'recursive',
]


_LATER = 'layers', 'linen', 'nnx'  # modules that import Flax, when they are asked for


def __getattr__(name: str) -> Any:
    """What imports Flax, on first use."""
    if name in _LATER:
        return importlib.import_module(f'jfold.{name}')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    """Public names, for completion; other submodules can be imported all the same."""
    own = (name for name in globals() if name.startswith('__'))
    return sorted([*__all__, *_LATER, *own])
