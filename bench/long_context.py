#!/usr/bin/env python3
"""Long prompts on a tiny model: memory beside the rows, time beside the visible pairs.

Runs the built program (2 layers, hidden size 64, f32), one group a step, each prompt length in turn,
and prints a Markdown table. Memory beyond the weights should grow as the rows do and seconds as
the visible pairs do, so the last two columns should stay level.
"""
import argparse
import os
import statistics
import tempfile

from support.runs import Runs, machine

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 1 << 17,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "initializer_range": 0.02}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/launch/coppice")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefix", type=int, action="append",
                        help="default: 4096, 8192, 16384, 32768")
    parser.add_argument("--response", type=int, default=512)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    print(f"{machine()}; {options.threads} threads, R={options.response} G={options.group_size}\n")
    print("| P | rows | visible pairs | step s | forward + backward s | buffers MiB | plan MiB "
          "| bytes per row | ns per pair |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        runs = Runs(options.program, directory, CONFIG)
        for prefix in options.prefix or (4096, 8192, 16384, 32768):
            shape = (prefix, options.response, options.group_size)
            flags = [f"threads_per_rank={options.threads}", "batching.sharing=GROUPED"]
            steps = runs.train(*shape, options.steps, flags + options.set)
            plan = runs.plan(*shape, flags + options.set)
            memory = plan["memory"]
            weights = memory["parameters"] + memory["gradients"] + memory["moments"]
            last = steps[-1]
            seconds = statistics.median(step["step_seconds"] for step in steps)
            passes = statistics.median(step["seconds"]["forward"] + step["seconds"]["backward"]
                                       for step in steps)
            print(f"| {prefix} | {last['rows']} | {last['visible_pairs']} | {seconds:.2f} "
                  f"| {passes:.2f} | {last['peak_memory_bytes'] / 2**20:.1f} "
                  f"| {plan['peak_memory_bytes'] / 2**20:.1f} "
                  f"| {(last['peak_memory_bytes'] - weights) / last['rows']:.0f} "
                  f"| {passes / last['visible_pairs'] * 1e9:.2f} |", flush=True)


if __name__ == "__main__":
    main()
