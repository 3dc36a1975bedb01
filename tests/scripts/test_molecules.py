# SPDX-License-Identifier: Apache-2.0
"""The example about molecules: how it reads them, and its models."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
from agreement import agree

import jfold as jf

pytest.importorskip('rdkit', reason='RDKit, which reads molecules, is not installed')
EXAMPLES = Path(__file__).parents[2] / 'examples'
sys.path.append(str(EXAMPLES))


def example(name: str) -> ModuleType:
    """The module of an example, even if a benchmark has the same name."""
    spec = importlib.util.spec_from_file_location(
        f'example_{name}', EXAMPLES / f'{name}.py'
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


molecules = example('molecules')
SAME = 'CCO', 'OCC', 'C(O)C'


def test_a_molecule_is_read() -> None:
    """Ethanol: two carbons and an oxygen in a row."""
    graph = molecules.read('CCO')
    carbon, other, oxygen = graph['atoms']
    assert [*carbon[:3], *oxygen[:3]] == [1, 0, 0, 0, 0, 1]
    assert (carbon != other).any()
    assert [*zip(graph['of'], graph['to'], strict=True)] == [
        *((0, 1), (1, 2), (1, 0), (2, 1))
    ]
    assert graph['bonds'].shape == (4, molecules.BOND)
    assert (graph['bonds'].sum(1) == 1).all()
    near = graph['pairs'][..., molecules.BOND :].sum(-1)
    assert near.tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    bound = graph['pairs'][..., : molecules.BOND].sum(-1)
    assert bound.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_the_file_is_read(tmp_path: Path) -> None:
    """Names have commas in them, and notations blanks behind."""
    path = tmp_path / 'esol.csv'
    name = 'measured log solubility in mols per litre'
    path.write_text(f'Compound ID,{name},smiles\n"1,2-Ethanediol",1.5,OCCO \nX,-2,C\n')
    assert molecules.read_esol(path) == [('OCCO', 1.5), ('C', -2.0)]


def test_parts_are_drawn_by_a_seed() -> None:
    """Each molecule is in one."""
    graphs, y = [molecules.read('C' * n) for n in range(1, 31)], np.arange(1, 31)
    parts = molecules.split(graphs, y, 0)
    counts = {k: len(part.items) for k, part in parts.items()}
    assert counts == {'valid': 3, 'test': 3, 'train': 24}
    assert sorted(np.concatenate([p.targets for p in parts.values()])) == [*y]
    for part in parts.values():
        assert [len(each['atoms']) for each in part.items] == [*part.targets]
    again, other = (molecules.split(graphs, y, seed)['test'].targets for seed in (0, 1))
    assert (again == parts['test'].targets).all()
    assert (other != again).any()


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize('model', molecules.MODELS)
def test_networks(model: str) -> None:
    """However atoms are numbered; and batches give what molecules give one by one."""
    options = argparse.Namespace(model=model, width=4, rounds=2)
    made = jf.compile(molecules.make_block(options))
    params = made.init(jax.random.key(0))
    found = [float(made.eval(molecules.read(each), params)) for each in SAME]
    np.testing.assert_allclose(found, found[0], rtol=1e-4, atol=1e-5)
    agree(made, params, [molecules.read(x) for x in ('C', 'CCO', 'C1CC1', 'N#N')], 1e-4)
