# SPDX-License-Identifier: Apache-2.0
"""Wiring: blocks put together as a graph, by calling them or by saying what they read.

A *wire* stands for a value that is not there yet. Calling a block on wires gives
another, so that what a `Composition` holds is found by running ordinary code once.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jfold.base.errors import expect
from jfold.base.operands import (
    SCOPE,
    Item,
    Operand,
    check_questions,
    leaves,
    noted_modules,
    rebuilt,
    together,
    unlike,
    with_number,
)
from jfold.base.printing import Printed
from jfold.base.tracebacks import api_boundary
from jfold.blocks.control import Arguments
from jfold.blocks.declarations import ForwardDeclaration, Reference
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

# What a block may read: a wire, a block that is wired or takes nothing, an item of what
# a block gives, or a (nested) tuple of these.
Source: TypeAlias = Any
Numbers: TypeAlias = Any  # of values: an int, a (nested) tuple of ints, or nothing


@dataclass(frozen=True, eq=False, repr=False)
class Wire(Operand):
    """A value that is not there yet: what a block gives of others, or the input."""

    scope: Scope
    block: Block | None
    source: Source

    @api_boundary
    def __getitem__(self, key: object) -> Wire:
        return self.scope.add(GetItem(_place(self.block, key)), self)

    def applied(self, fn: Callable[..., Any], *operands: Any) -> Wire:
        """What a function gives of wires, arrays and numbers, at least one a wire."""
        for other in operands:
            if type(other) in (bool, int, float, complex):
                fn = with_number(fn, other, other.__class__, operands[0] is other)
                return self.scope.add(Function(fn), self)
            if not isinstance(other, Wire | Item | Block | np.generic):
                raise TypeError(unlike(self, other))
        return self.scope.add(Function(fn), together(operands))

    def count(self) -> int | None:
        """How many items a tuple has that this is, as the block says."""
        block = self.block
        while isinstance(block, Pipe) and block.blocks:
            block = block.blocks[-1]
        if isinstance(block, Record | AllOf):
            return len(block.fields if isinstance(block, Record) else block.blocks)
        if isinstance(block, Composition):
            given = block.wiring.output
            return len(given) if isinstance(given, tuple) else None
        return 2 if isinstance(block, RNN) else None

    def __repr__(self) -> str:
        return '<the input>' if self.block is None else f'<what {self.block!r} gives>'


def _place(block: Block | None, key: object) -> object:
    """The place of an item in what a block gives: that of a record's key, else the key
    itself."""
    keys = [key for key, _ in block.fields] if isinstance(block, Record) else []
    return keys.index(key) if key in keys else key


@dataclass(eq=False)
class Scope:
    """Where wires are made, until it is closed.

    Attributes:
      wires: in the order in which they were made, the input first.
      of_block: those of blocks that were wired by `reads` or `connect`.
      outputs: what the whole gives, once that is said.
    """

    wires: list[Wire] = field(default_factory=list)
    of_block: dict[Block, Wire] = field(default_factory=dict)
    outputs: list[Source] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.add(None, None)

    def add(self, block: Block | None, source: Source) -> Wire:
        """A new wire."""
        if self.closed:
            raise ValueError(
                f'{block!r}: expected a composition that is still being wired, got one '
                'that is finished'
            )
        for each in leaves(source):
            self.check(each)
        self.wires.append(Wire(self, block, source))
        return self.wires[-1]

    def link(self, block: Block, source: Source) -> Wire:
        """The wire of a block that has none yet."""
        if block in self.of_block:
            raise ValueError(
                f'{block!r}: expected a block that is not wired yet, got one that is; '
                'call it on wires, which may be done any number of times'
            )
        self.of_block[block] = self.add(block, source)
        return self.of_block[block]

    def check(self, source: Source) -> None:
        """Refuses what cannot be read here."""
        if isinstance(source, Wire) and source.scope is not self:
            raise TypeError(
                f'{source!r}: expected a value of this composition, got one of '
                'another; pass it on as an argument'
            )
        if isinstance(source, Output):
            raise ValueError('expected something to read, got the output')
        keyed = source.values() if isinstance(source, Mapping) else ()
        if any(isinstance(each, Wire) for each in keyed):
            raise TypeError(
                f'expected a wire or a (nested) tuple of wires, got {source!r}; leave '
                'its keys out, as in `return x, y`'
            )
        if not isinstance(source, Wire | Item):
            convert_to_block(source)

    def wire(self, source: Source) -> Wire:
        """The wire of one source, which may be wired by now."""
        if isinstance(source, Wire):
            return source
        if isinstance(source, Item):
            return self.wire(source.block)[source.key]
        made = convert_to_block(source)
        return self.of_block[made] if made in self.of_block else self.link(made, None)


# ---- what is wired, for good ---------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Wiring:
    """The blocks of a composition in an order in which they can run.

    Attributes:
      steps: each block with the numbers of what it reads: 0 is the input, `k + 1` what
        step `k` gives.
      output: the numbers of what the whole gives.
    """

    steps: tuple[tuple[Block, Numbers], ...]
    output: Numbers

    @functools.cached_property
    def read(self) -> frozenset[int]:
        """The numbers of all that something reads."""
        given = (*(source for _, source in self.steps), self.output)
        return frozenset(leaves(given))


def _wiring(scope: Scope) -> Wiring:
    """All that was wired in a scope, which is closed.

    Raises:
      ValueError: blocks read each other in a circle.
    """
    output = rebuilt(together(tuple(scope.outputs)), scope.wire)
    sources: dict[Wire, Source] = {}
    for wire in scope.wires:  # more may come of what is read
        sources[wire] = rebuilt(wire.source, scope.wire)
    wires = topological_order(sources)
    scope.closed = True  # not before: what is wrong is told as often as it is asked
    numbers = {wire: number for number, wire in enumerate(wires)}
    steps = [
        (wire.block, rebuilt(sources[wire], numbers.__getitem__))
        for wire in wires
        if wire.block is not None
    ]
    return Wiring(tuple(steps), rebuilt(output, numbers.__getitem__))


def topological_order(sources: dict[Wire, Source]) -> list[Wire]:
    """Wires behind those that they read; else in their order."""
    done: dict[Wire, bool] = {}  # whether it is, of those that were begun
    order: list[Wire] = []
    waiting = list(reversed(sources))
    while waiting:
        wire = waiting[-1]
        missing = [x for x in leaves(sources[wire]) if not done.get(x)]
        if missing and not done.get(wire):
            if any(x in done for x in missing):
                raise ValueError(
                    f'{wire.block!r}: expected blocks that read what others give '
                    'before them, got some that read each other in a circle'
                )
            done[wire] = False
            waiting += reversed(missing)
            continue
        waiting.pop()
        if not done.get(wire):
            done[wire] = True
            order.append(wire)
    return order


# ---- compositions --------------------------------------------------------------------


@block
class Composition(Block):
    """Blocks wired as a graph without circles: each reads what others give.

    In a `scope`, calling a block on wires, or `block.reads(...)`, gives the wire of its
    result; `connect` does the same outside. Several sources are read as a tuple;
    `[key]` takes one item of a tuple. Whatever is read may be read any number of times,
    and is computed once. `compose` makes a composition of a function.

    A block that was wired by `reads` or `connect` stands for its result in later ones.

    Args:
      children: the blocks that may be connected; any when left out.
      name: what it prints as.

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
        the input is to read something; blocks read each other in a circle.
      TypeError: a wire is of another composition, or something else is no block.
    """

    children: tuple[Block, ...] | None
    name: str
    network: Scope

    def __init__(
        self, children: Iterable[Convertible] | None = None, name: str | None = None
    ) -> None:
        is_several = children is None or isinstance(children, Iterable)
        expect('children', children, is_several, 'a list of blocks')
        given = None if children is None else tuple(map(convert_to_block, children))
        vars(self).update(children=given, name=name or 'Composition', network=Scope())

    @property
    def input(self) -> Wire:
        """What the composition is given."""
        return self.network.wires[0]

    @property
    def output(self) -> Output:
        """What it gives: whatever this reads."""
        return Output(self.network)

    @contextlib.contextmanager
    def scope(self) -> Iterator[Composition]:
        """Where blocks can be wired by calling them, and by `reads`."""
        token = SCOPE.set(self.network)
        try:
            yield self
        finally:
            SCOPE.reset(token)

    @api_boundary
    def connect(self, source: Source, target: Block | Output) -> None:
        """Says what a block, or the output, reads; `source` as of `reads`."""
        if isinstance(target, Output):
            target.reads(source)
        elif isinstance(target, Wire):
            raise ValueError(f'expected a block to read {source!r}, got {target!r}')
        else:
            for each in leaves((target, source)):
                self._check_child(each)
            self.network.link(convert_to_block(target), source)

    def _check_child(self, source: Source) -> None:
        """Refuses a block that is none of the children, if these are given."""
        read = source.block if isinstance(source, Item) else source
        if self.children is not None and isinstance(read, Block):
            if read not in self.children:
                text = 'expected blocks among the children'
                raise ValueError(f'{self!r}: {text}, got {read!r}')

    @functools.cached_property
    def wiring(self) -> Wiring:
        """All that was wired; nothing can be from then on."""
        return _wiring(self.network)

    def __repr__(self) -> str:
        if self.network.closed:
            return super().__repr__()
        return f'<{self.name}, not finished>'  # to look at it does not finish it

    def _pieces(self) -> Iterator[str | Printed]:
        yield f'{self.name}('
        for number, (each, source) in enumerate(self.wiring.steps, 1):
            given = '' if source is None else f'{_shown(source)} >> '
            yield from (f'x{number} = {given}', each, '; ')
        yield f'{_shown(self.wiring.output)})'


def _shown(numbers: Numbers) -> str:
    """Numbers of values as names, `x0` the input."""
    if isinstance(numbers, tuple):
        return f'({", ".join(map(_shown, numbers))})'
    return '' if numbers is None else f'x{numbers}'


@dataclass(frozen=True, eq=False, repr=False)
class Output:
    """What a composition gives."""

    scope: Scope

    @api_boundary
    def reads(self, *sources: Source) -> None:
        """Says what it gives: one value, or a tuple of several."""
        if self.scope.outputs:
            raise ValueError(
                'expected an output that reads nothing yet, got one that does'
            )
        for each in leaves(sources):
            self.scope.check(each)
        self.scope.outputs.extend(sources)

    def __repr__(self) -> str:
        return '<the output>'


# ---- functions as compositions -------------------------------------------------------


@api_boundary
def compose(fn: Callable[..., Source]) -> Composition:
    """Makes a block of a function that calls blocks; a decorator.

    The function is called once, on wires, and what it does with them is what the block
    does with values. One parameter is the input; several are the items of a tuple, by
    name where these are fields of a `Record`. It returns what the block gives: a wire,
    a (nested) tuple of wires, or nothing. Operators, as `x + y` or `2 * x`, are
    functions of the wires beside them.

    >>> import jax.numpy as jnp
    >>> from jfold import Broadcast, Map, Max, Scalar, Sum, ZipWith
    >>> @compose
    ... def largest_share(x):
    ...     items = Map(Scalar())(x)
    ...     return Max()(ZipWith(jnp.divide)(items, Broadcast()(Sum()(items))))
    >>> largest_share.eval([1, 2, 5]).item()
    0.625

    Raises:
      TypeError: the function takes no fixed number of inputs, or gives something else.
    """
    expect('fn', fn, callable(fn), 'a function of wires')
    return _composed(fn, _inputs_of(fn), _name_of(fn))


def _composed(
    fn: Callable[..., Source], parameters: tuple[str, ...], name: str
) -> Composition:
    """The composition of a function whose inputs are called so."""
    made, count = Composition(name=name), len(parameters)
    check_questions(fn, parameters)
    with made.scope():
        given = (made.input,) * count
        if count > 1:
            items = Arguments(parameters)(made.input)
            given = tuple(items[k] for k in range(count))
        with noted_modules(name):
            result = fn(*given)
        if result is not None:
            made.output.reads(result)
    _ = made.wiring  # so nothing is wired from here on
    return made


def _name_of(fn: Callable[..., Source]) -> str:
    name = getattr(fn, '__name__', '')
    return name if name.isidentifier() else 'compose'  # not of a lambda


def _inputs_of(fn: Callable[..., Source]) -> tuple[str, ...]:
    """The inputs that a function takes: its parameters without a default."""
    parameters = inspect.signature(fn).parameters.values()
    if any(x.kind is x.VAR_POSITIONAL for x in parameters):
        raise TypeError(f'{fn!r}: expected a fixed number of parameters, got `*`')
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    given = (x for x in parameters if x.kind in kinds and x.default is x.empty)
    return tuple(each.name for each in given)


@api_boundary
def recursive(
    fn: Callable[..., Any] | None = None,
    *,
    input_type: TypeLike | None = None,
    output_type: TypeLike | None = None,
) -> Any:
    """Makes a block of a function that is given the block it is; a decorator.

    Its first parameter is the `ForwardDeclaration`, which gives a block when called
    with nothing, and the wire of a value when called on wires. With that parameter
    alone the function returns a block; with more it is a function as of `compose`.

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
