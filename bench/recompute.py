#!/usr/bin/env python3
"""What recomputation costs in time and saves in memory, on SmolLM2-135M shapes in f32.

Runs the built program with random weights, one group a step, under each of NONE, SELECTIVE and
BLOCK, in turn. Prints a Markdown table: the median step, the high-water mark of the program's
buffers and what `plan` foretold of it, and the most that the process had resident.
"""
import argparse
import os
import statistics
import tempfile

from support.runs import SMOLLM2, Runs, machine

MODES = ("NONE", "SELECTIVE", "BLOCK")
GIB = 2 ** 30


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/launch/coppice")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a run")
    parser.add_argument("--repetitions", type=int, default=2, help="runs of each mode")
    parser.add_argument("--layers", type=int, default=SMOLLM2["num_hidden_layers"])
    parser.add_argument("--shape", action="append", metavar="P,R,G",
                        help="default: 512,64,8 and 2048,64,16")
    options = parser.parse_args()
    shapes = [tuple(int(part) for part in shape.split(","))
              for shape in options.shape or ("512,64,8", "2048,64,16")]
    print(f"{machine()}; {options.threads} threads, {options.layers} layers\n")
    print("| P, R, G | recompute | step s | forward s | backward s | to NONE | peak_memory_bytes GiB "
          "| plan GiB | peak resident GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        runs = Runs(options.program, directory, SMOLLM2 | {"num_hidden_layers": options.layers})
        for shape in shapes:
            found = {mode: [] for mode in MODES}
            for _ in range(options.repetitions):
                for mode in MODES:
                    found[mode] += runs.train(
                        *shape, options.steps,
                        (f"numerics.recompute={mode}", f"threads_per_rank={options.threads}"))

            def median(mode, key):
                return statistics.median(key(step) for step in found[mode])
            base = median("NONE", lambda step: step["step_seconds"])
            for mode in MODES:
                seconds = median(mode, lambda step: step["step_seconds"])
                phases = [median(mode, lambda step, phase=phase: step["seconds"][phase])
                          for phase in ("forward", "backward")]
                last = found[mode][-1]
                plan = runs.plan(*shape, (f"numerics.recompute={mode}",
                                          f"threads_per_rank={options.threads}"))
                print(f"| {', '.join(map(str, shape))} | {mode} | {seconds:.2f} | {phases[0]:.2f} "
                      f"| {phases[1]:.2f} | {seconds / base:.2f} "
                      f"| {last['peak_memory_bytes'] / GIB:.3f} "
                      f"| {plan['peak_memory_bytes'] / GIB:.3f} "
                      f"| {last['peak_resident_bytes'] / GIB:.3f} |", flush=True)


if __name__ == "__main__":
    main()
