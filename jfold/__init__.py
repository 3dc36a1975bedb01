# SPDX-License-Identifier: Apache-2.0
"""jfold: dynamic batching of networks whose graph differs for every input, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

import jfold.models.exported  # noqa: F401  registers schedules with `jax.export`
from jfold import blocks
from jfold.base.errors import InputError, ProgramBudgetError
from jfold.base.late import late
from jfold.blocks import *  # noqa: F403
from jfold.blocks.compose import Composition, compose, recursive
from jfold.blocks.inputs import External
from jfold.blocks.lazy import Lazy, float32, int32, lazy, named, observe, select, tensor
from jfold.blocks.reductions import Max, Mean, Min, Softmax, Stack, Sum
from jfold.ragged import MetricValues, Ragged
from jfold.scheduling.schedule import Schedule
from jfold.scheduling.spec import Capacity
from jfold.types import (
    BroadcastType,
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
    convert_to_type,
)

if TYPE_CHECKING:
    from jfold.data.adoption import Traced
    from jfold.data.batches import Batch, Batches
    from jfold.data.corpus import Corpus
    from jfold.data.tracer import Tracer
    from jfold.debug.find_nan import NonFinite, find_nan
    from jfold.display.drawing import draw
    from jfold.files.storage import DamagedError, UnknownFormatError
    from jfold.flax import layers, linen, nnx  # noqa: F401
    from jfold.models.compiled import CompiledStep
    from jfold.models.loaded import LoadedModel
    from jfold.models.model import Model, compile
    from jfold.models.saved import load, save

__version__ = '0.1.0'
__all__ = [
    'Batch',
    'Batches',
    'BroadcastType',
    'Capacity',
    'CompiledStep',
    'Composition',
    'Corpus',
    'DamagedError',
    'External',
    'InputError',
    'Lazy',
    'LoadedModel',
    'Max',
    'Mean',
    'MetricValues',
    'Min',
    'Model',
    'NonFinite',
    'ObjectType',
    'ProgramBudgetError',
    'Ragged',
    'Schedule',
    'SequenceType',
    'Softmax',
    'Stack',
    'Sum',
    'TensorType',
    'Traced',
    'Tracer',
    'TupleType',
    'UnknownFormatError',
    'VoidType',
    'compile',
    'compose',
    'convert_to_type',
    'draw',
    'find_nan',
    'float32',
    'int32',
    'lazy',
    'load',
    'named',
    'observe',
    'recursive',
    'save',
    'select',
    'tensor',
]
__all__ += blocks.__all__
__all__.remove('Reference')  # which declarations make
del Reference  # noqa: F821


# Names that run expressions, or import Flax, are imported on first use: a program that
# only writes expressions starts sooner. What methods call late is in `base/late.py`.
_MODULES = 'layers', 'linen', 'nnx'  # these import Flax
_LATER = {
    'data.adoption': ['Traced'],
    'data.batches': ['Batch', 'Batches'],
    'data.corpus': ['Corpus'],
    'data.tracer': ['Tracer'],
    'debug.find_nan': ['NonFinite', 'find_nan'],
    'display.drawing': ['draw'],
    'files.storage': ['DamagedError', 'UnknownFormatError'],
    'models.compiled': ['CompiledStep'],
    'models.loaded': ['LoadedModel'],
    'models.model': ['Model', 'compile'],
    'models.saved': ['load', 'save'],
}
_HOMES = {name: module for module, names in _LATER.items() for name in names}


if not TYPE_CHECKING:  # type checkers would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Import and return a public name on first use, or raise AttributeError."""
        if name in _MODULES:
            return importlib.import_module(f'jfold.flax.{name}')
        if name in _HOMES:
            return globals().setdefault(name, late(_HOMES[name], name))
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    """Return the names for completion: public ones, and those with two underscores."""
    dunder_names = (name for name in globals() if name.startswith('__'))
    return sorted([*__all__, *_MODULES, *dunder_names])
