# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: what it imports, what it documents, how it is cut."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import structure

import jfold as jf
from jfold import blocks
from jfold.device.buffers import Batch
from jfold.device.kernel import Weights
from jfold.device.kernel_reverse import Rows

PACKAGE = Path(jf.__file__).parent
TESTS = Path(__file__).parents[1]
FLAX = {'linen', 'nnx'}  # what wraps it, and is imported when it is asked for
FILES = sorted(PACKAGE.rglob('*.py'))
PUBLIC = {name: getattr(jf, name) for name in jf.__all__}


def printed(code: str) -> str:
    """What some code prints in a process of its own."""
    path = {'PYTHONPATH': str(PACKAGE.parent), 'JAX_PLATFORMS': 'cpu'}
    command = [sys.executable, '-W', 'error', '-c', code]
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_jfold_imports_little() -> None:
    """Nothing of others that JAX does not import, nor what runs expressions."""
    found = ast.literal_eval(
        printed(
            'import sys, jax; before = {*sys.modules}; import jfold; '
            'print({*sys.modules} - before)'
        )
    )
    others = {'flax', 'optax', 'orbax', 'chex', 'matplotlib', 'tqdm'}
    assert others.isdisjoint(x.partition('.')[0] for x in found)
    assert not [x for x in found if x.startswith('jax')]  # Pallas comes with jax.extend
    late = {'models.model', 'lower', 'runtime', 'data', 'device'}
    late |= {'language', 'tracing.record', 'flax', 'debug', 'display'}
    assert late.isdisjoint(x.removeprefix('jfold.') for x in found)


FIRST_USES = (
    'jf.Scalar().eval(3).item() == 3',
    'float(jf.compile(jf.Scalar()).eval(3)) == 3',
    "str(jf.Scalar().output_type) == 'float32[]'",
    "jf.DamagedError.__module__ == 'jfold.files.storage'",
    "{'compile', 'Corpus'} <= {*dir(jf)}",
    "'flax' not in sys.modules and jf.linen.Fold and 'flax' in sys.modules",
    "jf.nnx.Fold.__module__ == 'jfold.flax.nnx'",
)


def test_what_is_imported_on_first_use() -> None:
    """Each is the first use of a package that has just been imported."""
    lines = ['import sys']
    for use in FIRST_USES:
        lines += ['import jfold as jf', f'print(bool({use}))']
        lines += ["for name in [x for x in sys.modules if x.startswith('jfold')]:"]
        lines += ['    del sys.modules[name]']
    assert printed('\n'.join(lines)).split() == ['True'] * len(FIRST_USES)


def test_the_package_is_marked_as_typed() -> None:
    assert resources.files('jfold').joinpath('py.typed').is_file()


def test_the_version_is_that_of_the_project() -> None:
    project = PACKAGE.parent / 'pyproject.toml'
    if not project.exists():
        pytest.skip('installed without its project')
    told = tomllib.loads(project.read_text())
    assert 'version' in told['project']['dynamic']
    assert told['tool']['hatch']['version'] == {'path': 'jfold/__init__.py'}
    citation = (PACKAGE.parent / 'CITATION.cff').read_text()
    assert f'\nversion: {jf.__version__}\n' in citation
    changes = (PACKAGE.parent / 'CHANGELOG.md').read_text()
    assert re.search(r'^## \[(.*?)\]', changes, re.M)[1] == jf.__version__


# ---- dependencies --------------------------------------------------------------------


def run_imports(node: ast.AST) -> Iterator[str]:
    """What code imports when it runs, from packages; not what only types need."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Import):
            yield from (alias.name.partition('.')[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.module.partition('.')[0]
        elif not (isinstance(each, ast.If) and 'TYPE_CHECKING' in ast.dump(each.test)):
            yield from run_imports(each)


def packages(files: list[Path]) -> set[str]:
    """The packages that files import, but for Python's own and one another."""
    found = {name for file in files for name in run_imports(parsed(file))}
    own = {'jfold', *(file.stem for file in files)}
    return found - own - sys.stdlib_module_names


