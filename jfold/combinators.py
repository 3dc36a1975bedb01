# SPDX-License-Identifier: Apache-2.0
"""What a block is, and the blocks that plain Python values stand for.

A callable is short for a `Function`, an array for a `FromTensor`, a dict, list or tuple
for a `Record`, and `a >> b` for a `Pipe`. Whatever takes blocks takes these short-hands
too, so that they are needed to say what a block is; all others are `combinators`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Self,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)

import jax
import numpy as np

from jfold.base.errors import MASKED, some_masked
from jfold.base.keys import Drawing, Rngs
from jfold.base.memo import Memoized
from jfold.base.operands import Item, Operand, open_scope, together
from jfold.base.printing import Printed, callable_name, in_braces, in_call, in_full
from jfold.base.tracebacks import api_boundary
from jfold.base.trampoline import Steps, in_turn, run
from jfold.types import TensorType, Type


class Block(Memoized):
    """Base of all blocks. `a >> b` is `Pipe(a, b)`; either side may be convertible."""

    @api_boundary
    def eval(
        self,
        example: object,
        params: Mapping[str, Any] | None = None,
        external: Mapping[str, Any] | None = None,
        *,
        rngs: Rngs = None,
        id: int = 0,
        deterministic: bool = False,
    ) -> Any:
        """Runs the block on one example, without batching.

        Args:
          example: the data; what it is does not matter if the block takes nothing.
          params: as `Model.init` returns them; needed if the block has parameters.
          external: by name, the arrays that `External` blocks pick rows of.
          rngs, deterministic: as of `Model.apply`, which draws the same.
          id: of the example, its row in the batch if there are no `ids`.

        Returns:
          The value: arrays in tuples, lists for sequences. With `Metric` blocks inside,
          the value and a dict of lists, of what each was given, one after another:
          values, or pairs of a value and its label.

        Raises:
          TypeError: the block's types clash, a layer draws and has no key, or `params`
            or `external` is no dict.
          InputError: the example does not fit the block, or contains itself; with the
            path in the data, and the block.

        >>> from jfold import Map, Scalar, Sum
        >>> (Map(Scalar()) >> Sum()).eval([1, 2, 3]).item()
        6.0
        """
        drawing = Drawing(rngs, id, deterministic)
        return bound_passes().evaluate(self, example, params, external, drawing)

    @property
    @api_boundary
    def input_type(self) -> Type | None:
        """What it takes; `None` if what is around it decides that.

        Raises:
          TypeError: types clash inside of it.
        """
        return bound_passes().input_type(self)

    @property
    @api_boundary
    def output_type(self) -> Type | None:
        """What it gives, wherever it stands, else what it makes of Python objects;
        `None` if it takes none.

        Raises:
          TypeError: types clash inside of it.
        """
        return bound_passes().output_type(self)

    @api_boundary
    def reads(self, *sources: Any) -> Operand:
        """Within the scope of a composition, says what this block reads; its wire."""
        return open_scope(self, sources).link(self, together(sources))

    @api_boundary
    def __call__(self, *sources: Any) -> Operand:
        """Within a composition, the wire of what this block gives of others."""
        return open_scope(self, sources).add(self, together(sources))

    def __getitem__(self, key: object) -> Item:
        """One item of what this block gives, to be read within a composition."""
        return Item(self, key)

    __iter__: ClassVar[None] = None  # or Python would ask for items without end

    # A block never changes, and is told by its identity.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    # Keeps NumPy from taking `array >> block` apart, element by element.
    __array_ufunc__: ClassVar[None] = None

    def __repr__(self) -> str:
        return in_full(self)

    def _pieces(self) -> Iterator[str | Printed]:
        """What it prints as; blocks that hold others give these as they are."""
        yield repr(self)

    @api_boundary
    def __rshift__(self, other: Convertible) -> Pipe:
        return Pipe(self, other)

    @api_boundary
    def __rrshift__(self, other: Convertible) -> Pipe:
        return Pipe(other, self)

    @api_boundary
    def _no_value(self, other: object) -> object:
        if isinstance(other, Operand):  # of which it is known what to do
            return NotImplemented
        raise TypeError(
            f'{self!r}: expected `>>` or a call on wires, got another operator; write '
            '`AllOf(a, b) >> Function(jnp.add)` for the sum of what two blocks give'
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_value
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __or__ = _no_value


# ---- passes over blocks --------------------------------------------------------------


@dataclass(frozen=True)
class Passes:
    """The passes behind methods of `Block`, which need all kinds of blocks.

    Attributes:
      evaluate: runs a block on an example, given parameters, external arrays and keys.
      input_type, output_type: the types of a block; `None` where it decides none.
    """

    evaluate: Callable[[Block, object, Any, Any, Drawing], Any]
    input_type: Callable[[Block], Type | None]
    output_type: Callable[[Block], Type | None]


_loaders: list[Callable[[], Passes]] = []


def bind_passes(load: Callable[[], Passes]) -> None:
    """Bind the passes behind methods of `Block`, loaded at the first call of one.

    Passes import blocks, so blocks cannot import passes: the package binds them.
    """
    _loaders[:] = [functools.cache(load)]


def bound_passes() -> Passes:
    """The passes that are bound, which `import jfold` has done."""
    return _loaders[0]()


# ---- what is short for a block -------------------------------------------------------

T = TypeVar('T')
Array: TypeAlias = np.ndarray[Any, Any] | np.generic | jax.Array
Fields: TypeAlias = Mapping[Any, Any] | list[Any] | tuple[Any, ...]
# What `convert_to_block` reads.
Convertible: TypeAlias = Block | Callable[..., Any] | Array | Fields
ARRAYS = np.ndarray, np.generic, jax.Array
# Of classes and functions that give blocks.
MODULES = (
    __name__,
    'jfold.blocks.control',
    'jfold.blocks.declarations',
    'jfold.blocks.external',
    'jfold.blocks.inputs',
    'jfold.blocks.reductions',
    'jfold.blocks.sequences',
)


@dataclass_transform(frozen_default=True, eq_default=False)
def block(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass compared by identity, printed by its fields.

    Identity, because a block may hold arrays and functions, and because sharing is
    decided by the callables inside `Function`, not by blocks. Since it is frozen, what
    its `__init__` finds goes to its `vars`.
    """
    made = dataclass(frozen=True, eq=False, repr=False)(cls)
    made.__init__ = api_boundary(made.__init__)  # type: ignore[method-assign]
    return made


