# SPDX-License-Identifier: Apache-2.0
"""What instructions that do the same have in common: what is the same is done once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from jfold.registers import OBJECTS
from jfold.traits import Effect, Traits
from jfold.types import TensorType

_APART = 'way', 'visit'  # options that tell rows apart, and change no value


def value_number(
    kind: Any, inputs: Iterable[int], outputs: int, options: dict[str, Any]
) -> Hashable:
    """What instructions that do the same have in common; `None` if that is not told, as
    of functions of the data, or if each does something beside."""
    traits: Traits = kind.traits
    if traits.holds or traits.effect & Effect.RECORDS or traits.anew:
        return None
    try:  # ways tell rows apart, and are given anew where they have to
        told = [(k, _comparable(v)) for k, v in options.items() if k not in _APART]
    except TypeError:
        return None
    return kind, tuple(inputs), outputs, tuple(told)


def _comparable(value: object) -> Hashable:
    """An option as it compares, with its type.

    Raises:
      TypeError: equal ones might do something else.
    """
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    if isinstance(value, slice):
        return slice, _comparable((value.start, value.stop, value.step))
    if value is None or isinstance(value, int | str | TensorType):
        return type(value), value
    raise TypeError(f'expected an option that can be compared, got {value!r}')


def gives_objects(kind: Any) -> bool:
    """Whether a kind of instruction writes registers of objects."""
    return any(each.gives_any(OBJECTS) for each in kind.traits.signatures)
