# SPDX-License-Identifier: Apache-2.0
"""Programs in which something does not fit, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from programs import (
    calls,
    cases,
    chosen,
    drawn,
    edited,
    held,
    in_waves,
    labelled,
    loops,
    nothing,
    rebuilt,
    times,
    trees,
    twice,
    two_declarations,
    two_results,
    two_sums,
    with_tensors,
)
from wrong_kinds import WRONG_KINDS

from jfold import instructions as ir
from jfold.program import HostPlan, Program

WRONG: dict[str, tuple[Callable[[], Program], str]] = {
    'positions that are value ids': (
        lambda: edited(trees(), ir.Select, inputs=(0, 2)),
        '<tree>: r6 = Select r0 r2: expected r2 to be positions[a of a], got '
        'objects[a]',
    ),
    'a column of other rows': (
        lambda: edited(trees(), ir.Select, 1, inputs=(6, 4)),
        '<tree>: r7 = Select r6 r4: expected r4 to be positions[b of b], got '
        'positions[b of a]',
    ),
    'an operation with an input too few': (
        lambda: edited(trees(), ir.Apply, 1, inputs=(10, 13)),
        '<tree>: r16 = Apply r10 r13 way=0 operation=1: expected 2 tensors, got 1',
    ),
    'an operation with an input too many': (
        lambda: edited(trees(), ir.Apply, inputs=(6, 8, 8)),
        '<tree>: r9 = Apply r6 r8 r8 way=0 operation=0: expected 1 tensors, got 2',
    ),
    'an operation on another type': (
        lambda: edited(trees(), ir.Apply, operation=1, inputs=(6, 8, 8)),
        '<tree>: r9 = Apply r6 r8 r8 way=0 operation=1: expected r8 to be '
        'tensors[b, float32[4]], got tensors[b, int32[]]',
    ),
    'an operation at other places': (
        lambda: edited(trees(), ir.Apply, inputs=(0, 8)),
        '<tree>: r9 = Apply r0 r8 way=0 operation=0: expected r8 to be '
        'tensors[a, int32[]], got tensors[b, int32[]]',
    ),
    'an operation that there is not': (
        lambda: edited(trees(), ir.Apply, operation=7),
        '<tree>: r9 = Apply r6 r8 way=0 operation=7: expected one of 2 '
        'operations, got number 7',
    ),
    'an operation without its result': (
        lambda: edited(trees(), ir.Apply, outputs=()),
        '<tree>: Apply r6 r8 way=0 operation=0: expected 1 tensors, got 0',
    ),
    'objects where tensors are expected': (
        lambda: edited(trees(), ir.Observe, inputs=(0, 1)),
        '<expression>: Observe r0 r1 visit=2 way=0 result=1: expected r1 to be '
        'tensors[a, float32[4]], got objects[a]',
    ),
    'a metric that there is not': (
        lambda: edited(trees(), ir.Observe, result=2),
        '<expression>: Observe r0 r2 visit=2 way=0 result=2: expected one of 2 '
        'results, got number 2',
    ),
    'a metric that is the value of the expression': (
        lambda: edited(trees(), ir.Observe, result=0),
        '<expression>: Observe r0 r2 visit=2 way=0 result=0: expected a result of any '
        'number of rows, got number 0',
    ),
    'a metric that should have labels': (
        labelled,
        '<expression>: Observe r0 r2 visit=2 way=0 result=1: expected rows with labels '
        'of result 1, got others',
    ),
    'a key that is a number': (
        drawn,
        '<tree>: r8 = Draw r6 way=0 type=0 tensor=int32[]: expected a key, got type 0, '
        'int32[]',
    ),
    'a conversion to a type of another number': (
        lambda: edited(trees(), ir.Convert, type=1),
        '<tree>: r8 = Convert r7 r6 way=0 type=1 tensor=int32[]: expected type '
        '1 to be float32[4], got int32[]',
    ),
    'a conversion of what is no object': (
        lambda: edited(trees(), ir.Convert, inputs=(6, 6)),
        '<tree>: r8 = Convert r6 r6 way=0 type=0 tensor=int32[]: expected r6 '
        'to be objects[b], got places[b]',
    ),
    'a constant that there is not': (
        lambda: edited(loops(), ir.Constant, index=3),
        '<expression>: r6 = Constant r0 index=3: expected one of 2 constants, '
        'got number 3',
    ),
    'a case too many': (
        lambda: edited(trees(), ir.Cases, cases=3),
        '<tree>: r4, r5 = Positions r3: expected an output for each case of '
        'cases[a: b/c/d], got 2',
    ),
    'a case that has no number': (
        lambda: edited(trees(), ir.Cases, case_of={int: 0, tuple: 2}),
        "<tree>: r3 = Cases r2 case_of={<class 'int'>: 0, <class 'tuple'>: 2} "
        'cases=2: expected more than 2 cases, got 2',
    ),
    'items of a case that there is not': (
        lambda: edited(in_waves(), ir.Among, case=2),
        '<tree>: r6 = Among r0 r2 case=2: expected a case of cases[a: b/c], got'
        ' number 2',
    ),
    'items sent to a declaration that takes others': (
        lambda: edited(in_waves(), ir.Send, inputs=(2,)),
        '<tree>: r17 = Send r2 declaration=0: expected r2 to be objects[a: b/c], '
        'got cases[a: b/c]',
    ),
    'items sent to where the examples are': (
        lambda: edited(in_waves(), ir.Send, declaration=1),
        '<expression>: r2, r5, r9, r20, r21, r22, r25 = Waves r1 '
        'declaration=1 single=False: expected nothing sent to declaration '
        '1, got some',
    ),
    'results of waves without a register': (
        lambda: edited(in_waves(), ir.Waves, outputs=(2, 5, 9, 12)),
        '<expression>: r2, r5, r9, r12 = Waves r1 declaration=1 single=False: '
        'expected 7 outputs, got 4',
    ),
    'items whose senders are others': (
        lambda: edited(in_waves(), ir.Descend, inputs=(8, 20, 2)),
        '<expression>: Descend r8 r20 r2: expected r20 to be positions[b of @0], '
        'got positions[c of @0]',
    ),
    'a promise of another type': (
        lambda: edited(in_waves(), ir.Promise, types=(0,)),
        '<expression>: r17 = Promise r21 r2 declaration=0 types=(1,): expected types '
        '(0,) of declaration 0, got (1,)',
    ),
    'a promise that nobody keeps': (
        lambda: times(in_waves(), ir.Fulfil, 0),
        '<expression>: return: expected promises to be kept, got [(0, (1,))]',
    ),
    'a promise of other items': (
        lambda: edited(in_waves(), ir.Promise, inputs=(20, 22)),
        '<expression>: r15 = Promise r20 r22 declaration=0 types=(1,): expected r22 to '
        'be places[@0], got places[a]',
    ),
    'a promise of another declaration': (
        lambda: edited(in_waves(), ir.Promise, declaration=1),
        '<expression>: r15 = Promise r20 r2 declaration=1 types=(1,): expected items '
        '@1 of declaration 1, got @0',
    ),
    'a promise that others have kept': (
        lambda: edited(two_declarations(), ir.Fulfil, declaration=1),
        '<expression>: Fulfil r2 r16 declaration=1 types=(0,): expected items @1 of '
        'declaration 1, got @0',
    ),
    'a promise without a result': (
        lambda: edited(two_results(), ir.Promise, outputs=(17,), types=(0,)),
        '<expression>: r19, r20 = Promise r26 r2 declaration=0 types=(0, 0): expected '
        'types (0,) of declaration 0, got (0, 0)',
    ),
    'cases in another order': (
        lambda: edited(trees(), ir.Merge, inputs=(5, 4, 16, 9)),
        '<tree>: r17 = Merge r5 r4 r16 r9: expected the positions of all cases '
        'of a in their order, got positions[c of a], positions[b of a]',
    ),
    'a case left out': (
        lambda: edited(trees(), ir.Merge, inputs=(4, 9)),
        '<tree>: r17 = Merge r4 r9: expected the positions of all cases of a '
        'in their order, got positions[b of a]',
    ),
    'columns of other cases': (
        lambda: edited(trees(), ir.Merge, inputs=(4, 5, 16, 9)),
        '<tree>: r17 = Merge r4 r5 r16 r9: expected r16 to be tensors[b, '
        'float32[4]], got tensors[c, float32[4]]',
    ),
    'a permutation of some of the cases': (
        lambda: edited(cases(), ir.Order, inputs=(4,)),
        '<expression>: r21 = Order r4: expected the positions of all cases of '
        'a in their order, got positions[b of a]',
    ),
    'a register that is written later': (
        lambda: edited(trees(), ir.Select, inputs=(9, 4)),
        '<tree>: r6 = Select r9 r4: expected a register written before, got r9',
    ),
    'a result of a call that has not returned': (
        lambda: edited(trees(), ir.Call, 2, inputs=(10, 13)),
        '<tree>: r15 = Call r10 r13 declaration=0 way=3: expected a register '
        'written before, got r13',
    ),
    'a register that is written twice': (
        lambda: edited(trees(), ir.Select, 1, outputs=(6,)),
        '<tree>: r6 = Select r1 r4: expected a new register to write, got r6',
    ),
    'a register that the body has not': (
        lambda: edited(trees(), ir.Observe, outputs=(100,)),
        '<expression>: r100 = Observe r0 r2 visit=2 way=0 result=1: expected a new '
        'register to write, got r100',
    ),
    'a call without its value': (
        lambda: edited(trees(), ir.Call, inputs=(0,)),
        '<expression>: r2 = Call r0 declaration=0 way=1: expected 2 inputs, got 1',
    ),
    'a call with a value of another type': (
        lambda: edited(trees(), ir.Call, 2, inputs=(10, 9)),
        '<tree>: r15 = Call r10 r9 declaration=0 way=3: expected r9 to be '
        'objects[c], got tensors[b, float32[4]]',
    ),
    'a call of no declaration': (
        lambda: edited(trees(), ir.Call, declaration=1),
        '<expression>: r2 = Call r0 r1 declaration=1 way=1: expected one of 1 '
        'declarations, got number 1',
    ),
    'two calls that write one register': (
        lambda: edited(trees(), ir.Call, 2, outputs=(13,)),
        '<tree>: r13 = Call r10 r14 declaration=0 way=3: expected a new '
        'register to write, got r13',
    ),
    'columns of no cases': (
        lambda: edited(trees(), ir.Merge, inputs=()),
        '<tree>: r17 = Merge: expected inputs, got none',
    ),
    'a call that drops a result': (
        lambda: edited(calls(), ir.Call, outputs=(2,)),
        '<expression>: r2 = Call r0 r1 declaration=0 way=1: expected 2 outputs, got 1',
    ),
    'a call that says whose items are whose wrongly': (
        lambda: edited(calls(), ir.Call, owners=(-1, -1)),
        '<expression>: r2, r3 = Call r0 r1 declaration=0 way=1: expected owners '
        '(-1, 0), got (-1, -1)',
    ),
    'a fold from a state of another type': (
        lambda: edited(loops(), ir.FoldLoop, inputs=(2, 0, 1, 5)),
        '<expression>: r7 = FoldLoop r2 r0 r1 r5 '
        'combine=<Pipe[1].AllOf[0].Fold.combine.Function(add)> states=1 way=2: '
        'expected <Pipe[1].AllOf[0].Fold.combine.Function(add)> to take '
        'places[a] objects[a] tensors[a, float32[]], got places[a] tensors[a, '
        'float32[]] tensors[a, float32[]]',
    ),
    'a fold over items of other sequences': (
        lambda: edited(loops(), ir.FoldLoop, inputs=(2, 0, 6, 6)),
        '<expression>: r7 = FoldLoop r2 r0 r6 r6 '
        'combine=<Pipe[1].AllOf[0].Fold.combine.Function(add)> states=1 way=2: '
        'expected r6 to be tensors[b, float32[]], got tensors[a, float32[]]',
    ),
    'a fold whose body takes less': (
        lambda: edited(
            loops(), ir.FoldLoop, combine=held(loops(), ir.ReduceLoop, 'default')
        ),
        '<expression>: r7 = FoldLoop r2 r0 r6 r5 '
        'combine=<Pipe[1].AllOf[1].Reduce(Function(maximum)).Zeros(float32[])> '
        'states=1 way=2: expected '
        '<Pipe[1].AllOf[1].Reduce(Function(maximum)).Zeros(float32[])> to take '
        'places[a] tensors[a, float32[]] tensors[a, float32[]], got places[a]',
    ),
    'a reduction whose default takes more': (
        lambda: edited(
            loops(), ir.ReduceLoop, default=held(loops(), ir.ReduceLoop, 'combine')
        ),
        '<expression>: r8 = ReduceLoop r2 r0 r5 '
        'combine=<Pipe[1].AllOf[1].Reduce.combine.Function(maximum)> '
        'default=<Pipe[1].AllOf[1].Reduce.combine.Function(maximum)> way=3: '
        'expected <Pipe[1].AllOf[1].Reduce.combine.Function(maximum)> to take '
        'places[a], got places[a] tensors[a, float32[]] tensors[a, float32[]]',
    ),
    'groups of operations in another order': (
        lambda: edited(loops(), ir.ReduceGroups, operations=(2, 0, 3)),
        '<expression>: r14 = ReduceGroups r11 r0 r13 '
        'operations=(2, 0, 3) sizes=(2, 4, 8) fill=(1,) again=False '
        'default=<Pipe[1].AllOf[3].Pipe[1].Sum().Zeros(float32[])> '
        'way=4: expected an operation of 2 items, got '
        'add(4 of float32[]) -> float32[]',
    ),
    'groups of items of another type': (
        lambda: edited(loops(), ir.ReduceGroups, inputs=(9, 0, 10)),
        '<expression>: r14 = ReduceGroups r9 r0 r10 '
        'operations=(0, 2, 3) sizes=(2, 4, 8) fill=(1,) again=False '
        'default=<Pipe[1].AllOf[3].Pipe[1].Sum().Zeros(float32[])> '
        'way=4: expected r9 to be lengths[a: b], got positions[a of b]',
    ),
    'groups filled with what is no item': (
        lambda: edited(loops(), ir.ReduceGroups, fill=(7,)),
        '<expression>: r14 = ReduceGroups r11 r0 r13 '
        'operations=(0, 2, 3) sizes=(2, 4, 8) fill=(7,) again=False '
        'default=<Pipe[1].AllOf[3].Pipe[1].Sum().Zeros(float32[])> '
        'way=4: expected one of 2 constants, got number 7',
    ),
    'groups of other items than operations take': (
        lambda: edited(two_sums(), ir.ReduceGroups, operations=(4, 5, 6), fill=()),
        '<expression>: r6 = ReduceGroups r2 r0 r5 '
        'operations=(4, 5, 6) sizes=(2, 4, 8) fill=() again=False '
        'default=<Pipe[1].AllOf[0].Sum().Zeros(float32[])> way=2: '
        'expected items that operations give, [int32[]], got [float32[]]',
    ),
    'groups whose default takes items': (
        lambda: edited(
            loops(), ir.ReduceGroups, default=held(loops(), ir.ReduceLoop, 'combine')
        ),
        '<expression>: r14 = ReduceGroups r11 r0 r13 '
        'operations=(0, 2, 3) sizes=(2, 4, 8) fill=(1,) again=False '
        'default=<Pipe[1].AllOf[1].Reduce.combine.Function(maximum)> '
        'way=4: expected '
        '<Pipe[1].AllOf[1].Reduce.combine.Function(maximum)> to take '
        'places[a], got places[a] tensors[a, float32[]] tensors[a, float32[]]',
    ),
    'a reduction of lengths': (
        lambda: edited(loops(), ir.ReduceLoop, inputs=(2, 0, 2)),
        '<expression>: r8 = ReduceLoop r2 r0 r2 '
        'combine=<Pipe[1].AllOf[1].Reduce.combine.Function(maximum)> '
        'default=<Pipe[1].AllOf[1].Reduce(Function(maximum)).Zeros(float32[])> '
        'way=3: expected r2 to be a column of values, got lengths[a: b]',
    ),
    'lengths of other items': (
        lambda: edited(cases(), ir.ReduceLoop, inputs=(9, 6, 19)),
        '<expression>: r27 = ReduceLoop r9 r6 r19 '
        'combine=<Pipe[1].Reduce.combine.Function(add)> '
        'default=<Pipe[1].Reduce(Function(add)).Zeros(float32[])> way=3: '
        'expected r19 to be tensors[d, float32[]], got tensors[2*c, float32[]]',
    ),
    'places of other sequences': (
        lambda: edited(cases(), ir.Enter, inputs=(9, 0)),
        '<expression>: r11 = Enter r9 r0 way=1: expected r0 to be places[b], '
        'got places[a]',
    ),
    'positions in other items': (
        lambda: edited(loops(), ir.Select, inputs=(6, 9)),
        '<expression>: r10 = Select r6 r9: expected r9 to be positions[a of '
        'a], got positions[a of b]',
    ),
    'lengths and items that are joined': (
        lambda: edited(cases(), ir.Join, 1, inputs=(9, 19)),
        '<expression>: r23 = Join r9 r19: expected r19 to be lengths[2*c: D], '
        'got tensors[2*c, float32[]]',
    ),
    'columns of several types in turns': (
        lambda: edited(cases(), ir.Interleave, inputs=(15, 17)),
        '<expression>: r19 = Interleave r15 r17: expected r17 to be '
        'objects[c], got tensors[c, float32[]]',
    ),
    'items of which nobody tells whose they are': (
        lambda: times(in_waves(), ir.Descend, 0),
        '<expression>: r2, r5, r9, r20, r21, r22, r25 = Waves r1 '
        'declaration=1 single=False: expected a Descend for each of [20, '
        '21, 25], got [21, 25]',
    ),
    'items of which it is told twice whose they are': (
        lambda: times(in_waves(), ir.Descend, 2),
        '<expression>: r2, r5, r9, r20, r21, r22, r25 = Waves r1 '
        'declaration=1 single=False: expected a Descend for each of [20, '
        '21, 25], got [20, 20, 21, 25]',
    ),
    'items of one example that are others': (
        lambda: edited(in_waves(), ir.Waves, single=True),
        '<expression>: r2, r5, r9, r20, r21, r22, r25 = Waves r1 '
        'declaration=1 single=True: expected a Descend for each of [], got '
        '[20, 21, 25]',
    ),
    'a promise that is kept twice': (
        lambda: times(in_waves(), ir.Fulfil, 2),
        '<expression>: expected to keep the promises of each declaration once, got '
        '[0, 0]',
    ),
    'data that is taken apart twice': (
        lambda: times(in_waves(), ir.Waves, 2),
        '<expression>: r2, r5, r9, r20, r21, r22, r25 = Waves r1 '
        'declaration=1 single=False: expected a new register to write, got '
        'r2',
    ),
    'items sent where there are no waves': (
        lambda: replace(
            nothing(), plan=HostPlan(nothing().plan.body, in_waves().plan.declarations)
        ),
        '<tree>: r17 = Send r11 declaration=0: expected it in another body, or a Waves',
    ),
    'a case of all others that there is not': (
        lambda: edited(trees(), ir.Cases, case_of={int: 0, tuple: 1}, default=2),
        "<tree>: r3 = Cases r2 case_of={<class 'int'>: 0, <class 'tuple'>: 1} cases=2 "
        'default=2: expected more than 2 cases, got 2',
    ),
    'a case with a negative number': (
        lambda: edited(trees(), ir.Cases, case_of={int: 0, tuple: -1}),
        "<tree>: r3 = Cases r2 case_of={<class 'int'>: 0, <class 'tuple'>: "
        '-1} cases=2: expected cases from 0 on, got -1',
    ),
    'no cases at all': (
        lambda: edited(trees(), ir.Cases, case_of={}, cases=0),
        '<tree>: r3 = Cases r2 case_of={} cases=0: expected more than 0 cases, got 0',
    ),
    'fields without keys': (
        lambda: edited(in_waves(), ir.Fields, keys=(0,)),
        '<tree>: r11, r13 = Fields r10 keys=(0,) most=2: expected 2 keys, got 1',
    ),
    'a cut by what is no slice': (
        lambda: edited(loops(), ir.Cut, key=1),
        '<expression>: r11, r12 = Cut r2 key=1: expected a slice, got 1',
    ),
    'another that writes a register': (
        lambda: rebuilt(trees(), writer={}),
        '<expression>: return: expected to know which instruction writes '
        'what, got others',
    ),
    'rows that nothing tells from those of another': (
        lambda: edited(twice(), ir.Apply, 1, way=1),
        '<expression>: r4 = Apply r0 r3 way=1 operation=0: expected a way of its own, '
        'got that of another',
    ),
    'a table of constants of two types': (
        lambda: edited(chosen(), ir.Choose, default=(2,)),
        '<expression>: r2 = Choose r1 table=... default=(2,): expected '
        'constants of one type, got those of types [0, 1]',
    ),
    'a result of another type': (
        lambda: rebuilt(trees(), outputs=(1,)),
        '<expression>: return: expected r1 to be tensors[a, float32[4]], got '
        'objects[a]',
    ),
    'a result too few': (
        lambda: rebuilt(loops(), outputs=(7, 8, 10, 14)),
        '<expression>: return: expected 5 results, got 4',
    ),
    'a result that nothing writes': (
        lambda: rebuilt(trees(), outputs=(10,)),
        '<expression>: return: expected a register written before, got r10',
    ),
    'another result than the program states': (
        lambda: with_tensors(trees(), 0, (0,)),
        '<expression>: expected results tensors[a, int32[]], got tensors[a, '
        'float32[4]]',
    ),
}

WRONG |= WRONG_KINDS
