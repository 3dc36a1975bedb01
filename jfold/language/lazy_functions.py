# SPDX-License-Identifier: Apache-2.0
"""The lazy functions in an expression: which there are, their data, and substitutes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from jfold import blocks as b
from jfold.base.memo import memoized
from jfold.blocks.compose import Wiring
from jfold.blocks.lazy import Lazy
from jfold.language.analysis import users


@memoized
def lazy_functions(root: b.Block) -> list[Lazy]:
    """Return the `Lazy` blocks in `root`, in the order of traversal."""
    return [block for block in users(root) if isinstance(block, Lazy)]


def reach(block: b.Block, x: Any) -> Iterator[tuple[Lazy, Any]]:
    """Yield each lazy function in `block`, and its data if `block` runs on `x`.

    Raise TypeError if one is in a block whose inner inputs cannot be told from `x`,
    such as `Fold`.
    """
    if not lazy_functions(block):
        return
    if isinstance(block, Lazy):
        yield block, x
    elif isinstance(block, b.Pipe):
        # Blocks before the lazy function run on the data. Its results are values, which
        # no lazy function behind it takes.
        for part in block.blocks:
            if lazy_functions(part):
                yield from reach(part, x)
                return
            x = part.eval(x)
    elif isinstance(block, b.Record):
        for key, part in block.fields:
            if lazy_functions(part):
                lacks = {'default': None} if isinstance(part, b.Optional) else {}
                yield from reach(part, b.GetItem(key, **lacks).eval(x))
    elif isinstance(block, b.AllOf):
        for part in block.blocks:
            yield from reach(part, x)
    elif isinstance(block, b.Map):
        for item in x:
            yield from reach(block.fn, item)
    elif isinstance(block, b.OneOf) and not isinstance(block.key_fn, b.Block):
        case = block.targets.get(block.key_fn(x), block.default)
        inner = x if block.pre_block is None else block.pre_block.eval(x)
        yield from () if case is None else reach(case, inner)
    elif isinstance(block, b.Optional):
        yield from () if x is None else reach(block.some_case, x)
    elif isinstance(block, b.Reference):
        assert block.declaration.target is not None
        yield from reach(block.declaration.target, x)
    else:
        (lazy, *_) = lazy_functions(block)
        raise TypeError(
            f'{block!r}: expected {lazy!r} in Pipe, Record, AllOf, Map, OneOf, '
            'Optional or a declaration, got it in another block; call that block in a '
            'lazy function instead'
        )


def before(lazy: Lazy, root: b.Block) -> b.Block | None:
    """Return a block with lazy functions before `lazy` in a pipe of `root`, if any."""
    for pipe in users(root):
        if isinstance(pipe, b.Pipe):
            parts = [x for x in pipe.blocks if lazy_functions(x)]
            if any(lazy in lazy_functions(x) for x in parts[1:]):
                return parts[0]
    return None


def substitute(root: b.Block, replace: Callable[[Lazy], b.Block]) -> b.Block:
    """Return a copy of `root` with `replace(lazy)` for each lazy function in it."""
    known: dict[int, Any] = {}
    replace = functools.cache(replace)

    def copy(value: Any) -> Any:
        if isinstance(value, Lazy):
            return replace(value)
        if type(value) in (tuple, list):
            return type(value)(map(copy, value))
        if type(value) is dict:
            return {key: copy(x) for key, x in value.items()}
        if isinstance(value, Wiring):
            return Wiring(copy(value.steps), value.output)
        is_ours = isinstance(value, b.Block | b.ForwardDeclaration)
        if not is_ours or (isinstance(value, b.Block) and not lazy_functions(value)):
            return value
        if id(value) not in known:
            new = known[id(value)] = object.__new__(type(value))
            state = value.__getstate__()  # leaves out what `memoized` stored on it
            vars(new).update({name: copy(x) for name, x in state.items()})
        return known[id(value)]

    result: b.Block = copy(root)
    return result
