# SPDX-License-Identifier: Apache-2.0
"""Random expressions with data that fits them.

`expressions()` is a hypothesis strategy. It goes by types: a *source* of a type is a
block that makes values of that type from Python data, together with a way to draw such
data; `Maker.between` is a block from one type to another. Functions are kept per pair
of types, so that one operation occurs at many sites.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
from expression_blocks import Branches, Recursions, Reducers
from expression_parts import (
    TABLE,
    Expression,
    Leaves,
    Rng,
    Source,
    by_length,
    sample_numbered,
)
from function_makers import dense, linen, nested, plain, whole_tiles
from hypothesis import strategies as st

import jfold as jf
from jfold.types import StructType, TensorType, TupleType

# ---- the generator -------------------------------------------------------------------


@dataclass
class Maker(Leaves, Branches, Reducers, Recursions):
    """Draws blocks; functions are kept, to be met again.

    Attributes:
      draw: a whole number from 0 to its argument, of which all that is drawn is made.
      dtype: of all floats.
      leaves: how many a tree has at most.
      lengths: of sequences.
    """

    draw: Callable[[int], int]
    dtype: str
    leaves: int = 5
    lengths: tuple[int, ...] = (0, 1, 2, 4)
    functions: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))
    kinds: dict[Any, str] = field(default_factory=dict)

    def pick(self, options: Any) -> Any:
        """One of several."""
        options = list(options)
        return options[self.draw(len(options) - 1)]

    def tensor(self, *shape: int) -> TensorType:
        """A float tensor type."""
        return TensorType(shape, self.dtype)

    def type(self) -> Any:
        """A tensor or a tuple of tensors, of a few, so that equal ones meet."""
        number, vector, matrix = self.tensor(), self.tensor(3), self.tensor(2, 2)
        pair = TupleType(vector, number)
        mixed = TupleType(vector, TupleType(matrix, TensorType((), 'int32')))
        return self.pick([vector, vector, number, matrix, pair, mixed])

    # ---- blocks from type to type

    def function(self, given: Any, want: Any) -> Any:
        """A function, new or met before."""
        known = self.functions[given, want]
        choice = self.draw(1)
        while len(known) <= choice:
            known.append(self.new_function(given, want))
        return known[choice]

    def new_function(self, given: Any, want: Any) -> Any:
        """A function of any kind."""
        kinds: list[Any] = [dense, plain]
        if given != TupleType():
            kinds += [dense, linen, nested, whole_tiles]
        made = [self.pick(kinds)(want, self.dtype)]
        if isinstance(want, TensorType) and want.differentiable:
            if given == want:
                made.append(jf.Function(jnp.tanh))
            if given == TupleType(want, want):
                made += [jf.Function(jnp.multiply), jf.Function(jnp.logaddexp)]
        return self.pick(made)

    def between(self, given: Any, want: Any, depth: int) -> Any:
        """A block from one type to another."""
        if given == want and self.draw(3) == 0:
            return jf.Identity()
        options = [self.function]
        if depth > 0:
            deep = [self.pipe, self.observed, self.fan_out, self.declared, self.items]
            deep += [self.composed, self.joined, self.part]
            deep += [self.part] * 9 * isinstance(given, StructType)
            options += [self.function] * 3 + deep
        chosen = self.pick(options)
        if chosen == self.function:
            return self.function(given, want)
        return chosen(given, want, depth - 1)

    def pipe(self, given: Any, want: Any, depth: int) -> Any:
        """By way of another type."""
        middle = self.type()
        first = self.between(given, middle, depth)
        return first >> self.between(middle, want, depth)

    def observed(self, given: Any, want: Any, depth: int) -> Any:
        """With a metric on the way."""
        return self.metric(given) >> self.between(given, want, depth)

    def metric(self, type_: Any) -> Any:
        """Passes its input on and observes it; a name per type."""
        name = self.kinds.setdefault(type_, f'seen_{len(self.kinds)}')
        return jf.AllOf(jf.Identity(), jf.Metric(name)) >> jf.GetItem(0)

    def fan_out(self, given: Any, want: Any, depth: int) -> Any:
        """The same value used several times."""
        uses = self.pick([2, 3, 6])
        many = jf.AllOf(*[jf.Identity()] * uses)
        return many >> self.function(TupleType((given,) * uses), want)

    def composed(self, given: Any, want: Any, depth: int) -> Any:
        """Blocks that read each other's results, and the input again."""
        middle = self.type()
        one, two = (self.between(given, middle, depth) for _ in range(2))
        last = self.between(TupleType(middle, given, middle), want, depth)
        if self.pick([False, True]):
            return jf.compose(lambda x: last(one(x), x, two(x)))
        made = jf.Composition()
        with made.scope():
            first = one.reads(made.input)  # once for each block, other than calls
            made.output.reads(last(first, made.input, two(made.input)))
        return made

    def joined(self, given: Any, want: Any, depth: int) -> Any:
        """Vectors one behind the other."""
        parts = [self.between(given, self.tensor(3), depth) for _ in range(2)]
        last = self.function(self.tensor(6), want)
        return jf.AllOf(*parts) >> jf.Concat() >> last

    def part(self, given: Any, want: Any, depth: int) -> Any:
        """An item of a tuple or of a tensor, or some of those of a tensor."""
        if isinstance(given, TupleType):
            if not given.items:
                return self.pipe(given, want, depth)
            key: Any = self.draw(len(given) - 1)
            return jf.GetItem(key) >> self.between(given[key], want, depth)
        if isinstance(given, StructType):
            return self.field(given, want, depth)
        keys = (
            [..., (..., None)]
            if not given.shape
            else [0, -1, slice(1, None), (..., -1)]
        )
        key = self.pick(keys)
        item = TensorType(np.zeros(given.shape)[key].shape, given.dtype)
        return jf.GetItem(key) >> self.between(item, want, depth)

    def field(self, given: StructType, want: Any, depth: int) -> Any:
        """A field of a dict or of a dataclass, or a block for each."""
        fields = list(zip(given.form.keys, given.items, strict=True))
        key, item = self.pick(fields)
        how = self.pick(['key', 'wire', 'record'])
        if how == 'record':
            each = [(k, self.between(x, x, depth - 1)) for k, x in reversed(fields)]
            made = TupleType(x for _, x in reversed(fields))
            return jf.Record(each) >> self.function(made, want)
        rest = self.between(item, want, depth)
        if how == 'wire':
            return jf.compose(lambda x: rest(x[key]))
        return jf.GetItem(key) >> rest

    def declared(self, given: Any, want: Any, depth: int) -> Any:
        """A declaration used twice, without recursion."""
        inner = self.between(given, want, depth)
        declaration = jf.ForwardDeclaration()
        declaration.resolve_to(inner)
        use = self.pick([declaration(), jf.recursive(lambda _: inner)])
        return jf.AllOf(use, use) >> self.between(TupleType(want, want), want, depth)

    def items(self, given: Any, want: Any, depth: int) -> Any:
        """A tuple of one type, taken as a sequence."""
        item = self.type()
        parts = [self.between(given, item, depth) for _ in range(self.pick([2, 3]))]
        if self.pick([False, True]):
            last = jf.Map(self.between(item, want, depth)) >> jf.GetItem(-1)
            return jf.AllOf(*parts) >> last
        return jf.AllOf(*parts) >> self.reducer(item, want, depth)

    def constant(self, want: Any) -> Any:
        """Takes no input: zeros, arrays, or trained parameters."""
        kind = self.draw(2)
        if kind == 0:
            return jf.Zeros(want)
        if kind == 1:
            return self.function(TupleType(), want)
        if isinstance(want, TupleType):
            return jf.AllOf(*map(self.fixed, want))
        return self.fixed(want)

    def fixed(self, want: Any) -> Any:
        """Constant arrays."""
        if isinstance(want, TupleType):
            return jf.AllOf(*map(self.fixed, want))
        if isinstance(want, StructType):
            return jf.Zeros(want)
        numbers = np.arange(1, 1 + want.size).reshape(want.shape)
        array = numbers / 5 if want.differentiable else numbers % TABLE
        return jf.FromTensor(np.asarray(array, want.dtype))

    # ---- sources

    def source(self, want: Any, depth: int) -> Source:
        """A block from data to a type."""
        simple: Any = self.record if isinstance(want, TupleType) else self.leaf
        if isinstance(want, StructType):
            simple = self.struct
        options = [simple, simple, *self.deep()] if depth > 0 else [simple]
        return self.pick(options)(want, depth - 1)

    def deep(self) -> list[Any]:
        """The sources that are made of others."""
        simple = [self.computed, self.shared, self.with_constant]
        simple += [self.optional, self.lacking, self.labelled, self.shared_sink]
        choices = [self.one_of, self.typed_one_of, self.by_truth, self.by_class]
        sequences = [self.chosen, self.picked, self.sequence, self.sequence]
        return [*simple, *choices, *sequences, self.tree, self.downwards]

    def whole(self, want: Any, depth: int) -> Source:
        """A source with something in it, and with a block behind."""
        given = self.type()
        source = self.pick(self.deep())(given, depth)
        return Source(source.block >> self.function(given, want), source.sample)

    def once(self, block: Any) -> Any:
        """A block, perhaps evaluated once for each object."""
        return jf.Share(block) if self.draw(3) == 3 else block

    def chosen(self, want: Any, depth: int) -> Source:
        """One item of a sequence, by an index in the data."""
        source = self.source(want, depth)
        block = jf.Record((jf.Map(source.block), jf.Identity())) >> jf.Nth()

        def sample(rng: Rng) -> Any:
            length = int(rng.integers(1, 4))
            items = [source.sample(rng) for _ in range(length)]
            return items, int(rng.integers(-length, length))

        return Source(block, sample)

    def picked(self, want: Any, depth: int) -> Source:
        """Some items of a sequence by positions in the data, or all in groups."""
        item, groups = self.type(), self.pick([False, True])
        source = self.source(item, depth)
        fields = [jf.Map(source.block), jf.Identity(), jf.Identity()][: 2 + groups]
        inner = self.reducer(item, want, depth)
        if groups:
            inner = jf.Regroup() >> jf.Map(inner) >> self.reducer(want, want, depth)
        else:
            inner = jf.Pick() >> inner
        block = jf.Record(tuple(fields)) >> inner
        return Source(block, partial(sample_numbered, source, groups))

    def record(self, want: TupleType, depth: int) -> Source:
        """`Record` of a dict, of a tuple or of an object."""
        parts = [self.source(item, depth) for item in want]
        kind = self.pick([tuple, dict, SimpleNamespace])
        keys = range(len(parts)) if kind is tuple else 'abcdef'
        blocks = {k: part.block for k, part in zip(keys, parts, strict=False)}

        def sample(rng: Rng) -> Any:
            values = [part.sample(rng) for part in parts]
            fields = dict(zip(keys, values, strict=False))
            return tuple(values) if kind is tuple else kind(**fields)

        return Source(jf.Record(blocks), sample)

    def struct(self, want: StructType, depth: int) -> Source:
        """A dict, or a dataclass, that a function makes of its parts."""
        given = TupleType(want.items)
        source = self.record(given, depth)
        return Source(source.block >> self.function(given, want), source.sample)

    def computed(self, want: Any, depth: int) -> Source:
        """By way of another type."""
        given = self.type()
        source = self.source(given, depth)
        return Source(source.block >> self.between(given, want, depth), source.sample)

    def shared(self, want: Any, depth: int) -> Source:
        """The same data read twice by the same block."""
        given = self.type()
        source = self.source(given, depth)
        twice = jf.AllOf(source.block, source.block)
        block = twice >> self.function(TupleType(given, given), want)
        return Source(block, source.sample)

    def shared_sink(self, want: Any, depth: int) -> Source:
        """A metric that several uses share: a value of it for each object."""
        source = self.source(want, depth)
        name = self.kinds.setdefault((want, 'shared'), f'shared_{len(self.kinds)}')
        sink = jf.GetItem(0) >> jf.Share(
            jf.GetItem(0) >> source.block >> jf.Metric(name)
        )
        block = jf.AllOf(jf.GetItem(0) >> jf.GetItem(0) >> source.block, sink, sink)
        return Source(block >> jf.GetItem(0), lambda rng: ([source.sample(rng)],))

    def with_constant(self, want: Any, depth: int) -> Source:
        """A record in which a field is a constant."""
        given, fixed = self.type(), self.type()
        source = self.source(given, depth)
        block = jf.Record({'a': source.block, 'b': jf.Zeros(fixed)})
        block >>= self.function(TupleType(given, fixed), want)
        return Source(block, lambda rng: {'a': source.sample(rng)})

    def labelled(self, want: Any, depth: int) -> Source:
        """With a metric on the way that has labels, which are words."""
        source = self.source(want, depth)
        name = self.kinds.setdefault((want, 'labelled'), f'labelled_{len(self.kinds)}')
        pair = jf.Record((source.block, jf.Identity()))
        block = pair >> jf.AllOf(jf.Metric(name), jf.GetItem(0)) >> jf.GetItem(1)
        return Source(
            block, lambda rng: (source.sample(rng), str(rng.choice(list('abc'))))
        )

    def sequence(self, want: Any, depth: int) -> Source:
        """A list of items, reduced."""
        item = self.type()
        source = self.source(item, depth)
        items = jf.Map(self.once(source.block))
        if self.draw(3) == 0:
            items = by_length(items, items >> jf.Map(self.between(item, item, depth)))
        block = items >> self.reducer(item, want, depth)

        return Source(block, partial(self._list, source))

    def sequences(self, want: Any, depth: int) -> Source:
        """A value with sequences in it, perhaps sequences of such values."""
        source = self.source(want, depth)
        items = jf.Map(source.block)
        block = items >> self.lasting(want, depth)
        kind = self.pick(['plain', 'chosen', 'nested', 'beside'])
        if kind == 'chosen':
            block = by_length(items, jf.Slice(step=-1) >> items)
        if kind == 'nested':
            block = jf.Map(block)
        if kind == 'beside':
            block = jf.AllOf(jf.Length('int32'), block, jf.Void())

        def sample(rng: Rng) -> Any:
            inner = Source(items, partial(self._list, source))
            return self._list(inner if kind == 'nested' else source, rng)

        return Source(block, sample)

    def lasting(self, item: Any, depth: int) -> Any:
        """A block from sequences of a type to something with sequences in it."""
        other, state = self.type(), self.type()
        mapped = jf.Map(self.between(item, other, depth - 1))
        kind = self.draw(4)
        if kind == 0:
            cell = self.function(TupleType(item, state), TupleType(other, state))
            return jf.RNN(cell, self.constant(state))
        if kind == 1:
            return jf.AllOf(jf.Slice(start=1), mapped) >> jf.Zip()
        if kind == 2:
            return jf.AllOf(mapped, self.reduce(item, other, depth), jf.NGrams(2))
        return mapped if kind == 3 else jf.Slice(step=-1) >> mapped

    def _list(self, items: Source, rng: Rng) -> Any:
        length = rng.choice(self.lengths)
        made = [items.sample(rng) for _ in range(length)]
        return [made[k] for k in rng.integers(length, size=length)]  # some twice


def drawn(
    draw: Callable[[int], int], root: str = 'whole', dtype: str = 'float32'
) -> Expression:
    """An expression from Python data to tensors, or sequences of them.

    Args:
      draw: as of `Maker`.
      root: the method of `Maker` that makes the outermost block.
      dtype: of all floats.
    """
    maker = Maker(draw, dtype)
    made = getattr(maker, root)(maker.type(), 2)
    return Expression(jf.Pipe(made.block), made.sample, dtype)


@st.composite
def expressions(draw: Any, root: str = 'whole', dtype: str = 'float32') -> Expression:
    """What `drawn` draws, as Hypothesis does."""
    return drawn(lambda last: int(draw(st.integers(0, last))), root, dtype)


def any_expressions() -> st.SearchStrategy[Expression]:
    """Expressions with any of the blocks outermost."""
    roots = 'whole', 'tree', 'sequence', 'sequences'
    return st.sampled_from(roots).flatmap(expressions)