def test_what_is_imported_is_named_as_a_dependency_and_nothing_else() -> None:
    path = PACKAGE.parent / 'pyproject.toml'
    if not path.exists():
        pytest.skip('installed without its project')
    project = tomllib.loads(path.read_text())['project']
    named, examples, dev = (
        {re.split('[-<>=]', each)[0] for each in group}
        for group in (
            project['dependencies'],
            project['optional-dependencies']['examples'],
            project['optional-dependencies']['dev'],
        )
    )
    of_flax = [x for x in FILES if x.parent.name == 'layers' or x.stem in FLAX]
    assert packages([file for file in FILES if file not in of_flax]) == named
    assert packages(of_flax) - named == {'flax'}
    programs = packages(list((PACKAGE.parent / 'examples').glob('*.py')))
    assert programs - named - {'absl'} == examples  # grain wants absl, and installs it
    assert not examples & dev


# ---- programs ------------------------------------------------------------------------


def test_programs_take_no_abbreviated_flags() -> None:
    """Else `--install` runs as `--installed`."""
    folders = (PACKAGE.parent / name for name in ('examples', 'benchmarks', 'tests'))
    paths = [path for folder in folders for path in folder.rglob('*.py')]
    for path in paths:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(PARSERS):
                options = {each.arg: ast.unparse(each.value) for each in node.keywords}
                assert options.get('allow_abbrev') == 'False', path.name


PARSERS = 'ArgumentParser', 'add_parser'  # those of commands within a program too


# ---- public names --------------------------------------------------------------------

BLOCKS = {
    *('AllOf', 'Block', 'Broadcast', 'Composition', 'Concat', 'Fold'),
    *('ForwardDeclaration', 'FromTensor', 'NGrams', 'Nth', 'OneHot'),
    *('OneHotFromList', 'RNN', 'Slice', 'Zip', 'ZipWith', 'compose', 'recursive'),
    *('Function', 'GetItem', 'Identity', 'InputTransform', 'Length', 'Map', 'Max'),
    *('Mean', 'Metric', 'Min', 'OneOf', 'Optional', 'Pipe', 'Record', 'Reduce'),
    *('Scalar', 'Share', 'Sum', 'Tensor', 'Vector', 'Void', 'Zeros', 'External'),
    *('Pick', 'Regroup', 'Softmax', 'convert_to_block', 'Chain', 'Padded', 'Stack'),
}
TYPES = {
    *('BroadcastType', 'ObjectType', 'SequenceType', 'TensorType', 'TupleType'),
    *('VoidType', 'convert_to_type'),
}
RUNS = {
    *('Batch', 'Batches', 'Capacity', 'CompiledStep', 'Corpus', 'DamagedError'),
    *('InputError', 'MetricValues', 'Model', 'ProgramBudgetError', 'Ragged'),
    *('NonFinite', 'Schedule', 'Traced', 'Tracer', 'UnknownFormatError', 'compile'),
    *('LoadedModel', 'draw', 'find_nan', 'load', 'save'),
}
LAZY = {*'Lazy float32 int32 lazy named observe select tensor'.split()}


def test_the_public_names() -> None:
    assert set(jf.__all__) == BLOCKS | TYPES | RUNS | LAZY
    assert len(jf.__all__) == len(set(jf.__all__))


def test_completion_shows_public_names_alone() -> None:
    others = set(dir(jf)) - set(jf.__all__)
    modules = {name for name in others if not name.startswith('__')}
    assert modules == {'layers', 'linen', 'nnx'}
    assert {'__all__', '__doc__', '__version__'} <= others
    assert set(jf.__all__) <= set(dir(jf))
    assert dir(jf.linen) == ['Fold'] and dir(jf.nnx) == ['Cell', 'Fold']
    assert dir(jf.layers) == sorted(jf.layers.__all__)
    from jfold.base import jaxprs

    assert inspect.ismodule(jaxprs)


