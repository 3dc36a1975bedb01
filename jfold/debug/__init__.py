# SPDX-License-Identifier: Apache-2.0
"""Walks over a graph: values of all nodes, and where one is not finite."""
