# SPDX-License-Identifier: Apache-2.0
"""The classes of blocks; their types and semantics are in `jfold/language/`."""

from jfold.blocks.control import (
    Concat,
    ForwardDeclaration,
    Identity,
    Metric,
    OneOf,
    Optional,
    Reference,
    Share,
)
from jfold.blocks.inputs import (
    InputTransform,
    OneHot,
    OneHotFromList,
    Scalar,
    Tensor,
    Vector,
    Void,
    Zeros,
)
from jfold.blocks.sequences import (
    RNN,
    Broadcast,
    Chain,
    Fold,
    GetItem,
    Length,
    Map,
    NGrams,
    Nth,
    Padded,
    Pick,
    Reduce,
    Regroup,
    Slice,
    Zip,
    ZipWith,
)
from jfold.combinators import (
    AllOf,
    Block,
    FromTensor,
    Function,
    Pipe,
    Record,
    convert_to_block,
)
