# SPDX-License-Identifier: Apache-2.0
"""Wiring: graphs of blocks, written by calling blocks on wires.

A *wire* stands for a value that is not computed yet: the input of a composition, or the
result of a block. Calling a block on wires gives another wire, so that running ordinary
code once makes a `Composition`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, overload

import numpy as np

from jfold.base.arguments import expect
from jfold.base.errors import short_repr
from jfold.base.operands import (
    SCOPE,
    Item,
    Operand,
    check_type_queries,
    leaves,
    map_sources,
    noting_flax_modules,
    pack_sources,
    with_number,
)
from jfold.base.printing import Printed
from jfold.base.tracebacks import api_boundary
from jfold.base.trampoline import Steps, run
from jfold.blocks.control import Arguments, ForwardDeclaration, Reference
from jfold.blocks.sequences import RNN, GetItem
from jfold.combinators import (
    AllOf,
    Block,
    Convertible,
    Function,
    Pipe,
    Record,
    block,
    convert_to_block,
)
from jfold.types import TypeLike

# A source is what a block may read: a wire, a block that is wired or takes no input, an
# `Item` of the result of such a block, or a (nested) tuple of sources.
Source: TypeAlias = Any
# A source in a finished `Wiring`, with numbers for values: an int, a (nested) tuple of
# ints, or `None` for no input.
Numbers: TypeAlias = Any


@dataclass(frozen=True, eq=False, repr=False)
class Wire(Operand):
    """A value not computed yet: the result of a block applied to other wires.

    The wire of the input has no source, and its block is `None`.
    """

    scope: Scope
    block: Block | None
    source: Source

    @api_boundary
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith('_'):
            raise AttributeError(name)
        hint = (
            f'take a field by `x[{name!r}]`, and write `jf.Function(fn)(x)` for a '
            'method, where `fn` calls it'
        )
        raise AttributeError(self._question_message(f'`.{name}`', hint))

    @api_boundary
    def __getitem__(self, key: object) -> Wire:
        if isinstance(self.block, Record):  # a field's key, or an index
            # A bool is the key that is this bool, not the int that equals it.
            keys = [(name, isinstance(name, bool)) for name, _ in self.block.fields]
            found = key, isinstance(key, bool)
            key = keys.index(found) if found in keys else key
        return self.scope.add(GetItem(key), self)

    def applied(self, fn: Callable[..., Any], *operands: Any) -> Wire:
        """Return the wire of `fn(*operands)`, on wires, blocks, items or numbers."""
        # NumPy passes its numbers on as arrays without axes.
        is_number = [isinstance(x, np.ndarray) and not x.ndim for x in operands]
        pairs = zip(operands, is_number, strict=True)
        operands = tuple(x[()] if number else x for x, number in pairs)
        for other in operands:
            if type(other) in (bool, int, float, complex):
                fn = with_number(fn, other, other.__class__, operands[0] is other)
                return self.scope.add(Function(fn), self)
            if not isinstance(other, Wire | Item | Block | np.generic):
                raise TypeError(
                    f'{self!r}: expected a wire or a number beside it, got '
                    f'{short_repr(other)}; write `jf.FromTensor(array)` for a '
                    'constant, and a Function with `init=` for what is trained'
                )
        return self.scope.add(Function(fn), pack_sources(operands))

    def count(self) -> int | None:
        """Return the number of items of the block's result; `None` if unknown."""
        block = self.block
        while isinstance(block, Pipe) and block.blocks:
            block = block.blocks[-1]
        if isinstance(block, Record | AllOf):
            return len(block.fields if isinstance(block, Record) else block.blocks)
        if isinstance(block, Composition):
            output = block.wiring.output
            return len(output) if isinstance(output, tuple) else None
        return 2 if isinstance(block, RNN) else None

    def __repr__(self) -> str:
        return '<the input>' if self.block is None else f'<output of {self.block!r}>'


