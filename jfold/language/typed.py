# SPDX-License-Identifier: Apache-2.0
"""A typed expression: the uses of blocks, with their types and paths."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jfold import blocks as b
from jfold.base.printing import short_text
from jfold.language.field_names import Order
from jfold.language.forwarding import Forwarding
from jfold.language.paths import path_of
from jfold.program.operations import Layer
from jfold.program.result_tables import Kind, rows_of
from jfold.types import TupleType, Type


@dataclass(eq=False, repr=False)
class TypedUse:
    """A use of a block in an expression, with its input and output type.

    One object may stand for all uses of the block on one input.

    Attributes:
      where: the path to its first use, as `Pipe[1].Record['left']`.
      parts: the `TypedUse` of each inner block in the order of evaluation, set by the
        rule that types the block; `None` in place of an optional block that is absent.
      layer: the layer of a function, or of the look-up of an item of a tensor.
      order: per argument of the function the index of the input's item, if the function
        takes items by name; else `None`.
      origins: which outputs of the layer are inputs, constants or computed.
      shared: whether the object stands for more than one use.
      draws: whether random numbers are drawn inside, so that each use has its own
        value.
      facts: data that the block's typing rule stores for its other two rules.
    """

    block: b.Block
    where: str
    input: Type
    output: Type
    parts: tuple[Any, ...] = ()
    layer: Layer | None = None
    order: Order | None = None
    origins: Forwarding | None = None
    shared: bool = False
    draws: bool = False
    facts: Any = None

    @property
    def taken(self) -> Type:
        """The input type; items taken by name are in the order of the parameters."""
        return TupleType(self.arranged(self.input)) if self.order else self.input

    def arranged(self, value: Any) -> Any:
        """Return `value`, with items taken by name in the order of the parameters."""
        return tuple(value[place] for place in self.order) if self.order else value

    @functools.cached_property
    def path(self) -> str:
        """The path with which errors name this use."""
        return path_of(self.where, self.block)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, eq=False)
class TypedExpression:
    """An expression with types, which prints as an indented line for each use.

    Attributes:
      root: the use of the outermost block.
      declarations: by declaration, the use that holds its body.
      layers: all layers, in order of first use.
      metrics: by name, the type that is collected and whether labels are beside it.
    """

    root: TypedUse
    declarations: dict[b.ForwardDeclaration, TypedUse]
    layers: tuple[Layer, ...]
    metrics: dict[str, tuple[Type, bool]]

    @functools.cached_property
    def results(self) -> tuple[tuple[Kind, Type], ...]:
        """The kind and row type of each result, a table of returned rows."""
        return rows_of(self.root.output, self.metrics)

    @functools.cached_property
    def metric_numbers(self) -> dict[str | None, int]:
        """The index in `results` of each metric, by name."""
        return {kind.name: r for r, (kind, _) in enumerate(self.results)}

    def __str__(self) -> str:
        named = [(key.name, body) for key, body in self.declarations.items()]
        return '\n'.join(
            line
            for name, root in [('expression', self.root), *named]
            for line in (f'<{name}>', *_lines(root))
        )


def _lines(root: TypedUse) -> Iterator[str]:
    """Yield a line per block use in `root`; shared uses list their parts once."""
    waiting, seen = [(1, root)], set[int]()
    while waiting:
        depth, node = waiting.pop()
        yield f'{"  " * depth}{short_text(node.block)}: {node.input} -> {node.output}'
        if id(node) not in seen:
            seen.add(id(node))
            parts = [part for part in node.parts if part is not None]
            waiting += [(depth + 1, part) for part in reversed(parts)]
