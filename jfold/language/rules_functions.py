# SPDX-License-Identifier: Apache-2.0
"""The rules of functions of tensors: types, values and source."""

from __future__ import annotations

import inspect
from typing import Any

from jfold import blocks as b
from jfold.base.errors import describe_error, short_repr
from jfold.language import symbols as s
from jfold.language.field_names import argument_order
from jfold.language.flax_cells import check_order
from jfold.language.function_layers import (
    arguments_of,
    hint,
    layer_key,
    make_layer,
    trace_layer,
)
from jfold.language.inference import TO_TENSORS, Inference, output_type
from jfold.language.lines import Lines, write
from jfold.language.paths import fail
from jfold.language.signatures import settings_of
from jfold.language.typed import TypedUse
from jfold.language.walk import in_tuples, walk
from jfold.types import (
    KeyType,
    Product,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    leaf_types,
)

OF_PYTHON = (
    ', or write `InputTransform(fn)` for a function of Python values, `compose(fn)` '
    'for one that calls blocks'
)
OF_SEQUENCES = 'use Map for each item, or Sum, Fold or Reduce for all of them'


@output_type.register
def type_function(block: b.Function, node: TypedUse, state: Inference) -> Type:
    """Return a type variable for the output, bound once the input type is known.

    The function is traced then. Raise TypeError if it cannot run on such inputs.
    """
    output = state.types.fresh()

    def constraint() -> bool:
        check_order(node, block, state)
        # JAX traces with shapes, so the whole input type has to be known.
        if not state.types.known(node.input):
            return False
        input_ = state.types.resolve(node.input)
        for leaf in leaf_types(input_):
            if not isinstance(leaf, TensorType):
                sequence = isinstance(leaf, SequenceType)
                hint = OF_SEQUENCES if sequence else TO_TENSORS
                if not sequence and inspect.isfunction(block.fn):
                    hint += OF_PYTHON
                fail(node, 'tensors or tuples of tensors', str(input_), hint)
        if _has_void(input_):
            hint = 'take what a sink stands beside by `>> GetItem(...)` first'
            fail(node, 'tensors or tuples of tensors', str(input_), hint)
        node.order = argument_order(node, block, input_)
        taken = TupleType(node.arranged(input_)) if node.order else input_
        taken = state.types.plain(taken)
        state.equal(node, apply_layer(node, taken, block, state), output, 'to give')
        return True

    state.when(node, constraint)
    return output


def _has_void(type_: Type) -> bool:
    """Return whether `type_`, a tuple, has a void item at any depth."""
    waiting = [type_]
    for item in waiting:
        waiting += item.items if isinstance(item, Product) else ()
    return any(isinstance(item, VoidType) for item in waiting[1:])


def apply_layer(
    node: TypedUse, input_: Type, function: b.Function, state: Inference
) -> Type:
    """Trace a function as a layer on an input type; return the output type.

    Set `node.layer` and `node.origins`.

    Args:
      input_: the input type, its items in the order in which the function takes them.

    Raises:
      TypeError: the function cannot run on inputs of this type.
    """
    # Memoized: one layer for each callable, one trace for each type of its inputs.
    arguments, key = arguments_of(input_), layer_key(function)
    if (key, arguments) not in state.results:
        count = len(input_) if isinstance(input_, TupleType) else 1
        for parameter in settings_of(function, count):
            fail(
                node,
                'an input for each argument without a default',
                f'the tuple {input_}, of which an item would be '
                f'`{parameter.name}={short_repr(parameter.default)}`',
                'items are arguments of their own: take one by `GetItem`, or write a '
                f'function that takes {count} inputs, as `lambda *inputs: ...`',
            )
        try:
            if key not in state.layers:
                state.layers[key] = make_layer(function, arguments)
                state.functions[state.layers[key]] = function
            state.results[key, arguments] = trace_layer(state.layers[key], arguments)
        except Exception as error:
            shown = ', '.join(map(repr, arguments))
            advice = hint(error, function, input_)
            raise TypeError(
                f'{node}: expected to run on inputs ({shown}), got '
                f'{describe_error(error)}{advice and f"; {advice}"}'
            ) from error
    node.layer = state.layers[key]
    result, node.origins = state.results[key, arguments]
    return result


walk.register(b.Function, lambda block, node, x, state: state.tensors.call(node, x))
write.register(b.Function, lambda block, node, value, w: write_layer(node, value, w))


# A Function with errors of its own.
@output_type.register
def _(block: b.Concat, node: TypedUse, state: Inference) -> Type:
    def check(head: Type) -> None:
        if isinstance(head, TensorType):
            hint = 'make one of all that is joined, as in `AllOf(a, b) >> Concat()`'
            fail(node, 'a tuple of tensors', str(head), hint)
        if isinstance(head, SequenceType):
            hint = 'make a tuple of a fixed length of it by Padded'
            fail(node, 'a tuple of tensors', str(state.types.resolve(head)), hint)

    state.when_head(node, check)
    return type_function(block, node, state)


def write_layer(node: Any, value: s.Symbol, w: Lines) -> s.Symbol:
    """Write source that applies a layer to a value; return the layer's outputs.

    An output that equals an input or a constant is that symbol. If all outputs do,
    nothing is written.
    """
    # Keys of random streams come before the operands. The source records `None` for
    # each, since keys are computed later.
    keys = [w.constants(KeyType(name), 'None') for name in node.layer.rngs]
    inputs = [*keys, *s.leaves(node.arranged(value))]
    tables = w.g.tables

    def apply(operands: list[s.Tensor]) -> list[s.Tensor]:
        return w.apply(tables.computing(node), operands)

    def constant(array: Any) -> s.Tensor:
        key = array.dtype, array.shape, array.tobytes()
        return w.constant(tables.constant(key, array))

    outputs = node.origins.outputs_of(inputs, apply, constant)
    result: s.Symbol = in_tuples(node.output, iter(outputs))
    return result
