# SPDX-License-Identifier: Apache-2.0
"""What types of registers do not tell of a plan in two passes: whether it is whole.

Bodies send items, the plan's own body has them run by one `Waves`; there each column of
what was sent is told whose items they are, once, unless there is but one example and no
metric inside, and each promise is kept once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from jfold import instructions as ir
from jfold.registers import LENGTHS, POSITIONS, WAVES, RegisterType
from jfold.traits import Pass


def wrong_waves(
    main: ir.Body, others: Iterable[ir.Body], types: dict[int, RegisterType]
) -> Iterator[str]:
    """What is wrong with the waves of a plan, if anything is.

    Args:
      main: the plan's own body, whose registers have the `types`.
      others: all its other bodies.
    """
    found = list(main.instructions)
    yield from _misplaced(main, {Pass.FIRST})
    waves = [i for i in found if isinstance(i, ir.Waves)]
    for body in others:
        yield from _misplaced(body, {Pass.SECOND} if waves else {*Pass} - {Pass.EITHER})
        yield from _not_returned(body)
    second = any(i.traits.within is Pass.SECOND for i in found)
    if len(waves) > 1 or (second and not waves):
        yield f'{main}: expected one Waves, got {len(waves)}'
    for i in found if waves else ():
        if 0 in i.inputs:  # which are numbered, by `Waves`, as all other items are
            yield f'{main}: {i}: expected places that Waves gives, got r0'
    for each in waves[:1]:
        yield from (f'{main}: {text}' for text in _not_told(each, found, types))
    kept = [i.declaration for i in found if isinstance(i, ir.Fulfil)]
    if len(kept) > len(set(kept)):
        text = f'expected to keep the promises of each declaration once, got {kept}'
        yield f'{main}: {text}'


def _misplaced(body: ir.Body, wrong: set[Pass]) -> Iterator[str]:
    """What is in a body that has to be in another."""
    for i in body.instructions:
        if i.traits.within in wrong:
            yield f'{body}: {i}: expected it in another body, or a Waves'


def _not_returned(body: ir.Body) -> Iterator[str]:
    """What is sent of which a body does not say, once, where it is."""
    returned = Counter(body.outputs)
    for i in body.instructions:
        if isinstance(i, ir.Send) and (count := returned[i.outputs[0]]) != 1:
            yield f'{body}: {i}: expected the body to return it once, got {count} times'


def _not_told(
    waves: ir.Waves, found: list[ir.Instruction], types: dict[int, RegisterType]
) -> Iterator[str]:
    """Whether it is told of all that was sent whose items they are."""
    sent = [r for r in waves.outputs if _are_sent(types[r])]
    descents = [i for i in found if isinstance(i, ir.Descend)]
    told = [i.inputs[1] for i in descents]
    # Of one example, whose all items are, it matters where something is observed.
    seen = [i.inputs[1] for i in descents if i.visit is not None]
    if sorted(told) != (expected := sorted(seen) if waves.single else sent):
        yield f'{waves}: expected a Descend for each of {expected}, got {sorted(told)}'
    given = [types[r] for r in waves.outputs]
    # By these, positions among the items of a wave become positions among all.
    lengths = {each.of for each in given if each.kind == LENGTHS}
    for each in given:
        if each.kind == POSITIONS and not _are_sent(each) and each.of not in lengths:
            yield f'{waves}: expected lengths beside {each}, got none'


def _are_sent(type_: RegisterType) -> bool:
    return (
        type_.kind == POSITIONS and type_.of.startswith(WAVES) and '&' not in type_.of
    )
