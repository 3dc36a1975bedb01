# SPDX-License-Identifier: Apache-2.0
"""A typed expression without the code of its layers, so that it can go elsewhere.

Of a block stay what the rules that walk and write it ask of itself; the blocks that it
is made of are the parts of its use. What layers do is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jfold import combinators as c
from jfold.language.groups import Fill
from jfold.language.origins import Origins
from jfold.language.typed import Typed, Typing
from jfold.operations import Layer
from jfold.program import Program
from jfold.wiring import Composition


@dataclass(frozen=True, eq=False)
class Portable:
    """What a program is written anew from.

    Attributes:
      typing: the uses of blocks.
      feeds: which operations are joined.
      once: whether operations are told apart.
    """

    typing: Typing
    feeds: dict[int, tuple[Any, ...]]
    once: bool


def portable(program: Program) -> Portable:
    """What another process needs to record examples."""
    expression: Any = program.expression
    feeds = {o: tuple(x) for o, x in expression.chosen.feeds.items()}
    return Portable(expression.typing, feeds, expression.once)


def missing(*inputs: object) -> NoReturn:
    """Stands for what layers do, which is no part of what records examples."""
    raise AssertionError('what records examples does not run layers')


def outline(name: str, params: object, *others: Any) -> Layer:
    """A layer that says what it is, and cannot be called."""
    options = dict(zip(LAYER[2:], others, strict=True))
    return Layer(name, missing, None, params, **options)


LAYER = 'name', 'params', 'batched', 'external', 'rngs', 'adds', 'parts'


def _fields_of_record(block: c.Record) -> tuple[Any, ...]:
    return tuple(key for key, _ in block.fields), block.length


def _record(keys: tuple[Any, ...], length: int | None) -> Any:
    fields = tuple((key, None) for key in keys)
    return bare(c.Record, fields=fields, length=length)


def _declaration(name: str, key: Any) -> c.ForwardDeclaration:
    made = c.ForwardDeclaration(name=name)
    made.key = key
    return made


def bare(kind: type[Any], **values: object) -> object:
    """A block with some of its attributes."""
    made = object.__new__(kind)
    vars(made).update(values)
    return made


def _default(given: tuple[Any, ...]) -> dict[str, Any]:
    return {'default': given[0]} if given else {}


@dataclass(frozen=True)
class Codec:
    """How a value is taken apart, and made again of these parts."""

    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]


def _plain(kind: type[Any], *names: str) -> Codec:
    return Codec(
        lambda x: tuple(getattr(x, name) for name in names),
        lambda *values: bare(kind, **dict(zip(names, values, strict=True))),
    )


def _key_fn(block: c.OneOf) -> tuple[Any, ...]:
    return (None if isinstance(block.key_fn, c.Block) else block.key_fn,)


def _transform(block: c.InputTransform) -> tuple[Any, ...]:
    fn = dict(block.fn) if isinstance(block.fn, Mapping) else block.fn
    return fn, block.default


BLOCKS: dict[type, Codec] = {
    c.Tensor: Codec(lambda x: (x.shape, x.type.dtype, x.below), c.Tensor),
    c.InputTransform: Codec(
        _transform, lambda fn, default: c.InputTransform(fn, **_default(default))
    ),
    c.OneHotFromList: Codec(
        lambda x: (x.items, x.type.dtype, x.strict), c.OneHotFromList
    ),
    c.FromTensor: Codec(lambda x: (x.value,), c.FromTensor),
    c.Zeros: Codec(lambda x: (x.type,), c.Zeros),
    c.Length: Codec(lambda x: (x.type.dtype,), c.Length),
    c.Record: Codec(_fields_of_record, _record),
    c.GetItem: _plain(c.GetItem, 'key', 'default'),
    c.OneOf: Codec(_key_fn, lambda fn: bare(c.OneOf, key_fn=fn)),
    c.Metric: _plain(c.Metric, 'name'),
    c.Reference: _plain(c.Reference, 'declaration'),
    c.RNN: _plain(c.RNN, 'initial_state_from_input'),
    c.Padded: _plain(c.Padded, 'length'),
    c.Zip: _plain(c.Zip, 'strict'),
    c.NGrams: _plain(c.NGrams, 'n'),
    **{
        kind: _plain(kind)
        for kind in (
            *(c.Void, c.Function, c.Identity, c.Pipe, c.AllOf, c.Optional, c.Share),
            *(Composition, c.Map, c.Fold, c.Reduce, c.Broadcast, c.Nth, c.Chain),
            *(c.Pick, c.Regroup),
        )
    },
}
USE = (
    *('block', 'where', 'input', 'output', 'parts', 'layer', 'order', 'origins'),
    *('shared', 'draws', 'observes', 'facts', 'path'),
)


def _use(*values: Any) -> Typed:
    given = dict(zip(USE, values, strict=True))
    path = given.pop('path')  # without its parts the block would print another
    made = Typed(**given)
    kind = type(made.block).__name__
    is_whole = type(made.parts) is tuple and all(map(_may_be_part, made.parts))
    if not is_whole or not isinstance(made.block, c.Block):
        raise TypeError(f'expected the use of a block, got one of {kind}')
    vars(made).update(path=path)
    return made


def _may_be_part(value: object) -> bool:
    return value is None or isinstance(value, Typed)


CODECS: dict[type, Codec] = {
    **BLOCKS,
    Typed: Codec(lambda x: tuple(getattr(x, n) for n in USE), _use),
    Typing: Codec(lambda x: (x.root, x.declarations, x.layers, x.metrics), Typing),
    Portable: Codec(lambda x: (x.typing, x.feeds, x.once), Portable),
    Origins: Codec(
        lambda x: (tuple(x.outputs), tuple(x.reads), x.is_straight), Origins
    ),
    c.ForwardDeclaration: Codec(lambda x: (x.name, x.key), _declaration),
    Layer: Codec(lambda x: tuple(getattr(x, name) for name in LAYER), outline),
    Fill: Codec(lambda x: (x.name,), lambda name: Fill[name]),
}


def codec_of(value: object) -> tuple[str, Codec] | None:
    """The tag and form of a value that has one."""
    kind = type(value)
    for each in c.Function, c.Record:  # by whatever name: its use says the rest
        kind = each if isinstance(value, each) else kind
    return (kind.__name__, CODECS[kind]) if kind in CODECS else None
