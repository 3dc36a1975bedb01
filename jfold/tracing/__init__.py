# SPDX-License-Identifier: Apache-2.0
"""The recorder: examples → lists of row numbers → a `Graph`."""
