# SPDX-License-Identifier: Apache-2.0
"""jfold: networks whose graph differs for every input, batched, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

import jfold.exported  # noqa: F401  what `jax.export` writes of schedules
from jfold.blocks import Passes, bind_passes
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
from jfold.errors import InputError, ProgramBudgetError
from jfold.external import External
from jfold.metrics import MetricValues
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

if TYPE_CHECKING:
    from jfold.compiled import CompiledStep
    from jfold.data.batches import Batch, Batches
    from jfold.data.corpus import Corpus
    from jfold.data.files import DamagedError, UnknownFormatError
    from jfold.data.traced import Traced
    from jfold.data.tracer import Tracer
    from jfold.interpreters.nonfinite import NonFinite, find_nan
    from jfold.loaded import LoadedModel
    from jfold.model import Model, compile
    from jfold.saved import load, save

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
    'LoadedModel',
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
    'load',
    'recursive',
    'save',
]


# What runs expressions, or imports Flax, is imported on first use: a program that only
# writes expressions starts sooner.
_MODULES = 'layers', 'linen', 'nnx'  # which import Flax
_LATER = {
    'compiled': ['CompiledStep'],
    'data.batches': ['Batch', 'Batches'],
    'data.corpus': ['Corpus'],
    'data.files': ['DamagedError', 'UnknownFormatError'],
    'data.traced': ['Traced'],
    'data.tracer': ['Tracer'],
    'interpreters.nonfinite': ['NonFinite', 'find_nan'],
    'loaded': ['LoadedModel'],
    'model': ['Model', 'compile'],
    'saved': ['load', 'save'],
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def _passes() -> Passes:
    """The passes behind methods of blocks, which import what runs expressions."""
    from jfold.interpreters.evaluation import evaluate
    from jfold.lower import input_type, result_type

    return Passes(evaluate, input_type, result_type)


bind_passes(_passes)


def __getattr__(name: str) -> Any:
    """What is imported on first use."""
    if name in _MODULES:
        return importlib.import_module(f'jfold.{name}')
    if name in _HOME:
        found = getattr(importlib.import_module(f'jfold.{_HOME[name]}'), name)
        return globals().setdefault(name, found)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    """Public names, for completion; other submodules can be imported all the same."""
    own = (name for name in globals() if name.startswith('__'))
    return sorted([*__all__, *_MODULES, *own])
