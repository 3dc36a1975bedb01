# SPDX-License-Identifier: Apache-2.0
"""What is not saved, and which files are not read as models: each is told why."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saved_functions
from checking import refuses
from meshes import over_devices
from saved_models import TREES, model, params, rooms, sums

import jfold as jf
from jfold.files import storage
from jfold.files.encoding import tags
from jfold.language.inference import infer
from jfold.language.portable import USE
from jfold.lower import lower_typed
from jfold.models import saved as saving


@pytest.fixture(scope='module')
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds the model."""
    path = tmp_path_factory.mktemp('saved') / 'model.jfold'
    jf.save(path, model(), params())
    return path


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
        '(test_saved_refused.py:n), '
        "in Record['a'].Pipe[0].InputTransform(function); `inside`, defined in a "
        "function (test_saved_refused.py:n), in Record['b'].OneOf(inside, {1: "
        "Scalar('float32'), 2: Scalar('float32')...; an object of builtins.object, in "
        "Record['c'].Pipe[0].GetItem('d', default=<object object at 0x>). Define "
        'functions at the top of a module that can be imported'
    )
    assert os.listdir(tmp_path) == []


EXTERNAL = jf.compile(jf.Map(jf.External('features', 2)) >> jf.Sum())
WRONG: list[dict[str, Any]] = [  # in place of right arguments
    {'model': EXTERNAL},
    {'model': 3},
    {'path': 3},
    {'capacities': None},
    {'capacities': []},
    {'capacities': 3},
    {'capacities': [3]},
    {'platforms': ['cpu', 'gpu']},  # JAX would take any words
    {'platforms': 'cpu'},
    {'platforms': []},
]
TEXTS = """\
ValueError: expected a model without `External` blocks, got one with ['features']: save one whose arrays are parameters, such as of `jf.layers.Embed`
TypeError: expected `model` as what `jfold.compile` returns, got 3
TypeError: expected `path` as the path of a file, got 3
ValueError: expected a capacity at least, got none: pass `capacities=` of `model.trace(examples).capacities(batch_size)`, or call `model.reserve` with it before
ValueError: expected a capacity at least, got none: pass `capacities=` of `model.trace(examples).capacities(batch_size)`, or call `model.reserve` with it before
TypeError: expected `capacities` as a list of capacities, got 3
TypeError: expected a `Capacity`, got int: take it from `model.trace(examples).capacities(batch_size)`
ValueError: expected `platforms` of 'cpu', 'cuda', 'rocm', 'tpu', got 'gpu'
TypeError: expected `platforms` as a list of names, got 'cpu': pass `platforms=['cpu']`
TypeError: expected `platforms` as a list of names, got [] (list): pass `platforms=['cpu']`
"""  # noqa: E501


@pytest.mark.parametrize(
    ('wrong', 'text'), [*zip(WRONG, TEXTS.splitlines(), strict=True)]
)
def test_arguments_that_are_refused(
    wrong: dict[str, Any], text: str, tmp_path: Path
) -> None:
    save: Any = jf.save
    made = sums()
    right = {'path': tmp_path / 'm', 'model': made, 'params': {}}
    right |= {'capacities': rooms(made, 2, 1)}
    with pytest.raises((TypeError, ValueError)) as caught:
        save(**right | wrong)
    assert f'{type(caught.value).__name__}: {caught.value}' == text
    assert os.listdir(tmp_path) == []


def test_capacities_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='expected a `Capacity` of this model'):
        jf.save(tmp_path / 'm', sums(), {}, model().trace(TREES).capacities(1))


def test_capacities_of_several_devices(tmp_path: Path) -> None:
    """They are left out of what a model has, and refused where they are passed."""
    made = sums()
    sharding = over_devices()
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


