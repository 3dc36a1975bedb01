# SPDX-License-Identifier: Apache-2.0
"""Errors, prints, memos and jaxprs: what all parts need and none owns."""
