# SPDX-License-Identifier: Apache-2.0
"""Solubility of molecules, by messages along bonds or by weave modules.

Messages: an atom hears of its neighbours, over bonds, in some rounds (after Gilmer et
al. 2017). Weave: features of atoms and of all pairs of them make new ones of both
(Kearnes et al. 2016, as Looks et al. 2017 write it in appendix B). Then atoms are added
up. `--esol` names the file of ESOL (Delaney 2004) as MoleculeNet has it,
delaney-processed.csv. Without, molecules are put together from common ones, and what is
learned is the logarithm of their partition between octanol and water, by the rules of
Wildman and Crippen (1999). Molecules are split at random, by a seed: 80 % to learn
from, 10 % to choose settings by, 10 % to test.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import optax
from rdkit import Chem, rdBase
from rdkit.Chem import Crippen
from training import (
    Examples,
    Params,
    Trainer,
    make_parser,
    make_trainer,
    mean_square,
    table,
)

import jfold as jf
from jfold import layers

# Fields 'atoms' [n, ATOM]; 'bonds' [2m, BOND], each in both directions, 'of' [2m] and
# 'to' [2m], the atoms at its ends; 'pairs' [n, n, PAIR].
Graph = dict[str, np.ndarray]

# ---- molecules -----------------------------------------------------------------------

ELEMENTS = 'C', 'N', 'O', 'S', 'F', 'Cl', 'Br', 'I', 'P'
SHAPES = [Chem.HybridizationType.names[name] for name in ('SP', 'SP2', 'SP3')]
KINDS = [Chem.BondType.names[n] for n in ('SINGLE', 'DOUBLE', 'TRIPLE', 'AROMATIC')]
FAR = 7  # as many bonds apart, or more, are alike


def one_hot(value: Hashable, choices: Sequence[Hashable]) -> list[bool]:
    """Which of the choices it is; the last place is for any other."""
    return [*(value == each for each in choices), value not in choices]


def atom_features(atom: Chem.Atom) -> list[float]:
    """An atom, without its surroundings."""
    return [
        *one_hot(atom.GetSymbol(), ELEMENTS),
        *one_hot(atom.GetDegree(), range(5)),
        *one_hot(atom.GetTotalNumHs(), range(4)),
        *one_hot(atom.GetHybridization(), SHAPES),
        atom.GetFormalCharge(),
        atom.GetIsAromatic(),
    ]


def bond_features(bond: Chem.Bond) -> list[float]:
    """A bond, without its ends."""
    kind = one_hot(bond.GetBondType(), KINDS)
    return [*kind, bond.GetIsConjugated(), bond.IsInRing()]


def pair_features(bonds: np.ndarray, ends: np.ndarray, far: np.ndarray) -> np.ndarray:
    """All pairs of atoms [n, n, PAIR]: their bond, and how far apart they are; zero
    where both are one.

    Args:
      bonds: [2m, BOND].
      ends: [2, 2m] their atoms.
      far: [n, n] the number of bonds between two atoms.
    """
    pairs = np.zeros((*far.shape, PAIR), 'float32')
    pairs[ends[0], ends[1], :BOND] = bonds
    distances = far[..., None]
    pairs[..., BOND:] = (distances > 0) & (distances >= np.arange(1, FAR))
    return pairs


def read(smiles: str) -> Graph:
    """A molecule from its notation."""
    mol = Chem.MolFromSmiles(smiles)
    bonds = list(mol.GetBonds())
    x = np.array(list(map(bond_features, bonds)), 'float32').reshape(-1, BOND)
    one_way = [(each.GetBeginAtomIdx(), each.GetEndAtomIdx()) for each in bonds]
    there = np.array(one_way, int).reshape(-1, 2).T
    ends = np.concatenate([there, there[::-1]], 1)
    both = np.concatenate([x, x])
    return {
        'atoms': np.array(list(map(atom_features, mol.GetAtoms())), 'float32'),
        'bonds': both,
        'of': ends[0],
        'to': ends[1],
        'pairs': pair_features(both, ends, Chem.GetDistanceMatrix(mol)),
    }


_CARBON = Chem.MolFromSmiles('CC')
ATOM = len(atom_features(_CARBON.GetAtomWithIdx(0)))
BOND = len(bond_features(_CARBON.GetBondWithIdx(0)))
PAIR = BOND + FAR - 1


# ---- the models ----------------------------------------------------------------------


def messages(width: int, rounds: int) -> jf.Block:
    """From a graph to states of its atoms [width], by messages along bonds."""
    atoms = jf.GetItem('atoms') >> jf.Map(
        jf.Vector(ATOM) >> layers.FC(width, name='atom')
    )
    bonds = jf.GetItem('bonds') >> jf.Map(jf.Vector(BOND))
    graph = jf.AllOf(atoms, jf.GetItem('of'), jf.GetItem('to'), bonds)
    send = jf.Concat() >> layers.FC(width, name='message')
    return graph >> layers.GatedGraph(width, rounds, send, edges=True)


def woven(width: int, rounds: int) -> jf.Block:
    """From a graph to states of its atoms [width], by weave modules."""
    atoms = jf.GetItem('atoms') >> jf.Map(jf.Vector(ATOM))
    pairs = jf.GetItem('pairs') >> jf.Map(jf.Map(jf.Vector(PAIR)))
    modules = jf.Pipe(*(layers.Weave(width) for _ in range(rounds)))
    return jf.AllOf(atoms, pairs) >> modules >> jf.GetItem(0)


MODELS = {'messages': messages, 'weave': woven}


def make_block(options: argparse.Namespace) -> jf.Block:
    """From a graph to a number: atoms are added up."""
    atoms = MODELS[options.model](options.width, options.rounds)
    each, whole = (layers.FC(options.width, name=name) for name in ('each', 'whole'))
    answer = layers.FC(1, None, name='answer') >> (lambda x: x[0])
    return atoms >> jf.Map(each) >> jf.Sum() >> whole >> answer


# ---- where molecules come from -------------------------------------------------------

# Common molecules, from methane to caffeine. Written one after another, two of them are
# one molecule: the last atom of the first that no branch holds is bound to the next.
COMMON = """
C CC CCC CCCC CC(C)C C=C CC=C C#C C1CC1 C1CCCC1 C1CCCCC1 C1=CCCCC1
O CO CCO CC(O)C CC(C)(C)O OCCO OCC(O)CO COC CCOCC C1CCOC1 C1CCOCC1 O1CCOCC1
C=O CC=O CC(=O)C CCC(=O)C CC(=O)O CCC(=O)O COC(=O)C CCOC(=O)C OC(=O)C(O)C
N CN CNC CCN CC#N C1CCNC1 C1CCNCC1 N1CCOCC1 NC(=O)C NC(=O)N NCC(=O)O
S CS CSC CCS CS(=O)C CF CCl CCCl ClCCl CBr CI c1ccccc1 Cc1ccccc1 Oc1ccccc1
Nc1ccccc1 Clc1ccccc1 COc1ccccc1 O=Cc1ccccc1 OC(=O)c1ccccc1 N#Cc1ccccc1
c1ccc2ccccc2c1 c1ccncc1 c1ccoc1 c1ccsc1 c1cc[nH]c1 c1cnc[nH]1 c1ccc2[nH]ccc2c1
CC(=O)Nc1ccccc1 CC(=O)Oc1ccccc1 Cn1cnc2c1c(=O)n(C)c(=O)n2C
""".split()
LONGEST = 4  # how many are put together


def made_up(count: int, seed: int) -> list[str]:
    """So many different molecules, each of one to `LONGEST` common ones."""
    rng, found = np.random.default_rng(seed), set[str]()
    # Where an atom would have too many bonds, nothing is said of it.
    with rdBase.BlockLogs():
        while len(found) < count:
            parts = rng.choice(COMMON, rng.integers(1, LONGEST + 1))
            mol = Chem.MolFromSmiles(''.join(parts))
            if mol is not None:
                found.add(Chem.MolToSmiles(mol))
    return sorted(found)


def log_p(smiles: str) -> float:
    """How much better a molecule dissolves in octanol than in water, by rules."""
    return float(Crippen.MolLogP(Chem.MolFromSmiles(smiles)))


def read_esol(path: Path) -> list[tuple[str, float]]:
    """Molecules, and the logarithms of their measured solubilities."""
    name = 'measured log solubility in mols per litre'
    with path.open(newline='') as file:
        rows = list(csv.DictReader(file))
    return [(row['smiles'].strip(), float(row[name])) for row in rows]


def split(items: list[Graph], y: np.ndarray, seed: int) -> dict[str, Examples]:
    """Parts of the molecules, at random: a tenth each to choose by and to test."""
    order, tenth = np.random.default_rng(seed).permutation(len(items)), len(items) // 10
    cut = np.split(order, [tenth, 2 * tenth])
    return {
        name: Examples(
            [items[i] for i in rows],
            np.array([len(items[i]['atoms']) for i in rows]),
            y[rows],
        )
        for name, rows in zip(('valid', 'test', 'train'), cut, strict=True)
    }


# ---- training and scores -------------------------------------------------------------


def root_mean_square(errors: np.ndarray) -> float:
    """Of all molecules."""
    return float(np.sqrt(np.mean(errors**2)))


def counts(graph: Graph) -> np.ndarray:
    """How many atoms and bonds there are of each feature."""
    return np.concatenate([graph['atoms'].sum(0), graph['bonds'].sum(0) / 2])


def ridge(train: Examples, test: Examples, penalty: float = 1.0) -> np.ndarray:
    """What a linear model of counts predicts of the test molecules."""
    x, other = (np.array([counts(graph) for graph in p.items]) for p in (train, test))
    middle, scale = x.mean(0), np.maximum(x.std(0), 1e-6)
    x, other = (x - middle) / scale, (other - middle) / scale
    mean, square = train.targets.mean(), x.T @ x + penalty * np.eye(x.shape[1])
    weights = np.linalg.solve(square, x.T @ (train.targets - mean))
    return mean + other @ weights


def normalised(parts: dict[str, Examples]) -> tuple[dict[str, Examples], float]:
    """The same with targets of mean 0 and deviation 1 in training; what this was."""
    y = parts['train'].targets
    mean, scale = y.mean(), y.std()
    return {
        name: replace(part, targets=(part.targets - mean) / scale)
        for name, part in parts.items()
    }, float(scale)


def make_optimizer(
    options: argparse.Namespace, steps: int
) -> optax.GradientTransformation:
    """AdamW whose rate falls to zero."""
    rate = optax.cosine_decay_schedule(options.rate, steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate))


def baselines(parts: dict[str, Examples]) -> list[float]:
    """Errors in test of the mean and of the linear model."""
    train, test = parts['train'], parts['test']
    guesses = train.targets.mean(), ridge(train, test)
    return [root_mean_square(guess - test.targets) for guess in guesses]


def train(
    parts: dict[str, Examples], seed: int, options: argparse.Namespace
) -> list[float]:
    """Errors in test of what is simpler, and of the trained network."""
    scaled, scale = normalised(parts)
    steps = options.epochs * -(-len(parts['train'].items) // options.batch_size)
    model = jf.compile(make_block(options))
    optimizer = make_optimizer(options, steps)
    trainer = make_trainer(
        model, scaled, mean_square, jf.Model.apply, optimizer, options
    )
    for epoch, params, losses in trainer.epochs(seed):
        valid = scale * error(trainer, params, 'valid')
        print(f'split {seed}, {epoch}: loss {np.mean(losses):.4f}, valid {valid:.3f}')
    print(trainer.clock)
    return [*baselines(parts), scale * error(trainer, params, 'test')]


def error(trainer: Trainer, params: Params, part: str) -> float:
    """Root mean square over a part."""
    found = trainer.predictions(params, part)
    return root_mean_square(found - trainer.parts[part].targets)


# ---- the command line ----------------------------------------------------------------


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--quick` overrides the ones that cost time."""
    parser = make_parser(__doc__, epochs=30, batch_size=32, rate=0.002)
    add = parser.add_argument
    add('--model', choices=MODELS, default='messages', help='what is trained')
    add('--esol', type=Path, help='delaney-processed.csv')
    add('--molecules', type=int, default=1_000, help='made up where there is no file')
    add(
        '--splits', type=int, default=3, help='trained on, with seeds one after another'
    )
    add('--width', type=int, help='of the layers (64 for messages, 32 for weave)')
    add('--rounds', type=int, help='of messages (3), or weave modules (2)')
    options = parser.parse_args(argv)
    usual = {'messages': (64, 3), 'weave': (32, 2)}[options.model]
    for name, value in zip(('width', 'rounds'), usual, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.quick:
        small = {'molecules': 120, 'splits': 1, 'width': 8, 'rounds': 1}
        vars(options).update(epochs=2, **small)
    return options


def read_molecules(options: argparse.Namespace) -> list[tuple[str, float]]:
    """Molecules with their targets."""
    if options.esol:
        return read_esol(options.esol)[: 120 if options.quick else None]
    return [(each, log_p(each)) for each in made_up(options.molecules, options.seed)]


def main(argv: Sequence[str] | None = None) -> None:
    """Trains on every split, and prints errors in test."""
    options = read_options(argv)
    known = read_molecules(options)
    graphs, y = [read(each) for each, _ in known], np.array([y for _, y in known])
    print(f'{len(y):,} molecules, {sum(len(g["atoms"]) for g in graphs):,} atoms')
    seeds = range(options.seed, options.seed + options.splits)
    rows = {n: train(split(graphs, y.astype('float32'), n), n, options) for n in seeds}
    head = 'error (RMSE) in test', 'mean of training', 'linear', options.model
    shown = [(f'split {n}', *(f'{x:.3f}' for x in row)) for n, row in rows.items()]
    print(f'\n{table([head, *shown, means(rows)])}')


def means(rows: dict[int, list[float]]) -> tuple[str, ...]:
    """The last row of the table: over all splits, with deviations."""
    found = np.array([*rows.values()])
    pairs = zip(found.mean(0), found.std(0), strict=True)
    return 'mean ± deviation', *(f'{mean:.2f} ± {width:.2f}' for mean, width in pairs)


if __name__ == '__main__':
    main()
