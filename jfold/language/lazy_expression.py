# SPDX-License-Identifier: Apache-2.0
"""Lazy functions as expressions of blocks, which evaluate their calls.

A lazy function becomes an `InputTransform`, which runs it on an example and returns the
node of its result, and one declaration for each entry, which reads such nodes (but for
operators that one argument alone reads):

    InputTransform(Reader) >> OneOf(number, {1: embed(), 2: cell()})
    embed = GetItem(1) >> int32() >> Function(embed)
    cell = Record({1: OneOf(number, {...}), 2: OneOf(number, {...})}) >> Function(cell)

where `number` is `GetItem(0)`. The source of a declaration is a function that a call of
the block runs at once, to record its row.

From here on there is nothing lazy: types, source, graphs and all else are those of an
expression that was written by hand.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp

from jfold import blocks as b
from jfold.base.arguments import check_examples, expect
from jfold.base.operands import noting_flax_modules
from jfold.base.printing import callable_name
from jfold.base.tracebacks import without_middle
from jfold.base.trampoline import tall_stack
from jfold.blocks.control import CallKind
from jfold.blocks.lazy import OPERATORS, CallPlace, InOrder, Lazy, Struct
from jfold.language.analysis import users
from jfold.language.function_layers import LazyCalls, layer_key
from jfold.language.lazy_functions import before, lazy_functions, reach, substitute
from jfold.language.lazy_places import PlacedRecording, line_of
from jfold.language.lazy_recording import Functions, Recording
from jfold.language.lazy_registry import (
    EMPTY,
    EmptyList,
    Entry,
    Registry,
    fits,
    is_known,
)
from jfold.types import ObjectType, SequenceType, StructType, TensorType


@dataclass(eq=False)
class Reader(LazyCalls):
    """A callable that runs a lazy function on an example, given what records calls.

    It returns the node of the result, and the observed values of metrics.

    Attributes:
      registry: the entries (kinds of calls) of the program; it refuses new ones.
      history: pairs (function, data): running them again yields the same registry.
      ranks: the order in which layers of one name are numbered.
    """

    lazy: Lazy
    registry: Registry
    history: tuple[tuple[Lazy, Any], ...]
    ranks: Mapping[Hashable, int] = field(default_factory=dict)
    line_of = staticmethod(line_of)

    def __call__(self, example: object, functions: Functions) -> tuple[Any, ...]:
        recording = Recording(self.registry, functions)
        return recording.run(self.lazy, example), recording.observed

    def placed(self, example: object) -> tuple[Any, ...]:
        """Return what `__call__` returns, and the nodes of all calls, in order.

        No row is recorded: nodes are nested, and know their line.
        """
        recording = PlacedRecording(self.registry)
        node = recording.run(self.lazy, example)
        return node, recording.observed, recording.nodes

    def raised(
        self, example: object, place: CallPlace, message: str
    ) -> BaseException | None:
        """Run the function on `example`; raise, and return, `message` at call `place`.

        Return `None` if the function does not get to this call, as one that draws at
        random may not.
        """
        recording = PlacedRecording(self.registry, place, message)
        try:
            recording.run(self.lazy, example)
        except KeyboardInterrupt:
            raise
        except BaseException:  # the function may catch the error, and raise anything
            pass
        traceback = recording.fault.__traceback__
        if traceback is None:
            return None
        return recording.fault.with_traceback(without_middle(traceback))

    @property
    def __name__(self) -> str:
        return getattr(self.lazy, '__name__', 'lazy')

    def __reduce__(self) -> tuple[Any, ...]:
        # Entries have functions of JAX; another process learns them from the same data.
        parts = self.lazy, self.history, self.registry.signature()
        return learned_reader, parts


def learned_reader(
    lazy: Lazy, history: tuple[tuple[Lazy, Any], ...], signature: tuple[str, ...]
) -> Reader:
    """Rebuild a lazy function's `Reader` by rerunning functions on data in `history`.

    Raise TypeError if calls made here have another signature, or something else is in
    place of a function, as in a bad file.
    """
    registry = Registry()
    for function, data in history:
        expect('function', function, isinstance(function, Lazy), 'a lazy function')
        with contextlib.suppress(Exception):  # as the data may have raised before
            Recording(registry).run(function, data)
    closed = registry.snapshot()
    if closed.signature() != signature:
        raise TypeError(
            f'{lazy!r}: expected the same calls in each process, got others when it '
            'ran on the data of `like=` again; let it depend on the data alone, not on '
            'the order of a set, and change no data after they were used'
        )
    return Reader(lazy, closed, history)


@dataclass(eq=False)
class Recorded:
    """An expression with lazy functions, and the block calls they made on examples.

    Attributes:
      root: the expression, as it was written.
      registry: the entries of the calls of all its lazy functions.
      history: pairs (function, data) of the runs that changed the registry.
      closed: a snapshot of the registry: the entries that the program has.
      ranks: by `layer_key`, the place in the order of creation, by which layers of one
        name are numbered; layers met in a later `learn` come last, so that names stay.
    """

    root: b.Block
    registry: Registry = field(default_factory=Registry)
    closed: Registry = field(default_factory=Registry)
    ranks: dict[Hashable, int] = field(default_factory=dict)
    history: list[tuple[Lazy, Any]] = field(default_factory=list)

    def draft(self) -> Recorded:
        """Return a copy that learns without changing this one."""
        registry = copy.deepcopy(self.registry)
        registry.lock = self.registry.lock
        ranks, history = {**self.ranks}, [*self.history]
        return replace(self, registry=registry, ranks=ranks, history=history)

    def accept(self, draft: Recorded) -> None:
        """Take over all that a draft of this has learned."""
        vars(self).update(vars(draft))

    def learn(
        self,
        examples: Iterable[Any],
        skip_errors: bool = False,
        name: str = 'example {} of `like=`',
    ) -> None:
        """Run lazy functions on examples; record which blocks they call on which types.

        With `skip_errors`, examples on which they raise an error are left out. Notes of
        errors call an example `name`, with its number in place of braces.

        Raises:
          TypeError: a function creates new blocks in each run, or is in a block whose
            inner inputs cannot be told from the data; or a call is wrong.
          Exception: whatever a function raises, with a note of the example.
        """
        waiting = list(enumerate(examples))
        # A call on an empty list waits until other examples tell the type of its items.
        postponed: list[tuple[int, Any]] = []
        for number, example in waiting:
            try:
                self._learn(name.format(number), example)
            except EmptyList:
                postponed.append((number, example))
            except Exception:
                if not skip_errors:
                    raise
        skipping = contextlib.suppress(*[Exception] * skip_errors)
        for number, example in postponed:
            with skipping:
                self._learn(name.format(number), example)
        # A second run of all examples: it must find no new kinds of calls.
        version = self.registry.version
        for number, example in waiting:
            with skipping:
                self._learn(name.format(number), example)
            if self.registry.version != version:
                raise TypeError(
                    f'{self.root!r}: expected a lazy function that calls the same '
                    'blocks each time, got one that calls new ones when it runs on '
                    f'example {number} again; make blocks outside of it, once, or '
                    'by `jf.named`; copy what it changes of its data, as in '
                    '`items = [*x]`; if it draws at random, give `like=` more examples'
                )

    def _learn(self, name: str, example: object) -> None:
        for lazy, data in reach(self.root, example):
            version = self.registry.version
            try:
                with noting_flax_modules(callable_name(lazy.fn)):
                    recording = Recording(self.registry)
                    node = recording.run(lazy, data)
                observed = [values for _, values, *_ in recording.observed]
                self.registry.note_shared([node, *observed])
            except Exception as error:
                error.add_note(f'in {lazy!r}, on {name}')
                raise
            finally:
                if self.registry.version != version:
                    self.history.append((lazy, data))

    @tall_stack()
    def expression(self) -> b.Block:
        """Return the expression with blocks in place of its lazy functions.

        Raise TypeError if no example reaches a function, as if it runs on values.
        """
        registry = self.registry
        for lazy in lazy_functions(self.root):
            if lazy not in registry.results:
                text = 'an example in `like=` that it runs on, got none; give one'
                if earlier := before(lazy, self.root):
                    text = (
                        f'to run on data, got values, behind {earlier!r} in a pipe; '
                        'call one in the other'
                    )
                raise TypeError(f'{lazy!r}: expected {text}')
        self.closed = registry.snapshot()
        self.ranks = {**self.ranks}
        facts = self.closed, tuple(self.history), self.ranks
        readers = _Readers(self.closed, _inlined(self.closed))
        readers.make_all()

        def replaced(lazy: Lazy) -> b.Block:
            reader: Any = Reader(lazy, *facts)
            return b.InputTransform(reader) >> readers.results(lazy)

        root = substitute(self.root, replaced)
        functions = [x for x in users(root) if isinstance(x, b.Function)]
        for function in sorted(functions, key=lambda x: x._serial):
            self.ranks.setdefault(layer_key(function), len(self.ranks))
        return root


def learned(root: b.Block, like: Iterable[Any] | None) -> Recorded | None:
    """Return the `Recorded` calls of lazy functions in `root` on the examples `like`.

    `None` is returned if there are no lazy functions.

    Raises:
      TypeError: `like` is missing, or given where there is no lazy function.
    """
    functions = lazy_functions(root)
    if not functions:
        hint = 'leave it out: types follow from the expression'
        expect('like', like, like is None, 'nothing without lazy functions', hint)
        return None
    hint = (
        f'{functions[0]!r} is run on them: `jf.compile(block, like=examples[:8])`, '
        'whose `block` is what `Fold` in modules takes'
    )
    expect('like', like, like is not None, 'a list of examples', hint)
    recorded = Recorded(root)
    recorded.learn(check_examples(like))
    return recorded


def _inlined(registry: Registry) -> set[int]:
    """Return the entry numbers of operators that only one argument of one block reads.

    Such an operator is evaluated where its result is read, so that fusion makes one
    operation of both. It is left out if it is a sum, which fusion never takes, or if an
    example read one of its results twice.
    """
    readers = [makers for entry in registry.entries for makers in entry.inputs]
    readers += [*registry.results.values(), *registry.metrics.values()]
    counts = Counter(itertools.chain.from_iterable(readers))

    def is_inlined(number: int) -> bool:
        block = registry.entries[number].key[0]
        is_single = counts[number] == 1 and number not in registry.shared
        return is_single and block in OPERATORS and block.fn is not jnp.add

    return {
        number
        for entry in registry.entries
        if isinstance(entry.key[0], b.Block)
        for makers in entry.inputs
        if len(makers) == 1
        for number in filter(is_inlined, makers)
    }


@dataclass(eq=False)
class _Readers:
    """A factory that makes, per entry, one block that evaluates recorded calls."""

    registry: Registry
    inlined: set[int]  # entries that are evaluated where their result is read
    blocks: dict[int, b.Block] = field(default_factory=dict)
    choices: dict[frozenset[int], b.Block] = field(default_factory=dict)

    def entry(self, number: int) -> b.Block:
        """Return the block that evaluates recorded calls of entry `number`."""
        if number in self.blocks:
            return self.blocks[number]
        entry = self.registry.entries[number]
        declaration, of, place = None, None, 0
        is_row = entry.is_row and number not in self.inlined
        if entry.key[0] == 'item':
            product = self.registry.entries[entry.key[1]]
            block, place = self.entry(product.number), product.items.index(number)
            if is_row := isinstance(block, b.Reference):
                of = block.declaration
        if is_row:
            # A declaration, since an entry may read its own results; its key is `id`,
            # so that a node is evaluated once for all its readers.
            declaration = b.ForwardDeclaration(ObjectType(), name=entry.name)
            declaration.key = id
            operands = 1 if entry.key[0] == 'tensor' else len(entry.inputs)
            declaration.calls = CallKind(number, operands, of, place)
            self.blocks[number] = declaration()
        block = _reading(entry, [*map(self.choice, entry.inputs)])
        if declaration is not None:
            declaration.resolve_to(block)
        return self.blocks.setdefault(number, block)

    def choice(self, makers: Iterable[int]) -> b.Block:
        """Return the block that evaluates a recorded call of any of the `makers`."""
        key = frozenset(makers)
        if key not in self.choices:
            types = {n: self.registry.entries[n].type for n in sorted(key)}
            cases = {n: self.entry(n) for n in types if is_known(types[n])}
            # A list that is empty is evaluated as one of the same type with items.
            for n in key.difference(cases):
                alike = (x for x in cases if fits(types[n], types[x]))
                if (other := next(alike, None)) is None:
                    raise TypeError(
                        'expected a list with items in some example, which tell its '
                        'type, got empty ones alone; give `like=`, or `eval`, an '
                        'example that has some'
                    )
                cases[n] = cases[other]
            if (empty := self.registry.known.get(('sequence', EMPTY))) is not None:
                for n in [*cases]:
                    if isinstance(self.registry.entries[n].type, SequenceType):
                        cases.setdefault(empty.number, cases[n])
            one = next(iter(cases.values())) if len(cases) == 1 else None
            self.choices[key] = one or b.OneOf(b.GetItem(0), cases)
        return self.choices[key]

    def make_all(self) -> None:
        """Make the blocks of all entries that results or metrics depend on."""
        registry = self.registry
        for makers in (*registry.results.values(), *registry.metrics.values()):
            self.choice(makers)
        for entry in registry.entries:
            if entry.observes:  # even if no other call reads its results
                self.entry(entry.number)

    def results(self, lazy: Lazy) -> b.Block:
        """Return the block that evaluates the result of the `Reader` of `lazy`."""
        value, cases = self.choice(self.registry.results[lazy]), dict[Any, b.Block]()
        for (name, labelled), makers in self.registry.metrics.items():
            one = self.choice(makers)
            with_label = b.Record({1: one, 2: b.Identity()})
            collected = with_label if labelled else b.GetItem(1) >> one
            cases[name, labelled] = collected >> b.Metric(name)
        calls = {
            number: block >> b.Void()
            for number, block in self.blocks.items()
            if isinstance(block, b.Reference)
            and (kind := block.declaration.calls) is not None
            and kind.of is None
        }
        parts = [b.GetItem(0) >> value]
        if calls:
            one = b.OneOf(b.GetItem(0), calls, default=b.Void())
            parts.insert(0, InOrder(one) >> b.Void())
        if cases:
            one = b.OneOf(b.GetItem(0), cases)
            parts.append(b.GetItem(1) >> b.Map(one) >> b.Void())
        return b.AllOf(*parts) >> b.GetItem(int(bool(calls)))


def _reading(entry: Entry, inputs: list[b.Block]) -> b.Block:
    """Return the block that evaluates calls of `entry`; `inputs` evaluate arguments."""
    type_, kind, parts = entry.type, entry.key[0], dict(enumerate(inputs, 1))
    if kind == 'data':
        return b.GetItem(1)
    if kind == 'tensor':
        assert isinstance(type_, TensorType)
        return b.GetItem(1) >> b.Tensor(type_.shape, type_.dtype)
    if kind == 'sequence':
        return b.GetItem(1) >> b.Map(inputs[0])
    if kind == 'item':
        return b.GetItem(1) >> inputs[0] >> b.GetItem(entry.key[2])
    if isinstance(type_, StructType) and kind == 'product':
        return Struct(type_.form, parts)
    if kind == 'product':
        return b.Record(parts)
    assert isinstance(kind, b.Block)
    if not inputs:
        return b.GetItem(0) >> b.Void() >> kind
    if len(inputs) == 1:
        return b.GetItem(1) >> inputs[0] >> kind
    return b.Record(parts) >> kind
