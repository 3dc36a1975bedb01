# SPDX-License-Identifier: Apache-2.0
"""The weave module of Kearnes et al. 2016; Looks et al. 2017, appendix B."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

import jfold as jf


def dense(size: int) -> jf.Block:
    """From a vector to `size` numbers: an affine map and a rectifier."""
    return jf.Function(nn.Dense(size)) >> nn.relu


def make_weave(atom: int, pair: int, hidden: int = 50) -> jf.Block:
    """From features of atoms and of pairs of them to new ones; can be stacked.

    Of a molecule of n atoms it takes n vectors and n sequences of n vectors; it
    gives as many.

    Args:
      atom: size of the new features of an atom.
      pair: size of those of a pair.
      hidden: size of all that comes between.
    """
    f_a_a, f_a_p, f_p_a, f_p_p = (dense(hidden) for _ in range(4))
    f_a, f_p = dense(atom), dense(pair)

    @jf.compose
    def a_i_to_p(a_i: Any, a: Any) -> Any:
        """From one atom and all n to n vectors [hidden], one for each pair."""
        a_i = jf.Broadcast()(a_i)
        f_i_j = jf.ZipWith(jf.Concat() >> f_a_p)(a_i, a)
        f_j_i = jf.ZipWith(jf.Concat() >> f_a_p)(a, a_i)
        return jf.ZipWith(jnp.add)(f_i_j, f_j_i)

    @jf.compose
    def weave(a: Any, p: Any) -> tuple[Any, Any]:
        """From atoms and pairs to atoms and pairs."""
        a_to_a = jf.Map(f_a_a)(a)
        p_to_a = jf.Map(jf.Map(f_p_a) >> jf.Sum())(p)
        a_y = jf.ZipWith(jf.Concat() >> f_a)(a_to_a, p_to_a)
        a_to_p = jf.ZipWith(a_i_to_p)(a, jf.Broadcast()(a))
        p_to_p = jf.Map(jf.Map(f_p_p))(p)
        p_y = jf.ZipWith(jf.ZipWith(jf.Concat() >> f_p))(a_to_p, p_to_p)
        return a_y, p_y

    return weave
