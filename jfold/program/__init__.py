# SPDX-License-Identifier: Apache-2.0
"""The lowered form of an expression: its operations, components and results."""
