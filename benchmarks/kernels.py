# SPDX-License-Identifier: Apache-2.0
"""What accelerators would run: kernels, bytes, memory, and an estimate of the time.

    .venv/accelerators/bin/python benchmarks/kernels.py    # after `make accelerators`
    python benchmarks/kernels.py --quick
    python benchmarks/kernels.py --run                     # on the device that is here

Nothing is run. XLA compiles for devices that need not be here, and the optimised HLO
tells what each step starts. Where the packages for that are absent, or with `--quick`,
it is the HLO of the CPU. With `--run` it is that of the device that is here, and the
times that it took stand beside the estimates.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
from kernel_costs import Costs, costs
from kernel_models import ABOUT, PROGRAMS, Program, program
from measuring import MODES, begin, jax_parser
from options import among, fill, say
from perfect import perfect_functions
from report import Report, Row
from targets import ACCELERATORS, CPU, Target, here
from turns import Contenders, take_turns

from jfold.scheduling.spec import RESIDUALS, SAVE_PRODUCTS

FORMS = 'jfold', 'perfect batch'


@dataclass(frozen=True)
class Form:
    """A program as one device runs it.

    Attributes:
      head: its columns that tell what it is.
      chosen: of which model it is.
      compiled: what XLA made of it.
      arguments: that it takes.
      costs: by its HLO.
    """

    head: Row
    chosen: Program
    compiled: Any
    arguments: tuple[Any, ...]
    costs: Costs

    def __call__(self, _: int) -> Any:
        return self.compiled(*self.arguments)

    @property
    def row(self) -> Row:
        """Its row of the table."""
        memory = self.compiled.memory_analysis().peak_memory_in_bytes
        return self.head | row_of(self.chosen, self.head['form'], self.costs, memory)


def forms_of(
    name: str, residuals: str, target: Target, modes: tuple[str, ...]
) -> Iterator[Form]:
    """Those of each mode."""
    chosen = program(name, residuals)
    parts = chosen.model, chosen.params, [chosen.schedule]
    given, *perfect = perfect_functions(*parts)
    for mode in modes:
        own = getattr(chosen, mode), (chosen.params, chosen.schedule)
        other = perfect[MODES.index(mode)], given
        forms = [own, other] if residuals == SAVE_PRODUCTS else [own]
        for form, (fn, arguments) in zip(FORMS, forms, strict=False):
            say(f'{name}, {residuals}, {target.name}: {mode}, {form}')
            made = target.compile(fn, *arguments)
            kept = residuals if mode == 'train' and form == FORMS[0] else '–'
            head = {'model': name, 'device': target.name, 'mode': mode, 'form': form}
            head |= {'residuals': kept}
            found = costs(made.as_text(), target)
            yield Form(head, chosen, made, arguments, found)


def timed(forms: list[Form], options: argparse.Namespace) -> Iterator[Row]:
    """Rows of programs with the times that they take, in turns."""
    say(f'{forms[0].head["model"]}: timing')
    # Else what the perfect batch takes comes from the host in each call.
    forms = [replace(form, arguments=jax.device_put(form.arguments)) for form in forms]
    ways: Contenders = {str(form.head): form for form in forms}
    times = take_turns(ways, options.repeats, options.limit)
    for form in forms:
        found = times[str(form.head)]
        over = found.median / form.costs.seconds
        about = {'ms': found.ms, 'spread %': found.spread, 'ms / estimate': over}
        yield form.row | about


def row_of(chosen: Program, form: str, found: Costs, memory: int) -> Row:
    """The numbers of one form."""
    looped, real = chosen.rows
    is_own = form == FORMS[0]
    return {
        'levels': chosen.levels if is_own else None,
        'steps': found.steps if is_own else None,
        'kernels of a step': found.kernels_a_step if is_own else None,
        'kernels': found.kernels,
        'kernels / levels': found.kernels / chosen.levels if is_own else None,
        'rows / real': looped / real if is_own else 1.0,
        'GB moved': found.bytes / 1e9,
        'TFLOP': found.operations / 1e12,
        'peak MB': memory / 1e6,
        'estimate ms': 1e3 * found.seconds,
    }


# ---- command line --------------------------------------------------------------------

NOTE = (
    'Estimates, not measurements, of what runs on these devices. A kernel is any '
    'instruction that starts something on the device; it takes {starts} to start, and '
    'then the time of its bytes at {bandwidths}, or of its products at {rates}, '
    'whichever is longer; kernels come one after another. levels: of the deepest '
    'example; steps: trips of all loops; kernels of a step: of one trip of each loop. '
    'Of buffers, the rows that are read and written count as moved. perfect batch: the '
    'same operations once on as many rows that lie side by side.'
)


def note(targets: tuple[Target, ...]) -> str:
    """What the numbers mean."""
    parts = {
        'starts': [f'{1e6 * t.start:g} µs' for t in targets],
        'bandwidths': [f'{t.bandwidth / 1e9:g} GB/s' for t in targets],
        'rates': [f'{t.rate / 1e12:g} TFLOP/s' for t in targets],
    }
    listed = {
        name: ', '.join(f'{x} ({t.name})' for x, t in zip(each, targets, strict=True))
        for name, each in parts.items()
    }
    return NOTE.format(**listed)


def reason(target: Target) -> str:
    """Why a device is left out."""
    if target.is_there:
        return 'the quick form leaves it out'
    return f'needs {", ".join(target.packages)}, which `make accelerators` installs'


def main() -> None:
    """Compiles, counts, and prints a table; files are complete after each model."""
    options = arguments()
    report = begin('Kernels on accelerators', options)
    targets = chosen_targets(options, report)
    report.note(ABOUT)
    report.note(note(targets))
    for name in options.only:
        forms = [form for target in targets for form in all_forms(name, target)]
        report.rows += timed(forms, options) if options.run else (x.row for x in forms)
        report.write()
    report.close()


def chosen_targets(options: argparse.Namespace, report: Report) -> tuple[Target, ...]:
    """The devices to compile for; the report tells which are left out."""
    if options.run:
        report.note(
            'ms: measured, medians of calls in turns, from arrays that are there.'
        )
        return (here(),)
    targets = tuple(t for t in ACCELERATORS if t.is_there and not options.quick)
    for each in ACCELERATORS:
        if each not in targets:
            report.absent[each.name] = f'{reason(each)}; see the CPU instead'
    return targets or (CPU,)


def all_forms(name: str, target: Target) -> Iterator[Form]:
    """Of a model, for a device."""
    for residuals in RESIDUALS:
        modes = MODES if residuals == SAVE_PRODUCTS else MODES[1:]
        yield from forms_of(name, residuals, target, modes)


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    names = list(PROGRAMS)
    add = parser.add_argument
    add('--only', type=among(names), help=', '.join(names))
    add('--run', action='store_true', help='on the device that is here, and measured')
    return fill(parser.parse_args(), {'only': names}, {'only': names[:1]})


if __name__ == '__main__':
    main()
