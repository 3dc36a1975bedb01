# SPDX-License-Identifier: Apache-2.0
"""The host plan at work: examples to a graph, a whole batch at a time."""
