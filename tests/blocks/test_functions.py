# SPDX-License-Identifier: Apache-2.0
"""Functions of all kinds, in and out of recurrences, give what plain recursion gives.

The kinds are in `function_kinds.py`, `control_kinds.py` and `rule_kinds.py`. Most of
the time is that of the compiler, so many kinds go through one model; their gradients
tell them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from extent import drawn
from functions import (
    KINDS,
    WIDTH,
    K,
    bundle,
    by_jvp,
    by_vjp,
    draw_function,
    from_text,
    jax_reverses,
)
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from networks import Network, compare, draw_tree

from jfold.scheduling.spec import RESIDUALS, STRATEGIES

SETTINGS = list(itertools.product(RESIDUALS, STRATEGIES))
TOGETHER = drawn(8, 24)
NO_SHRINKING = [Phase.explicit, Phase.generate]  # a smaller seed is no simpler case
LEAF = K['w @ x + b']


def trees(*leaves: int) -> list[Any]:
    rng = np.random.default_rng(1)
    return [draw_tree(rng, n) for n in leaves]


def groups() -> list[list[str]]:
    """The names of the table, those together that one model can hold."""
    alike: dict[Any, list[str]] = {}
    for name, kind in KINDS.items():
        alike.setdefault((kind.reverse, kind.linear, kind.dtypes), []).append(name)
    return [
        names[i : i + TOGETHER]
        for names in alike.values()
        for i in range(0, len(names), TOGETHER)
    ]


def cases() -> Iterator[Any]:
    """Every group once; settings and dtypes take turns. XLA compiles a few; of these
    some are quick tests."""
    for i, names in enumerate(groups()):
        dtypes = KINDS[names[0]].dtypes
        by_numpy = bool(i % 7)
        marks = [pytest.mark.slow] if i % 14 else []
        dtype = dtypes[i % len(dtypes)]
        setting = SETTINGS[i // 2 % len(SETTINGS)]  # with each, several dtypes
        yield pytest.param(names, dtype, *setting, by_numpy, marks=marks, id=names[0])


def test_the_table_is_long() -> None:
    """And its entries make themselves again."""
    assert len(KINDS) >= 120
    assert sorted(itertools.chain(*groups())) == sorted(KINDS)
    assert all(from_text(kind.text) is kind for kind in KINDS.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ('names', 'dtype', 'residuals', 'strategy', 'by_numpy'), [*cases()]
)
def test_each_kind_in_and_out_of_a_recurrence(
    names: list[str], dtype: str, residuals: str, strategy: str, by_numpy: bool
) -> None:
    """A group of kinds is the cell; the same, with other parameters, is the head."""
    kinds = bundle(*(KINDS[name] for name in names))
    network = Network(kinds, kinds, LEAF)
    compare(network, trees(3, 1, 2), 5, dtype, residuals, strategy, by_numpy)


MOST = [
    'w @ x + b',
    'product of products',
    'product of parameters',
    'set at a place',
    'inverse',
    'fft',
    'sort',
    'conv',
    'scan over parameters',
    'cond',
    'checkpoint',
    'custom_jvp of a product',
    'affine rule of a product',
    'affine rule of a parameter',
    'normalising rule',
]


@pytest.mark.long
@pytest.mark.parametrize(('residuals', 'strategy'), SETTINGS[1:3])
def test_one_of_each_family_in_many_rows(residuals: str, strategy: str) -> None:
    """In double precision, with each residual policy and each strategy."""
    kinds = bundle(*(KINDS[name] for name in MOST))
    network = Network(kinds, kinds, LEAF)
    compare(network, trees(9, 1, 4), 300, 'float64', residuals, strategy)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ('cell', 'head'),
    [
        ('affine rule', 'affine rule behind'),
        ('normalising rule of a parameter', 'affine rule of a matrix'),
        ('while_loop', 'fori_loop of a computed length'),
        ('and an integer', 'and booleans'),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [
                ('normalising rule', 'normalising, then affine'),
                ('affine rule of a parameter', 'normalising rule of a parameter'),
                ('affine rule of a product', 'affine rule in a scan'),
                ('scan over parameters', 'cond'),
                ('nested results', 'unused results of a loop'),
                ('and order', 'and small integers'),
                ('and an unused product', 'top_k and where'),
                ('and an integer parameter', 'and a matrix'),
            ]
        ),
    ],
)
def test_kinds_on_their_own(cell: str, head: str) -> None:
    """An operation is one kind; several results go where they will."""
    network = Network(KINDS[cell], KINDS[head], LEAF)
    compare(network, trees(3, 1), 3, strategy='fixed')


def test_a_result_that_is_not_used_has_no_rule() -> None:
    """Nor does what belongs to it: its parameters have no gradient."""
    cell = from_text("unused(K['w @ x'], affine(K['custom_vjp of a product']))")
    compare(Network(cell, cell, LEAF), trees(3, 1), 3, strategy='fixed')


# ---- drawn functions -----------------------------------------------------------------


@settings(max_examples=drawn(1, 5), phases=NO_SHRINKING)
@given(st.integers(0, 2**32 - 1))
def test_drawn_functions(seed: int) -> None:
    """And how they are compiled; a failure tells its seed and the text of all."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(['float32', 'float64', 'float64', 'bfloat16']))
    reverse = rng.random() < 0.9
    depths = rng.integers(1, 4, 3)
    cell, head, leaf = (
        draw_function(rng, WIDTH, dtype, int(depth), reverse=reverse, zero=False)
        for depth in depths
    )
    setting = SETTINGS[int(rng.integers(len(SETTINGS)))]
    examples = [draw_tree(rng, n) for n in rng.integers(1, 9, 4)]
    network = Network(cell, head, leaf)
    note(repr(network))
    compare(network, examples, int(rng.choice([4, 6, 300])), dtype, *setting)


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1))
def test_what_is_drawn_is_made_again_from_its_text(seed: int) -> None:
    """With the same parameters and values."""
    drawn = draw_function(np.random.default_rng(seed), dtype='float32')
    again = from_text(drawn.text)
    assert again.text == drawn.text
    spec = jax.ShapeDtypeStruct((WIDTH,), 'float32')
    one, other = (k.init(np.random.default_rng(0), spec) for k in (drawn, again))
    assert jax.tree.all(jax.tree.map(np.array_equal, one, other))
    first, second = (jax.eval_shape(k, one, spec) for k in (drawn, again))
    assert first == second == spec


@pytest.mark.parametrize(
    ('name', 'outer', 'has'),
    [
        ('custom_vjp of two results', by_jvp, False),
        ('custom_vjp of two results', by_vjp, True),
        ('custom_jvp', by_jvp, True),
    ],
)
def test_what_jax_does_not_reverse_is_told(name: str, outer: Any, has: bool) -> None:
    """So that such combinations are not drawn."""
    assert jax_reverses(outer(KINDS[name]), WIDTH) == has
