# SPDX-License-Identifier: Apache-2.0
"""Flax modules around models, Flax modules as blocks, and ready layers."""
