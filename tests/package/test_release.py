# SPDX-License-Identifier: Apache-2.0
"""What is released: a wheel and a source distribution, built and installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import jfold as jf

ROOT = Path(jf.__file__).parents[1]
USE = """
import jfold as jf
from importlib import metadata
from pathlib import Path
home = Path(jf.__file__).parent
assert home.is_relative_to(Path('fresh').resolve()), home
assert (home / 'py.typed').exists()
assert metadata.version('jfold') == jf.__version__
model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
print(model.apply({}, model.schedule([[1, 2], [3]])).tolist())
"""

if not (ROOT / 'pyproject.toml').exists():
    pytest.skip('installed without its project', allow_module_level=True)


def run(python: str, *words: str, cwd: Path, path: str = '') -> tuple[int, str]:
    """The status of a run of Python, and what it prints."""
    env = os.environ | {'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'}
    done = subprocess.run(
        [python, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def files() -> set[str]:
    """The files of the package."""
    inside = (x for x in (ROOT / 'jfold').rglob('*') if x.suffix not in ('', '.pyc'))
    return {x.relative_to(ROOT).as_posix() for x in inside if x.is_file()}


@pytest.mark.long
def test_what_is_released_runs_where_it_is_installed(tmp_path: Path) -> None:
    """In an environment that has nothing else but what jfold depends on."""
    tools, dist = tmp_path / 'tools', tmp_path / 'dist'
    install = '-m', 'pip', 'install', '-qq', '--disable-pip-version-check'
    status, output = run(
        sys.executable, *install, '--target', str(tools), 'hatchling', cwd=tmp_path
    )
    if status:
        pytest.skip(f'hatchling, which builds, is not to be had: {output[-200:]}')
    build = '-m', 'hatchling', 'build', '-d', str(dist)
    status, output = run(sys.executable, *build, cwd=ROOT, path=str(tools))
    assert status == 0, output

    name = f'jfold-{jf.__version__}'
    wheel = dist / f'{name}-py3-none-any.whl'
    packed = {x for x in zipfile.ZipFile(wheel).namelist() if '.dist-info/' not in x}
    assert packed == files()
    with tarfile.open(dist / f'{name}.tar.gz') as archive:
        sources = {x.removeprefix(f'{name}/') for x in archive.getnames()}
    others = {'README.md', 'LICENSE', 'CHANGELOG.md', 'pyproject.toml', 'docs/conf.py'}
    assert files() | others | {'tests/conftest.py'} <= sources
    assert not [x for x in sources if x.startswith(('build/', '.venv/'))]

    for built in wheel, dist / f'{name}.tar.gz':
        fresh = tmp_path / built.suffix[1:] / 'fresh'
        venv.create(fresh)
        python = str(fresh / 'bin/python')
        options = '--no-deps', '--no-index', '--no-build-isolation', str(built)
        pip = '-m', 'pip', '--python', python, *install[2:]
        status, output = run(
            sys.executable, *pip, *options, cwd=tmp_path, path=str(tools)
        )
        assert status == 0, output
        (packages,) = fresh.glob('lib/python*/site-packages')
        # Of a folder that a `.pth` file names no `.pth` files are read, so that an
        # editable jfold stays out.
        (packages / 'dependencies.pth').write_text(sysconfig.get_path('purelib'))
        status, output = run(python, '-W', 'error', '-c', USE, cwd=fresh.parent)
        assert (status, output) == (0, '[3.0, 3.0]\n')
