# SPDX-License-Identifier: Apache-2.0
"""Compositions: blocks wired by calling them, by `reads` and by `connect`."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import check, does_not_compile, number, numbers, refuses, subtract, whole

import jfold as jf

total = jf.Sum()
exp, divide = jf.Function(jnp.exp), jf.Function(jnp.divide)


@jf.compose
def softmax(x: Any) -> Any:
    """The shares of the exponentials of a list."""
    powers = jf.Map(exp)(numbers(x))
    return jf.ZipWith(divide)(powers, jf.Broadcast()(total(powers)))


# ---- compose -------------------------------------------------------------------------


def test_a_dag_reads_as_code() -> None:
    @jf.compose
    def attended(x: Any) -> Any:
        weights = softmax(x)
        return total(jf.ZipWith(jnp.multiply)(weights, numbers(x))), jf.Length()(x)

    e = float(np.exp(1.0))
    check(
        (
            attended,
            [[1, 2], [], [7]],
            [((1 + 2 * e) / (1 + e), 2.0), (0.0, 0.0), (7.0, 1.0)],
        )
    )


def test_what_is_read_twice_is_computed_once() -> None:
    @jf.compose
    def block(x: Any) -> Any:
        y = exp(number(x))
        return subtract(y, y), y

    assert jf.compile(block).trace([1, 2], progress=False).nodes.sum() == 4
    check((block, [0, 1], [(0.0, 1.0), (0.0, np.float32(np.e))]))


def test_parameters_are_the_items_of_a_tuple() -> None:
    @jf.compose
    def block(left: Any, right: Any) -> Any:
        return subtract(number(left), number(right))

    def subtracted(left: Any, right: Any) -> Any:
        return subtract(left, right)

    typed = jf.AllOf(number, number >> exp) >> jf.compose(subtracted)
    unused = jf.compose(lambda a, b: number(a))
    check((block, [(5, 3)], [2.0]), (typed, [0], [-1.0]), (unused, [(5, 3)], [5.0]))
    with pytest.raises(jf.InputError, match=r'expected 2 items, got 3 in \(1, 2, 3\)'):
        jf.compile(block).schedule([(1, 2, 3)])


def test_constants_are_read_as_they_are() -> None:
    three = jf.compose(lambda: jf.Function(jnp.add)(np.float32(1), np.float32(2)))
    beside = jf.compose(lambda x: jf.Function(jnp.add)(number(x), three))
    nothing = jf.compose(lambda x: (jf.Void()(x), three())[1])
    check(
        (beside, [1, 2], [4.0, 5.0]),
        (jf.Record({'a': number, 'b': three}), [{'a': 1}], [(1.0, 3.0)]),
        (jf.Record({'a': number, 'b': nothing}), [{'a': 1}], [(1.0, 3.0)]),
        (numbers >> jf.Fold(jnp.add, three), [[1, 2], []], [6.0, 3.0]),
    )


def test_what_passes_its_input_on() -> None:
    same = jf.compose(lambda x: x)
    both = jf.compose(lambda x: (x, (number(x),)))
    sink = jf.compose(lambda x: None)
    items = jf.AllOf(jf.GetItem(0) >> number, jf.GetItem(1))
    check(
        (same >> number, [2], [2.0]),
        (both >> items, [2], [(2.0, (2.0,))]),
        ({'a': number, 'b': same >> number}, [{'a': 1, 'b': 2}], [(1.0, 2.0)]),
        (jf.AllOf(sink, number), [3], [(None, 3.0)]),
    )


def test_a_bool_is_no_key_that_is_an_int() -> None:
    bools = jf.Record([(1, number), (True, number >> jnp.negative)])
    check((jf.compose(lambda x: bools(x)[True]), [[0, 3]], [-3.0]))
    with pytest.raises(TypeError, match=r'expected int keys, .* got True'):
        jf.compile(jf.compose(lambda x: jf.Record((number, number))(x)[True]))


def test_metrics_are_read_by_nothing() -> None:
    @jf.compose
    def block(x: Any) -> Any:
        y = numbers(x)
        jf.Map(jf.Metric('seen'))(y)
        return total(y)

    model = jf.compile(block)
    agree(model, {}, [[1, 2], [], [3]])
    assert block.eval([1, 2])[1]['seen'] == [1, 2]


def test_compositions_hold_compositions() -> None:
    inner = jf.compose(lambda a, b: (subtract(a, b), b))
    outer = jf.compose(
        lambda x: inner(number(x[0]), inner(number(x[1]), number(x[0]))[0])
    )
    check((outer, [(5, 3)], [(7.0, -2.0)]))


def test_long_compositions() -> None:
    @jf.compose
    def block(x: Any) -> Any:
        y = number(x)
        for _ in range(3000):
            y = jf.Identity()(y)
        return y

    check((block, [2], [2.0]))


# ---- recursive -----------------------------------------------------------------------


def test_recursion_by_a_decorator() -> None:
    @jf.recursive
    def tree(tree: Any) -> Any:
        @jf.compose
        def pair(left: Any, right: Any) -> Any:
            return subtract(tree(left), tree(right))

        return jf.OneOf(type, {int: number, tuple: pair})

    check((tree, [(1, (2, 3)), 4], [2.0, 4.0]))
    assert repr(tree) == 'tree()'


def test_recursion_of_a_composition() -> None:
    @jf.recursive(output_type='float32')
    def chain(chain: Any, item: Any, rest: Any) -> Any:
        further = jf.Optional(chain(), np.float32(0))
        return subtract(number(item), further(rest))

    check((chain, [(1, (2, (3, None))), (4, None)], [2.0, 4.0]))
    deep = None
    for _ in range(3000):
        deep = 1, deep
    corpus = jf.compile(chain).trace([deep], progress=False)
    assert corpus.nodes.sum() == 3000


# ---- Composition ---------------------------------------------------------------------


def test_reads_and_items() -> None:
    block = jf.Composition(name='block')
    with block.scope() as entered:
        assert entered is block
        record = jf.Record({'b': number, 'a': jf.Vector(1)})
        record.reads(block.input)
        difference = jf.Function(lambda a, b: a - b).reads(record['b'], record['a'])
        block.output.reads(difference, record['b'], jf.Zeros(2))
    check((block, [{'a': [1], 'b': 2}], [([1.0], 2.0, [0.0, 0.0])]))
    assert repr(block) == (
        "block(x1 = x0 >> Record({'b': Scalar('float32'), 'a': Vector(1, 'float32')}); "
        'x2 = x1 >> GetItem(0); x3 = x1 >> GetItem(1); x4 = (x2, x3) >> '
        'Function(function); x5 = x1 >> GetItem(0); x6 = Zeros(float32[2]); '
        '(x4, x5, x6))'
    )


def test_connect_in_any_order() -> None:
    leaf, one, two = jf.Scalar(), jf.Function(jnp.tanh), jf.Function(jnp.exp)
    block = jf.Composition([leaf, one, two])
    block.connect(one, two)
    block.connect(leaf, one)
    block.connect(block.input, leaf)
    block.connect((two, leaf), block.output)
    check((block, [0, 1], [(1.0, 0.0), (np.float32(np.exp(np.tanh(1))), 1.0)]))


def test_printing_does_not_finish_it() -> None:
    block = jf.Composition()
    with block.scope():
        wire = number(block.input)
        assert repr(block) == '<Composition, not finished>'
        assert repr(wire) == "<output of Scalar('float32')>"
        assert repr(block.input) == '<the input>'
        assert repr(block.output) == '<the output>'
        block.output.reads(wire)
    check((block, [1], [1.0]))


# ---- mistakes ------------------------------------------------------------------------


def test_operators_are_functions_of_both() -> None:
    cases: list[tuple[Any, Any, Any]] = [
        (lambda x: number(x) + number(x), 2, 4.0),
        (lambda x: twice(number(x)), 3, 9.0),
        (lambda x: (1 - number(x)) * 2 / (number(x) + 1) ** 2, 3, -0.25),
        (lambda x: 7 // number(x) + 7 % number(x), 3, 3.0),
        (lambda x: abs(-number(x)), 3, 3.0),
        (lambda x: jf.Vector(2)(x) @ jf.Vector(2)(x), [1, 2], 5.0),
        (lambda x: number(x) + jf.FromTensor(np.ones(2, 'float32')), 2, [3, 3]),
        (lambda x: np.float32(3) * number(x), 2, 6.0),
        (lambda x: whole(x) + 1, 2, np.int32(3)),
        (lambda x: whole(x) + 1.5, 2, np.float32(3.5)),
        (lambda x: 1 - whole(x) + True, 2, np.int32(0)),
        (lambda x: jf.Scalar('bfloat16')(x) * 2.0, 2, jnp.bfloat16(4)),
        (lambda x: (number(x) < 3, number(x) >= 3), 2, (True, False)),
        (lambda x: (number(x) == 2, number(x) != 2), 2, (True, False)),
        (lambda x: sum([number(x), number(x)]), 2, 4.0),
    ]
    check(*((jf.compose(fn), [example], [want]) for fn, example, want in cases))


def twice(x: Any) -> Any:
    return x * x


def test_an_operator_with_a_number_is_one_operation() -> None:
    steps = jf.compose(lambda x: ((whole(x) + 1) + 1) + 1)
    assert len(jf.compile(steps).program.layers) == 1
    others = jf.compose(lambda x: ((whole(x) + 1) + 1.0) + True)
    assert len(jf.compile(others).program.layers) == 3


def test_items_whose_number_is_known() -> None:
    def last(x: Any) -> Any:
        cell = jf.RNN(lambda a, h: (a + h, a * h), jf.FromTensor(np.float32(1)))
        _, state = (jf.Identity() >> cell)(jf.Map(number)(x))
        return state

    def both(x: Any) -> Any:
        left, right = jf.Record((number, number))(x)
        first, second = jf.AllOf(exp, jf.Identity())(left)
        inner, _ = jf.compose(lambda x: (x, x))(second)
        return first - right * inner

    check((jf.compose(last), [[2, 3]], [6.0]), (jf.compose(both), [(0, 2)], [1.0]))


WHAT = "<output of Scalar('float32')>: expected "
UNKNOWN = ', though its value is not known yet; '
CALLED = (
    f'{WHAT}a block to be called on it, got {{}}{UNKNOWN}write `jf.Function(fn)(x)` '
    'for `fn(x)`'
)
ASKED = f'{WHAT}blocks and operators on it, got a question for {{}}{UNKNOWN}'
BESIDE = (
    f'{WHAT}a wire or a number beside it, got {{}}; write `jf.FromTensor(array)` for a '
    'constant, and a Function with `init=` for what is trained'
)


def unpacked(x: Any) -> Any:
    left, _ = x
    return left


@pytest.mark.parametrize(
    ('function', 'error', 'message'),
    [
        (lambda x: x or None, TypeError, ASKED.format('its truth')),
        (lambda x: max(x, x), TypeError, 'got a question for its truth'),
        (unpacked, TypeError, ASKED.format('its items')),
        (len, TypeError, ASKED.format('its length')),
        (lambda x: x.left, AttributeError, ASKED.format('`.left`')),
        (lambda x: x.sum(), AttributeError, ASKED.format('`.sum`')),
        (lambda x: x.__left__, AttributeError, '__left__'),
        (lambda x: np.ones(2) * x, TypeError, f'{WHAT}a wire or a number beside it'),
        (lambda x: x + 'a', TypeError, BESIDE.format("'a'")),
        (lambda x: x == None, TypeError, BESIDE.format('None')),  # noqa: E711
        (lambda x: [1] - x, TypeError, BESIDE.format('[1] (list)')),
        (np.sin, TypeError, CALLED.format('`np.sin`')),
        (np.asarray, TypeError, CALLED.format('a function of NumPy')),
        (jnp.sin, ValueError, CALLED.format('a function or a module')),
        (lambda x: jnp.ones(2) * x, ValueError, WHAT),
        (lambda x: jnp.concatenate([x, x]), ValueError, WHAT),
    ],
)
def test_what_a_wire_refuses(
    function: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):  # JAX adds a note
        jf.compose(lambda x: function(number(x)))


def asks_for_none(x: Any) -> Any:
    known = x is None
    return number(x) if known else None


@pytest.mark.parametrize(
    ('function', 'question'),
    [
        (lambda x: number(x) if x is not None else None, 'x is None'),
        (lambda x: None if x is None else number(x), 'x is None'),
        (asks_for_none, 'x is None'),
        (lambda x, y: number(x) if isinstance(y, int) else None, 'isinstance(y...)'),
        (lambda x: number(x) if type(x) is int else None, 'type(x...)'),
        (lambda x: number(x) if hasattr(x, 'y') else None, 'hasattr(x...)'),
    ],
)
def test_what_python_would_answer(function: Any, question: str) -> None:
    told = (
        f'`{function.__name__}`: expected no question that Python answers before there '
        f'are values, got `{question}`; use OneOf to choose by a class, Optional for '
        'what may be `None`'
    )
    with refuses(told):
        jf.compose(function)


def test_questions_for_other_values() -> None:
    def by_default(x: Any, name: Any = None) -> Any:
        inner = jf.Function(lambda x: x if x is not None else -x)
        return inner(number(x)) if name is None else None

    def changed(x: Any) -> Any:
        x = None
        return exp(jf.Zeros([])()) if x is None else x

    check((jf.compose(by_default), [2], [2.0]), (jf.compose(changed), [2], [1.0]))


def test_what_can_be_called() -> None:
    with refuses(
        "Scalar('float32'): expected to be wired within `jf.compose` or the scope of a "
        'Composition, got (3) outside of these; `eval` runs it on data'
    ):
        number(3)
    with refuses(
        'expected a block, a callable, an array, or a dict, list or tuple of blocks, '
        'got 1.0; write `FromTensor(np.float32(1.0))`, or `Zeros([])` for a zero'
    ):
        jf.compose(lambda x: exp(1.0))
    with refuses(
        'expected a wire or a (nested) tuple of wires, got '
        "{'x': <output of Scalar('float32')>}; leave its keys out, as in `return x, y`"
    ):
        jf.compose(lambda x: {'x': number(x)})
    with pytest.raises(TypeError, match='expected a fixed number of parameters'):
        jf.compose(lambda *x: x)
    with pytest.raises(TypeError, match='not iterable'):
        list(number)


def test_wires_stay_in_their_composition() -> None:
    kept: list[Any] = []

    def outer(x: Any) -> Any:
        y = number(x)
        kept.append(y)
        return jf.compose(lambda z: subtract(y, number(z)))(x)

    with refuses(
        "<output of Scalar('float32')>: expected a value of this composition, got one "
        'of another; pass it on as an argument'
    ):
        jf.compose(outer)
    block = jf.compose(lambda x: (kept.append(x), number(x))[1])
    with pytest.raises(ValueError, match='still being wired, got one that is finished'):
        kept[-1][0]
    with pytest.raises(ValueError, match='still being wired, got one that is finished'):
        with block.scope():
            number(block.input)


def test_what_connect_refuses() -> None:
    one, two = jf.Function(jnp.tanh), jf.Function(jnp.exp)
    block = jf.Composition()
    block.connect(one, two)
    wired = 'Function(exp): expected a block that is not wired yet, got one that is; '
    with refuses(
        wired + 'call it on wires, which may be done any number of times', ValueError
    ):
        block.connect(one, two)
    with refuses('expected something to read, got the output', ValueError):
        block.connect(block.output, one)
    with refuses(
        'expected a block to read Function(tanh), got <the input>', ValueError
    ):
        block.connect(one, block.input)
    block.connect(two, one)
    block.connect(one, block.output)
    with refuses(
        'expected an output that reads nothing yet, got one that does', ValueError
    ):
        block.connect(two, block.output)
    for _ in range(2):
        with pytest.raises(
            ValueError, match='got some that read each other in a cycle'
        ):
            jf.compile(number >> block)
    some = jf.Composition([one])
    with refuses(
        '<Composition, not finished>: expected blocks among the children, got '
        'Function(exp)',
        ValueError,
    ):
        some.connect(one, two)


def test_items_of_a_record_by_their_keys() -> None:
    @jf.compose
    def items(x: Any) -> Any:
        made = jf.Record([('b', number), ('a', jf.Vector(1)), (7, number)])(x)
        return made['b'], made['a'], made[1], made[7]

    check((items, [{'a': [1], 'b': 2, 7: 3}], [(2.0, [1.0], [1.0], 3.0)]))


def test_what_compile_refuses() -> None:
    unread = jf.compose(lambda x: (jf.Broadcast()(jf.Void()(x)), number(x))[1])
    assert unread.eval(3) == jf.compile(unread).eval(3) == 3
    does_not_compile(
        jf.compose(lambda x: (jf.Broadcast()(number(x)), number(x))[1]),
        'compose.x2.Broadcast(): expected a result that something reads, got '
        '[float32[] ...], read by nothing; return it, or drop it by Void()',
    )
    does_not_compile(
        jf.compose(lambda x: (exp(number(x)), number(x))[1]),
        'compose.x2.Function(exp): expected a result that something reads, got '
        'float32[], read by nothing; return it, or drop it by Void()',
    )
    does_not_compile(
        jf.compose(lambda x: subtract(number, number(x))),
        "compose.x2.Scalar('float32'): expected an object, got void; use Zeros or "
        'FromTensor where nothing is read',
    )


def test_numbers_of_numpy_on_the_left() -> None:
    """NumPy gives them to the operators of a wire as arrays without axes."""
    for make, want in (
        (lambda x: np.float32(2) < x, True),
        (lambda x: np.float32(2) - x, -1.0),
        (lambda x: x >= np.float32(4), False),
    ):
        block = jf.compose(lambda x, make=make: make(jf.Scalar()(x)))
        assert block.eval(3).item() == want
