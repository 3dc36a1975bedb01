# SPDX-License-Identifier: Apache-2.0
"""What generated source records is what walking does, row by row."""

from __future__ import annotations

import functools
import subprocess
import sys
import traceback
from dataclasses import replace
from operator import rshift
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from expressions import Expression, expressions
from extent import drawn
from graphs import canonical, check_components, same
from hypothesis import given, settings
from hypothesis import strategies as st
from program_runs import ROOT
from walked import recorded

import jfold as jf
from jfold.graph import concatenate
from jfold.language.inference import infer
from jfold.lower import lower_typed
from jfold.program.operations import Operation, Program
from jfold.tracing import deep
from jfold.tracing.check_graph import check_graph
from jfold.tracing.record import trace
from jfold.tracing.tape_reader import TapeReader


def check(expression: Expression) -> None:
    """The graphs of batches, one of them empty, in every way that there is."""
    typing = infer(expression.block)
    program, unrolled = (lower_typed(typing, True, x) for x in (False, True))
    for size in (3, 0):
        examples = expression.batch(np.random.default_rng(2), size)
        check_graphs(program, unrolled, examples)


def check_graphs(program: Program, unrolled: Program, examples: list[Any]) -> None:
    """The graph of a batch is what walks record, in every way that there is."""
    # Walks know nothing of rounds that are unrolled.
    same(*(canonical(program, made(program, examples)) for made in (trace, recorded)))
    check_program(program, examples)
    if unrolled.source.text != program.source.text:
        check_program(unrolled, examples)


def check_program(program: Program, examples: list[Any]) -> None:
    """The graphs of a batch: alone, one after another, and of deep data; the program
    says of who reads what no less than the data do."""
    made = trace(program, examples)
    check_graph(program, replace(made, fits=False))
    check_components(program, made)
    if examples:
        same(made, concatenate([trace(program, [x]) for x in examples]))
    source: Any = program.expression.deep()
    found = deep.run(source.record(examples))
    reader = TapeReader(program, source.recording, len(examples), *found)
    same(made, reader.graph())


@pytest.mark.parametrize('root', ['whole', 'tree', 'sequences', 'sequence'])
def test_drawn_expressions(root: str) -> None:
    """In the order of evaluation, whatever stands beside it in a batch."""

    @settings(max_examples=drawn(10, 60))
    @given(expressions(root))
    def equal(expression: Expression) -> None:
        check(expression)

    equal()


def test_two_uses_of_a_function_of_an_item() -> None:
    """Item by item, not use by use."""
    sine = jf.Function(jnp.sin, name='sine')
    both = jf.Record((jf.Scalar() >> sine, jf.Scalar() >> sine))
    typing = infer(jf.Map(both >> jnp.subtract))
    program, unrolled = (lower_typed(typing, True, x) for x in (False, True))
    check_graphs(program, unrolled, [[(1.0, 2.0), (3.0, 4.0)], [(5.0, 6.0)] * 3])


def test_sums_of_items_of_another_recurrence() -> None:
    """Two uses of a sum; what leaves give to one alone is a recurrence's own. Functions
    of the user may have any names that the source has for sets of its operations."""

    def named(name: str) -> jf.Block:
        function = lambda x: x  # noqa: E731
        function.__name__ = name
        return jf.InputTransform(function)

    names = [f'makers_{part}{rest}' for part in range(6) for rest in ('', '_0')]
    functions = [*map(named, names), jf.Scalar()]
    cell, scale = jf.Function(jnp.add, name='cell'), jf.Function(jnp.tanh, name='scale')
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Map(functools.reduce(rshift, functions)) >> jf.Fold(cell, jf.Zeros([]))
    one = jf.Map(tree() >> scale) >> jf.Sum()
    other = jf.Map(tree()) >> jf.Sum() >> scale
    kinds = {list: leaf, tuple: one, dict: jf.GetItem('nodes') >> other}
    tree.resolve_to(jf.OneOf(type, kinds))
    program = jf.compile(tree()).program
    examples = [{'nodes': [[1.0] * 9, ([1.0], [2.0])]}, ({'nodes': [[1.0], [2.0]]},)]
    same(*(canonical(program, made(program, examples)) for made in (trace, recorded)))
    check_program(program, examples)


def declared(block: jf.Block) -> jf.ForwardDeclaration:
    declaration = jf.ForwardDeclaration(name='declared')
    declaration.resolve_to(block)
    return declaration


