# SPDX-License-Identifier: Apache-2.0
"""The blocks of TensorFlow Fold, by family."""