def test_the_public_names_of_a_model() -> None:
    uses = {'apply', 'batches', 'eval', 'explain', 'init', 'join', 'precompile'}
    uses |= {'predict', 'reserve', 'schedule', 'schedules', 'trace', 'tracer'}
    facts = {'block', 'max_programs', 'program', 'programs', 'reproducible', 'source'}
    facts |= {'residuals', 'strategy', 'budget', 'scheduler'}
    model = jf.compile(jf.Scalar())
    assert {name for name in dir(model) if not name.startswith('_')} == uses | facts


# ---- documentation -------------------------------------------------------------------


def undocumented(value: Any) -> list[str]:
    """The public functions of a class, or the value itself, that lack a docstring."""
    missing = [] if inspect.getdoc(value) else [value.__name__]
    if inspect.isclass(value):
        for name, member in vars(value).items():
            known = inspect.isfunction(member) or isinstance(member, property)
            if known and not name.startswith('_') and not inspect.getdoc(member):
                missing.append(f'{value.__name__}.{name}')
    return missing


def test_public_names_are_documented() -> None:
    for name, value in PUBLIC.items():
        assert undocumented(value) == []
        # A dataclass without a docstring is given its signature as one.
        assert not (value.__doc__ or '').startswith(f'{name}(')


def test_every_block_is_public_and_documented() -> None:

    hidden = {'Reference', 'Arguments'}  # made by calling a declaration, by `compose`
    for name, value in vars(blocks).items():
        if inspect.isclass(value) and issubclass(value, blocks.Block):
            assert name in PUBLIC or name in hidden
            assert not (value.__doc__ or '').startswith(f'{name}(')


# ---- how it is cut -------------------------------------------------------------------


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def test_few_import_when_they_are_called() -> None:
    """All other imports are at the top, where the tests of their order see them."""
    found = {
        (structure.module(file), function.name)
        for file in FILES
        for function in structure.functions(parsed(file))
        for x in ast.walk(function)
        if isinstance(x, ast.ImportFrom) and f'{x.module}.'.startswith('jfold.')
    }
    # What every import of jfold registers, and so has to be quick.
    assert found == {('models.exported', '_spec_text')}


def test_no_class_is_given_methods_from_outside() -> None:
    """Whoever reads a class sees all of it."""
    classes = {
        node.name
        for file in FILES
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef)
    }
    for file in FILES:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Assign):
                owners = (x.value for x in node.targets if isinstance(x, ast.Attribute))
                written = {ast.unparse(x).rpartition('.')[2] for x in owners}
                assert written.isdisjoint(classes), ast.unparse(node)


def test_imports_run_one_way() -> None:
    """Down the list of rooms, and without cycles in each."""
    assert structure.out_of_order(structure.files()) == []
    assert structure.in_cycles(structure.files()) == []


def test_the_top_of_the_package_is_the_list_of_rooms() -> None:
    names = {x.stem for x in PACKAGE.iterdir() if x.suffix != '.typed'}
    assert names - {'__init__', '__pycache__'} == {*structure.ROOMS}
    assert structure.named_twice(structure.files()) == []


@pytest.mark.parametrize('room', ['device', 'scheduling'])
def test_what_is_derived_from_a_spec_is_frozen(room: str) -> None:
    """All batches share it; the budget alone changes from batch to batch."""
    files = structure.files(PACKAGE / room)
    for file in (x for x in files if x.path.stem != 'budget'):
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                decorators = map(ast.unparse, node.decorator_list)
                plain = [x for x in decorators if x.startswith('dataclass')]
                assert all('frozen=True' in x for x in plain), node.name


