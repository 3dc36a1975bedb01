# SPDX-License-Identifier: Apache-2.0
"""Displays in notebooks, and pictures: pure functions from objects to markup."""
