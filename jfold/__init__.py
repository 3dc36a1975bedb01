# SPDX-License-Identifier: Apache-2.0
"""jfold: networks whose graph differs for every input, batched, in JAX."""

from jfold.batches import Batch as Batch
from jfold.batches import Batches as Batches
from jfold.combinators import AllOf as AllOf
from jfold.combinators import Block as Block
from jfold.combinators import Concat as Concat
from jfold.combinators import Fold as Fold
from jfold.combinators import ForwardDeclaration as ForwardDeclaration
from jfold.combinators import FromTensor as FromTensor
from jfold.combinators import Function as Function
from jfold.combinators import GetItem as GetItem
from jfold.combinators import Identity as Identity
from jfold.combinators import InputTransform as InputTransform
from jfold.combinators import Length as Length
from jfold.combinators import Map as Map
from jfold.combinators import Max as Max
from jfold.combinators import Mean as Mean
from jfold.combinators import Metric as Metric
from jfold.combinators import Min as Min
from jfold.combinators import OneOf as OneOf
from jfold.combinators import Optional as Optional
from jfold.combinators import Pipe as Pipe
from jfold.combinators import Record as Record
from jfold.combinators import Reduce as Reduce
from jfold.combinators import Scalar as Scalar
from jfold.combinators import Sum as Sum
from jfold.combinators import Tensor as Tensor
from jfold.combinators import Vector as Vector
from jfold.combinators import Void as Void
from jfold.combinators import Zeros as Zeros
from jfold.combinators import convert_to_block as convert_to_block
from jfold.corpus import Corpus as Corpus
from jfold.errors import InputError as InputError
from jfold.errors import ProgramBudgetError as ProgramBudgetError
from jfold.layout import Capacity as Capacity
from jfold.model import CompiledStep as CompiledStep
from jfold.model import MetricValues as MetricValues
from jfold.model import Model as Model
from jfold.model import compile as compile
from jfold.schedule import Schedule as Schedule
from jfold.storage import DamagedError as DamagedError
from jfold.storage import UnknownFormatError as UnknownFormatError
from jfold.tracer import Traced as Traced
from jfold.tracer import Tracer as Tracer
from jfold.types import BroadcastType as BroadcastType
from jfold.types import ObjectType as ObjectType
from jfold.types import SequenceType as SequenceType
from jfold.types import TensorType as TensorType
from jfold.types import TupleType as TupleType
from jfold.types import VoidType as VoidType
from jfold.types import convert_to_type as convert_to_type

__version__ = '0.1.0'
