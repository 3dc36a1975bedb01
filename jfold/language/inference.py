# SPDX-License-Identifier: Apache-2.0
"""Type inference: an expression to a tree of `TypedUse`, or an error with the block.

Every use of a block gets an input and an output type. Types flow forwards from the
root, which takes an object, and backwards by unification. A rule that has to wait, as
for the shapes of a function's arguments, leaves a *constraint*: a function that returns
whether it is met, called again and again until nothing changes. A declaration is typed
once, for all its uses. A *node* is a `TypedUse`.

Typing a block is a generator, run without recursion (`Steps`, `base/trampoline.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax

from jfold import blocks as b
from jfold.base.trampoline import Steps, run
from jfold.language.analysis import constants, users, with_users
from jfold.language.endless_recursion import calls_of, endless_recursion
from jfold.language.field_names import argument_order
from jfold.language.forwarding import Forwarding
from jfold.language.function_layers import LazyCalls, with_unique_names
from jfold.language.paths import fail, join_path
from jfold.language.typed import TypedExpression, TypedUse
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

# The number of uses that are inlined: FEW_USES, and USES_FOR_EACH for each block that
# stands in another. A call costs more than a few lines, but n nested blocks may have
# 2^n uses.
FEW_USES, USES_FOR_EACH = 2048, 8

# These blocks return their operand or a part of it, and so its type variable too. The
# result of any other block counts as a new value: at worst it is computed twice.
_PASSING = b.Identity, b.Pipe, b.GetItem


class Enough(Exception):
    """An error that ends a type inference after its last step."""


@dataclass(eq=False)
class Inference:
    """The state of one type inference.

    A type variable stands for one *value*. So uses of a block whose input has the same
    variable are one use, typed and later computed once, but for blocks in `observing`.

    Attributes:
      observing: blocks with a `Metric` inside, of which each use collects rows.
      repeated: composite blocks with several uses.
      inlined_uses: the number of uses that are typed one by one; see `outlined`.
      infers_input: whether the input type of the expression is unknown and inferred.
      nodes: all uses so far, in the order in which typing began.
      visited: a memo: the use of a block on a value, by block and variable.
      items: the variable of an item of a tuple, by the tuple's variable and the index.
      waiting: constraints that are not met yet, with the node that an error names.
      declarations: by declaration, the use that holds its body.
      layers: the layer of each callable, by `layer_key`.
      functions: by layer, the `Function` block that it was made of.
      defaults: pairs (node, type that its input gets if nothing else determines it).
      results: a memo by `layer_key` and argument types: the output type, `Forwarding`.
      outlined_blocks: references in place of repeated blocks, by block and input type.
      carried: by the variable of a loop's state, the loop.
      cases: by the variable of a case's input, that of the value passed to the case.
      steps: an item for each step left: a use of a block, or a constraint to call.
    """

    constants: set[b.Block]  # those that take no input
    observing: set[b.Block]
    repeated: set[b.Block]
    inlined_uses: int
    infers_input: bool
    types: Unifier = field(default_factory=Unifier)
    nodes: list[TypedUse] = field(default_factory=list)
    visited: dict[tuple[b.Block, Type], TypedUse] = field(default_factory=dict)
    items: dict[tuple[Type, int], TypeVariable] = field(default_factory=dict)
    waiting: list[tuple[TypedUse, Callable[[], bool]]] = field(default_factory=list)
    declarations: dict[b.ForwardDeclaration, TypedUse] = field(default_factory=dict)
    layers: dict[Any, Layer] = field(default_factory=dict)
    functions: dict[Layer, b.Function] = field(default_factory=dict)
    defaults: list[tuple[TypedUse, Type]] = field(default_factory=list)
    results: dict[tuple[Any, tuple[Type, ...]], tuple[Type, Forwarding]] = field(
        default_factory=dict
    )
    outlined_blocks: dict[tuple[b.Block, Type | None], b.Reference] = field(
        default_factory=dict
    )
    carried: dict[Type, TypedUse] = field(default_factory=dict)
    cases: dict[Type, Type] = field(default_factory=dict)
    steps: Iterator[object] = field(default_factory=itertools.count)

    def take_step(self) -> None:
        """Count a step; raise `Enough` if none is left."""
        if next(self.steps, None) is None:
            raise Enough

    def visit(self, block: b.Block, input_: Type, where: str) -> Steps[TypedUse]:
        """Infer the use of `block`, or of a reference, on `input_` at path `where`."""
        return self.visit_inline(self.outlined(block, input_), input_, where)

    def outlined(self, block: b.Block, input_: Type) -> b.Block:
        """Return `block`, or a reference to it if there are too many uses of blocks.

        A reference is typed and lowered once for all uses on `input_`. Without one,
        `r = Record((r, r)) >> add`, repeated n times, would be n blocks with 2^n uses.
        """
        if len(self.nodes) <= self.inlined_uses or block not in self.repeated:
            return block
        # A declaration has one input type, so there is a reference for each type.
        type_ = self.types.resolve(input_)
        unknown = not type_.ground
        if isinstance(type_, VoidType) or (unknown and not self.infers_input):
            return block
        key = block, None if unknown else type_
        if key not in self.outlined_blocks:
            declaration = b.ForwardDeclaration(key[1], name=type(block).__name__)
            declaration.resolve_to(block)
            self.outlined_blocks[key] = b.Reference(declaration)
            if block in self.observing:
                self.observing.add(self.outlined_blocks[key])
        return self.outlined_blocks[key]

    def visit_inline(self, block: b.Block, input_: Type, where: str) -> Steps[TypedUse]:
        """Infer a use as `visit` does, but of `block` itself, never of a reference."""
        self.take_step()
        # Many values have the type `object`; a variable bound to it stands for one.
        if not isinstance(input_, TypeVariable | VoidType):
            input_ = self.types.alias(input_)
        known = self.visited.get((block, input_))
        if known is not None:
            known.shared = True
            return known
        node = TypedUse(block, where, input_, self.types.fresh())
        # Added before its parts, so that an error names the outermost unknown type.
        self.nodes.append(node)
        result = output_type(block, node, self)
        output: Type = (yield result) if isinstance(result, Generator) else result
        is_passed = isinstance(block, _PASSING) and isinstance(output, TypeVariable)
        # Any other result gets a variable of its own: if a `Fold` shared that of its
        # start, a block used on both would be computed on one of them alone.
        node.output = output if is_passed else self.types.alias(output)
        is_constant = isinstance(input_, VoidType) and not node.parts  # cheap to repeat
        if block not in self.observing and not is_constant:
            self.visited[block, input_] = node
        return node

    def input_of(self, block: b.Block, input_: Type) -> Type:
        """Return `input_`, or the void type for a block that takes no input."""
        return VoidType() if block in self.constants else input_

    def part(
        self, node: TypedUse, block: b.Block, input_: Type, label: str
    ) -> Steps[TypedUse]:
        """Infer the use of `block` in `node` on `input_`; its path ends in `label`."""
        where = join_path(node.where, f'{type(node.block).__name__}{label}')
        return self.visit(block, self.input_of(block, input_), where)

    def substitute(
        self,
        node: TypedUse,
        block: b.Block | None,
        label: str,
        type_: Type,
        verb: str,
        hint: str,
    ) -> Steps[TypedUse | None]:
        """Infer the types of `block`, which computes a default value of type `type_`.

        Return its use, whose path ends in `label`. Without a block `None` is returned,
        and the default is zero.

        Raises:
          TypeError: the block gives another type (see `equal` for `verb`, `hint`), or
            there is no zero of the type.
        """
        if block is not None:
            part: TypedUse = yield self.part(node, block, VoidType(), label)
            self.equal(part, part.output, type_, verb, hint)
            return part

        def constraint() -> bool:
            if self.types.known(type_):
                check_zeros(node, self.types.resolve(type_), NO_ZERO)
                return True
            return False

        self.when(node, constraint)
        return None

    def item(self, node: TypedUse, place: int, item: Type) -> TypeVariable:
        """Return a type variable for `item`, the type at `place` in `node`'s input."""
        if isinstance(item, TypeVariable):
            return item
        # Fields that read the same place of the same tuple read one value.
        key = node.input, place
        if key not in self.items:
            self.items[key] = self.types.alias(item)
        return self.items[key]

    def carries(self, loop: TypedUse, type_: Type) -> TypeVariable:
        """Return a new type variable, bound to `type_`, for the state of `loop`."""
        variable = self.types.alias(type_)
        self.carried[variable] = loop
        return variable

    def equal(
        self, node: TypedUse, got: Type, expected: Type, verb: str, hint: str = ''
    ) -> None:
        """Unify, or raise TypeError 'expected <verb> <expected>, got <got>; <hint>'."""
        try:
            self.types.unify(got, expected)
        except Mismatch as error:
            shown = [self.types.resolve(t) for t in (expected, got)]
            if [*map(type, shown)] == [SequenceType, TupleType]:
                hint = 'make a sequence of a tuple by `>> Map(Identity())`'
            fail(node, f'{verb} {shown[0]}', str(shown[1]), str(error) or hint)

    def when(self, node: TypedUse, constraint: Callable[[], bool]) -> None:
        """Call `constraint` now and in each `settle()`, until it returns `True`."""
        self.take_step()
        if not constraint():
            self.waiting.append((node, constraint))

    def when_head(
        self, node: TypedUse, then: Callable[[Type], None], of: Type | None = None
    ) -> None:
        """Call `then` with `of`, by default `node.input`, once its class is known."""

        def constraint() -> bool:
            head = self.types.head(node.input if of is None else of)
            if isinstance(head, TypeVariable):
                return False
            then(head)
            return True

        self.when(node, constraint)

    def objects(self, node: TypedUse, hint: str = '') -> None:
        """Require objects as the input of `node`, or raise `TypeError` with `hint`.

        If nothing determines the input, it becomes one object (`apply_default`).
        """

        def constraint() -> bool:
            input_ = self.types.resolve(node.input)
            if input_.of_objects:
                return True
            if not self.types.known(input_):
                return False  # it may still become a tuple of objects
            is_void = isinstance(input_, VoidType)
            fail(node, 'an object', str(input_), A_CONSTANT if is_void else hint)

        self.defaults.append((node, ObjectType()))
        self.when(node, constraint)

    def apply_default(self) -> bool:
        """Bind one unknown input to its default type; return whether there was one.

        Only when no constraint makes progress: an input made of objects is taken to be
        one object, though a use further on might have shown a tuple of objects.
        """
        for node, type_ in self.defaults:
            input_ = self.types.resolve(node.input)
            # A tuple cannot be one object; its items may get defaults of their own.
            is_partly_known = not isinstance(input_, TypeVariable)
            if self.types.known(input_) or (is_partly_known and type_ == ObjectType()):
                continue
            bound = len(self.types.bound)
            self.equal(node, input_, type_, 'an input')
            if len(self.types.bound) > bound:
                return True
        return False

    def settle(self) -> None:
        """Retry waiting constraints, then apply defaults, until nothing changes."""
        while self.waiting:
            # Constraints that are added meanwhile are called in the next round.
            tried, self.waiting = self.waiting, []
            for node, constraint in tried:
                self.when(node, constraint)
            if len(self.waiting) == len(tried) and not self.apply_default():
                break

    def solve(self) -> None:
        """Determine the types of all block uses; store them without type variables.

        Raises:
          TypeError: a type is still unknown, or a constraint is violated.
        """
        self.settle()
        # Nodes with unmet constraints come first, as they are nearer to the cause.
        for node in [*(node for node, _ in self.waiting), *self.nodes]:
            input_, output = map(self.types.resolve, (node.input, node.output))
            if not (input_.ground and output.ground):
                expected = 'types that follow from the expression'
                fail(node, expected, f'{input_} to {output}', _hint(node.block))
        for node in self.nodes:
            input_ = self.types.resolve(node.input)
            # The names of fields are final only now.
            if argument_order(node, node.block, input_) != node.order:
                expected = 'parameters in the order of the fields, for a declared type'
                hint = 'write them in one order'
                fail(node, f'{expected} has no names', str(input_), hint)
            node.input = self.types.plain(node.input)
            node.output = self.types.plain(node.output)


