# SPDX-License-Identifier: Apache-2.0
"""Type inference: an expression to its `Typed` tree, or an error that names the block.

Every use of a block gets an input and an output type. What is known flows forwards from
the root, which takes an object, and backwards by unification; what must wait (a
function whose arguments are not known yet) is a *constraint*, tried again until nothing
changes. A declaration is typed once, for all its uses.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import jax

from jfold import blocks as b
from jfold.base.trampoline import Steps, run
from jfold.language.analysis import constants, observing, users
from jfold.language.fields import order_for
from jfold.language.forwarding import Forwarding
from jfold.language.paths import fail, further
from jfold.language.recursion import calls_of, endless
from jfold.language.shared_parameters import numbered
from jfold.language.typed import Typed, Typing
from jfold.language.unification import Mismatch, TypeVariable, Unifier
from jfold.program.operations import Layer
from jfold.program.result_tables import nesting
from jfold.types import (
    ObjectType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    VoidType,
    leaf_types,
)

A_CONSTANT = 'use Zeros or FromTensor where nothing is read'
TO_TENSORS = 'turn objects into tensors by Scalar, Vector or Tensor'
NO_ZERO = 'make tensors of the data inside of it, by Scalar, Vector or Tensor'

# How many uses are lowered one by one: in one expression, and for each time that a
# block stands in it. A call costs more than a few lines, but 2^n lines cost too much.
FEW_USES, USES_FOR_EACH = 2048, 8

# What these give has the variable of a value that there is already. All others are
# taken to give a new value, which is never wrong: at worst it is computed twice.
_PASSING = b.Identity, b.Pipe, b.GetItem


@dataclass(eq=False)
class Inference:
    """The state of one inference.

    A variable in an input type stands for one value, so that the uses of a block on one
    value are typed once, and later computed once; not those of blocks in `observing`.

    Attributes:
      constants: blocks that take no input.
      observing: blocks with a `Metric` inside.
      repeated: blocks made of others that have several uses.
      room: how many uses are typed one by one; see `called`.
      is_asked: whether it is asked what the expression takes, and not given.
      carried: the loop of each variable that is of the state of one.
      cases: of each variable of a case, that of the value that there is a choice for.
    """

    constants: set[b.Block]
    observing: set[b.Block]
    repeated: set[b.Block]
    room: int
    is_asked: bool
    types: Unifier = field(default_factory=Unifier)
    nodes: list[Typed] = field(default_factory=list)
    visited: dict[tuple[b.Block, Type], Typed] = field(default_factory=dict)
    items: dict[tuple[Type, int], TypeVariable] = field(default_factory=dict)
    waiting: list[tuple[Typed, Callable[[], bool]]] = field(default_factory=list)
    declarations: dict[b.ForwardDeclaration, Typed] = field(default_factory=dict)
    layers: dict[Any, Layer] = field(default_factory=dict)
    functions: dict[Layer, b.Function] = field(default_factory=dict)
    guesses: list[tuple[Typed, Type]] = field(default_factory=list)
    results: dict[tuple[Any, tuple[Type, ...]], tuple[Type, Forwarding]] = field(
        default_factory=dict
    )
    calls: dict[tuple[b.Block, Type | None], b.Reference] = field(default_factory=dict)
    carried: dict[Type, Typed] = field(default_factory=dict)
    cases: dict[Type, Type] = field(default_factory=dict)

    def visit(self, block: b.Block, given: Type, where: str) -> Steps[Typed]:
        """Types one use of `block`, and the uses inside it."""
        return self.visit_once(self.called(block, given), given, where)

    def called(self, block: b.Block, given: Type) -> b.Block:
        """The block; once uses are many more than the expression is long, a reference
        to it in its place, so that it is typed and lowered once for all that follow.

            r = Record((r, r)) >> add      n times: n blocks, but 2^n uses, of which
                                           each is of another part of the data
        """
        if len(self.nodes) <= self.room or block not in self.repeated:
            return block
        # As of a declaration, what it takes is the same at all uses.
        type_ = self.types.resolve(given)
        unknown = not type_.ground
        if isinstance(type_, VoidType) or (unknown and not self.is_asked):
            return block
        key = block, None if unknown else type_
        if key not in self.calls:
            declaration = b.ForwardDeclaration(key[1], name=type(block).__name__)
            declaration.resolve_to(block)
            self.calls[key] = b.Reference(declaration)
            if block in self.observing:
                self.observing.add(self.calls[key])
        return self.calls[key]

    def visit_once(self, block: b.Block, given: Type, where: str) -> Steps[Typed]:
        """The same, of this block itself."""
        # A bare type, such as `object`, is that of many values; its variable of one.
        if not isinstance(given, TypeVariable | VoidType):
            given = self.types.named(given)
        known = self.visited.get((block, given))
        if known is not None:
            known.shared = True
            return known
        node = Typed(block, where, given, given)
        # Before its parts, so that of several unknown types the outermost is named.
        self.nodes.append(node)
        made = output_type(block, node, self)
        output: Type = (yield made) if isinstance(made, Generator) else made
        passed = isinstance(block, _PASSING) and isinstance(output, TypeVariable)
        # Without a name of its own the result of a `Fold`, say, would have the variable
        # of its start, and a block used on both would be computed on one of them alone.
        node.output = output if passed else self.types.named(output)
        is_leaf = isinstance(given, VoidType) and not node.parts  # as cheap to repeat
        if block not in self.observing and not is_leaf:
            self.visited[block, given] = node
        return node

    def given_to(self, block: b.Block, given: Type) -> Type:
        """What a block takes of what it could be given."""
        return VoidType() if block in self.constants else given

    def part(
        self, node: Typed, block: b.Block, given: Type, label: str
    ) -> Steps[Typed]:
        """Types a block inside `node`; one that takes no input is given none."""
        where = further(node.where, f'{type(node.block).__name__}{label}')
        return self.visit(block, self.given_to(block, given), where)

    def substitute(
        self,
        node: Typed,
        block: b.Block | None,
        label: str,
        type_: Type,
        verb: str,
        hint: str,
    ) -> Steps[Typed | None]:
        """Types the block that stands in for a value of a type; if `None`, zeros do."""
        if block is not None:
            part: Typed = yield self.part(node, block, VoidType(), label)
            self.equal(part, part.output, type_, verb, hint)
            return part

        def constraint() -> bool:
            if self.types.known(type_):
                check_zeros(node, self.types.resolve(type_), NO_ZERO)
                return True
            return False

        self.when(node, constraint)
        return None

    def item(self, node: Typed, place: int, item: Type) -> TypeVariable:
        """The variable of an item of the tuple that is the input of `node`."""
        if isinstance(item, TypeVariable):
            return item
        # Two fields that read one place of one tuple read one value.
        key = node.input, place
        if key not in self.items:
            self.items[key] = self.types.named(item)
        return self.items[key]

    def carries(self, loop: Typed, type_: Type) -> TypeVariable:
        """The variable of a loop's state, which is another value in each round."""
        made = self.types.named(type_)
        self.carried[made] = loop
        return made

    def equal(
        self, node: Typed, got: Type, expected: Type, verb: str, hint: str = ''
    ) -> None:
        """Unifies two types; the error names `node`, and may say what to do."""
        try:
            self.types.unify(got, expected)
        except Mismatch as error:
            shown = [self.types.resolve(t) for t in (expected, got)]
            if [*map(type, shown)] == [SequenceType, TupleType]:
                hint = 'make a sequence of a tuple by `>> Map(Identity())`'
            fail(node, f'{verb} {shown[0]}', str(shown[1]), str(error) or hint)

    def when(self, node: Typed, constraint: Callable[[], bool]) -> None:
        """Runs `constraint` now or later, until it says that it is met."""
        if not constraint():
            self.waiting.append((node, constraint))

    def when_head(
        self, node: Typed, then: Callable[[Type], None], of: Type | None = None
    ) -> None:
        """Calls `then` with the input type once its outermost form is known."""

        def constraint() -> bool:
            head = self.types.head(node.input if of is None else of)
            if isinstance(head, TypeVariable):
                return False
            then(head)
            return True

        self.when(node, constraint)

    def objects(self, node: Typed, hint: str = '') -> None:
        """Demands that the input is made of Python objects."""

        def constraint() -> bool:
            given = self.types.resolve(node.input)
            if given.of_objects:
                return True
            if not self.types.known(given):
                return False  # a tuple of objects may still come of it
            constant = isinstance(given, VoidType)
            fail(node, 'an object', str(given), A_CONSTANT if constant else hint)

        self.guesses.append((node, ObjectType()))
        self.when(node, constraint)

    def guess(self) -> bool:
        """Takes one unknown input to be what it most likely is.

        Only when nothing else helps: what must be made of objects is taken to be one
        object, and may yet prove to be a tuple of objects.
        """
        for node, type_ in self.guesses:
            before = self.types.resolve(node.input)
            # Known to be a tuple, it cannot be one object; its items may be guessed.
            partly = not isinstance(before, TypeVariable)
            if self.types.known(before) or (partly and type_ == ObjectType()):
                continue
            known = len(self.types.bound)
            self.equal(node, before, type_, 'an input')
            if len(self.types.bound) > known:
                return True
        return False

    def settle(self) -> None:
        """Tries what waits until nothing changes."""
        while self.waiting:
            # A constraint that is met may add others, which wait for the next round.
            before, self.waiting = self.waiting, []
            for node, constraint in before:
                self.when(node, constraint)
            if len(self.waiting) == len(before) and not self.guess():
                break

    def solve(self) -> None:
        """The types of all uses.

        Raises:
          TypeError: something is still unknown.
        """
        self.settle()
        # What waits comes first: it is nearer to the cause than what depends on it.
        for node in [*(node for node, _ in self.waiting), *self.nodes]:
            for type_ in (node.input, node.output):
                if not self.types.known(type_):
                    raise TypeError(
                        f'{node}: expected types that follow from the expression, got '
                        f'{self.types.resolve(node.input)} to '
                        f'{self.types.resolve(node.output)}; {_saying(node.block)}'
                    )
        for node in self.nodes:
            self._check_names(node)
            node.input = self.types.plain(node.input)
            node.output = self.types.plain(node.output)

    def _check_names(self, node: Typed) -> None:
        """Refuses names of fields that were not known yet when a function was typed."""
        given = self.types.resolve(node.input)
        if order_for(node, node.block, given) != node.order:
            expected = 'parameters in the order of the fields, for a declared type has'
            fail(node, f'{expected} no names', str(given), 'write them in one order')


