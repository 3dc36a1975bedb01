# SPDX-License-Identifier: Apache-2.0
"""What an expression means: types, functions made uniform, and the eager twin."""