@api_boundary
def convert_to_block(value: Convertible) -> Block:
    """Reads the short-hands for blocks.

    A block is itself, a dict, list or tuple a `Record`, an array or a scalar of NumPy a
    `FromTensor`, any other callable a `Function`.

    >>> import jax.numpy as jnp
    >>> convert_to_block({'left': jnp.tanh, 'right': jnp.negative})
    Record({'left': Function(tanh), 'right': Function(negative)})

    Raises:
      TypeError: `value` is none of these.
    """
    return value if isinstance(value, Block) else run(_converted(value))


def _converted(value: Convertible) -> Steps[Block]:
    """The same off Python's stack, for records in records."""
    if isinstance(value, Block):
        return value
    if isinstance(value, Operand):
        raise TypeError(
            f'expected a block, got {value!r}, its value: leave out the call where a '
            'block is asked for, as in `Fold(cell, Zeros([3]))(xs)`'
        )
    if getattr(value, '__module__', None) in MODULES:
        name = getattr(value, 'name', getattr(value, '__name__', ''))
        given = '' if hasattr(value, 'resolve_to') else '...'
        raise TypeError(
            f'expected a block, got {value!r} itself: call it to get one, as in '
            f'`{name}({given})`'
        )
    if isinstance(value, Mapping | list | tuple):
        has_keys, pairs = _has_keys(value), key_value_pairs('Record', value)
        parts = yield in_turn(_converted(each) for _, each in pairs)
        if not has_keys:
            return Record(parts)
        keys = (key for key, _ in pairs)
        return Record([*zip(keys, parts, strict=True)])
    if isinstance(value, ARRAYS):
        return FromTensor(value)
    if callable(value) and not isinstance(value, type):
        return Function(value)
    raise TypeError(
        'expected a block, a callable, an array, or a dict, list or tuple of blocks, '
        f'got {value!r}; {_instead_of(value)}'
    )


