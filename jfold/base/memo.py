# SPDX-License-Identifier: Apache-2.0
"""Memos of results, stored on the object that a result was computed from."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Generic, NoReturn, ParamSpec, Self, TypeVar, cast

P = ParamSpec('P')
T = TypeVar('T')
MANY = 8  # the number of results, used last, that `Recent` always keeps
LONG = 64  # `Recent` drops other results after this many look-ups without use


class Memoized:
    """A base class whose instances store the memos of `memoized` functions.

    The memo is freed with the instance, and is not pickled. A cache at module level
    would keep alive what nobody uses any more.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name != _CACHE}


_CACHE = '_kept'


class Stays:
    """A base class of objects compiled for this process: copied, but never pickled."""

    __slots__ = ()
    _instead: ClassVar[tuple[str, str]]  # for the error: what it is; what to do

    def __copy__(self) -> Self:
        result = object.__new__(type(self))
        vars(result).update(cast(Any, self.__getstate__()))
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        result = self.__copy__()
        vars(result).update(copy.deepcopy(vars(result), memo))
        return result

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        what, instead = self._instead
        raise TypeError(
            f'expected something that another process can use, got {what}, which is '
            f'compiled for this one: {instead}'
        )


class cached_property(Generic[T]):
    """A property that is computed at its first read, then stored on the instance.

    `functools.cached_property` takes a lock in Python 3.11, which costs more than most
    of the properties that a schedule needs.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: object, owner_type: type | None = None) -> T:
        if owner is None:
            return cast(T, self)  # read from the class, as `property` does
        # An instance attribute shadows this descriptor, so it is called only once.
        value = owner.__dict__[self.compute.__name__] = self.compute(owner)
        return value


def memoized(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with its results cached on its first argument, a `Memoized`.

    The other arguments must be positional and hashable.
    """

    plain: Callable[..., T] = function

    @functools.wraps(function)
    def cached(owner: Memoized, *arguments: Any) -> T:
        key = (plain, *arguments) if arguments else plain
        try:  # a hit has to be cheap: a schedule asks many times
            result: T = owner.__dict__[_CACHE][key]
            return result
        except KeyError:
            pass  # called below, `plain` raises errors without this one as context
        result = plain(owner, *arguments)
        owner.__dict__.setdefault(_CACHE, {})[key] = result
        return result

    return cast(Callable[P, T], cached)


class Recent(Generic[T]):
    """A cache of results used in the last `LONG` look-ups, at least the latest `MANY`.

    Older results are dropped when a new one is made.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[int, T]] = {}  # its last use, a result
        self._clock = 0  # counts look-ups

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result for a key; call `make` for it if the cache has none."""
        self._clock += 1
        entry = self._entries.get(key)
        if entry is None:
            # Another thread may have made it meanwhile.
            entry = self._entries.setdefault(key, (self._clock, make()))
            by_age = sorted(self._entries.items(), key=lambda item: item[1][0])
            for old, (last_use, _) in by_age[:-MANY]:
                if self._clock - last_use > LONG:
                    self._entries.pop(old, None)
        self._entries[key] = self._clock, entry[1]
        return entry[1]

    def __len__(self) -> int:
        return len(self._entries)