def test_what_never_meets() -> None:
    """The device knows nothing of blocks and examples, nor the host of shapes."""
    needs = structure.between_rooms(structure.files())
    lowering = {'combinators', 'blocks', 'lower', 'language', 'tracing', 'data'}
    assert needs['runtime'].isdisjoint(lowering)
    assert needs['device'].isdisjoint(lowering)
    # It looks at graphs from outside, by what is beside what makes them.
    assert needs['scheduling'].isdisjoint(lowering - {'tracing'})
    assert needs['tracing'].isdisjoint({'combinators', 'blocks', 'language'})
    # Ready layers are made of what users have, and nobody needs Flax.
    assert needs['flax'] <= {*structure.ROOMS} - {'runtime', 'device', 'tracing'}
    assert not any('flax' in others for others in needs.values())


def test_what_is_out_of_order_is_found(tmp_path: Path) -> None:
    for name, other in ('types', 'lower'), ('lower', 'graph'):
        text = f'from jfold.{other} import x\n'
        if name == 'lower':
            text += 'from jfold.types import y\n'
        (tmp_path / f'{name}.py').write_text(text)
    found = structure.files(tmp_path)
    assert structure.out_of_order(found) == ['types imports lower']
    assert structure.in_cycles(found) == ['types', 'lower'][::-1]


def test_the_map_shows_every_room() -> None:
    """In the order of imports."""
    page = PACKAGE.parent / 'CONTRIBUTING.md'
    if not page.exists():
        pytest.skip('installed without its project')
    text = page.read_text()
    rows = re.findall(r'^\| `jfold/(\w+)(?:/|\.py)` \|', text, re.MULTILINE)
    assert rows == ['__init__', *structure.ROOMS]


def test_files_are_short_and_begin_with_licence_and_docstring() -> None:
    """But for tests and their empty packages, which are short alone."""
    head = '# SPDX-License-Identifier: Apache-2.0\n"""'
    of_site = (PACKAGE.parent / 'docs').rglob('*.py')
    for path in *FILES, *of_site, *TESTS.rglob('*.py'):
        text = path.read_text()
        assert text.startswith(head) or path.is_relative_to(TESTS), path
        assert len(text.splitlines()) <= 500, path


# ---- annotations of the device half --------------------------------------------------


def test_any_is_rare() -> None:
    """Less than 5 % but for the file that takes equations of any kind."""
    names = 'runtime.py', 'device/'
    files = [x for x in structure.files() if x.name.startswith(names)]
    trees = [x.tree for x in files if x.path.stem != 'jaxprs']
    found = [x for tree in trees for x in structure.annotations(tree)]
    words = [{y.id for y in ast.walk(x) if isinstance(y, ast.Name)} for x in found]
    assert len(found) > 500
    assert sum('Any' in x for x in words) < 0.05 * len(found)


@pytest.mark.parametrize('kind', [Batch, Rows, Weights])
def test_fields_of_arrays_have_shapes(kind: Any) -> None:
    """In brackets, once for each field that holds arrays."""
    shapes = re.findall(r'\[[^\]]+\]', kind.__doc__)
    arrays = [x for x in dataclasses.fields(kind) if 'Array' in str(x.type)]
    assert len(shapes) >= len(arrays) >= 1


# ---- the tests themselves ------------------------------------------------------------


def test_the_folders_of_tests_are_listed() -> None:
    """In the table of `tests/README.md`; those of a room have its name."""
    text = (TESTS / 'README.md').read_text()
    rows = re.findall(r'^\| `(\w+)/` \|', text, re.MULTILINE)
    folders = {x.parent.name for x in TESTS.glob('*/*.py')}
    assert sorted(rows) == sorted(folders)
    others = {'accelerators', 'fuzz', 'package', 'processes', 'scripts', 'support'}
    assert folders - others - {'twin'} <= {*structure.ROOMS}


def test_no_test_module_imports_another() -> None:
    """What they share is in files whose names do not begin with `test_`."""
    for path in TESTS.rglob('*.py'):
        found = [name for name in run_imports(parsed(path)) if name[:5] == 'test_']
        assert found == [], path.name
