# SPDX-License-Identifier: Apache-2.0
"""Random blocks from Python data to tensors, made of no other blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from expression_parts import (
    ROWS,
    Source,
    any_tensor,
    here,
)

import jfold as jf
from jfold.types import TensorType


class Leaves:
    """A part of what draws expressions, which has the rest."""

    pick: Any
    tensor: Any

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
