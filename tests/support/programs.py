# SPDX-License-Identifier: Apache-2.0
"""Lowered programs of several kinds, and some that are changed."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

import jfold as jf
from jfold.program.operations import Program


@functools.cache
def trees() -> Program:
    """A recursion, with a choice, operations and a metric."""
    tree = jf.ForwardDeclaration(name='tree')
    embed = jf.Function(lambda w, i: w[i], lambda *_: jnp.ones((8, 4)), name='embed')
    node = jf.Record((tree(), tree())) >> jf.Function(lambda x, y: x + y, name='cell')
    leaf = jf.Scalar('int32') >> embed
    tree.resolve_to(jf.OneOf(type, {int: leaf, tuple: node}))
    return jf.compile(tree() >> jf.AllOf(jf.Identity(), jf.Metric('root'))).program


@functools.cache
def two_declarations() -> Program:
    """Recursions that call each other, of one type."""
    even, odd = jf.ForwardDeclaration(name='even'), jf.ForwardDeclaration(name='odd')
    for mine, other, function in (even, odd, jnp.sin), (odd, even, jnp.cos):
        node = jf.GetItem(0) >> other() >> function
        mine.resolve_to(jf.OneOf(type, {float: jf.Scalar(), tuple: node}))
    return jf.compile(even()).program


@functools.cache
def loops() -> Program:
    """Loops over a sequence, and parts of it."""
    fold = jf.Fold(jf.Function(jnp.add), jf.Zeros([]))
    half = jf.GetItem(slice(0, 2)) >> jf.Sum()
    parts = jf.AllOf(fold, jf.Reduce(jnp.maximum), jf.GetItem(0), half, jf.Length())
    return jf.compile(jf.Map(jf.Scalar()) >> parts).program


@functools.cache
def cases() -> Program:
    """A choice between sequences, one of Python's and one of a tuple."""
    one = jf.GetItem(1) >> jf.Map(jf.Scalar())
    two = jf.AllOf(jf.GetItem(1) >> jf.Scalar(), jf.FromTensor(np.float32(2)))
    chosen = jf.OneOf(jf.GetItem(0), {'a': one, 'b': two >> jf.Map(jf.Identity())})
    return jf.compile(chosen >> jf.Reduce(jnp.add)).program


@functools.cache
def calls() -> Program:
    """A declaration that takes and gives sequences."""
    rows = jf.ForwardDeclaration(name='rows')
    rows.resolve_to(jf.Map(jf.Scalar()))
    return jf.compile(rows() >> jf.Sum()).program


# ---- programs changed ----------------------------------------------------------------


def with_metric_first(program: Program) -> Program:
    """The program with its one metric before the value of the expression."""
    assert program.sources is not None
    sources = replace(program.sources, results=program.sources.results[::-1])
    recording = program.source.recording
    recording = replace(recording, results=recording.results[::-1])
    source = replace(program.source, recording=recording)
    results = program.results[::-1]
    return replace(program, results=results, sources=sources, source=source)


def with_tensors(program: Program, result: int, tensors: tuple[int, ...]) -> Program:
    """The program with other tensors in a result."""
    results = list(program.results)
    results[result] = replace(results[result], tensors=tensors)
    return replace(program, results=tuple(results))


def with_source(program: Program, text: str) -> Program:
    """The program with another text of its source."""
    return replace(program, source=replace(program.source, text=text))
