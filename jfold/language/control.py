# SPDX-License-Identifier: Apache-2.0
"""The rules of dispatch, of declarations, and of what is collected on the way."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from jfold import combinators as c
from jfold import instructions as p
from jfold.errors import shown
from jfold.kept import kept
from jfold.language.eager import Eager, eval_anew, eval_part, value_of, zeros
from jfold.language.emission import emit, emit_part, emit_zeros
from jfold.language.inference import Inference, output_type
from jfold.language.paths import fail
from jfold.language.typed import Typed
from jfold.language.writer import Value, Writer, Writing, flatten
from jfold.registers import owners_of, row_names, types_of
from jfold.trampoline import Steps
from jfold.types import (
    ObjectType,
    Product,
    TensorType,
    Type,
    VoidType,
    terminals,
)

# ---- OneOf ---------------------------------------------------------------------------


@output_type.register
def _(block: c.OneOf, node: Typed, state: Inference) -> Steps[Type]:
    key = pre = None
    if isinstance(block.key_fn, c.Block):
        key = yield state.part(node, block.key_fn, node.input, '.key_fn')
        state.when_head(node, functools.partial(_check_key, key, state), key.output)
    else:
        hint = (
            'put it where values are of Python, choose by one of several values as by '
            '`OneOf(GetItem(1), ...)`, or use jnp.where in a Function'
        )
        state.objects(node, hint)
    given = node.input
    if block.pre_block is not None:
        pre = yield state.part(node, block.pre_block, given, '.pre_block')
        given = pre.output
    # A block under several keys is one case: its values are computed together.
    cases: dict[int, Typed] = {}
    named = [(f'[{name!r}]', each) for name, each in block.cases]
    named += [] if block.default is None else [('.default', block.default)]
    for name, each in named:
        if id(each) not in cases:
            some = state.types.named(given)  # the values of this case alone
            state.cases[some] = given
            case = yield state.part(node, each, some, name)
            # With the first alone: each with each would take a square of the cases.
            for first in list(cases.values())[:1]:
                hint = 'give all cases one type'
                state.equal(case, case.output, first.output, 'to give', hint)
            cases[id(each)] = case
    node.parts = (key, pre, *cases.values())
    return next(iter(cases.values())).output


def _check_key(key: Typed, state: Inference, head: Type) -> None:
    given = state.types.resolve(head)
    if not given.of_objects:
        hint = 'leave the key as it is in the data, as `GetItem(...)` does'
        fail(key, 'to give an object, the key', str(given), hint)


@emit.register
def _(block: c.OneOf, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    key, pre, *cases = node.parts
    if key is not None:
        keys = yield w.object((yield emit_part(key, value, places, w)), key)
    else:
        column = yield w.object(value, node)
        keys = w.one(p.Transform, (column,), node, fn=block.key_fn)
    if pre is not None:
        value = yield emit_part(pre, value, places, w)
    number = _numbers(block)
    case_of = {key: number[target] for key, target in block.targets.items()}
    other = None if block.default is None else number[block.default]
    options = {'case_of': case_of, 'cases': len(cases), 'default': other}
    codes = w.one(p.Cases, (keys,), node, **options)
    positions = w.add(p.Positions, (codes,), node, outputs=len(cases))
    return (yield emit_cases(cases, positions, value, node, places, w))


def emit_cases(
    cases: list[Typed | None],
    positions: tuple[int, ...],
    value: Value,
    node: Typed,
    places: int,
    w: Writer,
) -> Writing:
    """Each case on its items; the results in the original order."""
    results = []
    for case, at in zip(cases, positions, strict=True):
        # Every case is evaluated, on a selection that may be empty: which example takes
        # which is known only with the data, and the program is the same for all.
        inner = w.one(p.Select, (places, at), node)
        if case is None:
            results.append((yield emit_zeros(node.output, node, inner, w)))
        else:
            given = yield w.select(value, at, node)
            results.append((yield emit_part(case, given, inner, w)))
    return (yield w.merge(results, positions, node))


@value_of.register
def _(block: c.OneOf, node: Typed, x: object, state: Eager) -> Steps[Any]:
    key, pre, *cases = node.parts
    fn = block.key_fn
    chosen = (yield eval_part(key, x, state)) if isinstance(fn, c.Block) else fn(x)
    found = block.targets
    target = found.get(chosen, block.default) if block.default else found[chosen]
    given = x if pre is None else (yield eval_part(pre, x, state))
    return (yield eval_part(cases[_numbers(block)[target]], given, state))


@kept
def _numbers(block: c.OneOf) -> dict[c.Block, int]:
    """The places of cases among those that are different blocks."""
    blocks = dict.fromkeys(x for _, x in block.cases)
    if block.default is not None:
        blocks[block.default] = None
    return {x: k for k, x in enumerate(blocks)}


# ---- Optional ------------------------------------------------------------------------


@output_type.register
def _(block: c.Optional, node: Typed, state: Inference) -> Steps[Type]:
    state.objects(node, 'put it before any block that gives tensors')
    some: Typed = yield state.part(node, block.some_case, ObjectType(), '.some_case')
    given = node, block.none_case, '.none_case', some.output, 'to give'
    none = yield state.substitute(*given, 'give both cases one type')
    node.parts = (some, none)
    return some.output


@emit.register
def _(block: c.Optional, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    column = yield w.object(value, node)
    codes = w.one(p.Cases, (column,), node, case_of=None, cases=2)
    positions = w.add(p.Positions, (codes,), node, outputs=2)
    cases = list(node.parts)
    return (yield emit_cases(cases, positions, column, node, places, w))


@value_of.register
def _(block: c.Optional, node: Typed, x: object, state: Eager) -> Steps[Any]:
    some, none = node.parts
    if x is not None:
        return (yield eval_part(some, x, state))
    return zeros(node.output) if none is None else (yield eval_part(none, None, state))


# ---- Reference -----------------------------------------------------------------------


@output_type.register
def _(block: c.Reference, node: Typed, state: Inference) -> Steps[Type]:
    declaration = block.declaration
    if declaration.target is None and not state.is_asked:
        got = f'{declaration!r}, which is not'
        fail(node, 'a declaration that is resolved', got, 'call its `resolve_to`')
    if declaration not in state.declarations:
        given = declaration.input_type or state.types.fresh()
        output = declaration.output_type or state.types.fresh()
        body = Typed(c.Identity(), declaration.name, given, output)
        # Known before its target is typed, in which it may be used again.
        state.declarations[declaration] = body
        if declaration.target is not None:
            inner = yield state.visit_once(declaration.target, given, declaration.name)
            state.equal(inner, inner.output, output, 'to give')
            state.nodes.append(body)
            body.parts = (inner,)
    body = state.declarations[declaration]

    def link() -> bool:
        given = state.types.resolve(node.input)
        if not state.types.known(given):
            return False
        if given.of_objects and declaration.input_type is None:
            given = ObjectType()  # a tuple of objects here may be a list elsewhere
        state.equal(node, given, body.input, 'an input')
        return True

    state.guesses.append((node, body.input))
    state.when(node, link)
    return body.output


@emit.register
def _(block: c.Reference, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    number = w.builder.declaration(block.declaration)
    if isinstance(w.builder.typing.declarations[block.declaration].input, ObjectType):
        value = yield w.object(value, node)
    given = list(flatten(value))
    # A call on what the body was given, untouched, takes the data no further apart.
    if w.declaration is not None and w.untouched.issuperset(given):
        unconsumed = w.builder.unconsumed.setdefault(w.declaration, [])
        unconsumed.append((number, str(node)))
    shape, names = (yield w.shape_of(node.output)), row_names()
    options: dict[str, Any] = {
        'declaration': number,
        'way': next(w.builder.ways),
        'owners': owners_of([*types_of(node.output, names, next(names))]),
        'visit': w.builder.visit(node),
    }
    kind: type[p.Call] = p.Call
    key = block.declaration.key
    if key is not None:
        kind, options['key'] = p.CallOnce, key
    return (yield w.shaped(kind, (places, *given), node, shape, **options))


@value_of.register
def _(block: c.Reference, node: Typed, x: object, state: Eager) -> Steps[Any]:
    body = state.typing.declarations[block.declaration]
    call = block.declaration, *_objects(body.input, x)
    if call in state.calls:
        got = f'{shown(x)}, which contains itself'
        raise ValueError(f'{node}: expected data that end, got {got}')
    state.calls.add(call)
    try:
        # The same uses see other values in a call, so nothing known is passed on.
        return (yield eval_anew(body.parts[0], x, state))
    finally:
        state.calls.remove(call)


def _objects(type_: Type, x: Any) -> Iterator[int]:
    """The ids of all that decides how a call goes on: of what is no tensor."""
    parts = [(type_, x)]
    if isinstance(type_, Product):
        parts = [*zip(type_, type_.form.opened(x), strict=True)]
    return (id(part) for each, part in parts if not isinstance(each, TensorType))


# ---- Share ---------------------------------------------------------------------------


@output_type.register
def _(block: c.Share, node: Typed, state: Inference) -> Steps[Type]:
    state.objects(node, 'put it before any block that gives tensors')
    part: Typed = yield state.visit(block.reference, node.input, node.where)
    node.parts = (part,)
    state.when(node, functools.partial(_check_shared, node, part, state))
    return part.output


def _check_shared(node: Typed, part: Typed, state: Inference) -> bool:
    """Refuses what gives something else than tensors; once that is known."""
    type_ = state.types.resolve(part.output)
    if type_.ground and not all(isinstance(x, TensorType) for x in terminals(type_)):
        hint = 'put it around what each item, or the whole, becomes'
        fail(node, 'a block that gives tensors', str(type_), hint)
    return type_.ground


@emit.register
def _(block: c.Share, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    return (yield emit_part(node.parts[0], value, places, w))


@value_of.register
def _(block: c.Share, node: Typed, x: object, state: Eager) -> Steps[Any]:
    key = block, id(x) if block.key is None else block.key(x)
    if key not in state.once:
        state.once[key] = x, ()  # which keeps its id its own
        state.once[key] = x, ((yield eval_part(node.parts[0], x, state)),)
    _, found = state.once[key]
    if not found:
        got = f'{shown(x)}, which leads back to itself'
        raise ValueError(f'{node}: expected data that end, got {got}')
    return found[0]


# ---- Metric --------------------------------------------------------------------------


@output_type.register
def _(block: c.Metric, node: Typed, state: Inference) -> Type:
    return VoidType()


@emit.register
def _(block: c.Metric, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    typing = w.builder.typing
    number = typing.metric_numbers[block.name]
    options: dict[str, Any] = {'result': number, 'visit': w.builder.visit(node)}
    _, has_label = typing.metrics[block.name]
    if not has_label:
        w.add(p.Observe, (places, *flatten(value)), node, 0, **options)
        return None
    assert isinstance(value, tuple)
    value, label = value
    column = yield w.object(label, node)
    w.add(p.ObserveLabelled, (places, *flatten(value), column), node, 0, **options)
    return None


@value_of.register
def _(block: c.Metric, node: Typed, x: object, state: Eager) -> None:
    state.metrics[block.name].append(x)
