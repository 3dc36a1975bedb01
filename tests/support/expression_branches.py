# SPDX-License-Identifier: Apache-2.0
"""Random blocks that choose by the data."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import numpy as np
from expression_parts import Rng, Source, choice, first_of

import jfold as jf
from jfold.types import TupleType


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
        given = source.sample(np.random.default_rng(self.integer(9)))
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
        first = self.integer(len(kinds) - 1)
        kinds = kinds[first:] + kinds[:first]

        def sample(rng: Rng) -> Any:
            kind = kinds[int(rng.integers(len(kinds)))]
            values = [part.sample(rng) for part in parts]
            if kind in (tuple, list):
                return kind(values)
            fields = dict(zip(keys, values, strict=True))
            return fields if kind is dict else SimpleNamespace(**fields)

        return Source(jf.OneOf(type, {kind: use() for kind in kinds}), sample)
