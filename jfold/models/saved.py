# SPDX-License-Identifier: Apache-2.0
"""Models in files: `save` writes all that predictions need, `load` reads it.

A file of `jfold.files.storage` holds the expression as records, the parameters, and
for each capacity the program that `jax.export` writes of `apply`. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.tree_util import keystr, tree_leaves_with_path

import jfold
from jfold.base.arguments import expect
from jfold.base.arrays import array_spec
from jfold.base.errors import describe_error, short_repr
from jfold.base.structs import leaf_restorer, plain_containers, plain_leaves
from jfold.base.tracebacks import api_boundary
from jfold.data.agreement import capacity_as_json, capacity_of_json
from jfold.data.fingerprint import differences, fingerprint
from jfold.data.scheduler import Scheduler
from jfold.files import storage
from jfold.files.encoding import PLAIN, Encoder, decode, tags
from jfold.files.storage import UnknownFormatError, check_path, note_missing, reading
from jfold.language.parameter_checks import check_params, checked_params
from jfold.language.portable import portable
from jfold.language.typed import TypedExpression
from jfold.lower import lower_typed
from jfold.models.loaded import LoadedModel, make_step
from jfold.models.model import Model
from jfold.program.operations import Program
from jfold.program.result_tables import check_classes
from jfold.scheduling.budget import FixedBudget
from jfold.scheduling.layout import layout
from jfold.scheduling.schedule import Schedule, abstract
from jfold.scheduling.spec import RESIDUALS, STRATEGIES, Capacity, Spec

Array = np.ndarray[Any, Any]
Path = str | os.PathLike[str]
FORMAT = 8
POOL, PARAMS, PROGRAM = 'program/', 'params/', 'apply/'  # prefixes of arrays


# ---- saving --------------------------------------------------------------------------


@api_boundary
def save(
    path: Path,
    model: Model,
    params: Mapping[str, Any],
    capacities: Capacity | Iterable[Capacity] | None = None,
    *,
    platforms: Sequence[str] | None = None,
) -> None:
    """Write a model with its parameters to a file, for predictions without its code.

    The file holds the expression, by which the host reads examples, the parameters, and
    `model.apply` for batches of some capacities, as `jax.export` writes it. Functions
    that the host calls (`InputTransform`, keys of `OneOf`) are written by the names by
    which they can be imported; an error lists those that cannot, as of a notebook.

    Args:
      path: the file, which is written all or nothing.
      model: as `jfold.compile` returns it; without `External` blocks, and with results
        in tuples, dicts and sequences.
      params: as in `Model.apply`; `load` returns them in dicts, lists and tuples.
      capacities: the capacities to export; by default all those of the model so far,
        from `Model.reserve` and from its schedules.
      platforms: where the file is to run, of 'cpu', 'cuda', 'rocm' and 'tpu'; by
        default as here. For others, `jf.compile(..., strategy=)` says how loops run.

    Raises:
      TypeError: the expression holds functions or values that cannot be written; all
        are listed, with their blocks. Or `params` are not as in `Model.apply`.
      ValueError: there is no capacity; one is of another model, or of several devices;
        the model has `External` blocks; or a platform is not known.
      FileNotFoundError: there is no such folder.
      ImportError: the package `flatbuffers` is not installed.

    >>> import jfold as jf, tempfile
    >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    >>> room = model.trace([[1] * n for n in range(9)]).capacities(2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     jf.save(f'{folder}/sums.jfold', model, {}, room)
    ...     loaded = jf.load(f'{folder}/sums.jfold')
    >>> loaded.predict([[1, 2], [3], []])
    array([3., 3., 0.], dtype=float32)
    """
    expect('model', model, isinstance(model, Model), 'what `jfold.compile` returns')
    check_classes(model.program.results)
    if names := [x.name for x in model.program.layers if x.external]:
        raise ValueError(
            f'expected a model without `External` blocks, got one with {names}: save '
            'one whose arrays are parameters, such as of `jf.layers.Embed`'
        )
    _check_platforms(platforms)
    check_path(path)
    params = checked_params(model.program.layers, params)
    specs = _specs(model, capacities)
    layers = (x.name for x in model.program.layers if x.params is not None)
    params = {name: params[name] for name in layers}
    leaves = _leaves(params)
    arrays, program = _write_program(model.program)
    arrays |= {f'{PARAMS}{n}': leaf for n, leaf in enumerate(leaves)}
    canonical = jax.dtypes.canonicalize_dtype
    shapes = jax.tree.map(lambda x: array_spec(x.shape, canonical(x.dtype)), params)
    for n, spec in enumerate(specs):
        data = _export(model, shapes, spec, platforms)
        arrays[f'{PROGRAM}{n}'] = np.frombuffer(data, np.uint8)
    content = {
        'format': FORMAT,
        'versions': _versions(),
        'program': program,
        'fingerprint': fingerprint(model.program),
        'residuals': specs[0].residuals,
        'strategy': specs[0].strategy,
        'reproducible': specs[0].reproducible,
        'capacities': [capacity_as_json(spec.capacity) for spec in specs],
        'layouts': [_layout_digest(spec) for spec in specs],
    }
    storage.write(path, arrays, {'model': content})


def _check_platforms(platforms: object) -> None:
    """Raise TypeError unless `platforms` is a list, ValueError for an unknown name."""
    if platforms is None:
        return
    known = ('cpu', 'cuda', 'rocm', 'tpu')
    names = platforms if isinstance(platforms, list | tuple) else ()
    hint = "pass `platforms=['cpu']`"
    expect('platforms', platforms, bool(names), 'a list of names', hint)
    for name in names:
        if name not in known:
            of, got = ', '.join(map(repr, known)), short_repr(name)
            raise ValueError(f'expected `platforms` of {of}, got {got}')


def _specs(
    model: Model, capacities: Capacity | Iterable[Capacity] | None
) -> list[Spec]:
    """Return specs of `capacities`, or all of `model`, by size; ValueError if none."""
    if capacities is None:
        chains = model.budget.chains.values()
        specs = [x for chain in chains for x in chain.specs if x.shards is None]
    else:
        several = [capacities] if isinstance(capacities, Capacity) else capacities
        is_several = isinstance(several, Iterable)
        expect('capacities', several, is_several, 'a list of capacities')
        specs = list(dict.fromkeys(map(model.budget.spec_of, several)))
    if not specs:
        raise ValueError(
            'expected a capacity at least, got none: pass `capacities=` of '
            '`model.trace(examples).capacities(batch_size)`, or call `model.reserve` '
            'with it before'
        )
    for spec in specs:
        if spec.shards is not None:
            raise ValueError(
                f'expected capacities for one device, got one for {spec.shards}: pass '
                'one of `corpus.capacities(batch_size)`, without `sharding`'
            )
    return sorted(specs, key=_sort_key)


def _sort_key(spec: Spec) -> tuple[int, ...]:
    """Return a sort key: larger than those of specs that fit into `spec`."""
    capacity = spec.capacity
    steps = sum(count for profile in capacity.profiles for count, _ in profile)
    return capacity.examples, sum(capacity.rows), sum(capacity.numbers), steps


def _versions() -> dict[str, str]:
    return {'jax': jax.__version__, 'jfold': jfold.__version__}


def _write_program(program: Program) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return a program as arrays by name, and as JSON.

    Raises TypeError if it holds functions or values that cannot be written.
    """
    encoder = Encoder()
    root = encoder.encode(portable(program))
    if encoder.refused:
        refused = (f'{what}, in {where}' for where, what in encoder.refused)
        raise TypeError(
            'expected an expression whose functions on the host can be imported by '
            f'name, and whose tables, keys and defaults are made of {PLAIN}, got: '
            f'{"; ".join(dict.fromkeys(refused))}. Define functions at the top of a '
            'module that can be imported'
        )
    arrays = {f'{POOL}{name}': array for name, array in encoder.arrays.items()}
    document = {'classes': tags(), 'records': encoder.records, 'root': root}
    # A wrong program is reported now, not when it is loaded, perhaps years later.
    read = _read_program(arrays, document)
    if differences(fingerprint(program), fingerprint(read)):
        raise AssertionError('jfold wrote a wrong program, please report it')
    return arrays, document


def _leaves(params: object) -> list[Array]:
    """Return the arrays of parameters, in the order of `plain_leaves(params)`.

    Raises TypeError if a leaf is no array of numbers. Containers are written with the
    layers of the program.
    """
    leaves = tree_leaves_with_path(plain_containers(params))
    for path, leaf in leaves:
        is_array = isinstance(leaf, np.ndarray | np.generic | jax.Array)
        if not (is_array and storage.can_hold(leaf.dtype)):
            raise TypeError(
                'expected parameters that are arrays of numbers, got '
                f'{short_repr(leaf)} at params{keystr(path)}: leave it to functions, '
                'or make an array of it'
            )
    # In the dtype of JAX now: `jax.enable_x64` may differ where it is loaded.
    return [np.asarray(x, jax.dtypes.canonicalize_dtype(x.dtype)) for _, x in leaves]


def _export(
    model: Model, params: Any, spec: Spec, platforms: Sequence[str] | None
) -> bytearray:
    """Return `model.apply` exported for `platforms`, `spec`, shapes of `params`."""
    structure = leaf_restorer(params)

    def apply(leaves: Any, indices: jax.Array, constants: tuple[jax.Array, ...]) -> Any:
        schedule = Schedule(indices, constants, spec)
        return model.apply(structure(leaves), schedule, deterministic=True)

    shapes = abstract(spec)
    run = export.export(jax.jit(apply), platforms=platforms)
    try:
        # Leaves in a list, since JAX writes only dicts whose keys are strings.
        return run(plain_leaves(params), shapes.indices, shapes.constants).serialize()
    except ImportError:  # `flatbuffers` is missing
        raise
    except Exception as error:
        error.add_note(
            'expected functions that `jax.export` can write, got this error: callbacks '
            'to Python are none, for one'
        )
        raise


def _layout_digest(spec: Spec) -> str:
    """Return a digest of where rows and indices lie in the arrays of a schedule.

    The text of a `Layout` is a part of the file format: a model that was saved under
    another text is refused.
    """
    return hashlib.sha256(repr(layout(spec)).encode()).hexdigest()


# ---- loading -------------------------------------------------------------------------


@api_boundary
def load(path: Path, *, check_functions: bool = True) -> LoadedModel:
    """Read a model that `save` wrote; it schedules and predicts as the saved one did.

    Loading imports the modules whose functions the host calls, and runs nothing else;
    predicting calls these functions with examples. The writer of a file chooses the
    functions, so load only files from people whose code you would run.

    Args:
      path: the file.
      check_functions: whether to refuse the file if functions that the host calls have
        changed, or data at module level that they use, such as a cache.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedError: the file is damaged or truncated, or of another kind.
      UnknownFormatError: the file is of another version of jfold or JAX.
      ImportError: a module that the file names is missing or raises an error, or has no
        function of a name in the file.
      ValueError: the file holds something else, or is for other platforms; or functions
        have changed since it was written.

    >>> import jfold as jf, tempfile
    >>> model = jf.compile(jf.Scalar())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     jf.save(f'{folder}/one', model, {}, model.trace([1]).capacities(1))
    ...     loaded = jf.load(f'{folder}/one')
    >>> loaded
    LoadedModel(float32[], capacities of 1 examples, for cpu)
    >>> loaded.apply(loaded.params, loaded.schedule([3])).tolist()
    [3.0]
    """
    arrays, saved = _open(path)
    _check_versions(path, saved)
    with reading(path):
        program = _read_program(arrays, saved['program'])
        specs = tuple(_read_specs(program, saved))
        if not specs:
            raise ValueError('expected a capacity at least, got none')
        shapes = {x.name: x.params for x in program.layers if x.params is not None}
        numbers = itertools.count()
        params = jax.tree.map(lambda _: arrays[f'{PARAMS}{next(numbers)}'], shapes)
        check_params(program.layers, params)
        data = [bytearray(arrays[f'{PROGRAM}{n}']) for n, _ in enumerate(specs)]
        is_laid_out = [*map(_layout_digest, specs)] == saved['layouts']
        changes = list[str]()
        if check_functions:
            changes = differences(fingerprint(program), saved['fingerprint'])
    if changes:
        raise ValueError(
            f'{path}: expected the functions that the model was saved with, got others '
            'of their names, or other data that they use at module level, with '
            f'{"; ".join(changes)}. Load it beside the code as it was, save the model '
            'again, or pass `check_functions=False` if these do the same'
        )
    if not is_laid_out:
        raise _unknown(path, saved, 'another layout of schedules')
    try:
        programs = [export.deserialize(program) for program in data]
    except ImportError:
        raise
    except Exception as error:
        what = f'programs that fail with {describe_error(error)}'
        raise _unknown(path, saved, what) from error
    _check_platform(path, programs[0])
    steps = {s: make_step(x) for s, x in zip(specs, programs, strict=True)}
    params = jax.tree.map(jnp.asarray, params)
    platforms = tuple(programs[0].platforms)
    scheduler = Scheduler(program, FixedBudget(specs))
    return LoadedModel(scheduler, params, platforms, steps)


def _open(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a file by name, and the JSON of its model."""
    check_path(path)
    with note_missing('a model in a file, got none: write it by `jf.save`'):
        maps, metadata = storage.read(path)
    saved = metadata.get('model')
    if not isinstance(saved, dict):
        got = 'a corpus' if 'corpus' in metadata else 'other arrays'
        raise ValueError(
            f'{path}: expected a model, got {got}: write one by `jf.save(path, model, '
            'params)`'
        )
    # Copied, so that a file that is overwritten does not change a model in use.
    return {name: np.array(array) for name, array in maps.items()}, saved


def _check_versions(path: Path, saved: Mapping[str, Any]) -> None:
    """Raise UnknownFormatError if the format or the block classes in `saved` differ."""
    with reading(path):
        number, _ = saved['format'], _versions_text(saved['versions'])
        if number != FORMAT:  # of which nothing else is known
            raise _unknown(path, saved, f'format {number!r}, not {FORMAT}')
        if unlike := {*saved['program']['classes']} ^ {*tags()}:
            names = ', '.join(sorted(map(str, unlike)))
            raise _unknown(path, saved, f'other kinds of blocks: {names}')


def _unknown(path: Path, saved: Mapping[str, Any], what: str) -> UnknownFormatError:
    """Return an UnknownFormatError on `path`; `what` says how `saved` differs."""
    then, now = (_versions_text(x) for x in (saved['versions'], _versions()))
    return UnknownFormatError(
        f'{path}: expected a model of {now}, got one of {then}, with {what}: save it '
        'again, or load it with the versions that wrote it'
    )


def _versions_text(versions: Mapping[str, Any]) -> str:
    return ' and '.join(f'{name} {number}' for name, number in versions.items())


def _read_program(arrays: Mapping[str, Array], document: Mapping[str, Any]) -> Program:
    """Return the program in `arrays` and `document`, inverting `_write_program`."""
    named = {x.removeprefix(POOL): array for x, array in arrays.items()}
    arguments = decode(document['root'], document['records'], named)
    if type(arguments) is not tuple or not isinstance(arguments[0], TypedExpression):
        raise TypeError(f'expected an expression, got {type(arguments).__name__}')
    return lower_typed(*arguments)


def _read_specs(program: Program, saved: Mapping[str, Any]) -> Iterator[Spec]:
    """Yield the specs in `saved`; raise TypeError or ValueError if one is malformed."""
    for numbers in saved['capacities']:
        capacity = capacity_of_json(numbers)
        if capacity.shards or {*map(type, capacity.numbers)} != {int}:
            raise TypeError(f'expected whole numbers for one device, got {capacity}')
        residuals, strategy = saved['residuals'], saved['strategy']
        if residuals not in RESIDUALS or strategy not in STRATEGIES:
            raise ValueError(f'expected ways to run, got {residuals!r}, {strategy!r}')
        yield Spec(program, capacity, residuals, strategy, saved['reproducible'])


def _check_platform(path: Path, program: export.Exported) -> None:
    """Raise ValueError if JAX, on this platform and precision, cannot run `program`."""
    here, known = export.default_export_platform(), program.platforms
    if here not in known:
        raise ValueError(
            f'{path}: expected a model saved for {here!r}, where this program runs, '
            f'got one for {", ".join(map(repr, known))}: save it by `jf.save(..., '
            f'platforms={[*known, here]!r})`'
        )
    for aval in program.in_avals:
        if jax.dtypes.canonicalize_dtype(aval.dtype) != aval.dtype:
            raise ValueError(
                f'{path}: expected a model without arrays of {aval.dtype}, got one '
                'that was saved under `jax.enable_x64`: load and run it under that too'
            )
