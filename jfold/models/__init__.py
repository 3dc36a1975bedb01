# SPDX-License-Identifier: Apache-2.0
"""Models: compiled, saved, loaded and explained."""
