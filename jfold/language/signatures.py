# SPDX-License-Identifier: Apache-2.0
"""How functions and their `init` are called, as their signatures say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any

from jfold.base.errors import short_repr
from jfold.combinators import Function

POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD


def _parameters(fn: Callable[..., Any]) -> list[Parameter] | None:
    """Those of a signature; some functions that are written in C have none."""
    try:
        return [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return None


def _positional(fn: Callable[..., Any]) -> list[Parameter]:
    return [each for each in _parameters(fn) or () if each.kind in POSITIONAL]


def _takes_any_number(fn: Callable[..., Any]) -> bool:
    """Whether a signature tells nothing of how many arguments there may be."""
    given = _parameters(fn)
    return given is None or any(x.kind is Parameter.VAR_POSITIONAL for x in given)


def _is_setting(parameter: Parameter) -> bool:
    """A default of `None` is that of an input that may be left out."""
    return not any(parameter.default is x for x in (Parameter.empty, None))


def settings_of(function: Function, count: int) -> list[Parameter]:
    """The parameters with a default that so many inputs would set, beyond the first."""
    inputs = _positional(function.fn)[function.init is not None :][1:count]
    return list(filter(_is_setting, inputs))


def inputs_of(function: Function) -> list[str]:
    """The names of the parameters that inputs may be given to, in their order."""
    names = [each.name for each in _positional(function.fn)]
    given = names[function.init is not None :]
    return [name for name in given if name not in function.rngs]


def inputs_of_init(function: Function) -> list[str]:
    """Those of its `init` that are given the specs of inputs, behind the key."""
    if function.init is None or not takes_specs(function.init):
        return []
    return [each.name for each in _positional(function.init)[1:]]


def takes_specs(init: Callable[..., Any]) -> bool:
    """Whether an `init` is given the specs of the inputs, beside the key."""
    inputs = [each for each in _positional(init) if not _is_setting(each)]
    return _takes_any_number(init) or len(inputs) != 1


def check_init(function: Function, count: int) -> None:
    """Refuses an `init` of which a spec of so many inputs would replace a default.

    Raises:
      TypeError: it would.
    """
    if function.init is None or not takes_specs(function.init):
        return
    for each in filter(_is_setting, _positional(function.init)[: 1 + count]):
        raise TypeError(
            f'expected an `init` that takes {count} inputs, got one in which an input '
            f'would be `{each.name}={short_repr(each.default)}`'
        )


# ---- what to say ---------------------------------------------------------------------


def call_hint(error: Exception, function: Function, count: int, parts: bool) -> str:
    """How a function and its `init` are called, if an error came from calling them.

    Args:
      count: of the inputs.
      parts: whether they are the parts of a tuple.
    """
    if function.init is not None and _takes_shape(function.init):
        shaped = 'init=lambda key: initializer(key, (2, 3))'
        return f'an initializer takes a shape: write `{shaped}`, for one of [2, 3]'
    names = _names(count)
    tail = ', with the parts of the tuple as separate arguments' if parts else ''
    if function.init is not None and not _init_binds(function.init, count, error):
        call = f'init({", ".join(["key", *names])})'
        return f'write `init` to be called as `init(key)` or `{call}`{tail}'
    before = ['params'] * (function.init is not None)
    if _binds(function.fn, len(before) + count, error, function.rngs):
        return ''
    keys = [f'{name}=key' for name in function.rngs]
    call = f'fn({", ".join([*before, *names, *keys])})'
    other = ''
    if not before and _lacks_init(function.fn, count):
        other = f'; with `init`, as `fn({", ".join(["params", *names])})`'
    return f'give it as many inputs as it takes: it is called as `{call}`{tail}{other}'


def _names(count: int) -> list[str]:
    return list('xyz'[:count]) if count <= 3 else [f'x{i + 1}' for i in range(count)]


def _init_binds(init: Callable[..., Any], count: int, error: Exception) -> bool:
    if not takes_specs(init):
        return True
    settings = filter(_is_setting, _positional(init)[: 1 + count])
    return not any(settings) and _binds(init, 1 + count, error)


def _takes_shape(init: Callable[..., Any]) -> bool:
    """Whether an `init` is one of `jax.nn.initializers`, by the names of its inputs."""
    return [each.name for each in _positional(init)[1:3]] == ['shape', 'dtype']


def _binds(
    fn: Callable[..., Any], count: int, error: Exception, keys: Iterable[str] = ()
) -> bool:
    """Whether a function can be called with so many arguments; if unsure, by an error.

    Others in it may be called in a wrong way, which is another matter.
    """
    if _takes_any_number(fn):
        said = isinstance(error, TypeError) and 'positional argument' in str(error)
        return not said
    return _can_bind(fn, count, keys)


def _can_bind(fn: Callable[..., Any], count: int, keys: Iterable[str] = ()) -> bool:
    """Whether a function that has a signature can be called so."""
    try:
        inspect.signature(fn).bind(*range(count), **dict.fromkeys(keys))
    except TypeError:
        return False
    return True


def _lacks_init(fn: Callable[..., Any], count: int) -> bool:
    """Whether a function of a user's takes one argument more: its parameters."""
    plain = inspect.isfunction(inspect.unwrap(fn)) and not _takes_any_number(fn)
    return plain and _can_bind(fn, count + 1)
