# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: all that a traced corpus depends on, as text that can be compared.

Functions that run on the host are described by their contents: compiled code, defaults,
closures, the globals of their module that they use, and the members and methods of
these that they name. Data among these are described by their contents, other objects by
their class and the plain data among attributes. Functions of Python itself and of
installed packages are described by name. Layers run on the device and are described by
name and by the types of arguments and outputs. The shapes of outputs and the values of
constants are left out, since graphs refer to values by number alone.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import hashlib
import itertools
import json
import operator
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher
from inspect import CO_VARARGS, CO_VARKEYWORDS, getattr_static
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

import jax
import numpy as np

from jfold.combinators import Function
from jfold.language.lazy_expression import Reader
from jfold.language.typed import TypedUse
from jfold.program.operations import Program
from jfold.scheduling.layout import active_types
from jfold.tracing.strict_reading import HELPERS, Numbers
from jfold.types import Type

FORMAT = 4  # of graphs and demands; raised when numbering, levels or sums change
SHOWN = 3  # the most differences in an error
SMALL = 256  # items of a container, among which functions are looked for
ATOMS = {str, bytes, int, float, bool, type(None)}
TAPE = re.compile(r'(\s+\w+ = \[\])  # .*')  # a list; its type is among the data
EMPTY = CellType()  # a variable of a closure that has no value yet
# Beginnings of the paths of Python itself and of installed packages.
FOLDERS = 'stdlib', 'platstdlib', 'purelib', 'platlib'
INSTALLED = '<frozen', *map(sysconfig.get_path, FOLDERS)
SKIPPED = '<string>', *INSTALLED  # also what `dataclasses` writes
CALLS = 'other or more calls'  # beginning of a difference from which others follow
SECTIONS = 'operations', 'results', 'data', 'steps', 'tables', 'functions'

# A text for a value, and the values inside it, which the text leaves out.
Said: TypeAlias = tuple[str, Iterable[object]]
# Text, hash of what the text leaves out, place in the expression; behind these, for a
# lazy function, a hash of its calls.
Line: TypeAlias = list[str]


def fingerprint(program: Program) -> dict[str, Any]:
    """Return a description of a program as JSON data: lists of lines, in sections.

    The description is the same in every process. Only its functions depend on the
    version of Python, since their compiled code is hashed.
    """
    source = program.source
    names = {
        name: [*value] if isinstance(value, Numbers) else value
        for name, value in source.names.items()
        if name not in HELPERS
    }

    def place(of: str) -> str:
        return _without_ids(source.where.get(of))

    def bindings(code: bool) -> list[Line]:
        return [
            [f'{name} = {_short(x)}', contents(x, code=code), place(name), *_calls(x)]
            for name, x in names.items()
        ]

    # The functions in the source, without comments.
    steps = source.text.partition('\ndef ')[2].split('\n')
    return {
        'format': FORMAT,
        'python': python_version(),
        'numbers': numbers_of(program),
        # Demands depend on sums: their operands need no rows for their cotangents.
        'operations': [
            _plain(f'operation {x!r}' + (', a sum' if x.is_sum else ''))
            for x in program.operations
        ],
        'results': [_plain(str(x)) for x in program.results],
        'data': _data(program),
        'steps': [
            [line, '', place(line.strip())]
            for line in (TAPE.sub(r'\1', x) for x in steps)
            if line.strip() and not line.lstrip().startswith('#')
        ],
        'tables': bindings(code=False),
        'functions': bindings(code=True),
    }


def python_version() -> str:
    """Return the version of Python, such as '3.11', on which compiled code depends."""
    return '.'.join(map(str, sys.version_info[:2]))


