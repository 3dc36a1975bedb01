# SPDX-License-Identifier: Apache-2.0
"""Lowered programs of several kinds, which tests look at and change."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

import jfold as jf
from jfold.host.two_passes import in_two_passes
from jfold.program import Program


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
def in_waves() -> Program:
    """The recursion in two passes."""
    made = in_two_passes(trees(), False)
    assert made is not None
    return made


@functools.cache
def loops() -> Program:
    """Loops over a sequence, and parts of it."""
    fold = jf.Fold(jf.Function(jnp.add), jf.Zeros([]))
    half = jf.GetItem(slice(0, 2)) >> jf.Sum()
    parts = jf.AllOf(fold, jf.Max(), jf.GetItem(0), half, jf.Length())
    return jf.compile(jf.Map(jf.Scalar()) >> parts).program


@functools.cache
def cases() -> Program:
    """A choice between sequences, one of Python's and one of a tuple."""
    one = jf.GetItem(1) >> jf.Map(jf.Scalar())
    two = jf.AllOf(jf.GetItem(1) >> jf.Scalar(), jf.FromTensor(np.float32(2)))
    chosen = jf.OneOf(jf.GetItem(0), {'a': one, 'b': two >> jf.Map(jf.Identity())})
    return jf.compile(chosen >> jf.Sum()).program


@functools.cache
def calls() -> Program:
    """A declaration that takes and gives sequences."""
    rows = jf.ForwardDeclaration(name='rows')
    rows.resolve_to(jf.Map(jf.Scalar()))
    return jf.compile(rows() >> jf.Sum()).program
