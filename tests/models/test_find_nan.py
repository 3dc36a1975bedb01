# SPDX-License-Identifier: Apache-2.0
"""The first NaN or infinity: which operation, in which example, on what."""

from __future__ import annotations

import math
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import parameters, same_results
from checking import refuses
from expression_parts import tables
from expressions import Expression, expressions
from extent import drawn
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import over_devices

import jfold as jf
from jfold.debug.find_nan import Search, sum_of_floats
from jfold.device.results import returned
from jfold.lower import lower

number = jf.Scalar()
logs = jf.Map(number >> jf.Function(jnp.log))


def told(block: Any, examples: list[Any], loss: Any = None) -> str:
    model = jf.compile(block)
    params = model.init(jax.random.key(0))
    return repr(jf.find_nan(model, params, examples, loss=loss))


def trees(leaf: Any, pair: Any) -> jf.Block:
    """Nested pairs, by name, of leaves."""
    tree = jf.ForwardDeclaration(name='tree')
    node = jf.Record({'l': tree(), 'r': tree()}) >> pair
    tree.resolve_to(jf.OneOf(type, {int: leaf, float: leaf, dict: node}))
    return tree()


def pair(left: Any, right: Any) -> dict[str, Any]:
    return {'l': left, 'r': right}


def scale(fn: Any, name: str = 'scaled') -> jf.Function:
    """A function of a number times a parameter, which is 1."""
    return jf.Function(lambda w, x: fn(w * x), lambda key, x: jnp.ones(()), name=name)


def is_finite(block: Any, examples: list[Any], loss: Any = sum_of_floats) -> bool:
    """Whether the gradient of a step of training is."""
    model = jf.compile(block)
    schedule, params = model.schedule(examples), model.init(jax.random.key(0))
    step = jax.jit(jax.grad(lambda p: loss(model.apply(p, schedule))))
    return all(jnp.isfinite(x).all() for x in jax.tree.leaves(step(params)))


def logarithm(results: Any) -> Any:
    """A loss of items and of a metric."""
    items, metrics = results
    return items.values.sum() + jnp.sqrt(metrics['seen'].values).sum()


def difference(x: Any) -> Any:
    """A loss that is small, whose gradient is not."""
    return (x - jax.lax.stop_gradient(x)).sum()