@dataclass(eq=False)
class Scope:
    """The wires of a composition, to which wires can be added until it is closed.

    Attributes:
      wires: all wires in the order in which they were made, the input first.
      of_block: by block, the wire of its result; holds blocks wired by `reads` or
        `connect`, and blocks without input.
      outputs: the sources of the output; empty before `output.reads` was called.
      closed: whether the wiring is finished.
    """

    wires: list[Wire] = field(default_factory=list)
    of_block: dict[Block, Wire] = field(default_factory=dict)
    outputs: list[Source] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.add(None, None)

    def add(self, block: Block | None, source: Source) -> Wire:
        """Return a new wire of `block` on `source`; raise ValueError if closed."""
        if self.closed:
            raise ValueError(
                f'{block!r}: expected a composition that is still being wired, got one '
                'that is finished'
            )
        for leaf in leaves(source):
            self.check(leaf)
        self.wires.append(Wire(self, block, source))
        return self.wires[-1]

    def link(self, block: Block, source: Source) -> Wire:
        """Wire `block` to `source` and return its wire; ValueError if it has one."""
        if block in self.of_block:
            raise ValueError(
                f'{block!r}: expected a block that is not wired yet, got one that is; '
                'call it on wires, which may be done any number of times'
            )
        self.of_block[block] = self.add(block, source)
        return self.of_block[block]

    def check(self, source: Source) -> None:
        """Raise TypeError unless this scope can read `source`: a wire, block or item.

        Raise ValueError for the output of the composition, which no block can read.
        """
        if isinstance(source, Wire) and source.scope is not self:
            raise TypeError(
                f'{source!r}: expected a value of this composition, got one of '
                'another; pass it on as an argument'
            )
        if isinstance(source, Output):
            raise ValueError('expected something to read, got the output')
        values = source.values() if isinstance(source, Mapping) else ()
        if any(isinstance(value, Wire) for value in values):
            raise TypeError(
                f'expected a wire or a (nested) tuple of wires, got {source!r}; leave '
                'its keys out, as in `return x, y`'
            )
        if not isinstance(source, Wire | Item):
            convert_to_block(source)

    def wire(self, source: Source) -> Wire:
        """Return the wire for a source, which is a wire, an item or a block.

        A block that has no wire yet gets one, without input.
        """
        if isinstance(source, Wire):
            return source
        if isinstance(source, Item):
            return self.wire(source.block)[source.key]
        block = convert_to_block(source)
        wire = self.of_block.get(block)
        return self.link(block, None) if wire is None else wire


# ---- finished wirings ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Wiring:
    """The blocks of a composition in topological order.

    Attributes:
      steps: pairs of a block and the `Numbers` of the values that it reads: 0 is the
        input, `k + 1` the result of step `k`.
      output: the `Numbers` of the values that make up the result.
    """

    steps: tuple[tuple[Block, Numbers], ...]
    output: Numbers

    @functools.cached_property
    def read(self) -> frozenset[int]:
        """The numbers of all values that some block, or the output, reads."""
        sources = (*(source for _, source in self.steps), self.output)
        return frozenset(leaves(sources))


def _wiring(scope: Scope) -> Wiring:
    """Close a scope and return its wiring; raise ValueError if there is a cycle."""
    output = map_sources(pack_sources(tuple(scope.outputs)), scope.wire)
    sources: dict[Wire, Source] = {}
    for wire in scope.wires:  # which grows: `scope.wire` wires blocks without input
        sources[wire] = map_sources(wire.source, scope.wire)
    wires = topological_order(sources)
    scope.closed = True  # last, so that a wrong wiring raises its error again
    numbers = {wire: number for number, wire in enumerate(wires)}
    steps = [
        (wire.block, map_sources(sources[wire], numbers.__getitem__))
        for wire in wires
        if wire.block is not None
    ]
    return Wiring(tuple(steps), map_sources(output, numbers.__getitem__))


def topological_order(sources: dict[Wire, Source]) -> list[Wire]:
    """Return the wires `sources` in topological order; raise ValueError for a cycle."""
    # False marks a wire on the current path: to read it closes a cycle.
    done: dict[Wire, bool] = {}
    order: list[Wire] = []

    def visit(wire: Wire) -> Steps[None]:
        done[wire] = False
        for read in leaves(sources[wire]):
            if read not in done:
                yield visit(read)
            elif not done[read]:
                raise ValueError(
                    f'{wire.block!r}: expected blocks that read what others give '
                    'before them, got some that read each other in a cycle'
                )
        done[wire] = True
        order.append(wire)

    for wire in sources:
        if wire not in done:
            run(visit(wire))
    return order


# ---- compositions --------------------------------------------------------------------


