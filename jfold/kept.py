# SPDX-License-Identifier: Apache-2.0
"""Results that live with what they were made of."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NoReturn, ParamSpec, Self, TypeVar, cast

P = ParamSpec('P')
T = TypeVar('T')


class Owner:
    """Keeps what functions marked `kept` make of it, as long as it lives itself.

    A cache of a module would keep the functions and the data of programs that nobody
    uses any more.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name != _KEPT}


_KEPT = '_kept'


class Stays:
    """Base of what is compiled for one process: it can be copied, but not pickled."""

    _instead: ClassVar[tuple[str, str]]  # what it is, and what others are given

    def __copy__(self) -> Self:
        return self._copied(lambda state: state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._copied(lambda state: copy.deepcopy(state, memo))

    def _copied(self, change: Callable[[Any], Any]) -> Self:
        made = object.__new__(type(self))
        vars(made).update(change(self.__getstate__()))
        return made

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        what, instead = self._instead
        raise TypeError(
            f'expected something that another process can use, got {what}, which is '
            f'compiled for this one: {instead}'
        )


class lazy(Generic[T]):
    """A property that is computed when it is first asked for.

    As `functools.cached_property`, whose lock in Python 3.11 takes longer than most of
    what is asked for on the way to a schedule.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        if owner is None:
            return cast(T, self)  # of the class, as a property is
        # From then on it is found in the owner itself, and this is not called.
        found = owner.__dict__[self.compute.__name__] = self.compute(owner)
        return found


def kept(function: Callable[P, T]) -> Callable[P, T]:
    """Computes a function once for each `Owner`, its first argument, and the others."""

    plain: Callable[..., T] = function

    @functools.wraps(function)
    def cached(owner: Owner, *rest: Any) -> T:
        key = (plain, *rest) if rest else plain
        try:  # what is found costs little: a schedule asks many times
            found: T = owner.__dict__[_KEPT][key]
            return found
        except KeyError:
            pass  # what `plain` raises has nothing to do with this
        found = plain(owner, *rest)
        owner.__dict__.setdefault(_KEPT, {})[key] = found
        return found

    return cast(Callable[P, T], cached)