def _hint(block: b.Block) -> str:
    """Return a hint on how to declare a type that cannot be inferred."""
    if isinstance(block, b.RNN) and block.initial_state is None:
        return 'say that of the state, by `initial_state`, such as `Zeros([16])`'
    return 'say them, by `output_type=` of `ForwardDeclaration` or `recursive`'


def begin(root: b.Block, infers_input: bool = False) -> Inference:
    """Return an initial `Inference` of `root`, and of its input if `infers_input`."""
    users_of = users(root)
    composite = {user for block_users in users_of.values() for user in block_users}
    shared = b.Reference, b.Share  # typed once anyway
    repeated = {
        x for x in composite if len(users_of[x]) > 1 and not isinstance(x, shared)
    }
    inlined_uses = FEW_USES + USES_FOR_EACH * sum(map(len, users_of.values()))
    # An unknown input needs many defaults, and all constraints are tried again after
    # each. So only an eighth of the uses are inlined: at least those written.
    inlined_uses //= USES_FOR_EACH if infers_input else 1
    observing = with_users((x for x in users_of if isinstance(x, b.Metric)), users_of)
    facts = constants(users_of), observing, repeated
    return Inference(*facts, inlined_uses, infers_input)


@functools.singledispatch
def output_type(block: b.Block, node: TypedUse, state: Inference) -> Type | Steps[Type]:
    """Return a block's output type by the rule of the block's class; set `node.parts`.

    A rule that types inner blocks is a generator: it yields their steps.
    """
    raise NotImplementedError(f'type inference has no rule for {block!r}')