def test_a_damaged_file(path: Path, tmp_path: Path) -> None:
    """Wherever it is damaged, as the tests of storage say."""
    whole, other = path.read_bytes(), tmp_path / 'other'
    damaged = whole[:-1], whole.replace(b'NUMPY', b'NUMPX')
    for content, text in zip(damaged, ('truncated', 'array .*: wrong'), strict=True):
        other.write_bytes(content)
        with pytest.raises(jf.DamagedError, match=f'^{other}: {text}'):
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
    versions = {'jax': '0.1', 'jfold': '9'}
    now = f'jax {jax.__version__} and jfold {jf.__version__}'
    end = 'save it again, or load it with the versions that wrote it'

    def check_refused(what: str, **changes: Any) -> None:
        other = changed(path, tmp_path, versions=versions, **changes)
        begin = f'{other}: expected a model of {now}, got one of jax 0.1 and jfold 9'
        with refuses(f'{begin}, with {what}: {end}', jf.UnknownFormatError):
            jf.load(other)

    check_refused('format 1, not 8', format=1)
    check_refused('format 7, not 8', format=7, program={})
    program = saved(path)['program']
    classes = [*program['classes'], 'Later']
    check_refused(
        'other kinds of blocks: Later', program=program | {'classes': classes}
    )
    classes = [each for each in program['classes'] if each != 'Nth']
    check_refused('other kinds of blocks: Nth', program=program | {'classes': classes})
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
    {'program': {'classes': tags(), 'records': [['tuple']], 'root': [0]}},
    {'program': {'classes': tags(), 'records': [['tuple', [3]]], 'root': [0]}},
    {'capacities': [{'examples': 1}]},
    {'capacities': 3},
    {'versions': 3},
    {'capacities': [], 'layouts': []},
    {'residuals': []},
    {'strategy': 'never'},
    {'strategy': None},
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


def test_a_file_without_an_expression(path: Path, tmp_path: Path) -> None:
    """What it names in place of one is not asked for its items."""
    for records in [['name', 'http', 'HTTPStatus']], [['tuple', 1, True, True]]:
        program = {'classes': tags(), 'records': records, 'root': [0]}
        with pytest.raises(jf.DamagedError, match='expected an expression, got '):
            jf.load(changed(path, tmp_path, program=program))


@pytest.mark.parametrize('shape', [None, (3, 5), (2,)])
def test_parameters_of_other_layers(shape: Any, path: Path, tmp_path: Path) -> None:
    """An array that is missing, or of another shape, under a right checksum."""
    arrays, metadata = storage.read(path)
    kept = {name: x for name, x in arrays.items() if name != 'params/0'}
    wrong = {} if shape is None else {'params/0': np.zeros(shape, 'float32')}
    storage.write(tmp_path / 'm', kept | wrong, metadata)
    with pytest.raises(jf.DamagedError, match='malformed'):
        jf.load(tmp_path / 'm')


def test_a_wrong_program_is_not_run(path: Path, tmp_path: Path) -> None:
    """It is checked as one that was lowered is."""
    program = saved(path)['program']
    records = [[*x] for x in program['records']]
    uses = [n for n, x in enumerate(records) if x[0] == 'TypedUse']
    assert uses
    parts = 1 + USE.index('parts')
    for n in uses:
        wrong = [*records]
        wrong[n] = [*wrong[n][:parts], 99, *wrong[n][parts + 1 :]]
        other = changed(path, tmp_path, program=program | {'records': wrong})
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
            'different `lower = lower` in '
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
    with monkeypatch.context() as patch:
        patch.setattr(saved_functions, 'lower', 3)
        with pytest.raises(ImportError, match='got 3, which cannot be called: use the'):
            jf.load(path)
    jf.load(path)


def test_only_named_modules_are_imported(path: Path) -> None:
    names = {
        record[1] for record in saved(path)['program']['records'] if record[0] == 'name'
    }
    assert names == {'builtins', 'saved_functions'}


def test_a_length_of_another_type_is_no_code() -> None:
    """What a file says of a block is restored without its constructor."""
    typing = infer(jf.Map(jf.Scalar()) >> jf.Padded(3) >> jf.Concat())
    (padded,) = (x for x in typing.root.parts if isinstance(x.block, jf.Padded))
    object.__setattr__(padded.block, 'length', '3) or print(1')
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an int"):
        lower_typed(typing, fuses=True, unrolls=False)


def test_a_failure_leaves_the_old_file(
    path: Path, monkeypatch: Any, tmp_path: Path
) -> None:
    """Nothing is written before all of it is there."""
    made, file = sums(), tmp_path / 'm'
    jf.save(file, made, {}, rooms(made, 3, 2))
    before = file.read_bytes()
    monkeypatch.setattr(saving, '_export', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jf.save(file, made, {}, rooms(made, 3, 2))
    assert file.read_bytes() == before
