# SPDX-License-Identifier: Apache-2.0
"""Graphs run node by node, as they are: to be looked at, not to be fast."""
