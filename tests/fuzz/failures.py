# SPDX-License-Identifier: Apache-2.0
"""Failures: told apart by their signature, kept as files that are tests."""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzz.cases import again, make_case
from fuzz.checks import check_case
from fuzz.near import Mismatch

TEMPLATE = '''# SPDX-License-Identifier: Apache-2.0
"""{title}"""

from fuzz.failures import replay

CASE = r"""
{case}
"""
MESSAGE = r"""
{message}
"""
CHOICES = {choices}


def test_{name}() -> None:
    """The case passes."""
    replay(CHOICES)
'''


def replay(choices: Sequence[int]) -> None:
    """Makes a case again and checks it.

    Raises:
      AssertionError: it fails still. Other errors are jfold's own.
    """
    check_case(make_case(again(choices)), Counter())


def signature(error: BaseException) -> str:
    """What failures that are likely one fault have in common."""
    if isinstance(error, Mismatch):
        return error.kind
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if '/jfold/' in f.filename] or frames
    where = f'{Path(inside[-1].filename).stem}.{inside[-1].name}' if inside else ''
    return f'{type(error).__name__} in {where}'


def store(folder: Path, choices: Sequence[int], kind: str, message: str) -> Path:
    """Writes a failure to a file of its own, which pytest runs and a person reads."""
    name = hashlib.sha256(repr(list(choices)).encode()).hexdigest()[:10]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f'test_{name}.py'
    text = TEMPLATE.format(
        title=f'Found by the campaign: {kind}.',
        case=_quoted(_described(choices)),
        message=_quoted(message),
        choices=list(choices),
        name=name,
    )
    path.write_text(text)
    return path


def _described(choices: Sequence[int]) -> str:
    try:
        return str(make_case(again(choices)))
    except Exception as error:
        return f'which cannot be drawn: {error!r}'


def _quoted(text: str) -> str:
    text = text.replace('"""', "'''").strip()
    return '\n'.join(line.rstrip() for line in text.splitlines())
