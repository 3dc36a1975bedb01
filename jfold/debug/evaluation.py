# SPDX-License-Identifier: Apache-2.0
"""The eager evaluation of a block on one example, for `Block.eval`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfold import blocks as b
from jfold.base.arguments import expect
from jfold.base.keys import Rngs, node_key
from jfold.device.random_keys import make_draws
from jfold.language import eager_twin
from jfold.language.lazy_expression import Recorded
from jfold.language.lazy_functions import lazy_functions

# This import registers the rules of all blocks.
from jfold.lower import FAMILIES
from jfold.program.operations import Layer


def evaluate(
    block: b.Block,
    example: object,
    params: Mapping[str, Any] | None,
    external: Mapping[str, Any] | None,
    rngs: Rngs,
    id_: int,
    deterministic: bool,
) -> Any:
    """Return the result of a block on one example, without batching; see `Block.eval`.

    Raises:
      TypeError: `params` is no dict, or was passed as `example`.
    """
    assert FAMILIES
    is_lazy = bool(lazy_functions(block))
    if is_lazy:
        recorded = Recorded(block)
        recorded.learn([example], name='the example')
        block = recorded.expression()
    typing = eager_twin.typed_expression(block)
    _check(typing.layers, example, params)
    if is_lazy and params is not None:
        # An example calls some layers. Of those named `x`, `x_1`, ..., all are kept,
        # since `params` may number them differently.
        stem = functools.partial(re.sub, r'_\d+$', '')
        stems = {stem(layer.name) for layer in typing.layers}
        params = {name: x for name, x in params.items() if stem(name) in stems}
    draws = make_draws(typing.layers, 1, rngs, np.array([id_]), deterministic)
    if draws is None or draws.evaluates:
        return eager_twin.evaluate(typing, example, params, external)
    assert draws.ids is not None
    seeds, identity = draws.seeds, draws.ids[0]

    def key(stream: str, number: int) -> Any:
        return node_key(seeds[stream], identity, number)

    return eager_twin.evaluate(typing, example, params, external, key)


def _check(layers: Sequence[Layer], example: object, params: object) -> None:
    """Raise TypeError if `params` is no dict, or `example` looks like parameters."""
    is_dict = params is None or isinstance(params, Mapping)
    hint = 'call `eval(example, params)`'
    expect('params', params, is_dict, 'a dict of parameters by layers', hint)
    names = {layer.name for layer in layers if layer.params is not None}
    if names and isinstance(example, Mapping) and names <= example.keys():
        if params is None or names.isdisjoint(params):  # type: ignore[arg-type]
            raise TypeError(
                f'expected `example` and then `params`, got those of {sorted(names)}'
                f' as the example: {hint}'
            )
