# SPDX-License-Identifier: Apache-2.0
"""The helpers that all packages use: errors, printing, memos, jaxprs."""
