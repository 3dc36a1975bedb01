# SPDX-License-Identifier: Apache-2.0
"""The kinds of calls of blocks in lazy functions, and what has made their arguments.

An *entry* is a kind of call: a block at certain types of arguments. It knows which
entries have made each argument, so that a program has no loop but for what is seen to
read its own results. Entries are found by running functions on examples. Shared objects
are given to the recordings of examples, in any number of threads.

A *node* is a recorded call, a tuple `(number of the entry, *arguments)`. Its arguments
are nodes, but for entries of data (an object) and of lists (a list of nodes).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jfold import blocks as b
from jfold.base.printing import callable_name
from jfold.base.structs import Form, StructForm
from jfold.blocks.lazy import Lazy, Struct
from jfold.language.block_types import call_type
from jfold.types import (
    Nested,
    ObjectType,
    Product,
    SequenceType,
    StructType,
    TensorType,
    TupleType,
    Type,
    VoidType,
)

SCALARS = bool, int, float, complex
NUMBERS = *SCALARS, np.generic, np.ndarray, jax.Array
EMPTY = SequenceType(VoidType())  # the type of `[]`, until items are seen elsewhere
# Makes the block that reads a node, of blocks that read its arguments.
Body = Callable[[Sequence[b.Block]], b.Block]


class NewCall(Exception):
    """An error: an example makes a kind of call that the program does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'expected calls like those on the examples of `like=`, got {name}, a new '
            'kind: give `like=` an example with such a call'
        )


@dataclass(eq=False)
class Entry:
    """A kind of call.

    Attributes:
      number: its place among all entries, and the first item of its nodes.
      name: for prints and for names in the source.
      type: the type of the result.
      body: makes the block that reads such a node.
      key: all that tells it from others: ('tensor', type), ('data',), ('sequence',
        type), ('product', type), ('item', number of a product, index), (block, types).
      inputs: per argument, the numbers of the entries that have made it.
      items: the numbers of the entries of the parts of a result with parts.
    """

    number: int
    key: tuple[Any, ...]
    name: str
    type: Type
    body: Body
    inputs: list[dict[int, None]] = field(default_factory=list)
    items: list[int] = field(default_factory=list)

    @property
    def is_row(self) -> bool:
        """Whether the result has a row of its own, which several readers share."""
        return self.key[0] == 'tensor' or isinstance(self.key[0], b.Block)