def infer(root: b.Block) -> TypedExpression:
    """Return the typed expression of block `root`, whose input is a Python object.

    Raises:
      TypeError: types clash or cannot be determined; the message starts with the path
        of the block at fault.
    """
    state = begin(root)
    try:
        top = run(state.visit(root, state.input_of(root, ObjectType()), ''))
        state.solve()
    except TypeError:
        if message := endless_recursion(calls_of(state.nodes, state.cases)):
            raise TypeError(message) from None
        raise
    metrics: dict[str, tuple[Type, bool]] = {}
    for node in state.nodes:
        if isinstance(node.block, b.Metric):
            _check_metric(node, metrics)
    # The name of a layer depends on all layers, so nodes get named layers last.
    layers = dict.fromkeys(node.layer for node in state.nodes if node.layer)
    hosted = [getattr(node.block, 'fn', None) for node in state.nodes]
    ranks = next((fn.ranks for fn in hosted if isinstance(fn, LazyCalls)), {})
    functions = {layer: state.functions[layer] for layer in layers}
    named = with_unique_names(functions, ranks)
    for node in state.nodes:
        node.layer = None if node.layer is None else named[node.layer]
    _mark_draws(state)
    return TypedExpression(top, state.declarations, tuple(named.values()), metrics)


def _mark_draws(state: Inference) -> None:
    """Set `draws` on block uses that draw random numbers, themselves or inside."""
    users_of: dict[TypedUse, list[TypedUse]] = {}
    for node in state.nodes:
        target = None
        if isinstance(node.block, b.Reference):
            target = state.declarations[node.block.declaration]
        for part in (*node.parts, target):
            if part is not None:
                users_of.setdefault(part, []).append(node)
    drawing = (node for node in state.nodes if node.layer and node.layer.rngs)
    for node in with_users(drawing, users_of):
        node.draws = True


