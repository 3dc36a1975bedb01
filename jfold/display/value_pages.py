# SPDX-License-Identifier: Apache-2.0
"""The displays of corpora, ragged results and metrics."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jfold.base.structs import is_leaf
from jfold.data.corpus import Corpus
from jfold.data.corpus_arrays import graphs_in
from jfold.display import markup as m
from jfold.display.svg import bars
from jfold.display.texts import array_type, cut, listed, numbers_text, on_host, several
from jfold.graph import Array
from jfold.models.explain import in_bytes
from jfold.ragged import MetricValues, Ragged
from jfold.scheduling.demands import node_counts
from jfold.scheduling.selections import Demands

# The most rows of a table, items in a cell, columns, examples sampled, and bars.
ROWS, ITEMS, COLUMNS, SAMPLE, BARS = 12, 6, 6, 20_000, 24


def corpus_page(corpus: Corpus) -> str:
    """Return the HTML of a corpus, with pictures of a sample of its examples."""
    graphs = graphs_in(corpus.graph)
    columns = (x for g in graphs for t in g.tables for x in (t.first, *t.columns))
    facts = [several(len(corpus), 'example'), several(corpus.graph.nodes, 'node')]
    facts += [in_bytes(sum(x.nbytes for x in columns))]
    facts += [several(len(graphs), 'part')] if len(graphs) > 1 else []
    step = max(-(-len(corpus) // SAMPLE), 1)
    facts += [f'pictures of one in {step:,} examples'] if step > 1 else []
    demands = Demands(corpus.demands.added[::step], corpus.demands.highest[::step])
    nodes, depths = node_counts(corpus.program, demands), demands.highest[:, 0]
    parts = [_histogram(nodes, 'nodes'), _histogram(depths, 'levels')]
    if corpus.skipped:
        rows = [(f'{at:,}', cut(text, 200)) for at, text in corpus.skipped[:ROWS]]
        rest = len(corpus.skipped) - ROWS
        title = f'{len(corpus.skipped):,} skipped'
        parts.append(m.folded(title, m.table([], rows, 'rl', rest, 'examples')))
    return m.page('Corpus', facts, *parts)


def _histogram(numbers: Array, name: str) -> m.Markup:
    """Return histogram `name` of ints `numbers` [n] in integer bins; '' if n is 0."""
    if not len(numbers):
        return m.Markup('')
    least, most = int(numbers.min()), int(numbers.max())
    wide = -(-(most - least + 1) // BARS)
    counts = np.bincount((numbers - least) // wide)
    title = f'{name} of an example, median {np.median(numbers):,.0f}'
    return bars(counts.tolist(), (f'{least:,}', f'{most:,}'), title)


# ---- ragged and metrics --------------------------------------------------------------


def ragged_page(ragged: Ragged) -> str:
    """Return the HTML of sequences: the first items of the first examples."""
    lengths = on_host(ragged.lengths)
    if lengths is None:
        return m.page('Ragged', [repr(ragged)])
    numbers, begins = np.arange(len(lengths)), lengths.cumsum() - lengths
    rows = np.stack([numbers, lengths, begins, lengths], 1)[:ROWS].tolist()
    facts = several(len(lengths), 'example'), several(int(lengths.sum()), 'item')
    body = _table('example', 'items', ragged.values, rows, len(lengths))
    return m.page('Ragged', facts, body)


def metrics_page(metrics: MetricValues) -> str:
    """Return the HTML of collected values, with the example of each."""
    mask, example = on_host(metrics.mask), on_host(metrics.example)
    if mask is None or example is None:
        return m.page('MetricValues', ['traced, or on other devices'])
    places = np.flatnonzero(mask)
    rows = [(k, int(example[k]), k, 1) for k in places[:ROWS].tolist()]
    facts = several(len(places), 'row'), f'{len(mask) - len(places):,} spare'
    body = _table('row', 'example', metrics.values, rows, len(places))
    return m.page('MetricValues', facts, body)


def _table(
    first: str, second: str, values: Any, rows: Sequence[Sequence[int]], count: int
) -> m.Markup:
    """Return a table of `count` rows, with a column for each part of `values`.

    Args:
      first, second: the headings of two columns of numbers.
      rows: for each row shown, the two numbers, its first item, and its item count.
    """
    leaves: list[tuple[Any, Any]] = [((), values)]
    if not isinstance(values, Ragged):
        is_part = functools.partial(operator.is_not, values)
        leaves, _ = jax.tree_util.tree_flatten_with_path(values, is_leaf=is_part)
    head, cells = [first, second], [[m.span('muted', k), f'{n:,}'] for k, n, *_ in rows]
    for path, part in leaves[:COLUMNS]:
        name = cut(jax.tree_util.keystr(path, simple=True)) or 'values'
        kind = f' {array_type(part, 1)}' if hasattr(part, 'dtype') else ''
        head.append(name + kind)
        for row, (*_, begin, length) in zip(cells, rows, strict=True):
            row.append(_items(part, begin, length))
    form = 'rr' + 'l' * (len(head) - 2)
    return m.table(head, cells, form, count - len(rows), f'{first}s')


def _items(x: Any, begin: int, count: int) -> str:
    """Return text for `count` rows of `x` from `begin` on: the first few, then dots."""
    places = slice(begin, begin + min(count, ITEMS))
    if isinstance(x, Ragged):
        lengths = on_host(x.lengths)
        inner = [] if lengths is None else [f'{n:,} items' for n in lengths[places]]
    else:
        array = on_host(x) if is_leaf(x) else None
        rows: Any = () if array is None else array[places]
        form = '[{}]' if np.ndim(rows) > 1 else '{}'
        inner = [form.format(numbers_text(row)) for row in rows]
    return listed(inner, count)
