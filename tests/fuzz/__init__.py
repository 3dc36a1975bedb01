# SPDX-License-Identifier: Apache-2.0
"""A campaign that looks for faults by drawing cases; see `tests/README.md`."""
