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
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from binary_trees import binary
from checking import refuses
from compilations import compilations
from flax import nnx
from saved_functions import Colour, Part
from saved_models import TREES, check, model, params, rooms, same, sums

import jfold as jf


@pytest.fixture(scope='module')
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds the model."""
    path = tmp_path_factory.mktemp('saved') / 'model.jfold'
    jf.save(path, model(), params())
    return path


@pytest.fixture(scope='module')
def loaded(path: Path) -> Any:
    return jf.load(path)


# ---- in other processes --------------------------------------------------------------

READER = """
import json, sys
import numpy as np
import jax
import jfold as jf
loaded, trees = jf.load('model.jfold'), json.loads(sys.argv[1])
schedules = [loaded.schedule(trees), loaded.schedule(trees[-1:])]
found = [*(loaded.apply(loaded.params, x) for x in schedules), loaded.predict(trees)]
assert 'flax' not in sys.modules and 'saved_models' not in sys.modules
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


def test_predictions_take_the_next_larger_size(tmp_path: Path) -> None:
    made = sums()
    jf.save(tmp_path / 'm', made, {}, [*rooms(made, 4, 1), *rooms(made, 6, 4)])
    loaded, lists = jf.load(tmp_path / 'm'), [[n] for n in range(6)]
    for size in (1, 2, 4, None):
        found = loaded.predict(lists, batch_size=size, progress=False)
        assert found.tolist() == [0, 1, 2, 3, 4, 5]
    text = 'expected `batch_size` of at most 4, with which the model was saved, got 5'
    with refuses(text, ValueError):
        loaded.predict(lists, batch_size=5)


def test_a_batch_that_outgrew_all(tmp_path: Path) -> None:
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


def test_predictions_of_any_source(loaded: Any, tmp_path: Path) -> None:
    """In their order, with metrics; what either has traced fits both."""
    trees = TREES * 3
    model().trace(trees).save(tmp_path / 'corpus.jfold')
    corpus = loaded.trace(trees, progress=False)
    sources = {
        'list': trees,
        'stream': iter(trees),
        'corpus': corpus,
        'file': jf.Corpus.load(tmp_path / 'corpus.jfold', loaded),
        'traced': model().tracer()(trees),
        'joined': loaded.join([loaded.tracer()(TREES)] * 3),
    }
    want = model().predict(params(), trees, batch_size=4)
    for source in sources.values():
        same(loaded.predict(source), want)
    single = loaded.predict(corpus, batch_size=1, progress=False)
    assert jax.tree.structure(single) == jax.tree.structure(want)
    for nothing in [], loaded.trace([]):
        same(loaded.predict(nothing), model().predict(params(), []))


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


def test_other_parameters_of_the_same_shapes(loaded: Any) -> None:
    given = model().init(jax.random.key(1))
    schedule = loaded.schedule(TREES, size=4)
    want = model().apply(given, model().schedule(TREES, size=4), deterministic=True)
    found = loaded.apply(dict(reversed(given.items())), schedule)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, want)
    with pytest.raises(TypeError, match=r"expected parameters for layer 'join'"):
        loaded.apply({'word': given['word']}, schedule)
    with pytest.raises(TypeError, match=r"got \['other'\] too"):
        loaded.apply(given | {'other': 1}, schedule)
    hint = 'call `loaded.apply(loaded.params, loaded.schedule(examples))`'
    text = f'expected a schedule made by this model, got one of another: {hint}'
    with refuses(text, ValueError):
        loaded.apply(given, model().schedule(TREES, size=4))
    with pytest.raises(ValueError, match=r'that of one batch, got \[2\] of them'):
        loaded.apply(given, jf.Schedule.stack([schedule] * 2))
    with refuses(
        f'expected `schedule` as a schedule, got 3 (int): {hint}'.replace(' (int)', '')
    ):
        loaded.apply(given, 3)


@pytest.mark.parametrize('wrong', [{}, None, {'word': 1, 'join': 2}])
def test_where_the_right_parameters_are(wrong: Any, loaded: Any) -> None:
    """In the file: a loaded model has no `init`."""
    schedule, hint = loaded.schedule(TREES), '; pass `loaded.params`, or others of '
    with pytest.raises(TypeError, match=f'{hint}these shapes$'):
        loaded.apply(wrong, schedule)
    halved = jax.tree.map(lambda x: x[:1], loaded.params)
    with pytest.raises(TypeError, match=f'{hint}these shapes$'):
        loaded.apply(halved, schedule)


