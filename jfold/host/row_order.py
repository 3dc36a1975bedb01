# SPDX-License-Identifier: Apache-2.0
"""Places: int64 numbers that tell of which example an item is, and where in it.

    bit 63   62 ... 44            43 ... 0
        0    number of example    a hash of the way, or the number of a moment

By them rows are put in an order that does not depend on the other examples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from jfold.program import Program, is_breadth_first

Array = np.ndarray[Any, Any]

# The upper bits are the number of the example, the others a hash of the way to it.
# Nodes of one operation in one example share a hash once in 2**44 pairs; their order,
# and nothing else, may then depend on what else is traced.
WAY_BITS = 44
MAX_EXAMPLES = 1 << (63 - WAY_BITS)
_WAY = np.int64((1 << WAY_BITS) - 1)
FEW = 1 << 15  # numbers that have sixteen bits
_FACTOR, _STEP = 0x5851F42D4C957F2D, 0x14057B7EF767814F


def example_places(examples: int) -> Array:
    """The places [examples] of whole examples."""
    return np.arange(examples, dtype=np.int64) << WAY_BITS


def example_of(places: Array) -> Array:
    """The examples that places are in."""
    return places >> WAY_BITS


def inside(places: Array, way: int, items: Array | None = None) -> Array:
    """The places inside others: `way` tells how, `items` which item each is."""
    found = places * np.int64(_FACTOR)
    found += np.int64(way * _STEP & int(_WAY))
    if items is not None:
        found += items * np.int64(_FACTOR ^ _STEP)
    found &= _WAY
    found |= places & ~_WAY
    return found


def moments(places: Array) -> Array:
    """The moments [n] that places [n] `ByMoment` tell."""
    return places & _WAY


# ---- what tells rows apart -----------------------------------------------------------


class RowOrder(Protocol):
    """What places tell besides examples, and so the order of rows in an example."""

    def entered(self, places: Array, moment: int) -> Array:
        """The places [n] of items of a body that starts at a moment."""

    def inside(
        self, places: Array, way: int, items: Callable[[], Array] | None = None
    ) -> Array:
        """The places [n] inside others, each of which is some item there."""

    def order(self, places: Array, examples: int) -> Array | None:
        """The order [n] of rows, by example first; `None` if they are in order."""


class ByWay:
    """Rows are told apart by the way to them, since it may depend on other examples
    which body runs when."""

    def entered(self, places: Array, moment: int) -> Array:
        return places

    def inside(
        self, places: Array, way: int, items: Callable[[], Array] | None = None
    ) -> Array:
        return inside(places, way, None if items is None else items())

    def order(self, places: Array, examples: int) -> Array | None:
        return places.argsort()


class ByMoment:
    """Rows are in the order in which they are made, body by body: when a body runs is
    told by the depth of the data, and how items of an example stand there by itself."""

    def entered(self, places: Array, moment: int) -> Array:
        return places & ~_WAY | moment

    def inside(
        self, places: Array, way: int, items: Callable[[], Array] | None = None
    ) -> Array:
        return places

    def order(self, places: Array, examples: int) -> Array | None:
        if examples == 1:  # then places are moments
            return stable_order(places)
        if (keys := short_keys(places, examples)) is not None:
            return stable_order(keys.values)  # one sort in place of two
        when, of_examples = moments(places), example_of(places)
        order = stable_order(when)
        outer = stable_order(of_examples if order is None else of_examples[order])
        return outer if order is None else order if outer is None else order[outer]


class ShortKeys(NamedTuple):
    """Places `ByMoment` in sixteen bits: the example above the moment.

    Attributes:
      values: [n] int16.
      bits: of the moment.
    """

    values: Array
    bits: int

    def of(self, rows: Array) -> ShortKeys:
        """Those of some rows [rows]."""
        return ShortKeys(self.values[rows], self.bits)

    def examples(self) -> Array:
        """The examples [n] that they are in."""
        return self.values >> self.bits

    def moments(self) -> Array:
        """The moments [n] that they tell."""
        return self.values & np.int16((1 << self.bits) - 1)


def short_keys(places: Array, examples: int) -> ShortKeys | None:
    """Keys that sort as places [n] `ByMoment` do, if sixteen bits are enough."""
    when = moments(places)
    bits = int(when.max(initial=0)).bit_length()
    if examples << bits > FEW:
        return None
    when |= example_of(places) << bits
    return ShortKeys(when.astype(np.int16), bits)


def row_order(program: Program) -> RowOrder:
    """What tells the rows of a program apart."""
    return ByMoment() if is_breadth_first(program) else ByWay()


def stable_order(keys: Array) -> Array | None:
    """The order that sorts numbers and keeps equal ones as they are, if it is another.

    Few numbers are sorted fast, those of sixteen bits, by radix, even faster.
    """
    if np.logical_and.reduce(keys[1:] >= keys[:-1]):
        return None
    small = keys.max() < FEW
    keys = keys.astype(np.int16, copy=False) if small else keys
    return keys.argsort(kind='stable')
