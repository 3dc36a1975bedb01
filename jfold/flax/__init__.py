# SPDX-License-Identifier: Apache-2.0
"""All that imports Flax: modules for and from it, and ready layers."""
