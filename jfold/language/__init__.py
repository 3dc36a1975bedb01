# SPDX-License-Identifier: Apache-2.0
"""The meaning of expressions: types, generated source, values of examples."""
