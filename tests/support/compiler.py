# SPDX-License-Identifier: Apache-2.0
"""The options by which XLA compiles in haste for tests, and those that users have."""

from __future__ import annotations

from importlib.metadata import version

# XLA's older way to machine code takes half the time. Later XLA aborts on this flag.
HAS_OLDER_WAY = version('jaxlib').startswith('0.10.')
FLAGS = (
    '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true '
    '--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters '
    '--xla_cpu_parallel_codegen_split_count=1 '
    f'{"--xla_cpu_use_fusion_emitters=false" if HAS_OLDER_WAY else ""}'
)
# What is made in haste has no fusions of one instruction.
AS_USERS_HAVE_IT = {
    'xla_backend_extra_options': '',
    **({'xla_cpu_use_fusion_emitters': True} if HAS_OLDER_WAY else {}),
}
