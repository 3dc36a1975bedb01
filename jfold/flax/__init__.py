# SPDX-License-Identifier: Apache-2.0
"""The Flax parts: models as modules, modules as blocks, and ready layers."""
