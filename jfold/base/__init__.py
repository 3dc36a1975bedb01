# SPDX-License-Identifier: Apache-2.0
"""The package that all others import: errors, printing, memos, jaxprs."""
