# SPDX-License-Identifier: Apache-2.0
"""`Ragged`: what a batch gives in the place of a sequence."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfold.errors import whole
from jfold.forms import TUPLE, StructForm, is_leaf, is_struct, opened
from jfold.tracebacks import boundary
from jfold.types import SequenceType, Type, levels, pack, terminals


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Ragged:
    """The sequences of a batch, of any lengths, one an example; a pytree.

    Rows are the items of the first example, in order, then those of the second, and so
    on. Spare rows, at the end, are zero, so that sums need no mask; gradients flow
    through all others.

    Attributes:
      values: [rows, *shape]; a tuple of such arrays if items are tuples, and where they
        are or hold sequences, a `Ragged` with a sequence a row.
      lengths: [examples] int32, items of each; 0 for those beyond the batch, which
        `Model.schedule(..., size=)` makes room for.

    >>> import jfold as jf
    >>> model = jf.compile(jf.Map(jf.Scalar() >> jf.Function(jnp.square)))
    >>> squares = model.apply({}, model.schedule([[1, 2], [], [3]]))
    >>> squares.lengths.tolist(), squares.values[squares.mask].tolist()
    ([2, 0, 1], [1.0, 4.0, 9.0])
    >>> padded, real = squares.padded(2, fill=-1)
    >>> padded.tolist(), real.sum(1).tolist()
    ([[1.0, 4.0], [-1.0, -1.0], [9.0, -1.0]], [2, 0, 1])
    """

    values: Any
    lengths: jax.Array

    @property
    def mask(self) -> jax.Array:
        """Whether a row is an item [rows] bool."""
        rows = jnp.arange(_rows(self.values), dtype=self.lengths.dtype)
        return rows < self.lengths.sum(dtype=self.lengths.dtype)

    def to_list(self) -> list[Any]:
        """A list an example, of what `Block.eval` gives for it: arrays, of NumPy, in
        tuples and lists."""
        lengths = np.asarray(self.lengths).tolist()
        items = iter(_items(self.values, sum(lengths)))
        return [list(itertools.islice(items, length)) for length in lengths]

    @boundary
    def padded(self, length: int, fill: Any = 0) -> tuple[Any, jax.Array]:
        """The first items of each sequence, side by side; for use under `jit` too.

        Args:
          length: how many; an int, as it decides a shape.
          fill: what stands where a sequence has ended.

        Returns:
          Items [examples, length, *shape], in tuples as in `values`, and which of them
          are real [examples, length] bool.

        Raises:
          TypeError: `length` is no int; or items are, or hold, sequences.
          ValueError: `length` is negative.
        """
        length = whole('length', length, 0)
        if any(map(_is_ragged, jax.tree.leaves(self.values, is_leaf=_is_ragged))):
            raise TypeError(
                f'expected items of tensors, got sequences among them, in {self}: pad '
                'these first, as in `inner = x.values.padded(n)`, then '
                '`jf.Ragged(inner, x.lengths).padded(m)`'
            )
        within = jnp.arange(length, dtype=self.lengths.dtype)
        mask = within < self.lengths[:, None]
        first = jnp.cumsum(self.lengths, dtype=self.lengths.dtype) - self.lengths
        rows = first[:, None] + within
        made = jax.tree.map(lambda x: _filled(x, rows, mask, fill), self.values)
        return made, mask

    def __repr__(self) -> str:
        return f'Ragged(values={_shown(self.values)}, lengths={_shown(self.lengths)})'


def _filled(x: jax.Array, rows: jax.Array, mask: jax.Array, fill: Any) -> jax.Array:
    """Rows [examples, length, *shape] of `x` [n, *shape], if they are real."""
    if not len(x):
        return jnp.full((*rows.shape, *x.shape[1:]), fill, x.dtype)
    chosen = jnp.asarray(x).at[jnp.where(mask, rows, 0)].get(mode='clip')
    real = mask.reshape(mask.shape + (1,) * (x.ndim - 1))
    return jnp.where(real, chosen, jnp.asarray(fill, x.dtype))


def _is_ragged(values: object) -> bool:
    return isinstance(values, Ragged)


def _rows(values: Any) -> int:
    """How many rows there are."""
    first, *_ = jax.tree.leaves(values, is_leaf=_is_ragged)
    return len(first.lengths if _is_ragged(first) else first)


def _items(values: Any, count: int) -> Sequence[Any]:
    """The first rows, one by one."""
    if isinstance(values, Ragged):
        return values.to_list()[:count]
    if not is_leaf(values):
        parts, structure = opened(values)
        columns = [_items(each, count) for each in parts]
        rows = ([column[i] for column in columns] for i in range(count))
        return [jax.tree.unflatten(structure, row) for row in rows]
    array = np.asarray(values)
    return [array[i, ...] for i in range(count)]


def _shown(values: Any) -> str:
    if isinstance(values, tuple) or (is_struct(values) and not _is_ragged(values)):
        form = TUPLE if isinstance(values, tuple) else StructForm.of(values)
        return ''.join(form.around(map(_shown, form.opened(values))))
    if isinstance(values, Ragged) or not hasattr(values, 'dtype'):
        return repr(values)
    return f'{values.dtype}[{",".join(map(str, values.shape))}]'


def assembled(type_: Type, tables: Sequence[Sequence[Any]]) -> Any:
    """A batch's value.

    Args:
      type_: of one example.
      tables: per level of the type, the tensors [rows, *shape] in its rows.
    """
    # From the last level on, so that sequences inside are there when they are wanted.
    made: deque[Any] = deque()
    for level, tensors in reversed([*zip(levels(type_), tables, strict=True)]):
        leaves = [
            Ragged(made.popleft(), x) if isinstance(each, SequenceType) else x
            for each, x in reversed([*zip(terminals(level), tensors, strict=True)])
        ]
        made.append(pack(level, reversed(leaves)))
    return made.pop()
