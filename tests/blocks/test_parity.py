# SPDX-License-Identifier: Apache-2.0
"""Each block of TensorFlow Fold: its types, values, gradients and errors.

What is expected stands here as Fold has it, but for the faults that are mended. Numbers
go through a function with a parameter of 1, so values are plain and gradients are not.
Errors are those that the tables of `mistakes` lack.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import agree
from checking import add, does_not_compile, refuses, same, subtract

import jfold as jf

ROOT = Path(__file__).parents[2]

# All that Fold calls a block or a layer.
NAMES = """
    Tensor Scalar Vector InputTransform SerializedMessageToTree OneHot OneHotFromList
    Optional Composition Pipe Record AllOf FromTensor Function Concat Zeros Map Fold RNN
    Reduce Sum Min Max Mean Broadcast Zip ZipWith NGrams Nth GetItem Length Slice
    ForwardDeclaration OneOf Metric Identity Void FC Embedding FractalNet ScopedLayer
""".split()
# All else that it makes public.
OTHERS = """
    TensorType VoidType PyObjectType TupleType SequenceType BroadcastSequenceType
    Compiler eval max_depth Plan TrainPlan EvalPlan InferPlan define_plan_flags
    plan_default_params convert_to_block convert_to_type canonicalize_type
    EdibleIterator group_by_batches epochs parse_spec build_optimizer_from_params
    create_variable_scope IOBase Layer ResultType TypeShape LoomOp PassThroughLoomOp
    Loom Weaver for_each_terminal terminal_types flatten unflatten size input_type
    output_type set_input_type set_output_type infer_output_type reads connect scope
    resolve_to build_feed_dict build_loom_inputs build_loom_input_batched
    multiprocessing_pool init_loom is_loom_initialized input_tensor loom_input_tensor
    output_tensors metric_tensors parallel_iterations back_prop swap_memory
