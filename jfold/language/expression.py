# SPDX-License-Identifier: Apache-2.0
"""A typed expression and the choices made in lowering it, to explain bad examples."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from jfold.base.errors import BadItem, InputError
from jfold.base.trampoline import tall_stack
from jfold.language.data_paths import Path
from jfold.language.facts import OperationChoice
from jfold.language.generate import generate_source
from jfold.language.tables import Tables
from jfold.language.typed import TypedExpression, TypedUse
from jfold.language.walk import Located, Misfit, Walk, in_tuples, misfit, path_of
from jfold.tracing.convert import to_bounded
from jfold.tracing.deep import uncollected
from jfold.tracing.record import Source
from jfold.types import TensorType, Type


@dataclass(frozen=True, eq=False)
class Expression:
    """A lowered expression, kept to explain errors and to record deeply nested data.

    Attributes:
      unrolled: whether uses of an operation became several operations, which need no
        loops (`unrolling`).
      sites: by type number, `(below, use)` per tape of constants (`sites_in_order`).
    """

    typing: TypedExpression
    tables: Tables
    chosen: OperationChoice
    unrolled: bool = False
    sites: Any = None

    @tall_stack()
    def deep(self) -> Source:
        """Generate source with `yield`, for data nested deeper than Python's stack."""
        generation, text = generate_source(self.tables, self.chosen, deep=True)
        return generation.source(text)

    @uncollected()
    def explain(self, example: object) -> InputError | None:
        """Return the error of `example`, counted as example 0; `None` if it fits."""
        paths = Paths()
        try:
            try:
                Walk(self.typing, paths).run(example)
            finally:
                paths.check_leaves()  # an earlier error, if any, comes first
        except Misfit as error:
            return error.input_error()
        return None


@dataclass(eq=False, slots=True)
class PathOnly:
    """A stand-in for a tensor: the path of the tensor's data; `None` without data."""

    path: Path | None


class Paths:
    """An evaluator of one example that keeps only each tensor's path in the example.

    Paths are enough to find what is wrong with an example. Objects are converted to
    tensors at the end, all of a type at once, which takes a tenth of the time.
    """

    def __init__(self) -> None:
        self.leaves: list[tuple[TypedUse, Located, TensorType, int | None]] = []

    def tensor(
        self, node: TypedUse, x: Located, type_: TensorType, below: int | None
    ) -> object:
        """Return a placeholder with the path of `x`; `check_leaves` converts it."""
        self.leaves.append((node, x, type_, below))
        return PathOnly(x.path)

    def check_leaves(self) -> None:
        """Raise `Misfit` for the first object, if any, that cannot become a tensor."""
        leaves, numbers = self.leaves, defaultdict[Any, list[int]](list)
        for number, (_, _, *kind) in enumerate(leaves):
            numbers[tuple(kind)].append(number)
        misfits: dict[int, Misfit] = {}
        for (type_, below), chosen in numbers.items():
            try:
                to_bounded([leaves[k][1].value for k in chosen], type_, below)
            except BadItem as error:
                node, x, *_ = leaves[chosen[error.index]]
                fault = misfit(node, str(error), x, error.hint)
                fault.__cause__ = error.__cause__
                misfits[chosen[error.index]] = fault
        if misfits:
            raise misfits[min(misfits)]

    def constant(self, node: TypedUse, value: object) -> Any:
        """Return a placeholder without path: `value` is a constant, of no example."""
        return PathOnly(None)

    def call(self, node: TypedUse, x: object) -> Any:
        """Return placeholders of outputs, with the common prefix of paths in `x`."""
        return in_tuples(node.output, itertools.repeat(PathOnly(path_of(x))))

    def group(self, combine: TypedUse, item: Type, items: list[Any]) -> object:
        """Reduce `items` to placeholders that have the common prefix of their paths."""
        return in_tuples(item, itertools.repeat(PathOnly(path_of(items))))

    def observe(self, node: TypedUse, name: str, x: object) -> None:
        """Ignore `x`, which metric `name` collects."""