constant = jf.AllOf(number, jf.Void() >> jf.FromTensor(np.float32(-np.inf)))
embed = jf.Scalar('int32') >> jf.Function(nn.Embed(10, 4))
over = jf.Function(lambda w, x: (w * x, 1 / x), lambda key, x: jnp.ones(()))
observed = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
items = jf.Map(number >> scale(jnp.sin) >> observed)
rest = jf.Slice(start=1) >> jf.Sum()
roots_of_items = jf.Map(number >> scale(jnp.sqrt)) >> jf.Sum()
exps = jf.Map(number >> jf.Function(jnp.log) >> jf.Function(jnp.exp))
inverse = jf.Map(number >> scale(lambda x: 1 / x) >> scale(jnp.sin, 'sin'))
stopped = number >> scale(jax.lax.stop_gradient, 'stopped')
same_number = number >> scale(lambda x: x)
FINE: dict[str, tuple[Any, ...]] = {  # an expression, examples, perhaps a loss
    'values': (logs >> jf.Sum(), [[1, 2], [], [3]]),
    'no examples': (logs >> jf.Sum(), []),
    'indices': (trees(embed, jnp.add), [pair(1, 2)]),
    'a maximum of an infinite constant': (constant >> jnp.maximum, [1.0, 2.0]),
    'the gradient of a parameter': (roots_of_items, [[1, 2], [3, 1]]),
    'the gradient of data': (number >> jnp.sqrt >> scale(jnp.exp), [1.0, 0.0]),
    'a loss': (items, [[1, 2], [3, 1]], logarithm),
    'a loss of data': (
        number >> jf.AllOf(scale(jnp.sin), jf.Identity()),
        [0.0],
        lambda x: x[0].sum() + jnp.sqrt(x[1]).sum(),
    ),
    'an output that nobody takes': (number >> over >> jf.GetItem(0), [0.0]),
    'items that are cut off': (exps >> rest, [[-1.0, 1.0]]),
    'data that are cut off': (jf.Map(number) >> rest, [[math.nan, 1.0]]),
    'gradients that a function stops': (
        stopped >> jf.AllOf(jf.Function(jnp.sqrt), scale(jnp.sin)),
        [0.0],
    ),
    'a gradient beside an overflow': (same_number, [3e38], difference),
    'gradients of which few are large': (same_number, [1e37] * 33, difference),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize('name', FINE)
def test_nothing_is_found_where_training_is_finite(name: str) -> None:
    block, examples, *loss = FINE[name]
    assert is_finite(block, examples, *loss)
    assert told(block, examples, *loss) == 'None'


batched = jf.Map(number >> jf.Function(jnp.log, batched=True)) >> jf.Sum()
FAULTS: list[tuple[Any, ...]] = [
    (jf.GetItem('x') >> logs >> jf.Sum(), [{'x': [1, 2]}, {'x': [3, 1, 0, -9]}]),
    # The first node, from the leaves on; those above are of NaN already.
    (
        trees(number, lambda a, b: jnp.sqrt(a - b)),
        [pair(9, 5), pair(pair(3, 2), pair(1.5, pair(4, 6)))],
    ),
    ({'a': logs >> jf.Sum(), 'b': number}, [{'a': [1], 'b': math.inf}]),
    (constant >> jnp.multiply, [1.0, 0.0]),
    (batched, [[1.0] * 50, [2.0] * 150 + [-2.0]]),
    (roots_of_items, [[1, 2], [3, 0, 1]]),
    (roots_of_items, [[1.0] * 99, [2.0] * 70 + [0.0] + [1.0] * 9]),
    (roots_of_items, [[1.0] * 10 + [0.0] + [1.0] * 60 + [0.0]]),  # the first of two
    (number >> scale(jnp.negative) >> jnp.sqrt, [-1.0, 0.0]),
    (items, [[1, 2], [3, 0]], logarithm),
    (number >> scale(jnp.sin), [1.0], lambda x: x.sum() + jnp.inf),
    (same_number, [3e38, 2e38], difference),
    (inverse >> rest, [[0.0, 1.0]]),
]
TEXTS = """\
example 1, at ['x'][2]: expected finite values of log(float32[]) -> float32[], got inf of 0.0; in Pipe[1].Map.Pipe[1].Function(log)
example 1, at ['r']['r']: expected finite values of function(float32[], float32[]) -> float32[], got nan of 4.0, 6.0; in tree.OneOf[<class 'dict'>].Pipe[1].Function(function)
example 0, at ['b']: expected finite numbers, got inf in the data; in Record['b'].Scalar('float32')
example 1: expected finite values of multiply(float32[], float32[]) -> float32[], got nan of 0.0, -inf; in Pipe[1].Function(multiply)
example 1, at [150]: expected finite values of log(float32[]) -> float32[], got nan of -2.0; in Pipe[0].Map.Pipe[1].Function(log)
example 1, at [1]: expected a finite gradient of layer 'scaled', got nan of 0.0; in Pipe[0].Map.Pipe[1].Function(scaled)
example 1, at [70]: expected a finite gradient of layer 'scaled', got nan of 0.0; in Pipe[0].Map.Pipe[1].Function(scaled)
example 0, at [10]: expected a finite gradient of layer 'scaled', got nan of 0.0; in Pipe[0].Map.Pipe[1].Function(scaled)
example 1: expected a finite gradient of input 0 of sqrt(float32[]) -> float32[], got inf of -0.0; in Pipe[2].Function(sqrt)
example 1: expected a loss with a finite gradient, got inf
expected a finite loss, got inf
expected a finite gradient of layer 'scaled', got inf in sum, though of no node alone
example 0, at [0]: expected a finite gradient of input 0 of sin(float32[]) -> float32[], got nan of inf; in Pipe[0].Map.Pipe[2].Function(sin)
"""  # noqa: E501


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ('fault', 'text'), [*zip(FAULTS, TEXTS.splitlines(), strict=True)]
)
def test_the_first_fault_is_told(fault: tuple[Any, ...], text: str) -> None:
    block, examples, *loss = fault
    assert told(block, examples, *loss) == text
    if 'gradient' in text:
        assert not is_finite(block, examples, *loss)


