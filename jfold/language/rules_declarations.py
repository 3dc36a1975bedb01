# SPDX-License-Identifier: Apache-2.0
"""The rules of declarations, sharing and compositions: types, values and source."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jfold import blocks as b
from jfold.base.operands import map_sources
from jfold.base.trampoline import Steps
from jfold.blocks.compose import Composition, Numbers
from jfold.blocks.lazy import InOrder
from jfold.language.data_cycles import (
    objects_in,
    refuse_cycle,
    refuse_shared_cycle,
    steps_to,
)
from jfold.language.data_paths import EXAMPLE
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines, write
from jfold.language.paths import fail, join_path
from jfold.language.typed import TypedUse
from jfold.language.walk import Located, Walk, misfit, path_of, walk
from jfold.language.writing import as_object, recorded_kinds, write_recorded
from jfold.tracing import deep
from jfold.types import ObjectType, TensorType, TupleType, Type, VoidType, leaf_types


@output_type.register
def _(block: b.Reference, node: TypedUse, state: Inference) -> Steps[Type]:
    declaration = block.declaration
    if declaration.target is None and not state.infers_input:
        got = f'{declaration!r}, which is not'
        fail(node, 'a declaration that is resolved', got, 'call its `resolve_to`')
    if declaration not in state.declarations:
        input_ = _declared_type(declaration.input_type, state)
        output = _declared_type(declaration.output_type, state)
        body = TypedUse(b.Identity(), declaration.name, input_, output)
        # Registered before its target is typed, which may refer to it.
        state.declarations[declaration] = body
        if declaration.target is not None:
            target = declaration.target, input_, declaration.name
            inner = yield state.visit_inline(*target)
            state.equal(inner, inner.output, output, 'to give')
            state.nodes.append(body)
            body.parts = (inner,)
    body = state.declarations[declaration]

    def link() -> bool:
        input_ = state.types.resolve(node.input)
        if not state.types.known(input_):
            return False
        if input_.of_objects and declaration.input_type is None:
            input_ = ObjectType()  # a tuple of objects here may be a list elsewhere
        state.equal(node, input_, body.input, 'an input')
        return True

    state.defaults.append((node, body.input))
    state.when(node, link)
    return body.output


def _declared_type(type_: Type | None, state: Inference) -> Type:
    """Return a declared type, or a new type variable if none is declared.

    A tuple is bound to a variable, to which unification may add names of fields.
    """
    if type_ is None:
        return state.types.fresh()
    return state.types.alias(type_) if isinstance(type_, TupleType) else type_


@walk.register
def _(block: b.Reference, node: TypedUse, x: Any, state: Walk) -> Steps[Any]:
    declaration = block.declaration
    body = state.typing.declarations[declaration]
    if isinstance(body.input, ObjectType):
        x = state.as_object(x)
    entry: Any = None
    calls = state.calls[declaration]
    if len(calls) >= deep.MAX_DEPTH:
        expected = f'expected data at most {deep.MAX_DEPTH:,} deep, got deeper'
        hint = 'cut what contains itself, and end functions that make ever new data'
        raise misfit(node, expected, x, hint)
    if declaration.key is not None:
        entry = declaration, _key_of(declaration, node, x, state)
        if entry in state.shared:
            first, values = state.shared[entry]
            if not values:  # met again while its value was being computed
                refuse_shared_cycle(declaration, first, steps_to(x, first.path))
            return values[0]
        # The entry keeps the object alive, so that no other object gets its id.
        state.shared[entry] = x, ()
    # Control flow depends on objects alone, so a call on the objects of an unfinished
    # call of the same declaration would never end.
    call = tuple(deep.identity(object_.value) for object_ in objects_in(x))
    if call in calls:
        refuse_cycle(node, x, calls[call], state)
    calls[call] = path_of(x) or EXAMPLE
    # With an empty memo, since the uses inside get other values in each call.
    value = yield state.anew(body.parts[0], x)
    del calls[call]
    if entry is not None:
        state.shared[entry] = x, (value,)
    return value


@write.register
def _(block: b.Reference, node: TypedUse, value: Any, w: Lines) -> Any:
    declaration = block.declaration
    body = w.g.typing.declarations[declaration]
    if isinstance(body.input, ObjectType):
        value = as_object(value)
    if declaration.calls is not None:
        return write_recorded([declaration], node, as_object(value), w)
    return w.g.call(declaration, declaration.name, body.parts[0], value, w)


@walk.register
def _(block: InOrder, node: TypedUse, x: Any, state: Walk) -> Steps[Any]:
    for call in state.items(node, state.get(node, x, 2)):
        yield state.anew(node.parts[0], call)
    return []


@write.register
def _(block: InOrder, node: TypedUse, value: Any, w: Lines) -> None:
    # Lazy functions make the calls, in order. What records them is written here if no
    # other call reads the results: there may be metrics inside.
    _, _, *cases = node.parts[0].parts  # of a `OneOf`, behind its key and `pre_block`
    for case in cases:
        for kind in recorded_kinds(case.parts[:1]):  # a pipe: the kind, then `Void`
            w.g.recorded(kind)


def _key_of(declaration: Any, node: TypedUse, x: Located, state: Walk) -> Any:
    """Return the key of `x` in `declaration`'s memo; raise `Misfit` without a hash."""
    if declaration.key is id:
        return id(x.value)
    key = state.apply(node, declaration.key, x, 'what its key takes')
    # A look-up in an empty table raises `Misfit` if the key cannot be hashed.
    what = Located(key, x.path), lambda *_: 'a key that is hashable', (None,)
    state.lookup(node, {}, *what)
    return key


