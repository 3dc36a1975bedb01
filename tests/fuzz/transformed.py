# SPDX-License-Identifier: Apache-2.0
"""`apply` and its twin, each within the same transformations of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import interpreter
import jax
import jax.numpy as jnp
import numpy as np
from agreement import batched_loss, eager_loss, is_float
from nestings import DERIVATIVES, REVERSES, is_refused, nested

import jfold as jf
from fuzz.near import Mismatch
from fuzz.twin import floats_of, with_floats

# Derivatives of derivatives lose digits where they cancel.
CLOSE = 1e-6
REFUSED = 'expected reverse mode of values or of first derivatives'
MOST = 20_000  # tangents at once: Jacobians of Jacobians of many parameters fill memory
NO_FORWARD = "can't apply forward-mode autodiff (jvp) to a custom_vjp function"


def check_nesting(
    names: Sequence[str],
    model: jf.Model,
    params: Any,
    examples: Sequence[Any],
    schedule: jf.Schedule,
) -> str:
    """A nesting of transformations gives around `apply` what it gives around `eval`.

    Returns:
      What came of it: 'nested', or 'refused' by the twin or as is told; or 'large', and
      nothing was run.

    Raises:
      Mismatch: it gives something else. Other errors are jfold's own.
    """

    def of_batch(params: Any, schedule: Any) -> Any:
        return batched_loss(params, model, schedule)[0]

    def of_examples(params: Any, _: Any) -> Any:
        pairs = enumerate(examples)
        each = [eager_loss(params, model, example, i)[0] for i, example in pairs]
        return sum(each, jnp.zeros(()))

    count = sum(np.size(x) for x in jax.tree.leaves(params) if is_float(x))
    if count ** sum(name.startswith('jac') for name in names) > MOST:
        return 'large'
    try:
        want = _run(names, of_examples, params, schedule)
    except Exception:  # a function that has no such derivative
        return 'refused'
    if not np.isfinite(want).all():
        return 'undefined'
    try:
        got = _run(names, of_batch, params, schedule)
    except TypeError as error:
        if REFUSED in str(error) and is_refused(names):
            return 'refused'
        # By JAX, of a function of the model that none of these examples calls.
        if NO_FORWARD in str(error) and {*names} & (DERIVATIVES - REVERSES):
            return 'refused'
        raise
    if not np.allclose(got, want, rtol=CLOSE, atol=CLOSE):
        raise Mismatch('nested', f'{names}:\n{got}\nis not\n{want}')
    return 'nested'


def _run(
    names: Sequence[str], loss: Callable[..., Any], params: Any, schedule: Any
) -> Any:
    """Two numbers [2]."""
    leaves, tree = jax.tree.flatten(params)

    def two(floats: Any, x: Any, schedule: Any) -> Any:
        every = jax.tree.unflatten(tree, with_floats(leaves, floats))
        total = loss(every, schedule).astype(x.dtype)
        return jnp.stack([total, total * x]) * jnp.sin(x)

    given = floats_of(leaves), jnp.asarray(0.8), schedule
    jaxpr = jax.make_jaxpr(nested(names, two))(*given)
    return interpreter.run(jaxpr, jax.tree.leaves(given))[0]
