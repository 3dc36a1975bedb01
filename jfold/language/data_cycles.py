# SPDX-License-Identifier: Apache-2.0
"""Errors for cyclic data, objects that contain themselves; they show the cycle."""

from __future__ import annotations

from typing import Any, NoReturn

from jfold.base.errors import elide
from jfold.base.printing import callable_name
from jfold.language.data_paths import Path
from jfold.language.typed import TypedUse
from jfold.language.walk import Located, Misfit, Walk


def refuse_cycle(node: TypedUse, x: object, before: Path, state: Walk) -> NoReturn:
    """Raise `Misfit` for input `x` that contains itself, first met at path `before`."""
    # The cycle may pass through a shared object, whose error says more.
    for (declaration, _), (first, values) in state.shared.items():
        if not values and str(first.path).startswith(str(before)):
            rest = str(first.path).removeprefix(str(before))
            refuse_shared_cycle(declaration, first, steps_to(x, first.path) + rest)
    object_ = next(iter(objects_in(x)), Located(None))
    cycle = elide(steps_to(x, before)) or 'it is'
    kind = type(object_.value).__name__
    text = f'expected data that end, got {kind} that contains itself, as {cycle}'
    raise Misfit(text, str(node), before)


def refuse_shared_cycle(declaration: Any, first: Located, steps: str) -> NoReturn:
    """Raise `Misfit` for object `first`, whose result in a `Share` needs itself.

    `declaration` is the `Share`'s, `steps` the path from the object to itself.
    """
    kind = type(first.value).__name__
    name = callable_name(declaration.key)
    by = '' if declaration.key is id else f', or to another of the same `{name}`'
    at = f', as {elide(steps)}' if steps else ''
    text = (
        f'expected data that end, got {kind} that leads back to itself{by}{at}; write '
        'a block for each round of a graph with cycles, which reads the one before'
    )
    raise Misfit(text, declaration.name, first.path)


def steps_to(x: object, before: Path | None) -> str:
    """Return the steps from path `before` to the path of the first object in `x`."""
    (object_, *_) = objects_in(x) or [Located(None)]
    while object_.parts:
        object_ = object_.parts[0]
    return str(object_.path).removeprefix(str(before))


def objects_in(x: object) -> list[Located]:
    """Return the `Located` objects in `x`, nested tuples and lists, left to right."""
    if isinstance(x, Located):
        return [x]
    parts = x if isinstance(x, tuple | list) else ()
    return [object_ for part in parts for object_ in objects_in(part)]
