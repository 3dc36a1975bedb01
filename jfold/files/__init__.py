# SPDX-License-Identifier: Apache-2.0
"""Files: formats with checksums, and programs as data."""
