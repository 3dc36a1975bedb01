# SPDX-License-Identifier: Apache-2.0
"""Corpora of traced examples, their batches, and the scheduler that fills arrays."""
