# SPDX-License-Identifier: Apache-2.0
"""Random blocks that recur: from trees to tensors, upwards and downwards."""

from __future__ import annotations

from typing import Any

from expression_parts import (
    Rng,
    Source,
    as_tuple,
    by_length,
    first_of,
    labelled_tree,
    random_tree,
)

import jfold as jf
from jfold.types import TupleType


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
            if self.integer(3) == 0:
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

        seen = self.metric(want) if self.integer(3) == 0 else jf.Identity()
        down.resolve_to(body >> seen)
        first = jf.Void() >> self.constant(state)
        block = jf.AllOf(first, jf.Identity()) >> down()

        def sample(rng: Rng) -> Any:
            return labelled_tree(rng, int(rng.integers(1, self.leaves + 1)), label)

        return Source(block, sample)