def _collected_of(input_: Type) -> tuple[Type, bool]:
    """Return the type that a metric collects, and whether its input has a label."""
    if isinstance(input_, TupleType) and len(input_) == 2:
        value, label = input_
        if label.of_objects and any(leaf_types(label)):
            return value, True
    return input_, False


def _check_metric(node: TypedUse, metrics: dict[str, tuple[Type, bool]]) -> None:
    """Note a metric's type in `metrics`; raise `TypeError` if unfit or differing."""
    assert isinstance(node.block, b.Metric)
    collected, has_label = _collected_of(node.input)
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


def _why_not_collected(input_: Type, leaves: list[Type]) -> str:
    """Return a hint why no metric collects a value of type `input_` with `leaves`."""
    if any(isinstance(leaf, SequenceType) for leaf in leaves):
        return 'collect its items by `Map(Metric(...)) >> Void()`'
    swapped = input_.items[::-1] if isinstance(input_, TupleType) else ()
    if _collected_of(TupleType(swapped))[1]:
        return 'put the value first, and its label second'
    return TO_TENSORS


# ---- checks of several rules ---------------------------------------------------------


def check_dtype(node: TypedUse, type_: Type) -> None:
    """Raise `TypeError` for a dtype that JAX, as configured, would make narrower."""
    for leaf in itertools.chain(*map(leaf_types, nesting(type_))):
        if isinstance(leaf, TensorType):
            narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)
            if narrow != leaf.dtype:
                expected = f'a dtype that JAX keeps, such as {narrow.name}'
                hint = "say it, or set jax.config.update('jax_enable_x64', True)"
                fail(node, expected, leaf.dtype.name, hint)


def check_zeros(node: TypedUse, type_: Type, hint: str) -> None:
    """Raise `TypeError` with `hint` if `type_` has no zero, as with objects inside."""
    for level in nesting(type_):
        if not all(isinstance(x, TensorType | SequenceType) for x in leaf_types(level)):
            expected = 'a type that has zeros: tensors, tuples, sequences'
            fail(node, expected, str(level), hint)
