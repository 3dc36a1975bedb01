# SPDX-License-Identifier: Apache-2.0
"""What random expressions are made of: blocks with a way to draw data for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import jfold as jf
from jfold.types import TensorType

Rng = np.random.Generator
ROWS = 5  # of the arrays that `External` blocks pick rows of
TABLE = 7  # entries that ints look up


@dataclass(frozen=True)
class Source:
    """A block that takes Python data, and how to draw data for it."""

    block: Any
    sample: Callable[[Rng], Any]


@dataclass(frozen=True)
class Expression(Source):
    """What `expressions()` draws."""

    dtype: str

    def __repr__(self) -> str:
        return f'Expression({self.block!r})'

    def batch(self, rng: Rng, size: int) -> list[Any]:
        """Draws examples."""
        return [self.sample(rng) for _ in range(size)]


def any_tensor(type_: TensorType, rng: Rng, *rows: int) -> Any:
    """An array of a type, or rows of it."""
    shape = *rows, *type_.shape
    if not type_.differentiable:
        return rng.integers(TABLE, size=shape)
    return rng.uniform(-1, 1, shape).round(3)


def tables(model: jf.Model) -> dict[str, Any]:
    """An array for each `External` block of a model, by name; always the same."""
    made = {}
    for layer in model.program.layers:
        if layer.external:
            spec: Any = layer.params
            type_ = TensorType(spec.shape[1:], spec.dtype)
            array = any_tensor(type_, np.random.default_rng(len(made)), ROWS)
            made[layer.name] = np.asarray(array, spec.dtype)
    return made


# ---- functions of the host, which a file can name -----------------------------------


def here(x: Any) -> Any:
    """What is in a dict."""
    return x['here']


def first_of(x: Any) -> Any:
    """The first of a pair."""
    return x[0]


def as_tuple(x: Any) -> Any:
    """Another object each time."""
    return (*x,)


def parity(items: Any) -> int:
    """Whether a length is odd."""
    return len(items) % 2


# ---- data ----------------------------------------------------------------------------


def by_length(even: Any, odd: Any) -> Any:
    """One block for lists of an even length, another for those of an odd one."""
    return jf.OneOf(parity, {0: even, 1: odd})


def choice(cases: list[Source]) -> Callable[[Rng], Any]:
    """How to draw the number of a case, and data for it."""

    def sample(rng: Rng) -> Any:
        chosen = int(rng.integers(len(cases)))
        return chosen, cases[chosen].sample(rng)

    return sample


def random_tree(
    rng: Rng,
    leaves: int,
    leaf: Callable[[Rng], Any],
    node: Callable[[Rng, list[Any]], Any],
    arity: int | None = None,
) -> Any:
    """A random tree of ('leaf', data) and ('node', data); without arity, also empty."""
    if arity is None and rng.random() < 0.1:
        return 'node', node(rng, [])
    if leaves == 1:
        return 'leaf', leaf(rng)
    parts = min(arity or int(rng.integers(1, 4)), leaves)
    sizes = shares(rng, leaves, parts)
    children = [random_tree(rng, n, leaf, node, arity) for n in sizes]
    return 'node', node(rng, children)


def labelled_tree(rng: Rng, nodes: int, label: Source) -> Any:
    """A random tree of so many nodes, each with a label and any number of children."""
    parts = min(int(rng.integers(1, 4)), nodes - 1)
    sizes = shares(rng, nodes - 1, parts) if parts else []
    children = [labelled_tree(rng, size, label) for size in sizes]
    return {'label': label.sample(rng), 'children': children}


def shares(rng: Rng, total: int, parts: int) -> list[int]:
    """Splits a number into positive parts."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False) + 1)
    return np.diff(cuts, prepend=0, append=total).tolist()


def sample_numbered(items: Source, groups: bool, rng: Rng) -> Any:
    """A list of items, numbers of some of them, in which some come twice; or else the
    number of the group of each, and as many groups as a list is long."""
    made = [items.sample(rng) for _ in range(int(rng.integers(1, 4)))]
    if not groups:
        some = rng.integers(-len(made), len(made), size=int(rng.integers(4)))
        return made, some.tolist()
    names = 'abc'[: int(rng.integers(1, 4))]
    return made, rng.integers(len(names), size=len(made)), names


# ---- leaves --------------------------------------------------------------------------


class Leaves:
    """A part of what draws expressions: blocks that are made of no others."""

    def leaf(self, want: TensorType, depth: int) -> Source:
        """Tensors from Python values, numbers of rows, or letters."""
        kinds = [self.tensors, self.tensors, self.fields, self.known, self.rows]
        if want == self.tensor(3):
            kinds += [self.letters, self.numbered]
        return self.pick(kinds)(want)

    def tensors(self, want: TensorType) -> Source:
        """`Tensor`, or what is made of it for numbers and vectors."""
        made: dict[int, Any] = {0: jf.Scalar, 1: partial(jf.Vector, *want.shape)}
        plain = partial(jf.Tensor, want.shape)
        block = self.pick([plain, made.get(len(want.shape), plain)])(want.dtype)
        return Source(block, lambda rng: any_tensor(want, rng).tolist())

    def fields(self, want: TensorType) -> Source:
        """Behind an `InputTransform` of a function."""
        inner = self.tensors(want)
        block = jf.InputTransform(here) >> inner.block
        return Source(block, lambda rng: {'here': inner.sample(rng)})

    def known(self, want: TensorType) -> Source:
        """Behind an `InputTransform` of a table."""
        inner = self.tensors(want)
        values = [inner.sample(np.random.default_rng(k)) for k in range(4)]
        table = dict(zip('abc', values[1:], strict=True))
        block = jf.InputTransform(table, default=values[0]) >> inner.block
        return Source(block, lambda rng: str(rng.choice(list('abcd'))))

    def rows(self, want: TensorType) -> Source:
        """A row of an array from elsewhere, of two of each type, by its number."""
        block = jf.External(f'{self.pick("ab")} {want!r}', want)
        return Source(block, lambda rng: int(rng.integers(-ROWS, ROWS)))

    def letters(self, want: TensorType) -> Source:
        """A letter as a vector [3]."""
        strict = self.pick([False, True])
        letters = list('abc' if strict else 'abcd')
        block = jf.OneHotFromList('abc', want.dtype, strict)
        return Source(block, lambda rng: str(rng.choice(letters)))

    def numbered(self, want: TensorType) -> Source:
        """A number as a vector [3]."""
        block = jf.OneHot(-1, 2, dtype=want.dtype)
        return Source(block, lambda rng: int(rng.integers(-1, 2)))