def test_parameters_in_other_containers(tmp_path: Path) -> None:
    """Their leaves are told by name, in whatever order they come."""

    def init(key: jax.Array, x: Any) -> dict[str, jax.Array]:
        return {'scale': jnp.float32(2), 'add': jnp.float32(10)}

    line = jf.Function(lambda p, x: p['scale'] * x + p['add'], init, name='line')
    loaded = check(jf.Scalar() >> line, [3], tmp_path)
    schedule = loaded.schedule([3])
    ordered = OrderedDict(scale=jnp.float32(3), add=jnp.float32(1))
    for mapping in ordered, MappingProxyType(ordered):
        params = MappingProxyType({'line': mapping})
        assert loaded.apply(params, schedule).tolist() == [10]
    block, examples = BLOCKS['nnx with dropout']()
    loaded = check(block, examples, tmp_path)
    given = jf.compile(block).init(jax.random.key(0))
    schedule = loaded.schedule(examples)
    same(loaded.apply(given, schedule), loaded.apply(loaded.params, schedule))


def test_transformations_that_are_no_part_of_a_file(loaded: Any) -> None:
    """Each is refused with what to do; `jax.jit` alone is none of them."""
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
    loaded = jf.load(path)
    with compilations('') as compiled:
        loaded.precompile()
    assert len(compiled) == 2
    schedules = [loaded.schedule(TREES[:n]) for n in (1, 3)]
    with compilations('') as compiled:
        for schedule in schedules:
            loaded.apply(loaded.params, schedule)
    assert compiled == []


def test_the_public_names_of_a_loaded_model(loaded: Any) -> None:
    uses = {'apply', 'join', 'precompile', 'predict', 'schedule', 'trace', 'tracer'}
    facts = {'capacities', 'params', 'platforms', 'program', 'scheduler'}
    assert {name for name in dir(loaded) if name[0] != '_'} == uses | facts


def test_nothing_is_read_of_the_file_later(path: Path, tmp_path: Path) -> None:
    """Which may be overwritten in place, by another copy or by nothing."""
    file = tmp_path / 'copy'
    file.write_bytes(path.read_bytes())
    loaded = jf.load(file)
    file.write_bytes(bytes(100))
    want = model().predict(params(), TREES, batch_size=4)
    same(loaded.predict(TREES), want)


def test_errors_of_examples_tell_where(loaded: Any) -> None:
    with pytest.raises(jf.InputError) as expected:
        model().schedule(['good', ['good', ['x', 3]]])
    with refuses(str(expected.value), jf.InputError):
        loaded.schedule(['good', ['good', ['x', 3]]])


# ---- which models --------------------------------------------------------------------


def trees(leaf: Any, join: Any) -> jf.Block:
    return binary(jf.Scalar('int32') >> leaf, join)


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
    return trees(nnx.Embed(8, 4, rngs=rngs), jf.Concat() >> (many if boxed else linear))


BLOCKS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    'layers': lambda: (
        trees(
            jf.layers.Embed(8, 4) >> jf.layers.FC(4),  # one operation, with two layers
            jf.Concat() >> jf.layers.FC(4),
        ),
        INTS,
    ),
    'nnx': lambda: (of_nnx(False), INTS),
    'nnx with dropout': lambda: (of_nnx(True), INTS),
    'bfloat16': lambda: (
        trees(
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
    'values of many kinds': lambda: (
        jf.Record(
            {
                'void': jf.AllOf(jf.Scalar(), jf.Void()),
                'keys': jf.OneHotFromList(
                    [None, 1.5, (1, 'x'), b'q', True, float('inf')], strict=False
                ),
                'default': jf.GetItem('a', default={'b': (1, [2.5])})
                >> jf.GetItem('b')
                >> jf.Record((jf.Scalar(), jf.Vector(1))),
                'constant': jf.FromTensor(np.arange(3, dtype='int32')),
            }
        ),
        [
            {'void': 1, 'keys': key, 'default': {}, 'constant': None}
            for key in (None, 1.5, (1, 'x'), b'q', 'else', float('inf'))
        ]
        + [{'void': 2, 'keys': True, 'default': {'a': {'b': (3, [4])}}, 'constant': 0}],
    ),
    'parameters of any structure': lambda: (
        jf.Scalar()
        >> jf.Function(
            lambda p, x: p[0][0] * x + p[1],
            init=lambda key, x: {0: [jnp.full((), 2.0)], 1: jnp.ones(()), 2: (None,)},
        ),
        [1, 2],
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', BLOCKS)
def test_models_of_many_kinds(name: str, tmp_path: Path) -> None:
    block, examples = BLOCKS[name]()
    check(block, examples, tmp_path)


@pytest.mark.parametrize(
    ('strategy', 'residuals', 'reproducible'),
    [('counted', 'recompute all', True), ('fixed', 'save products', False)],
)
def test_options_of_the_model(
    tmp_path: Path, strategy: str, residuals: str, reproducible: bool
) -> None:
    """Schedules are for the programs as they were saved; of each option either value
    occurs."""
    options = {'strategy': strategy, 'residuals': residuals}
    block = trees(nn.Embed(8, 4), JOIN)
    loaded = check(block, INTS, tmp_path, reproducible=reproducible, **options)
    (spec,) = loaded.scheduler.budget.specs
    assert (spec.strategy, spec.residuals) == (strategy, residuals)
    assert spec.reproducible == reproducible


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
