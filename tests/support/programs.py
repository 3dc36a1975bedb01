# SPDX-License-Identifier: Apache-2.0
"""Lowered programs of several kinds, and some that are changed."""

from __future__ import annotations

import functools
from dataclasses import replace

import flax.linen as nn
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
def twice() -> Program:
    """An operation on what it gave."""
    return jf.compile(jf.Scalar() >> jnp.sin >> jnp.sin).program


@functools.cache
def two_results() -> Program:
    """A recursion that gives two results of one type."""
    tree = jf.ForwardDeclaration(name='tree')
    leaf = jf.Scalar() >> jf.AllOf(jnp.sin, jnp.cos)
    node = jf.Record((tree(), tree())) >> (lambda x, y: (x[0] + y[1], x[1] * y[0]))
    tree.resolve_to(jf.OneOf(type, {float: leaf, tuple: node}))
    return jf.compile(tree()).program


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
def two_sums() -> Program:
    """Sums of numbers, and of whole ones."""
    whole = jf.Map(jf.Function(jnp.int32))
    both = jf.AllOf(jf.Sum(), whole >> jf.Sum())
    return jf.compile(jf.Map(jf.Scalar()) >> both).program


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


@functools.cache
def chosen() -> Program:
    """A vector by a table, beside a constant of another type."""
    beside = jf.FromTensor(np.float32(2))
    return jf.compile(jf.AllOf(jf.OneHot(2), beside)).program


@functools.cache
def nothing() -> Program:
    """What does nothing with the data."""
    return jf.compile(jf.AllOf(jf.Zeros(4), jf.Zeros('int32'))).program


NUMBERS = jf.Map(jf.Scalar())
PAIR = jf.Record((NUMBERS, NUMBERS))


@functools.cache
def aligned() -> Program:
    """Sequences as long as the shorter one, and values beside each item."""
    beside = jf.Record((NUMBERS, jf.Scalar() >> jf.Broadcast()))
    sums = (
        each >> jf.ZipWith(jf.Function(jnp.add)) >> jf.Sum() for each in (PAIR, beside)
    )
    return jf.compile(jf.AllOf(*sums)).program


@functools.cache
def strictly_aligned() -> Program:
    """Sequences of one length."""
    strict = jf.ZipWith(jf.Function(jnp.add), strict=True)
    return jf.compile(PAIR >> strict >> jf.Sum()).program


@functools.cache
def chained() -> Program:
    """Two sequences as one, and sequences of sequences."""
    nested = jf.Map(NUMBERS) >> jf.Chain() >> jf.Sum()
    pair = jf.GetItem(0) >> PAIR >> jf.Chain() >> jf.Sum()
    return jf.compile(jf.AllOf(pair, nested)).program


@functools.cache
def picked() -> Program:
    """Items of a sequence by numbers in the data, in groups, and up to a number."""
    numbers = jf.GetItem(0) >> NUMBERS
    by_data = jf.AllOf(numbers, jf.GetItem(1))
    groups = jf.AllOf(numbers, jf.GetItem(1), jf.GetItem(2)) >> jf.Regroup()
    parts = (
        by_data >> jf.Nth(),
        by_data >> jf.Pick() >> jf.Sum(),
        groups >> jf.Map(jf.Sum()) >> jf.Sum(),
        numbers >> jf.Padded(2),
    )
    return jf.compile(jf.AllOf(*parts)).program


@functools.cache
def carried() -> Program:
    """A loop that carries sequences along."""
    rows = jf.Map(NUMBERS) >> jf.Reduce(jf.ZipWith(jf.Function(jnp.add)))
    return jf.compile(rows >> jf.Sum()).program


@functools.cache
def objects() -> Program:
    """What becomes of Python objects: a pair, a list, an entry of a table, a length."""
    pair = jf.AllOf(jf.GetItem(0), jf.GetItem(1)) >> jf.InputTransform(len)
    firsts = jf.Map(jf.GetItem(0)) >> jf.InputTransform(len)
    entry = jf.GetItem(0) >> jf.InputTransform({'a': 1})
    parts = (each >> jf.Scalar() for each in (pair, firsts, entry))
    return jf.compile(jf.AllOf(*parts, jf.Length())).program


@functools.cache
def words() -> Program:
    """A metric with labels."""
    word = jf.Record({'length': jf.Scalar('int32'), 'text': jf.Identity()})
    return jf.compile(jf.Map(word >> jf.Metric('words')) >> jf.Void()).program


@functools.cache
def shared() -> Program:
    """Nodes of a graph, each once."""
    node = jf.ForwardDeclaration(name='node', output_type='float32')
    once = jf.Share(node())
    parts = jf.Record((jf.Scalar(), jf.Map(once) >> jf.Sum()))
    node.resolve_to(parts >> jf.Function(jnp.add))
    return jf.compile(once).program


@functools.cache
def entered() -> Program:
    """A fold whose items are collected before, and another loop after it."""
    seen = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    items = jf.Record((jf.Identity(), jf.Scalar() >> seen))
    fold = jf.Fold(items >> jf.Function(jnp.add), jf.Zeros([]))
    both = jf.AllOf(fold, jf.Map(jf.Scalar() >> seen) >> jf.Sum())
    return jf.compile(both).program


@functools.cache
def random() -> Program:
    """A layer that draws, on each of two numbers."""
    noise = jf.Function(nn.Dropout(0.5))
    return jf.compile(jf.Record((jf.Vector(2) >> noise, jf.Vector(2) >> noise))).program


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
