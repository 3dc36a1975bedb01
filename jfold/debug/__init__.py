# SPDX-License-Identifier: Apache-2.0
"""Walks over graphs: the values of all nodes, and where one is not finite."""
