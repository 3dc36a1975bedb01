# SPDX-License-Identifier: Apache-2.0
"""What is inferred of programs and graphs, and checked of them."""
