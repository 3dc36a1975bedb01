# SPDX-License-Identifier: Apache-2.0
"""The blocks that are defined once and used in many places, also in recursions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Self

from jfold.base.printing import Printed, callable_name
from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block, Convertible, block, convert_to_block
from jfold.types import ObjectType, TypeLike, convert_to_type


class ForwardDeclaration:
    """A name for a block that is defined later and may refer to itself.

    Args:
      input_type: the type of the block's input, when inference cannot tell.
      output_type: the type of the block's result, when inference cannot tell: if every
        case of a recursion depends on the recursion itself.
      name: the name in prints.

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
        # For `Share`, the key of an object: objects with equal keys are evaluated once.
        self.key: Callable[[Any], Hashable] | None = None

    def __deepcopy__(self, memo: object) -> Self:
        return self  # as blocks do: a `Reference` holds this declaration

    def __call__(self, *wires: Any) -> Any:
        """Return a block that stands for the target, which may be set later.

        Called on wires, within `compose`, return the wire of the block's result.
        """
        reference = Reference(self)
        return reference(*wires) if wires else reference

    @api_boundary
    def resolve_to(self, target: Convertible) -> None:
        """Set the block that this declaration stands for.

        Raises:
          TypeError: the declaration is resolved already, or `target` is no block.
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
    """A use of a `ForwardDeclaration`, made by calling the declaration."""

    declaration: ForwardDeclaration

    def __repr__(self) -> str:
        return f'{self.declaration.name}()'


@block
class Share(Block):
    """A block that is evaluated once for each object of an example, with a memo.

    So the work grows with the nodes of a graph of objects, not with the paths to them.
    If the block is recursive, objects may be shared, but not contain themselves. If
    there is one `Share` for each round, which reads the `Share` of the round before,
    objects may have cycles. Gradients of all uses add up. A `Metric` inside collects a
    value for each object once.

    Args:
      block: a block from an object to tensors.
      key: a function from an object to a hashable key; objects with equal keys are one.
        When left out, objects are compared by identity, so an equal copy is another.

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
      TypeError: `key` is not callable, or is a block.
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
        target, reference = declaration.target, Reference(declaration)
        vars(self).update(block=target, key=key, reference=reference)

    def _pieces(self) -> Iterator[str | Printed]:
        key = '' if self.key is None else f', key={callable_name(self.key)}'
        yield from ('Share(', self.block, f'{key})')
