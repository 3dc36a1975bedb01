# SPDX-License-Identifier: Apache-2.0
"""From a graph to shapes: what examples demand, and where everything lies."""
