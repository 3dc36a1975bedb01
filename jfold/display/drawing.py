# SPDX-License-Identifier: Apache-2.0
"""The function `jf.draw`, and functions that return the HTML of displayed objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jfold.base.arguments import check_int
from jfold.base.errors import InputError, short_repr
from jfold.base.printing import short_text
from jfold.base.tracebacks import api_boundary
from jfold.combinators import Block
from jfold.data.corpus import Corpus
from jfold.data.scheduler import build
from jfold.display import program_page, value_pages
from jfold.display.error_page import error_page
from jfold.display.markup import STYLE, Markup, element
from jfold.display.schedule_page import example_picture, levels_picture, schedule_page
from jfold.display.svg import Box, ranked
from jfold.display.texts import cut
from jfold.models.loaded import LoadedModel
from jfold.models.model import Model
from jfold.program import components as c
from jfold.program.operations import Operations
from jfold.ragged import MetricValues, Ragged
from jfold.scheduling.demands import capacity, demands
from jfold.scheduling.schedule import Schedule, check_known
from jfold.scheduling.spec import Spec

SHOWN = 40  # operations
_PAGES: dict[type, Callable[[Any], str]] = {
    Block: program_page.block_page,
    Operations: program_page.program_page,
    Model: program_page.model_page,
    LoadedModel: program_page.loaded_page,
    Schedule: schedule_page,
    Corpus: value_pages.corpus_page,
    Ragged: value_pages.ragged_page,
    MetricValues: value_pages.metrics_page,
    InputError: error_page,
}


def page_of(thing: object) -> str:
    """Return the HTML of `thing`; raise any error on the way."""
    (make,) = (make for cls, make in _PAGES.items() if isinstance(thing, cls))
    return make(thing)


def html_of(thing: object) -> str | None:
    """Return the HTML of `thing`; `None` on an error, so that text is shown."""
    try:
        return page_of(thing)
    except Exception:
        return None


# ---- pictures ------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Drawing:
    """A picture, which notebooks show.

    Attributes:
      svg: the text of the picture; it needs no other file.
    """

    svg: str

    @api_boundary
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to `path`; raise ValueError unless it ends in `.svg`."""
        if Path(path).suffix != '.svg':
            hint = f"write `save('{Path(path).stem}.svg')`"
            raise ValueError(f'expected `path` that ends in .svg, got {path}: {hint}')
        Path(path).write_text(self.svg, encoding='utf-8')

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return element('div', Markup(self.svg), style='overflow-x: auto')

    def __repr__(self) -> str:
        return f'Drawing({len(self.svg):,} characters of SVG)'


@api_boundary
def draw(thing: object, example: int | None = None) -> Drawing:
    """Draw a model, a program, a schedule, or one example of a schedule or corpus.

    Args:
      thing: a model or its program, drawn as operations above what they read; a
        schedule, drawn as rows of operations on each level; or a corpus.
      example: of a schedule or corpus, the index of an example, whose nodes are drawn
        on the levels on which they run; by default the first of a corpus.

    Returns:
      A picture: the last line of a cell shows it, `save(path)` writes it, `svg` is its
      text. Of large things a part is drawn.

    Raises:
      TypeError: `thing` is none of these, or a schedule that JAX traces; `example` is
        no int.
      ValueError: the schedule is stacked.
      IndexError: there is no such example.

    >>> import jfold as jf
    >>> model = jf.compile(jf.Map(jf.Scalar()) >> jf.Sum())
    >>> draw(model.schedule([[1, 2], [3]]), example=0).svg.startswith('<svg')
    True
    """
    if isinstance(thing, Model | LoadedModel):
        thing = thing.program
    if isinstance(thing, Operations):
        picture = program_picture(thing)
    elif isinstance(thing, Schedule):
        check_known(thing)
        picture = levels_picture(thing)
        if example is not None:
            here = thing.spec.capacity.examples * len(thing.parts)
            picture = example_picture(thing, _checked(example, here))
    elif isinstance(thing, Corpus):
        place = _checked(0 if example is None else example, len(thing))
        selection, program = thing.select(np.array([place])), thing.program
        spec = Spec(program, capacity(program, demands(selection), 1))
        picture = example_picture(build([selection], spec), 0)
    else:
        hint = 'compile blocks by `jf.compile`, and schedule examples by the model'
        text = 'expected a model, program, schedule or corpus, got'
        raise TypeError(f'{text} {short_repr(thing)}: {hint}')
    opening, _, rest = picture.partition('>')
    return Drawing(f'{opening}>{STYLE}{rest.partition("</svg>")[0]}</svg>')


def _checked(example: object, count: int) -> int:
    """Return `example` as an index below `count`, or raise TypeError or IndexError."""
    number = check_int('example', example)
    if not count:
        raise IndexError('expected at least one example to draw, got none')
    if not 0 <= number < count:
        raise IndexError(f'expected `example` from 0 to {count - 1}, got {number}')
    return number


def program_picture(program: Operations) -> Markup:
    """Return a picture of operations as boxes, each above the operations it reads."""
    shown, ranks = range(min(len(program.operations), SHOWN)), dict[int, int]()
    producers, component = c.sources(program), c.component_of(program)
    recurrent, reads = c.are_recurrent(program), c.direct_reads(program)
    for k, part in enumerate(c.components(program)):
        below = {component[i] for o in part.operations for i in c.results_in(reads[o])}
        ranks[k] = 1 + max((ranks[x] for x in below - {k}), default=0)
    boxes = [Box('data', '', 0)]
    for o in shown:
        inside = [1 + i for i in c.results_in(reads[o]) if i in shown]
        inside += [] if all(producers.inputs[o]) else [0]  # what no operation makes
        operation = program.operations[o]
        texts = cut(operation.layer.name, 24), cut(short_text(operation.result), 24)
        boxes.append(Box(*texts, ranks[component[o]], tuple(inside), recurrent[o]))
    top, first = 1 + max(box.rank for box in boxes), c.first_results(program)
    for result, sets in zip(program.results, producers.results, strict=True):
        makers = {sum(x <= n for x in first) - 1 for n in c.results_in(c.union(sets))}
        ends = tuple(1 + o for o in sorted(makers) if o in shown)
        name, note = result.kind.name or 'result', cut(short_text(result.type), 24)
        boxes.append(Box(cut(name, 24), note, top, ends or (0,)))
    if rest := len(program.operations) - len(shown):
        boxes.append(Box(f'… {rest} more operations', '', 0))
    return ranked(boxes, [], 'operations, above what they read')
