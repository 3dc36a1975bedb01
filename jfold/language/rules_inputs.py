# SPDX-License-Identifier: Apache-2.0
"""The rules of blocks that read data and of constants: types, values and source."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfold import blocks as b
from jfold.base.printing import callable_name
from jfold.language import symbols as s
from jfold.language.data_paths import End
from jfold.language.function_layers import LazyCalls
from jfold.language.inference import Inference, check_dtype, check_zeros, output_type
from jfold.language.lines import Lines, write
from jfold.language.paths import fail
from jfold.language.typed import TypedUse
from jfold.language.unification import Mismatch
from jfold.language.walk import Located, Misfit, Walk, walk, zero_of
from jfold.language.writing import (
    argument_text,
    as_object,
    in_variable,
    literal,
    write_lookup,
    zeros_written,
)
from jfold.tracing.strict_reading import Numbers
from jfold.types import ObjectType, Type, VoidType

NO_ENTRY = 'pass `default=` for what a table lacks'
NO_CLASS = 'pass `strict=False` to make zeros of others'


@output_type.register
def _(block: b.Tensor | b.OneHotFromList, node: TypedUse, state: Inference) -> Type:
    state.objects(node, 'put it before any block that gives tensors')
    check_dtype(node, block.type)
    return block.type


@walk.register
def _(block: b.Tensor, node: TypedUse, x: object, state: Walk) -> object:
    return state.tensors.tensor(node, state.as_object(x), block.type, block.below)


@write.register(b.Tensor)
def _(block: b.Tensor, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    return w.constants(block.type, as_object(value).text, block.below, node)


@output_type.register
def _(block: b.InputTransform, node: TypedUse, state: Inference) -> Type:
    state.objects(node, 'use Function to compute with tensors')
    return ObjectType()


@walk.register
def _(block: b.InputTransform, node: TypedUse, x: object, state: Walk) -> Located:
    argument, fn, what = state.as_object(x), block.fn, 'what its function takes'
    if isinstance(fn, LazyCalls):  # errors about the calls name lines of the function
        try:
            result = state.apply(node, fn.placed, argument, what)
        except Misfit as error:
            error.message += fn.line_of(error.__cause__)
            raise
        path = argument.path
        end = End(path, '', path.length + 1, fn, argument.value)
        return Located(None, end).step(result, '')
    if isinstance(fn, Mapping):
        default = block.default
        result = state.lookup(node, fn, argument, _expected_key, default, NO_ENTRY)
    else:
        result = state.apply(node, fn, argument, what)
    return Located(result, argument.path)


@write.register(b.InputTransform)
def _(block: b.InputTransform, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    x = as_object(value).text
    if isinstance(block.fn, LazyCalls):
        fn = w.g.name_for(block.fn.__name__, block.fn)
        w.g.runs_lazy = True
        return in_variable(f'{fn}({argument_text(block.fn, x)}, calls)', w)
    if not isinstance(block.fn, Mapping):
        name = callable_name(block.fn).replace('<lambda>', 'function')
        fn = w.g.name_for(name, block.fn)
        return in_variable(f'{fn}({argument_text(block.fn, x)})', w)
    table = w.g.name_for('table', w.g.names.copied(block.fn))
    return write_lookup(table, x, [literal(entry, w) for entry in block.default], w)


@walk.register
def _(block: b.OneHotFromList, node: TypedUse, x: object, state: Walk) -> object:
    numbers = {item: number for number, item in enumerate(block.items)}
    default, item = () if block.strict else (-1,), state.as_object(x)
    number = state.lookup(node, numbers, item, _expected_key, default, NO_CLASS)
    row = [k == number for k in range(len(numbers))]
    return state.tensors.constant(node, np.array(row, block.type.dtype))


@write.register(b.OneHotFromList)
def _(block: b.OneHotFromList, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    tables, size = w.g.tables, len(block.items)
    # Row k is a window of one line [0 ... 0 1 0 ... 0]: 2 n - 1 numbers, not n * n.
    line = np.zeros(2 * size - 1, block.type.dtype)
    line[size - 1] = 1
    line.flags.writeable = False
    # The source looks an item up in a dict: to the row index of its constant.
    table = Numbers()
    for k, item in enumerate(block.items):
        row = line[size - 1 - k : 2 * size - 1 - k]
        index = tables.constant((block.type, 'one hot', k), row)
        w.g.constant_name(index, 'ONE_HOT')
        table[item] = tables.places[index]
    rows_by_item, default = w.g.name_for('one_hot', table), list[str]()
    if not block.strict:
        default = [w.g.constant_name(tables.zeros(block.type), 'ZEROS')]
    vector = write_lookup(rows_by_item, as_object(value).text, default, w)
    return s.Tensor(vector.text, tables.type_number(block.type))


@output_type.register
def _(block: b.FromTensor | b.Zeros, node: TypedUse, state: Inference) -> Type:
    try:
        state.types.unify(node.input, VoidType())
    except Mismatch:
        got = state.types.resolve(node.input)
        fail(node, 'no input', str(got), 'drop it first, by Void()')
    check_zeros(node, block.type, 'write a type of tensors, such as `Zeros([3])`')
    check_dtype(node, block.type)
    return block.type


@walk.register
def _(block: b.FromTensor, node: TypedUse, x: None, state: Walk) -> object:
    return state.tensors.constant(node, block.value)


@write.register(b.FromTensor)
def _(block: b.FromTensor, node: TypedUse, value: s.Symbol, w: Lines) -> s.Symbol:
    return w.constant(w.g.tables.constant(id(block.value), block.value))


walk.register(b.Zeros, lambda block, node, x, state: zero_of(block.type, node, state))
write.register(b.Zeros, lambda block, node, value, w: zeros_written(block.type, w))

output_type.register(b.Void, lambda block, node, state: VoidType())
walk.register(b.Void, lambda block, node, x, state: None)
write.register(b.Void, lambda block, node, value, w: None)


def _expected_key(table: Mapping[Any, Any], hashable: bool) -> str:
    if not hashable:
        return 'a hashable value, to look it up'
    first = ', '.join(map(reprlib.repr, itertools.islice(table, 5)))
    more = f' and {len(table) - 5:,} more' if len(table) > 5 else ''
    return f'one of the keys {first}{more}'
