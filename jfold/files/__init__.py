# SPDX-License-Identifier: Apache-2.0
"""The format of files, with checksums, and the encoding of programs as data."""