def number_at(key: int) -> jf.Block:
    return jf.GetItem(key) >> jf.Scalar()


item = declared(jf.GetItem('a') >> jf.Scalar())
total = jf.Map(item()) >> jf.Sum()
both = jf.AllOf(jf.Identity(), jf.GetItem('b'))
cell = jf.AllOf(jf.GetItem(1) >> item(), jf.GetItem(1) >> jf.GetItem('b'))
of_state = jf.RNN(cell, initial_state_from_input=True)
carried = jf.AllOf(jf.GetItem('items'), jf.Identity()) >> of_state
pair = declared(jf.Record((jf.Scalar(), jf.Scalar())) >> jf.Function(jnp.add))
alike: dict[str, Any] = {'a': 1.0, 'b': SimpleNamespace(a=2.0, b=3), 'items': [0, 0]}


@pytest.mark.parametrize(
    ('cases', 'examples'),
    [
        ({tuple: pair(), dict: pair()}, [(5.0, 2.0), {0: 5.0, 1: 2.0}]),
        ({dict: item(), SimpleNamespace: item()}, [alike, alike['b']]),
        ({dict: both >> total}, [alike]),
        ({dict: both >> jf.NGrams(2) >> jf.Map(jf.GetItem(1)) >> total}, [alike]),
        ({dict: carried >> jf.GetItem(0) >> jf.Sum()}, [alike]),
    ],
)
def test_a_class_is_of_one_object(cases: dict[type, Any], examples: list[Any]) -> None:
    """It is known in a case alone, not in what functions, lists or loops have of it."""
    program = jf.compile(jf.OneOf(type, cases)).program
    same(*(canonical(program, made(program, examples)) for made in (trace, recorded)))


nothing = jf.Map(jf.Void())
metrics = [number_at(k) >> jf.Metric(f'seen_{k}') for k in (0, 1)]


@pytest.mark.parametrize(
    ('block', 'result'),
    [
        (jf.AllOf(jf.Void(), nothing), jf.GetItem(1) >> jf.Length()),
        (jf.AllOf(jf.AllOf(nothing, jf.Void()), nothing), jf.GetItem(1) >> jf.Length()),
        (jf.AllOf(jf.AllOf(nothing)), jf.GetItem(0) >> jf.GetItem(0) >> jf.Length()),
        (jf.AllOf(jf.AllOf(*metrics), jf.Identity() >> nothing), jf.Void()),
    ],
)
def test_results_without_tensors(block: jf.Block, result: jf.Block) -> None:
    """Of functions, in tuples inside each other."""
    program = jf.compile(declared(block)() >> result).program
    examples = [[1.0, 2.0], [3.0, 4.0]]
    same(*(canonical(program, made(program, examples)) for made in (trace, recorded)))


@settings(max_examples=drawn(6, 30))
@given(st.data())
def test_groups_of_pairs_of_another_recurrence(data: st.DataObject) -> None:
    """One or both items of the pairs that leaves give are results of a recurrence."""
    sin, cos = jf.Function(jnp.sin), jf.Function(jnp.cos)
    combine = jf.Function(lambda p, q: (p[0] + q[0], p[1] * q[1]), name='combine')
    cell = jf.Function(lambda state, x: jnp.tanh(state) + x, name='cell')
    vector = jf.Scalar() >> jf.Function(lambda x: jnp.stack([x, x + 1]), name='vector')
    tree = jf.ForwardDeclaration(name='tree')
    zeros = jf.Zeros([]), jf.Zeros([2])
    one, two = (
        jf.Map(number) >> jf.Fold(cell, zero)
        for number, zero in zip((jf.Scalar(), vector), zeros, strict=True)
    )

    def nodes() -> jf.Block:
        chains = st.lists(st.sampled_from([sin, cos]), max_size=2)
        pairs = jf.Reduce(combine, jf.AllOf(*zeros), associative=True)
        parts = [
            functools.reduce(rshift, data.draw(chains), jf.GetItem(k)) for k in (0, 1)
        ]
        return jf.Map(tree()) >> pairs >> jf.AllOf(*parts)

    plain = jf.GetItem(0) >> jf.Scalar(), jf.GetItem(0) >> vector
    leaves = [jf.AllOf(one, plain[1]), jf.AllOf(plain[0], two), jf.AllOf(one, two)]
    leaf, named = data.draw(st.sampled_from(leaves)), jf.GetItem('nodes') >> nodes()
    tree.resolve_to(jf.OneOf(type, {list: leaf, tuple: nodes(), dict: named}))
    rng = data.draw(st.randoms(use_true_random=False))

    def example(depth: int) -> Any:
        if not depth or rng.random() < 0.2:
            return [float(rng.randrange(4)) for _ in range(rng.randint(1, 2))]
        inner = tuple(example(depth - 1) for _ in range(rng.randint(1, 3)))
        return inner if rng.random() < 0.5 else {'nodes': inner}

    typing, examples = infer(tree()), [example(4) for _ in range(3)]
    for fuses in (True, False):
        check_graphs(*(lower_typed(typing, fuses, x) for x in (False, True)), examples)


