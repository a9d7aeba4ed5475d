#!/usr/bin/env python3
"""Compares the first step of two runs on the same data: one grouped, one with repeated prompts.

Prints loss, gradient norm, rows and seconds of both, the ratio of times beside the one predicted from
the work, and the largest relative difference of any parameter's gradient. Gradients are read from the
first moments of the two checkpoints of step 1, which after one update are a fixed multiple of them.
Run it with the light environment:

    "$(tools/venv light)/bin/python" tools/compare_runs.py runs/a/grouped runs/a/repeated

Exit status: 0, or 1 where gradients differ by more than summation order explains in f32: 3e-5 for the
whole, and 1e-4 for a parameter, of the larger of its own norm and its share of the whole
(docs/testing.md).
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

WHOLE_BOUND, PARAMETER_BOUND = 3e-5, 1e-4
CHECKPOINT = Path("checkpoints") / "step_00000001.h5"
MOMENTS = "/optimizer/exp_avg"


def first_step(run: Path) -> dict:
    with (run / "metrics.jsonl").open() as lines:
        return json.loads(lines.readline())


class Differences(NamedTuple):
    worst: float  # largest distance of a parameter's gradients / norm
    worst_name: str
    whole: float
    beyond: list[str]  # parameters past their bound


def gradient_differences(grouped: Path, repeated: Path) -> Differences:
    sizes, norms, distances = {}, {}, {}
    with h5py.File(grouped / CHECKPOINT) as one, h5py.File(repeated / CHECKPOINT) as two:
        for name in two[MOMENTS]:
            a = np.asarray(one[MOMENTS][name], np.float64)
            b = np.asarray(two[MOMENTS][name], np.float64)
            sizes[name] = b.size
            norms[name] = float(np.linalg.norm(b))
            distances[name] = float(np.linalg.norm(a - b))
    norm, distance = (math.hypot(*values.values()) for values in (norms, distances))
    elements = sum(sizes.values())
    relative = {n: distances[n] / norms[n] if norms[n] > 0 else distances[n] for n in norms}
    worst_name = max(relative, key=relative.__getitem__)
    beyond = [
        n
        for n in norms
        if distances[n] > PARAMETER_BOUND * max(norms[n], norm * math.sqrt(sizes[n] / elements))
    ]
    return Differences(relative[worst_name], worst_name, distance / norm if norm else 0.0, beyond)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grouped", type=Path, help="run directory")
    parser.add_argument("repeated", type=Path, help="run directory")
    arguments = parser.parse_args()
    grouped, repeated = first_step(arguments.grouped), first_step(arguments.repeated)
    print(f"{'first step':<16}{'grouped':>16}{'repeated':>16}")
    for title, key, form in (
        ("loss", "loss", ".9f"),
        ("gradient norm", "grad_norm", ".9f"),
        ("rows", "rows", ",d"),
        ("seconds", "step_seconds", ".2f"),
    ):
        print(f"{title:<16}{grouped[key]:>16{form}}{repeated[key]:>16{form}}")
    seconds = repeated["step_seconds"] / grouped["step_seconds"]
    work = repeated["executed_flops"] / grouped["executed_flops"]
    print(f"speed-up {seconds:.2f} measured, {work:.2f} predicted from the work")
    found = gradient_differences(arguments.grouped, arguments.repeated)
    print(
        f"largest relative difference of a gradient {found.worst:.1e} ({found.worst_name}), "
        f"of the whole {found.whole:.1e}"
    )
    if found.whole <= WHOLE_BOUND and not found.beyond:
        return 0
    print(f"that is more than rounding explains: {', '.join(found.beyond) or 'the whole'}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
