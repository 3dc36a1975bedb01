# SPDX-License-Identifier: Apache-2.0
"""Results that live with what they were made of."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Generic, NoReturn, ParamSpec, Self, TypeVar, cast

P = ParamSpec('P')
T = TypeVar('T')
MANY = 8  # things, beyond which those are dropped that were not used for long
LONG = 64  # uses of others


class Memoized:
    """Keeps what functions marked `memoized` make of it, as long as it lives itself.

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


class cached_property(Generic[T]):
    """A property that is computed when it is first asked for.

    As `functools.cached_property`, whose lock in Python 3.11 takes longer than most of
    what is asked for on the way to a schedule.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: object, kind: type | None = None) -> T:
        if owner is None:
            return cast(T, self)  # of the class, as a property is
        # From then on it is found in the owner itself, and this is not called.
        found = owner.__dict__[self.compute.__name__] = self.compute(owner)
        return found


def memoized(function: Callable[P, T]) -> Callable[P, T]:
    """Compute a function once for each owner, its first argument, and the others."""

    plain: Callable[..., T] = function

    @functools.wraps(function)
    def cached(owner: Memoized, *rest: Any) -> T:
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


class Recent(Generic[T]):
    """What was made by key, of which much is dropped if it is not used for long."""

    def __init__(self) -> None:
        self._made: dict[Hashable, T] = {}
        self._used: dict[Hashable, int] = {}
        self._clock = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for a key, or is now."""
        self._clock += 1
        self._used[key] = self._clock
        found = self._made.get(key)
        if found is None:
            # Another thread may have made it meanwhile.
            found = self._made.setdefault(key, make())
            self._drop()
        return found

    def _drop(self) -> None:
        """Leaves a few, and what was used lately."""
        used = sorted(self._used.items(), key=operator.itemgetter(1))
        for key, when in used[:-MANY]:
            if self._clock - when > LONG:
                self._made.pop(key, None)
                self._used.pop(key, None)

    def __len__(self) -> int:
        return len(self._made)
