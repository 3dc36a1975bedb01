# SPDX-License-Identifier: Apache-2.0
"""What runs in a compiled program: tiles, loops, and their reverse."""
