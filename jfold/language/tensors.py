# SPDX-License-Identifier: Apache-2.0
"""The rules of functions of tensors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from jfold import combinators as c
from jfold import instructions as p
from jfold.errors import reason, shown
from jfold.language import eager
from jfold.language.cells import check_order
from jfold.language.eager import Eager, value_of
from jfold.language.emission import emit
from jfold.language.inference import TO_TENSORS, Inference, output_type
from jfold.language.layers import arguments_of, hint, identity, make_layer, traced
from jfold.language.paths import fail
from jfold.language.signatures import settings_of
from jfold.language.typed import Typed
from jfold.language.writer import Value, Writer, Writing, flatten, rebuild
from jfold.types import (
    Product,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    terminals,
)

OF_PYTHON = (
    ', or write `InputTransform(fn)` for a function of Python values, `compose(fn)` '
    'for one that calls blocks'
)
OF_SEQUENCES = 'use Map for each item, or Sum, Fold or Reduce for all of them'


# ---- Function ------------------------------------------------------------------------


@output_type.register
def type_function(block: c.Function, node: Typed, state: Inference) -> Type:
    """The type that a function gives, once the types of its arguments are known."""
    output = state.types.fresh()

    def constraint() -> bool:
        check_order(node, block, state)
        # Tracing needs shapes, so of a type that is known in part nothing follows yet.
        if not state.types.known(node.input):
            return False
        given = state.types.resolve(node.input)
        for leaf in terminals(given):
            if not isinstance(leaf, TensorType):
                sequence = isinstance(leaf, SequenceType)
                hint = OF_SEQUENCES if sequence else TO_TENSORS
                if not sequence and inspect.isfunction(block.fn):
                    hint += OF_PYTHON
                fail(node, 'tensors or tuples of tensors', str(given), hint)
        if _has_void(given):
            hint = 'take what a sink stands beside by `>> GetItem(...)` first'
            fail(node, 'tensors or tuples of tensors', str(given), hint)
        state.equal(node, apply_layer(node, given, block, state), output, 'to give')
        return True

    state.when(node, constraint)
    return output


def _has_void(type_: Type) -> bool:
    """Whether nothing stands somewhere inside of a tuple."""
    waiting = [type_]
    while waiting:
        parts = each.items if isinstance(each := waiting.pop(), Product) else ()
        if any(isinstance(part, VoidType) for part in parts):
            return True
        waiting.extend(parts)
    return False


def apply_layer(
    node: Typed, given: Type, function: c.Function, state: Inference
) -> Type:
    """Finds or makes the layer of a function, and the type that it gives."""
    # One layer for all uses of a callable, and one trace for each type of its inputs:
    # of two thousand cases that end in one function, it is traced once.
    arguments, key = arguments_of(given), identity(function)
    if (key, arguments) not in state.results:
        _check_settings(node, given, function)
        try:
            if key not in state.layers:
                state.layers[key] = make_layer(function, arguments)
                state.functions[state.layers[key]] = function
            state.results[key, arguments] = traced(state.layers[key], arguments)
        except Exception as error:
            shown = ', '.join(map(repr, arguments))
            advice = hint(error, function, given)
            raise TypeError(
                f'{node}: expected to run on inputs ({shown}), got {reason(error)}'
                f'{advice and f"; {advice}"}'
            ) from error
    node.layer = state.layers[key]
    result, node.origins = state.results[key, arguments]
    return result


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


@emit.register
def _(block: c.Function, node: Typed, value: Value, places: int, w: Writer) -> Writing:
    return (yield emit_layer(node, value, places, w))


def emit_layer(node: Typed, value: Value, places: int, w: Writer) -> Writing:
    """Writes what a layer computes; the rest of its result is where it was."""
    assert node.layer is not None and node.origins is not None
    origins, given = node.origins, [*w.keys(node.layer, places, node), *flatten(value)]
    made: Iterator[int] = iter(())
    if count := len(origins.computed):
        inputs = places, *(given[i] for i in origins.reads)
        number = w.builder.computing(node)
        made = iter(w.add(p.Apply, inputs, node, count, operation=number))
    registers = []
    for origin in origins.outputs:
        if isinstance(origin, np.ndarray):
            index = w.builder.constant(
                (origin.dtype, origin.shape, origin.tobytes()), origin
            )
            registers.append(w.one(p.Constant, (places,), node, index=index))
        else:
            registers.append(next(made) if origin is None else given[origin])
    return (yield rebuild((yield w.shape_of(node.output)), iter(registers)))


@value_of.register
def _(block: c.Function, node: Typed, x: Any, state: Eager) -> object:
    return eager.call(node, x, state)


# ---- Concat: a function, as far as values go -----------------------------------------


@output_type.register
def _(block: c.Concat, node: Typed, state: Inference) -> Type:
    def check(head: Type) -> None:
        if isinstance(head, TensorType):
            hint = 'make one of all that is joined, as in `AllOf(a, b) >> Concat()`'
            fail(node, 'a tuple of tensors', str(head), hint)
        if isinstance(head, SequenceType):
            hint = 'make a tuple of a fixed length of it by Padded'
            fail(node, 'a tuple of tensors', str(state.types.resolve(head)), hint)

    state.when_head(node, check)
    return type_function(block, node, state)
