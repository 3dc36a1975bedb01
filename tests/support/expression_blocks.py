# SPDX-License-Identifier: Apache-2.0
"""Random blocks that choose by the data, that recur, and that reduce sequences."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import numpy as np
from expression_parts import (
    Rng,
    Source,
    as_tuple,
    by_length,
    choice,
    first_of,
    labelled_tree,
    random_tree,
)

import jfold as jf
from jfold.types import SequenceType, TensorType, TupleType


class Branches:
    """A part of what draws expressions: choices, and what data may lack."""

    def one_of(self, want: Any, depth: int) -> Source:
        """`OneOf` by a Python function or by a block."""
        cases = [self.source(want, depth) for _ in range(self.pick([1, 2, 3]))]
        first, rest = jf.GetItem(0), jf.GetItem(1)
        blocks = {i: case.block for i, case in enumerate(cases)}
        by_block = self.pick([False, True])
        if not by_block:
            blocks = {i: rest >> b for i, b in blocks.items()}
        # The last case may be that of all keys which no other has.
        named = len(cases) > 1 and self.pick([False, True])
        other = blocks.pop(len(cases) - 1) if named else None
        if by_block:
            block = jf.OneOf(first, blocks, pre_block=rest, default=other)
        else:
            key = self.pick([first_of, operator.itemgetter(0)])
            block = jf.OneOf(key, blocks, default=other)
        return Source(block, choice(cases))

    def typed_one_of(self, want: Any, depth: int) -> Source:
        """`OneOf` between blocks on tensors, by a key beside them."""
        given = self.type()
        source = self.source(given, depth)
        cases = {k: self.between(given, want, depth) for k in ('x', 'y')}
        pair = jf.Record((jf.Identity(), source.block))
        block = pair >> jf.OneOf(jf.GetItem(0), cases, pre_block=jf.GetItem(1))
        return Source(
            block, lambda rng: (str(rng.choice(['x', 'y'])), source.sample(rng))
        )

    def optional(self, want: Any, depth: int) -> Source:
        """`Optional` with or without a case for `None`."""
        source = self.source(want, depth)
        none = self.pick([None, self.constant(want)])

        def sample(rng: Rng) -> Any:
            return None if rng.random() < 0.3 else source.sample(rng)

        return Source(jf.Optional(source.block, none), sample)

    def lacking(self, want: Any, depth: int) -> Source:
        """A field that data may lack, which is `None` or something else there."""
        source = self.source(want, depth)
        item = jf.Optional(source.block)
        as_field = self.pick([True, False])
        given = source.sample(np.random.default_rng(self.draw(9)))
        default = self.pick([None, given])
        block = (
            jf.Record({'a': item, 'b': jf.Identity()}) >> jf.GetItem(0)
            if as_field
            else jf.GetItem('a', default=default) >> item
        )

        def sample(rng: Rng) -> Any:
            data = {'b': 0}
            if rng.random() < 0.7:
                data['a'] = source.sample(rng)
            return data

        return Source(block, sample)

    def by_truth(self, want: Any, depth: int) -> Source:
        """`OneOf` by whether a list has an item, with a case for neither or without."""
        source = self.source(want, depth)
        cases = {True: jf.GetItem(0) >> source.block, False: self.fixed(want)}
        default = self.pick([None, jf.Zeros(want)])

        def sample(rng: Rng) -> Any:
            return [source.sample(rng)] * int(rng.integers(3))

        return Source(jf.OneOf(bool, cases, default=default), sample)

    def by_class(self, want: Any, depth: int) -> Source:
        """`OneOf` by the class of an object, of which several go to one declaration."""
        given = TupleType(self.type() for _ in range(2))
        parts = [self.source(item, depth) for item in given]
        keys, kinds = self.pick(
            [((0, 1), (tuple, list, dict)), (('a', 'b'), (dict, SimpleNamespace))]
        )
        record = jf.Record(dict(zip(keys, [x.block for x in parts], strict=True)))
        use = jf.ForwardDeclaration()
        use.resolve_to(record >> self.function(given, want))
        first = self.draw(len(kinds) - 1)
        kinds = kinds[first:] + kinds[:first]

        def sample(rng: Rng) -> Any:
            kind = kinds[int(rng.integers(len(kinds)))]
            values = [part.sample(rng) for part in parts]
            if kind in (tuple, list):
                return kind(values)
            fields = dict(zip(keys, values, strict=True))
            return fields if kind is dict else SimpleNamespace(**fields)

        return Source(jf.OneOf(type, {kind: use() for kind in kinds}), sample)


class Recursions:
    """A part of what draws expressions: what visits trees."""

    def tree(self, want: Any, depth: int) -> Source:
        """A recursion, of one declaration or of two in turn, of fixed or free arity."""
        leaf = self.source(want, min(depth, 1))
        label = self.source(self.tensor(3), 0)
        number = self.pick([1, 1, 2])
        arity = self.pick([None, 2])
        declarations = [jf.ForwardDeclaration(name=f'tree{i}') for i in range(number)]
        for declaration, child in zip(
            declarations, declarations[1:] + declarations[:1], strict=True
        ):
            body = self.node(want, child, arity, label, depth)
            cases = {'leaf': jf.GetItem(1) >> leaf.block, 'node': jf.GetItem(1) >> body}
            block = jf.OneOf(first_of, cases)
            if self.draw(3) == 0:
                block = block >> self.metric(want)
            declaration.resolve_to(self.once(block))

        def sample(rng: Rng) -> Any:
            leaves = int(rng.integers(1, self.leaves + 1))
            return random_tree(rng, leaves, leaf.sample, node, arity)

        def node(rng: Rng, children: list[Any]) -> Any:
            if children and rng.random() < 0.2:
                children[-1] = children[0]  # one object, met twice
            return {'children': children, 'label': label.sample(rng)}

        return Source(declarations[0](), sample)

    def called(self, child: Any, want: Any) -> Any:
        """A declaration on each of a list, which a choice may have made."""
        kind = self.pick(['plain', 'plain', 'chosen', 'numbered'])
        if kind == 'plain':
            return jf.Map(child())
        if kind == 'chosen':
            changed = jf.Map(jf.InputTransform(as_tuple))
            return by_length(changed, jf.Map(jf.Identity())) >> jf.Map(child())
        beside = self.fixed(self.tensor(3)), jf.Zeros(self.tensor(3))
        pairs = [jf.Map(jf.AllOf(jf.Identity(), made)) for made in beside]
        pair = jf.Record((child(), jf.Identity()))
        both = pair >> self.function(TupleType(want, self.tensor(3)), want)
        return by_length(*pairs) >> jf.Map(both)

    def node(
        self, want: Any, child: Any, arity: int | None, label: Source, depth: int
    ) -> Any:
        """What a recursion does with a node's children and label."""
        if arity is None:
            children = self.called(child, want) >> self.reducer(want, want, depth)
        else:
            children = jf.Record((child(),) * arity) >> self.between(
                TupleType((want,) * arity), want, depth
            )
        if self.pick([False, True]):
            return jf.Record({'children': children}) >> jf.GetItem(0)
        both = jf.Record({'children': children, 'label': label.block})
        return both >> self.function(TupleType(want, self.tensor(3)), want)

    def downwards(self, want: Any, depth: int) -> Source:
        """A recursion that hands a tensor down, and puts together what comes back."""
        state, label = self.type(), self.source(self.tensor(3), 0)
        down = jf.ForwardDeclaration(name='down', output_type=want)
        enter = self.function(TupleType(state, self.tensor(3)), state)
        below = self.reducer(want, want, depth)
        leave = self.function(TupleType(state, want), want)

        @jf.compose
        def body(given: Any, node: Any) -> Any:
            mine = enter(given, (jf.GetItem('label') >> label.block)(node))
            children = jf.GetItem('children')(node)
            pairs = jf.Zip()(jf.Broadcast()(mine), children)
            return leave(mine, below(jf.Map(down())(pairs)))

        seen = self.metric(want) if self.draw(3) == 0 else jf.Identity()
        down.resolve_to(body >> seen)
        first = jf.Void() >> self.constant(state)
        block = jf.AllOf(first, jf.Identity()) >> down()

        def sample(rng: Rng) -> Any:
            return labelled_tree(rng, int(rng.integers(1, self.leaves + 1)), label)

        return Source(block, sample)


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