@pytest.mark.parametrize('setting', [jax.debug_nans, jax.debug_infs])
def test_where_jax_itself_looks_for_nan(setting: Any) -> None:
    """It would raise before the fault is located."""
    model = jf.compile(logs >> jf.Sum())
    for bad in (0.0, -1.0):
        with setting(True):
            found = jf.find_nan(model, {}, [[1.0, bad]])
        assert repr(found) == repr(jf.find_nan(model, {}, [[1.0, bad]]))
        assert found is not None
        assert found.path == '[1]'


# ---- values --------------------------------------------------------------------------


def test_an_item_of_a_sequence() -> None:
    model = jf.compile(jf.GetItem('x') >> logs >> jf.Sum())
    found = jf.find_nan(model, {}, [{'x': [1, 2]}, {'x': [3, 1, -4, -9]}])
    assert isinstance(found, jf.NonFinite)
    assert (found.example, found.path) == (1, "['x'][2]")
    assert found.layer == 'log'
    assert [x.tolist() for x in found.inputs] == [-4]
    assert found.block.endswith('Map.Pipe[1].Function(log)')


def test_an_index_outside_a_table() -> None:
    """What JAX makes NaN of, and what it makes another row of."""
    table = jf.Function(lambda w, i: w[i], lambda key, i: jnp.ones((10, 4)), name='t')
    examples = [pair(1, 2), pair(pair(3, 4), pair(9, 12))]
    for leaf in embed, jf.Scalar('int32') >> table:
        text = told(trees(leaf, jnp.add), examples)
        assert text.startswith("example 1, at ['r']['r']: expected ")
        assert 'index 12 is out of bounds for axis 0 with size 10' in text


def test_a_loop_whose_turns_depend_on_its_inputs() -> None:
    """JAX's `checkify` refuses a batch of such loops."""

    def grown(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y < jnp.exp(x), lambda y: y * x, x)

    assert told(number >> grown, [3, 200]).startswith('example 1: ')
    assert told(jf.Vector(1) >> jax.vmap(grown), [[3], [200]]).startswith('example 1: ')


def test_a_place_that_is_written_by_an_index() -> None:
    put = jf.Function(lambda x, i: jnp.log(x.at[i].set(2.0)))
    every = jf.Map(jf.Record((jf.Vector(3), jf.Scalar('int32'))) >> put)
    text = told(every, [[([1, 2, 3], 1)], [([4, 5, -1], 0)]])
    assert text.startswith('example 1, at [0]: expected finite values of ')


@pytest.mark.parametrize(
    'reduce', [jf.Sum(), jf.Reduce(jnp.add), jf.Fold(jnp.add, np.float32(0))]
)
def test_in_a_reduction(reduce: Any) -> None:
    """The sequence is named, at least."""
    large = 3e38
    block = jf.GetItem('x') >> jf.Map(number) >> reduce
    text = told(block, [{'x': [1, 2]}, {'x': [1, large, large, 2]}])
    assert text.startswith("example 1, at ['x']")
    assert 'got inf of ' in text


def test_parameters_that_are_not_finite() -> None:
    model = jf.compile(number >> scale(jnp.exp))
    found = jf.find_nan(model, {'scaled': jnp.float32(jnp.nan)}, [1.0])
    assert repr(found) == "expected finite parameters, got nan in 'scaled'"
    assert found is not None
    assert found.example is None


def test_objects_that_are_shared() -> None:
    """Whoever asked first."""
    model = jf.compile(
        jf.Map(jf.Share(jf.GetItem('x') >> number >> jf.Function(jnp.log)))
    )
    node = {'x': -1.0}
    found = jf.find_nan(model, {}, [[{'x': 1.0}, node, node]])
    assert found is not None
    assert (found.example, found.layer) == (0, 'log')
    assert [x.tolist() for x in found.inputs] == [-1.0]