def _instead_of(value: object) -> str:
    """What to write for something that no block is made of."""
    if isinstance(value, type):
        of_python, name = value.__module__ == 'builtins', value.__name__
        return f'write `InputTransform({name})`' if of_python else 'call it'
    if isinstance(value, int | float):
        return f'write `FromTensor(np.float32({value}))`, or `Zeros([])` for a zero'
    if isinstance(value, str):
        return f'write `GetItem({value!r})` for a field'
    if isinstance(getattr(value, 'block', None), Block):
        return 'take the block that it was compiled of, `model.block`'
    return 'pass an array for a constant'


# ---- what short-hands stand for ------------------------------------------------------


@block
class FromTensor(Block):
    """A constant array; takes no input. For trained arrays use `Function` with `init`.

    Raises:
      TypeError: `value` is not a NumPy or JAX array of numbers.
    """

    value: np.ndarray[Any, Any]

    def __init__(self, value: Array) -> None:
        if not isinstance(value, ARRAYS):
            raise TypeError(f'FromTensor: expected an array, got {value!r}')
        if some_masked([value]):
            raise TypeError(f'FromTensor: expected an array, got {value!r}, {MASKED}')
        type_ = TensorType(value.shape, value.dtype)
        own = np.array(value, type_.dtype)  # a copy, which nobody else changes
        own.flags.writeable = False
        vars(self).update(value=own, type=type_)

    type: ClassVar[TensorType]

    def __repr__(self) -> str:
        return f'FromTensor({self.type!r})'


@block
class Function(Block):
    """A function of tensors, written for ONE example; batching is not its concern.

    The same callable in several places is one operation with one set of parameters.
    A tuple input is unpacked into arguments (nested tuples stay tuples), by name where
    these are fields of a `Record`. No item but the first becomes an argument that has
    a default other than `None`.

    The result is an array, or arrays in tuples, in dicts, or in dataclasses that JAX
    knows, as by `jax.tree_util.register_dataclass`. A dict or dataclass is *one*
    argument of what follows, and is given as it is; `GetItem`, `Record` and `[key]` of
    wires read its fields, by key or name.

    Tiles have spare rows, on which `fn` runs too, on the values of other rows: a
    callback in it (`jax.debug.print`, `jax.pure_callback`) is called for these as well,
    and again where the reverse pass computes rows anew.

    Gradients are those of `jax.vmap` over all nodes of the operation: what depends on
    parameters alone is computed once a step, and its reverse runs once, on the sum of
    the cotangents; within `jax.checkpoint` too, but not within loops and branches. A
    reverse rule (`jax.custom_vjp`) sees a cotangent of zero at a node whose value the
    loss does not use, if it uses that of another. It may close over nothing that an
    enclosing `jax.jit` traces, as JAX asks of rules in loops: make it an argument.

    Args:
      fn: a plain callable `fn(*inputs)`; a Flax Linen or NNX module, or a method of
        one, which have one set of parameters; or, with `init`, a callable
        `fn(params, *inputs)`.
      init: `init(key) -> params`, or `init(key, *specs)` with a `jax.ShapeDtypeStruct`
        per input, if by its signature it takes more than the key. What has a default
        other than `None` keeps it; an `init` without a signature is given all.
      name: the key of its parameters; the callable's own name when left out. Two names
        for one callable give two sets of parameters. Of several callables of one name
        the later are numbered, `name_1` and so on, in the order in which the expression
        meets them: say `name` where parameters are to outlast changes of that.
      rngs: the names of keys of `jax.random` that `fn` draws with, one or several, each
        an argument by that name: `fn(x, dropout=key)`. Every node has its own, which
        `Model.apply(..., rngs=key)` decides; with `deterministic=True` it is `None`.
        What Flax modules draw with is found, unless it is said.
      batched: `fn` takes whole tiles, every array with a leading axis of rows; each row
        of the result may depend only on the same row of the inputs. If a reverse rule
        in it is not plainly linear in the cotangent, it is given rows one by one.

    Raises:
      TypeError: `fn` or `init` is not callable, or `rngs` no names.

    >>> import jax.numpy as jnp
    >>> from jfold import Scalar
    >>> (Record((Scalar(), Scalar())) >> Function(jnp.subtract)).eval((5, 3)).item()
    2.0
    """

    fn: Callable[..., Any]
    init: Callable[..., Any] | None = None
    name: str | None = None
    batched: bool = False
    rngs: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.fn) or isinstance(self.fn, Block):
            raise TypeError(f'Function: expected a callable, got {self.fn!r}')
        if self.init is not None and not callable(self.init):
            raise TypeError(f'Function: expected `init` callable, got {self.init!r}')
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(f'Function: expected `name` as str, got {self.name!r}')
        names = (self.rngs,) if isinstance(self.rngs, str) else self.rngs
        is_names = isinstance(names, tuple | list)
        if not is_names or not all(
            isinstance(x, str) and x.isidentifier() for x in names
        ):
            raise TypeError(
                'Function: expected `rngs` as names of arguments, such as "dropout", '
                f'got {self.rngs!r}'
            )
        vars(self).update(rngs=tuple(names))

    def __repr__(self) -> str:
        return f'Function({self.name or callable_name(self.fn)})'


