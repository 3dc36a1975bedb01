# SPDX-License-Identifier: Apache-2.0
"""The signatures of functions and of their `init`, and advice on calling them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any

from jfold.base.errors import short_repr
from jfold.combinators import Function


def _parameters(fn: Callable[..., Any]) -> list[Parameter] | None:
    """Return a function's parameters; `None` without a signature, as for some in C."""
    try:
        return [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return None


def _positional(fn: Callable[..., Any]) -> list[Parameter]:
    kinds = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
    return [x for x in _parameters(fn) or () if x.kind in kinds]


def _takes_any_number(fn: Callable[..., Any]) -> bool:
    """Return whether a function takes `*args`, or has no signature to tell."""
    parameters = _parameters(fn)
    return parameters is None or any(x.kind is x.VAR_POSITIONAL for x in parameters)


def _is_setting(parameter: Parameter) -> bool:
    """Return whether a parameter is a setting: with a default other than `None`."""
    return parameter.default is not None and parameter.default is not Parameter.empty


def settings_of(function: Function, count: int) -> list[Parameter]:
    """Return the settings (see `_is_setting`) that inputs 2 to `count` would fill."""
    inputs = _positional(function.fn)[function.init is not None :][1:count]
    return list(filter(_is_setting, inputs))


def input_names(function: Function) -> list[str]:
    """Return the names of a function's inputs, without `params` and random keys."""
    inputs = _positional(function.fn)[function.init is not None :]
    return [x.name for x in inputs if x.name not in function.rngs]


def keyword_names(function: Function) -> list[str]:
    """Return the names of `function`'s keyword-only parameters, without random keys."""
    parameters = [x for x in _parameters(function.fn) or () if x.kind is x.KEYWORD_ONLY]
    return [x.name for x in parameters if x.name not in function.rngs]


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
    """Raise TypeError if a key and `count` specs fill a setting of `function.init`."""
    for parameter in _settings_of_init(function.init, count):
        raise TypeError(
            f'expected an `init` that takes {count} inputs, got one in which an input '
            f'would be `{parameter.name}={short_repr(parameter.default)}`'
        )


def _settings_of_init(init: Callable[..., Any] | None, count: int) -> list[Parameter]:
    """Return the settings of `init` that a key and `count` specs would fill."""
    inputs = [] if init is None or not takes_specs(init) else _positional(init)
    return list(filter(_is_setting, inputs[: 1 + count]))


def call_hint(error: Exception, function: Function, count: int, parts: bool) -> str:
    """Return advice on passing `count` inputs to a function; '' if it takes that many.

    `error` is the exception of the call; with `parts`, the inputs are the items of one
    tuple.
    """
    fn, init, before = function.fn, function.init, list[str]()
    names = list('xyz'[:count] if count <= 3 else (f'x{i + 1}' for i in range(count)))
    tail = ', with the parts of the tuple as separate arguments' if parts else ''
    if init is not None:
        before = ['params']
        # The functions of `jax.nn.initializers` take (key, shape, dtype).
        if [x.name for x in _positional(init)[1:3]] == ['shape', 'dtype']:
            shaped = 'init=lambda key: initializer(key, (2, 3))'
            return f'an initializer takes a shape: write `{shaped}`, for one of [2, 3]'
        binds = not takes_specs(init) or _binds(init, 1 + count, error)
        if not binds or _settings_of_init(init, count):
            call = f'init({", ".join(["key", *names])})'
            return f'write `init` to be called as `init(key)` or `{call}`{tail}'
    if _binds(fn, len(before) + count, error, function.rngs):
        return ''
    keys = [f'{name}=key' for name in function.rngs]
    call = f'fn({", ".join([*before, *names, *keys])})'
    other = ''
    if not before and inspect.isfunction(inspect.unwrap(fn)):
        # It takes one input more, such as `params`: probably it lacks an `init`.
        if not _takes_any_number(fn) and _binds(fn, count + 1, error):
            other = f'; with `init`, as `fn({", ".join(["params", *names])})`'
    return f'give it as many inputs as it takes: it is called as `{call}`{tail}{other}'


def _binds(
    fn: Callable[..., Any], count: int, error: Exception, keys: Iterable[str] = ()
) -> bool:
    """Return whether `fn` takes `count` inputs and the keywords `keys`.

    If the signature does not tell, the `error` of a call decides.
    """
    if _takes_any_number(fn):
        is_of_call = 'positional argument' in str(error)
        return not (is_of_call and isinstance(error, TypeError))
    try:
        inspect.signature(fn).bind(*range(count), **dict.fromkeys(keys))
    except TypeError:
        return False
    return True
