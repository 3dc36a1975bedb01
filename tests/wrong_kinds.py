# SPDX-License-Identifier: Apache-2.0
"""Wrong programs, by what is wrong with them, and what the checker says of each.

These have a kind that no other table has, or something that no type of a register
tells: ways and visits, and what is inside what.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from programs import (
    NUMBERS,
    aligned,
    calls,
    carried,
    cases,
    chained,
    changed,
    chosen,
    edited,
    entered,
    in_waves,
    loops,
    objects,
    picked,
    random,
    rebuilt,
    shared,
    strictly_aligned,
    times,
    trees,
    twice,
    with_stages,
    with_wave,
    words,
)

import jfold as jf
from jfold import instructions as ir
from jfold.host.two_passes import in_two_passes
from jfold.program import HostPlan, Program

VECTOR = jf.TensorType((2,), 'float32')


@functools.cache
def deep() -> Program:
    """A recursion in which is observed."""
    tree = jf.ForwardDeclaration(name='tree')
    seen = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    node = jf.GetItem(0) >> tree() >> jf.Function(jnp.sin) >> seen
    tree.resolve_to(jf.OneOf(type, {float: jf.Scalar(), tuple: node}))
    return jf.compile(tree() >> seen).program


@functools.cache
def deep_in_waves() -> Program:
    """The same in two passes."""
    made = in_two_passes(deep(), False)
    assert made is not None
    return made


@functools.cache
def with_vectors() -> Program:
    """A length, beside a vector."""
    parts = jf.GetItem(0) >> jf.Length(), jf.GetItem(1) >> jf.Vector(2)
    return jf.compile(jf.AllOf(*parts)).program


@functools.cache
def two_lists() -> Program:
    """A result with the items of two sequences."""
    first, second = (jf.GetItem(k) >> NUMBERS for k in range(2))
    return jf.compile(jf.AllOf(first, second)).program


@functools.cache
def in_cases() -> Program:
    """One operation in two cases."""
    sine = jf.Function(jnp.sin)
    two = jf.Scalar() >> sine >> sine
    return jf.compile(jf.OneOf(type, {float: jf.Scalar() >> sine, int: two})).program


def alike(program: Program) -> Program:
    """The program with all operations at the places that they are at themselves."""

    def at_itself(i: ir.Instruction) -> ir.Instruction:
        return replace(i, way=0) if isinstance(i, ir.Apply) else i

    return changed(program, at_itself)


@functools.cache
def two_rows() -> Program:
    """A metric of two numbers."""
    seen = jf.AllOf(jf.Identity(), jf.Metric('seen')) >> jf.GetItem(0)
    return jf.compile(jf.Record([(k, jf.Scalar() >> seen) for k in range(2)])).program


def mixed(program: Program) -> Program:
    """The program with calls where all else is."""
    body = program.plan.body
    stages = tuple(ir.Stage(tuple(stage), ()) for stage in body.stages)
    plan = replace(program.plan, body=with_stages(body, stages))
    return replace(program, plan=plan)


def stating(program: Program, **changes: Any) -> Program:
    """The program with something else about its first declaration."""
    first, *others = program.plan.declarations
    plan = HostPlan(program.plan.body, (replace(first, **changes), *others))
    return replace(program, plan=plan)


def unsaid(program: Program) -> Program:
    """The program with sources in which nothing reads anything."""
    assert program.sources is not None
    inputs = tuple((0,) * len(x) for x in program.sources.inputs)
    return replace(program, sources=replace(program.sources, inputs=inputs))


WRONG_KINDS: dict[str, tuple[Callable[[], Program], str]] = {
    'fields of what is no object': (
        lambda: edited(objects(), ir.Field, inputs=(0,)),
        '<expression>: r2 = Field r0 key=0: expected r0 to be objects[a], got '
        'places[a]',
    ),
    'a function of what is no object': (
        lambda: edited(objects(), ir.Transform, inputs=(0,)),
        '<expression>: r5 = Transform r0 fn=len: expected r0 to be objects[a], got '
        'places[a]',
    ),
    'entries of a table for tensors': (
        lambda: edited(objects(), ir.Lookup, inputs=(6,)),
        '<expression>: r15 = Lookup r6 table=... default=(): expected r6 to be '
        'objects[a], got tensors[a, float32[]]',
    ),
    'a table with two defaults': (
        lambda: edited(objects(), ir.Lookup, default=(1, 2)),
        '<expression>: r15 = Lookup r14 table=... default=(1, 2): expected one '
        'default at most, got 2',
    ),
    'tuples of what is no object': (
        lambda: edited(objects(), ir.Pack, inputs=(2, 0)),
        '<expression>: r4 = Pack r2 r0: expected r0 to be objects[a], got places[a]',
    ),
    'lists of what is no item': (
        lambda: edited(objects(), ir.Group, inputs=(7, 1)),
        '<expression>: r11 = Group r7 r1: expected r1 to be objects[b], got objects[a]',
    ),
    'the length of what is no object': (
        lambda: edited(objects(), ir.Count, inputs=(0,)),
        '<expression>: r17 = Count r0: expected r0 to be objects[a], got places[a]',
    ),
    'numbers of what is no length': (
        lambda: edited(objects(), ir.Numbers, inputs=(1, 0)),
        '<expression>: r18 = Numbers r1 r0 way=5 type=0 tensor=float32[]: expected '
        'r1 to be lengths[a: b], got objects[a]',
    ),
    'numbers that are vectors': (
        lambda: edited(with_vectors(), ir.Numbers, type=1, tensor=VECTOR),
        '<expression>: r4 = Numbers r3 r0 way=0 type=1 tensor=float32[2]: expected '
        'a tensor [] of each length, got float32[2]',
    ),
    'items of what is no object': (
        lambda: edited(loops(), ir.Iterate, inputs=(0,)),
        '<expression>: r2, r3 = Iterate r0: expected r0 to be objects[a], got '
        'places[a]',
    ),
    'an item of what has no items': (
        lambda: edited(loops(), ir.Position, inputs=(1,)),
        '<expression>: r9 = Position r1 key=0: expected r1 to be lengths[a: b], '
        'got objects[a]',
    ),
    'an index that is no object': (
        lambda: edited(picked(), ir.Index, inputs=(6, 3)),
        '<expression>: r8 = Index r6 r3: expected r6 to be objects[b], got '
        'tensors[b, float32[]]',
    ),
    'an index of other sequences': (
        lambda: edited(picked(), ir.Index, inputs=(4, 3)),
        '<expression>: r8 = Index r4 r3: expected r3 to be lengths[b: b], got '
        'lengths[a: b]',
    ),
    'lists of numbers for other sequences': (
        lambda: edited(picked(), ir.Pick, inputs=(4, 3)),
        '<expression>: r10, r11 = Pick r4 r3: expected r3 to be lengths[b: b], got '
        'lengths[a: b]',
    ),
    'groups that are none': (
        lambda: edited(picked(), ir.Regroup, inputs=(14, 3, 0)),
        '<expression>: r18, r19 = Regroup r14 r3 r0: expected r0 to be lengths[a: '
        'd], got places[a]',
    ),
    'groups without lengths': (
        lambda: edited(picked(), ir.Regroup, inputs=(14, 3)),
        '<expression>: r18, r19 = Regroup r14 r3: expected 3 inputs, got 2',
    ),
    'a sequence as a tuple of other items': (
        lambda: edited(picked(), ir.Padded, inputs=(10,)),
        '<expression>: r28 = Select r25 r26: expected r26 to be positions[a of '
        'b+a], got positions[a of c+a]',
    ),
    'a sequence as a tuple of its lengths': (
        lambda: edited(picked(), ir.Padded, inputs=(6,)),
        '<expression>: r26, r27 = Padded r6: expected r6 to be lengths[b: b], got '
        'tensors[b, float32[]]',
    ),
    'sequences in one of others': (
        lambda: edited(chained(), ir.Chain, inputs=(4, 10)),
        '<expression>: r14, r15 = Chain r4 r10: expected r10 to be lengths[a: B], '
        'got objects[c]',
    ),
    'sequences in one, in another order': (
        lambda: edited(chained(), ir.Chain, inputs=(9, 4)),
        '<expression>: r16 = Select r13 r15: expected r15 to be positions[d of '
        'b+c], got positions[d of c+b]',
    ),
    'sequences of sequences that are others': (
        lambda: edited(chained(), ir.Total, inputs=(4, 21)),
        '<expression>: r25 = Total r4 r21: expected r21 to be lengths[b: f], got '
        'lengths[e: f]',
    ),
    'sequences of other items as values': (
        lambda: edited(carried(), ir.Wrap, sequence=jf.SequenceType([2])),
        '<expression>: r9 = Wrap r5 r8 sequence=[float32[2]]: expected r8 to be '
        'tensors[c, float32[2]], got tensors[c, float32[]]',
    ),
    'items of sequences of others': (
        lambda: edited(carried(), ir.Unwrap, sequence=jf.SequenceType([2])),
        '<expression>: r11, r12 = Unwrap r10 sequence=[float32[2]]: expected r10 '
        'to be sequences[a, [float32[2]]], got sequences[a, [float32[]]]',
    ),
    'items of what is no sequence': (
        lambda: edited(carried(), ir.Unwrap, inputs=(0,)),
        '<expression>: r11, r12 = Unwrap r0 sequence=[float32[]]: expected r0 to '
        'be sequences[a, [float32[]]], got places[a]',
    ),
    'owners of what has no items': (
        lambda: edited(aligned(), ir.Owners, inputs=(0,)),
        '<expression>: r27 = Owners r0: expected r0 to be lengths[a: b], got places[a]',
    ),
    'the shorter of a sequence and its items': (
        lambda: edited(aligned(), ir.Shortest, inputs=(3, 4)),
        '<expression>: r12 = Shortest r3 r4: expected r4 to be lengths[a: B], got '
        'objects[b]',
    ),
    'a sequence as long as its items': (
        lambda: edited(strictly_aligned(), ir.Same, inputs=(3, 4)),
        '<expression>: r12 = Same r3 r4: expected r4 to be lengths[a: B], got '
        'objects[b]',
    ),
    'first items of no length': (
        lambda: edited(aligned(), ir.Leading, inputs=(3, 4)),
        '<expression>: r13 = Leading r3 r4: expected r4 to be lengths[a: c], got '
        'objects[b]',
    ),
    'parts of sequences at other positions': (
        lambda: edited(cases(), ir.Ranges, inputs=(22, 4)),
        '<expression>: r24, r25 = Ranges r22 r4: expected r4 to be positions[b of '
        'b+c], got positions[b of a]',
    ),
    'a length of several for one': (
        lambda: edited(cases(), ir.Fixed, length=3),
        '<expression>: r26 = Select r23 r25: expected r25 to be positions[e of '
        'd+2*c], got positions[e of d+3*c]',
    ),
    'a negative length': (
        lambda: edited(cases(), ir.Fixed, length=-1),
        '<expression>: r18 = Fixed r13 length=-1: expected a length from 0 on, got -1',
    ),
    'labels that are no objects': (
        lambda: edited(words(), ir.ObserveLabelled, inputs=(4, 6, 6)),
        '<expression>: ObserveLabelled r4 r6 r6 visit=3 way=0 result=1: expected '
        'r6 to be objects[b], got tensors[b, int32[]]',
    ),
    'rows without labels': (
        lambda: edited(words(), ir.ObserveLabelled, inputs=(4, 6)),
        '<expression>: ObserveLabelled r4 r6 visit=3 way=0 result=1: expected 1 '
        'tensors, got 0',
    ),
    'a shared call on places': (
        lambda: edited(shared(), ir.CallOnce, inputs=(0, 0)),
        '<expression>: r2 = CallOnce r0 r0 declaration=0 way=1 key=id: expected r0 '
        'to be objects[a], got places[a]',
    ),
    'a fold at places of other items': (
        lambda: edited(entered(), ir.FoldEntered, inputs=(2, 0, 6, 5)),
        '<expression>: r7 = FoldEntered r2 r0 r6 r5 visit=2 '
        'combine=<AllOf[0].Fold.combine.Record({0: Identity(), 1: '
        "Scalar('float32') >> AllOf(Iden...> states=1 way=2: expected r0 to be "
        'places[b], got places[a]',
    ),
    'a key for what is no place': (
        lambda: edited(random(), ir.Draw, inputs=(1,)),
        '<expression>: r4 = Draw r1 way=2 type=1 tensor=key[dropout]: expected r1 '
        'to be places[a], got objects[a]',
    ),
    'a key that two draw with': (
        lambda: edited(random(), ir.Apply, 1, inputs=(0, 4, 7)),
        '<expression>: r9 = Apply r0 r4 r7 way=6 operation=0: expected a key of '
        'its own, got r4 again',
    ),
    'a call among other instructions': (
        lambda: mixed(trees()),
        '<expression>: r2 = Call r0 r1 declaration=0 way=1: expected calls behind '
        'all else of a stage, got them mixed',
    ),
    'operations of groups without sizes': (
        lambda: edited(loops(), ir.ReduceGroups, sizes=(2, 4)),
        '<expression>: r14 = ReduceGroups r11 r0 r13 operations=(0, 2, 3) '
        'sizes=(2, 4) fill=(1,) again=False '
        'default=<Pipe[1].AllOf[3].Pipe[1].Sum().Zeros(float32[])> way=4: expected '
        '2 operations, got 3',
    ),
    'sizes of groups in another order': (
        lambda: edited(loops(), ir.ReduceGroups, sizes=(2, 8, 4)),
        '<expression>: r14 = ReduceGroups r11 r0 r13 operations=(0, 2, 3) '
        'sizes=(2, 8, 4) fill=(1,) again=False '
        'default=<Pipe[1].AllOf[3].Pipe[1].Sum().Zeros(float32[])> way=4: expected '
        'sizes from 2 on, each above the one before, got (2, 8, 4)',
    ),
    'a table of constants with two defaults': (
        lambda: edited(chosen(), ir.Choose, default=(0, 0)),
        '<expression>: r2 = Choose r1 table=... default=(0, 0): expected one '
        'default at most, got 2',
    ),
    'a call of what takes no places': (
        lambda: stating(trees(), inputs=trees().plan.declarations[0].inputs[1:]),
        '<expression>: r2 = Call r0 r1 declaration=0 way=1: expected <tree> to '
        'take places first, got others',
    ),
    'a call of what gives items without lengths': (
        lambda: stating(calls(), results=calls().plan.declarations[0].results[1:]),
        '<expression>: r2, r3 = Call r0 r1 declaration=0 way=1: expected <rows> to '
        'give lengths before items, got tensors[b, float32[]]',
    ),
    'two calls of one way': (
        lambda: edited(trees(), ir.Call, 2, way=2),
        '<tree>: r15 = Call r10 r14 declaration=0 way=2: expected a way of its '
        'own, got that of another',
    ),
    'items of the way of what makes rows': (
        lambda: edited(chained(), ir.Enter, way=8),
        '<expression>: r7 = Convert r5 r6 way=8 type=0 tensor=float32[]: expected '
        'a way of its own, got that of another',
    ),
    'rows at the same places, of a case': (
        lambda: alike(in_cases()),
        '<expression>: r13 = Apply r10 r12 way=0 operation=0: expected a way of '
        'its own, got that of another',
    ),
    'two loops of one way': (
        lambda: edited(loops(), ir.ReduceLoop, way=2),
        '<expression>: r8 = ReduceLoop r2 r0 r5 '
        'combine=<Pipe[1].AllOf[1].Reduce.combine.Function(maximum)> '
        'default=<Pipe[1].AllOf[1].Reduce(Function(maximum)).Zeros(float32[])> '
        'way=2: expected a way of its own, got that of another',
    ),
    'two rows of one visit': (
        lambda: edited(two_rows(), ir.Observe, 1, visit=3),
        '<expression>: Observe r0 r5 visit=3 way=4 result=1: expected a visit of '
        'its own, got 3, of another',
    ),
    'a row before the items that it is of': (
        lambda: edited(entered(), ir.Observe, 1, visit=7),
        '<expression>: Observe r10 r11 visit=7 way=8 result=1: expected a visit '
        'behind 8, got 7',
    ),
    'a row behind what follows its items': (
        lambda: edited(entered(), ir.Observe, visit=9),
        '<expression>: Observe r4 r5 visit=9 way=6 result=1: expected a visit '
        'behind 2, before all that follows that, got 9',
    ),
    'rows that are in no order': (
        lambda: edited(entered(), ir.Observe, visit=None),
        '<expression>: Observe r4 r5 way=6 result=1: expected, of result 1, a '
        'visit, got none',
    ),
    'rows of a sequence that have an order': (
        lambda: edited(two_lists(), ir.Observe, visit=3),
        '<expression>: Observe r5 r6 visit=3 way=0 result=1: expected, of result '
        '1, no visit, got 3',
    ),
    'items in no order that are observed': (
        lambda: edited(entered(), ir.Enter, 1, visit=None),
        '<expression>: r10 = Enter r8 r0 way=3: expected a visit, since something '
        'is observed inside, got none',
    ),
    'a call in no order in which is observed': (
        lambda: edited(deep(), ir.Call, visit=None),
        '<expression>: r2 = Call r0 r1 declaration=0 way=1: expected a visit, '
        'since something is observed inside, got none',
    ),
    'an order of what nobody observes': (
        lambda: edited(trees(), ir.Call, visit=1),
        '<expression>: r2 = Call r0 r1 visit=1 declaration=0 way=1: expected no '
        'visit, since nothing is observed inside, got 1',
    ),
    'an order of what does nothing': (
        lambda: edited(trees(), ir.Apply, visit=1),
        '<tree>: r9 = Apply r6 r8 visit=1 way=0 operation=0: expected no visit, as '
        'of what makes no rows, got one',
    ),
    'a negative visit': (
        lambda: edited(trees(), ir.Observe, visit=-1),
        '<expression>: Observe r0 r2 visit=-1 way=0 result=1: expected a visit '
        'from 0 on, got -1',
    ),
    'a fold that goes on in other visits': (
        lambda: edited(entered(), ir.FoldEntered, visit=3),
        '<expression>: r7 = FoldEntered r2 r4 r6 r5 visit=3 '
        'combine=<AllOf[0].Fold.combine.Record({0: Identity(), 1: '
        "Scalar('float32') >> AllOf(Iden...> states=1 way=2: expected the visit of "
        'its places, {2}, got 3',
    ),
    'a row before the call that it reads': (
        lambda: edited(deep(), ir.Observe, visit=0),
        '<expression>: Observe r0 r2 visit=0 way=0 result=1: expected a visit '
        'behind 1, got 0',
    ),
    'whose items in no order are': (
        lambda: edited(deep_in_waves(), ir.Descend, visit=None),
        '<expression>: Descend r11 r17 r2: expected a visit, since something is '
        'observed inside, got none',
    ),
    'items of which nobody says where they are': (
        lambda: with_wave(in_waves(), outputs=(2, 6, 17, 17)),
        '<tree>: r17 = Send r11 declaration=0: expected the body to return '
        'it once, got 2 times',
    ),
    'what is made at the places of examples': (
        lambda: edited(in_waves(), ir.Observe, inputs=(0, 24)),
        '<expression>: Observe r0 r24 visit=2 way=0 result=1: expected places that '
        'Waves gives, got r0',
    ),
    'an expression of tensors': (
        lambda: rebuilt(trees(), inputs=trees().plan.body.inputs[:1] * 2),
        '<expression>: r2 = Call r0 r1 declaration=0 way=1: expected r1 to be '
        'objects[a], got places[a]',
    ),
    'a metric that nobody observes': (
        lambda: times(words(), ir.ObserveLabelled, 0),
        '<expression>: expected something to observe result 1, got nothing',
    ),
    'items of other sequences': (
        lambda: edited(two_lists(), ir.Observe, inputs=(10, 11)),
        '<expression>: Observe r10 r11 way=0 result=1: expected items whose '
        'lengths r12 tells, got places[c]',
    ),
    'an operation that reads what is not said': (
        lambda: unsaid(twice()),
        'sin(float32[]) -> float32[], 0: expected `sources` to say what is read, '
        'got [0] beside',
    ),
}
