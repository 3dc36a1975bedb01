# SPDX-License-Identifier: Apache-2.0
"""Models without loops, and how each of their slots reads."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import jfold as jf
from jfold.scheduling.read_modes import ReadMode, read_modes
from jfold.scheduling.spec import Spec

KEY = jax.random.key(0)


def told(model: jf.Model, spec: Spec) -> list[str]:
    """Each slot with how it is read."""
    names = [each.layer.name for each in model.program.operations]
    names += ['result' for _ in model.program.results]
    ways = [x for x in read_modes(spec).items() if x[1] is not ReadMode.UNREAD]
    return [f'{names[table]} {a}: {way.name.lower()}' for (table, a), way in ways]


def compiled(block: Any) -> tuple[jf.Model, Any]:
    model = jf.compile(block)
    return model, model.init(KEY)


layer = jf.Function(nn.Dense(3), name='layer')
items = jf.Map(jf.Vector(2) >> layer)
total = items >> jf.Sum()
other = jf.Function(nn.Dense(3), name='other')
times = jf.ZipWith(jnp.multiply)
times_two = jf.Function(lambda x: 2 * x)
# Each item times the sum of all, which is read as often.
shared = jf.compose(lambda x: times(items(x), jf.Broadcast()(total(x))))


def lists(*lengths: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [list(rng.normal(size=(n, 2)).astype('float32')) for n in lengths]