def using(constant: jf.Block) -> dict[str, tuple[jf.Block, list[Any]]]:
    """Loops and cases that use a constant, and examples."""
    multiply, add = jf.Function(jnp.multiply), jf.Function(jnp.add)
    numbers, total = jf.Map(jf.Scalar()), jf.Map(jf.Scalar()) >> jf.Sum()
    state, item = jf.GetItem(0), jf.GetItem(1)
    cell = jf.AllOf(jf.AllOf(state, constant) >> multiply, item) >> add
    lists = [[], [1.0, 2.0, 3.0]]
    return {
        'loop': (jf.Map(jf.AllOf(constant, total) >> add) >> jf.Sum(), [lists, []]),
        'list': (jf.Map(jf.AllOf(constant, jf.Scalar()) >> add) >> jf.Sum(), lists),
        'case': (jf.OneOf(len, {0: constant}, default=jf.Zeros([])), [[], [1.0]]),
        'absent': (jf.Optional(jf.Scalar(), constant), [None, 1.0]),
        'default': (numbers >> jf.Reduce(multiply, constant), lists),
        'reduce': (numbers >> jf.Reduce(cell, constant), lists),
        'fold': (numbers >> jf.Fold(cell, constant), lists),
    }


@pytest.mark.parametrize('kind', using(jf.Identity()))
def test_constants_in_loops_and_cases(kind: str) -> None:
    """A case knows what was before it, a loop nothing; behind them, none is known."""
    constant = jf.FromTensor(np.float32(2)) >> jf.Function(jnp.sin)
    block, examples = using(constant)[kind]
    for parts in (constant, block), (block, constant):
        typing = infer(jf.AllOf(*parts))
        for fuses in (True, False):
            programs = [
                lower_typed(typing, fuses, unrolls) for unrolls in (False, True)
            ]
            check_graphs(*programs, examples)


def test_names_without_letters() -> None:
    """A field, and the layer that reads it, both called by the same digits."""
    tree = jf.ForwardDeclaration(name='3')
    pair = jf.Record({'2': tree(), '3': tree()})
    node = pair >> jf.Function(jnp.subtract, name='2')
    tree.resolve_to(jf.OneOf(type, {float: jf.Scalar(), dict: node}))
    model = jf.compile(tree() >> jf.Function(jnp.negative, name='3'))
    example = {'2': 5.0, '3': {'2': 1.0, '3': 7.0}}
    assert model.apply({}, model.schedule([example])) == model.eval(example) == -11


def test_source_is_of_lines_that_python_knows() -> None:
    """So that a traceback through it can be read."""

    def fails(x: object) -> object:
        raise OSError(traceback.format_stack())

    program = jf.compile(jf.InputTransform(fails) >> jf.Scalar()).program
    with pytest.raises(jf.InputError):
        trace(program, [1])
    with pytest.raises(OSError, match=r'<jfold source .*record\\n +\w+ = fails\(x'):
        program.source.record([1])


def test_an_operation_is_printed_once_for_all_its_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a tape, whose comment names all of them."""
    printed, calls = Operation.__repr__, list[str]()

    def counted(operation: Operation) -> str:
        calls.append(operation.layer.name)
        return printed(operation)

    monkeypatch.setattr(Operation, '__repr__', counted)
    jf.compile(jf.Map(jf.Scalar()) >> jf.Stack(100))
    assert 0 < len(calls) < 20


def test_the_source_of_models() -> None:
    """In another process: what it imports has the names of other modules."""
    command = [sys.executable, str(ROOT / 'tests/support/source_pages.py')]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / 'docs' / 'source.md').read_text()