@output_type.register
def _(block: b.Share, node: TypedUse, state: Inference) -> Steps[Type]:
    state.objects(node, 'put it before any block that gives tensors')
    part: TypedUse = yield state.visit(block.reference, node.input, node.where)
    node.parts = (part,)

    def gives_tensors() -> bool:
        type_ = state.types.resolve(part.output)
        leaves = leaf_types(type_)
        if type_.ground and not all(isinstance(x, TensorType) for x in leaves):
            hint = 'put it around what each item, or the whole, becomes'
            fail(node, 'a block that gives tensors', str(type_), hint)
        return type_.ground

    state.when(node, gives_tensors)
    return part.output


@walk.register
def _(block: b.Share, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    return (yield state.part(node.parts[0], x))


@write.register
def _(block: b.Share, node: TypedUse, value: Any, w: Lines) -> Any:
    return w.part(node.parts[0], value, tail=True)


@output_type.register
def _(block: Composition, node: TypedUse, state: Inference) -> Steps[Type]:
    types, parts = [node.input], list[TypedUse]()
    for number, (step, source) in enumerate(block.wiring.steps):
        where = join_path(node.where, f'{block.name}.x{number + 1}')
        part = yield state.visit(step, _type_of(source, types), where)
        # An unread item of a tuple is no mistake: to take it costs nothing.
        if number + 1 not in block.wiring.read and not isinstance(step, b.GetItem):
            state.when(part, functools.partial(_check_unread, part, state))
        parts.append(part)
        types.append(part.output)
    node.parts = tuple(parts)
    node.facts = tuple(x for _, x in block.wiring.steps), block.wiring.output
    return _type_of(block.wiring.output, types)


def _type_of(numbers: Numbers, types: Sequence[Type]) -> Type:
    """Return `types[numbers]`, or for a tuple of numbers the tuple type of these.

    `None`, which stands for no operand, gives void.
    """
    if isinstance(numbers, tuple):
        return TupleType(_type_of(number, types) for number in numbers)
    return VoidType() if numbers is None else types[numbers]


def _check_unread(part: TypedUse, state: Inference) -> bool:
    """Refuse unread output of `part` unless void; return whether its type is known."""
    type_ = state.types.resolve(part.output)
    if type_.ground and type_.terminal_types():
        hint = 'return it, or drop it by Void()'
        fail(part, 'a result that something reads', f'{type_}, read by nothing', hint)
    return type_.ground


@walk.register
def _(block: Composition, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    values = [x]  # the input, then the result of each step
    sources, output = node.facts
    for part, source in zip(node.parts, sources, strict=True):
        operand = map_sources(source, values.__getitem__)
        values.append((yield state.part(part, operand)))
    return map_sources(output, values.__getitem__)


@write.register
def _(block: Composition, node: TypedUse, value: Any, w: Lines) -> Any:
    values = [w.held(value)]
    sources, output = node.facts
    for part, source in zip(node.parts, sources, strict=True):
        operand = map_sources(source, values.__getitem__)
        values.append(w.held(w.part(part, operand)))
    return map_sources(output, values.__getitem__)
