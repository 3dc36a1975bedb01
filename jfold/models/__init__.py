# SPDX-License-Identifier: Apache-2.0
"""Models: compiled, loaded, saved, and explained."""
