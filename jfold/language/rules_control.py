# SPDX-License-Identifier: Apache-2.0
"""The rules of dispatch and metrics: types, values and source."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from jfold import blocks as b
from jfold.base.printing import callable_name
from jfold.base.trampoline import Steps
from jfold.language import symbols as s
from jfold.language.inference import Inference, output_type
from jfold.language.lines import Lines, write
from jfold.language.names import INDENT, literal_of
from jfold.language.paths import fail
from jfold.language.typed import TypedUse
from jfold.language.walk import Located, Walk, walk, zero_of
from jfold.language.writing import (
    Branches,
    argument_text,
    as_object,
    recorded_kinds,
    write_recorded,
)
from jfold.types import ObjectType, Type, VoidType

NO_CASE = 'give it a case, or pass `default=`'
MOST_TESTS = 16  # keys compared by `if` and `elif`; more are looked up in a dict


@output_type.register
def _(block: b.OneOf, node: TypedUse, state: Inference) -> Steps[Type]:
    key = pre = None
    if isinstance(block.key_fn, b.Block):
        key = yield state.part(node, block.key_fn, node.input, '.key_fn')
        state.when_head(node, functools.partial(_check_key, key, state), key.output)
    else:
        hint = (
            'put it where values are of Python, choose by one of several values as by '
            '`OneOf(GetItem(1), ...)`, or use jnp.where in a Function'
        )
        state.objects(node, hint)
    input_ = node.input
    if block.pre_block is not None:
        pre = yield state.part(node, block.pre_block, input_, '.pre_block')
        input_ = pre.output
    # A block under several keys is one case, so that its rows are batched together.
    cases: dict[int, TypedUse] = {}  # by the id of the block
    named_blocks = [(f'[{name!r}]', case_block) for name, case_block in block.cases]
    for name, case_block in [*named_blocks, ('.default', block.default)]:
        if case_block is not None and id(case_block) not in cases:
            # A case gets a part of the values only, so its input has its own variable.
            case_input = state.types.alias(input_)
            state.cases[case_input] = input_
            case = yield state.part(node, case_block, case_input, name)
            first = next(iter(cases.values()), case)
            hint = 'give all cases one type'
            state.equal(case, case.output, first.output, 'to give', hint)
            cases[id(case_block)] = case
    node.parts = (key, pre, *cases.values())
    numbers = {block_id: n for n, block_id in enumerate(cases)}
    case_of = {key: numbers[id(target)] for key, target in block.targets.items()}
    # The number of the case of each key, and of the default case or `None`.
    node.facts = case_of, numbers.get(id(block.default))
    return next(iter(cases.values())).output


def _check_key(key: TypedUse, state: Inference, head: Type) -> None:
    key_type = state.types.resolve(head)
    if not key_type.of_objects:
        hint = 'leave the key as it is in the data, as `GetItem(...)` does'
        fail(key, 'to give an object, the key', str(key_type), hint)


@walk.register
def _(block: b.OneOf, node: TypedUse, x: Any, state: Walk) -> Steps[Any]:
    key, pre, *cases = node.parts
    if key is not None:
        chosen = state.as_object((yield state.part(key, x)))
    else:
        argument = state.as_object(x)
        key_value = state.apply(node, block.key_fn, argument, 'what its function takes')
        chosen = Located(key_value, argument.path)
    case_of, default_case = node.facts
    if default_case is None:
        case = state.lookup(node, case_of, chosen, _expected_key, hint=NO_CASE)
    else:  # of any key that is hashable
        what, default = (lambda *_: 'a hashable key'), (default_case,)
        case = state.lookup(node, case_of, chosen, what, default)
    input_ = x if pre is None else (yield state.part(pre, x))
    return (yield state.case(cases[case], input_))


@write.register
def _(block: b.OneOf, node: TypedUse, value: Any, w: Lines) -> Any:
    key, pre, *cases = node.parts
    value = w.held(value)
    if kinds := recorded_kinds(cases):
        return write_recorded(kinds, node, as_object(value), w)
    if key is not None:
        text = as_object(w.part(key, value)).text
    else:
        x = as_object(value).text
        fn = callable_name(block.key_fn).replace('<lambda>', 'choose')
        text = f'{w.g.name_for(fn, block.key_fn)}({argument_text(block.key_fn, x)})'
    if pre is not None:
        value = w.held(w.part(pre, value))
    case_of, default_case = node.facts
    keys_of: dict[int, list[Any]] = {}
    for case_key, n in case_of.items():
        if n != default_case:  # `else` covers the keys of the default case
            keys_of.setdefault(n, []).append(case_key)
    shown = {
        n: [_key_literal(k, block.key_fn, w) for k in keys]
        for n, keys in keys_of.items()
    }
    branches = Branches(node, w, w.tail)

    def add(n: int) -> None:
        # If the key is the `type` of the value, a case with one key knows the class.
        operand, keys = value, keys_of.get(n, [])
        is_known = block.key_fn is type and pre is None and len(keys) == 1
        if isinstance(value, s.Object):
            operand = s.Object(value.text, keys[0] if is_known else None)
        branches.add(cases[n], operand)

    # Keys without a literal, or too many, are looked up in a dict.
    flat = [literal for literals in shown.values() for literal in literals]
    if None in flat or len(flat) > MOST_TESTS:
        number = _write_look_up(text, keys_of, default_case, w)
        _write_numbered(number, range(len(cases)), add, w)
        return branches.result()
    tests, refusal = _case_tests(text, shown, block.key_fn, default_case is not None, w)
    for n, test in tests.items():
        w.line(test)
        add(n)
    if default_case is not None or refusal:
        w.line('else:' if tests else 'if True:')
    if refusal:
        w.line(INDENT + refusal)
    if default_case is not None:
        add(default_case)
    return branches.result()


def _write_look_up(
    text: str, keys_of: dict[int, list[Any]], default_case: int | None, w: Lines
) -> str:
    """Write the look-up of key `text`; return the variable of the number of its case.

    In the source, a key without case raises KeyError, one without hash TypeError.
    """
    table = {key: n for n, keys in keys_of.items() for key in keys}
    name = w.g.name_for('case_of', w.g.names.copied(table))
    number = w.variable('case')
    found = f'[{text}]' if default_case is None else f'.get({text}, {default_case})'
    w.line(f'{number} = {name}{found}')
    return number


def _write_numbered(
    number: str, cases: range, add: Callable[[int], None], w: Lines
) -> None:
    """Write the choice among `cases` by variable `number`; `add` writes a case.

    Of many it is by halves: Python refuses three thousand tests one after another.
    """
    if len(cases) > MOST_TESTS:
        half = len(cases) // 2
        w.line(f'if {number} < {cases[half]}:')
        with w.indented():
            _write_numbered(number, cases[:half], add, w)
        w.line('else:')
        with w.indented():
            _write_numbered(number, cases[half:], add, w)
        return
    for n in cases:
        first, last = n == cases[0], n == cases[-1]
        test = f'{"if" if first else "elif"} {number} == {n}:'
        w.line(('if True:' if first else 'else:') if last else test)
        add(n)


@output_type.register
def _(block: b.Optional, node: TypedUse, state: Inference) -> Steps[Type]:
    state.objects(node, 'put it before any block that gives tensors')
    value = state.types.alias(ObjectType())
    state.cases[value] = node.input
    some: TypedUse = yield state.part(node, block.some_case, value, '.some_case')
    absent = node, block.none_case, '.none_case', some.output, 'to give'
    none = yield state.substitute(*absent, 'give both cases one type')
    node.parts = (some, none)
    return some.output


@walk.register
def _(block: b.Optional, node: TypedUse, x: object, state: Walk) -> Steps[Any]:
    some, none = node.parts
    object_ = state.as_object(x)
    if object_.value is not None:
        return (yield state.case(some, object_))
    if none is None:
        return zero_of(node.output, node, state)
    return (yield state.case(none, None))


@write.register
def _(block: b.Optional, node: TypedUse, value: Any, w: Lines) -> Any:
    x = w.held(as_object(value))
    some, none = node.parts
    branches = Branches(node, w, w.tail)
    w.line(f'if {x.text} is not None:')
    branches.add(some, x)
    w.line('else:')
    branches.add(none, None)
    return branches.result()


output_type.register(b.Metric, lambda block, node, state: VoidType())


@walk.register
def _(block: b.Metric, node: TypedUse, x: object, state: Walk) -> None:
    state.tensors.observe(node, block.name, x)


@write.register
def _(block: b.Metric, node: TypedUse, value: Any, w: Lines) -> Any:
    r = w.g.typing.metric_numbers[block.name]
    if w.g.typing.metrics[block.name][1]:  # it has labels
        value, label = value
        w.g.label(r, as_object(label).text, w)
    w.g.observe(r, [x for x in s.leaves(value) if isinstance(x, s.Tensor)], w)


def _expected_key(table: Mapping[Any, Any], hashable: bool) -> str:
    return f'one of the keys {", ".join(map(repr, itertools.islice(table, 20)))}'


def _case_tests(
    text: str, shown: dict[int, list[Any]], key_fn: Any, has_default: bool, w: Lines
) -> tuple[dict[int, str], str]:
    """Return each case's `if` line, and a line for the `else` that refuses keys.

    Lines that compute the key are written to `w`. The line for `else` raises KeyError;
    before a default case it only refuses keys without a hash. It is '' if not needed.

    Args:
      text: the expression that computes the key.
      shown: the keys of each case, as literals, by the number of the case.
      key_fn: the function or block that gives the key.
      has_default: whether there is a default case, for all other keys.
    """
    flat = [literal for literals in shown.values() for literal in literals]
    # The two cases of `bool` need no variable, only `if` and `else`.
    if key_fn is bool and not has_default and {*flat} == {'True', 'False'}:
        if len(shown) == 1:
            return dict.fromkeys(shown, f'if {text} in (True, False):'), ''
        first = next(iter(shown))
        test = text if shown[first] == ['True'] else f'not {text}'
        return {n: f'if {test}:' if n == first else 'else:' for n in shown}, ''
    key = text if text.isidentifier() else w.variable('kind')
    if key != text:
        w.line(f'{key} = {text}')
    hashable = any(key_fn is fn for fn in (type, len, bool))
    lines: dict[int, str] = {}
    for n, each in shown.items():
        test = _test(key, each, key_fn, hashable)
        lines[n] = f'{"elif" if lines else "if"} {test}:'
    if not has_default:
        return lines, f'raise KeyError({key})'
    refusal = f'hash({key})  # refuses a set, and all that can be no key'
    return lines, '' if hashable else refusal


def _test(key: str, literals: list[Any], key_fn: Any, hashable: bool) -> str:
    """Return source to test if `key` is in `literals`, by a set unless `hashable`."""
    if not hashable:
        # A set refuses keys without a hash, such as an array that equals a literal.
        return f'{key} in {{{", ".join(literals)}}}'
    if len(literals) > 1:
        return f'{key} in ({", ".join(literals)})'
    return f'{key} {"is" if key_fn is type else "=="} {literals[0]}'


def _key_literal(key: object, key_fn: Any, w: Lines) -> str | None:
    """Return the source text of a key, to compare with; `None` if there is none.

    It is a literal, or for the `key_fn` `type` the name of a class.
    """
    if key_fn is not type:
        return literal_of(key)
    return w.g.name_for(key.__name__, key) if isinstance(key, type) else None
