# SPDX-License-Identifier: Apache-2.0
"""The results of a batch with any number of rows: `Ragged` and `MetricValues`."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from jfold.base.arguments import check_at_least, expect
from jfold.base.errors import short_repr
from jfold.base.functions import mean_of_rows
from jfold.base.late import Displayed
from jfold.base.memo import cached_property
from jfold.base.structs import TUPLE, StructForm, flatten_once, is_leaf, is_struct
from jfold.base.tracebacks import api_boundary
from jfold.graph import Array, ranges
from jfold.program.result_tables import nesting
from jfold.types import SequenceType, Type, leaf_types, pack


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Ragged(NDArrayOperatorsMixin, Displayed):
    """The sequences of a batch, one per example, of any lengths; a pytree.

    Rows are the items of the first example, in order, then those of the second, and so
    on. Spare rows, at the end, are zero in what `apply` returns, and count neither in
    `sum` nor in `mean`; gradients flow through all other rows.

    Operators and ufuncs of NumPy, as `np.exp(x)`, work item by item. The other operand
    is a `Ragged` of the same lengths, or a value that goes with every item.
    `x[k]` has the items of example `k`; `x[2:5]` and `x[[4, 0]]` are a `Ragged` of
    several examples. Neither works under `jit`, where shapes must be known.

    Attributes:
      values: [rows, *shape]; a tuple of such arrays if items are tuples. For items that
        are sequences it is not an array, but a `Ragged` with one sequence per row.
      lengths: [examples] int32, the number of items of each example; 0 for examples
        beyond the batch, for which `Model.schedule(..., size=)` reserves rows.

    >>> import jfold as jf
    >>> model = jf.compile(jf.Map(jf.Scalar() >> jf.Function(jnp.square)))
    >>> squares = model.apply({}, model.schedule([[1, 2], [], [3]]))
    >>> squares.lengths.tolist(), squares.values[squares.mask].tolist()
    ([2, 0, 1], [1.0, 4.0, 9.0])
    >>> padded, real = squares.padded(2, fill=-1)
    >>> padded.tolist(), real.sum(1).tolist()
    ([[1.0, 4.0], [-1.0, -1.0], [9.0, -1.0]], [2, 0, 1])
    >>> (squares + 1).to_list()[2], squares[0].tolist(), (squares > 2).sum().item()
    ([array(10., dtype=float32)], [1.0, 4.0], 2)
    """

    values: object
    lengths: jax.Array

    @cached_property  # so that a loop over all examples takes linear time
    def _begins(self) -> Array:
        """The index of each example's first item [examples]; lengths are known."""
        lengths = np.asarray(self.lengths)
        begins: Array = lengths.cumsum() - lengths
        return begins

    @cached_property
    def _numbers(self) -> Array:
        """The numbers of the examples [examples]."""
        return np.arange(len(self))

    @property
    def mask(self) -> jax.Array:
        """The mask [rows] bool, true for rows that are items, false for spare rows."""
        _check_single(self, self.lengths)
        rows = jnp.arange(_rows(self.values), dtype=self.lengths.dtype)
        return rows < self.lengths.sum(dtype=self.lengths.dtype)

    def sum(self) -> Any:
        """Return the sum [*shape] over the items of all examples."""
        return self._over_rows(Ragged.sum, lambda mask, x: _masked(mask, x, 0).sum(0))

    def mean(self) -> Any:
        """Return the mean [*shape] over the items of all examples; 0 without items.

        >>> import jfold as jf
        >>> jf.Ragged(jnp.array([3.0, 5.0, 7.0]), jnp.array([1, 1])).mean().item()
        4.0
        """
        return self._over_rows(Ragged.mean, _mean)

    def _over_rows(self, of_ragged: Any, of_array: Any) -> Any:
        mask = self.mask
        return jax.tree.map(
            lambda x: of_ragged(x) if _is_ragged(x) else of_array(mask, x),
            self.values,
            is_leaf=_is_ragged,
        )

    @api_boundary
    def map(self, fn: Callable[..., Any], *others: Ragged) -> Ragged:
        """Apply a function, such as a loss, to all items at once; works under `jit`.

        Args:
          fn: takes `values`, arrays [rows, *shape], in tuples if items are tuples, then
            the `values` of `others`; returns arrays [rows, ...]. If items are
            sequences, `fn` takes the innermost items instead.
          *others: `Ragged`s of the same lengths; they may have more spare rows.

        Raises:
          TypeError: one of `others` is no `Ragged`, or differs in nesting of sequences.
          ValueError: one of `others` has other lengths, as far as they are known.

        >>> import jfold as jf, numpy as np
        >>> lengths = np.array([1, 1])
        >>> logits, found = (
        ...     jf.Ragged(np.array(x), lengths) for x in ([1.0, 2], [3, 1])
        ... )
        >>> logits.map(jnp.maximum, found).to_list()
        [[array(3., dtype=float32)], [array(2., dtype=float32)]]
        """
        _check_single(self, self.lengths)
        for other in others:
            _check_alike(self, other)
        operands = self, *others
        rows = min(_rows(x.values) for x in operands)
        values = [_first_rows(x.values, rows) for x in operands]
        if _is_ragged(self.values):
            return Ragged(values[0].map(fn, *values[1:]), self.lengths)
        items = jnp.arange(rows) < self.lengths.sum()
        # At zeros, as in spare rows, some functions have no gradient; at 1 most have.
        result = fn(*(_masked(items, x, 1) for x in values))
        return Ragged(_masked(items, result, 0), self.lengths)

    @api_boundary
    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: Any
    ) -> Any:
        """Apply the `jax.numpy` function named like a NumPy ufunc, item by item.

        Return NotImplemented for options, and for other methods than a call. Raise
        TypeError for functions with several results, and if JAX has no such function.
        """
        fn = getattr(jnp, ufunc.__name__, None)
        if fn is None or ufunc.nout > 1:
            self._refuse(f'np.{ufunc.__name__}')
        # `x += y` comes with `out=(x,)`; as for arrays of JAX, it is `x = x + y`.
        out = options.pop('out', (inputs[0],))
        is_call = method == '__call__' and out[0] is inputs[0]
        if not is_call or options:
            return NotImplemented
        return _item_by_item(fn, inputs)

    @api_boundary
    def __array_function__(self, fn: Any, *_: object) -> NoReturn:
        self._refuse(f'np.{fn.__name__}')

    @api_boundary
    def __array__(self, *_: object, **__: object) -> NoReturn:
        self._refuse('a function that takes arrays')

    def _refuse(self, name: str) -> NoReturn:
        raise TypeError(
            f'expected operators and ufuncs, which work item by item, got {name}, in '
            f'{self}: write `x.map(lambda items: ...)` with functions of all items, or '
            '`x.sum()`, `x.mean()`'
        )

    def __len__(self) -> int:
        _check_single(self, self.lengths)
        return len(self.lengths)

    @api_boundary
    def __bool__(self) -> bool:
        raise TypeError(
            f'expected one truth, got those of many items, in {self}: use '
            '`(x > 0).mean()`, or `&` and `|` for item by item'
        )

    @api_boundary
    def __contains__(self, value: object) -> NoReturn:
        self._refuse('`in`')

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    @api_boundary
    def __getitem__(self, key: object) -> Any:
        if isinstance(self.lengths, jax.core.Tracer):
            raise TypeError(
                'expected a `Ragged` with known lengths to index, got a traced one, in '
                f'{self}: under `jit`, use `padded(length)`, or `values` and `mask`'
            )
        examples = self._numbers[_rows_of_key(key)]
        result = pick_rows(self, np.atleast_1d(examples))
        return result if examples.ndim else result.values

    def to_list(self) -> list[Any]:
        """Return a list per example of the example's items, as NumPy arrays.

        Items may be tuples, or lists for sequences, as `Block.eval` returns them.
        """
        _check_single(self, self.lengths)
        lengths = np.asarray(self.lengths).tolist()
        items = iter(_items(self.values, sum(lengths)))
        return [list(itertools.islice(items, length)) for length in lengths]

    @api_boundary
    def padded(self, length: int, fill: Any = 0) -> tuple[Any, jax.Array]:
        """Return each sequence cut or padded to one length; works under `jit` too.

        Args:
          length: the number of items of each; a Python int, because it is a shape.
          fill: the value of items behind the end of a sequence.

        Returns:
          A pair: items [examples, length, *shape], in tuples as in `values`; and a mask
          [examples, length] bool, false behind the end of a sequence.

        Raises:
          TypeError: `length` is no int; or items are, or hold, sequences.
          ValueError: `length` is negative.
        """
        length = check_at_least('length', length, 0)
        _check_single(self, self.lengths)
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

        def gathered(x: Any) -> jax.Array:
            is_known = not isinstance(fill, jax.core.Tracer)
            if is_known and not jnp.issubdtype(x.dtype, jnp.inexact):
                with np.errstate(invalid='ignore'):
                    is_kept = bool(np.all(np.asarray(fill).astype(x.dtype) == fill))
                expect('fill', fill, is_kept, f'{x.dtype}, as the items are')
            if not len(x):
                return jnp.full((*rows.shape, *x.shape[1:]), fill, x.dtype)
            chosen = jnp.asarray(x).at[jnp.where(mask, rows, 0)].get(mode='clip')
            real = mask.reshape(mask.shape + (1,) * (x.ndim - 1))
            return jnp.where(real, chosen, jnp.asarray(fill, x.dtype))

        return jax.tree.map(gathered, self.values), mask

    def __repr__(self) -> str:
        return f'Ragged(values={_repr(self.values)}, lengths={_repr(self.lengths)})'


