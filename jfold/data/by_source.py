# SPDX-License-Identifier: Apache-2.0
"""Functions by their source, where nobody can import them: of notebooks and scripts.

A function is told by its text if compiling that gives the code that it has, and by what
it finds elsewhere: defaults, what it closes over, what it uses of its module. To make
it again runs nothing: the text is that of one function, without decorators, defaults
and annotations.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import inspect
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias

from jfold.data.fingerprint import EMPTY, contents, global_names

Node: TypeAlias = ast.FunctionDef | ast.Lambda
Names: TypeAlias = tuple[str, ...]
LOADED = '<loaded>'  # the file that it is of


def said_of(fn: FunctionType) -> tuple[Any, ...]:
    """What tells a function: the arguments of `made_of`.

    Raises:
      ValueError: its source does not; says why.
    """
    code = fn.__code__
    if _stores(code):
        raise ValueError('which changes its module')
    cells = zip(code.co_freevars, fn.__closure__ or (), strict=True)
    closed = {name: x.cell_contents for name, x in cells if x != EMPTY}
    module = fn.__globals__
    used = {x: module[x] for x in sorted({*global_names(code)}) if x in module}
    own = tuple(name for name, x in (used | closed).items() if x is fn)
    others = ({k: x for k, x in each.items() if x is not fn} for each in (closed, used))
    defaults = fn.__defaults__, fn.__kwdefaults__
    name = fn.__qualname__.rpartition('<locals>.')[2]
    text, imports = _text(fn)
    return text, name, *defaults, imports, code.co_freevars, *others, own


def made_of(
    text: str,
    name: str,
    defaults: tuple[Any, ...] | None,
    by_name: dict[str, Any] | None,
    imports: Names,
    free: Names,
    closed: dict[str, Any],
    used: dict[str, Any],
    own: Names,
) -> FunctionType:
    """The function that was told so; the inverse of `said_of`.

    Args:
      text: of the function, without what would be run where it is defined.
      name: what it is called.
      defaults, by_name: of its parameters.
      imports: what the text around it imports, whose methods Python calls otherwise.
      free: the variables that it closes over.
      closed: what they hold, where that is anything.
      used: of its module, by name.
      own: the names of both kinds that are those of itself.

    Raises:
      ValueError, SyntaxError: the text is not that of one function.
    """
    code = _compiled(_only(ast.parse(text)), imports, free)
    cells = {x: CellType() for x in code.co_freevars}
    module = {'__builtins__': builtins, '__name__': 'loaded', **used}
    code = code.replace(co_name=name.rpartition('.')[2], co_qualname=name)
    made = FunctionType(code, module, code.co_name, defaults, tuple(cells.values()))
    made.__kwdefaults__ = by_name
    for each, value in (closed | dict.fromkeys(own, made)).items():
        if each in cells:
            cells[each].cell_contents = value
        else:
            module[each] = value
    return made


def _stores(code: CodeType) -> bool:
    """Whether a function changes names of its module, or one in it does."""
    inside = (each for each in code.co_consts if isinstance(each, CodeType))
    names = (each.opname for each in dis.get_instructions(code))
    return any(x in ('STORE_GLOBAL', 'DELETE_GLOBAL') for x in names) or any(
        map(_stores, inside)
    )


def _text(fn: FunctionType) -> tuple[str, Names]:
    """The source of a function, which compiles to the code that it has, and what of
    its names are imported around it."""
    try:
        lines, _ = inspect.findsource(fn)
        tree = ast.parse(''.join(lines))
    except (OSError, TypeError, SyntaxError):
        raise ValueError('whose source is not known') from None
    own, names = fn.__code__, {*global_names(fn.__code__)}
    imports = tuple(sorted(names.intersection(_imported(tree.body))))
    for node in _functions(tree, own.co_name):
        text = ast.unparse(_bare(node))
        code = _compiled(_only(ast.parse(text)), imports, own.co_freevars)
        if contents(code, code.co_freevars) == contents(own, own.co_freevars):
            return text, imports
    raise ValueError('which is not as its source says now')


def _imported(body: Iterable[ast.AST]) -> Iterator[str]:
    """The names that are imported in a module, but for its functions and classes."""
    scopes = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    waiting = [*body]
    for each in waiting:  # which grows meanwhile
        if isinstance(each, ast.Import | ast.ImportFrom):
            yield from (x.asname or x.name.partition('.')[0] for x in each.names)
        elif not isinstance(each, scopes):
            waiting += ast.iter_child_nodes(each)


def _functions(tree: ast.AST, name: str) -> Iterator[Node]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            if name == '<lambda>':
                yield node
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            yield node


def _only(tree: ast.Module) -> Node:
    """The one function of a text."""
    node: Any = tree.body[0] if len(tree.body) == 1 else None
    node = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        raise ValueError('expected the text of a function, got another')
    return node


def _bare(node: Node) -> Node:
    """A function without what would be run where it is defined."""
    made = copy.deepcopy(node)
    made.args.defaults = []
    made.args.kw_defaults = [None for _ in made.args.kwonlyargs]
    given = *made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs
    for each in (*given, made.args.vararg, made.args.kwarg):
        if each is not None:
            each.annotation = None
    if isinstance(made, ast.FunctionDef):
        made.decorator_list, made.returns = [], None
    return made


def _compiled(node: Node, imports: Names, free: Names) -> CodeType:
    """The code of a function that closes over some variables."""
    bare = _bare(node)
    around = ast.parse('\n'.join([*(f'import {x}' for x in imports), 'def f(): 0']))
    outer: Any = around.body[-1]
    outer.args.args = [ast.arg(name) for name in free]
    if isinstance(bare, ast.FunctionDef):
        bare.name = LOADED  # or its own name in it would be that of a variable here
    outer.body = [ast.Expr(bare) if isinstance(bare, ast.Lambda) else bare]
    whole = compile(ast.fix_missing_locations(around), LOADED, 'exec')
    return _inner(_inner(whole))


def _inner(code: CodeType) -> CodeType:
    (found,) = (each for each in code.co_consts if isinstance(each, CodeType))
    return found
