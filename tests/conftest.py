# SPDX-License-Identifier: Apache-2.0
"""Hypothesis draws the same examples at every run, and takes its time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    'jfold',
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile('jfold')