def _saying(block: b.Block) -> str:
    """How to say types that do not follow."""
    if isinstance(block, b.RNN) and block.initial_state is None:
        return 'say that of the state, by `initial_state`'
    return 'say them, by `output_type=` of `ForwardDeclaration` or `recursive`'


def begin(root: b.Block, is_asked: bool = False) -> Inference:
    """The state before anything of an expression is typed."""
    found = users(root)
    composite = {user for each in found.values() for user in each}
    kinds = b.Reference, b.Share  # which are typed once anyway
    repeated = {x for x in composite if len(found[x]) > 1 and not isinstance(x, kinds)}
    room = FEW_USES + USES_FOR_EACH * sum(map(len, found.values()))
    # Each guess of what an unknown input is has all that waits tried again, so where
    # inputs are asked for, fewer uses wait; each that is written, at least.
    room //= USES_FOR_EACH if is_asked else 1
    return Inference(constants(found), observing(found), repeated, room, is_asked)


@functools.singledispatch
def output_type(block: b.Block, node: Typed, state: Inference) -> Type | Steps[Type]:
    """The output type of `node`; sets its parts, which it yields the steps for."""
    raise NotImplementedError(f'type inference has no rule for {block!r}')


def _settled(block: b.Block, given: Type | None) -> tuple[Type | None, Type | None]:
    """What a block takes and gives, as far as that follows from what it is given."""
    state = begin(block, is_asked=given is None)
    given = state.types.fresh() if given is None else given
    top = run(state.visit(block, state.given_to(block, given), ''))
    state.settle()
    types = map(state.types.plain, (top.input, top.output))
    taken, made = (type_ if type_.ground else None for type_ in types)
    return taken, made


