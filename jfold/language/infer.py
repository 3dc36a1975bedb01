# SPDX-License-Identifier: Apache-2.0
"""Type inference: an expression to its `Typed` tree, or an error that names the block.

Every use of a block gets an input and an output type. What is known flows forwards from
the root, which takes an object, and backwards by unification; what must wait (a
function whose arguments are not known yet) is a *constraint*, tried again until nothing
changes. A declaration is typed once, for all its uses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import numpy as np

from jfold import combinators as c
from jfold.errors import reason, shown
from jfold.functions import take_item
from jfold.host.objects import PICK, count_of
from jfold.language.constants import is_constant
from jfold.language.layers import (
    arguments_of,
    hint,
    identity,
    make_layer,
    numbered,
    result_type,
)
from jfold.language.signatures import settings_of
from jfold.operations import Layer
from jfold.printing import short
from jfold.types import (
    BroadcastType,
    Mismatch,
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    TypeVariable,
    Unifier,
    VoidType,
    is_object,
    terminals,
)


@dataclass(eq=False)
class Typed:
    """One use of a block, with its types.

    Attributes:
      where: the blocks that lead to it, as `Pipe[1].Record['left']`.
      parts: the uses inside; `None` where an optional one is absent.
      layer: of a function, and of an item of a tensor.
    """

    block: c.Block
    where: str
    input: Type
    output: Type
    parts: tuple[Typed | None, ...] = ()
    layer: Layer | None = None

    @functools.cached_property
    def path(self) -> str:
        """The way to it, and the beginning of what it prints as."""
        shown = short(self.block)
        return f'{self.where}.{shown}' if self.where else shown

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, eq=False)
class Typing:
    """A typed expression: its root, its declarations, its layers in order of use."""

    root: Typed
    declarations: dict[c.ForwardDeclaration, Typed]
    layers: tuple[Layer, ...]
    metrics: dict[str, Type]


@dataclass(eq=False)
class Inference:
    """The state of one inference."""

    types: Unifier = field(default_factory=Unifier)
    nodes: list[Typed] = field(default_factory=list)
    waiting: list[tuple[Typed, Callable[[], bool]]] = field(default_factory=list)
    declarations: dict[c.ForwardDeclaration, Typed] = field(default_factory=dict)
    layers: dict[Any, Layer] = field(default_factory=dict)
    functions: dict[Layer, c.Function] = field(default_factory=dict)
    guesses: list[tuple[Typed, Type]] = field(default_factory=list)
    results: dict[tuple[Layer, tuple[Type, ...]], Type] = field(default_factory=dict)

    def visit(self, block: c.Block, given: Type, where: str) -> Typed:
        """Types one use of `block`, and the uses inside it."""
        node = Typed(block, where, given, self.types.fresh())
        self.nodes.append(node)
        self.equal(node, rule(block, node, self), node.output, 'to give')
        return node

    def part(self, node: Typed, block: c.Block, given: Type, label: str) -> Typed:
        """Types a block inside `node`; one that takes no input is given none."""
        where = f'{type(node.block).__name__}{label}'
        where = f'{node.where}.{where}' if node.where else where
        return self.visit(block, VoidType() if is_constant(block) else given, where)

    def equal(self, node: Typed, got: Type, expected: Type, verb: str) -> None:
        """Unifies two types; the error names `node`."""
        try:
            self.types.unify(got, expected)
        except Mismatch as error:
            shown = [self.types.resolve(t) for t in (expected, got)]
            fail(node, f'{verb} {shown[0]}', str(shown[1]), str(error))

    def when(self, node: Typed, constraint: Callable[[], bool]) -> None:
        """Runs `constraint` now or later, until it says that it is met."""
        if not constraint():
            self.waiting.append((node, constraint))

    def when_head(
        self, node: Typed, then: Callable[[Type], None], of: Type | None = None
    ) -> None:
        """Calls `then` with the input type once its outermost form is known."""

        def constraint() -> bool:
            head = self.types.head(node.input if of is None else of)
            if isinstance(head, TypeVariable):
                return False
            then(head)
            return True

        self.when(node, constraint)

    def objects(self, node: Typed, hint: str = '') -> None:
        """Demands that the input is made of Python objects."""

        def constraint() -> bool:
            given = self.types.resolve(node.input)
            if is_object(given):
                return True
            if not self.types.known(given):
                return False
            constant = isinstance(given, VoidType)
            fail(node, 'an object', str(given), A_CONSTANT if constant else hint)

        self.guesses.append((node, ObjectType()))
        self.when(node, constraint)

    def guess(self) -> bool:
        """Takes one unknown input to be what it most likely is.

        Only when nothing else helps: what must be made of objects is taken to be one
        object, and may yet prove to be a tuple of objects.
        """
        for node, type_ in self.guesses:
            before = self.types.resolve(node.input)
            partly = not isinstance(before, TypeVariable)
            if self.types.known(before) or (partly and type_ == ObjectType()):
                continue
            known = len(self.types.bound)
            self.equal(node, before, type_, 'an input')
            if len(self.types.bound) > known:
                return True
        return False

    def solve(self) -> None:
        """Tries what waits until nothing changes.

        Raises:
          TypeError: something is still unknown.
        """
        while self.waiting:
            before, self.waiting = self.waiting, []
            for node, constraint in before:
                self.when(node, constraint)
            if len(self.waiting) == len(before) and not self.guess():
                break
        for node in [*(node for node, _ in self.waiting), *self.nodes]:
            for type_ in (node.input, node.output):
                if not self.types.known(type_):
                    raise TypeError(
                        f'{node}: expected types that follow from the expression, got '
                        f'{self.types.resolve(node.input)} to '
                        f'{self.types.resolve(node.output)}; say them, as in '
                        '`ForwardDeclaration(output_type=...)`'
                    )
        for node in self.nodes:
            node.input = self.types.resolve(node.input)
            node.output = self.types.resolve(node.output)


def infer(root: c.Block) -> Typing:
    """Types an expression whose input is a Python object.

    Raises:
      TypeError: types clash or cannot be determined; the message starts with the path
        of the block at fault.
    """
    state = Inference()
    top = state.visit(root, VoidType() if is_constant(root) else ObjectType(), '')
    state.solve()
    metrics: dict[str, Type] = {}
    for node in state.nodes:
        if isinstance(node.block, c.Metric):
            _check_metric(node, metrics)
    names = numbered(state.functions)
    for node in state.nodes:
        node.layer = None if node.layer is None else names[node.layer]
    layers = tuple(names[layer] for layer in state.layers.values())
    return Typing(top, state.declarations, layers, metrics)


def fail(node: Typed, expected: str, got: str, hint: str = '') -> NoReturn:
    """Raises the error that names a block, what it expects and what it gets."""
    raise TypeError(f'{node}: expected {expected}, got {got}{hint and f"; {hint}"}')


def _check_metric(node: Typed, metrics: dict[str, Type]) -> None:
    assert isinstance(node.block, c.Metric)
    leaves = list(terminals(node.input))
    if not leaves or not all(isinstance(leaf, TensorType) for leaf in leaves):
        sequence = any(isinstance(leaf, SequenceType) for leaf in leaves)
        hint = (
            'collect its items by `Map(Metric(...)) >> Void()`'
            if sequence
            else TO_TENSORS
        )
        fail(node, 'a tensor or a tuple of tensors', str(node.input), hint)
    known = metrics.setdefault(node.block.name, node.input)
    if known != node.input:
        fail(node, f'{known}, as at its other uses', str(node.input))


def check_dtype(node: Typed, type_: Type) -> None:
    """Refuses what JAX, as configured, would silently make narrower."""
    for leaf in terminals(type_):
        if isinstance(leaf, SequenceType):
            check_dtype(node, leaf.item)
        elif isinstance(leaf, TensorType):
            narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)
            if narrow != leaf.dtype:
                fail(
                    node,
                    f'a dtype that JAX keeps, such as {narrow.name}',
                    leaf.dtype.name,
                    "say it, or set jax.config.update('jax_enable_x64', True)",
                )


# ---- a rule per block: types its parts, gives its output type ------------------------


@functools.singledispatch
def rule(block: c.Block, node: Typed, state: Inference) -> Type:
    """The output type of `node`; sets its parts."""
    raise NotImplementedError(f'type inference has no rule for {block!r}')


@rule.register
def _(block: c.Tensor, node: Typed, state: Inference) -> Type:
    state.objects(node, 'put it before any block that gives tensors')
    check_dtype(node, block.type)
    return block.type


@rule.register
def _(block: c.InputTransform, node: Typed, state: Inference) -> Type:
    state.objects(node, 'use Function to compute with tensors')
    return ObjectType()


@rule.register
def _(block: c.FromTensor, node: Typed, state: Inference) -> Type:
    takes_nothing(node, state)
    check_dtype(node, block.type)
    return block.type


@rule.register
def _(block: c.Zeros, node: Typed, state: Inference) -> Type:
    takes_nothing(node, state)
    type_: Type = block.type
    check_zeros(node, type_)
    check_dtype(node, type_)
    return type_


def takes_nothing(node: Typed, state: Inference) -> None:
    """Demands that there is no input."""
    try:
        state.types.unify(node.input, VoidType())
    except Mismatch:
        got = state.types.resolve(node.input)
        fail(node, 'no input', str(got), 'drop it first, by Void()')


def check_zeros(node: Typed, type_: Type) -> None:
    """Refuses types that have no zero."""
    for leaf in terminals(type_):
        if isinstance(leaf, SequenceType):
            check_zeros(node, leaf.item)
        elif not isinstance(leaf, TensorType):
            fail(node, 'a type that has zeros: tensors, tuples, sequences', str(type_))


@rule.register
def _(block: c.Void, node: Typed, state: Inference) -> Type:
    return VoidType()


@rule.register
def _(block: c.Identity, node: Typed, state: Inference) -> Type:
    return node.input


@rule.register
def _(block: c.Function, node: Typed, state: Inference) -> Type:
    output = state.types.fresh()

    def constraint() -> bool:
        if not state.types.known(node.input):
            return False
        given = state.types.resolve(node.input)
        for leaf in terminals(given):
            if not isinstance(leaf, TensorType):
                sequence = isinstance(leaf, SequenceType)
                hint = OF_SEQUENCES if sequence else TO_TENSORS
                fail(node, 'tensors or tuples of tensors', str(given), hint)
        if _has_void(given):
            hint = 'take what a sink stands beside by `>> GetItem(...)` first'
            fail(node, 'tensors or tuples of tensors', str(given), hint)
        state.equal(node, apply_layer(node, given, block, state), output, 'to give')
        return True

    state.when(node, constraint)
    return output


@rule.register
def _(block: c.Concat, node: Typed, state: Inference) -> Type:
    def check(head: Type) -> None:
        if isinstance(head, TensorType):
            hint = 'make one of all that is joined, as in `AllOf(a, b) >> Concat()`'
            fail(node, 'a tuple of tensors', str(head), hint)

    state.when_head(node, check)
    return rule.dispatch(c.Function)(block, node, state)


A_CONSTANT = 'use Zeros or FromTensor where nothing is read'
TO_TENSORS = 'turn objects into tensors by Scalar, Vector or Tensor'
OF_SEQUENCES = 'use Map for each item, or Sum, Fold or Reduce for all of them'


def _has_void(type_: Type) -> bool:
    """Whether nothing stands somewhere inside of a tuple."""
    parts = type_.items if isinstance(type_, TupleType) else ()
    return any(isinstance(part, VoidType) or _has_void(part) for part in parts)


def apply_layer(
    node: Typed, given: Type, function: c.Function, state: Inference
) -> Type:
    """Finds or makes the layer of a function, and the type that it gives."""
    _check_settings(node, given, function)
    arguments, key = arguments_of(given), identity(function)
    try:
        if key not in state.layers:
            state.layers[key] = make_layer(function, arguments)
            state.functions[state.layers[key]] = function
        node.layer = layer = state.layers[key]
        if (layer, arguments) not in state.results:
            of_call = layer.call, layer.params, arguments, layer.batched
            state.results[layer, arguments] = result_type(*of_call)
        return state.results[layer, arguments]
    except Exception as error:
        shown = ', '.join(map(repr, arguments))
        advice = hint(error, function, given)
        raise TypeError(
            f'{node}: expected to run on inputs ({shown}), got {reason(error)}'
            f'{advice and f"; {advice}"}'
        ) from error


def _check_settings(node: Typed, given: Type, function: c.Function) -> None:
    """Refuses a tuple of which an item would replace a default."""
    count = len(given) if isinstance(given, TupleType) else 1
    for each in settings_of(function, count):
        fail(
            node,
            'an input for each argument without a default',
            f'the tuple {given}, of which an item would be '
            f'`{each.name}={shown(each.default)}`',
            'items are arguments of their own: take one by `GetItem`, or write a '
            f'function that takes {count} inputs, as `lambda *inputs: ...`',
        )


@rule.register
def _(block: c.Pipe, node: Typed, state: Inference) -> Type:
    parts: list[Typed] = []
    given = node.input
    for i, each in enumerate(block.blocks):
        where = f'{node.where}.Pipe[{i}]' if node.where else f'Pipe[{i}]'
        constant = i == 0 and is_constant(each)
        parts.append(state.visit(each, VoidType() if constant else given, where))
        given = parts[-1].output
    node.parts = tuple(parts)
    return given


@rule.register
def _(block: c.AllOf, node: Typed, state: Inference) -> Type:
    parts = [
        state.part(node, each, node.input, f'[{i}]')
        for i, each in enumerate(block.blocks)
    ]
    node.parts = tuple(parts)
    return TupleType(part.output for part in parts)


@rule.register
def _(block: c.Record, node: Typed, state: Inference) -> Type:
    given = [state.types.fresh() for _ in block.fields]
    read = [
        (key, item)
        for (key, each), item in zip(block.fields, given, strict=True)
        if not is_constant(each)
    ]

    def link(head: Type) -> None:
        if isinstance(head, TupleType) and block.length is not None:
            _check_length(node, head, block.length, state)
        for key, item in read:
            field = _field_type(node, head, key, state)
            state.equal(node, field, item, f'for {key!r}')

    if read:
        state.when_head(node, link)
    parts = [
        state.part(node, each, item, f'[{key!r}]')
        for (key, each), item in zip(block.fields, given, strict=True)
    ]
    node.parts = tuple(parts)
    return TupleType(part.output for part in parts)


def _check_length(node: Typed, given: TupleType, most: int, state: Inference) -> None:
    if len(given) > most:
        fail(node, f'at most {count_of(most)}', str(state.types.resolve(given)), PICK)


def _field_type(node: Typed, head: Type, key: Any, state: Inference) -> Type:
    if isinstance(head, TupleType):
        return _tuple_item(node, head, key, state)
    given = state.types.resolve(head)
    if not is_object(given):
        fail(node, 'an object or a tuple', str(given))
    return ObjectType()


def _tuple_item(node: Typed, given: TupleType, key: Any, state: Inference) -> Type:
    shown = str(state.types.resolve(given))
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        fail(node, f'int keys, for its input is the tuple {shown}', repr(key))
    if not -len(given) <= key < len(given):
        fail(node, f'at least {key + 1 if key >= 0 else -key} items', shown)
    return given.items[key]


@rule.register
def _(block: c.GetItem, node: Typed, state: Inference) -> Type:
    output = state.types.fresh()

    def link(head: Type) -> None:
        state.equal(node, _item_type(block, node, head, state), output, 'to give')

    state.when_head(node, link)
    return output


def _item_type(block: c.GetItem, node: Typed, head: Type, state: Inference) -> Type:
    key = block.key
    if isinstance(head, ObjectType):
        return ObjectType()
    if isinstance(head, TupleType):
        if isinstance(key, slice):
            return TupleType(head.items[key])
        return _tuple_item(node, head, key, state)
    if isinstance(head, SequenceType):
        if not isinstance(key, int | slice):
            given = state.types.resolve(head)
            fail(node, f'an int or a slice, for its input is {given}', repr(key))
        return head if isinstance(key, slice) else head.item
    if isinstance(head, TensorType):
        return _part_type(node, head, key, state)
    fail(node, 'an object, tuple, sequence or tensor', str(head))


def _part_type(node: Typed, given: TensorType, key: Any, state: Inference) -> Type:
    first = key[0] if isinstance(key, tuple) and key else key
    size = given.shape[0] if given.shape else 0
    if isinstance(first, int) and not -size <= first < size:
        fail(node, f'a tensor with an item {key}', str(given))
    try:
        fn = take_item(key)
    except TypeError:
        fail(node, 'ints and slices as the key of a tensor', repr(key))
    return apply_layer(node, given, c.Function(fn), state)


@rule.register
def _(block: c.OneOf, node: Typed, state: Inference) -> Type:
    key = pre = None
    if isinstance(block.key_fn, c.Block):
        key = state.part(node, block.key_fn, node.input, '.key_fn')
        state.when_head(node, functools.partial(_check_key, key, state), key.output)
    else:
        hint = 'put it where values are of Python, or use jnp.where in a Function'
        state.objects(node, hint)
    given = node.input
    if block.pre_block is not None:
        pre = state.part(node, block.pre_block, given, '.pre_block')
        given = pre.output
    cases: dict[int, Typed] = {}
    for name, each in block.cases:
        if id(each) not in cases:
            case = state.part(node, each, given, f'[{name!r}]')
            for first in list(cases.values())[:1]:
                state.equal(case, case.output, first.output, 'to give')
            cases[id(each)] = case
    node.parts = (key, pre, *cases.values())
    return next(iter(cases.values())).output


def _check_key(key: Typed, state: Inference, head: Type) -> None:
    if not is_object(state.types.resolve(head)):
        fail(key, 'to give an object, the key', str(state.types.resolve(head)))


@rule.register
def _(block: c.Optional, node: Typed, state: Inference) -> Type:
    state.objects(node)
    some = state.part(node, block.some_case, ObjectType(), '.some_case')
    none = None
    if block.none_case is not None:
        none = state.part(node, block.none_case, VoidType(), '.none_case')
        state.equal(none, none.output, some.output, 'to give')
    else:
        state.when(node, lambda: _check_default(node, some.output, state))
    node.parts = (some, none)
    return some.output


def _check_default(node: Typed, type_: Type, state: Inference) -> bool:
    if not state.types.known(type_):
        return False
    check_zeros(node, state.types.resolve(type_))
    return True


@rule.register
def _(block: c.Reference, node: Typed, state: Inference) -> Type:
    declaration = block.declaration
    if declaration.target is None:
        got = f'{declaration!r}, which is not'
        fail(node, 'a declaration that is resolved', got, 'call its `resolve_to`')
    if declaration not in state.declarations:
        given = declaration.input_type or state.types.fresh()
        output = declaration.output_type or state.types.fresh()
        body = Typed(c.Identity(), declaration.name, given, output)
        state.declarations[declaration] = body
        inner = state.visit(declaration.target, given, declaration.name)
        state.equal(inner, inner.output, output, 'to give')
        state.nodes.append(body)
        body.parts = (inner,)
    body = state.declarations[declaration]

    def link() -> bool:
        given = state.types.resolve(node.input)
        if not state.types.known(given):
            return False
        if is_object(given) and declaration.input_type is None:
            given = ObjectType()  # a tuple of objects here may be a list elsewhere
        state.equal(node, given, body.input, 'an input')
        return True

    state.guesses.append((node, body.input))
    state.when(node, link)
    return body.output


@rule.register
def _(block: c.Metric, node: Typed, state: Inference) -> Type:
    return VoidType()


# ---- sequences -----------------------------------------------------------------------


def items(node: Typed, state: Inference, item: Type, broadcast: bool = False) -> None:
    """Links `item` to the items of the input."""

    def link(head: Type) -> None:
        if isinstance(head, ObjectType):
            state.equal(node, ObjectType(), item, 'items of type')
        elif isinstance(head, SequenceType) or (
            broadcast and isinstance(head, BroadcastType)
        ):
            state.equal(node, head.item, item, 'items of type')
        elif isinstance(head, TupleType) and head.items:
            for each in head:
                state.equal(node, each, item, 'items of one type,')
        else:
            expected = 'a sequence, a non-empty tuple of one type, or an object'
            fail(node, expected, str(state.types.resolve(head)))

    state.when_head(node, link)


@rule.register
def _(block: c.Map, node: Typed, state: Inference) -> Type:
    item, output = state.types.fresh(), state.types.fresh()
    items(node, state, item, broadcast=True)
    fn = state.part(node, block.fn, item, '')
    node.parts = (fn,)

    def link(head: Type) -> None:
        kind = BroadcastType if isinstance(head, BroadcastType) else SequenceType
        state.equal(node, kind(fn.output), output, 'to give')

    state.when_head(node, link)
    return output


@rule.register
def _(block: c.Fold, node: Typed, state: Inference) -> Type:
    item = state.types.fresh()
    items(node, state, item)
    start = state.part(node, block.start, VoidType(), '.start')
    given = TupleType(start.output, item)
    combine = state.part(node, block.combine, given, '.combine')
    state.equal(combine, combine.output, start.output, 'to give its state,')
    node.parts = (combine, start)
    return start.output


@rule.register
def _(block: c.Reduce, node: Typed, state: Inference) -> Type:
    item = state.types.fresh()
    items(node, state, item)
    combine = state.part(node, block.combine, TupleType(item, item), '.combine')
    state.equal(combine, combine.output, item, 'to give an item,')
    default = None
    if block.default is not None:
        default = state.part(node, block.default, VoidType(), '.default')
        state.equal(default, default.output, item, 'to give an item,')
    else:
        state.when(node, lambda: _check_default(node, item, state))
    node.parts = (combine, default)
    return item


@rule.register
def _(block: c.Length, node: Typed, state: Inference) -> Type:
    def check(head: Type) -> None:
        if not isinstance(head, ObjectType | SequenceType | TupleType):
            fail(node, 'a sequence, a tuple or an object', str(head))

    state.when_head(node, check)
    check_dtype(node, block.type)
    return block.type
