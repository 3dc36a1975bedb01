# SPDX-License-Identifier: Apache-2.0
"""A lowered program, and programs that are changed."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax.numpy as jnp

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