def pick_rows(value: object, rows: Array) -> Any:
    """Return the rows at indices `rows` [n] of `value`: array, pytree, or `Ragged`.

    Arrays become NumPy's, unless they are traced: JAX would compile indexing for each
    new shape. The rows of a `Ragged` are its sequences.
    """

    def pick(part: Any) -> Any:
        if isinstance(part, Ragged):
            counts: Any = np.asarray(part.lengths)[rows]  # NumPy's, as all returned
            picked = ranges(part._begins[rows], counts)
            return Ragged(pick_rows(part.values, picked), counts)
        array = part if isinstance(part, jax.core.Tracer) else np.asarray(part)
        return array[rows]

    return jax.tree.map(pick, value, is_leaf=_is_ragged)


def _rows_of_key(key: object) -> Any:
    """Convert the key in `ragged[key]` to a slice, or array of ints or bools.

    Raise TypeError for any other key.
    """
    if isinstance(key, slice):
        return key
    if not isinstance(key, tuple | Ragged):
        rows = np.asarray(key)
        if rows.shape == (0,):  # of an empty list NumPy makes floats
            return rows.astype(int)
        if rows.ndim < 2 and rows.dtype.kind in ('biu' if rows.ndim else 'iu'):
            return rows
    raise TypeError(
        'expected the number of an example, a slice, or a list of numbers or of '
        f'truths, got {short_repr(key)}: item `i` of example `k` is `x[k][i]`'
    )


