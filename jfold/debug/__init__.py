# SPDX-License-Identifier: Apache-2.0
"""The evaluation of one example for `eval`, and the search for NaN of `find_nan`."""
