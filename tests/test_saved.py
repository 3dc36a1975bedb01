# SPDX-License-Identifier: Apache-2.0
"""Models in files: whoever reads one predicts as the model does, or is told why not."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saved_functions
from checking import refuses
from compilations import compilations
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from saved_functions import Colour, Part, kind, lower, words

import jfold as jf
from jfold import saved as saving
from jfold.data import storage

TREES: list[Any] = ['Good', ['bad', 'x'], [['good', 'y'], ['BAD', ['bad', 'good']]]]


def word_tree() -> jf.Block:
    """Trees of words: a vector, the lengths of all words, and a metric with labels."""
    tree = jf.ForwardDeclaration(name='tree')
    number = jf.InputTransform(lower) >> jf.InputTransform(
        {'good': 1, 'bad': 2}, default=0
    )
    leaf = number >> jf.Scalar('int32') >> jf.Function(nn.Embed(3, 4), name='word')
    join = jf.Function(nn.Sequential([nn.Dense(4), nn.Dropout(0.5)]), name='join')
    pair = jf.Record((tree(), tree())) >> jf.Concat() >> join >> jf.Function(jnp.tanh)
    tree.resolve_to(jf.OneOf(kind, {'leaf': leaf, 'node': pair}))
    lengths = jf.Map(jf.InputTransform(len) >> jf.Scalar('int32'))
    roots = jf.AllOf(tree(), jf.InputTransform(kind)) >> jf.Metric('roots')
    return jf.AllOf(tree(), jf.InputTransform(words) >> lengths, roots)


@functools.cache
def model() -> jf.Model:
    """Of trees of words, with room for one tree and for four."""
    made = jf.compile(word_tree())
    corpus = made.trace(TREES * 4)
    for size in 4, 1:
        made.reserve(corpus.capacities(size))
    return made


@functools.cache
def params() -> dict[str, Any]:
    """Drawn once."""
    return model().init(jax.random.key(0))


@pytest.fixture(scope='module')
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds the model."""
    path = tmp_path_factory.mktemp('saved') / 'model.jfold'
    jf.save(path, model(), params())
    return path


def sums() -> jf.Model:
    """Of numbers in lists, one after another."""
    add = jf.Function(jnp.add)
    return jf.compile(jf.Map(jf.Scalar()) >> jf.Fold(add, jf.Zeros([])))


def rooms(made: jf.Model, most: int, *sizes: int) -> list[jf.Capacity]:
    """Room for so many lists of up to so many numbers, for each size."""
    corpus = made.trace([[1] * n for n in range(most + 1)])
    return [corpus.capacities(size) for size in sizes]


