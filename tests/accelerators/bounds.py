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
    ('small', 'infer'): ((15, 100), (68, 450)),  # 14 levels
    ('small', 'train'): ((42, 283), (128, 828)),  # 14 levels
    ('small', 'train, recompute all'): ((41, 271), (167, 1112)),  # 14 levels
    ('middle', 'infer'): ((15, 135), (70, 631)),  # 19 levels
    ('middle', 'train'): ((42, 381), (130, 1185)),  # 19 levels
    ('middle', 'train, recompute all'): ((42, 383), (170, 1586)),  # 19 levels
    ('large', 'infer'): ((22, 161), (111, 751)),  # 19 levels
    ('large', 'train'): ((65, 531), (203, 1617)),  # 19 levels
    ('large', 'train, recompute all'): ((68, 566), (281, 2317)),  # 19 levels
    ('child-sums', 'infer'): ((42, 510), (363, 4258)),  # 25 levels
    ('child-sums', 'train'): ((83, 1005), (416, 4899)),  # 25 levels
    ('child-sums', 'train, recompute all'): ((80, 972), (468, 5484)),  # 25 levels
    ('chains', 'infer'): ((18, 364), (81, 1626)),  # 50 levels
    ('chains', 'train'): ((48, 972), (108, 2184)),  # 50 levels
    ('chains', 'train, recompute all'): ((45, 914), (150, 3029)),  # 50 levels
    ('messages', 'infer'): ((76, 257), (595, 1972)),  # 8 levels
    ('messages', 'train'): ((238, 810), (854, 2883)),  # 8 levels
    ('messages', 'train, recompute all'): ((226, 774), (1164, 3919)),  # 8 levels
    ('names', 'infer'): ((33, 331), (334, 3243)),  # 18 levels
    ('names', 'train'): ((60, 615), (382, 3702)),  # 18 levels
    ('names', 'train, recompute all'): ((57, 586), (431, 4193)),  # 18 levels
    ('whole-reverse', 'infer'): ((42, 252), (78, 496)),  # 14 levels
    ('whole-reverse', 'train'): ((172, 996), (192, 1173)),  # 14 levels
    ('whole-reverse', 'train, recompute all'): ((203, 1160), (237, 1413)),  # 14 levels
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