@block
class Composition(Block):
    """A graph of blocks without cycles, where each reads the results of others.

    In a `scope`, calling a block on wires, or `block.reads(...)`, gives the wire of the
    block's result; `connect` wires blocks outside of a `scope`. Several sources are
    read as a tuple; `[key]` takes one item of a tuple. A value may be read any number
    of times, and is computed once. `compose` makes a composition from a function.

    A block wired by `reads` or `connect` stands for its result in later sources.

    Args:
      children: the blocks that may be connected; any blocks when left out.
      name: the name in prints.

    >>> from jfold import Function, Scalar
    >>> import jax.numpy as jnp
    >>> square = Composition()
    >>> with square.scope():
    ...     number = Scalar().reads(square.input)
    ...     square.output.reads(Function(jnp.multiply).reads(number, number))
    >>> square.eval(3).item()
    9.0

    Raises:
      ValueError: a block is wired twice, is none of the children, or reads the output;
        the target of `connect` is a wire; blocks read each other in a cycle.
      TypeError: a wire belongs to another composition, or a source is no block.
    """

    children: tuple[Block, ...] | None
    name: str
    network: Scope

    def __init__(
        self, children: Iterable[Convertible] | None = None, name: str | None = None
    ) -> None:
        is_several = children is None or isinstance(children, Iterable)
        expect('children', children, is_several, 'a list of blocks')
        blocks = None if children is None else tuple(map(convert_to_block, children))
        vars(self).update(children=blocks, name=name or 'Composition', network=Scope())

    @property
    def input(self) -> Wire:
        """The wire of the input."""
        return self.network.wires[0]

    @property
    def output(self) -> Output:
        """The output; `output.reads(...)` sets the result of the composition."""
        return Output(self.network)

    @contextlib.contextmanager
    def scope(self) -> Iterator[Composition]:
        """Open a context in which calls and `reads` add blocks to this composition."""
        token = SCOPE.set(self.network)
        try:
            yield self
        finally:
            SCOPE.reset(token)

    @api_boundary
    def connect(self, source: Source, target: Block | Output) -> None:
        """Wire a block, or the output, to read a source, as `target.reads(source)`."""
        if isinstance(target, Output):
            target.reads(source)
        elif isinstance(target, Wire):
            raise ValueError(f'expected a block to read {source!r}, got {target!r}')
        else:
            for leaf in leaves((target, source)):
                block = leaf.block if isinstance(leaf, Item) else leaf
                if self.children is not None and isinstance(block, Block):
                    if block not in self.children:
                        text = 'expected blocks among the children'
                        raise ValueError(f'{self!r}: {text}, got {block!r}')
            self.network.link(convert_to_block(target), source)

    @functools.cached_property
    def wiring(self) -> Wiring:
        """The finished wiring; once this property is used, no wire can be added."""
        return _wiring(self.network)

    def __repr__(self) -> str:
        if self.network.closed:
            return super().__repr__()
        return f'<{self.name}, not finished>'  # printing does not finish it

    def _pieces(self) -> Iterator[str | Printed]:
        yield f'{self.name}('
        for number, (step, source) in enumerate(self.wiring.steps, 1):
            operands = '' if source is None else f'{_shown(source)} >> '
            yield from (f'x{number} = {operands}', step, '; ')
        yield f'{_shown(self.wiring.output)})'


def _shown(numbers: Numbers) -> str:
    """Return the text of numbers of values in nested tuples: `(0, 1)` -> '(x0, x1)'."""
    if isinstance(numbers, tuple):
        return f'({", ".join(map(_shown, numbers))})'
    return '' if numbers is None else f'x{numbers}'


@dataclass(frozen=True, eq=False, repr=False)
class Output:
    """The output of a composition, to be wired once."""

    scope: Scope

    @api_boundary
    def reads(self, *sources: Source) -> None:
        """Set the result, one source or several; raise ValueError if already set."""
        if self.scope.outputs:
            raise ValueError(
                'expected an output that reads nothing yet, got one that does'
            )
        for leaf in leaves(sources):
            self.scope.check(leaf)
        self.scope.outputs.extend(sources)

    def __repr__(self) -> str:
        return '<the output>'


# ---- functions as compositions -------------------------------------------------------


