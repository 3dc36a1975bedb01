# SPDX-License-Identifier: Apache-2.0
"""The recorder of examples: generated source fills lists, which become a `Graph`."""