def digest_of(expression: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of fingerprint `expression` without block paths."""
    sections = {
        name: [line[:2] for line in x] if isinstance(x, list) else x
        for name, x in expression.items()
    }
    text = json.dumps(sections, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def code_of(program: Program) -> str:
    """Return the version of Python, and one hash of a program's code on the host.

    It costs little, whatever tables the code reads: data are left out, and functions in
    large containers.
    """
    names, state = program.source.names, hashlib.sha256()
    known: dict[int, object] = {}
    waiting = [x for name, x in names.items() if name not in HELPERS]
    while waiting:
        value = waiting.pop()
        if id(value) in known or type(value) in ATOMS:
            continue
        known[id(value)] = value
        if isinstance(value, CodeType):
            state.update(contents(value).encode())
        elif isinstance(value, Mapping | list | tuple):
            items = value.values() if isinstance(value, Mapping) else value
            waiting += items if len(items) <= SMALL else ()
        elif not isinstance(value, set | frozenset | np.ndarray | jax.Array):
            with contextlib.suppress(Exception):  # an object may refuse to be read
                waiting += summary_of(value)[1]
    return f'{python_version()} {state.hexdigest()[:16]}'


def check_code(program: Program, code: str) -> None:
    """Raise ValueError if `code_of(program)` is no longer `code`, in one Python."""
    is_comparable = code.startswith(f'{python_version()} ')
    if is_comparable and code != code_of(program):
        raise ValueError(
            'expected the functions that the examples were traced by, got some that '
            'were defined anew since: trace the examples again'
        )


def _without_ids(place: object) -> str:
    """Return the text of a place in the expression, without memory addresses."""
    return re.sub(' at 0x[0-9a-f]+', '', str(place or ''))


def _data(program: Program) -> list[Line]:
    """Return a line per tape of constants: type, `below`, and block that reads it."""
    expression: Any = program.expression
    lines: dict[int, Line] = {}
    for t, of in enumerate(program.source.recording.constants):
        sites = expression.sites.get(t, ())
        for (tape, *_), (below, site) in zip(of, sites, strict=True):
            bound = '' if below is None else f' below {below}'
            place = site if isinstance(site, TypedUse) else None  # of several readers
            text = f'data {program.types[t]!r}{bound}'
            lines[tape] = [text, '', _without_ids(place)]
    return [line for _, line in sorted(lines.items())]


def numbers_of(program: Program) -> dict[str, Any]:
    """Return a description, as JSON data, of how a program's values are numbered.

    Values are numbered by type, so it matters which widths are equal. The entries,
    types as indices in `Program.types`: the number of types; the types with gradients;
    the type of each constant of the program; the types of inputs and of outputs of each
    operation; the types in a row of each result; the type of each list of examples'
    constants in the source (`own`); and the indices of the program's constants, in the
    order in which the source names them (`shared`).
    """
    recording = program.source.recording
    tapes = [(x, t) for t, of in enumerate(recording.constants) for x, *_ in of]
    return {
        'types': len(program.types),
        'active': sorted(active_types(program)),
        'constants': [t for t, _ in program.constants],
        'operations': [[[*x.inputs], [*x.outputs]] for x in program.operations],
        'results': [[*x.tensors] for x in program.results],
        'own': [t for _, t in sorted(tapes)],
        'shared': [*recording.shared],
    }


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return up to `SHOWN` differences of fingerprints `saved` and `current`."""
    if saved.get('format') != current['format']:
        return [f'graphs of format {saved.get("format")}, not {current["format"]}']
    same_python = saved.get('python') == current['python']
    texts = [
        text
        for section in SECTIONS
        if same_python or section != 'functions'
        for text in _differences(saved.get(section, []), current[section])
        # Names of variables come from operations: another one changes many lines.
        if section != 'steps' or saved.get('operations') == current['operations']
    ]
    texts = sorted(dict.fromkeys(texts), key=lambda text: not text.startswith(CALLS))
    count = len(texts) - SHOWN
    return texts[:SHOWN] + ([f'and {count} more'] if count > 0 else [])


def _differences(saved: list[Line], current: list[Line]) -> Iterator[str]:
    """Yield a text for each difference between sections `saved` and `current`."""
    old, new = ([text for text, *_ in lines] for lines in (saved, current))
    if old == new:
        for one, other in zip(saved, current, strict=True):
            (text, before, _, *calls), (_, now, place, *others) = one, other
            if calls and others and calls != others:
                cause = 'it or `like=` differs, or the program has grown since'
                yield f'{CALLS} of `{text.partition(" = ")[2]}`{_in(place)}: {cause}'
            elif before != now:
                yield f'a different `{text}`{_in(place)}'
        return
    matcher = SequenceMatcher(a=old, b=new, autojunk=False)
    pairs = [
        pair
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != 'equal'
        for pair in itertools.zip_longest(saved[a:b], current[c:d])
    ]
    # Lines with a place in the expression first: others are consequences of these.
    for pair in sorted(pairs, key=lambda pair: not (pair[1] or pair[0])[2]):
        texts = [f'`{line[0].strip()}`' if line else 'nothing' for line in pair]
        yield ' instead of '.join(texts) + _in((pair[1] or pair[0])[2])


def _calls(value: object) -> list[str]:
    return [contents(value.registry.signature())] if isinstance(value, Reader) else []


def _in(place: str) -> str:
    return f' in {place}' if place else ''


def _plain(text: str) -> Line:
    """Return a line of `text` without the shapes in it, such as `[3]`."""
    return [re.sub(r'\[[\d,]*\]', '', text), '', '']


def _short(value: object) -> str:
    """Return a readable text for a value, of 100 characters at most."""
    if isinstance(value, Mapping):
        text = f'{{{", ".join(map(_short, value))}}}'
    else:
        text, _ = summary_of(value)
    return text if len(text) <= 100 else f'{text[:97]}...'


# ---- what values say -----------------------------------------------------------------


def contents(*values: object, code: bool = True) -> str:
    """Return one hash, 16 hexadecimal digits, of values and all values inside them.

    The contents of a function or object are hashed where it first occurs; those of a
    list or other plain container wherever it occurs, except inside itself.

    Args:
      code: whether the hash covers the code of functions.
    """
    state = hashlib.sha256()
    known: dict[int, object] = {}
    # Pairs (value, False) to hash; (container, True) comes after all items were hashed.
    waiting = [(value, False) for value in reversed(values)]
    while waiting:
        value, is_done = waiting.pop()
        if is_done:
            del known[id(value)]
            continue
        text, parts = summary_of(value)
        is_left_out = id(value) in known or (isinstance(value, CodeType) and not code)
        parts = [] if is_left_out else list(parts)
        state.update(f'{len(parts)} {text}\0'.encode('utf-8', 'surrogatepass'))
        if parts:
            known[id(value)] = value
            # Plain containers are forgotten after their last item, so that one list in
            # two places and two equal lists have the same hash.
            if not (hasattr(value, '__dict__') or is_dataclass(value)):
                waiting.append((value, True))
            waiting += [(part, False) for part in reversed(parts)]
    return state.hexdigest()[:16]


@functools.singledispatch
def summary_of(value: object) -> Said:
    """Return a value's text, without its inner values, and a list of the inner values.

    By default the name of the class, and fields or plain attributes.
    """
    code = [getattr_static(value, name, None) for name in ('__wrapped__', '__call__')]
    parts: list[Any] = [x for x in code if isinstance(x, FunctionType)]
    if is_dataclass(value):
        parts += [getattr(value, x.name, None) for x in fields(value)]
    elif not isinstance(value, ModuleType):
        attributes = sorted(getattr(value, '__dict__', {}).items())
        parts += [x for pair in attributes if _is_data(pair[1]) for x in pair]
    return _name(value), parts


def _is_data(value: object) -> bool:
    """Return whether `value` is an array, an atom or a flat container of atoms."""
    if isinstance(value, dict):
        return ATOMS.issuperset(map(type, itertools.chain(*value.items())))
    if isinstance(value, list | tuple | set | frozenset):
        return ATOMS.issuperset(map(type, value))
    return type(value) in ATOMS or isinstance(value, np.ndarray)


def _name(value: object) -> str:
    """Return the name of a function or class, or of another value's class."""
    for name in ('__qualname__', '__name__'):
        text = getattr(value, name, None)
        if isinstance(text, str):
            return text.rpartition('<locals>.')[2]
    return _name(type(value))


@summary_of.register(np.ndarray | jax.Array)
def _(value: np.ndarray[Any, Any] | jax.Array) -> Said:
    array = np.asarray(value)
    text = f'{array.dtype.name}{array.shape}'
    if array.dtype.hasobject:
        return text, array.ravel().tolist()
    return text, [hashlib.sha256(array.tobytes()).hexdigest()]


@summary_of.register
def _(value: FunctionType) -> Said:
    closed = [cell.cell_contents for cell in value.__closure__ or () if cell != EMPTY]
    bound = [value.__defaults__, value.__kwdefaults__, closed]
    return _name(value), [value.__code__, *bound, *_globals(value)]


@summary_of.register
def _(value: CodeType) -> Said:
    arguments = [value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount]
    flags = value.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    names = [value.co_names, value.co_varnames]
    body = [value.co_code, value.co_exceptiontable, value.co_consts]
    return 'code', [*arguments, flags, *names, *body]


def _printed(value: object) -> Said:
    return repr(value), ()


def _items(values: Iterable[object]) -> list[object]:
    """Return a list of values; of one joined text, for speed, if all are atoms."""
    items = list(values)
    return [repr(items)] if ATOMS.issuperset(map(type, items)) else items


_SUMMARIES: dict[Any, Callable[[Any], Said]] = {
    type(None) | type(...) | str | bytes | int | float | complex: _printed,
    range | slice | enum.Enum | np.generic | np.dtype | Type: _printed,
    Function: _printed,  # a layer, which runs on the device
    type: lambda x: (_name(x), ()),
    list | tuple: lambda x: (type(x).__name__, _items(x)),
    Mapping: lambda x: (type(x).__name__, _items(itertools.chain(*x.items()))),
    set | frozenset: lambda x: (type(x).__name__, sorted(map(contents, x))),
    re.Pattern: lambda x: ('pattern', [x.pattern, x.flags]),
    functools.partial: lambda x: (
        f'partial({_name(x.func)})',
        [x.func, x.args, x.keywords],
    ),
    operator.itemgetter | operator.attrgetter | operator.methodcaller: lambda x: (
        _name(x),
        x.__reduce__()[1:],
    ),
    Reader: lambda x: (x.__name__, [x.lazy, x.registry.signature()]),
    MethodType: lambda x: (_name(x), [x.__func__, x.__self__]),
    BuiltinMethodType: lambda x: (_name(x), [x.__self__]),
}
for classes, summary in _SUMMARIES.items():
    summary_of.register(classes, summary)


def _globals(fn: FunctionType) -> Iterator[object]:
    """Yield what `fn` uses of other places: globals, and methods and members of these.

    Of an installed function only the name is yielded.
    """
    loaded, attributes = _names(fn.__code__)
    for name in loaded:
        value = fn.__globals__.get(name)
        is_far = (
            isinstance(value, FunctionType)
            and value.__globals__ is not fn.__globals__
            and value.__code__.co_filename.startswith(INSTALLED)
        )
        yield name if is_far or name not in fn.__globals__ else value
        yield from _members(value, attributes, set())


def _members(
    value: object, names: Iterable[str], seen: set[tuple[int, str]]
) -> Iterator[object]:
    """Yield members of a module, class or object that have one of `names`.

    Those of what is installed are left out, and so is what is in `seen`.
    """
    if not isinstance(value, ModuleType):
        cls = value if isinstance(value, type) else type(value)
        if not _is_installed(str(cls.__module__)):
            yield from _methods(cls, names, seen)
    elif not _is_installed(value.__name__):
        found = {name: vars(value)[name] for name in names if name in vars(value)}
        for name, member in found.items():
            if (id(value), name) not in seen:
                seen.add((id(value), name))
                yield from (name, member)
                yield from _members(member, names, seen)


def _methods(
    cls: type, names: Iterable[str], seen: set[tuple[int, str]]
) -> Iterator[object]:
    """Yield a class's atoms and methods with one of `names`, or that these name."""
    for name in (*names, '__init__', '__call__', '__getitem__'):
        found = getattr_static(cls, name, None)
        if type(found) in ATOMS:
            yield from (name, found)
        functions = [getattr(found, x, None) for x in ('__func__', 'fget', 'func')]
        for function in (found, *functions):
            is_new = isinstance(function, FunctionType) and (id(cls), name) not in seen
            if is_new and not function.__code__.co_filename.startswith(SKIPPED):
                seen.add((id(cls), name))
                yield from (name, function)
                yield from _members(cls, _names(function.__code__)[1], seen)


def _is_installed(module: str) -> bool:
    """Return whether a module is of Python itself, an installed package or jfold."""
    top = module.partition('.')[0]
    path = getattr(sys.modules.get(module), '__file__', None) or ''
    known = top == 'jfold' or top in sys.stdlib_module_names
    return known or path.startswith(INSTALLED)


@functools.lru_cache(1024)
def _names(code: CodeType) -> tuple[list[str], list[str]]:
    """Return the names of globals and of attributes that code reads, sorted.

    Those of functions inside it are included.
    """
    loaded, attributes = set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
            loaded.add(instruction.argval)
        elif instruction.opname in ('LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER_ATTR'):
            attributes.add(instruction.argval)
    for value in code.co_consts:
        if isinstance(value, CodeType):
            for names, inner in zip((loaded, attributes), _names(value), strict=True):
                names.update(inner)
    return sorted(loaded), sorted(attributes)
