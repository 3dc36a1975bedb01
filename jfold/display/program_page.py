# SPDX-License-Identifier: Apache-2.0
"""The displays of blocks, programs and models.

Blocks are shown as an indented tree with names, and with types if known; programs and
models by their operations, source, layers and capacities.
"""

from __future__ import annotations

import builtins
import io
import itertools
import keyword
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from jfold import blocks as b
from jfold.base.printing import callable_name, short_text
from jfold.display import markup as m
from jfold.display.texts import array_type, cut, listed, several
from jfold.language.analysis import users
from jfold.language.expression import Expression
from jfold.language.partial import Types, all_types, partial_types
from jfold.lower import FAMILIES
from jfold.models.explain import in_bytes
from jfold.models.loaded import LoadedModel
from jfold.models.model import Model
from jfold.program.components import are_recurrent, direct_reads, loops_of, results_in
from jfold.program.operations import Operation, Operations, Program
from jfold.scheduling.spec import Capacity

STEPS = 100  # of inference; blocks without a type after these are shown without
BLOCKS, USES = 1000, 120  # the most blocks to infer types of; the most lines of blocks
SHOWN, LINES, SHAPES = 40, 240, 12  # operations or layers; lines of source; capacities
Line: TypeAlias = tuple[int, str, b.Block]  # depth, key in the block around, block
_NAMES = {*dir(builtins)}
_STYLES = {tokenize.COMMENT: 'comment', tokenize.STRING: 'string'}
_STYLES[tokenize.NUMBER] = 'number'


# ---- blocks --------------------------------------------------------------------------


def block_page(block: b.Block) -> str:
    """Return the HTML of a block."""
    return m.page('Block', [m.span('code', short_text(block))], block_trees(block))


def block_trees(block: b.Block, known: Types | None = None) -> m.Markup:
    """Return collapsible trees of a block and of the declarations inside it.

    With `known` types, as of a model, folds are closed, and nothing is inferred.
    """
    assert FAMILIES  # which registers the rules of all blocks
    inside, types, problem = users(block), known or {}, ''
    if known is None and len(inside) <= BLOCKS:
        types, problem = partial_types(block, STEPS)
    declarations = (x.declaration for x in inside if isinstance(x, b.Reference))
    named = [(x.name, x.target) for x in dict.fromkeys(declarations) if x.target]
    parts, left = [m.line('bad', cut(problem, 600))], USES
    for number, (name, root) in enumerate([('expression', block), *named]):
        if left <= 0:
            parts.append(m.more(1 + len(named) - number, 'declarations'))
            break
        lines = _lines(root)
        rows = [_row(line, types) for line in itertools.islice(lines, left)]
        rest = sum(1 for _ in itertools.islice(lines, 10_000))
        table = m.table([], rows, 'll', rest, 'blocks')
        parts.append(m.folded(cut(name), table, opened=known is None))
        left -= len(rows)
    return m.joined(parts)


def _row(line: Line, types: Types) -> tuple[m.Markup, m.Markup]:
    depth, key, block = line
    name = type(block).__name__ if _inside(block) else short_text(block)
    if isinstance(block, b.OneOf) and callable(block.key_fn):
        name = f'OneOf by {callable_name(block.key_fn)}'
    width = f'width: calc({min(depth, 40)} * 1.2em)'
    guides = m.element('span', class_='jf-indent', style=width)
    shown = m.joined([guides, m.span('muted', cut(key, 30), ' ' if key else ''), name])
    if block not in types:
        return shown, m.Markup('')
    input_, output = (cut(short_text(x)) for x in types[block])
    return shown, m.span('muted', input_, ' → ', m.span('type', output))


def _lines(root: b.Block) -> Iterator[Line]:
    """Yield (depth, key, block) for each use of a block in the tree of `root`.

    The lines of inner blocks follow only the first use of the block that holds them.
    """
    waiting, seen = [(0, '', root)], set[b.Block]()
    while waiting:
        depth, key, block = waiting.pop()
        yield depth, key, block
        if block not in seen:
            seen.add(block)
            waiting += [(depth + 1, *part) for part in reversed(_inside(block))]


def _inside(block: b.Block) -> list[tuple[str, b.Block]]:
    """Return (key, block) for each block directly inside; '' where there is no key."""
    parts, text = list[tuple[str, b.Block]](), ''
    for piece in block._pieces():
        if isinstance(piece, b.Block):
            parts.append((text.strip(', ') if text.endswith(': ') else '', piece))
        text = piece if isinstance(piece, str) else ''
    return parts


# ---- programs ------------------------------------------------------------------------


def program_page(program: Operations) -> str:
    """Return the HTML of a `Program`, or of `Operations`, which have no source."""
    return m.page(type(program).__name__, _facts(program), _folds(program, True))


def _facts(program: Operations, *others: str) -> list[str]:
    """Return texts for a title: result type, `others`, and whether there are loops."""
    output = m.span('type', cut(short_text(program.output)))
    return [output, *others, loops_of(program)]


