# SPDX-License-Identifier: Apache-2.0
"""Helpers that all parts need: errors, printing, memos, jaxprs."""
