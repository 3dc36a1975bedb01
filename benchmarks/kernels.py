# SPDX-License-Identifier: Apache-2.0
"""What accelerators would run: kernels, bytes, memory, and an estimate of the time.

    .venv/accelerators/bin/python benchmarks/kernels.py    # after `make accelerators`
    python benchmarks/kernels.py --quick

Nothing is run. XLA compiles for devices that need not be here, and the optimised HLO
tells what each step starts. Where the packages for that are absent, or with `--quick`,
it is the HLO of the CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from kernel_costs import Costs, costs
from kernel_models import ABOUT, PROGRAMS, Program, program
from measuring import MODES, begin, jax_parser
from options import among, fill, say
from perfect import perfect_functions
from report import Row
from targets import ACCELERATORS, CPU, Target

from jfold.spec import RESIDUALS, SAVE_PRODUCTS

FORMS = 'jfold', 'perfect batch'


def measured(target: Target, fn: Any, arguments: Any) -> tuple[Costs, int]:
    """What a function costs on a device, and the most memory it has at a time."""
    compiled = target.compile(fn, *arguments)
    memory = compiled.memory_analysis()
    return costs(compiled.as_text(), target), memory.peak_memory_in_bytes


def rows_of(
    name: str, residuals: str, target: Target, modes: tuple[str, ...]
) -> Iterator[Row]:
    """A row for each mode and form."""
    chosen = program(name, residuals)
    parts = chosen.model, chosen.params, [chosen.schedule]
    given, *perfect = perfect_functions(*parts)
    for mode in modes:
        own = getattr(chosen, mode), (chosen.params, chosen.schedule)
        other = perfect[MODES.index(mode)], given
        forms = [own, other] if residuals == SAVE_PRODUCTS else [own]
        for form, (fn, arguments) in zip(FORMS, forms, strict=False):
            say(f'{name}, {residuals}, {target.name}: {mode}, {form}')
            found, memory = measured(target, fn, arguments)
            kept = residuals if mode == 'train' and form == FORMS[0] else '–'
            head = {'model': name, 'device': target.name, 'mode': mode, 'form': form}
            yield head | {'residuals': kept} | row_of(chosen, form, found, memory)


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
    'Estimates, not measurements: nothing has run on these devices. A kernel is any '
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
    targets = tuple(t for t in ACCELERATORS if t.is_there and not options.quick)
    report = begin('Kernels on accelerators', options)
    for each in ACCELERATORS:
        if each not in targets:
            report.absent[each.name] = f'{reason(each)}; see the CPU instead'
    targets = targets or (CPU,)
    report.note(ABOUT)
    report.note(note(targets))
    for name in options.only:
        for residuals in RESIDUALS:
            modes = MODES if residuals == SAVE_PRODUCTS else MODES[1:]
            for target in targets:
                report.rows += rows_of(name, residuals, target, modes)
        report.write()
    report.close()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = jax_parser(__doc__ or '')
    names = list(PROGRAMS)
    parser.add_argument('--only', type=among(names), help=', '.join(names))
    return fill(parser.parse_args(), {'only': names}, {'only': names[:1]})


if __name__ == '__main__':
    main()
