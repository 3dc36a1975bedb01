# SPDX-License-Identifier: Apache-2.0
"""Tracing in other processes: the same schedules, on NumPy alone."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from binary_trees import tree_block
from tree_corpora import assert_same

import jfold as jf


def test_a_tracer_runs_no_layers_and_prints() -> None:
    model = jf.compile(tree_block(4))
    tracer = model.tracer()
    assert repr(tracer) == f'Tracer({model.program.output!r})'
    assert repr(tracer([1, (2, 3)])) == 'Traced(2 examples, 4 nodes)'
    layer = tracer.program.operations[0].layer
    with pytest.raises(AssertionError, match='records examples does not run layers'):
        layer.call(None)


WORKER = """
import pickle, sys
import jax
jax.config.update('jax_platforms', 'none_such')  # any use of a device fails
with open(sys.argv[1], 'rb') as file:
    tracer, examples = pickle.load(file)
with open(sys.argv[2], 'wb') as file:
    pickle.dump(tracer(examples), file)
"""


def test_a_worker_needs_no_device(tmp_path: Path) -> None:
    model = jf.compile(jf.Map(jf.Scalar('int32')) >> jf.Sum())
    examples: list[Any] = [[1, 2], [], [3]]
    (tmp_path / 'given').write_bytes(pickle.dumps((model.tracer(), examples)))
    command = [sys.executable, '-c', WORKER, 'given', 'made']
    subprocess.run(command, cwd=tmp_path, check=True)
    traced = pickle.loads((tmp_path / 'made').read_bytes())
    assert_same(model.schedule(traced), model.schedule(examples))


POOL = """
import multiprocessing, sys
import numpy as np
import jfold as jf

def main():
    declared = jf.ForwardDeclaration()
    pair = jf.Record((declared(), declared())) >> (lambda a, b: a - 2 * b)
    half = jf.InputTransform(float.__neg__) >> jf.Scalar()
    declared.resolve_to(jf.OneOf(type, {float: half, tuple: pair}))
    model = jf.compile(declared())
    parts = [[1.0, (2.0, 3.0)], [], [((1.0, 2.0), 3.0)]]
    model.schedule(parts[0])  # what has run before may not matter
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        found = model.join(pool.map(model.tracer(), parts))
    expected = model.trace(sum(parts, []))
    a, b = found.schedule(range(3)), expected.schedule(range(3))
    np.testing.assert_array_equal(a.indices, b.indices)
    np.testing.assert_array_equal(a.constants[0], b.constants[0])
    print(len(found), 'examples are equal')

if __name__ == '__main__':
    main()
"""


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('method', ['fork', 'spawn'])
def test_processes_of_a_pool_trace(method: str, tmp_path: Path) -> None:
    (tmp_path / 'script.py').write_text(POOL)
    # Python and JAX warn of forks beside threads; that of a pool only traces.
    command = [sys.executable, '-W', 'ignore', 'script.py', method]
    done = subprocess.run(
        command, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == '3 examples are equal\n'


def test_a_part_is_whole_or_not_at_all(tmp_path: Path) -> None:
    tracer = jf.compile(jf.Scalar()).tracer()
    with pytest.raises(jf.InputError, match=r'^example 2: expected float32\[\], got'):
        tracer.save([1, 2, 'x'], tmp_path / 'part.jfold')
    assert not list(tmp_path.iterdir())
    tracer.save([1, 2, 'x'], tmp_path / 'part.jfold', skip_errors=True)
    corpus = jf.Corpus.load(tmp_path, jf.compile(jf.Scalar()))
    assert (len(corpus), [at for at, _ in corpus.skipped]) == (2, [2])
    with pytest.raises(FileNotFoundError) as found:
        tracer.save([1], tmp_path / 'none' / 'part.jfold')
    assert 'in a folder that exists' in found.value.__notes__[0]


FORK = """
import os, pickle, signal, threading, warnings
import jfold as jf
from jfold.base.trampoline import tall_stack

data = pickle.dumps(jf.compile(jf.Map(jf.Scalar()) >> jf.Sum()).tracer())
held, done = threading.Event(), threading.Event()

def hold():
    with tall_stack():
        held.set()
        done.wait()

threading.Thread(target=hold).start()
held.wait()
with warnings.catch_warnings():
    # JAX has threads of its own, which the child does not use.
    warnings.simplefilter('ignore')
    child = os.fork()
if not child:
    signal.alarm(60)
    os._exit(len(pickle.loads(data)([[1, 2], []])))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
"""


def test_a_process_that_is_forked_while_a_thread_compiles() -> None:
    """It has a lock of its own, since nobody there would release that of the thread."""
    done = subprocess.run(
        [sys.executable, '-c', FORK],
        env={'PYTHONPATH': str(Path(jf.__file__).parents[1]), 'JAX_PLATFORMS': 'cpu'},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ('2\n', '')
