# SPDX-License-Identifier: Apache-2.0
"""Values of command line options; the standard library alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def numbers(line: str) -> list[int]:
    """Reads a list of numbers, as in `1,2,4`."""
    return [int(part) for part in line.split(',')]


def among(known: Collection[str]) -> Callable[[str], list[str]]:
    """Reads a list of known names."""

    def read(line: str) -> list[str]:
        names = line.split(',')
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f'expected some of {", ".join(known)}, got {", ".join(unknown)}'
            )
        return names

    return read
