# SPDX-License-Identifier: Apache-2.0
"""The signatures of functions and of their `init`, and advice on calling them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any

from jfold.base.errors import short_repr
from jfold.combinators import Function

POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = Parameter.KEYWORD_ONLY


def _parameters(fn: Callable[..., Any]) -> list[Parameter] | None:
    """Return a function's parameters; `None` if it has no signature, as some in C."""
    try:
        return [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return None


def _positional(fn: Callable[..., Any]) -> list[Parameter]:
    return [x for x in _parameters(fn) or () if x.kind in POSITIONAL]


def _takes_any_number(fn: Callable[..., Any]) -> bool:
    """Return whether a function takes `*args`, or has no signature to tell."""
    parameters = _parameters(fn)
    return parameters is None or any(
        x.kind is Parameter.VAR_POSITIONAL for x in parameters
    )


def _is_setting(parameter: Parameter) -> bool:
    """Return whether a parameter has a default other than `None`."""
    return not any(parameter.default is x for x in (Parameter.empty, None))


def settings_of(function: Function, count: int) -> list[Parameter]:
    """Return the settings, parameters with a default, that `count` inputs would fill.

    A parameter whose default is `None` is no setting.
    """
    inputs = _positional(function.fn)[function.init is not None :][1:count]
    return list(filter(_is_setting, inputs))


def input_names(function: Function) -> list[str]:
    """Return the names of a function's inputs, without `params` and random keys."""
    names = [x.name for x in _positional(function.fn)][function.init is not None :]
    return [name for name in names if name not in function.rngs]


def keyword_names(function: Function) -> list[str]:
    """Return the names of keyword-only parameters, without random keys."""
    names = [x.name for x in _parameters(function.fn) or () if x.kind is KEYWORD]
    return [name for name in names if name not in function.rngs]


def inputs_of_init(function: Function) -> list[str]:
    """Return the names of the specs that `function.init` takes; [] if it takes none."""
    if function.init is None or not takes_specs(function.init):
        return []
    return [x.name for x in _positional(function.init)[1:]]


def takes_specs(init: Callable[..., Any]) -> bool:
    """Return whether `init` takes a key and specs of the inputs, not a key alone."""
    inputs = [x for x in _positional(init) if not _is_setting(x)]
    return _takes_any_number(init) or len(inputs) != 1


def check_init(function: Function, count: int) -> None:
    """Raise TypeError if a spec would be passed for an `init` argument with a default.

    `init` is called with a key and `count` specs. A default, unless `None`, marks a
    setting, not an input.
    """
    if function.init is None or not takes_specs(function.init):
        return
    for parameter in filter(_is_setting, _positional(function.init)[: 1 + count]):
        raise TypeError(
            f'expected an `init` that takes {count} inputs, got one in which an input '
            f'would be `{parameter.name}={short_repr(parameter.default)}`'
        )


# ---- advice --------------------------------------------------------------------------


def call_hint(error: Exception, function: Function, count: int, parts: bool) -> str:
    """Return advice on passing `count` inputs to a function; '' if it takes so many.

    Args:
      error: what the call raised.
      count: the number of inputs.
      parts: whether these are the items of one tuple.
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
    """Return whether `init` takes (key, shape, dtype), as in `jax.nn.initializers`."""
    return [x.name for x in _positional(init)[1:3]] == ['shape', 'dtype']


def _binds(
    fn: Callable[..., Any], count: int, error: Exception, keys: Iterable[str] = ()
) -> bool:
    """Return whether `fn` takes `count` inputs: by its signature, or else by `error`.

    If the signature tells, the error is ignored: it may come from a call inside.

    Args:
      error: what a call of the function raised.
      keys: the names of its keyword arguments.
    """
    if _takes_any_number(fn):
        return not (
            isinstance(error, TypeError) and 'positional argument' in str(error)
        )
    return _can_bind(fn, count, keys)


def _can_bind(fn: Callable[..., Any], count: int, keys: Iterable[str] = ()) -> bool:
    """Return whether `fn` takes `count` positional arguments, and keywords `keys`."""
    try:
        inspect.signature(fn).bind(*range(count), **dict.fromkeys(keys))
    except TypeError:
        return False
    return True


def _lacks_init(fn: Callable[..., Any], count: int) -> bool:
    """Return whether `fn` takes one input, such as `params`, more than `count`.

    Such a function probably lacks an `init` that makes them.
    """
    plain = inspect.isfunction(inspect.unwrap(fn)) and not _takes_any_number(fn)
    return plain and _can_bind(fn, count + 1)
