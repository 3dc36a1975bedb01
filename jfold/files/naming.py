# SPDX-License-Identifier: Apache-2.0
"""The names under which any process can import functions and classes."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, TypeAlias

from jfold.base.errors import describe_error

Name: TypeAlias = tuple[str, str]  # the name of a module, and a dotted name in it

MAIN = '__main__', '__mp_main__'  # the latter in the workers of `multiprocessing`

# Classes by their names in `types`, as some, such as that of `None`, are in no module
# under their own name.
_ELSEWHERE = {x: name for name, x in vars(types).items() if isinstance(x, type)}


def name_of(value: object) -> Name | None:
    """Return (module, name) by which other processes can import a value, or `None`.

    Values of `__main__` have none: `__main__` of another process is another program.

    >>> import json
    >>> name_of(json.loads), name_of(str.lower), name_of(lambda x: x)
    (('json', 'loads'), ('builtins', 'str.lower'), None)
    """
    for module, name in _names(value):
        if module not in MAIN and '<' not in name and _is_named(value, module, name):
            return module, name
    return None


def _names(value: object) -> Iterator[Name]:
    """Yield pairs (module, name) by which to try to import a value."""
    name = getattr(value, '__qualname__', None) or getattr(value, '__name__', None)
    if not isinstance(name, str):
        return
    # `__objclass__` is the class of a method written in C; `__self__` is what a bound
    # method belongs to, for a builtin function its module.
    owners = (getattr(value, x, None) for x in ('__objclass__', '__self__'))
    for owner in (value, *owners, type(value)):
        module = getattr(owner, '__module__', None) or getattr(owner, '__name__', None)
        if isinstance(module, str):
            yield module, name
    if isinstance(value, type) and value in _ELSEWHERE:
        yield 'types', _ELSEWHERE[value]


def _is_named(value: object, module: str, name: str) -> bool:
    """Return whether importing a name gives this very value."""
    try:
        other = named(module, name)
    except ImportError:
        return False
    # A bound method is a new object at each access.
    is_bound = isinstance(value, MethodType | BuiltinMethodType)
    return other is value or (is_bound and bool(other == value))


def named(module: str, name: str) -> Any:
    """Import and return the value of a name; the inverse of `name_of`.

    Raises:
      ImportError: the module is missing, fails while imported, or lacks the name.
    """
    try:
        root = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a module may raise
        raise ImportError(
            f'expected a module {module!r}, for `{name}`, got '
            f'{describe_error(error)}: install '
            'it where this program runs, or put it on the path'
        ) from error
    try:
        return functools.reduce(getattr, name.split('.'), root)
    except AttributeError:
        raise ImportError(
            f'expected `{name}` in module {module!r}, got a module without: use the '
            'version that has it'
        ) from None


def description(value: object) -> str:
    """Return text for errors: what a value is that cannot be imported by name."""
    name = str(getattr(value, '__qualname__', type(value).__qualname__))
    if isinstance(value, MethodType | BuiltinMethodType):
        return f'the method `{name}` of an object'
    if isinstance(value, FunctionType):
        code = value.__code__
        file = f'{Path(code.co_filename).name}:{code.co_firstlineno}'
        if '<lambda>' in name:
            return f'a lambda ({file})'
        if '<locals>' in name:
            return f'`{name.rpartition(".")[2]}`, defined in a function ({file})'
    module = getattr(value, '__module__', None)
    if module in MAIN and callable(value):
        return f'`{name}` of the program that runs, `{module}`'
    type_ = type(value)
    return f'an object of {type_.__module__}.{type_.__qualname__}'
