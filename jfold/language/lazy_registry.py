# SPDX-License-Identifier: Apache-2.0
"""The kinds of block calls in lazy functions, and the kinds that make their arguments.

An *entry* is a kind of call: a block at certain types of arguments. It knows the
*makers* of each argument, the entries that have made it: so a program has loops only
for calls that were seen to read results of their own kind. Entries are found by running
functions on examples, in any number of threads. A `number` is the number of an entry.

A *node* is a call, a tuple `(number of the entry, *arguments)`. Its arguments are
nodes, but for entries of data (an object) and of lists (a list of nodes). Once the row
of a call is recorded, its node is `(number of the entry, row number)`.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from jfold import blocks as b
from jfold.base.memo import cached_property
from jfold.base.printing import callable_name
from jfold.base.structs import Form, StructForm
from jfold.blocks.lazy import Lazy, Node
from jfold.language.analysis import users
from jfold.language.partial import call_type
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
    leaf_types,
)

# Whether `NewCall` was raised in this thread since `growing` last asked.
MET_NEW: ContextVar[bool] = ContextVar('met_new', default=False)
EMPTY = SequenceType(VoidType())  # the type of `[]`, until items are seen elsewhere


class NewCall(Exception):
    """An error: an example makes a kind of call that the program does not have.

    Attributes:
      version: the version of the program's registry.
    """

    def __init__(self, name: str, version: int = 0) -> None:
        self.version = version
        super().__init__(
            f'expected calls like those on the examples of `like=`, got {name}, a new '
            'kind: give `like=` an example with such a call'
        )


@dataclass(eq=False)
class Entry:
    """A kind of recorded call.

    Attributes:
      number: its place among all entries, and the first item of its nodes.
      name: for prints and for names in the source.
      type: the type of the result.
      key: a unique key: ('tensor', type), ('data',), ('sequence', type), ('product',
        type), ('item', number of a product, key) or (block, types).
      inputs: per argument, the numbers of its makers.
      items: if the result is a tuple or struct, the entries that take its items.
    """

    number: int
    key: tuple[Any, ...]
    name: str
    type: Type
    inputs: list[dict[int, None]] = field(default_factory=list)
    items: list[int] = field(default_factory=list)

    @property
    def is_row(self) -> bool:
        """Return whether readers of a result may share one row, if several read it.

        Numbers have a row for each reader, which takes less time than to share one.
        """
        is_array = self.key[0] == 'tensor' and self.key[1].shape != ()
        return is_array or isinstance(self.key[0], b.Block)

    @cached_property
    def observes(self) -> bool:
        """Return whether the block that is called has metrics inside."""
        block = self.key[0]
        is_block = isinstance(block, b.Block)
        return is_block and any(isinstance(x, b.Metric) for x in users(block))


@dataclass(eq=False)
class Registry:
    """A table of all kinds of block calls that lazy functions have made so far.

    Attributes:
      entries: all entries, by number.
      version: the number of entries and makers that were added so far.
      closed: whether a new entry or maker raises `NewCall`: the program is lowered.
      known: the entry by its key; also by block, form or 'list' with the makers of the
        arguments.
      calls: entry numbers for a quick look-up of calls: by block and makers of its
        arguments, if the result is one tensor; by class and wanted dtype, for a Python
        number; by dtype, shape and wanted dtype, for an array.
      tuples: by block and makers of its arguments, if the result is a plain tuple of
        tensors, the entry number and those of the items.
      results: per lazy function, the makers of its result.
      metrics: by name and whether labelled, the makers of its values.
      named: by name, the block of `jf.named`, and the code object of `make`.
      of_values: blocks for which numbers and `[]` are constants, not objects of data.
      shared: entry numbers of results that several calls read, in some example.
    """

    entries: list[Entry] = field(default_factory=list)
    version: int = 0
    closed: bool = False
    calls: dict[tuple[Any, ...], int] = field(default_factory=dict)
    tuples: dict[tuple[Any, ...], tuple[int, list[int]]] = field(default_factory=dict)
    known: dict[Hashable, Entry] = field(default_factory=dict)
    results: dict[Lazy, dict[int, None]] = field(default_factory=dict)
    metrics: dict[tuple[str, bool], dict[int, None]] = field(default_factory=dict)
    named: dict[str, tuple[b.Block, Any]] = field(default_factory=dict)
    of_values: set[b.Block] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    lock: Any = field(default_factory=threading.RLock, repr=False)

    def entry(self, key: tuple[Any, ...], type_: Type, name: str = '') -> Entry:
        """Return the `Entry` with this key; make one on first use.

        By default its name is the text of its type.
        """
        with self.lock:
            entry = self.known.get(key)
            if entry is None:
                name = name or repr(type_)
                self._check_open(name)
                entry = Entry(len(self.entries), key, name, type_)
                self.entries.append(entry)
                self.version += 1
                self.known[key] = entry
                parts = type_.items if isinstance(type_, Product) else ()
                keys: Iterable[Any] = range(len(parts))
                if isinstance(type_, StructType):
                    keys = type_.form.keys
                for k, part in zip(keys, parts, strict=True):
                    item = self.entry(('item', entry.number, k), part, f'item {k!r}')
                    item.inputs = [{entry.number: None}]
                    entry.items.append(item.number)
            return entry

    def _check_open(self, name: str) -> None:
        if self.closed:
            MET_NEW.set(True)
            raise NewCall(name, self.version)

    def tensor(self, type_: TensorType) -> Entry:
        """Return the `Entry` that describes constants of type `type_` from the data."""
        key = 'tensor', type_
        return self.known.get(key) or self.entry(key, type_)

    def data(self) -> Entry:
        """Return the `Entry` that describes plain Python objects, passed as data."""
        return self.entry(('data',), ObjectType(), 'data')

    def product(self, form: Form, numbers: tuple[int, ...]) -> Entry:
        """Return the `Entry` of a tuple or struct with parts made by entries `numbers`.

        `form` tells a tuple from a struct, and structs by their class and keys.
        """
        known = self.known.get(('parts', form, *numbers))
        if known is not None:
            return known
        types = tuple(self.entries[n].type for n in numbers)
        is_struct = isinstance(form, StructForm)
        type_ = StructType(form, types) if is_struct else TupleType(types)  # type: ignore[arg-type]
        return self._read_by(self._of(type_), ('parts', form, *numbers), numbers)

    def _of(self, type_: Nested) -> Entry:
        """Return the `Entry` that describes a tuple, struct or list of type `type_`."""
        kind = 'sequence' if isinstance(type_, SequenceType) else 'product'
        entry = self.entry((kind, type_), type_)
        entry.inputs = entry.inputs or [{} for _ in type_.parts]
        return entry

    def _joined(self, type_: Type) -> int:
        """Return the number of the entry for `type_`, the `joined` type of two others.

        The entries of its parts, at any depth, become makers of what contains them.
        """
        assert isinstance(type_, Nested)
        entry = self._of(type_)
        for makers, part in zip(entry.inputs, type_.parts, strict=True):
            if isinstance(part, Nested):
                self._note(makers, self._joined(part), entry.name)
        return entry.number

    def sequence(self, numbers: Iterable[int]) -> Entry:
        """Return the `Entry` of lists whose items are results of entries `numbers`.

        Raise TypeError if the items are of several types.
        """
        distinct = tuple(dict.fromkeys(numbers))
        known = self.known.get(('list', *distinct))
        if known is not None:
            return known
        types = dict.fromkeys(self.entries[number].type for number in distinct)
        item: Type = next(iter(types), VoidType())
        for type_ in types:
            both = joined(item, type_)
            if both is None:
                raise TypeError(
                    f'expected a list of items of one type, got {item} and {type_}; '
                    'make a tuple of what differs'
                )
            item = both
        more = () if item in types or not types else (self._joined(item),)
        entry = self._of(SequenceType(item))
        for number in (*distinct, *more):
            self._note(entry.inputs[0], number, entry.name)
        self.known['list', *distinct] = entry
        return entry

    def apply(self, block: b.Block, numbers: tuple[int, ...]) -> Entry:
        """Return the `Entry` of calls of `block` on results of entries `numbers`.

        Raise TypeError if the block does not take arguments of these types.
        """
        types = tuple(self.entries[n].type for n in numbers)
        entry = self.known.get((block, types))
        if entry is None and not all(map(is_known, types)):
            # An entry that has other lists where `types` have empty ones serves too.
            others = (x for x in self.entries if x.key[0] is block)
            alike = (x for x in others if len(x.key[1]) == len(types))
            entry = next((x for x in alike if all(map(fits, types, x.key[1]))), None)
        if entry is None:
            result = result_type(block, types)
            name = callable_name(getattr(block, 'fn', block))
            name = getattr(block, 'name', None) or name
            entry = self.entry((block, types), result, name)
        key = block, *numbers
        with self.lock:
            self._read_by(entry, key, numbers)
            if isinstance(entry.type, TensorType):
                self.calls[key] = entry.number
            elif isinstance(entry.type, TupleType):
                if all(isinstance(item, TensorType) for item in entry.type):
                    self.tuples[key] = entry.number, entry.items
        return entry

    def block_named(self, name: str, make: Callable[[], Any]) -> b.Block:
        """Return the block called `name`; `make` creates it on the first request.

        Raise TypeError if another function created it, or `make` returns no layer.
        """
        maker: Any = make
        while isinstance(maker, functools.partial):
            maker = maker.func
        code, known = getattr(maker, '__code__', maker), self.named.get(name)
        if known is None:
            self._check_open(f'the layer {name!r}')
            made = make()
            if not isinstance(made, b.Block):
                made = b.Function(made, name=name)
            with self.lock:
                known = self.named.setdefault(name, (made, code))
        if known[1] != code:
            raise TypeError(
                f'jf.named: expected one function that makes {name!r}, got two; call '
                'it in one place, such as a function of your own, or give two names'
            )
        return known[0]

    def _read_by(
        self, entry: Entry, key: tuple[Any, ...], numbers: Sequence[int]
    ) -> Entry:
        """Record that calls of `entry` take results of entries `numbers`.

        From now on `entry`, which is returned, is found by `key`.
        """
        if key not in self.known:
            with self.lock:
                entry.inputs = entry.inputs or [{} for _ in numbers]
                for makers, number in zip(entry.inputs, numbers, strict=True):
                    self._note(makers, number, entry.name)
                self.known[key] = entry
        return entry

    def _note(self, makers: dict[int, None], number: int, reader: str) -> None:
        """Add entry `number` to `makers`; `reader` names their reader in an error."""
        if number not in makers:
            with self.lock:
                self._check_open(f'{reader} of {self.entries[number].name}')
                makers[number] = None
                self.version += 1

    def signature(self) -> tuple[str, ...]:
        """Return a text per entry: its type and the makers of its arguments."""
        return tuple(f'{x.type} of {[*map(list, x.inputs)]}' for x in self.entries)

    def __deepcopy__(self, memo: object) -> Registry:
        """Return an independent copy, which may record new calls of its own."""
        with self.lock:
            entries = [
                replace(x, inputs=[{**y} for y in x.inputs]) for x in self.entries
            ]
            known = {key: entries[x.number] for key, x in self.known.items()}
            results = {key: {**x} for key, x in self.results.items()}
            metrics = {key: {**x} for key, x in self.metrics.items()}
            calls = {**self.calls}, {**self.tuples}
            more = *calls, known, results, metrics, {**self.named}
            sets = {*self.of_values}, {*self.shared}
            return Registry(entries, self.version, self.closed, *more, *sets)

    def snapshot(self) -> Registry:
        """Return a closed copy, which rejects new kinds of calls.

        In the copy, an entry has also the makers of those that differ by empty lists.
        """
        result = replace(copy.deepcopy(self), closed=True)
        _merge_alike(result.entries)
        return result

    def note_shared(self, nodes: Iterable[Node]) -> None:
        """Add to `shared` the entries of nodes that are arguments of several nodes."""
        waiting, seen, read = [*nodes], set[int](), set[int]()
        while waiting:
            node = waiting.pop()
            kind = self.entries[node[0]].key[0]
            if id(node) in seen or kind in ('tensor', 'data'):
                continue
            seen.add(id(node))
            for part in node[1] if kind == 'sequence' else node[1:]:
                if id(part) in read:
                    self.shared.add(part[0])
                read.add(id(part))
                waiting.append(part)

    def check_metric(self, name: str, number: int) -> None:
        """Raise TypeError if entry `number`, which a metric observes, is a list."""
        type_ = self.entries[number].type
        if any(isinstance(x, SequenceType) for x in leaf_types(type_)):
            raise TypeError(
                f'metric {name!r}: expected a tensor, or a tuple or a dict of tensors, '
                f'got {type_}; observe each item of a list'
            )

    def end(self, lazy: Lazy, result: Node, observed: Iterable[Node]) -> None:
        """Note what a run of `lazy` without an error returned and observed.

        Raise TypeError, and note nothing, if types are others than those before.
        """
        self._check(self.results.get(lazy, {}), result[0], 'results', repr(lazy))
        metrics: dict[tuple[str, bool], dict[int, None]] = {}
        for key, node, *_ in observed:
            if key not in metrics:
                metrics[key] = {**self.metrics.get(key, {})}
            if node[0] not in metrics[key]:  # as most are, one for each node
                self._check(metrics[key], node[0], 'values', f'metric {key[0]!r}')
                metrics[key][node[0]] = None
        self._agree(self.results.setdefault(lazy, {}), result[0], repr(lazy))
        for key, makers in metrics.items():
            if key not in self.metrics:
                made = self.entries[next(iter(makers))]
                self._check_open(f'metric {key[0]!r} of {made.name}')
            for number in makers:
                known = self.metrics.setdefault(key, {})
                self._agree(known, number, f'metric {key[0]!r}')

    def _check(self, makers: Iterable[int], number: int, what: str, where: str) -> None:
        """Raise TypeError if entry `number` is of another type than its `makers`."""
        type_ = self.entries[number].type
        for before in (self.entries[other].type for other in makers):
            if joined(type_, before) is None:
                raise TypeError(
                    f'{where}: expected {what} of one type, got {type_}, and {before} '
                    'in another example or branch; return values of one type from each'
                )

    def _agree(self, makers: dict[int, None], number: int, where: str) -> None:
        """Add entry `number`, and the type that it has in common with others."""
        if number in makers:
            return
        type_ = self.entries[number].type
        for before in [self.entries[other].type for other in makers]:
            both = joined(type_, before)
            if both is not None and both not in (type_, before):
                self._note(makers, self._joined(both), where)
        self._note(makers, number, where)


def result_type(block: b.Block, types: tuple[Type, ...]) -> Type:
    """Return the result type of a block on arguments of these types.

    Raise TypeError if it does not take them, or gives no tensors.
    """
    if not all(map(is_known, types)):
        raise EmptyList(
            f'{block!r}: expected a list with items, which tell its type, got an empty '
            'one before any other; give an example that comes to one with items first, '
            'or leave the call out: `f(items) if items else zeros`'
        )
    for lazy in users(block):
        if isinstance(lazy, Lazy):
            raise TypeError(
                f'{block!r}: expected a block without lazy functions inside, got '
                f'{lazy!r}; call that itself, for a Map as `[f(x) for x in xs]`'
            )
    result = call_type(block, types)
    if isinstance(result, ObjectType) or result is None:
        raise GivesObjects(
            f'{block!r}: expected a block that gives tensors, got one that gives '
            f'{result or "what these arguments do not tell"}; compute with data in '
            'plain Python'
        )
    if result in (VoidType(), EMPTY):
        raise GivesObjects(
            f'{block!r}: expected a block that gives tensors, got one that gives '
            'nothing; write `jf.observe(name, value)` for a Metric, and leave out what '
            'else gives nothing'
        )
    return result


def _merge_alike(entries: list[Entry]) -> None:
    """Add to each entry the makers of entries with empty lists for its lists.

    One block evaluates the calls of both, since an empty list is a list of any items.
    """
    for entry in entries:
        if entry.is_row or is_known(entry.type):
            continue
        for other in entries:
            alike = entry.key[0] == other.key[0] and fits(entry.type, other.type)
            if alike and is_known(other.type):
                for makers, more in zip(other.inputs, entry.inputs, strict=True):
                    makers.update(more)


class GivesObjects(TypeError):
    """An error: a block that is called gives objects, not tensors."""


class EmptyList(TypeError):
    """An error: the type of the items of an empty list is not known yet."""


def joined(type_: Type, other: Type) -> Type | None:
    """Return the type common to both, where `[]` fits any list; `None` if none is."""
    if type_ == other or (other == EMPTY and isinstance(type_, SequenceType)):
        return type_
    if type_ == EMPTY and isinstance(other, SequenceType):
        return other
    if isinstance(type_, Nested) and type(type_) is type(other):
        assert isinstance(other, Nested)
        parts = [*map(joined, type_.parts, other.parts)]
        alike = len(type_.parts) == len(other.parts) and None not in parts
        if alike and type_.around(other.parts) == other:
            return type_.around(part for part in parts if part is not None)
    return None


def fits(type_: Type, other: Type) -> bool:
    """Return whether `type_` is `other` but for empty lists, which fit any list."""
    return joined(type_, other) == other


def is_known(type_: Type) -> bool:
    """Return whether a type is free of empty lists, whose item type is unknown."""
    if isinstance(type_, Nested):
        return all(map(is_known, type_.parts))
    return not isinstance(type_, VoidType)