def input_type(block: b.Block) -> Type | None:
    """See `Block.input_type`."""
    return _settled(block, None)[0]


def result_type(block: b.Block) -> Type | None:
    """See `Block.output_type`."""
    taken, made = _settled(block, None)
    if taken is None and made is None:
        with contextlib.suppress(TypeError):
            return _settled(block, ObjectType())[1]
    return made


def infer(root: b.Block) -> Typing:
    """Types an expression whose input is a Python object.

    Raises:
      TypeError: types clash or cannot be determined; the message starts with the path
        of the block at fault.
    """
    state = begin(root)
    try:
        top = run(state.visit(root, state.given_to(root, ObjectType()), ''))
        state.solve()
    except TypeError:
        if told := endless(calls_of(state.nodes, state.cases)):
            raise TypeError(told) from None
        raise
    metrics: dict[str, tuple[Type, bool]] = {}
    for node in state.nodes:
        if isinstance(node.block, b.Metric):
            _check_metric(node, metrics)
    # Names follow from the layers of the whole expression, so nodes get them last.
    met = dict.fromkeys(node.layer for node in state.nodes if node.layer)
    names = numbered({layer: state.functions[layer] for layer in met})
    for node in state.nodes:
        node.layer = None if node.layer is None else names[node.layer]
    _mark_draws(state)
    for node in state.nodes:
        node.observes = node.block in state.observing
    return Typing(top, state.declarations, tuple(names.values()), metrics)


