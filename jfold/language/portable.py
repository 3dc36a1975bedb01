# SPDX-License-Identifier: Apache-2.0
"""A typed expression without the code of its layers, for files and other processes.

Of a block, only the attributes are kept that its rules for walking and writing read.
Its inner blocks are kept as the parts of its use.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from jfold import blocks as b
from jfold import types as t
from jfold.base.structs import StructForm, plain_containers
from jfold.blocks.compose import Composition
from jfold.blocks.control import CallKind
from jfold.blocks.lazy import InOrder
from jfold.language.forwarding import Forwarding
from jfold.language.lazy_expression import Reader, learned_reader
from jfold.language.rules_reduce import Fill
from jfold.language.typed import TypedExpression, TypedUse
from jfold.program.operations import Layer, Program


def portable(program: Program) -> tuple[TypedExpression, bool, bool]:
    """Return the arguments of `lower_typed` that rebuild a program in another process.

    They are the typed expression, and whether the program is fused and unrolled.
    """
    expression: Any = program.expression
    return expression.typing, bool(expression.chosen.feeds), expression.unrolled


def missing(*inputs: object) -> NoReturn:
    """Raise `AssertionError`, in place of the code of a layer, which is not stored."""
    raise AssertionError('what records examples does not run layers')


# Attributes: of a layer, those left out and those stored; of a use, those stored.
CODE = 'call', 'init', 'evaluating', 'owner'
LAYER = tuple(x.name for x in fields(Layer) if x.name not in CODE)
USE = (*(x.name for x in fields(TypedUse)), 'path')


def _record(keys: tuple[Any, ...], length: int | None) -> Any:
    return _bare(b.Record, fields=tuple((key, None) for key in keys), length=length)


def _declaration(name: str, key: Any, calls: Any) -> b.ForwardDeclaration:
    declaration = b.ForwardDeclaration(name=name)
    declaration.key, declaration.calls = key, calls and CallKind(*calls)
    return declaration


def _bare(block_class: type[Any], **values: object) -> object:
    """Return a block with just these attributes, without running its constructor."""
    block = object.__new__(block_class)
    vars(block).update(values)
    return block


@dataclass(frozen=True)
class Codec:
    """A rule for storing an object: as `parts`, from which `make` rebuilds it.

    Attributes:
      classes: the classes that parts may have; any if `None`. It keeps a bad file from
        making `make` call methods of other classes.
    """

    parts: Callable[[Any], Iterable[Any]]
    make: Callable[..., Any]
    classes: tuple[Any, ...] | None = None


def codec(make: Callable[..., Any], *names: str) -> Codec:
    """Return a codec: store the attributes `names`, rebuild by `make(*values)`.

    A name may have dots, as 'a.b'.
    """
    getters = [operator.attrgetter(name) for name in names]
    return Codec(lambda x: [get(x) for get in getters], make)


def _fields(type_: type[Any]) -> Codec:
    """Return a codec that stores all fields of dataclass `type_`."""
    return codec(type_, *(x.name for x in fields(type_)))


def reduced(make: Callable[..., Any], *classes: Any) -> Codec:
    """Return a codec: `__reduce__` gives arguments to store, `make` rebuilds from them.

    Args:
      classes: the classes that the arguments may have; when left out, any class.
    """
    return Codec(lambda x: x.__reduce__()[1], make, classes or None)


def _keywords(make: Callable[..., Any], *names: str) -> Codec:
    """Return a codec: store the attributes `names`, rebuild by `make(**values)`."""
    return codec(lambda *values: make(**dict(zip(names, values, strict=True))), *names)


def _bare_codec(block_class: type[Any], *names: str) -> Codec:
    """Return a codec that stores the attributes `names` of blocks of a class."""
    return _keywords(functools.partial(_bare, block_class), *names)


def _input_transform(fn: Any, default: tuple[Any, ...]) -> b.InputTransform:
    return b.InputTransform(fn, **({'default': default[0]} if default else {}))


BLOCKS: dict[type, Codec] = {
    b.Tensor: codec(b.Tensor, 'shape', 'type.dtype', 'below'),
    b.InputTransform: Codec(
        lambda x: (dict(x.fn) if isinstance(x.fn, Mapping) else x.fn, x.default),
        _input_transform,
    ),
    b.OneHotFromList: codec(b.OneHotFromList, 'items', 'type.dtype', 'strict'),
    b.FromTensor: codec(b.FromTensor, 'value'),
    b.Zeros: codec(b.Zeros, 'type'),
    b.Length: codec(b.Length, 'type.dtype'),
    b.Record: Codec(lambda x: (tuple(key for key, _ in x.fields), x.length), _record),
    b.GetItem: _bare_codec(b.GetItem, 'key', 'default'),
    # A `key_fn` that is a block is kept as a part of the use, not here.
    b.OneOf: Codec(
        lambda x: (None if isinstance(x.key_fn, b.Block) else x.key_fn,),
        lambda fn: _bare(b.OneOf, key_fn=fn),
    ),
    b.Metric: _bare_codec(b.Metric, 'name'),
    b.Reference: _bare_codec(b.Reference, 'declaration'),
    b.RNN: _bare_codec(b.RNN, 'initial_state_from_input'),
    b.Padded: _bare_codec(b.Padded, 'length'),
    b.Zip: _bare_codec(b.Zip, 'strict'),
    b.NGrams: _bare_codec(b.NGrams, 'n'),
    **{
        block_class: _bare_codec(block_class)
        for block_class in (
            *(b.Void, b.Function, b.Identity, b.Pipe, b.AllOf, b.Optional, b.Share),
            *(Composition, b.Map, b.Fold, b.Reduce, b.Broadcast, b.Nth, b.Chain),
            *(b.Pick, b.Regroup, InOrder),
        )
    },
}


def _use(*, path: str, **attributes: Any) -> TypedUse:
    """Rebuild a `TypedUse` from its stored attributes and its path in the expression.

    The path cannot be computed from the block again, which is stored without its inner
    blocks. Raise `TypeError` unless `block` is a `Block`, and `parts` is a tuple of
    uses and `None`.
    """
    use = TypedUse(**attributes)
    # A file may come from anybody.
    parts_are_uses = type(use.parts) is tuple and all(
        isinstance(part, TypedUse | None) for part in use.parts
    )
    if not parts_are_uses or not isinstance(use.block, b.Block):
        name = type(use.block).__name__
        raise TypeError(f'expected the use of a block, got one of {name}')
    vars(use).update(path=path)
    return use


CODECS: dict[type, Codec] = {
    **BLOCKS,
    TypedUse: _keywords(_use, *USE),
    TypedExpression: _fields(TypedExpression),
    Forwarding: _fields(Forwarding),
    b.ForwardDeclaration: Codec(
        lambda x: (x.name, x.key, x.calls and (*x.calls,)), _declaration
    ),
    Layer: Codec(
        lambda x: [plain_containers(getattr(x, name)) for name in LAYER],
        lambda *values: Layer(
            call=missing, init=None, **dict(zip(LAYER, values, strict=True))
        ),
    ),
    Reader: reduced(learned_reader),
    Fill: codec(lambda name: Fill[name], 'name'),
    t.TensorType: _fields(t.TensorType),
    t.SequenceType: reduced(t.SequenceType),
    t.BroadcastType: reduced(t.BroadcastType),
    t.ObjectType: _fields(t.ObjectType),
    t.VoidType: _fields(t.VoidType),
    t.KeyType: codec(t.KeyType, 'name'),
    t.TupleType: reduced(t.TupleType),
    t.StructType: reduced(t.StructType),
    StructForm: reduced(StructForm.of_keys),
}


def class_of(value: object) -> type:
    """Return the key in `CODECS` for `value`: its class, or a base class."""
    for base in b.Function, b.Record:  # a subclass is stored as its base
        if isinstance(value, base):
            return base
    return type(value)