def same(got: Any, want: Any) -> None:
    """Equal in structure and to the bit."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for pair in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        one, other = map(np.asarray, pair)
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def check(block: Any, examples: list[Any], folder: Path, **options: Any) -> Any:
    """A model that is saved and read gives what it gave; returns what was read."""
    made = jf.compile(block, **options)
    given = made.init(jax.random.key(0))
    room = made.reserve(made.trace(examples).capacities(len(examples)))
    jf.save(folder / 'model', made, given, room)
    loaded = jf.load(folder / 'model')
    assert str(loaded.program) == str(made.program)
    schedule = loaded.schedule(examples)
    expected = made.schedule(examples)
    same(
        [*schedule.constants, schedule.indices], [*expected.constants, expected.indices]
    )
    want = jax.jit(functools.partial(made.apply, deterministic=True))(given, expected)
    same(loaded.apply(loaded.params, schedule), want)
    same(
        loaded.predict(examples),
        made.predict(given, examples, batch_size=len(examples)),
    )
    return loaded


# ---- in other processes --------------------------------------------------------------

READER = """
import json, sys
import numpy as np
import jax
import jfold as jf
loaded, trees = jf.load('model.jfold'), json.loads(sys.argv[1])
schedules = [loaded.schedule(trees), loaded.schedule(trees[-1:])]
found = [*(loaded.apply(loaded.params, x) for x in schedules), loaded.predict(trees)]
assert 'flax' not in sys.modules and 'test_saved' not in sys.modules
np.savez('found.npz', *jax.tree.leaves(found))
print(loaded, [x.labels['roots'].tolist() for x in schedules])
"""


def test_a_process_that_never_builds_the_model(path: Path) -> None:
    """It has functions of the host alone, and gives the same to the bit."""
    done = subprocess.run(
        [sys.executable, '-W', 'error', '-c', READER, json.dumps(TREES)],
        cwd=path.parent,
        env=os.environ | {'PYTHONPATH': os.pathsep.join([*sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ''
    assert done.stdout == (
        'LoadedModel((float32[4], [int32[]], void), capacities of 1, 4 examples, for '
        "cpu) [['leaf', 'node', 'node'], ['node']]\n"
    )
    schedules = model().schedule(TREES, size=4), model().schedule(TREES[-1:])
    apply = jax.jit(functools.partial(model().apply, deterministic=True))
    want = [apply(params(), x) for x in schedules]
    want.append(model().predict(params(), TREES, batch_size=4))
    with np.load(path.parent / 'found.npz') as file:
        same([file[name] for name in file.files], jax.tree.leaves(want))


# ---- what a loaded model does --------------------------------------------------------


def test_the_smallest_capacity_that_holds_a_batch(tmp_path: Path) -> None:
    """By rows and by what is in them; `size` may ask for one."""
    made = sums()
    (small,), (large,) = rooms(made, 4, 1), rooms(made, 6, 8)
    jf.save(tmp_path / 'm', made, {}, [large, small, small])
    loaded = jf.load(tmp_path / 'm')
    assert loaded.capacities == (small, large)
    found = [
        loaded.schedule(lists).examples
        for lists in ([], [[1, 2, 3, 4]], [[1]] * 2, [[1] * 5], [[1]] * 8)
    ]
    assert found == [1, 1, 8, 8, 8]
    assert loaded.schedule([[1]], size=8).examples == 8
    assert loaded.schedule([[1]], size=8).mask.tolist() == [True] + [False] * 7
    text = 'expected `size` as 1 or 8, with which the model was saved, got 2'
    with refuses(text, ValueError):
        loaded.schedule([[1]], size=2)
    text = (
        'expected examples that fit a capacity of 1 rows, got some that need one of 8: '
        'leave `size` out, or save the model with a larger one, `jf.save(path, model, '
        'params, capacities=[...])`'
    )
    with refuses(text, ValueError):
        loaded.schedule([[1] * 5], size=1)
    with pytest.raises(ValueError, match='expected at most 1 examples'):
        loaded.schedule([[1], [2]], size=1)


def test_a_batch_that_outgrew_all(tmp_path: Path) -> None:
    """It is told by how much, and what to do."""
    made = sums()
    jf.save(tmp_path / 'm', made, {}, rooms(made, 4, 2))
    loaded = jf.load(tmp_path / 'm')
    end = (
        'Save it with a larger one, `jf.save(path, model, params, capacities=[...])`, '
        'of `model.trace(examples).capacities(batch_size)`, or give smaller batches'
    )
    begin = (
        'expected a batch that fits a capacity that the model was saved with, got one '
        'that is larger than the largest of them; these grew: '
    )
    with refuses(f'{begin}examples from 2 to 3. {end}', ValueError):
        loaded.schedule([[1], [1], [1]])
    with refuses(
        f'{begin}levels from 4 to 9, constants[0] from 8 to 10, rows[0] from 7 to 9. '
        f'{end}',
        ValueError,
    ):
        loaded.schedule([[1] * 9, []])
    with pytest.raises(ValueError, match='these grew: levels from'):
        loaded.predict([[1] * 100])


@pytest.mark.parametrize('given', ['list', 'stream', 'corpus', 'traced', 'joined'])
def test_predictions_of_any_source(path: Path, given: str) -> None:
    """In their order, with metrics; what a tracer of either made fits both."""
    loaded = jf.load(path)
    source: Any = {
        'list': lambda: TREES * 3,
        'stream': lambda: iter(TREES * 3),
        'corpus': lambda: loaded.trace(TREES * 3, progress=False),
        'traced': lambda: model().tracer()(TREES * 3),
        'joined': lambda: loaded.join([loaded.tracer()(TREES)] * 3),
    }[given]()
    want = model().predict(params(), TREES * 3, batch_size=4)
    same(loaded.predict(source), want)
    if given == 'corpus':
        single = loaded.predict(source, batch_size=1, progress=False)
        assert jax.tree.structure(single) == jax.tree.structure(want)


def test_batches_of_a_corpus_each_by_its_capacity(tmp_path: Path) -> None:
    """None has to hold what all of them need together."""
    made = sums()
    corpus = made.trace([[1] * 8, [1], [1] * 4, [1] * 4])
    rooms = [corpus.capacities_of([batch], 2) for batch in ([0, 1], [2, 3])]
    assert not any(x.holds(rooms[0] | rooms[1]) for x in rooms[1:])
    jf.save(tmp_path / 'm', made, {}, rooms)
    loaded = jf.load(tmp_path / 'm')
    given = loaded.trace([[1] * 8, [1], [1] * 4, [1] * 4])
    assert loaded.predict(given).tolist() == [8, 1, 4, 4]


def test_predictions_of_nothing(path: Path) -> None:
    """Of the types that results have."""
    loaded = jf.load(path)
    same(loaded.predict([]), model().predict(params(), []))
    same(loaded.predict(loaded.trace([])), model().predict(params(), []))


def test_a_corpus_in_a_file_goes_with_both(path: Path, tmp_path: Path) -> None:
    """It says which expression it is of, and so does the model."""
    model().trace(TREES).save(tmp_path / 'corpus.npz')
    loaded = jf.load(path)
    corpus = jf.Corpus.load(tmp_path / 'corpus.npz', loaded)
    want = model().predict(params(), TREES, batch_size=4)
    same(loaded.predict(corpus), want)


def test_other_parameters_of_the_same_shapes(path: Path) -> None:
    loaded = jf.load(path)
    given = model().init(jax.random.key(1))
    schedule = loaded.schedule(TREES, size=4)
    want = model().apply(given, model().schedule(TREES, size=4), deterministic=True)
    found = loaded.apply(given | {'other': 1}, schedule)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, want)
    with pytest.raises(TypeError, match=r"expected parameters for layer 'join'"):
        loaded.apply({'word': given['word']}, schedule)
    hint = 'call `loaded.apply(loaded.params, loaded.schedule(examples))`'
    text = f'expected a schedule made by this model, got one of another: {hint}'
    with refuses(text, ValueError):
        loaded.apply(given, model().schedule(TREES, size=4))
    with refuses(
        f'expected `schedule` as a schedule, got 3 (int): {hint}'.replace(' (int)', '')
    ):
        loaded.apply(given, 3)  # type: ignore[arg-type]


def test_parameters_in_other_containers(tmp_path: Path) -> None:
    """Their leaves are told by name, in whatever order they come."""

    def init(key: jax.Array, x: Any) -> dict[str, jax.Array]:
        return {'scale': jnp.float32(2), 'add': jnp.float32(10)}

    line = jf.Function(lambda p, x: p['scale'] * x + p['add'], init, name='line')
    loaded = check(jf.Scalar() >> line, [3], tmp_path)
    schedule = loaded.schedule([3])
    ordered = OrderedDict(scale=jnp.float32(3), add=jnp.float32(1))
    assert loaded.apply({'line': ordered}, schedule).tolist() == [10]
    block, examples = BLOCKS['nnx with dropout']()
    loaded = check(block, examples, tmp_path)
    given = jf.compile(block).init(jax.random.key(0))
    schedule = loaded.schedule(examples)
    same(loaded.apply(given, schedule), loaded.apply(loaded.params, schedule))


def test_transformations_that_are_no_part_of_a_file(path: Path) -> None:
    """Each is refused with what to do; `jax.jit` alone is none of them."""
    loaded = jf.load(path)
    schedule = loaded.schedule(TREES)

    def total(given: Any) -> Any:
        (vectors, *_), _ = loaded.apply(given, schedule)
        return vectors.sum()

    want = total(loaded.params)
    np.testing.assert_allclose(jax.jit(total)(loaded.params), want, rtol=1e-6)
    gradients = 'got gradients of it, which .*: use what `jf.compile` returned'
    for each in jax.grad, jax.jacfwd:
        with pytest.raises(NotImplementedError, match=gradients):
            each(total)(loaded.params)
    two = jax.tree.map(lambda x: jnp.stack([x, x]), loaded.params)
    text = 'got `jax.vmap` of it, which its file does not hold: use a loop'
    with pytest.raises(NotImplementedError, match=re.escape(text)):
        jax.vmap(total)(two)


def test_programs_are_compiled_before_they_are_needed(path: Path) -> None:
    """All of them, and none a second time."""
    loaded = jf.load(path)
    with compilations('') as compiled:
        loaded.precompile()
    assert len(compiled) == 2
    schedules = [loaded.schedule(TREES[:n]) for n in (1, 3)]
    with compilations('') as compiled:
        for schedule in schedules:
            loaded.apply(loaded.params, schedule)
    assert compiled == []


def test_the_public_names_of_a_loaded_model(path: Path) -> None:
    """Those of a model, as far as it is one."""
    uses = {'apply', 'join', 'precompile', 'predict', 'schedule', 'trace', 'tracer'}
    facts = {'capacities', 'params', 'platforms', 'program'}
    assert {name for name in dir(jf.load(path)) if name[0] != '_'} == uses | facts


def test_nothing_is_read_of_the_file_later(path: Path, tmp_path: Path) -> None:
    """Which may be overwritten in place, by another copy or by nothing."""
    file = tmp_path / 'copy'
    file.write_bytes(path.read_bytes())
    loaded = jf.load(file)
    file.write_bytes(bytes(100))
    want = model().predict(params(), TREES, batch_size=4)
    same(loaded.predict(TREES), want)


def test_errors_of_examples_tell_where(path: Path) -> None:
    """As those of the model."""
    loaded = jf.load(path)
    with pytest.raises(jf.InputError) as expected:
        model().schedule(['good', ['good', ['x', 3]]])
    with refuses(str(expected.value), jf.InputError):
        loaded.schedule(['good', ['good', ['x', 3]]])


# ---- which models --------------------------------------------------------------------


def binary(leaf: Any, join: Any) -> jf.Block:
    """Trees of ints."""
    tree = jf.ForwardDeclaration(name='tree')
    pair = jf.Record((tree(), tree())) >> join
    tree.resolve_to(jf.OneOf(type, {int: jf.Scalar('int32') >> leaf, tuple: pair}))
    return tree()


INTS = [1, (2, 3), ((1, (2, 0)), (3, 3))]
JOIN = jf.Concat() >> nn.Dense(4)


SCREW = Part('screw', Colour.RED, [])


def of_nnx(boxed: bool) -> jf.Block:
    """Modules of NNX, whose parameters are in containers of its own."""
    rngs = nnx.Rngs(0)
    linear = nnx.Linear(8, 4, rngs=rngs)
    many = nnx.Sequential(
        linear, nnx.Dropout(0.5, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)
    )
    return binary(
        nnx.Embed(8, 4, rngs=rngs), jf.Concat() >> (many if boxed else linear)
    )


BLOCKS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    'layers': lambda: (
        binary(jf.layers.Embed(8, 4), jf.Concat() >> jf.layers.FC(4)),
        INTS,
    ),
    'nnx': lambda: (of_nnx(False), INTS),
    'nnx with dropout': lambda: (of_nnx(True), INTS),
    'bfloat16': lambda: (
        binary(
            nn.Embed(8, 4, param_dtype=jnp.bfloat16),
            jf.Concat() >> nn.Dense(4, param_dtype=jnp.bfloat16),
        ),
        INTS,
    ),
    'nested sequences': lambda: (
        jf.Map(jf.Map(jf.Scalar() >> jf.Function(jnp.square))),
        [[[1, 2], []], [], [[3]]],
    ),
    'share': lambda: (
        jf.Map(jf.Share(jf.Scalar() >> jf.Function(jnp.sin), key=hash)) >> jf.Sum(),
        [[1, 2, 1], [3, 3]],
    ),
    'rnn': lambda: (jf.Map(jf.Vector(3)) >> jf.layers.LSTM(4), [[[1, 2, 3]] * 3, []]),
    'child sum': lambda: (
        jf.layers.Tree(
            jf.GetItem(0) >> jf.Vector(2),
            jf.GetItem(1),
            jf.layers.ChildSumTreeLSTM(3),
            ([3], [3]),
        ),
        [([1, 2], []), ([3, 4], [([1, 2], []), ([1, 2], [])])],
    ),
    'records': lambda: (
        jf.layers.RecordEncoder(Part, 4),
        [SCREW, Part('nut', Colour.BLUE, [SCREW])],
    ),
    'void': lambda: (jf.AllOf(jf.Scalar(), jf.Void()), [1, 2]),
    'keys of many kinds': lambda: (
        jf.OneHotFromList(
            [None, 1.5, (1, 'x'), b'q', True, float('inf')], strict=False
        ),
        [None, 1.5, (1, 'x'), b'q', 'else', float('inf')],
    ),
    'objects as defaults': lambda: (
        jf.GetItem('a', default={'b': (1, [2.5])})
        >> jf.GetItem('b')
        >> jf.Record((jf.Scalar(), jf.Vector(1))),
        [{}, {'a': {'b': (3, [4])}}],
    ),
    'a constant': lambda: (jf.FromTensor(np.arange(3, dtype='int32')), [None, None]),
    'parameters of any structure': lambda: (
        jf.Scalar()
        >> jf.Function(
            lambda p, x: p[0][0] * x + p[1],
            init=lambda key, x: {0: [jnp.full((), 2.0)], 1: jnp.ones(()), 2: (None,)},
        ),
        [1, 2],
    ),
}


@pytest.mark.parametrize('name', BLOCKS)
def test_models_of_many_kinds(name: str, tmp_path: Path) -> None:
    """To the bit."""
    block, examples = BLOCKS[name]()
    check(block, examples, tmp_path)


@pytest.mark.parametrize('residuals', ['save products', 'recompute all'])
@pytest.mark.parametrize('strategy', ['counted', 'fixed'])
def test_options_of_the_model(tmp_path: Path, strategy: str, residuals: str) -> None:
    """Schedules are for the programs as they were saved."""
    block = binary(nn.Embed(8, 4), JOIN)
    loaded = check(block, INTS, tmp_path, strategy=strategy, residuals=residuals)
    (spec,) = loaded._budget.specs
    assert (spec.strategy, spec.residuals) == (strategy, residuals)


def test_arrays_of_64_bits(tmp_path: Path) -> None:
    """Under the same switch as when it was saved."""
    with jax.enable_x64(True):
        made = jf.compile(jf.Map(jf.Scalar('float64')) >> jf.Sum())
        jf.save(tmp_path / 'm', made, {}, made.trace([[1, 2]]).capacities(1))
        assert jf.load(tmp_path / 'm').predict([[0.1, 0.2]]).tolist() == [0.1 + 0.2]
    text = (
        f'{tmp_path}/m: expected a model without arrays of float64, got one that was '
        'saved under `jax.enable_x64`: load and run it under that too'
    )
    with refuses(text, ValueError):
        jf.load(tmp_path / 'm')


def test_parameters_are_of_the_width_that_jax_held(tmp_path: Path) -> None:
    """Whatever it would hold where they are read."""
    given = {'scale': {'by': np.float64(3)}}
    scale = jf.Function(
        lambda p, x: p['by'] * x, lambda *_: {'by': jnp.float32(2)}, name='scale'
    )
    made = jf.compile(jf.Scalar() >> scale)
    jf.save(tmp_path / 'm', made, given, made.trace([1]).capacities(1))
    with jax.enable_x64(True):
        assert jf.load(tmp_path / 'm').predict([2]).tolist() == [6]


# ---- what is not saved ---------------------------------------------------------------


def test_functions_without_a_name_are_all_told(tmp_path: Path) -> None:
    """With their blocks; nothing is written."""

    def inside(x: Any) -> Any:
        return x

    block = jf.Record(
        {
            'a': jf.InputTransform(lambda x: x) >> jf.Scalar(),
            'b': jf.OneOf(inside, {1: jf.Scalar(), 2: jf.Scalar() >> jnp.sin}),
            'c': jf.GetItem('d', default=object()) >> jf.Scalar(),
        }
    )
    made = jf.compile(block)
    with pytest.raises(TypeError) as caught:
        jf.save(tmp_path / 'm', made, {}, made.trace([]).capacities(1))
    told = re.sub(r'py:\d+', 'py:n', str(caught.value))
    told = re.sub('0x[0-9a-f]+', '0x', told)
    assert told == (
        'expected an expression whose functions on the host can be imported by name, '
        'and whose tables, keys and defaults are made of None, numbers, strings, '
        'bytes, arrays, tuples, lists, dicts, sets, slices, got: a lambda '
        '(test_saved.py:n), '
        "in Record['a'].Pipe[0].InputTransform(function); `inside`, defined in a "
        "function (test_saved.py:n), in Record['b'].OneOf(inside, {1: "
        "Scalar('float32'), 2: Scalar('float32')...; an object of builtins.object, in "
        "Record['c'].Pipe[0].GetItem('d', default=<object object at 0x>). Define "
        'functions at the top of a module that can be imported'
    )
    assert os.listdir(tmp_path) == []


def test_external_arrays_are_refused(tmp_path: Path) -> None:
    made = jf.compile(jf.Map(jf.External('features', 2)) >> jf.Sum())
    text = (
        "expected a model without `External` blocks, got one with ['features']: save "
        'one whose arrays are parameters, such as of `jf.layers.Embed`'
    )
    with refuses(text, ValueError):
        jf.save(tmp_path / 'm', made, {}, made.trace([[1]]).capacities(1))


def test_capacities_that_there_must_be(tmp_path: Path) -> None:
    """Some, of this model, for one device."""
    made, path = sums(), tmp_path / 'm'
    text = (
        'expected a capacity at least, got none: pass `capacities=` of '
        '`model.trace(examples).capacities(batch_size)`, or call `model.reserve` with '
        'it before'
    )
    for none in None, []:
        with refuses(text, ValueError):
            jf.save(path, made, {}, none)
    with refuses('expected `capacities` as a list of capacities, got 3'):
        jf.save(path, made, {}, 3)  # type: ignore[arg-type]
    with refuses(
        'expected a `Capacity`, got int: take it from '
        '`model.trace(examples).capacities(batch_size)`'
    ):
        jf.save(path, made, {}, [3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match='expected a `Capacity` of this model'):
        jf.save(path, made, {}, model().trace(TREES).capacities(1))
    with refuses('expected `model` as what `jfold.compile` returns, got 3'):
        jf.save(path, 3, {})  # type: ignore[arg-type]


def test_capacities_of_several_devices(tmp_path: Path) -> None:
    """They are left out of what a model has, and refused where they are passed."""
    made = sums()
    mesh = jax.make_mesh((2,), ('data',), (AxisType.Auto,), devices=jax.devices()[:2])
    sharding = NamedSharding(mesh, jax.P('data'))
    dealt = made.trace([[1], [2]]).capacities(2, sharding=sharding)
    made.reserve(dealt)
    with pytest.raises(ValueError, match='expected capacities for one device, got one'):
        jf.save(tmp_path / 'm', made, {}, dealt)
    with pytest.raises(ValueError, match='expected a capacity at least, got none'):
        jf.save(tmp_path / 'm', made, {})
    made.schedule([[1], [2]])
    jf.save(tmp_path / 'm', made, {})
    loaded = jf.load(tmp_path / 'm')
    assert [each.examples for each in loaded.capacities] == [2]
    corpus = loaded.trace([[1], [2]])
    with pytest.raises(
        ValueError, match='expected a batch for one device, as what was'
    ):
        corpus.schedule([0, 1], sharding=sharding)


def test_platforms_that_there_are(tmp_path: Path) -> None:
    """JAX would take any words."""
    made = sums()
    room = rooms(made, 2, 1)
    text = "expected `platforms` of 'cpu', 'cuda', 'rocm', 'tpu', got 'gpu'"
    with refuses(text, ValueError):
        jf.save(tmp_path / 'm', made, {}, room, platforms=['cpu', 'gpu'])
    hint = "pass `platforms=['cpu']`"
    for wrong, shown in ('cpu', "'cpu'"), ([], '[] (list)'):
        with refuses(f'expected `platforms` as a list of names, got {shown}: {hint}'):
            jf.save(tmp_path / 'm', made, {}, room, platforms=wrong)


def test_functions_that_jax_does_not_export(tmp_path: Path) -> None:
    """Its error says why, and a note whose it is."""
    struct: Any = jax.ShapeDtypeStruct
    call = functools.partial(jax.pure_callback, vmap_method='broadcast_all')
    fn = jf.Function(lambda x: call(np.sin, struct((), 'float32'), x))
    made = jf.compile(jf.Scalar() >> fn)
    with pytest.raises(NotImplementedError, match='host_callbacks') as caught:
        jf.save(tmp_path / 'm', made, {}, made.trace([1]).capacities(1))
    assert 'expected functions that `jax.export` can write' in caught.value.__notes__[0]


def test_what_writes_programs_is_missing(tmp_path: Path, monkeypatch: Any) -> None:
    """Its error, which has nothing to do with functions."""
    made = sums()
    monkeypatch.setitem(sys.modules, 'flatbuffers', None)
    monkeypatch.delitem(sys.modules, 'jax._src.export.serialization', raising=False)
    with pytest.raises(ImportError, match='flatbuffers') as caught:
        jf.save(tmp_path / 'm', made, {}, rooms(made, 2, 1))
    assert not getattr(caught.value, '__notes__', [])


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    made = sums()
    with pytest.raises(FileNotFoundError) as caught:
        jf.save(tmp_path / 'none' / 'm', made, {}, rooms(made, 2, 1))
    assert caught.value.__notes__ == [
        'expected `path` in a folder that exists, got another: make the folder'
    ]
    with pytest.raises(FileNotFoundError) as caught:
        jf.load(tmp_path / 'none')
    assert caught.value.__notes__ == [
        'expected a model in a file, got none: write it by `jf.save`'
    ]
    with refuses('expected `path` as the path of a file, got 3'):
        jf.save(3, made, {})  # type: ignore[arg-type]


def test_saving_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """No capacity is reserved for it."""
    made = jf.compile(sums().block, max_programs=1)
    jf.save(tmp_path / 'm', made, {}, rooms(made, 3, 1, 2, 3))
    assert made.programs == 0
    made.schedule([[1]])


def test_parameters_that_are_no_arrays(tmp_path: Path) -> None:
    def key(rng: jax.Array, x: Any) -> Any:
        return {'keys': [jax.random.key(0)]}

    made = jf.compile(jf.Scalar() >> jf.Function(lambda p, x: x, key, name='drawn'))
    room = made.trace([1]).capacities(1)
    with pytest.raises(TypeError) as caught:
        jf.save(tmp_path / 'm', made, made.init(jax.random.key(0)), room)
    assert str(caught.value).startswith(
        'expected parameters that are arrays of numbers'
    )
    assert "params['drawn']['keys'][0]" in str(caught.value)
    with pytest.raises(
        TypeError, match=r"expected parameters for layers? 'word'|'join'"
    ):
        jf.save(tmp_path / 'm', model(), {})


# ---- files that are not read ---------------------------------------------------------


def changed(path: Path, into: Path, **changes: Any) -> Path:
    """The file with other metadata, and right checksums."""
    arrays, metadata = storage.read(path)
    into = into / 'changed'
    storage.write(into, arrays, {'model': metadata['model'] | changes})
    return into


def saved(path: Path) -> dict[str, Any]:
    """What the metadata of the file say."""
    return dict(storage.read(path)[1]['model'])


def test_every_part_of_a_file_is_checked(path: Path, tmp_path: Path) -> None:
    """Altered anywhere, or cut anywhere."""
    whole, other = path.read_bytes(), tmp_path / 'other'
    places = [*range(0, 3000, 7), *range(3000, len(whole), 997)]
    for place in places:
        other.write_bytes(whole[:place])
        with pytest.raises(jf.DamagedError):
            jf.load(other)
        flipped = bytes([whole[place] ^ 0x10])
        other.write_bytes(whole[:place] + flipped + whole[place + 1 :])
        with pytest.raises((jf.DamagedError, jf.UnknownFormatError)):
            jf.load(other)


def test_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / 'c'
    model().trace(TREES).save(path)
    hint = 'write one by `jf.save(path, model, params)`'
    with refuses(f'{path}: expected a model, got a corpus: {hint}', ValueError):
        jf.load(path)
    storage.write(path, {}, {})
    with refuses(f'{path}: expected a model, got other arrays: {hint}', ValueError):
        jf.load(path)
    with refuses('expected `path` as the path of a file, got 3'):
        jf.load(3)  # type: ignore[arg-type]
    path.write_text('hello')
    with pytest.raises(jf.DamagedError, match='not a file of this format'):
        jf.load(path)


def test_other_platforms(tmp_path: Path) -> None:
    """Several may be named; where it runs has to be one of them."""
    made, path = sums(), tmp_path / 'm'
    jf.save(path, made, {}, rooms(made, 3, 2), platforms=['cuda', 'tpu'])
    text = (
        f"{path}: expected a model saved for 'cpu', where this program runs, got one "
        "for 'cuda', 'tpu': save it by `jf.save(..., platforms=['cuda', 'tpu', 'cpu'])`"
    )
    with refuses(text, ValueError):
        jf.load(path)
    jf.save(path, made, {}, rooms(made, 3, 2), platforms=['cpu', 'cuda'])
    loaded = jf.load(path)
    assert loaded.platforms == ('cpu', 'cuda')
    assert loaded.predict([[1, 2]]).tolist() == [3]


def test_other_versions(path: Path, tmp_path: Path) -> None:
    """What wrote it is told."""
    versions = {'jax': '0.1', 'jfold': '9'}
    now = f'jax {jax.__version__} and jfold {jf.__version__}'
    end = 'save it again, or load it with the versions that wrote it'

    def check_refused(what: str, **changes: Any) -> None:
        other = changed(path, tmp_path, versions=versions, **changes)
        begin = f'{other}: expected a model of {now}, got one of jax 0.1 and jfold 9'
        with refuses(f'{begin}, with {what}: {end}', jf.UnknownFormatError):
            jf.load(other)

    check_refused('format 2, not 1', format=2)
    program = saved(path)['program']
    classes = program['classes'] | {'Apply': ['inputs']}
    check_refused(
        'a `Apply` that is made otherwise', program=program | {'classes': classes}
    )
    classes = program['classes'] | {'Later': []}
    check_refused(
        'a `Later` that is made otherwise', program=program | {'classes': classes}
    )
    check_refused('another layout of schedules', layouts=['', ''])
    assert jf.load(changed(path, tmp_path, versions=versions)).capacities


def test_programs_that_jax_cannot_read(path: Path, tmp_path: Path) -> None:
    arrays, metadata = storage.read(path)
    arrays['apply/0'] = np.zeros(100, np.uint8)
    storage.write(tmp_path / 'm', arrays, metadata)
    with pytest.raises(jf.UnknownFormatError, match='with programs that fail with'):
        jf.load(tmp_path / 'm')


NUMBERS = 'constants', 'rows', 'fans', 'sums', 'metrics', 'profiles'
ROOM = {'examples': 1, 'stages': 0, **{name: [] for name in NUMBERS}}
NONSENSE: list[dict[str, Any]] = [
    {'program': {}},
    {'program': {'classes': {}, 'records': [['tuple']], 'root': [0]}},
    {'program': {'classes': {}, 'records': [['tuple', [3]]], 'root': [0]}},
    {'capacities': [{'examples': 1}]},
    {'capacities': 3},
    {'params': ['dict', [['word', 99]]]},
    {'params': ['set', []]},
    {'params': ['dict', []]},
    {'versions': 3},
    {'capacities': [], 'layouts': []},
    {'capacities': [{'levels': 'many', **ROOM}]},
    {'capacities': [{'levels': 1, 'shards': [2], **ROOM}]},
]


@pytest.mark.parametrize('changes', NONSENSE, ids=range(len(NONSENSE)))
def test_a_file_that_says_nonsense(changes: Any, path: Path, tmp_path: Path) -> None:
    """Right checksums, whoever wrote it."""
    with pytest.raises(
        jf.DamagedError, match=r'/changed: malformed: .*; write it again'
    ):
        jf.load(changed(path, tmp_path, **changes))


def test_a_wrong_program_is_not_run(path: Path, tmp_path: Path) -> None:
    """It is checked as one that was lowered is."""
    program = saved(path)['program']
    records = [[*x] for x in program['records']]
    (apply, *_) = (x for x in records if x[0] == 'Apply')
    apply[-1] = 99
    other = changed(path, tmp_path, program=program | {'records': records})
    with pytest.raises(jf.DamagedError, match='malformed'):
        jf.load(other)


def test_functions_that_have_changed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are called by name, so they are compared with what they were."""

    def lower(word: str) -> str:
        return word.upper()

    with monkeypatch.context() as patch:
        patch.setattr(saved_functions, 'lower', lower)
        text = (
            f'{path}: expected the functions that the model was saved with, got others '
            'of their names, or other data that they use at module level, with a '
            'different `Transform fn=lower` in '
            "tree.OneOf['leaf'].Pipe[0].InputTransform(lower). Load it beside the code "
            'as it was, save the model again, or pass `check_functions=False` if these '
            'do the same'
        )
        with refuses(text, ValueError):
            jf.load(path)
        loaded = jf.load(path, check_functions=False)
        changed, unknown = loaded.predict(['good', 'x'])[0][0]
        np.testing.assert_array_equal(changed, unknown)
    with monkeypatch.context() as patch:
        patch.delattr(saved_functions, 'lower')
        with pytest.raises(ImportError, match="expected `lower` in module 'saved_func"):
            jf.load(path)
    jf.load(path)


def test_only_named_modules_are_imported(path: Path) -> None:
    """And what they import themselves."""
    names = {
        record[1] for record in saved(path)['program']['records'] if record[0] == 'name'
    }
    assert names == {'builtins', 'saved_functions'}


def test_a_failure_leaves_the_old_file(
    path: Path, monkeypatch: Any, tmp_path: Path
) -> None:
    """Nothing is written before all of it is there."""
    made, file = sums(), tmp_path / 'm'
    jf.save(file, made, {}, rooms(made, 3, 2))
    before = file.read_bytes()
    monkeypatch.setattr(saving, '_exported', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jf.save(file, made, {}, rooms(made, 3, 2))
    assert file.read_bytes() == before
