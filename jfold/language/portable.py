# SPDX-License-Identifier: Apache-2.0
"""A typed expression without the code of its layers, for files and other processes.

A block keeps the attributes that the rules which walk and write it read. Its inner
blocks are kept as the parts of its use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jfold import blocks as b
from jfold.blocks.compose import Composition
from jfold.language.forwarding import Forwarding
from jfold.language.groups import Fill
from jfold.language.lazy_expression import Reader, learned_reader
from jfold.language.typed import TypedExpression, TypedUse
from jfold.program.operations import Layer, Program


@dataclass(frozen=True, eq=False)
class Portable:
    """A typed expression with the choices from which its source is written again.

    Attributes:
      typing: the uses of blocks.
      feeds: per operation with others fused into it, the origin of each input, as
        `OperationChoice.feeds`.
      unrolled: whether operations are told apart to run outside of loops.
    """

    typing: TypedExpression
    feeds: dict[int, tuple[Any, ...]]
    unrolled: bool


def portable(program: Program) -> Portable:
    """Return what another process needs of a program to record examples."""
    expression: Any = program.expression
    feeds = {o: tuple(x) for o, x in expression.chosen.feeds.items()}
    return Portable(expression.typing, feeds, expression.unrolled)


def missing(*inputs: object) -> NoReturn:
    """Raise `AssertionError`: this function stands in for the code of each layer."""
    raise AssertionError('what records examples does not run layers')


def _outline(name: str, params: object, *others: Any) -> Layer:
    """Return a layer with the attributes `LAYER`, which raises when it is called."""
    options = dict(zip(LAYER[2:], others, strict=True))
    return Layer(name, missing, None, params, **options)


LAYER = 'name', 'params', 'batched', 'external', 'rngs', 'combines', 'parts'


def _fields_of_record(block: b.Record) -> tuple[Any, ...]:
    return tuple(key for key, _ in block.fields), block.length


def _record(keys: tuple[Any, ...], length: int | None) -> Any:
    fields = tuple((key, None) for key in keys)
    return _bare(b.Record, fields=fields, length=length)


def _declaration(name: str, key: Any) -> b.ForwardDeclaration:
    declaration = b.ForwardDeclaration(name=name)
    declaration.key = key
    return declaration


def _bare(block_class: type[Any], **values: object) -> object:
    """Return a block with just these attributes, without running its constructor."""
    block = object.__new__(block_class)
    vars(block).update(values)
    return block


def _default(default: tuple[Any, ...]) -> dict[str, Any]:
    return {'default': default[0]} if default else {}


@dataclass(frozen=True)
class Codec:
    """Two functions: `parts` takes a value apart, `make` builds one from the parts."""

    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]


def _plain(block_class: type[Any], *names: str) -> Codec:
    """Return the codec of blocks that keep just these attributes."""
    return Codec(
        lambda x: tuple(getattr(x, name) for name in names),
        lambda *values: _bare(block_class, **dict(zip(names, values, strict=True))),
    )


def _key_fn(block: b.OneOf) -> tuple[Any, ...]:
    # A `key_fn` that is a block is kept as a part of the use, not here.
    return (None if isinstance(block.key_fn, b.Block) else block.key_fn,)


def _transform(block: b.InputTransform) -> tuple[Any, ...]:
    fn = dict(block.fn) if isinstance(block.fn, Mapping) else block.fn
    return fn, block.default


BLOCKS: dict[type, Codec] = {
    b.Tensor: Codec(lambda x: (x.shape, x.type.dtype, x.below), b.Tensor),
    b.InputTransform: Codec(
        _transform, lambda fn, default: b.InputTransform(fn, **_default(default))
    ),
    b.OneHotFromList: Codec(
        lambda x: (x.items, x.type.dtype, x.strict), b.OneHotFromList
    ),
    b.FromTensor: Codec(lambda x: (x.value,), b.FromTensor),
    b.Zeros: Codec(lambda x: (x.type,), b.Zeros),
    b.Length: Codec(lambda x: (x.type.dtype,), b.Length),
    b.Record: Codec(_fields_of_record, _record),
    b.GetItem: _plain(b.GetItem, 'key', 'default'),
    b.OneOf: Codec(_key_fn, lambda fn: _bare(b.OneOf, key_fn=fn)),
    b.Metric: _plain(b.Metric, 'name'),
    b.Reference: _plain(b.Reference, 'declaration'),
    b.RNN: _plain(b.RNN, 'initial_state_from_input'),
    b.Padded: _plain(b.Padded, 'length'),
    b.Zip: _plain(b.Zip, 'strict'),
    b.NGrams: _plain(b.NGrams, 'n'),
    **{
        block_class: _plain(block_class)
        for block_class in (
            *(b.Void, b.Function, b.Identity, b.Pipe, b.AllOf, b.Optional, b.Share),
            *(Composition, b.Map, b.Fold, b.Reduce, b.Broadcast, b.Nth, b.Chain),
            *(b.Pick, b.Regroup),
        )
    },
}
USE = (
    *('block', 'where', 'input', 'output', 'parts', 'layer', 'order', 'origins'),
    *('shared', 'draws', 'observes', 'facts', 'path'),
)


def _use(*values: Any) -> TypedUse:
    """Return the use of a block with these values of the attributes `USE`.

    Raise `TypeError` if the block or a part is of another class.
    """
    attributes = dict(zip(USE, values, strict=True))
    path = attributes.pop('path')  # kept, as the bare block would print differently
    use = TypedUse(**attributes)
    name = type(use.block).__name__
    # Files are data from elsewhere, so nothing is taken on trust.
    parts_are_uses = type(use.parts) is tuple and all(
        part is None or isinstance(part, TypedUse) for part in use.parts
    )
    if not parts_are_uses or not isinstance(use.block, b.Block):
        raise TypeError(f'expected the use of a block, got one of {name}')
    vars(use).update(path=path)
    return use


CODECS: dict[type, Codec] = {
    **BLOCKS,
    TypedUse: Codec(lambda x: tuple(getattr(x, n) for n in USE), _use),
    TypedExpression: Codec(
        lambda x: (x.root, x.declarations, x.layers, x.metrics), TypedExpression
    ),
    Portable: Codec(lambda x: (x.typing, x.feeds, x.unrolled), Portable),
    Forwarding: Codec(
        lambda x: (tuple(x.outputs), tuple(x.reads), x.is_straight, tuple(x.pulled)),
        Forwarding,
    ),
    b.ForwardDeclaration: Codec(lambda x: (x.name, x.key), _declaration),
    Layer: Codec(lambda x: tuple(getattr(x, name) for name in LAYER), _outline),
    Reader: Codec(lambda x: x.parts, learned_reader),
    Fill: Codec(lambda x: (x.name,), lambda name: Fill[name]),
}


def codec_of(value: object) -> tuple[str, Codec] | None:
    """Return the tag and codec of a value's class; `None` if it has no codec."""
    class_ = type(value)
    for base in b.Function, b.Record:  # a subclass as its base: its use has the rest
        class_ = base if isinstance(value, base) else class_
    return (class_.__name__, CODECS[class_]) if class_ in CODECS else None
