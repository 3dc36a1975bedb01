# SPDX-License-Identifier: Apache-2.0
"""Blocks that are defined once and used from many places, also from inside."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Self

from jfold.base.printing import Printed, callable_name
from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block, Convertible, block, convert_to_block
from jfold.types import ObjectType, TypeLike, convert_to_type


class ForwardDeclaration:
    """A name for a block that is defined later, so that it can refer to itself.

    Args:
      input_type: what it takes, when inference cannot tell.
      output_type: what it gives, when inference cannot tell: a recursion in which
        every case depends on the recursion itself.

    >>> import jax.numpy as jnp
    >>> from jfold import OneOf, Record, Scalar
    >>> tree = ForwardDeclaration()
    >>> leaf, pair = Scalar(), Record((tree(), tree())) >> jnp.add
    >>> tree.resolve_to(OneOf(type, {float: leaf, tuple: pair}))
    >>> tree().eval((1.0, (2.0, 3.0))).item()
    6.0
    """

    @api_boundary
    def __init__(
        self,
        input_type: TypeLike | None = None,
        output_type: TypeLike | None = None,
        name: str | None = None,
    ) -> None:
        self.input_type = None if input_type is None else convert_to_type(input_type)
        self.output_type = None if output_type is None else convert_to_type(output_type)
        self.name = name or 'declaration'
        self.target: Block | None = None
        # What tells objects apart, of each of which there is one evaluation; see Share.
        self.key: Callable[[Any], Hashable] | None = None

    def __deepcopy__(self, memo: object) -> Self:
        return self  # as its references do

    def __call__(self, *wires: Any) -> Any:
        """A block that stands for the one this is, or will be, resolved to.

        Called on wires, as of `compose`, it gives the wire of what that block gives.
        """
        made = Reference(self)
        return made(*wires) if wires else made

    @api_boundary
    def resolve_to(self, target: Convertible) -> None:
        """Says which block this is.

        Raises:
          TypeError: it was resolved before, or `target` is no block.
        """
        if self.target is not None:
            raise TypeError(
                f'{self!r}: expected a declaration that is not resolved yet, got one '
                f'resolved to {self.target!r}; make another'
            )
        self.target = convert_to_block(target)

    def __repr__(self) -> str:
        return f'ForwardDeclaration({self.name!r})'


@block
class Reference(Block):
    """A use of a `ForwardDeclaration`, made by calling it."""

    declaration: ForwardDeclaration

    def __repr__(self) -> str:
        return f'{self.declaration.name}()'


@block
class Share(Block):
    """Evaluates a block once for each object of an example, however often it is met.

    So a graph of objects takes work for each of its nodes, and not for each path to it:
    with a recursion inside, data may share parts, but must end; with a block for each
    round, which reads that of the round before, they may have circles. Gradients of all
    uses add up. A `Metric` inside observes each object once.

    Args:
      block: takes an object, gives tensors.
      key: what tells objects apart, `key(object) -> hashable`; which object it is when
        left out, so that what a function made anew is another.

    >>> import jax.numpy as jnp
    >>> from jfold import AllOf, GetItem, Map, Scalar, Sum
    >>> before = Share(GetItem('x') >> Scalar())
    >>> around = GetItem('next') >> Map(before) >> Sum()
    >>> after = Share(AllOf(before, around) >> jnp.add)
    >>> a, b = {'x': 1.0}, {'x': 2.0}
    >>> a['next'], b['next'] = [b], [a, b]
    >>> (Map(after) >> Sum()).eval([a, b]).item()
    8.0

    Raises:
      TypeError: `key` is not callable, or a block.
    """

    block: Block
    key: Callable[[Any], Hashable] | None
    reference: Reference

    def __init__(
        self, block: Convertible, key: Callable[[Any], Hashable] | None = None
    ) -> None:
        if key is not None and (not callable(key) or isinstance(key, Block)):
            hint = '; a function such as `operator.itemgetter(...)` reads a field'
            raise TypeError(f'Share: expected `key` callable, got {key!r}{hint}')
        declaration = ForwardDeclaration(ObjectType(), name='Share')
        declaration.resolve_to(block)
        declaration.key = id if key is None else key
        made = declaration.target, key, Reference(declaration)
        vars(self).update(zip(('block', 'key', 'reference'), made, strict=True))

    def _pieces(self) -> Iterator[str | Printed]:
        key = '' if self.key is None else f', key={callable_name(self.key)}'
        yield from ('Share(', self.block, f'{key})')
