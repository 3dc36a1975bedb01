# SPDX-License-Identifier: Apache-2.0
"""The compiled half of jfold: kernels, loops over tiles, and their reverse."""
