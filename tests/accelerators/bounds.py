# SPDX-License-Identifier: Apache-2.0
"""How many kernels accelerators start today: a ratchet, to be lowered with what falls.

    .venv/accelerators/bin/python tests/accelerators/bounds.py

prints the table anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / name) for name in ('benchmarks', 'tests')]

from hlo import kernels, loops
from kernel_models import PROGRAMS, program
from programs import MODES, compiled
from targets import ACCELERATORS

# What each level of the deepest example should start one day, on a GPU.
WISHED = {'infer': 9, 'train': 22}

# Of H200, then of TPU v5e: what one trip of each loop starts, and all; by model, mode
# and residuals. Behind them the levels of the deepest example.
BOUNDS = {
    ('small', 'infer'): ((9, 254), (40, 1105)),  # 14 levels
    ('small', 'train'): ((27, 728), (78, 1968)),  # 14 levels
    ('small', 'train, recompute all'): ((29, 691), (110, 2925)),  # 14 levels
    ('middle', 'infer'): ((9, 268), (42, 1275)),  # 19 levels
    ('middle', 'train'): ((27, 838), (88, 2776)),  # 19 levels
    ('middle', 'train, recompute all'): ((30, 897), (106, 3384)),  # 19 levels
    ('large', 'infer'): ((9, 396), (41, 1769)),  # 19 levels
    ('large', 'train'): ((28, 1132), (72, 2878)),  # 19 levels
    ('large', 'train, recompute all'): ((31, 1191), (101, 4296)),  # 19 levels
    ('child-sums', 'infer'): ((19, 1201), (144, 9636)),  # 25 levels
    ('child-sums', 'train'): ((65, 3670), (253, 16059)),  # 25 levels
    ('child-sums', 'train, recompute all'): ((67, 3609), (273, 17111)),  # 25 levels
    ('chains', 'infer'): ((12, 516), (50, 2299)),  # 50 levels
    ('chains', 'train'): ((36, 1475), (80, 3250)),  # 50 levels
    ('chains', 'train, recompute all'): ((36, 1401), (107, 4368)),  # 50 levels
    ('messages', 'infer'): ((26, 1966), (178, 16109)),  # 8 levels
    ('messages', 'train'): ((117, 7893), (412, 32200)),  # 8 levels
    ('messages', 'train, recompute all'): ((123, 7636), (529, 40382)),  # 8 levels
    ('names', 'infer'): ((21, 750), (150, 7546)),  # 18 levels
    ('names', 'train'): ((65, 2551), (251, 12277)),  # 18 levels
    ('names', 'train, recompute all'): ((65, 2494), (279, 13420)),  # 18 levels
    ('whole-reverse', 'infer'): ((15, 632), (34, 1182)),  # 14 levels
    ('whole-reverse', 'train'): ((98, 2508), (99, 2384)),  # 14 levels
    ('whole-reverse', 'train, recompute all'): ((120, 2919), (122, 3073)),  # 14 levels
}


def counted(name: str, mode: str, target: str) -> tuple[int, int]:
    """What one trip of each loop starts, and the whole program."""
    module = compiled(name, mode, target)
    return sum(each.count for each in loops(module)), kernels(module)


def main() -> None:
    """Prints the table."""
    for name in PROGRAMS:
        for mode, (_, residuals) in MODES.items():
            found = [counted(name, mode, each.name) for each in ACCELERATORS]
            levels = program(name, residuals).levels
            print(f'    {(name, mode)}: {tuple(found)},  # {levels} levels', flush=True)


if __name__ == '__main__':
    main()
