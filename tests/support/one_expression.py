# SPDX-License-Identifier: Apache-2.0
"""One expression, all the way: what each part of jfold makes of it.

python tests/support/one_expression.py   # puts it into CONTRIBUTING.md
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jfold as jf
from jfold.language.inference import infer
from jfold.program.operations import Operations
from jfold.tracing.record import trace

PAGE = Path(__file__).resolve().parents[2] / 'CONTRIBUTING.md'
BEGIN = '<!-- what tests/support/one_expression.py writes -->\n'
EXAMPLES: list[Any] = [(2.0, (3.0, 4.0)), 5.0]


def product() -> jf.Block:
    """The product of the numbers of a tree, made small."""
    tree = jf.ForwardDeclaration(name='tree')
    node = jf.Record((tree(), tree())) >> jf.Function(jnp.multiply)
    tree.resolve_to(jf.OneOf(type, {float: jf.Scalar(), tuple: node}))
    return tree() >> jf.Function(jnp.tanh)


def graph_tables(program: Any, graph: Any) -> str:
    """The nodes of each operation, as rows of input values."""
    lines = [str(graph)]
    for operation, table in zip(program.operations, graph.operations, strict=True):
        rows = np.stack(table.columns[1:], 1).tolist()
        lines.append(f'{operation.layer}: {rows}')
    return '\n'.join(lines)


def stages() -> list[str]:
    """What is printed of each stage, in the order of the page."""
    block = product()
    model = jf.compile(block, strategy='fixed')
    schedule = model.schedule(EXAMPLES)
    return [
        repr(block),
        str(infer(block)),
        Operations.__str__(model.program),
        str(model.program.source).strip(),
        graph_tables(model.program, trace(model.program, EXAMPLES)),
        re.sub(', built in .*', '', model.explain(schedule)),
        str(model.apply({}, schedule)),
    ]


def page() -> str:
    """Return the page, with what is printed now in its blocks."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    parts = rest.split('```')
    parts[1::2] = [f'\n{shown}\n' for shown in stages()]
    return before + begin + '```'.join(parts)


if __name__ == '__main__':
    PAGE.write_text(page())
