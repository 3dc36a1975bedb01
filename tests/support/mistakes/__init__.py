# SPDX-License-Identifier: Apache-2.0
"""Mistakes that users make, by what they have to do with."""
