# SPDX-License-Identifier: Apache-2.0
"""Traced examples: corpora, batches, and what schedules them."""
