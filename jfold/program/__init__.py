# SPDX-License-Identifier: Apache-2.0
"""The program of an expression: operations, components, results."""
