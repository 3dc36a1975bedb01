# SPDX-License-Identifier: Apache-2.0
"""The base class of blocks, and the blocks that short-hands stand for.

A callable is short for a `Function`, an array for a `FromTensor`, a dict, list or tuple
for a `Record`, and `a >> b` for a `Pipe`, wherever blocks are taken. So these share a
file with `Block`; all other blocks are in `blocks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform

import jax
import numpy as np

from jfold.base.errors import MASKED, has_masked
from jfold.base.keys import Rngs
from jfold.base.late import Displayed, late
from jfold.base.memo import Memoized
from jfold.base.operands import Item, Operand, get_recorder, open_scope, pack_sources
from jfold.base.printing import Printed, callable_name, full_text, in_braces, in_call
from jfold.base.tracebacks import api_boundary
from jfold.base.trampoline import tall_stack
from jfold.types import TensorType, Type


class Block(Memoized, Displayed):
    """The base class of blocks; `a >> b` is `Pipe(a, b)`."""

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
        """Run the block on one example, without batching.

        Args:
          example: the data; any object if the block takes no input.
          params: as `Model.init` returns them; needed if the block has parameters.
          external: arrays by the names of the `External` blocks that pick their rows.
          rngs, deterministic: as in `Model.apply`, which draws the same numbers.
          id: the id of the example, for draws; in a batch without `ids` it is the row.

        Returns:
          The value: arrays in tuples, lists for sequences. With `Metric` blocks inside,
          a pair of the value and a dict, by name of the metric: a list of the values
          that it collected, or of pairs of such a value and its label.

        Raises:
          TypeError: the block's types clash, a layer draws and has no key, or `params`
            or `external` is no dict.
          InputError: the example does not fit the block, or contains itself; the error
            names the path in the data and the block.

        >>> from jfold import Map, Scalar, Sum
        >>> (Map(Scalar()) >> Sum()).eval([1, 2, 3]).item()
        6.0
        """
        options = rngs, id, deterministic
        evaluate = late('debug.evaluation', 'evaluate')
        return evaluate(self, example, params, external, *options)

    @property
    @api_boundary
    def input_type(self) -> Type | None:
        """The type of the input; `None` if the blocks around this block decide it.

        Raises:
          TypeError: types clash inside this block.
        """
        type_: Type | None = late('lower', 'input_type')(self)
        return type_

    @property
    @api_boundary
    def output_type(self) -> Type | None:
        """The type of the result; `None` if this block alone does not tell it.

        If it depends on the input's type, the input is taken to be a Python object.

        Raises:
          TypeError: types clash inside this block.
        """
        type_: Type | None = late('lower', 'result_type')(self)
        return type_

    @api_boundary
    def reads(self, *sources: Any) -> Operand:
        """Wire this block to sources, once, in a `Composition.scope`; return a wire."""
        wire: Operand = open_scope(self, sources).link(self, pack_sources(sources))
        return wire

    def __call__(self, *sources: Any) -> Any:
        """Apply the block: to wires within `compose`, to values in a lazy function."""
        if recorder := get_recorder():
            return recorder.call(self, sources)
        return self._wired(sources)

    @api_boundary
    def _wired(self, sources: tuple[Any, ...]) -> Operand:
        wire: Operand = open_scope(self, sources).add(self, pack_sources(sources))
        return wire

    def __getitem__(self, key: object) -> Item:
        """Return item `key` of this block's result, as a source in a composition."""
        return Item(self, key)

    __iter__: ClassVar[None] = None  # else Python reads `[0]`, `[1]`, ... for ever

    # A block never changes, and is compared by identity: a copy would not equal it.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    # Keeps NumPy from taking `array >> block` apart, element by element.
    __array_ufunc__: ClassVar[None] = None

    def __repr__(self) -> str:
        return full_text(self)

    def _pieces(self) -> Iterator[str | Printed]:
        """Iterate over the pieces of the block's text: strings, and inner blocks."""
        if type(self).__repr__ is not Block.__repr__:
            return iter([repr(self)])
        names = getattr(self, '__dataclass_fields__', ())  # none, if not decorated
        return in_call(type(self).__name__, *(getattr(self, x) for x in names))

    @api_boundary
    def __rshift__(self, other: Convertible) -> Pipe:
        return Pipe(self, other)

    @api_boundary
    def __rrshift__(self, other: Convertible) -> Pipe:
        return Pipe(other, self)

    @api_boundary
    def _no_value(self, other: object) -> object:
        if isinstance(other, Operand):  # whose own operator says what to write
            return NotImplemented
        raise TypeError(
            f'{self!r}: expected `>>` or a call on wires, got another operator; write '
            '`AllOf(a, b) >> Function(jnp.add)` for the sum of what two blocks give'
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_value
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __or__ = _no_value


# ---- short-hands ---------------------------------------------------------------------

T = TypeVar('T')
_SERIALS = iter(range(1 << 62))
Array: TypeAlias = np.ndarray[Any, Any] | np.generic | jax.Array
Fields: TypeAlias = Mapping[Any, Any] | list[Any] | tuple[Any, ...]
# The short-hands that `convert_to_block` takes.
Convertible: TypeAlias = Block | Callable[..., Any] | Array | Fields
ARRAYS = np.ndarray, np.generic, jax.Array
# Modules whose classes and functions make blocks: `Sum` in place of `Sum()` is refused.
MODULES = (
    __name__,
    'jfold.blocks.control',
    'jfold.blocks.inputs',
    'jfold.blocks.reductions',
    'jfold.blocks.sequences',
)


@dataclass_transform(frozen_default=True, eq_default=False)
def block(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose instances are compared by identity.

    A block may hold arrays and functions, and layers are shared by the callable inside
    a `Function`, not by the block. Since a block is frozen, `__init__` sets attributes
    through `vars`.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    cls.__init__ = api_boundary(cls.__init__)  # type: ignore[method-assign]
    return cls


@api_boundary
def convert_to_block(value: Convertible) -> Block:
    """Return the block that a short-hand stands for.

    A block stands for itself, a dict, list or tuple for a `Record`, an array or NumPy
    scalar for a `FromTensor`, an object whose `__call__` is a lazy function for that,
    any other callable, except classes, for a `Function`.

    >>> import jax.numpy as jnp
    >>> convert_to_block({'left': jnp.tanh, 'right': jnp.negative})
    Record({'left': Function(tanh), 'right': Function(negative)})

    Raises:
      TypeError: `value` is none of these.
    """
    if isinstance(value, Block):
        return value
    if isinstance(value, Operand):
        raise TypeError(
            f'expected a block, got {value!r}, its value: leave out the call where a '
            'block is asked for, as in `Fold(cell, Zeros([3]))(xs)`'
        )
    if getattr(value, '__module__', None) in MODULES:
        name = getattr(value, 'name', getattr(value, '__name__', ''))
        arguments = '' if hasattr(value, 'resolve_to') else '...'
        raise TypeError(
            f'expected a block, got {value!r} itself: call it to get one, as in '
            f'`{name}({arguments})`'
        )
    if isinstance(value, Mapping | list | tuple):
        with tall_stack():  # for short-hands inside
            return Record(value)
    if isinstance(value, ARRAYS):
        return FromTensor(value)
    if callable(value) and not isinstance(value, type):
        fn: Any = value
        return fn.__call__ if isinstance(type(fn).__call__, Block) else Function(fn)
    raise TypeError(
        'expected a block, a callable, an array, or a dict, list or tuple of blocks, '
        f'got {value!r}; {_instead_of(value)}'
    )


def _instead_of(value: object) -> str:
    """Return a hint for errors: what to write instead of `value`, which is no block."""
    if isinstance(value, type):
        of_python, name = value.__module__ == 'builtins', value.__name__
        return f'write `InputTransform({name})`' if of_python else 'call it'
    if isinstance(value, int | float):
        return f'write `FromTensor(np.float32({value}))`, or `Zeros([])` for a zero'
    if isinstance(value, str):
        is_dtype = value in np.sctypeDict and np.dtype(value).name == value
        of_tensor = f'`Scalar({value!r})` for a number, ' if is_dtype else ''
        return f'write {of_tensor}`GetItem({value!r})` for a field'
    if isinstance(value, Item):
        return f'write `block >> GetItem({value.key!r})` outside of a composition'
    is_model = isinstance(getattr(value, 'block', None), Block)
    compiled = 'take the block that it was compiled of, `model.block`'
    return compiled if is_model else 'pass an array for a constant'


# ---- the blocks of short-hands -------------------------------------------------------


@block
class FromTensor(Block):
    """A constant array; takes no input. For trained arrays use `Function` with `init`.

    Raises:
      TypeError: `value` is not a NumPy or JAX array of numbers, or is masked in part.
    """

    value: np.ndarray[Any, Any]

    def __init__(self, value: Array) -> None:
        if not isinstance(value, ARRAYS):
            raise TypeError(f'FromTensor: expected an array, got {value!r}')
        if has_masked([value]):
            raise TypeError(f'FromTensor: expected an array, got {value!r}, {MASKED}')
        type_ = TensorType(value.shape, value.dtype)
        copy = np.array(value, type_.dtype)  # the caller may change the original
        copy.flags.writeable = False
        vars(self).update(value=copy, type=type_)

    type: ClassVar[TensorType]

    def __repr__(self) -> str:
        return f'FromTensor({self.type!r})'


@block
class Function(Block):
    """A function of tensors, written for ONE example; jfold batches it.

    The same callable in several places is one operation with one set of parameters.
    A tuple input is unpacked into arguments (nested tuples stay tuples), by name where
    its items are fields of a `Record`. It is an error at `compile` if an item other
    than the first would replace a default that is not `None`.

    The result is an array, or arrays in tuples, in dicts, or in dataclasses that JAX
    knows, for instance by `jax.tree_util.register_dataclass`. A dict or dataclass is
    *one* argument of the next function; `GetItem`, `Record` and `[key]` of wires read
    its fields, by key or name.

    `fn` runs on tiles of rows, whose spare rows repeat the values of other rows. So a
    callback in `fn` (`jax.debug.print`, `jax.pure_callback`) is called for spare rows
    too, and again where the reverse pass recomputes rows.

    Gradients are those of `jax.vmap` over all nodes of the operation. A computation on
    parameters alone runs once a step, and so does its reverse, on the sum of the
    cotangents; within `jax.checkpoint` too, but not within loops and branches. A
    reverse rule (`jax.custom_vjp`) gets a cotangent of zero at a node whose value the
    loss does not use, if the loss uses that of another node. The rule may not close
    over a value that an enclosing `jax.jit` traces: make the value an argument.

    Args:
      fn: a plain callable `fn(*inputs)`; a Flax Linen or NNX module, or a method of a
        module, which shares the module's parameters; or, with `init`, a callable
        `fn(params, *inputs)`.
      init: `init(key) -> params`, or `init(key, *specs)` with a `jax.ShapeDtypeStruct`
        per input, if its signature has more than the key. No spec may replace a default
        that is not `None`; an `init` without a signature is given all specs.
      name: the key of the parameters; the callable's own name when left out. Two names
        for one callable give two sets of parameters. If several callables have one
        name, those after the first are `name_1` and so on, in the order in which they
        stand in the expression: pass `name` to keep parameters when the order changes.
      rngs: one or several names of keys of `jax.random`, each a keyword argument of
        `fn`, as in `fn(x, dropout=key)`. Every node has its own key, derived from that
        of `Model.apply(..., rngs=key)`; with `deterministic=True` the key is `None`.
        For Flax modules the names are found if none are given.
      batched: whether `fn` takes whole tiles, every array with a leading axis of rows;
        each row of the result may depend only on the same row of the inputs. A function
        with a reverse rule not plainly linear in the cotangent is given single rows.

    Raises:
      TypeError: `fn` or `init` is not callable, or `rngs` are not names.

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
    _serial: ClassVar[int]  # its number in the order of creation

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
        vars(self).update(rngs=tuple(names), _serial=next(_SERIALS))

    def __repr__(self) -> str:
        return f'Function({self.name or callable_name(self.fn)})'


@block
class Pipe(Block):
    """A chain of blocks, each applied to the result of the block before."""

    blocks: tuple[Block, ...]

    def __init__(self, *blocks: Convertible) -> None:
        flat: list[Block] = []
        for part in map(convert_to_block, blocks):
            flat.extend(part.blocks if isinstance(part, Pipe) else [part])
        vars(self).update(blocks=tuple(flat))

    def _pieces(self) -> Iterator[str | Printed]:
        for number, part in enumerate(self.blocks):
            yield from (' >> ', part) if number else (part,)
        yield '' if self.blocks else 'Pipe()'


@block
class Record(Block):
    """One block per field of a dict, list, tuple or object; gives a tuple.

    The results are in the order of the blocks: a dict, a list of pairs, or a tuple or
    list of blocks (keys 0, 1, ...). The next function takes them by name, in any order,
    if its first parameters have the names of all fields. A parameter that has the name
    of a field but would get another one, or is keyword-only, is an error at `compile`.
    A block without input (`Zeros`, `FromTensor`, one behind a `Void`) reads no field.

    A dict or an object may have further fields, which are not read. With a tuple or
    list of blocks the value may have no further items; `{0: a, 2: b}` picks some items.

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
    length: int | None  # the number of items a value may have; `None` for keys

    def __init__(self, spec: Fields) -> None:
        pairs = key_value_pairs('Record', spec)
        has_keys = isinstance(spec, Mapping) or _has_pairs(spec)
        vars(self).update(
            fields=tuple((key, convert_to_block(part)) for key, part in pairs),
            length=None if has_keys else len(pairs),
        )

    def _pieces(self) -> Iterator[str | Printed]:
        yield from ('Record(', *in_braces(self.fields), ')')


@block
class AllOf(Block):
    """Several blocks applied to the same input; gives a tuple of their results."""

    blocks: tuple[Block, ...]

    def __init__(self, *blocks: Convertible) -> None:
        vars(self).update(blocks=tuple(map(convert_to_block, blocks)))

    def _pieces(self) -> Iterator[str | Printed]:
        return in_call('AllOf', *self.blocks)


def key_value_pairs(name: str, spec: Fields) -> list[tuple[Any, Any]]:
    """Return the (key, block) pairs of a spec; blocks without keys get their index.

    Raise TypeError, which names the block `name`, if `spec` is no dict, list or tuple.
    """
    if isinstance(spec, Mapping):
        return list(spec.items())
    if _has_pairs(spec):
        return list(spec)
    if isinstance(spec, tuple | list):
        return list(enumerate(spec))
    raise TypeError(f'{name}: expected a dict, list or tuple, got {spec!r}')


def _has_pairs(spec: object) -> bool:
    return isinstance(spec, list) and all(
        isinstance(x, tuple) and len(x) == 2 and _is_key(x[0]) for x in spec
    )


def _is_key(value: object) -> bool:
    """Return whether a value is a key, and no block; NumPy scalars count as keys."""
    if isinstance(value, tuple):
        return all(map(_is_key, value))
    is_array = isinstance(value, np.ndarray | jax.Array)
    is_convertible = is_array or isinstance(value, Block | Mapping | list)
    return isinstance(value, type) or not (is_convertible or callable(value))