# ---- item by item --------------------------------------------------------------------


def _item_by_item(fn: Callable[..., Any], inputs: Sequence[Any]) -> Ragged:
    """Apply `fn` item by item to the `Ragged`s among `inputs`; return a `Ragged`.

    Inputs that are no `Ragged` go with every item; raise ValueError if one has more
    axes than an item.
    """
    first, *others = filter(_is_ragged, inputs)
    axes = [0 if _is_ragged(x) else None for x in inputs]

    def of_tensors(*tensors: jax.Array) -> Any:
        items = iter(tensors)
        arguments = [next(items) if _is_ragged(x) else x for x in inputs]
        most = tensors[0].ndim - (fn is not jnp.matmul)
        for x in itertools.filterfalse(_is_ragged, inputs):
            if not hasattr(x, 'dtype') and np.asarray(x).dtype.kind not in 'biufc':
                got = short_repr(x)
                raise TypeError(f'expected a number to go with each item, got {got}')
            if np.ndim(x) > most:
                item = f'{tensors[0].dtype}{list(tensors[0].shape[1:])}'
                raise ValueError(
                    f'expected what goes with each item, {item}, got '
                    f'{list(np.shape(x))}: lay out what differs from item to item by '
                    '`schedule.ragged(lists)`'
                )
        return jax.vmap(fn, axes)(*arguments)

    def of_items(*items: object) -> Any:
        return jax.tree.map(of_tensors, *items)

    result: Ragged = first.map(of_items, *others)
    return result


