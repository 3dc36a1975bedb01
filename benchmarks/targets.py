# SPDX-License-Identifier: Apache-2.0
"""Devices, most of which are not here: what XLA compiles for them, on any machine.

The packages that it takes are those of `make accelerators`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.experimental import topologies


@dataclass(frozen=True)
class Target:
    """A device, with what an estimate of times takes of it.

    Attributes:
      name: of the device.
      platform: as JAX names it.
      packages: without which XLA does not compile for it.
      start: seconds that any kernel takes.
      bandwidth: of its memory, bytes a second.
      rate: of its matrix units at the precision that JAX takes by default, operations
        a second.
      is_here: whether programs can run on it, and be tried by XLA.
    """

    name: str
    platform: str
    packages: tuple[str, ...]
    start: float
    bandwidth: float
    rate: float
    is_here: bool = False

    @property
    def is_there(self) -> bool:
        """Whether XLA can compile for it here."""
        return all(importlib.util.find_spec(name) for name in self.packages)

    @functools.cached_property
    def device(self) -> Any:
        """The device, to compile for."""
        if self.platform == 'cpu':
            return jax.devices('cpu')[0]
        if self.platform == 'tpu':
            os.environ |= _WITHOUT_TPU
            found = topologies.get_topology_desc('v5e:2x2', platform='tpu')
        else:
            options = {'target_config': _H200, 'topology': '1x1x1'}
            found = topologies.get_topology_desc(self.name, platform='cuda', **options)
        return found.devices[0]

    def compile(self, fn: Callable[..., Any], *args: Any) -> Any:
        """The function compiled for arguments that look like these."""
        if self.is_here:
            return jax.jit(fn).lower(*args).compile()
        sharding = jax.sharding.SingleDeviceSharding(self.device)

        def spec(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

        traced = jax.jit(fn).trace(*jax.tree.map(spec, args))
        lowered = traced.lower(lowering_platforms=(self.platform,))
        # Trying what is fastest would take the device itself.
        is_cuda = self.platform == 'cuda'
        return lowered.compile({'xla_gpu_autotune_level': 0} if is_cuda else None)


# Else the library looks for machines that tell what TPU this is, and for no other
# process that has loaded it.
_WITHOUT_TPU = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}

# What XLA knows of a GPU: a `GpuTargetConfigProto`.
_H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4890000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H200"
"""

# Starts are guesses of what a kernel takes that does nothing; bandwidths and rates, of
# TF32 without sparsity and of bfloat16, are those of the makers' data sheets.
H200 = Target('H200', 'cuda', ('jax_cuda12_plugin',), 2.5e-6, 4.8e12, 494e12)
V5E = Target('TPU v5e', 'tpu', ('libtpu',), 0.5e-6, 819e9, 197e12)
CPU = Target('CPU', 'cpu', (), 1e-6, 20e9, 100e9)
ACCELERATORS = (H200, V5E)


def here() -> Target:
    """The device that is here, with the numbers of the nearest one that is known."""
    device = jax.devices()[0]
    known = {'cpu': CPU, 'gpu': H200, 'tpu': V5E}[device.platform]
    return replace(known, name=device.device_kind, is_here=True)