# ---- gradients -----------------------------------------------------------------------


def roots(weight: Any, x: Any) -> Any:
    """Two outputs, of which the second has an infinite gradient at zero."""
    return weight * x, jnp.sqrt(weight * x)


both = jf.Function(roots, lambda key, x: jnp.ones(()), name='roots')
root = scale(jnp.sqrt, 'root')
seen = jf.AllOf(scale(jnp.sin), root >> jf.Metric('seen')) >> jf.GetItem(0)


@pytest.mark.parametrize(
    ('block', 'read', 'unread'),
    [
        (number >> both, lambda x: x[1].sum(), lambda x: x[0].sum()),
        (number >> seen, lambda x: x[1]['seen'].values.sum(), lambda x: x[0].sum()),
        (
            number >> jf.AllOf(scale(jnp.sin), root),
            lambda x: (0 * x[1] + x[0]).sum(),
            lambda x: x[0].sum() + jax.lax.stop_gradient(x[1]).sum(),
        ),
        (
            number >> both >> jf.AllOf(jf.GetItem(0) >> scale(jnp.sin), jf.GetItem(1)),
            lambda x: jnp.where(False, x[1], x[0]).sum(),
            lambda x: x[0].sum(),
        ),
    ],
    ids=['output', 'metric', 'part', 'function'],
)
def test_what_the_loss_does_not_read(block: Any, read: Any, unread: Any) -> None:
    """Has no gradient; what it reads has one, though it comes to zero times it."""
    examples = [1.0, 0.0]
    assert is_finite(block, examples, unread)
    assert told(block, examples, loss=unread) == 'None'
    assert not is_finite(block, examples, read)
    assert 'expected a finite gradient of' in told(block, examples, loss=read)


@pytest.mark.slow
@given(expressions(), st.integers(0, 2**32))
@settings(max_examples=drawn(2, 4))
def test_expressions_of_all_kinds(expression: Expression, seed: int) -> None:
    """What runs operation by operation gives what a batch does; if anything is found,
    it is said where."""
    model = jf.compile(expression.block)
    params = {**parameters(model), **tables(model)}
    examples = expression.batch(np.random.default_rng(seed), 3)
    program = lower(expression.block, fuses=False)
    search = Search(program, params, examples)
    found = search.first(sum_of_floats)
    assert found is None or found.block or 'loss' in found.message
    schedule, results = search.batch()
    made = returned(model.program, schedule, results)
    values, metrics = made if model.program.metric_results else (made, {})
    each = [model.eval(x, params) for x in examples]
    each = each if model.program.metric_results else [(x, {}) for x in each]
    same_results(values, metrics, each, 1e-4)


def test_gradients_that_are_finite_are_those_of_the_model() -> None:
    """Where a tree uses a layer at all nodes: nothing is found, as nothing is there."""
    cell = jf.Function(
        lambda w, a, b: jnp.tanh(w * (a + b)), lambda key, a, b: jnp.ones(()), name='c'
    )
    model = jf.compile(trees(number, cell))
    params = model.init(jax.random.key(0))
    examples = [pair(1, pair(2.0, 3)), 4]
    grad = jax.grad(lambda p: model.apply(p, model.schedule(examples)).sum())
    grads = interpreter.called(grad, params)
    assert jnp.isfinite(grads['c'])
    assert jf.find_nan(model, params, examples) is None


def test_arrays_that_are_passed() -> None:
    """A row of which the gradient is looked at too."""
    block = jf.Map(jf.External('rows', 2) >> jf.Function(jnp.sqrt)) >> jf.Sum()
    model = jf.compile(block)
    external = {'rows': np.array([[1, 1], [4, 0]], 'float32')}
    assert jf.find_nan(model, {}, [[0]], external=external) is None
    found = jf.find_nan(model, {}, [[0], [0, 1]], external=external)
    assert found is not None
    assert found.example == 1
    assert 'expected a finite gradient of input 0 of sqrt' in repr(found)