@dataclass(eq=False)
class Registry:
    """The entries that recordings have met, by all that tells them apart.

    Attributes:
      entries: by number.
      version: how often something new was met.
      closed: whether something new raises `NewCall`, as the program is written.
      calls: by block and the entries of its arguments, the number of the entry, where
        the result is one tensor: what recordings look up for each call.
      known: by kind, and by kind and entries of the arguments, the entry.
      numbers: by class of a Python number and dtype, the entry of such constants.
      results: per lazy function, the entries that have made its result.
      metrics: by name and whether labelled, the entries that have made its values.
      refused: kinds of calls that blocks refuse, since they take no data.
    """

    entries: list[Entry] = field(default_factory=list)
    version: int = 0
    closed: bool = False
    calls: dict[tuple[Any, ...], int] = field(default_factory=dict)
    known: dict[Hashable, Entry] = field(default_factory=dict)
    numbers: dict[tuple[type, object], int] = field(default_factory=dict)
    results: dict[Lazy, dict[int, None]] = field(default_factory=dict)
    metrics: dict[tuple[str, bool], dict[int, None]] = field(default_factory=dict)
    refused: set[tuple[Any, ...]] = field(default_factory=set)
    lock: Any = field(default_factory=threading.RLock, repr=False)

    def entry(self, key: tuple[Any, ...], name: str, type_: Type, body: Body) -> Entry:
        """Return the entry with this key, new on first use."""
        with self.lock:
            if key not in self.known:
                if self.closed:
                    raise NewCall(name)
                entry = Entry(len(self.entries), key, name, type_, body)
                self.entries.append(entry)
                self.known[key] = entry
                self._add_items(entry)
            return self.known[key]

    def _add_items(self, entry: Entry) -> None:
        """Add the entries of the parts of a result with parts."""
        for k, part in enumerate(entry.type if isinstance(entry.type, Product) else ()):
            key = entry.type.form.keys[k] if isinstance(entry.type, StructType) else k
            item = self.entry(
                ('item', entry.number, k), f'item {key!r}', part, _item(key)
            )
            item.inputs = [{entry.number: None}]
            entry.items.append(item.number)

    def tensor(self, type_: TensorType) -> Entry:
        """Return the entry of numbers and arrays of the data."""
        entry = self.known.get(('tensor', type_))
        if entry is not None:
            return entry
        read = b.GetItem(1) >> b.Tensor(type_.shape, type_.dtype)
        return self.entry(('tensor', type_), repr(type_), type_, lambda _: read)

    def data(self) -> Entry:
        """Return the entry of objects of the data."""
        return self.entry(('data',), 'data', ObjectType(), lambda _: b.GetItem(1))

    def product(self, form: Form, numbers: tuple[int, ...]) -> Entry:
        """Return the entry of a tuple, dict or dataclass of parts."""
        key = 'product', form, *numbers
        if key in self.known:
            return self.known[key]
        types = [self.entries[n].type for n in numbers]
        is_struct = isinstance(form, StructForm)
        type_ = StructType(form, types) if is_struct else TupleType(types)  # type: ignore[arg-type]
        entry = self.entry(('product', type_), repr(type_), type_, _product(type_))
        return self._read_by(entry, key, numbers)

    def sequence(self, numbers: Iterable[int]) -> Entry:
        """Return the entry of a list of items of one type.

        Raises:
          TypeError: the items are of several types.
        """
        distinct = tuple(dict.fromkeys(numbers))
        key = 'sequence', *distinct
        if key in self.known:
            return self.known[key]
        item: Type = VoidType()
        for number in distinct:
            type_ = self.entries[number].type
            if not (isinstance(item, VoidType) or fits(type_, item)):
                if not fits(item, type_):
                    raise TypeError(
                        f'expected a list of items of one type, got {item} and {type_}'
                    )
                item = type_
            elif isinstance(item, VoidType):
                item = type_
        type_ = SequenceType(item)
        entry = self.entry(('sequence', type_), repr(type_), type_, _sequence)
        if len(entry.inputs) == 0:
            entry.inputs = [{}]
        for number in distinct:
            self._note(entry.inputs[0], number, entry.name)
        with self.lock:
            self.known[key] = entry
        return entry

    def apply(self, block: b.Block, numbers: tuple[int, ...]) -> Entry:
        """Return the entry of a block called on arguments that these entries made.

        Raises:
          TypeError: the block does not take arguments of these types.
        """
        types = tuple(self.entries[n].type for n in numbers)
        entry = self.known.get((block, types)) or self._alike(block, types)
        if entry is None:
            if not all(map(is_known, types)):
                raise EmptyList(
                    f'{block!r}: expected a list with items, whose type it has, got an '
                    'empty one; give first an example where it has items, or begin the '
                    'list by a value, as in `total([zeros(), *items])`'
                )
            result = call_type(block, types)
            if isinstance(result, ObjectType) or result is None:
                raise TypeError(
                    f'{block!r}: expected a block that gives tensors, got one that '
                    f'gives {result or "what these arguments do not tell"}; compute '
                    'with data in plain Python'
                )
            name = callable_name(getattr(block, 'fn', block))
            name = getattr(block, 'name', None) or name
            body = _applied(block, len(types))
            entry = self.entry((block, types), name, result, body)
        key = block, *numbers
        if isinstance(entry.type, TensorType):
            with self.lock:
                self._read_by(entry, key, numbers)
                self.calls[key] = entry.number
            return entry
        return self._read_by(entry, key, numbers)

    def _alike(self, block: b.Block, types: tuple[Type, ...]) -> Entry | None:
        """Return an entry of the block whose types differ in empty lists alone."""
        for key, entry in () if all(map(is_known, types)) else [*self.known.items()]:
            if isinstance(key, tuple) and key[0] is block and len(key) == 2:
                if len(key[1]) == len(types) and all(map(fits, types, key[1])):
                    return entry
        return None

    def _read_by(
        self, entry: Entry, key: tuple[Any, ...], numbers: Sequence[int]
    ) -> Entry:
        """Note the entries of the arguments of a call, found by `key` from now on."""
        if key not in self.known:
            with self.lock:
                entry.inputs = entry.inputs or [{} for _ in numbers]
                for makers, number in zip(entry.inputs, numbers, strict=True):
                    self._note(makers, number, entry.name)
                self.known[key] = entry
        return entry

    def _note(self, makers: dict[int, None], number: int, reader: str) -> None:
        """Note that an entry has made a value that is read as those of `makers`.

        Args:
          reader: the name of what reads it, for the error.
        """
        if number not in makers:
            with self.lock:
                if self.closed:
                    raise NewCall(f'{reader} of {self.entries[number].name}')
                makers[number] = None
                self.version += 1

    def snapshot(self) -> Registry:
        """Return a closed copy, which knows what has been met so far."""
        with self.lock:
            entries = [
                replace(x, inputs=[{**y} for y in x.inputs]) for x in self.entries
            ]
            known = {key: entries[x.number] for key, x in self.known.items()}
            results = {key: {**x} for key, x in self.results.items()}
            metrics = {key: {**x} for key, x in self.metrics.items()}
            _merge_alike(entries)
            calls, numbers = {**self.calls}, {**self.numbers}
            parts = calls, known, numbers, results, metrics, {*self.refused}
        return Registry(entries, self.version, True, *parts)

    def result(self, lazy: Lazy, number: int) -> None:
        """Note the entry of the result of a lazy function on an example.

        Raises:
          TypeError: results before were of another type.
        """
        self._agree(self.results.setdefault(lazy, {}), number, 'results', repr(lazy))

    def metric(self, name: str, labelled: bool, number: int) -> None:
        """Note the entry of a value of a metric; raise TypeError as `result` does."""
        known = self.metrics.setdefault((name, labelled), {})
        self._agree(known, number, 'values', f'metric {name!r}')

    def _agree(
        self, makers: dict[int, None], number: int, what: str, where: str
    ) -> None:
        if number in makers:
            return
        type_ = self.entries[number].type
        for other in makers:
            before = self.entries[other].type
            if not (fits(type_, before) or fits(before, type_)):
                raise TypeError(
                    f'{where}: expected {what} of one type, got {type_}, and {before} '
                    'in another example or branch'
                )
        self._note(makers, number, where)