""".split()
# What takes its place is in docs/from-fold.md.
NOT_HERE = {'SerializedMessageToTree', 'FractalNet', 'ScopedLayer'}

scaled = jf.Function(operator.mul, lambda key: jnp.ones(()), name='scaled')
number = jf.Scalar() >> scaled
numbers = jf.Map(number)
integer = jf.Scalar('int32')
plus = jf.Record((jf.Identity(), number)) >> add  # of a state and an item
pairs = jf.Record((number, number))
lists = jf.Record((numbers, numbers))
mixed = jf.Record((numbers, number))
chosen = jf.Record((numbers, jf.Identity())) >> jf.Nth()
counting = jf.AllOf(add, jf.GetItem(0))  # a running sum; its state is the item before
counted = jf.RNN(counting, initial_state_from_input=True)
negative = jf.OneOf(lambda x: x < 0, {True: number, False: jf.Zeros([])})
tree = jf.ForwardDeclaration()
tree.resolve_to(jf.OneOf(type, {int: number, tuple: (tree(), tree()) >> subtract}))

wired = jf.Composition()
with wired.scope():
    left, right = jf.Scalar().reads(wired.input[0]), number(wired.input['b'])
    wired.output.reads(subtract.reads(left, right), left)


def vector(*items: float) -> Any:
    return np.float32(items)


# Fold's golden values of pairwise rounds of subtraction over 1, 2, ... n.
ROUNDS = [0, 1, -1, -4, 0, -5, 1, 8, 0]

# By family and name, a block upon what gives it its input: examples, ordinary ones and
# those at the edge of what it takes, with what becomes of them.
Cases = dict[str, tuple[jf.Block, list[tuple[Any, Any]]]]
TENSORS: Cases = {
    'Tensor': (
        jf.Tensor([2, 1], 'int32'),
        [
            ([[1], [2]], np.int32([[1], [2]])),
            (np.ones((2, 1), int), np.int32([[1]] * 2)),
        ],
    ),
    'Scalar': (number, [(2.5, 2.5), (3, 3.0), (True, 1.0), (np.float32(2), 2.0)]),
    'Vector': (
        jf.Vector(2) >> scaled,
        [((1, 2), vector(1, 2)), (np.ones(2), vector(1, 1))],
    ),
    'InputTransform': (jf.InputTransform(len) >> number, [('abc', 3.0), ('', 0.0)]),
    'OneHot': (
        jf.OneHot(-1, 2) >> scaled,
        [(int(k), vector(*row)) for k, row in zip((-1, 0, 1), np.eye(3), strict=True)]
        + [(True, vector(0, 0, 1)), (1.0, vector(0, 0, 1))],
    ),
    'OneHotFromList': (
        jf.OneHotFromList('ab', strict=False) >> scaled,
        [('b', vector(0, 1)), ('?', vector(0, 0))],
    ),
    'FromTensor': (
        jf.FromTensor(vector(1, 2)) >> scaled,
        [('anything', vector(1, 2)), (None, vector(1, 2))],
    ),
    'Function': (pairs >> subtract, [((5, 3), 2.0), ((0, 0), 0.0)]),
    'Concat': (
        jf.Record((number, jf.Vector(2) >> scaled)) >> jf.Concat(),
        [((1, [2, 3]), vector(1, 2, 3)), ((0, [0, 0]), vector(0, 0, 0))],
    ),
    'Zeros': (
        jf.Zeros((2, 'int32')),
        [(x, (vector(0, 0), np.int32(0))) for x in ('anything', None)],
    ),
}
COMPOSITION: Cases = {
    'Identity': (number >> jf.Identity(), [(1, 1.0), (0, 0.0)]),
    'Void': (jf.AllOf(number >> jf.Void(), number), [(3, (None, 3.0))]),
    'Pipe': (jf.Pipe(number, scaled, jf.Identity()), [(2, 2.0), (0, 0.0)]),
    'Record': (
        jf.Record({'b': number, 'a': integer}),
        [
            ({'a': 1, 'b': 2, 'c': 3}, (2.0, np.int32(1))),
            (OrderedDict(b=0, a=1), (0.0, np.int32(1))),
        ],
    ),
    'Record of pairs': (
        jf.Record([('b', number), ('a', jf.Zeros('int32'))]),
        [({'b': 2}, (2.0, np.int32(0))), ({'b': 0, 'a': 5}, (0.0, np.int32(0)))],
    ),
    'AllOf': (jf.AllOf(number, jf.Zeros([]), number), [(2, (2.0, 0.0, 2.0))]),
    'Composition': (wired, [({0: 5, 'b': 3}, (2.0, 5.0))]),
    'ForwardDeclaration': (tree(), [(((5, 3), 1), 1.0), (4, 4.0)]),
    'OneOf': (negative, [(-2, -2.0), (2, 0.0), (0, 0.0)]),
    'OneOf of a tuple of cases': (
        jf.OneOf(jf.GetItem(0), (number, jf.Zeros([])), pre_block=jf.GetItem(1)),
        [
            ((k, 7), x)
            for k, x in ((0, 7.0), (1, 0.0), (-1, 0.0), (-2, 7.0), (False, 7.0))
        ],
    ),
    'Optional': (jf.Optional(number), [(2, 2.0), (None, 0.0), (0, 0.0)]),
    'Metric': (
        jf.AllOf(number, number >> jf.Metric('seen')) >> jf.GetItem(0),
        [(2, (2.0, {'seen': [2.0]})), (0, (0.0, {'seen': [0.0]}))],
    ),
    'FC': (
        jf.Vector(2) >> jf.layers.FC(3, activation=None),
        [([0, 0], vector(0, 0, 0))],
    ),
    'Embedding': (
        integer >> jf.layers.Embed(2, 1, table=[[5.0], [7.0]], outside='modulo'),
        [(k, vector(x)) for k, x in ((0, 5), (1, 7), (3, 7), (-1, 7))],
    ),
}
SEQUENCES: Cases = {
    'Map': (numbers, [([1, 2], [1.0, 2.0]), ([], []), (vector(3), [3.0]), ((), [])]),
    'Fold': (jf.Fold(plus, jf.Zeros([])), [([1, 2, 3], 6.0), ([], 0.0)]),
    'RNN': (
        numbers >> jf.RNN(counting, initial_state=jf.Zeros([])),
        [([1, 2, 4], ([1.0, 3.0, 6.0], 4.0)), ([], ([], 0.0))],
    ),
    'RNN from a state': (
        mixed >> counted,
        [(([1, 2], 10), ([11.0, 3.0], 2.0)), (([], 10), ([], 10.0))],
    ),
    'Reduce': (
        numbers >> jf.Reduce(subtract),
        [([*range(1, n + 1)], float(x)) for n, x in enumerate(ROUNDS)],
    ),
    'Sum': (numbers >> jf.Sum(), [([1, 2], 3.0), ([], 0.0)]),
    'Min': (numbers >> jf.Min(), [([3, 2], 2.0), ([], 0.0)]),
    'Max': (numbers >> jf.Max(), [([-3, -2], -2.0), ([], 0.0)]),
    'Mean': (numbers >> jf.Mean(), [([1, 3], 2.0), ([], 0.0)]),
    'Broadcast': (
        jf.Record((numbers, number >> jf.Broadcast())) >> jf.Zip(),
        [(([1, 2], 5), [(1.0, 5.0), (2.0, 5.0)]), (([], 5), [])],
    ),
    'Zip': (
        lists >> jf.Zip(),
        [(([1, 2], [3, 4, 5]), [(1.0, 3.0), (2.0, 4.0)]), (([], [1]), [])],
    ),
    'ZipWith': (
        lists >> jf.ZipWith(subtract),
        [(([5, 6], [1]), [4.0]), (([1], []), [])],
    ),
    'NGrams': (
        numbers >> jf.NGrams(2),
        [([1, 2, 3], [(1.0, 2.0), (2.0, 3.0)]), ([1], []), ([], [])],
    ),
    'Nth': (
        chosen,
        [(([5, 6], 1), 6.0), (([5, 6], -2), 5.0), (([5], np.int8(0)), 5.0)],
    ),
    'GetItem': (jf.GetItem('a') >> number, [({'a': 1}, 1.0), ({'a': 0, 'b': 1}, 0.0)]),
    'GetItem of a sequence': (numbers >> jf.GetItem(-1), [([1, 2], 2.0), ([3], 3.0)]),
    'GetItem of a tensor': (
        jf.Vector(3) >> scaled >> jf.GetItem(1),
        [([1, 2, 3], 2.0)],
    ),
    'Slice': (
        numbers >> jf.Slice(start=1, step=2),
        [([1, 2, 3, 4], [2.0, 4.0]), ([1], []), ([], [])],
    ),
    'Length': (jf.Length(), [([1, 2], 2.0), ([], 0.0), ((), 0.0)]),
}
FAMILIES = [TENSORS, COMPOSITION, SEQUENCES]
ROWS = {name: row for family in FAMILIES for name, row in family.items()}

# What a block alone takes and gives; 'None' where what stands around it decides.
TYPES: dict[tuple[str, str], list[jf.Block]] = {
    ('object', 'object'): [jf.InputTransform(len)],
    ('object', 'int32[2,1]'): [jf.Tensor([2, 1], 'int32')],
    ('object', 'float32[2]'): [jf.Vector(2), jf.OneHotFromList('ab', strict=False)],
    ('object', 'float32[3]'): [jf.OneHot(-1, 2)],
    ('object', 'float32[]'): [
        jf.Scalar(),
        jf.Pipe(number, scaled),
        tree(),
        negative,
        jf.Optional(number),
    ],
    ('object', '(float32[], float32[])'): [jf.AllOf(number, jf.Zeros([]))],
    ('void', 'void'): [jf.Void()],
    ('void', 'float32[2]'): [jf.FromTensor(vector(1, 2))],
    ('void', '(float32[2], int32[])'): [jf.Zeros((2, 'int32'))],
    ('None', 'void'): [jf.Metric('seen')],
    ('None', 'object'): [jf.Identity(), jf.GetItem('a'), jf.Slice(start=1, step=2)],
    ('None', 'float32[]'): [
        jf.Length(),
        jf.Fold(plus, jf.Zeros([])),
        jf.OneOf(jf.GetItem(0), (number,), pre_block=jf.GetItem(1)),
    ],
    ('None', '(float32[], float32[])'): [wired],
    ('None', '(float32[], int32[])'): [jf.Record({'b': number, 'a': integer})],
    ('None', '[float32[]]'): [numbers],
    ('None', '[object ...]'): [jf.Broadcast()],
    ('None', '[(object, object)]'): [jf.NGrams(2)],
    ('None', 'None'): [
        *(subtract, jf.Concat(), jf.layers.FC(3), jf.layers.Embed(2, 1)),
        *(jf.RNN(counting), counted, jf.Zip(), jf.ZipWith(subtract), jf.Nth()),
        *(jf.Reduce(subtract), jf.Sum(), jf.Min(), jf.Max(), jf.Mean()),
    ],
}


def test_every_block_has_a_row() -> None:
    assert {name.partition(' ')[0] for name in ROWS} == {*NAMES} - NOT_HERE


def test_the_way_from_fold_has_every_name() -> None:
    text = (ROOT / 'docs' / 'from-fold.md').read_text(encoding='utf8')
    shown = set(re.findall(r'\w+', ' '.join(re.findall(r'`([^`]+)`', text))))
    assert {*NAMES, *OTHERS} <= shown


@pytest.mark.parametrize('types', TYPES, ids=' to '.join)
def test_types(types: tuple[str, str]) -> None:
    blocks = TYPES[types]
    printed = [(x, str(x.input_type), str(x.output_type)) for x in blocks]
    assert printed == [(x, *types) for x in blocks]


@pytest.mark.parametrize('name', ROWS)
def test_values(name: str) -> None:
    block, values = ROWS[name]
    params = jf.compile(block).init(jax.random.key(0))
    for example, want in values:
        same(block.eval(example, params), want)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    'family', FAMILIES, ids=['tensors', 'composition', 'sequences']
)
def test_compiled_values_and_gradients_are_those_of_the_twin(family: Cases) -> None:
    model = jf.compile(jf.Record(tuple(block for block, _ in family.values())))
    examples = [[x for x, _ in values] for _, values in family.values()]
    size = max(map(len, examples))
    columns = [list(itertools.islice(itertools.cycle(x), size)) for x in examples]
    batch = list(zip(*columns, strict=True))
    agree(model, model.init(jax.random.key(0)), batch)


@pytest.mark.parametrize(
    ('block', 'message'),
    [
        (
            pairs >> jf.Record((scaled,)),
            'Pipe[1].Record({0: Function(scaled)}): expected at most 1 item, got '
            '(float32[], float32[]); a record of `{0: ..., 2: ...}` reads some of them '
            'alone',
        ),
        (
            jf.Scalar() >> jf.layers.FC(3),
            'Pipe[1].Function(fc): expected to run on inputs (float32[]), got '
            'TypeError: expected a vector of floats, got float32[]; read it by '
            '`Vector(1)`, or make it one by `x[None]`',
        ),
        (
            jf.Composition(),
            'Composition(): expected a result of tensors, or a Metric, got void; end '
            'with tensors, or collect them by a Metric',
        ),
        (
            jf.Optional(number, number),
            "Optional.none_case.Pipe[0].Scalar('float32'): expected an object, got "
            'void; use Zeros or FromTensor where nothing is read',
        ),
        (
            jf.Zeros(jf.BroadcastType([])),
            'Zeros([float32[] ...]): expected a type that has zeros: tensors, tuples, '
            'sequences, got [float32[] ...]; write a type of tensors, such as '
            '`Zeros([3])`',
        ),
        (
            jf.Fold(jf.AllOf(plus, plus), jf.Zeros([])),
            "Fold.combine.AllOf(Record({0: Identity(), 1: Scalar('float32') >> "
            'Func...: expected to give its state, float32[], got (float32[], '
            'float32[]); take the state of what `combine` gives by GetItem, or use RNN',
        ),
        (
            numbers >> jf.RNN(add, jf.Zeros([])),
            'Pipe[1].RNN.cell.Function(add): expected to give an output and a state, '
            '(?, float32[]), got float32[]; return a pair, of which the second is of '
            'the type of the initial state',
        ),
        (
            numbers >> counted,
            'Pipe[1].RNN(AllOf(Function(add), GetItem(0)), initial_state_from_...: '
            'expected a pair of a sequence and a state, (?, ?), got [float32[]]; give '
            'both, as by a Record',
        ),
        (
            jf.Record((number, jf.Vector(2))) >> jf.Reduce(add),
            'Pipe[1].Reduce(Function(add)): expected items of one type, float32[], got '
            'float32[2]; make them alike by a Record, which has a block for each item',
        ),
        (
            numbers >> jf.Reduce(jf.GetItem(0), number),
            "Pipe[1].Reduce.default.Pipe[0].Scalar('float32'): expected an object, got "
            'void; use Zeros or FromTensor where nothing is read',
        ),
        (
            number >> jf.Broadcast(),
            "Scalar('float32') >> Function(scaled) >> Broadcast(): expected a result "
            'of tensors, in tuples and sequences, got [float32[] ...]; put it beside '
            'a sequence, by ZipWith',
        ),
        (
            number >> jf.Broadcast() >> jf.Length(),
            "Pipe[3].Length('float32'): expected a sequence, a tuple or an object, got "
            '[float32[] ...]; put it beside a sequence, by ZipWith',
        ),
        (
            number >> jf.Broadcast() >> jf.Sum(),
            'Pipe[3].Sum(): expected a sequence, a non-empty tuple of one type, or an '
            'object, got [float32[] ...]; put it beside a sequence, by ZipWith',
        ),
        (
            number >> jf.Zip(),
            'Pipe[2].Zip(): expected a tuple of sequences, got float32[]',
        ),
        (
            numbers >> jf.ZipWith(subtract),
            'Pipe[1].Zip(): expected a tuple of sequences, got [float32[]]',
        ),
        (
            mixed >> jf.Zip(),
            'Pipe[1].Zip(): expected a tuple of sequences, got float32[] among its '
            'parts',
        ),
        (
            number >> jf.NGrams(2),
            'Pipe[2].NGrams(2): expected a sequence, a non-empty tuple of one type, or '
            'an object, got float32[]; use a Function for what is in one tensor, and '
            'Map for a list of the data',
        ),
    ],
)
def test_what_compile_refuses(block: jf.Block, message: str) -> None:
    does_not_compile(block, message)


@pytest.mark.parametrize(
    ('block', 'example', 'message'),
    [
        (
            jf.Record((jf.Scalar(),)),
            (1, 2),
            'expected 1 item, got 2 in (1, 2) (tuple); a record of `{0: ..., 2: ...}` '
            "reads some of them alone; in Record({0: Scalar('float32')})",
        ),
        (
            jf.OneHot(3),
            3,
            'expected one of the keys 0, 1, 2, got 3; in OneHotFromList([0, 1, 2], '
            "'float32')",
        ),
        (
            jf.Length('int8'),
            [0] * 128,
            'expected int8[], got the length 128, which int8 cannot hold; in '
            "Length('int8')",
        ),
        (
            jf.Map(integer) >> jf.Length('bool'),
            [1, 2],
            'expected bool[], got the length 2, which bool cannot hold; in '
            "Pipe[1].Length('bool')",
        ),
        (
            jf.Length('float16'),
            [0] * 2049,
            'expected float16[], got the length 2049, which float16 cannot hold; in '
            "Length('float16')",
        ),
    ],
)
def test_what_data_refuse(block: jf.Block, example: Any, message: str) -> None:
    """When they are traced, and by the twin."""
    with refuses(f'example 0: {message}', jf.InputError):
        jf.compile(block).schedule([example])
    with refuses(f'example 0: {message}', jf.InputError):
        block.eval(example)


def test_a_case_of_a_tuple_that_is_not_there() -> None:
    model = jf.compile(jf.OneOf(jf.GetItem(0), (number,), pre_block=jf.GetItem(1)))
    with refuses(
        'example 0, at [0]: expected one of the keys 0, -1, got 2; in '
        "OneOf(GetItem(0), {0: Scalar('float32') >> Function(scale...",
        jf.InputError,
    ):
        model.schedule([(2, 7)])


@pytest.mark.parametrize(
    ('make', 'error', 'message'),
    [
        (
            lambda: number.reads(number),
            TypeError,
            "Scalar('float32') >> Function(scaled): expected to be wired within "
            "`jf.compose` or the scope of a Composition, got (Scalar('float32') >> "
            'Function(scaled)) outside of these; `eval` runs it on data',
        ),
        (
            lambda: jf.RNN(counting, jf.Zeros([]), True),
            ValueError,
            'RNN: expected one initial state, got both Zeros(float32[]) and '
            '`initial_state_from_input`',
        ),
        (
            lambda: jf.Slice(1),  # type: ignore[call-arg]
            TypeError,
            'Slice() takes 0 positional arguments but 1 was given',
        ),
        (
            lambda: jf.Slice(start=False),
            TypeError,
            'Slice: expected `start` as int or None, got False',
        ),
        (
            lambda: jf.OneHot(3, 3),
            ValueError,
            'OneHot: expected `stop` above `start`, got 3 and 3',
        ),
        (
            lambda: jf.OneHotFromList('aa'),
            ValueError,
            "OneHotFromList: expected different items, got 'a' more than once",
        ),
        (
            lambda: jf.OneHotFromList(''),
            ValueError,
            'OneHotFromList: expected at least one item, got none',
        ),
    ],
)
def test_arguments_that_are_refused(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with refuses(message, error):
        make()
