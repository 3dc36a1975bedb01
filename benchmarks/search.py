# SPDX-License-Identifier: Apache-2.0
"""Staircases of many kinds on the device that is here: which is fastest?

    python benchmarks/search.py [--quick] [--only small,middle]

The fixed strategy cuts the levels of a batch into segments of steps, each of one width.
This tries numbers of segments, and prices of a step beside those of rows: where a step
is dear, steps are few and wide. All of a model take turns.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import jax
from kernel_models import ABOUT, PROGRAMS, Program, program
from measuring import MODES, agree, begin, jax_parser
from options import among, fill, say
from report import Row
from turns import Times, compiled, take_turns

from jfold.scheduling import staircase, tiles
from jfold.scheduling.spec import SAVE_PRODUCTS

Form = tuple[int, float]  # segments at most; times what jfold takes a step to cost
OWN: Form = staircase.SEGMENTS, 1.0


def made(name: str, form: Form) -> Program:
    """A program with staircases of a form."""
    segments, price = form
    start = int(tiles.START * price)
    with (
        patch.object(staircase, 'SEGMENTS', segments),
        patch.object(tiles, 'START', start),
    ):
        # Not the one that is kept, which has the staircases of another form.
        return program.__wrapped__(name, SAVE_PRODUCTS)


def different(name: str, forms: Iterable[Form]) -> dict[Form, Program]:
    """The programs of those forms whose staircases no form before them has."""
    found: dict[Form, Program] = {}
    seen = []
    for form in forms:
        chosen = made(name, form)
        profiles = chosen.schedule.spec.capacity.profiles
        if profiles not in seen:
            seen.append(profiles)
            found[form] = chosen
    return found


@dataclass(frozen=True)
class Step:
    """One mode of a program, compiled.

    Attributes:
      seconds: that compiling took.
    """

    run: Any
    program: Program
    seconds: float

    def __call__(self, _: int) -> Any:
        return self.run(self.program.params, self.program.schedule)


def make_step(chosen: Program, mode: str) -> Step:
    """Compiles one mode of a program."""
    arguments = chosen.params, chosen.schedule
    run, seconds = compiled(getattr(chosen, mode), *arguments)
    return Step(run, chosen, seconds)


def compare(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """A row for each form and mode of a model, jfold's own first.

    Raises:
      Disagreement: two forms give other results or gradients.
    """
    others = itertools.product(options.segments, options.prices)
    programs = different(name, [OWN, *others])
    say(f'{name}: compiling {len(programs)} forms')
    for mode in MODES:
        steps = {form: make_step(x, mode) for form, x in programs.items()}
        for form, step in steps.items():
            agree(f'{name}, {mode}, {form}', step(0), steps[OWN](0))
        say(f'{name}: timing {mode}')
        ways = {str(form): step for form, step in steps.items()}
        times = take_turns(ways, options.repeats, options.limit)
        for form, step in steps.items():
            head = {'model': name, 'mode': mode}
            yield head | row_of(form, step, times[str(form)], times[str(OWN)])


def row_of(form: Form, step: Step, times: Times, own: Times) -> Row:
    """What a form has cost."""
    computed, real = step.program.rows
    profiles = step.program.schedule.spec.capacity.profiles
    return {
        'segments': form[0],
        'price of a step': form[1],
        'steps': sum(trips for profile in profiles for trips, _ in profile),
        'rows / real': computed / real,
        'compile s': step.seconds,
        'ms': times.ms,
        'spread %': times.spread,
        'over own': (times / own).median,
    }


# ---- command line --------------------------------------------------------------------

NOTE = (
    'segments: at most, of each recurrence; price of a step: times what jfold takes it '
    'to be; the first row of a model is what jfold does by itself, and forms that come '
    'to a staircase of a row before are left out. over own: the ratio to that row, '
    'median of rounds. All forms have given the same results, losses and gradients.'
)


def main() -> None:
    """Measures, and prints a table; files are complete after each model."""
    options = arguments()
    report = begin('Staircases', options)
    report.note(ABOUT)
    report.note(f'On {jax.devices()[0].device_kind}. {NOTE}')
    for name in options.only:
        report.rows += compare(name, options)
        report.write()
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    names = list(PROGRAMS)
    parser.add_argument('--only', type=among(names), help=', '.join(names))
    options = parser.parse_args()
    full = {
        'only': ['small', 'middle', 'large', 'child-sums', 'messages'],
        'segments': (1, 2, 4, 6, 8),
        'prices': (1 / 16, 1 / 4, 1.0, 4.0),
    }
    quick = {'only': ['small'], 'segments': (1, 4), 'prices': (1.0,)}
    vars(options).update(segments=None, prices=None)
    return fill(options, full, quick)


if __name__ == '__main__':
    main()