def _merge_alike(entries: list[Entry]) -> None:
    """Add what made parts of tuples and lists with empty lists to those with items.

    These are read by one block, since an empty list is a list of any items.
    """
    for entry in entries:
        if entry.is_row or is_known(entry.type):
            continue
        for other in entries:
            alike = entry.key[0] == other.key[0] and fits(entry.type, other.type)
            if alike and is_known(other.type):
                for makers, more in zip(other.inputs, entry.inputs, strict=True):
                    makers.update(more)


class EmptyList(TypeError):
    """An error: the type of the items of an empty list is not known yet."""


def fits(type_: Type, other: Type) -> bool:
    """Return whether two types are equal, but for empty lists in the first."""
    if type_ == EMPTY and isinstance(other, SequenceType):
        return True
    if isinstance(type_, Nested) and type(type_) is type(other):
        parts, others = type_.parts, other.parts
        alike = len(parts) == len(others) and type_.around(others) == other
        return alike and all(map(fits, parts, others))
    return type_ == other


def is_known(type_: Type) -> bool:
    """Return whether a type has no empty lists, whose items have an unknown type."""
    if isinstance(type_, Nested):
        return all(map(is_known, type_.parts))
    return not isinstance(type_, VoidType)


# ---- the blocks that read nodes ------------------------------------------------------


def _item(key: object) -> Body:
    return lambda inputs: b.GetItem(1) >> inputs[0] >> b.GetItem(key)


def _sequence(inputs: Sequence[b.Block]) -> b.Block:
    return b.GetItem(1) >> b.Map(inputs[0])


def _product(type_: Product) -> Body:
    def body(inputs: Sequence[b.Block]) -> b.Block:
        parts = dict(enumerate(inputs, 1))
        is_struct = isinstance(type_, StructType)
        return Struct(type_.form, parts) if is_struct else b.Record(parts)  # type: ignore[arg-type]

    return body


def _applied(block: b.Block, count: int) -> Body:
    """Return the body of calls of a block on `count` arguments."""

    def body(inputs: Sequence[b.Block]) -> b.Block:
        if count == 0:
            return b.GetItem(0) >> b.Void() >> block
        if count == 1:
            return b.GetItem(1) >> inputs[0] >> block
        return b.Record(dict(enumerate(inputs, 1))) >> block

    return body
