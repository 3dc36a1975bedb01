# SPDX-License-Identifier: Apache-2.0
"""A typed expression, with all that its source was written by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jfold.base.errors import BadItem, InputError
from jfold.language.generate import settled
from jfold.language.recordings import recording
from jfold.language.rounds import Chosen
from jfold.language.tables import Tables
from jfold.language.typed import Typed, Typing
from jfold.language.walk import (
    At,
    Made,
    Misfit,
    Path,
    Walk,
    misfit,
    path_of,
)
from jfold.tracing.convert import (
    check_below,
    lengths_to_array,
    to_array,
)
from jfold.tracing.deep import uncollected
from jfold.tracing.record import Source
from jfold.types import Product, TensorType, Type


@dataclass(frozen=True, eq=False)
class Expression:
    """What says all about examples that the source cannot.

    Attributes:
      typing: the uses of blocks.
      tables: what is numbered.
      chosen: which operations there are.
      once: whether they were told apart until none takes turns.
      sites: by type, the bound and use of the constants on each tape.
    """

    typing: Typing
    tables: Tables
    chosen: Chosen
    once: bool = False
    sites: Any = None

    def deep(self) -> Source:
        """The source for data deeper than Python's stack."""
        made, text = settled(self.tables, self.chosen, deep=True)
        return Source(text, made.names.values, recording(made))

    def explain(self, example: object) -> InputError | None:
        """What is wrong with an example, as example 0; `None` if nothing is."""
        try:
            with uncollected():
                Walk(self.typing, Nothing()).run(example)
        except Misfit as error:
            found = error.told()
            found.__cause__ = error.__cause__
            return found
        return None


class Nothing:
    """Tensors that are the way to what they were made of: no data are wrong by more."""

    def tensor(
        self, node: Typed, x: At, type_: TensorType, below: int | None
    ) -> object:
        """Looks whether an object can be one."""
        try:
            made = to_array([x.value], type_)
            if below is not None:
                check_below(made, below)
        except BadItem as error:
            raise misfit(node, str(error), x, error.hint) from error.__cause__
        return Made(x.path)

    def constant(self, node: Typed, value: object) -> Any:
        """Made of no data."""
        return Made(None)

    def call(self, node: Typed, x: object) -> Any:
        """Made of all inputs."""
        return _made(node.output, path_of(x))

    def length(self, node: Typed, n: int, type_: TensorType) -> object:
        """Looks whether a type can hold a length."""
        try:
            lengths_to_array(np.array([n]), type_)
        except BadItem as error:
            raise misfit(node, str(error)) from None
        return Made(None)

    def group(self, combine: Typed, item: Type, items: list[Any]) -> object:
        """Made of all items."""
        return _made(item, path_of(items))

    def observe(self, node: Typed, name: str, x: object) -> None:
        """Nothing."""


def _made(type_: Type, path: Path | None) -> object:
    """A value of a type, made of what is there."""
    if isinstance(type_, Product):
        return tuple(_made(each, path) for each in type_)
    return Made(path) if isinstance(type_, TensorType) else None
