# SPDX-License-Identifier: Apache-2.0
"""What generated source records is what walking does, row by row."""

from __future__ import annotations

import subprocess
import sys
import traceback
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary
from expressions import Expression, expressions
from graphs import canonical, check_components, same
from hypothesis import given, settings
from program_runs import ROOT
from walked import recorded

import jfold as jf
from jfold.graph import concatenate
from jfold.language.inference import infer
from jfold.lower import lower_typed
from jfold.program.operations import Program
from jfold.tracing import deep
from jfold.tracing.check_graph import check_graph
from jfold.tracing.record import trace
from jfold.tracing.tape_reader import graph_of


def check(expression: Expression) -> None:
    """The graphs of batches, one of them empty, in every way that there is."""
    typing = infer(expression.block)
    program, unrolled = (lower_typed(typing, True, x) for x in (False, True))
    for size in (3, 0):
        examples = expression.batch(np.random.default_rng(2), size)
        # Walks know nothing of rounds that are unrolled.
        same(
            *(canonical(program, made(program, examples)) for made in (trace, recorded))
        )
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
    same(made, graph_of(program, source.recording, len(examples), *found))


@pytest.mark.parametrize('root', ['whole', 'tree', 'sequences', 'sequence'])
def test_drawn_expressions(root: str) -> None:
    """In the order of evaluation, whatever stands beside it in a batch."""

    @settings(max_examples=60)
    @given(expressions(root))
    def equal(expression: Expression) -> None:
        check(expression)

    equal()


def test_deep_data_where_functions_of_lists_are_fused() -> None:
    """Which are written for all items at once, but for deep data after a loop."""
    divide, weigh = (jf.Function(f, name=f.__name__) for f in (jnp.divide, jnp.dot))

    @jf.compose
    def weighed(xs: Any) -> Any:
        shares = jf.ZipWith(divide)(xs, jf.Broadcast()(jf.Sum()(xs)))
        vectors = jf.Map(jf.Function(lambda x: jnp.stack([x, -x]), name='two'))(xs)
        return jf.Sum()(jf.ZipWith(weigh)(shares, vectors))

    program = jf.compile(jf.Map(binary(jf.Scalar(), jnp.add)) >> weighed).program
    assert any(' >> ' in x.layer.name for x in program.operations)
    check_program(program, [[1.0, (2.0, 3.0)], [], [2.0]])


def test_sums_of_items_of_another_recurrence() -> None:
    """Two uses of a sum; what leaves give to one alone is a recurrence's own."""
    cell, scale = jf.Function(jnp.add, name='cell'), jf.Function(jnp.tanh, name='scale')
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Map(jf.Scalar()) >> jf.Fold(cell, jf.Zeros(jf.TensorType(())))
    one = jf.Map(tree() >> scale) >> jf.Sum()
    other = jf.Map(tree()) >> jf.Sum() >> scale
    kinds = {list: leaf, tuple: one, dict: jf.GetItem('nodes') >> other}
    tree.resolve_to(jf.OneOf(type, kinds))
    program = jf.compile(tree()).program
    examples = [{'nodes': [[1.0] * 9, ([1.0], [2.0])]}, ({'nodes': [[1.0], [2.0]]},)]
    same(*(canonical(program, made(program, examples)) for made in (trace, recorded)))
    check_program(program, examples)


def declared(block: jf.Block) -> jf.ForwardDeclaration:
    """A declaration that stands for `block`."""
    declaration = jf.ForwardDeclaration(name='declared')
    declaration.resolve_to(block)
    return declaration


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


def test_the_source_of_models() -> None:
    """In another process: what it imports has the names of other modules."""
    command = [sys.executable, str(ROOT / 'tests/support/source_pages.py')]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / 'docs' / 'source.md').read_text()
