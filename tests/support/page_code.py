# SPDX-License-Identifier: Apache-2.0
"""The Python code of pages, and running it as a reader does."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from typing import Any

from program_runs import ROOT


def text_of(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding='utf8')


def code_of(page: str) -> list[str]:
    """The parts of a page that are Python, those in lists without their margin."""
    return code_in(text_of(page))


def code_in(text: str) -> list[str]:
    """The same of the text of a page, or of a section."""
    parts = re.findall(r'^( *)```python\n(.*?)^\1```', text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(part) for _, part in parts]


def sections_of(page: str) -> dict[str, str]:
    """The text of each section by its title; that of the beginning by ''."""
    beginning, *sections = re.split(r'^## ', text_of(page), flags=re.MULTILINE)
    titled = [section.partition('\n') for section in sections]
    return {'': beginning} | {title: text for title, _, text in titled}


def run_as_printed(
    part: str, names: dict[str, Any], printed: Callable[[], str]
) -> None:
    """Runs a part of a page, which prints what its comments say."""
    here = part.replace('num_workers=4', 'num_workers=0')  # grain's: this process
    exec(compile(here, 'page', 'exec', dont_inherit=True), names)
    remarks = re.findall(r'^print.*  # (.*)', part, re.MULTILINE)
    for line, remark in zip(printed().splitlines(), remarks, strict=True):
        assert remark.partition(':')[0] == line
