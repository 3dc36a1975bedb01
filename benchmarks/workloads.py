# SPDX-License-Identifier: Apache-2.0
"""Expressions of many kinds, with small and large batches of examples for each."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attention
import function_names
import molecules
import names
import numpy as np
import sentiment
import treebank
import trees
from syntax_trees import Labels, library_files, read_functions

import jfold as jf

Workload = tuple[jf.Block, dict[str, list[Any]]]  # batches by what they are of


def binary_trees() -> Workload:
    """Pairs of pairs of numbers."""
    rng = random.Random(0)
    sizes = (1, 10), (1, 128), (32, 32), (64, 128), (256, 128)
    batches = {
        f'{count} x tree of {leaves}': [
            trees.random_tree(leaves, rng) for _ in range(count)
        ]
        for count, leaves in sizes
    }
    return trees.expression(8), batches


def syntax_trees() -> Workload:
    """Functions of the standard library: any number of children."""
    functions = [x for path in library_files()[:40] for x in read_functions(path, 500)]
    labels = Labels.of(functions, 10)
    examples = [labels.tree(function) for function in functions]
    random.Random(0).shuffle(examples)
    block = function_names.make_block(len(labels), 64, 20)
    return block, _some(examples, 'syntax tree', 1, 64)


def sentences() -> Workload:
    """Sentences with labels at all phrases, which a metric collects."""
    lines = treebank.made_up_lines(0)['train']
    known: dict[str, int] = {}
    examples = [
        treebank.parse(line, lambda word: known.setdefault(word, len(known)) % 50)
        for line in lines
    ]
    vocabulary: Any = SimpleNamespace(vectors=np.zeros((50, 8), 'float32'))
    block = sentiment.make_block(vocabulary, 32)
    return block, _some(examples * 10, 'sentence', 1, 25, 250)


def spelled_names() -> Workload:
    """Lists of words, which are lists of letters: two recurrent networks."""
    examples = [names.words(name) for name, _ in names.made_up_names(400, 0)]
    letters = {letter for words in examples for word in words for letter in word}
    block = names.make_block(''.join(sorted(letters)), 96, 5)
    return block, _some(examples, 'name', 1, 64)


def molecules_of_atoms() -> Workload:
    """Atoms that hold their neighbours, in cycles."""
    rng = np.random.default_rng(0)
    examples = [molecules.molecule(rng) for _ in range(129)]
    return molecules.expression(64, 3), _some(examples, 'molecule', 1, 128)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    'binary trees': binary_trees,
    'syntax trees': syntax_trees,
    'sentiment': sentences,
    'names': spelled_names,
    'molecules': molecules_of_atoms,
}


def to_compile() -> dict[str, Callable[[], jf.Block]]:
    """Expressions whose lowering is measured."""
    vocabulary: Any = SimpleNamespace(vectors=np.zeros((50, 8), 'float32'))
    return {
        'compile the demo': lambda: function_names.make_block(50, 64, 20),
        'compile sentiment': lambda: sentiment.make_block(vocabulary, 32),
        'compile attention': lambda: attention.make_block(32, True),
    }


def _some(examples: list[Any], what: str, *counts: int) -> dict[str, list[Any]]:
    """Batches of so many examples, one behind the other."""
    batches, first = {}, 0
    for count in counts:
        first = first if first + count <= len(examples) else 0
        batches[f'{count} x {what}'] = examples[first : first + count]
        first += count
    return batches