@api_boundary
def compose(fn: Callable[..., Source]) -> Composition:
    """Make a block from a function that calls blocks; a decorator.

    The function is called once, on wires; the block then does with values what the
    function did with wires. A single parameter is the input; several parameters are the
    items of an input tuple, by name where the items are fields of a `Record`. The
    function returns the result of the block: a wire, a (nested) tuple of wires, or
    `None`. Operators on wires, as in `x + y` or `2 * x`, become `Function` blocks.

    >>> import jax.numpy as jnp
    >>> from jfold import Broadcast, Map, Max, Scalar, Sum, ZipWith
    >>> @compose
    ... def largest_share(x):
    ...     items = Map(Scalar())(x)
    ...     return Max()(ZipWith(jnp.divide)(items, Broadcast()(Sum()(items))))
    >>> largest_share.eval([1, 2, 5]).item()
    0.625

    Raises:
      TypeError: the function takes `*args`, returns something else, or asks for the
        class of a wire.
    """
    expect('fn', fn, callable(fn), 'a function of wires')
    return _composed(fn, _inputs_of(fn), _name_of(fn))


def _composed(
    fn: Callable[..., Source], parameters: tuple[str, ...], name: str
) -> Composition:
    """Call `fn` on a wire per item of `parameters`; return the wiring as a block."""
    composition, count = Composition(name=name), len(parameters)
    check_type_queries(fn, parameters)
    with composition.scope():
        wires = (composition.input,) * count
        if count > 1:
            items = Arguments(parameters)(composition.input)
            wires = tuple(items[k] for k in range(count))
        with noting_flax_modules(name):
            result = fn(*wires)
        if result is not None:
            composition.output.reads(result)
    _ = composition.wiring  # finishes it: nothing can be added from here on
    return composition


def _name_of(fn: Callable[..., Source]) -> str:
    name = getattr(fn, '__name__', '')
    return name if name.isidentifier() else 'compose'  # a lambda has none


def _inputs_of(fn: Callable[..., Source]) -> tuple[str, ...]:
    """Return the parameters of `fn` without default; raise TypeError for `*args`."""
    parameters = inspect.signature(fn).parameters.values()
    if any(x.kind is x.VAR_POSITIONAL for x in parameters):
        raise TypeError(f'{fn!r}: expected a fixed number of parameters, got `*`')
    for x in parameters:
        if x.kind is x.KEYWORD_ONLY and x.default is x.empty:
            hint = f'write `{x.name}` before the `*`'
            raise TypeError(f'{fn!r}: expected wires by position, got `*`; {hint}')
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    inputs = (x for x in parameters if x.kind in kinds and x.default is x.empty)
    return tuple(x.name for x in inputs)


@overload
def recursive(fn: Callable[..., Any]) -> Reference: ...
@overload
def recursive(
    *, input_type: TypeLike | None = ..., output_type: TypeLike | None = ...
) -> Callable[[Callable[..., Any]], Reference]: ...
@api_boundary
def recursive(
    fn: Callable[..., Any] | None = None,
    *,
    input_type: TypeLike | None = None,
    output_type: TypeLike | None = None,
) -> Any:
    """Make a recursive block from a function; a decorator.

    The first parameter of the function is the `ForwardDeclaration` of the new block.
    Called without arguments, the declaration returns a block; called on wires, the wire
    of that block's result. A function without other parameters returns a block; else
    the function of the other parameters is passed to `compose`.

    Args:
      input_type, output_type: as in `ForwardDeclaration`.

    >>> import jax.numpy as jnp
    >>> from jfold import OneOf, Scalar
    >>> @recursive
    ... def tree(tree):
    ...     pair = Record((tree(), tree())) >> jnp.add
    ...     return OneOf(type, {int: Scalar(), tuple: pair})
    >>> tree.eval((1, (2, 3))).item()
    6.0
    """
    if fn is None:
        return functools.partial(
            recursive, input_type=input_type, output_type=output_type
        )
    expect('fn', fn, callable(fn), 'a function of the block it is')
    name, (_, *inputs) = _name_of(fn), _inputs_of(fn)
    declaration = ForwardDeclaration(input_type, output_type, name)
    body = functools.partial(fn, declaration)
    declaration.resolve_to(_composed(body, tuple(inputs), name) if inputs else body())
    return Reference(declaration)
