#!/usr/bin/env python3
"""Compares the first step of two runs on the same data: one grouped, one with repeated prompts.

Prints loss, gradient norm, rows and seconds of both, the ratio of times beside the one predicted from
the work, and the largest relative difference of any parameter's gradient. Gradients are read from the
first moments of the two checkpoints of step 1, which after one update are a fixed multiple of them.
Run it with the light environment:

    "$(tools/venv light)/bin/python" tools/compare_runs.py runs/a/grouped runs/a/repeated
"""

import argparse
import json
import sys
from pathlib import Path

import h5py
import numpy as np

CHECKPOINT = Path("checkpoints") / "step_00000001.h5"
MOMENTS = "/optimizer/exp_avg"


def first_step(run: Path) -> dict:
    with (run / "metrics.jsonl").open() as lines:
        return json.loads(lines.readline())


def norm_and_distance(one: h5py.Dataset, two: h5py.Dataset) -> tuple[float, float]:
    a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
    return float(np.linalg.norm(b)), float(np.linalg.norm(a - b))


def gradient_differences(grouped: Path, repeated: Path) -> tuple[float, str, float]:
    """Largest relative difference of a parameter's gradient, whose it is, and that of the whole."""
    worst, worst_name, norm_squares, distance_squares = 0.0, "", 0.0, 0.0
    with h5py.File(grouped / CHECKPOINT) as one, h5py.File(repeated / CHECKPOINT) as two:
        for name in two[MOMENTS]:
            norm, distance = norm_and_distance(one[MOMENTS][name], two[MOMENTS][name])
            norm_squares += norm * norm
            distance_squares += distance * distance
            relative = distance / norm if norm > 0 else distance
            if relative >= worst:
                worst, worst_name = relative, name
    whole = (distance_squares / norm_squares) ** 0.5 if norm_squares > 0 else 0.0
    return worst, worst_name, whole


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
    worst, name, whole = gradient_differences(arguments.grouped, arguments.repeated)
    print(f"largest relative difference of a gradient {worst:.1e} ({name}), of the whole {whole:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