def _check_single(results: object, rows: jax.Array) -> None:
    """Raise ValueError if results of several batches are stacked, by axes of `rows`."""
    if stacked := list(np.shape(rows)[:-1]):
        raise ValueError(
            f'expected results of one batch, got those of {stacked} of them stacked, '
            f'in {results}: call it inside `jax.vmap` or `jax.lax.scan`, or take one '
            'batch by `jax.tree.map(lambda x: x[0], results)`'
        )


def _check_alike(one: Ragged, other: object) -> None:
    """Raise TypeError unless `other` is a `Ragged` with items as nested as in `one`.

    Raise ValueError if their lengths differ, as far as this process knows them.
    """
    nested = _is_ragged(one.values)
    if not isinstance(other, Ragged) or nested != _is_ragged(other.values):
        raise TypeError(
            f'expected a `Ragged` like {one}, got {short_repr(other)}: '
            '`schedule.ragged(lists)` makes one of lists'
        )
    pair = one.lengths, other.lengths
    if len(pair[0]) != len(pair[1]):
        raise ValueError(
            f'expected sequences of {len(pair[0])} examples, got those of '
            f'{len(pair[1])}: lay them out by `schedule.ragged(lists)`'
        )
    if all(map(_is_known, pair)):
        different = np.asarray(pair[0]) != np.asarray(pair[1])
        for k in np.flatnonzero(different)[:1].tolist():
            raise ValueError(
                f'expected sequences of the same lengths, got {pair[0][k]} and '
                f'{pair[1][k]} items of example {k}'
            )


def _is_known(x: object) -> bool:
    """Return whether this process has the values of `x`: no tracer, no remote part."""
    if isinstance(x, jax.core.Tracer):
        return False
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def _first_rows(values: Any, rows: int) -> Any:
    """Return the first `rows` rows of `Ragged.values`.

    Raise TypeError if there are sequences inside tuples or dicts.
    """
    if _is_ragged(values):
        return Ragged(values.values, values.lengths[:rows])
    if any(map(_is_ragged, jax.tree.leaves(values, is_leaf=_is_ragged))):
        raise TypeError(
            'expected items of tensors, got sequences among them: take what '
            f'`values` holds, {_repr(values)}, one after another'
        )
    return jax.tree.map(lambda x: x[:rows], values)


def _masked(items: jax.Array, values: object, other: int) -> Any:
    """Return `values` [rows, ...] with `other` in rows where `items` [rows] is false.

    Raise ValueError if an array among `values` has another number of rows.
    """

    def of_tensor(x: Any) -> jax.Array:
        if np.shape(x)[:1] != items.shape:
            raise ValueError(
                f'expected results [{len(items)}, ...], a row for each item, got '
                f'{list(np.shape(x))}: give each item one row, and leave means to '
                '`mean`'
            )
        x = jnp.asarray(x)
        mask = items.reshape(items.shape + (1,) * (x.ndim - 1))
        return jnp.where(mask, x, jnp.asarray(other, x.dtype))

    return jax.tree.map(of_tensor, values)


