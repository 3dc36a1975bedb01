# SPDX-License-Identifier: Apache-2.0
"""The blocks of TensorFlow Fold, each with its types, values, edges and errors.

What is expected stands here as Fold has it, but for the faults that are mended. Numbers
go through a function with a parameter of 1, so values are plain and gradients are not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

import jfold as jf

Pairs = list[tuple[Any, Any]]  # of an example and what becomes of it
Refusal = tuple[Callable[[], Any], type[Exception], str]


@dataclass(frozen=True)
class Row:
    """A block of Fold.

    Attributes:
      name: as Fold has it, and what is special about this one.
      block: an example of it, upon what gives it its input.
      alone: the block itself.
      types: of what that takes and gives, as they print; `None` where what stands
        around it decides.
      values: what it makes of ordinary data.
      edges: of data at the edge of what it takes.
      refused: what is refused, how, and with which message, where `mistakes` has no
        such row, or there would be none here.
    """

    name: str
    block: Any
    alone: jf.Block
    types: tuple[str, str]
    values: Pairs
    edges: Pairs
    refused: list[Refusal]


def _init(key: Any) -> Any:
    return jnp.ones(())


scaled = jf.Function(operator.mul, _init, name='scaled')
number = jf.Scalar() >> scaled
numbers = jf.Map(number)
add, subtract = jf.Function(jnp.add), jf.Function(jnp.subtract)
plus = jf.Record((jf.Identity(), number)) >> add  # of a state and an item
pairs = jf.Record((number, number))
lists = jf.Record((numbers, numbers))


def typed(block: Any, message: str) -> Refusal:
    """Compiling a block, which is refused."""
    return lambda: jf.compile(block), TypeError, message


def read(block: Any, example: Any, message: str) -> Refusal:
    """Making a schedule of one example, which is refused."""
    return lambda: jf.compile(block).schedule([example]), jf.InputError, message
