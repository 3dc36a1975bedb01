# SPDX-License-Identifier: Apache-2.0
"""The command line of all benchmarks; the standard library alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any


def make_parser(description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add('--quick', action='store_true', help='small sizes, few repeats')
    add('--repeats', type=int, help='timed calls of each contender (default 20)')
    add('--limit', type=float, default=60, help='seconds for one contender of a table')
    add('--json', type=Path, help='file for the rows, as JSON lines')
    add('--markdown', type=Path, help='file for the tables')
    return parser


def fill(
    options: argparse.Namespace, full: dict[str, Any], quick: dict[str, Any]
) -> argparse.Namespace:
    """Options that were not given, from the defaults."""
    defaults = {'repeats': 20} | full
    if options.quick:
        defaults |= {'repeats': 5} | quick
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.repeats < 2:
        raise SystemExit(f'expected two repeats at least, got {options.repeats}')
    return options


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


def say(line: str) -> None:
    """Tells of progress; standard output is for the report."""
    print(line, file=sys.stderr, flush=True)