@block
class Pipe(Block):
    """Blocks one after another, left to right; `Pipe()` is the identity."""

    blocks: tuple[Block, ...]

    def __init__(self, *blocks: Convertible) -> None:
        flat: list[Block] = []
        for each in map(convert_to_block, blocks):
            flat.extend(each.blocks if isinstance(each, Pipe) else [each])
        vars(self).update(blocks=tuple(flat))

    def _pieces(self) -> Iterator[str | Printed]:
        for number, each in enumerate(self.blocks):
            yield from (' >> ', each) if number else (each,)
        yield '' if self.blocks else 'Pipe()'


@block
class Record(Block):
    """One block per field of a dict, list, tuple or object; gives a tuple.

    Its items are in the order in which they are written: that of a dict, of a list of
    pairs, or of a tuple of blocks (keys 0, 1, ...). A function that follows takes them
    by name where its parameters bear the names of all fields, in whatever order; names
    that are fields and stand for others are an error at `compile`. A block that takes
    no input (`Zeros`, `FromTensor`, what follows a `Void`) reads no field.

    A dict or an object may have more fields. Where a tuple or list of blocks was given,
    the value may have no more items than these; `{0: a, 2: b}` picks some of more.

    >>> from jfold import Scalar
    >>> fields = Record({'b': Scalar('int32'), 'a': Scalar('int32')})
    >>> [x.item() for x in fields.eval({'a': 1, 'b': 2})]
    [2, 1]
    >>> (fields >> Function(lambda a, b: a - b)).eval({'a': 1, 'b': 2}).item()
    -1

    Raises:
      TypeError: a value is not convertible to a block.
    """

    fields: tuple[tuple[Any, Block], ...]
    length: int | None  # of the value, at most

    def __init__(self, spec: Fields) -> None:
        pairs = key_value_pairs('Record', spec)
        has_keys = _has_keys(spec)
        vars(self).update(
            fields=tuple((key, convert_to_block(each)) for key, each in pairs),
            length=None if has_keys else len(pairs),
        )

    def _pieces(self) -> Iterator[str | Printed]:
        yield from ('Record(', *in_braces(self.fields), ')')


@block
class AllOf(Block):
    """Gives the same input to every block; a tuple of their results."""

    blocks: tuple[Block, ...]

    def __init__(self, *blocks: Convertible) -> None:
        vars(self).update(blocks=tuple(map(convert_to_block, blocks)))

    def _pieces(self) -> Iterator[str | Printed]:
        return in_call('AllOf', *self.blocks)


def key_value_pairs(name: str, spec: Fields) -> list[tuple[Any, Any]]:
    """The (key, value) pairs of a dict, a list of pairs, or a tuple or list."""
    if isinstance(spec, Mapping):
        return list(spec.items())
    if _has_pairs(spec):
        return list(spec)
    if isinstance(spec, tuple | list):
        return list(enumerate(spec))
    raise TypeError(f'{name}: expected a dict, list or tuple, got {spec!r}')


def _has_keys(spec: object) -> bool:
    """Whether fields are read by the keys that are said, and not by their places."""
    return isinstance(spec, Mapping) or _has_pairs(spec)


def _has_pairs(spec: object) -> bool:
    return isinstance(spec, list) and all(map(_is_pair, spec))


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and _is_key(item[0])


def _is_key(value: object) -> bool:
    """Whether a value is a key rather than a block: scalars of NumPy are keys here."""
    if isinstance(value, tuple):
        return all(map(_is_key, value))
    array = isinstance(value, np.ndarray | jax.Array)
    convertible = array or isinstance(value, Block | Mapping | list)
    return isinstance(value, type) or not (convertible or callable(value))