def _folds(program: Operations, opened: bool = False) -> m.Markup:
    """Return collapsible sections: operations, open if `opened`, and the source."""
    recurrent, reads, rows = are_recurrent(program), direct_reads(program), []
    for o, operation in enumerate(program.operations[:SHOWN]):
        cells = [m.span('muted', o), m.span('title', cut(operation.layer.name))]
        cells.append(m.span('muted', _inputs(operation)))
        cells.append(m.span('type', cut(short_text(operation.result))))
        read = ', '.join(map(str, results_in(reads[o]))) or 'data'
        rows.append((*cells, cut(read, 24), 'by level' if recurrent[o] else 'once'))
    head = '', 'operation', 'inputs', 'result', 'reads', 'runs'
    count = len(program.operations)
    body = m.table(head, rows, 'rlllll', count - SHOWN, 'operations')
    folds = [m.folded(several(count, 'operation'), body, opened=opened)]
    if hasattr(program, 'source'):
        lines = str(program.source).splitlines(keepends=True)
        source = [cut(text.rstrip('\n'), 240) + '\n' for text in lines[:LINES]]
        code = m.element('pre', *_tokens(source)), m.more(len(lines) - LINES, 'lines')
        folds.append(m.folded(f'source, {several(len(lines), "line")}', *code))
    return m.joined(folds)


def _inputs(operation: Operation) -> str:
    texts = (cut(short_text(x), 40) for x in operation.arguments[:5])
    if operation.from_left:
        return f'{len(operation.arguments)} of {next(texts)}'
    return listed(texts, len(operation.arguments))


def _tokens(lines: list[str]) -> Iterator[str]:
    """Yield `lines` of Python in pieces: plain texts, and tokens styled by kind."""
    source, end = ''.join(lines), 0
    begins = [*itertools.accumulate(map(len, lines), initial=0)]
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = _STYLES.get(token.type, '')
            if token.type == tokenize.NAME:
                kind = 'type' if token.string in _NAMES else ''
                kind = 'keyword' if keyword.iskeyword(token.string) else kind
            if kind:
                begin = begins[token.start[0] - 1] + token.start[1]
                yield from (source[end:begin], m.span(kind, token.string))
                end = begin + len(token.string)
    except (tokenize.TokenError, SyntaxError):  # cut in the middle, or no Python
        pass
    yield source[end:]


# ---- models --------------------------------------------------------------------------


def model_page(model: Model) -> str:
    """Return the HTML of a model; nothing runs, and nothing is compiled."""
    limit = '' if model.max_programs is None else f' of at most {model.max_programs}'
    facts = [several(model.programs, 'program') + limit]
    facts += [f'residuals: {model.residuals}', model.strategy or '']
    facts += ['reproducible'] if model.reproducible else []
    program = model.program
    params = {x.name: x.params for x in program.layers}
    specs = [x for x in model.budget.specs if x.program is program]  # since it grew
    shapes = _capacities([spec.capacity for spec in specs])
    assert isinstance(program.expression, Expression)
    trees = block_trees(model.block, all_types(program.expression.typing))
    parts = _layers(program, params), shapes, trees, _folds(program)
    return m.page('Model', _facts(program, *facts), *parts)


def loaded_page(model: LoadedModel) -> str:
    """Return the HTML of a model that was read from a file."""
    programs = several(len(model.capacities), 'program')
    facts = _facts(model.program, programs, f'for {", ".join(model.platforms)}')
    shapes = _capacities(model.capacities)
    parts = _layers(model.program, model.params), shapes, _folds(model.program)
    return m.page('LoadedModel', facts, *parts)


def _layers(program: Program, params: Mapping[str, Any]) -> m.Markup:
    """Return the table of layers; `params` has arrays or their specs, by layer."""
    rows: list[tuple[object, ...]] = []
    count = size = 0
    for layer in program.layers:
        leaves, _ = jax.tree_util.tree_flatten_with_path(params.get(layer.name))
        numbers = sum(int(x.size) for _, x in leaves)
        count += numbers
        size += sum(int(x.size) * x.dtype.itemsize for _, x in leaves)
        shown = []  # names, dtypes and shapes
        for path, x in leaves[:4]:
            name = cut(jax.tree_util.keystr(path, simple=True, separator='.'), 40)
            shown += [m.span('muted', name, ' ' if name else '')]
            shown += [m.span('type', array_type(x)), m.escaped('  ')]
        if layer.parts:  # it is fused, and has none of its own
            names = listed(layer.parts[:4], len(layer.parts))
            shown = [m.escaped(f'those of {names}')]
        arrays = m.joined([*shown, '…' * (len(leaves) > 4)])
        if len(rows) < SHOWN:
            name = m.span('title', cut(layer.name))
            rows.append((name, f'{numbers:,}' if numbers else '', arrays))
    total = m.span('muted', 'together'), m.span('title', f'{count:,}'), in_bytes(size)
    head = 'layer', 'parameters', 'arrays'
    return m.table(head, [*rows, total], 'lrl', len(program.layers) - SHOWN, 'layers')


def _capacities(capacities: Sequence[Capacity]) -> m.Markup:
    """Return a table of capacities, with one row for each program of a model."""
    if not capacities:
        return m.line('muted', 'no capacity so far: the first schedule makes one')
    rows = []
    for k, x in enumerate(capacities[:SHAPES], 1):
        numbers = map('{:,}'.format, (x.results, sum(x.rows), x.levels))
        rooms = listed(map('{:,}'.format, x.rows[:12]), len(x.rows))
        rows.append((m.span('muted', k), *numbers, rooms))
    head = 'program', 'examples', 'nodes', 'levels', 'rows of operations'
    return m.table(head, rows, 'rrrrl', len(capacities) - SHAPES, 'capacities')
