# SPDX-License-Identifier: Apache-2.0
"""The results of lazy functions, alone and in a batch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from agreement import of_rows

import jfold as jf


def results(fn: Any, examples: list[Any], like: list[Any] | None = None) -> list[Any]:
    """The results of examples, one after another; those of a batch are the same."""
    model = jf.compile(fn, like=examples if like is None else like)
    alone = [model.eval(example) for example in examples]
    batch = model.predict({}, examples, progress=False)
    rows = [value for value, _ in of_rows(batch, {}, range(len(examples)))]
    jax.tree.map(np.testing.assert_allclose, rows, alone)
    return [jax.tree.map(lambda x: np.asarray(x).tolist(), x) for x in alone]
