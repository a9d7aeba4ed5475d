#!/usr/bin/env python3
"""How much of the FLOPs that sharing saves it saves in time, over prompt length and group size.

Runs the built program on SmolLM2-135M shapes with random weights in f32, one group a step: grouped
and repeated in turn, each in a process of its own whose first step does not count. Prints a Markdown
table: medians of seconds.forward + seconds.backward, their ratio, the bound that the FLOPs set
(executed_flops of both), how much of it was reached, and which of the two AUTO takes.
"""
import argparse
import itertools
import os
import statistics
import sys
import tempfile

from support.runs import SMOLLM2, Runs, machine

SIDES = ("GROUPED", "REPEATED")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/launch/coppice")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefixes", type=int, nargs="+", default=(128, 512, 2048))
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--group-sizes", type=int, nargs="+", default=(2, 8, 16))
    parser.add_argument("--steps", type=int, default=1, help="timed steps of a run")
    parser.add_argument("--repetitions", type=int, default=2, help="runs of each side")
    parser.add_argument("--rows", type=int, default=8448, help="most rows of a micro-batch")
    parser.add_argument("--layers", type=int, default=SMOLLM2["num_hidden_layers"])
    options = parser.parse_args()
    print(f"{machine()}; {options.threads} threads, {options.layers} layers, R={options.response}, "
          f"{options.repetitions} runs of {options.steps} steps\n")
    print("| P | P/R | G | repeated s | grouped s | ratio | bound by FLOPs | reached "
          "| whole step | AUTO takes |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        runs = Runs(options.program, directory, SMOLLM2 | {"num_hidden_layers": options.layers})
        for prefix, group_size in itertools.product(options.prefixes, options.group_sizes):
            found = {side: [] for side in SIDES}

            def flags(side):
                return (f"batching.sharing={side}", f"threads_per_rank={options.threads}",
                        f"batching.max_rows_per_microbatch={options.rows}")
            for repetition in range(options.repetitions):
                # Who goes first changes, so that a machine that slows down hits both alike.
                for side in SIDES if repetition % 2 == 0 else reversed(SIDES):
                    found[side] += runs.train(prefix, options.response, group_size, options.steps,
                                              flags(side))
                    print(f"P={prefix} G={group_size} {side}: "
                          f"{found[side][-1]['step_seconds']:.2f} s", file=sys.stderr, flush=True)

            def median(side, key):
                return statistics.median(key(step) for step in found[side])

            def passes(step):
                return step["seconds"]["forward"] + step["seconds"]["backward"]
            times = {side: median(side, passes) for side in SIDES}
            wholes = {side: median(side, lambda step: step["step_seconds"]) for side in SIDES}
            flops = {side: found[side][0]["executed_flops"] for side in SIDES}
            ratio = times["REPEATED"] / times["GROUPED"]
            bound = flops["REPEATED"] / flops["GROUPED"]
            planned = runs.plan(prefix, options.response, group_size, flags("AUTO"))
            auto = planned["total"]["sharing"]
            print(f"| {prefix} | {prefix / options.response:g} | {group_size} "
                  f"| {times['REPEATED']:.2f} | {times['GROUPED']:.2f} | {ratio:.2f} | {bound:.2f} "
                  f"| {100 * ratio / bound:.0f} % | {wholes['REPEATED'] / wholes['GROUPED']:.2f} "
                  f"| {auto} |", flush=True)


if __name__ == "__main__":
    main()
