# SPDX-License-Identifier: Apache-2.0
"""How many kernels accelerators start today: a ratchet, to be lowered with what falls.

    .venv/accelerators/bin/python tests/accelerators/bounds.py

prints the table anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [
    str(Path(__file__).parents[2] / name) for name in ('benchmarks', 'tests/support')
]

from hlo import kernels, loops
from kernel_models import PROGRAMS, program
from programs import MODES, compiled
from targets import ACCELERATORS

# What each level of the deepest example should start one day, on a GPU.
WISHED = {'infer': 9, 'train': 22}

# Of H200, then of TPU v5e: what one trip of each loop starts, and all; by model, mode
# and residuals. Behind them the levels of the deepest example. On the TPU training of
# `chains` and `whole-reverse` starts more than when inputs were gathered one by one.
BOUNDS = {
    ('small', 'infer'): ((15, 100), (53, 355)),  # 14 levels
    ('small', 'train'): ((36, 245), (112, 743)),  # 14 levels
    ('small', 'train, recompute all'): ((36, 247), (130, 878)),  # 14 levels
    ('middle', 'infer'): ((15, 135), (55, 499)),  # 19 levels
    ('middle', 'train'): ((36, 329), (114, 1043)),  # 19 levels
    ('middle', 'train, recompute all'): ((36, 331), (132, 1226)),  # 19 levels
    ('large', 'infer'): ((22, 161), (83, 571)),  # 19 levels
    ('large', 'train'): ((57, 470), (178, 1399)),  # 19 levels
    ('large', 'train, recompute all'): ((60, 505), (206, 1680)),  # 19 levels
    ('child-sums', 'infer'): ((42, 510), (243, 2815)),  # 25 levels
    ('child-sums', 'train'): ((83, 1004), (308, 3591)),  # 25 levels
    ('child-sums', 'train, recompute all'): ((80, 971), (321, 3712)),  # 25 levels
    ('chains', 'infer'): ((18, 363), (63, 1264)),  # 50 levels
    ('chains', 'train'): ((42, 853), (120, 2306)),  # 50 levels
    ('chains', 'train, recompute all'): ((42, 854), (129, 2601)),  # 50 levels
    ('messages', 'infer'): ((0, 18), (0, 53)),  # no loops
    ('messages', 'train'): ((0, 60), (0, 110)),
    ('messages', 'train, recompute all'): ((0, 73), (0, 122)),
    ('names', 'infer'): ((33, 330), (217, 2110)),  # 18 levels
    ('names', 'train'): ((57, 585), (274, 2658)),  # 18 levels
    ('names', 'train, recompute all'): ((57, 585), (284, 2770)),  # 18 levels
    ('whole-reverse', 'infer'): ((42, 252), (69, 439)),  # 14 levels
    ('whole-reverse', 'train'): ((169, 977), (203, 1236)),  # 14 levels
    ('whole-reverse', 'train, recompute all'): ((200, 1141), (251, 1501)),  # 14 levels
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
