# SPDX-License-Identifier: Apache-2.0
"""A typed expression: the uses of blocks, their types, and where they are."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jfold import blocks as b
from jfold.base.printing import short
from jfold.language.fields import Order
from jfold.language.forwarding import Forwarding
from jfold.language.paths import path_of
from jfold.program.operations import Layer
from jfold.program.result_tables import Kind, rows_of
from jfold.types import TupleType, Type


@dataclass(eq=False, repr=False)
class Typed:
    """One use of a block, with its types, or all its uses on one value.

    Attributes:
      where: the blocks that lead to the first, as `Pipe[1].Record['left']`.
      parts: the uses inside, in the order of their evaluation, as the rule says that
        types the block; `None` where an optional one is absent.
      layer: of a function, and of an item of a tensor.
      order: the places of the items of its input, as a function takes them by name.
      origins: where its outputs come from.
      shared: whether it is used more than once.
      draws: whether something random is inside, so that each use is another.
      observes: whether a metric is inside, so that each use counts.
      facts: what the rules of the block ask of the blocks that it is made of.
    """

    block: b.Block
    where: str
    input: Type
    output: Type
    parts: tuple[Typed | None, ...] = ()
    layer: Layer | None = None
    order: Order | None = None
    origins: Forwarding | None = None
    shared: bool = False
    draws: bool = False
    observes: bool = False
    facts: Any = None

    @property
    def taken(self) -> Type:
        """What is taken: the type of the input, its items in the order of names."""
        return TupleType(self.arranged(self.input)) if self.order else self.input

    def arranged(self, value: Any) -> Any:
        """The items of an input, or of its type, in the order in which they are taken.

        In that they have, this is the input itself.
        """
        return tuple(value[place] for place in self.order) if self.order else value

    @functools.cached_property
    def path(self) -> str:
        """The way to it, and the beginning of what it prints as."""
        return path_of(self.where, self.block)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, eq=False)
class Typing:
    """A typed expression: its root, its declarations, its layers in order of use, what
    metrics collect, and whether with labels.

    Prints with a line for each use of a block, indented below what it is a part of.
    """

    root: Typed
    declarations: dict[b.ForwardDeclaration, Typed]
    layers: tuple[Layer, ...]
    metrics: dict[str, tuple[Type, bool]]

    @functools.cached_property
    def results(self) -> tuple[tuple[Kind, Type], ...]:
        """The kinds of what a batch gives, in order, with the types of their rows."""
        return rows_of(self.root.output, self.metrics)

    @functools.cached_property
    def metric_numbers(self) -> dict[str | None, int]:
        """The numbers of those of metrics, by name."""
        return {kind.name: r for r, (kind, _) in enumerate(self.results)}

    def __str__(self) -> str:
        named = [(each.name, root) for each, root in self.declarations.items()]
        trees = (
            (f'<{name}>', *_lines(root))
            for name, root in [('expression', self.root), *named]
        )
        return '\n'.join(itertools.chain.from_iterable(trees))


def _lines(root: Typed) -> Iterator[str]:
    """A use and all inside it; of one on a value that it met before, the head alone."""
    waiting, seen = [(1, root)], set[int]()
    while waiting:
        depth, node = waiting.pop()
        yield f'{"  " * depth}{short(node.block)}: {node.input} -> {node.output}'
        if id(node) not in seen:
            seen.add(id(node))
            parts = [part for part in node.parts if part is not None]
            waiting += [(depth + 1, part) for part in reversed(parts)]
