# SPDX-License-Identifier: Apache-2.0
"""One expression, all the way: what each part of jfold makes of it.

python tests/support/one_expression.py           # prints the page
python tests/support/one_expression.py --write   # puts it into CONTRIBUTING.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jfold as jf
from jfold.language.inference import infer
from jfold.program.operations import Operations
from jfold.tracing.record import trace

PAGE = Path(__file__).resolve().parents[2] / 'CONTRIBUTING.md'
BEGIN = '<!-- what tests/support/one_expression.py prints -->\n'
END = '<!-- so far -->\n'
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


def stages() -> dict[str, str]:
    """What is printed of each stage, by what is said of it."""
    block = product()
    model = jf.compile(block, strategy='fixed')
    schedule = model.schedule(EXAMPLES)
    return {
        'The expression, a value that prints as what it is:': repr(block),
        'Its types, one use of a block a line:': str(infer(block)),
        'Its operations, each with a buffer of values on the device:': (
            Operations.__str__(model.program)
        ),
        'Its source, which the host runs: it visits the data once and notes, list by '
        'list, what each operation is applied to ([more](docs/source.md)):': str(
            model.program.source
        ).strip(),
        f'The graph of `{EXAMPLES}`, of what it has noted:': graph_tables(
            model.program, trace(model.program, EXAMPLES)
        ),
        'The schedule, as `model.explain` tells it:': re.sub(
            ', built in .*', '', model.explain(schedule)
        ),
        'The values. XLA compiles a loop over levels; tile by tile, rows of the buffer '
        'are gathered where the indices say, the operation runs on them all, and its '
        'rows are written to where they belong. '
        '`jax.make_jaxpr(model.apply)({}, schedule)` prints it:': str(
            model.apply({}, schedule)
        ),
    }


def page() -> str:
    """All stages in Markdown."""
    return '\n'.join(
        f'{text}\n\n```\n{shown}\n```\n' for text, shown in stages().items()
    )


def written() -> str:
    """What the page says now."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Prints or writes the page."""
    if '--write' not in sys.argv:
        print(page())
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + page() + END + rest.partition(END)[2])


if __name__ == '__main__':
    main()