def test_parameters_on_a_mesh() -> None:
    """Arrays and keys that are on several devices, whose mesh JAX would look for."""
    where = over_devices(4, jax.sharding.AxisType.Explicit)
    whole = jax.NamedSharding(where.mesh, jax.P())
    drawn_rows = jf.Function(
        lambda key, x: jax.random.normal(key) * jnp.sqrt(x),
        init=lambda key, x: key,
        name='drawn',
    )
    rows = jf.External('rows', 2) >> jf.Function(jnp.sum)
    model = jf.compile((number >> drawn_rows, rows))
    params = jax.device_put(model.init(jax.random.key(0)), whole)
    external = {'rows': jax.device_put(jnp.ones((4, 2)), where)}
    assert jf.find_nan(model, params, [[1, 0]], external=external) is None
    found = jf.find_nan(model, params, [[1, 0], [-1, 3]], external=external)
    assert found is not None
    assert found.layer == 'drawn'
    # The index of a row, on parameters of every device.
    model = jf.compile(jf.Scalar('int32') >> jf.layers.Embed(4, 3))
    params = jax.device_put(model.init(jax.random.key(0)), whole)
    assert jf.find_nan(model, params, [1]) is None


def test_what_does_not_fit() -> None:
    model = jf.compile(number)
    with pytest.raises(jf.InputError, match='example 0: expected float32'):
        jf.find_nan(model, {}, ['x'])
    with refuses('expected a sequence of examples, got dict: pass `[example]`'):
        jf.find_nan(model, {}, {'x': 1})


# ---- indices that are refused --------------------------------------------------------


def test_ints_below_a_number() -> None:
    """Named with their path; alike by the twin and by a batch."""
    block = jf.Map(jf.GetItem('word') >> jf.Scalar('int32', below=10))
    model = jf.compile(block)
    assert model.apply({}, model.schedule([[{'word': 0}, {'word': 9}]])).to_list() == [
        [0, 9]
    ]
    for bad in 10, -1:
        with pytest.raises(jf.InputError) as caught:
            model.schedule([[], [{'word': 1}, {'word': bad}]])
        assert str(caught.value) == (
            "example 1, at [1]['word']: expected ints from 0 to 9, as `below=10` "
            f"says, got {bad}; in Map.Pipe[1].Scalar('int32', below=10)"
        )
        with pytest.raises(ValueError, match='expected ints from 0 to 9'):
            model.eval([{'word': bad}])


def test_tensors_of_ints_below_a_number() -> None:
    model = jf.compile(jf.Vector(2, 'uint8', below=3))
    assert model.apply({}, model.schedule([[0, 2]])).tolist() == [[0, 2]]
    with pytest.raises(jf.InputError, match=r'example 1: .* 0 to 2, .*got 3'):
        model.schedule([[0, 1], [2, 3]])
    assert (
        repr(jf.Tensor((2, 2), 'int32', below=4)) == "Tensor((2, 2), 'int32', below=4)"
    )


def test_in_trees_of_any_depth() -> None:
    model = jf.compile(trees(jf.Scalar('int32', below=5), jnp.add))
    with pytest.raises(
        jf.InputError, match=r"example 1, at \['r'\]\['l'\]: expected ints"
    ):
        model.schedule([1, pair(1, pair(5, 2))])


def test_bounds_of_no_ints() -> None:
    with refuses(
        'expected a dtype of ints for `below`, got float32: write '
        '`Scalar("int32", below=...)`'
    ):
        jf.Scalar(below=3)
    with refuses(
        'expected `below` of at least 1, got 0; write `below=1` or more', ValueError
    ):
        jf.Scalar('int32', below=0)


def test_examples_are_searched_one_after_another() -> None:
    """Though a batch runs leaves of all of them before the root of any."""
    root = jf.Function(lambda a, b: jnp.sqrt(a - b), name='root')
    examples = [pair(pair(9.0, 5.0), 3.0), pair(1.0, 4.0)]
    found = told(trees(number, root), examples)
    assert found.startswith('example 0: expected finite values of root')
    assert 'got nan of 2.0, 3.0; in ' in found
