# SPDX-License-Identifier: Apache-2.0
"""Random blocks from sequences to tensors."""

from __future__ import annotations

from typing import Any

import jfold as jf
from jfold.types import SequenceType, TensorType, TupleType


class Reducers:
    """A part of what draws expressions: what makes tensors of sequences."""

    def reducer(self, item: Any, want: Any, depth: int) -> Any:
        """A block from sequences of a type to another type."""
        options = [self.fold, self.reduce, self.sliced, self.windows, self.zipped]
        options += [self.carried, self.chained, self.padded]
        if isinstance(want, TensorType) and want.differentiable:
            options += [self.total, self.total, self.count, self.shares]
        return self.pick(options)(item, want, depth)

    def fold(self, item: Any, want: Any, depth: int) -> Any:
        """`Fold` from a constant or trained start."""
        start = self.constant(want)
        return jf.Fold(self.between(TupleType(want, item), want, depth - 1), start)

    def reduce(self, item: Any, want: Any, depth: int) -> Any:
        """`Map`, then `Reduce`."""
        default = self.pick([None, self.constant(want)])
        combine = self.between(TupleType(want, want), want, depth - 1)
        each = jf.Map(self.between(item, want, depth - 1))
        # Twins group alike, so that what is said of a function need not be true.
        return each >> jf.Reduce(combine, default, self.pick([False, True]))

    def sliced(self, item: Any, want: Any, depth: int) -> Any:
        """Some of the items, then the rest of the way."""
        part = jf.GetItem(self.pick([slice(1, None), slice(None, None, -1)]))
        return part >> self.pick([self.fold, self.reduce])(item, want, depth)

    def carried(self, item: Any, want: Any, depth: int) -> Any:
        """`RNN` from a state that is constant, or made of the items, and what it gives
        of all of them."""
        given, pair = self.type(), TupleType
        cell = self.between(pair(item, want), pair(given, want), depth - 1)
        rest = self.pick([self.fold, self.reduce])(given, want, depth)
        if self.pick([False, True]):
            state = self.reduce(item, want, depth)
            states = jf.AllOf(jf.Identity(), state) >> jf.RNN(
                cell, initial_state_from_input=True
            )
        else:
            states = jf.RNN(cell, self.constant(want))
        both = states >> jf.Record((rest, jf.Identity()))
        return both >> self.function(pair(want, want), want)

    def whole_sequences(self, item: Any, want: Any, depth: int) -> Any:
        """Loops over sequences, or with one as their state."""
        rest = self.pick([self.fold, self.reduce])
        kind = self.pick(['beside', 'gathered', 'joined'])
        if kind == 'gathered':
            longer = jf.AllOf(jf.GetItem(0), jf.AllOf(jf.GetItem(1))) >> jf.Chain()
            start = jf.Zeros(SequenceType(item))
            return jf.Fold(longer, start) >> rest(item, want, depth)
        if kind == 'joined':
            rows = jf.NGrams(2) >> jf.Map(jf.Map(jf.Identity()))
            return rows >> jf.Reduce(jf.Chain()) >> rest(item, want, depth)
        given, state = self.type(), self.constant(want)
        inner = jf.GetItem(1) >> rest(item, given, depth - 1)
        both = jf.AllOf(jf.Identity(), jf.Broadcast()) >> jf.Zip()
        if self.pick([False, True]):  # of each item alone, so for all of them at once
            pair = jf.Record((jf.Identity(), inner))
            combine = pair >> self.function(TupleType(want, given), want)
            return both >> jf.Fold(combine, state)
        of_item = jf.GetItem(1) >> jf.AllOf(jf.GetItem(0), inner)
        pair = jf.AllOf(jf.GetItem(0), of_item)
        types = TupleType(want, TupleType(item, given))
        return both >> jf.Fold(pair >> self.function(types, want), state)

    def windows(self, item: Any, want: Any, depth: int) -> Any:
        """Neighbours together."""
        size = self.pick([1, 2, 3])
        rest = self.pick([self.fold, self.reduce])
        return jf.NGrams(size) >> rest(TupleType((item,) * size), want, depth)

    def zipped(self, item: Any, want: Any, depth: int) -> Any:
        """Each item beside a repeated constant, or the items of a sequence cut off."""
        given, rest = self.type(), self.pick([self.fold, self.reduce])
        beside = jf.Slice(start=1) >> jf.Map(self.between(item, given, depth - 1))
        if self.pick([False, True]):
            repeated = jf.Void() >> self.constant(given) >> jf.Broadcast()
            beside = repeated >> jf.Map(self.between(given, given, depth - 1))
        both = jf.AllOf(jf.Identity(), beside)
        pair = TupleType(item, given)
        if self.pick([False, True]):
            return both >> jf.Zip() >> rest(pair, want, depth)
        each = self.between(pair, given, depth - 1)
        return both >> jf.ZipWith(each) >> rest(given, want, depth)

    def total(self, item: Any, want: Any, depth: int) -> Any:
        """`Map`, then `Sum`, `Max`, `Min` or `Mean`."""
        kinds = [jf.Sum(), jf.Max(), jf.Min(), jf.Mean()]
        return jf.Map(self.between(item, want, depth - 1)) >> self.pick(kinds)

    def count(self, item: Any, want: Any, depth: int) -> Any:
        """A sum and the length."""
        both = jf.AllOf(self.total(item, want, depth), jf.Length(self.dtype))
        return both >> self.function(TupleType(want, self.tensor()), want)

    def chained(self, item: Any, want: Any, depth: int) -> Any:
        """Sequences one behind the other, or loops over whole ones."""
        kind = self.pick(['joined', 'windows', 'whole'])
        if kind == 'whole':
            return self.whole_sequences(item, want, depth)
        rest = self.pick([self.fold, self.reduce])(item, want, depth)
        if kind == 'windows':
            return jf.NGrams(self.pick([1, 2])) >> jf.Chain() >> rest
        back = jf.Slice(step=-1) >> jf.Map(self.between(item, item, depth - 1))
        return jf.AllOf(jf.Identity(), back) >> jf.Chain() >> rest

    def padded(self, item: Any, want: Any, depth: int) -> Any:
        """The first items, with zeros where there are none, as a tuple or a tensor."""
        size = self.pick([1, 2, 3])
        first = jf.Slice(stop=size)
        if isinstance(item, TensorType) and self.pick([False, True]):
            stacked = TensorType((size, *item.shape), item.dtype)
            return first >> jf.Stack(size) >> self.function(stacked, want)
        rest = self.between(TupleType((item,) * size), want, depth - 1)
        return first >> jf.Padded(size) >> rest

    def shares(self, item: Any, want: Any, depth: int) -> Any:
        """`Map`, then `Softmax`, then the rest of the way."""
        rest = self.pick([self.fold, self.reduce])(want, want, depth)
        return jf.Map(self.between(item, want, depth - 1)) >> jf.Softmax() >> rest
