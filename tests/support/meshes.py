# SPDX-License-Identifier: Apache-2.0
"""Examples that are dealt to several devices."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, NamedSharding


def over_devices(count: int = 2, kind: AxisType = AxisType.Auto) -> NamedSharding:
    """Along one axis of a mesh of the first devices of the tests."""
    mesh = jax.make_mesh((count,), ('data',), (kind,), devices=jax.devices()[:count])
    return NamedSharding(mesh, jax.P('data'))