def _mark_draws(state: Inference) -> None:
    """Finds the uses with something random inside."""
    around: dict[Typed, list[Typed]] = {}
    for node in state.nodes:
        target = None
        if isinstance(node.block, b.Reference):
            target = state.declarations[node.block.declaration]
        for part in (*node.parts, target):
            if part is not None:
                around.setdefault(part, []).append(node)
    waiting = [each for each in state.nodes if each.layer and each.layer.rngs]
    while waiting:
        node = waiting.pop()
        if not node.draws:
            node.draws = True
            waiting += around.get(node, [])


def collected_of(given: Type) -> tuple[Type, bool]:
    """What a metric collects of what it is given, and whether a label is beside it."""
    if isinstance(given, TupleType) and len(given) == 2:
        value, label = given
        if label.of_objects and any(leaf_types(label)):
            return value, True
    return given, False


def _check_metric(node: Typed, metrics: dict[str, tuple[Type, bool]]) -> None:
    assert isinstance(node.block, b.Metric)
    collected, has_label = collected_of(node.input)
    leaves = list(leaf_types(collected))
    if not leaves or not all(isinstance(leaf, TensorType) for leaf in leaves):
        hint = _why_not_collected(node.input, leaves)
        fail(node, 'a tensor or a tuple of tensors', str(node.input), hint)
    known, labels = metrics.setdefault(node.block.name, (collected, has_label))
    if known != collected:
        hint = 'give what has another type another name'
        fail(node, f'{known}, as at its other uses', str(node.input), hint)
    if labels != has_label:
        expected = 'a label beside the value' if labels else 'no label'
        hint = 'give those with labels another name'
        fail(node, f'{expected}, as at its other uses', str(node.input), hint)


def _why_not_collected(given: Type, leaves: list[Type]) -> str:
    """What to do about a value that no metric takes."""
    if any(isinstance(leaf, SequenceType) for leaf in leaves):
        return 'collect its items by `Map(Metric(...)) >> Void()`'
    if isinstance(given, TupleType) and collected_of(TupleType(given.items[::-1]))[1]:
        return 'put the value first, and its label second'
    return TO_TENSORS


# ---- what several rules ask ----------------------------------------------------------


def check_dtype(node: Typed, type_: Type) -> None:
    """Refuses what JAX, as configured, would silently make narrower."""
    for leaf in itertools.chain(*map(leaf_types, nesting(type_))):
        if isinstance(leaf, TensorType):
            narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)
            if narrow != leaf.dtype:
                fail(
                    node,
                    f'a dtype that JAX keeps, such as {narrow.name}',
                    leaf.dtype.name,
                    "say it, or set jax.config.update('jax_enable_x64', True)",
                )


def check_zeros(node: Typed, type_: Type, hint: str) -> None:
    """Refuses types that have no zero."""
    for each in nesting(type_):
        if not all(isinstance(x, TensorType | SequenceType) for x in leaf_types(each)):
            expected = 'a type that has zeros: tensors, tuples, sequences'
            fail(node, expected, str(each), hint)