def _mean(mask: jax.Array, x: Any) -> jax.Array:
    """Return the mean [*shape] of the rows of `x` where `mask` [rows] is true."""
    return mean_of_rows(_masked(mask, x, 0), mask.sum())


def _is_ragged(values: object) -> bool:
    return isinstance(values, Ragged)


def _rows(values: object) -> int:
    """Return the number of rows of `Ragged.values`, spare ones included."""
    first, *_ = jax.tree.leaves(values, is_leaf=_is_ragged)
    return len(first.lengths if _is_ragged(first) else first)


def _items(values: object, count: int) -> Sequence[Any]:
    """Return a list of the first `count` rows of `Ragged.values`."""
    if isinstance(values, Ragged):
        return values.to_list()[:count]
    if not is_leaf(values):
        parts, structure = flatten_once(values)
        columns = [_items(part, count) for part in parts]
        rows = ([column[i] for column in columns] for i in range(count))
        return [jax.tree.unflatten(structure, row) for row in rows]
    array = np.asarray(values)
    return [array[i, ...] for i in range(count)]


def _repr(values: Any) -> str:
    if isinstance(values, tuple) or (is_struct(values) and not _is_ragged(values)):
        form = TUPLE if isinstance(values, tuple) else StructForm.of(values)
        return ''.join(form.around(map(_repr, form.opened(values))))
    if isinstance(values, Ragged) or not hasattr(values, 'dtype'):
        return repr(values)
    return f'{values.dtype}[{",".join(map(str, values.shape))}]'


# ---- layout --------------------------------------------------------------------------


def assemble_value(type_: Type, tables: Sequence[Sequence[Any]]) -> Any:
    """Build a batch's value, of arrays and `Ragged`s, from tensors [rows, *shape].

    `type_` is that of one example. For each level in `nesting(type_)`, `tables` has its
    tensors, each [rows, *shape].
    """
    # The last level first: `nesting` goes inwards, breadth first, so the items of all
    # sequences of a level wait in the queue, those of its last sequence in front.
    items: deque[Any] = deque()
    for level, tensors in reversed([*zip(nesting(type_), tables, strict=True)]):
        leaves = [
            Ragged(items.popleft(), x) if isinstance(leaf, SequenceType) else x
            for leaf, x in reversed([*zip(leaf_types(level), tensors, strict=True)])
        ]
        items.append(pack(level, reversed(leaves)))
    return items.pop()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetricValues(Displayed):
    """The values that a `Metric` collected in a batch; a pytree.

    Rows are ordered by example, and within an example as `Block.eval` collects them,
    part by part of the data. Spare rows, at the end (of each shard), are zero in what
    `apply` returns, and do not count in `sum` and `mean`. Labels, if the metric has
    any, are in `Schedule.labels`.

    Attributes:
      values: [rows, *shape], or a tuple of such arrays if the metric takes a tuple.
      example: [rows] int32, the index of each row's example; in spare rows the number
        of examples, which `jax.ops.segment_sum(..., num_segments=examples)` drops.
      mask: [rows] bool, false for spare rows.
    """

    values: Any
    example: jax.Array
    mask: jax.Array

    def sum(self) -> Any:
        """Return the sum [*shape] over all rows that are not spare, of each tensor."""
        _check_single(self, self.mask)
        return jax.tree.map(lambda x: _masked(self.mask, x, 0).sum(0), self.values)

    def mean(self) -> Any:
        """Return the mean [*shape] of each tensor over real rows; 0 without any."""
        _check_single(self, self.mask)
        return jax.tree.map(lambda x: _mean(self.mask, x), self.values)
