# SPDX-License-Identifier: Apache-2.0
"""The names of layers, and the parameters that several layers share."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from jfold.blocks.external import shown_rows
from jfold.combinators import Function
from jfold.language.flax_modules import check_shared_variables
from jfold.language.layer_names import layer_key
from jfold.program.operations import Layer

if TYPE_CHECKING:
    from chex import ArrayTree


class Ranking:
    """A base class of functions on the host that know an order of layers.

    Attributes:
      ranks: by `layer_key` of a function, its place among those of its name.
    """

    ranks: Mapping[Hashable, int]


def with_unique_names(
    layers: Mapping[Layer, Function], ranks: Mapping[Hashable, int]
) -> dict[Layer, Layer]:
    """Return each layer with its final name: later ones of a name get a number.

    Layers of one owner, as methods of one module, share a name and parameters. Those
    without parameters are numbered last, since nothing is stored under their names.

    Args:
      layers: in the order in which the expression uses them.
      ranks: by `layer_key`, places that come before this order.

    Raises:
      TypeError: two external arrays have one name and rows of different types, or two
        NNX modules share a parameter.
    """
    _check_externals([layer for layer in layers if layer.external])
    check_shared_variables(function.fn for function in layers.values())
    groups: dict[Hashable, list[Layer]] = {}
    for layer in layers:
        key = layer if layer.owner is None else layer.owner
        groups.setdefault(key, []).append(layer)

    def place(group: list[Layer]) -> tuple[bool, bool, int]:
        keys = [layer_key(layers[x]) for x in group]
        rank = min(ranks.get(key, len(ranks)) for key in keys)
        # External arrays first: users pass them by name, so they have to keep theirs.
        return not group[0].external, group[0].params is None, rank

    order = sorted(groups.values(), key=place)
    names = {layer.name for layer in layers}
    numbers = {name: itertools.count(1) for name in names}
    free, result = set(names), dict[Layer, Layer]()
    for group in order:
        name = group[0].name
        if name not in free:
            tries = (f'{name}_{number}' for number in numbers[name])
            name = next(x for x in tries if x not in names)
        free.discard(name)
        names.add(name)
        result |= {layer: _joint_layer(layer, group, name) for layer in group}
    return {layer: result[layer] for layer in layers}


def _joint_layer(layer: Layer, group: list[Layer], name: str) -> Layer:
    """Return a renamed layer with the parameters of its group, all of one owner."""
    if len(group) == 1:
        return dataclasses.replace(layer, name=name)

    def init(key: jax.Array) -> ArrayTree:
        return functools.reduce(_merge, [x.init(key) for x in group if x.init])

    params = functools.reduce(_merge, [x.params for x in group])
    return dataclasses.replace(layer, name=name, params=params, init=init)


def _merge(one: Any, other: Any) -> object:
    """Return the union of two trees of parameters; of what both have, that of `one`."""
    trees: list[Any] = [jax.tree.structure(x) for x in (one, other)]
    if trees[0] == trees[1]:  # always so for NNX
        return one
    shared = {k: _merge(one[k], other[k]) for k in one.keys() & other.keys()}
    return {**one, **other, **shared}


def _check_externals(layers: Iterable[Layer]) -> None:
    first_of: dict[str, Layer] = {}
    for layer in layers:
        known = first_of.setdefault(layer.name, layer)
        if known is not layer:
            one, other = (shown_rows(x.params) for x in (known, layer))
            raise TypeError(
                f'External({layer.name!r}): expected rows of one type, got {one} and '
                f'{other}; give arrays of other types other names'
            )
